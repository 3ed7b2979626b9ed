"""`--runner beam` writes the same bytes as the pool, and names the same mistakes. `make beam` runs these tests."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from tests.root import ROOT
from tests.train.preparation.small_corpus import (
    COMMAND,
    arguments,
    hashes,
    made,
    make_documents,
    write_vocabulary,
)
from train.prepare import main
from train.run.ending.stopping import exit_code

needs_beam = pytest.mark.skipif(not find_spec("apache_beam"), reason="apache-beam is not installed; see make beam")


@pytest.fixture
def options(tmp_path: Path) -> dict:
    write_vocabulary(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(6):
        (tmp_path / "texts" / f"{number}.txt").write_text("\n\n".join(make_documents(25, seed=number)))
    return {
        "inputs": (str(tmp_path / "texts"),),
        "output": tmp_path / "out",
        "max_seq_length": (24,),
        "dupe_factor": 1,
        "shard_bytes": 2_000,
    }


def by_beam(options: dict, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments(options), "--runner", "beam", "--", *flags]
    environment = os.environ | {"PYTHONWARNINGS": "default"}
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment)


@needs_beam
@pytest.mark.slow
def test_beam_and_the_pool_write_the_same_bytes_and_learn_the_same_vocabulary(options, tmp_path):
    options |= {"vocab_size": 90, "dedupe": "near,lines"}
    (tmp_path / "texts" / "9.txt").write_text("\n\n".join(make_documents(9, seed=3)))
    made(**options | {"workers": 2, "output": tmp_path / "pool"})
    expected = hashes(tmp_path / "pool")
    assert sum(name.startswith("train/shard-") for name in expected) > 6
    for flags in ((), ("--direct_num_workers=2", "--direct_running_mode=multi_processing")):
        output = tmp_path / f"beam-{len(flags)}"
        done = by_beam(options | {"output": output}, *flags)
        assert done.returncode == 0, done.stderr
        assert hashes(output) == expected


@needs_beam
@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named_and_only_it_is_read_again(options, tmp_path):
    options |= {"vocab": str(tmp_path / "vocab.txt"), "held_out": 0.1}
    made(**options | {"workers": 1, "output": tmp_path / "pool"})
    broken = tmp_path / "texts" / "3.txt"
    text = broken.read_bytes()
    broken.write_bytes(text + b"\n\nCaf\xe9.\n")
    done = by_beam(options)
    assert done.returncode == 2
    assert "3.txt, line " in done.stderr and "byte 0xe9" in done.stderr.splitlines()[-1]
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("parts/*/unit.json")}
    assert len(kept) > 4
    broken.write_bytes(text)
    made(**options | {"workers": 1})  # the pool goes on with what Beam has done
    found, expected = hashes(tmp_path / "out"), hashes(tmp_path / "pool")
    del found["inputs.json"], expected["inputs.json"]
    assert found == expected


@needs_beam
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--runner=Nope", "--runner beam: Unexpected pipeline runner: Nope. Valid values are DataflowRunner, "),
        ("--no_such_option=1", "--runner beam: Beam has no option --no_such_option, which is among those after --"),
        ("--direct_num_workers=x", "--runner beam: argument --direct_num_workers: invalid int value: 'x', in the"),
    ],
)
def test_an_option_that_beam_does_not_have_is_one_line(options, tmp_path, flag, message):
    done = by_beam(options | {"vocab": str(tmp_path / "vocab.txt")}, flag)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"python -m train.prepare: error: {message}")


@pytest.mark.skipif(bool(find_spec("apache_beam")), reason="apache-beam is installed")
def test_without_beam_the_message_says_what_to_install(options, tmp_path):
    with pytest.raises(
        UserError, match=r"--runner beam: needs the package apache-beam: pip install 'bert-jax\[train,b"
    ):
        made(**options | {"vocab": str(tmp_path / "vocab.txt"), "runner": "beam"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner", "beam", "--workers", "2"], "--workers: is for --runner pool; Beam has options of its own"),
        (["--runner", "spark"], "invalid choice: 'spark'"),
    ],
)
def test_options_of_the_other_runner_are_refused(options, tmp_path, capsys, flags, message):
    more = arguments(options | {"vocab": str(tmp_path / "vocab.txt")})
    assert exit_code(main, [*more, *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_words_after_two_dashes_are_inputs_of_the_pool(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-odd.txt").write_text("\n\n".join(make_documents(25)))
    flags = arguments(options | {"inputs": (), "vocab": str(tmp_path / "vocab.txt"), "workers": 1})
    assert main([*flags, "--", "-odd.txt"]) == 0


def test_beam_is_not_imported_without_being_asked_for():
    code = "import sys, train.prepare, train.preparation.beam_runner; sys.exit('apache_beam' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
