"""What the processes of a job compare and what the first decides, in real processes that do not train."""

import fcntl
import re

import pytest

from tests.hosts import Hosts
from tests.root import ROOT

WORDS = ["-m", "train.pretrain", "configs/tiny.py", "data=random"]


def ends_of(hosts: Hosts) -> list[tuple[int, str]]:
    """Exit code and last line of each process."""
    return [(end.code, end.out.strip().rpartition("\n")[2]) for end in hosts.wait()]


def of(first: str, other: str) -> str:
    return f"process 0 has {first}, process 1 has {other}"


AGREE = """
import sys, time
number = int(sys.argv[1])
time.strftime = lambda form, *now: f"day-{number}"  # midnight has passed on one host
from bert_jax.errors import UserError
from bert_jax.runtime import hosts
from train.pretraining.recipe import PretrainConfig
from train.run.launch import start
from train.run.ending.stopping import exit_code

def main(argv):
    launch = start(argv, "", PretrainConfig)
    print("run", launch.run)
    print("decided", hosts.on_first_process(lambda: {"steps": [number, 2]}))
    for kind in (UserError, FileNotFoundError):
        def decide():
            raise kind(f"from {number}")
        try:
            hosts.on_first_process(decide)
        except Exception as error:
            print(type(error).__name__, error)
    hosts.same_everywhere({"model": {"layers": 2}})
    try:
        hosts.same_everywhere({"model": {"layers": number}, "name": "abc"[number:]})
    except UserError as error:
        print(error)
    return number  # each process ends with its own code once all are done

sys.exit(exit_code(main, sys.argv[2:], "program"))
"""


@pytest.mark.slow
def test_the_first_process_decides_for_all(tmp_path):
    def words(number: int) -> list[str]:
        return ["-c", AGREE, str(number), "configs/tiny.py", "data=random"]

    with Hosts(2, words, tmp_path) as hosts:
        ends = hosts.wait()
    expected = [
        "run runs/tiny-day-0",
        "decided {'steps': [0, 2]}",
        "UserError from 0",
        "FileNotFoundError from 0",
        f"the processes must run the same: model.layers: {of('0', '1')}; name: {of('abc', 'bc')}",
    ]
    assert [(end.code, end.out.splitlines()) for end in ends] == [(0, expected), (1, expected)]


@pytest.mark.slow
def test_processes_that_would_train_different_things_end_with_both_values(tmp_path):
    run = tmp_path / "runs" / "a"
    with Hosts(2, lambda number: [*WORDS, f"run={run}", f"seed={number + 3}"], tmp_path / "logs") as hosts:
        ends = ends_of(hosts)
    line = "python -m train.pretrain: error: the processes must run the same: seed: process 0 has 3, process 1 has 4"
    assert ends == [(2, line)] * 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["source", "package", "manifest", "run", "option"])
def test_all_else_that_may_differ_is_compared(tmp_path, what):
    """Host 1 has another version of the code, of a package, of the data, or another command line."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    change = {
        "source": "launch._sum_of = lambda path, real=launch._sum_of: real(path) if path.name != 'loop.py' else 'x'",
        "package": "launch.package_versions = lambda: {'jax': '0.0.1'}",
        "manifest": "launch._sum_of = lambda path, real=launch._sum_of: None if 'manifest' in path.name else real(path)",
        "run": "sys.argv[1:] = [word.replace('runs/', 'elsewhere/') for word in sys.argv[1:]]",
        "option": "sys.argv.append('--dry-run')",
    }[what]
    script = "import sys; from train.run import launch; from train import pretrain; from train.run.ending.stopping import *; {}; "
    script += "sys.exit(exit_code(pretrain.main, sys.argv[1:], 'program'))"

    def words(number: int) -> list[str]:
        return [
            "-c",
            script.format(change if number else "0"),
            "configs/tiny.py",
            f"data={data}",
            f"run={tmp_path}/runs/a",
        ]

    with Hosts(2, words, tmp_path / "logs") as hosts:
        ends = ends_of(hosts)
    names = {
        "source": r"source\.train/run/loop\.py: process 0 has [0-9a-f]{12}, process 1 has x",
        "package": r"package\.bert-jax: process 0 has \S+, process 1 has none; package\.jax: process 0 has \S+, process 1 has "
        r"0\.0\.1;.* more differences\)",
        "manifest": r"data/manifest\.json: process 0 has 44136fa355b3, process 1 has none",  # sha256sum of {}
        "run": r"run: process 0 has \S+/runs/a, process 1 has \S+/elsewhere/a",
        "option": r"--dry-run: process 0 has false, process 1 has true",
    }
    assert len(set(ends)) == 1
    assert ends[0][0] == 2
    assert re.search(f"must run the same: {names[what]}", ends[0][1]), ends


@pytest.mark.exhaustive
def test_a_process_that_cannot_parse_its_words_ends_all(tmp_path):
    def words(number: int) -> list[str]:
        return [*WORDS[:2], "configs/tiny.py" if number != 1 else "configs/missing.py", "data=random"]

    with Hosts(3, words, tmp_path) as hosts:
        ends = ends_of(hosts)
    assert len(set(ends)) == 1
    assert ends[0][0] == 2
    assert ends[0][1].startswith("python -m train.pretrain: error: configs/missing.py: no such config file")


@pytest.mark.exhaustive
def test_a_run_directory_that_is_taken_ends_all(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Hosts(2, [*WORDS, f"run={run}"], tmp_path / "logs") as hosts:
            ends = ends_of(hosts)
    assert len(set(ends)) == 1
    assert ends[0][0] == 2
    assert ends[0][1].startswith(f"python -m train.pretrain: error: {run}: another run uses this directory")
    assert {path.name for path in run.iterdir()} == {".lock"}
    assert ROOT.exists()
