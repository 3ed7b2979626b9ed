"""Processes of a job whose checkpoints cannot be written: all of them say so, try again together and end with 74."""

import os
import subprocess

import pytest

from tests.hosts import Hosts
from tests.train.hosts.test_ending import rows_of, words_for


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_ends_all_processes_with_the_code_that_is_worth_restarting(tmp_path):
    run = tmp_path / "run"
    folder = run / "checkpoints"
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this machine mounts nothing")
    words = words_for(run, "phases=((32, 8, 12),)", "max_failed_saves=3")
    try:
        with Hosts(2, words, tmp_path / "logs", devices=1) as hosts:
            ends = hosts.wait()
        assert [end.code for end in ends] == [74, 74], "\n".join(end.out for end in ends)
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", folder], check=True)
    steps = [row["step"] for row in rows_of(run) if row["kind"] == "train"]
    assert steps == list(range(1, 13))  # it trained to its end
    log = (run / "run.log").read_text()
    assert "step 5 was not saved" in log and "training goes on, and the next try is in 60 seconds" in log
    assert "stopping: step 12 was not saved" in log and "(failure 3 of 3)" in log
    with Hosts(2, words, tmp_path / "again", devices=1) as hosts:
        assert [end.code for end in hosts.wait()] == [0, 0]
