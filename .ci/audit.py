"""Compares pinned packages with the known vulnerabilities: python .ci/audit.py constraints/newest.txt ...

pip-audit ends with code 0 and "No known vulnerabilities found" if the service knows none of the packages, or if it
skips them all. This program reads its report and ends with 1 then too, and says what was compared and what was not.
"""

import json
import subprocess
import sys
from typing import Any


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code and the lines to print, given pip-audit's JSON report: 0 only if something was compared."""
    audited = [entry for entry in report.get("dependencies", []) if "vulns" in entry]
    skipped = [entry for entry in report.get("dependencies", []) if "vulns" not in entry]
    found = [
        f"{entry['name']} {entry['version']}: {vulnerability['id']}, fixed in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for entry in audited
        for vulnerability in entry["vulns"]
    ]
    lines = [*found, f"compared with the known vulnerabilities: {len(audited)}; vulnerabilities found: {len(found)}"]
    if skipped and audited:
        names = ", ".join(entry["name"] for entry in skipped)
        lines.append(f"not compared, because the service does not know them: {len(skipped)} ({names})")
    if not audited:
        lines.append(f"audited nothing: the service knows none of the {len(skipped)} packages, so nothing is known")
        lines.append("make check AUDIT=no leaves the audit out")
    return (1 if found or not audited else 0), lines


def main(paths: list[str]) -> int:
    dependencies: list[dict[str, Any]] = []
    for path in paths:  # each by itself: pip-audit takes hashes for all packages or for none
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--requirement", path]
        process = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True
        )
        try:
            dependencies += json.loads(process.stdout)["dependencies"]
        except (ValueError, KeyError):
            last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            print(f"{path} was not audited: the vulnerability service cannot be asked: {last[:200]}", file=sys.stderr)
            return 1
    code, lines = verdict({"dependencies": dependencies})
    print("\n".join(lines), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
