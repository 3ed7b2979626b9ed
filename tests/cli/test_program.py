"""The program's name in help and errors, near-miss hints, the training verbs, completion in a shell."""

import shutil
import subprocess
import sys

import pytest

from bert_jax import __main__
from bert_jax.__main__ import main, make_parser
from bert_jax.cli import training
from bert_jax.cli.training import PROGRAMS, programs
from bert_jax.cli.verbs import ALIASES, FILES
from tests.root import ROOT
from train.pretrain import main as pretrain
from train.run.ending.stopping import exit_code


@pytest.fixture(autouse=True)
def called_as_bert_jax(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/bert-jax"])


def error_of(capsys, *argv: str) -> str:
    """The one line on stderr of a command that must fail with exit code 2."""
    capsys.readouterr()
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removesuffix("\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("fil-mask x", "bert-jax: error: 'fil-mask' is not a verb; did you mean fill-mask? (see bert-jax --help)"),
        ("pretrane x", "did you mean pretrain or prepare?"),
        ("fil", "did you mean fill-mask?"),
        ("xyzzy", "bert-jax: error: 'xyzzy' is not a verb (see bert-jax --help)"),
        ("classify x --top-kk 3", "bert-jax classify: error: '--top-kk' is not an option; did you mean --top-k? (see bert-jax classify --help)"),
        ("classify x t --dtype float23", "did you mean float32"),
        ("export x", "bert-jax export: error: the following arguments are required: DST"),
        ("prepare --ouput x", "bert-jax prepare: error: '--ouput' is not an option; did you mean --output?"),
        ("prepare a", "bert-jax prepare: error: no INPUT or no --output"),
        ("pretrain configs/tinny.py", "bert-jax pretrain: error: configs/tinny.py: no such config file (did you mean configs/tiny.py?)"),
        ("finetune configs/finetune.py --jsn", "'--jsn' is not an option; did you mean --json?"),
        ("pretrain configs/tiny.py optimzer.learning_rate=1", "did you mean optimizer.learning_rate"),
        ("pretrain configs/tiny.py data", "data: expected FIELD=VALUE; say data=VALUE"),
        ("demo fast", "bert-jax demo: error: fast: the demo takes no arguments; bert-jax pretrain does"),
    ],
)  # fmt: skip
def test_an_error_begins_with_the_program_and_says_what_is_near(argv, said, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert said in error_of(capsys, *argv.split())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["embed", "", "a text"], "bert-jax embed: error: argument 1 ('') is empty; is a variable of the shell not set?"),
        (["fill-mask", "x", ""], "bert-jax fill-mask: error: argument 2 ('') is empty"),
        (["embed", "x", "--output="], "bert-jax embed: error: argument 2 ('--output=') is empty"),
        (["embed", "x", "--prompt", "", ""], "bert-jax embed: error: argument 4 ('') is empty"),
        (["prepare", "a.txt", "--output", ""], "bert-jax prepare: error: argument 3 ('') is empty"),
        (["pretrain", ""], "bert-jax pretrain: error: the first word must be a config file, such as configs/tiny.py; it is empty"),
        (["pretrain", "configs/tiny.py", "run="], "bert-jax pretrain: error: run=: expected run=VALUE; it is empty; is a variable of the shell not set?"),
        (["finetune", "configs/finetune.py", "init="], "bert-jax finetune: error: init=: expected init=VALUE; it is empty"),
    ],
)  # fmt: skip
def test_a_variable_that_is_not_set_is_no_path(argv, said, capsys, monkeypatch):
    """An empty path would be the folder where one is, and a run without a name would begin anew."""
    monkeypatch.chdir(ROOT)
    assert said in error_of(capsys, *argv)


def test_what_no_result_can_hold_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(__main__, "run", lambda argv: "\ud800".encode())
    assert "error: 'utf-8' codec can't encode character '\\ud800'" in error_of(capsys, "info", "x")


