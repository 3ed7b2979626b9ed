"""The audit of the dependencies: it fails if it found something, and if it compared nothing."""

import json
import shutil
import sys

import pytest

from tests.ci_scripts import ci_script

# Reports of pip-audit 2.10.1: the first two from its README, the third as it ends with "No known vulnerabilities found" and 0.
FOUND = """{"dependencies": [{"name": "flask", "version": "0.5", "vulns": [{"id": "PYSEC-2019-179", "fix_versions": ["1.0"],
  "aliases": ["CVE-2019-1010083"], "description": "..."}]}, {"name": "jinja2", "version": "3.0.2", "vulns": []}], "fixes": []}"""
NONE = '{"dependencies": [{"name": "jinja2", "version": "3.0.2", "vulns": []}], "fixes": []}'
SKIPPED = """{"dependencies": [{"name": "jinja2", "skip_reason":
  "Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)"}], "fixes": []}"""


@pytest.mark.parametrize(
    ("report", "code", "says"),
    [
        (FOUND, 1, "flask 0.5: PYSEC-2019-179, fixed in 1.0"),
        (NONE, 0, "compared with the known vulnerabilities: 1; vulnerabilities found: 0"),
        (SKIPPED, 1, "audited nothing"),
        ("{}", 1, "audited nothing"),
    ],
)
def test_an_audit_that_compared_nothing_fails_as_one_that_found_something(report: str, code: int, says: str):
    ended, lines = ci_script("audit").verdict(json.loads(report))
    assert ended == code
    assert any(says in line for line in lines)


def test_what_was_not_compared_is_named_and_does_not_hide_the_rest():
    both = json.loads(NONE)["dependencies"] + [{"name": "torch", "skip_reason": "not found"}]
    code, lines = ci_script("audit").verdict({"dependencies": both})
    assert code == 0 and "not compared, because the service does not know them: 1 (torch)" in lines


def test_a_service_that_cannot_be_asked_fails(monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert ci_script("audit").main(["constraints/newest.txt"]) == 1
    assert "newest.txt was not audited: the vulnerability service cannot be asked" in capsys.readouterr().err
