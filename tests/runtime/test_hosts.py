"""The end of a process of a job, whatever has become of its output."""

import os
import subprocess
import sys

import pytest

from tests.root import ROOT

PROGRAM = """
import sys
from pathlib import Path
from bert_jax.runtime import hosts

class Channel:
    def end(self, code, line):
        Path(sys.argv[1]).write_text(f"{code} {line}")

print("a result")
hosts._channel = Channel()
hosts.fail(2, "program: error: no such file")
"""


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize("state", ["closed", "without a reader"])
def test_a_process_that_fails_ends_its_job_and_itself_whatever_reads_its_output(stream: str, state: str, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    redirection = f"{stream}>&-" if state == "closed" else f"{stream}>&{writer}"
    ended = subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", PROGRAM, tmp_path / "told"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        pass_fds=[writer],
        capture_output=True,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert ended.returncode == 2
    assert (tmp_path / "told").read_text() == "2 program: error: no such file"
    if stream == "1":
        assert ended.stderr == "program: error: no such file\n"
    else:
        assert ended.stdout == "a result\n"