def test_a_program_started_by_python_says_that_name(capsys, monkeypatch):
    assert exit_code(pretrain, ["configs/none.py"]) == 2
    assert capsys.readouterr().err.startswith("python -m train.pretrain: error: ")
    monkeypatch.setattr("sys.argv", [str(ROOT / "bert_jax/__main__.py")])
    assert error_of(capsys, "inf").startswith("python -m bert_jax: error: 'inf' is not a verb; did you mean info?")


@pytest.mark.parametrize("name", ["prepare", "pretrain", "finetune"])
def test_help_of_a_training_verb_shows_the_commands_that_the_user_types(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"bert-jax {name} " in shown
    assert "python -m" not in shown


def test_the_overview_lists_every_verb_once(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split("examples:")[0]
    names = [line.split()[0].strip(",") for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert sorted(names) == sorted([*FILES, *programs()])
    assert all(f", {alias} " in shown for alias in ALIASES)
    assert all(len(line) <= 120 for line in shown.splitlines())


def test_without_a_checkout_one_line_says_how_to_get_training(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "__file__", str(tmp_path / "site-packages/bert_jax/cli/training.py"))
    monkeypatch.chdir(tmp_path)
    assert programs() == PROGRAMS  # the help lists them all
    line = error_of(capsys, "pretrain", "configs/tiny.py")
    assert "clone or unpack" in line and "pip install -e '.[train]'" in line
    monkeypatch.chdir(ROOT)  # a checkout in the current folder is enough
    assert "no such config file" in error_of(capsys, "pretrain", "configs/none.py")


def test_a_mistyped_folder_is_answered_with_the_near_one(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "runs/try").mkdir(parents=True)
    assert "runs/tyr: no such local folder (did you mean runs/try?)" in error_of(capsys, "info", "runs/tyr")
    assert "(did you mean runs/try?)" in error_of(capsys, "info", "rnus/try")
    assert "(did you mean" not in error_of(capsys, "info", "runs/other")
    (tmp_path / "mails.csv").touch()
    assert "mial.csv: no such file (did you mean mails.csv?)" in error_of(
        capsys, "score", "classify", "mial.csv", "mails.csv"
    )


def script(shell: str) -> str:
    command = [sys.executable, "-m", "bert_jax", "completion", shell]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_bash_completes_verbs_options_choices_files_and_fields(tmp_path):
    pytest.importorskip("shtab")
    (tmp_path / "completion").write_text(script("bash"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.py").touch()

    def completed(line: str) -> set[str]:
        words = line.split(" ")
        code = f"""source completion; COMP_WORDS=({" ".join(repr(word) for word in words)})
            COMP_CWORD={len(words) - 1}; _bert_jax bert-jax {words[-1]!r} {words[-2]!r}; printf '%s\\n' "${{COMPREPLY[@]}}" """
        found = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        return {word.strip() for word in found.stdout.splitlines()} - {""}

    assert completed("bert-jax fil") == {"fill-mask"}
    assert {"pretrain", "prepare"} <= completed("bert-jax pre")
    assert completed("bert-jax classify --bat") == {"--batch-size"}
    assert completed("bert-jax classify my-bert --dtype ") == {"float32", "bfloat16", "int8"}
    assert completed("bert-jax pretrain con") == {"configs"}
    assert completed("bert-jax pretrain configs/tiny.py optimizer.learn") == {"optimizer.learning_rate="}
    assert "--fields" in completed("bert-jax finetune configs/finetune.py --")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_read_their_scripts(shell, tmp_path):
    pytest.importorskip("shtab")
    text = script(shell)
    assert all(verb in text for verb in (*FILES, *ALIASES, *programs()))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "completion").write_text(text)
    subprocess.run([shell, "-n", str(tmp_path / "completion")], check=True)


def test_help_names_the_type_that_a_verb_takes_by_itself():
    published, own = (" ".join(make_parser(verb).format_help().split()) for verb in ("evaluate-blimp", "likelihood"))
    assert "default: float32 --runtime" in published
    assert "default: bfloat16 on a CPU that has instructions for it, else float32 --runtime" in own
