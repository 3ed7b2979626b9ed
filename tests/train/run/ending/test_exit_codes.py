"""The table of exit codes in docs/reliability.md: it is complete, and a test shows each row in a real process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from train import supervise
from train.pretraining.recipe import PretrainConfig
from train.run.directory import RunDirectory
from train.run.ending import stopping
from train.run.launch import Launch, in_run_directory

SHOWN_BY = {
    0: "tests/train/run/ending/test_exit_codes.py::test_a_program_ends_with_the_code_of_its_row",
    1: "tests/train/run/ending/test_exit_codes.py::test_a_program_ends_with_the_code_of_its_row",
    2: "tests/train/run/ending/test_exit_codes.py::test_a_program_ends_with_the_code_of_its_row",
    3: "tests/train/run/ending/test_endings.py::test_numbers_that_go_bad_end_a_run_with_3",
    5: "tests/train/pretraining/test_pretrain.py::test_a_hopeless_run_ends_with_its_own_code_and_goes_on_if_asked",
    74: "tests/train/run/ending/test_endings.py::test_a_run_that_cannot_save_ends_with_74",
    75: "tests/train/pretraining/test_pretrain.py::test_a_signal_saves_and_the_same_command_goes_on",
    76: "tests/train/run/ending/test_endings.py::test_a_run_whose_disk_never_answers_says_so_and_ends_with_76",
    130: "tests/train/run/ending/test_endings.py::test_a_run_that_compiles_its_first_step_ends_at_once",
}


def rows() -> dict[int, bool]:
    """Code -> whether the table calls it worth a restart."""
    section = (ROOT / "docs/reliability.md").read_text("utf-8").partition("## Exit codes\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (\d+) \| .+ \| (yes|no)\b[^|]* \|$", section, re.MULTILINE)
    return {int(code): worth == "yes" for code, worth in found}


def test_the_table_has_every_code_and_each_row_has_its_test():
    assert [*rows()] == sorted(rows()) == sorted(SHOWN_BY)
    assert {*rows()} == {value for name, value in vars(stopping).items() if name.startswith("EXIT_")}
    for code, place in SHOWN_BY.items():
        file, _, name = place.partition("::")
        text = (ROOT / file).read_text("utf-8")
        assert f"def {name}(" in text, place
        assert re.search(rf"\b({code}|{NAMES[code]})\b", text), place


NAMES = {value: name for name, value in vars(stopping).items() if name.startswith("EXIT_")}


def test_the_supervisor_starts_again_what_the_table_calls_worth_it():
    assert {code: supervise.is_worth_it(code, progress=False) for code in rows()} == rows()


PROGRAM = """
import sys
from bert_jax.errors import UserError
from train.run.ending.stopping import run_program

def main(argv):
    if argv[0] == "1":
        raise ValueError("row 7 is empty")
    if argv[0] == "2":
        raise UserError("data: row 7 is empty")
    print("{}")
    return int(argv[0])

run_program(main)
"""


@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("stdout", ["open", "closed"])
def test_a_program_ends_with_the_code_of_its_row(code: int, stdout: str):
    """Also if whoever started it has closed its stdout, as `>&-` does in a shell."""
    close = ">&-" if stdout == "closed" else ""
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {close}', "sh", sys.executable, "-c", PROGRAM, str(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code
    assert ended.stdout == ("{}\n" if (code, stdout) == (0, "open") else "")
    last = ended.stderr.splitlines()[-1:]
    assert (
        last == {0: [], 1: ["ValueError: row 7 is empty"], 2: ["python -m train.-c: error: data: row 7 is empty"]}[code]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2)])
def test_help_is_no_error_and_no_words_are_one(words: list[str], code: int):
    assert (
        subprocess.run([sys.executable, "-m", "train.pretrain", *words], cwd=ROOT, capture_output=True).returncode
        == code
    )


@pytest.mark.parametrize("code", [0, 3, 75])
def test_a_reader_that_has_left_does_not_change_the_code(code: int):
    program = [sys.executable, "-c", PROGRAM, str(code)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(program, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize(("code", "ends"), [(0, 2), (74, 74)])
def test_a_full_disk_behind_stdout_does_not_change_the_code_of_a_run_that_has_one(code: int, ends: int):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-c", PROGRAM, str(code)]
        ended = subprocess.run(program, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == ends and "No space left on device" in ended.stderr


def test_a_summary_that_cannot_be_made_does_not_change_the_code_either(tmp_path: Path, monkeypatch, caplog):
    def fail(*_) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RunDirectory, "summary", fail)
    launch = Launch(PretrainConfig(), str(tmp_path / "run"), (), False, True, frozenset())
    assert in_run_directory(launch, lambda *_: 74) == 74
    assert "--json: the summary of the run cannot be printed" in caplog.text
    with pytest.raises(OSError):
        in_run_directory(launch, lambda *_: 0)


def test_a_bucket_that_refuses_is_one_line():
    refusal = 'from gcsfs.retry import HttpError; raise HttpError({"code": 401, "message": "Anonymous caller"})'
    refused = PROGRAM.replace('raise UserError("data: row 7 is empty")', refusal)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", refused, "2"], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "python -m train.-c: error: Anonymous caller, 401\n")


def test_an_error_begins_with_the_name_that_a_program_gives_itself():
    named = PROGRAM.replace("run_program(main)", 'run_program(main, "python -m benchmarks.some")')
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", named, "2"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "python -m benchmarks.some: error: data: row 7 is empty\n"
