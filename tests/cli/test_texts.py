"""Every verb reads texts from arguments, files and stdin by one rule, and writes results to a file on request."""

import errno
import io
import json
import os
import re
import sys

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.cli.texts import table_of, texts_of
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import pipeline
from tests.inference.tasks.task_folders import TAGS, export


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    heads = ("sequence-classification", "token-classification", "question-answering", "pretraining")
    labels = {"token-classification": {"labels": TAGS}}
    return {head: str(export(tmp_path_factory.mktemp(head), head, **labels.get(head, {}))) for head in heads}


def piped(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_an_argument_is_a_file_if_it_exists_or_looks_like_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    (tmp_path / "README").write_text("three\n")
    (tmp_path / "folder").mkdir()
    piped(monkeypatch, "four\nfive\n")
    assert list(texts_of(["zero", "texts.txt", "README", "-"])) == ["zero", "one", "two", "three", "four", "five"]
    for text in ("I love it.", "good", "a/b c.txt", "안녕하세요", "10.5", "Wait...", "x" * 5000, "a \0 b"):
        assert list(texts_of([text])) == [text]
    for name in ("text.txt", "runs/none", "mails.csv.gz"):
        with pytest.raises(FileNotFoundError, match="no such file"):
            texts_of(["good", name])
    with pytest.raises(FileNotFoundError, match=r"did you mean texts\.txt\?"):
        texts_of(["text.txt"])
    with pytest.raises(UserError, match="folder: is a folder"):
        texts_of(["folder"])
    for name in ("rows.jsonl", "rows.json.gz", "rows.CSV"):
        (tmp_path / name).write_text('{"text": "one"}\n')
        with pytest.raises(
            UserError, match=f"{name}: this is a table, whose lines are no texts; write its texts to a file"
        ):
            texts_of([name])
    assert list(texts_of(["rows.jsonl"], tables=())) == ['{"text": "one"}']
    os.mkfifo(tmp_path / "pipe")
    for read in (lambda name: texts_of([name]), table_of):
        with pytest.raises(UserError, match="pipe: is a pipe or a device, not a file; save what comes from it"):
            read("pipe")


def test_a_file_that_may_not_be_looked_at_is_not_a_text(monkeypatch):
    stat = os.stat

    def refused(path, *args, **options):
        if os.fspath(path) == "private/mails":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(UserError, match=r"^private/mails: cannot be read \(Permission denied\)$"):
        texts_of(["good", "private/mails"])


def test_an_argument_that_is_not_utf8_is_one_line(tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("held\n")
    wrong, line = os.fsdecode(b"caf\xe9"), r"'caf\udce9': not UTF-8; expected a text in UTF-8"
    with pytest.raises(UserError, match=re.escape(line)):
        texts_of(["good", wrong])
    for verb, *words in (
        ["embed", wrong, "--output", tmp_path / "v.npy"],
        ["similar", wrong, tmp_path / "lines.txt"],
        ["next-sentence", "good", wrong],
        ["summarise", wrong],
        ["attend", wrong],
    ):
        assert main([verb, "no model", *map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and line in err
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "answer M q.jsonl --output a.json --null-odds ./a.json",
            "--output and --null-odds both name ./a.json; name two",
        ),
        ("attend M hello --html a.htm --png a.htm", "--html and --png both name a.htm; name two files"),
        ("attend M hello --output a.htm --npz a.htm", "--output and --npz both name a.htm; name two files"),
        ("answer M - --context -", "stdin can be the questions or the context; name a file for the other"),
        ("answer M empty.csv", "empty.csv: has no questions"),
        (
            "answer M who?",
            "who?: no such file; a file has questions with their passages, and a question needs --context",
        ),
    ],
)
def test_a_command_that_contradicts_itself_reads_and_writes_nothing(words, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"question": "who", "context": "Ann"}\n')
    (tmp_path / "empty.csv").write_text("question,context\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert says in err and (out, err.count("\n")) == ("", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "head"),
    [
        ("classify", "sequence-classification"),
        ("fill-mask", "pretraining"),
        ("tag", "token-classification"),
        ("likelihood", "pretraining"),
        ("embed", "pretraining"),
    ],
)
def test_each_verb_answers_arguments_files_and_stdin_alike(verb, head, folders, tmp_path, capsys, monkeypatch):
    texts = ["hello [MASK]", "held world [MASK]"]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    found = []
    for words in (texts, [tmp_path / "t.txt"], [], ["-"], ["--json", texts[0], "--dtype", "float32", texts[1]]):
        piped(monkeypatch, "\n".join(texts))
        capsys.readouterr()
        assert main([verb, folders[head], *map(str, words), *(["--json"] if "--json" not in words else [])]) == 0
        found.append(capsys.readouterr().out)
    assert len(found[0].splitlines()) == 2
    assert found[1:] == found[:1] * 4


@pytest.mark.slow
def test_verbs_of_pairs_questions_and_documents_take_texts_too(folders, tmp_path, capsys):
    def rows(*argv: str) -> list:
        capsys.readouterr()
        assert main([*argv, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    bert, squad = folders["pretraining"], folders["question-answering"]
    (tmp_path / "pairs.tsv").write_text("hello\tworld\n")
    assert rows("next-sentence", bert, "hello", "world") == rows("next-sentence", bert, str(tmp_path / "pairs.tsv"))
    (tmp_path / "passage.txt").write_text("hello world\nheld\n")
    (answer,) = rows("answer", squad, "o", "--context", str(tmp_path / "passage.txt"))
    expected = pipeline("question-answering", squad)(question="o", context="hello world\nheld")  # type: ignore[call-arg]
    assert answer["answer"] == expected["answer"]
    (tmp_path / "lines.txt").write_text("held\nhello world\no\n")
    (found,) = rows("similar", bert, "hello world", str(tmp_path / "lines.txt"), "--top-k", "1")
    assert [(row["line"], row["text"]) for row in found] == [(2, "hello world")]
    assert rows("attend", bert, str(tmp_path / "pairs.tsv"))[0]["tokens"][1:4] == ["hello", "world", "[SEP]"]
    assert main(["next-sentence", bert, "hello", "world", "held"]) == 2
    assert "expected two texts" in capsys.readouterr().err


@pytest.mark.slow
def test_results_go_to_a_file_which_is_replaced_only_on_request(folders, tmp_path, capsys):
    classify = ["classify", folders["sequence-classification"], "hello", "held"]
    assert main(classify) == 0
    shown = capsys.readouterr().out
    target = tmp_path / "labels.txt"
    assert main([*classify, "--output", str(target)]) == 0
    assert (capsys.readouterr().out, target.read_text()) == ("", shown)
    target.write_text("mine")
    assert main([*classify, "--output", str(target)]) == 2
    assert "labels.txt: already exists; --overwrite replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main([*classify, "--output", str(target), "--overwrite"]) == 0
    assert target.read_text() == shown
    assert main(["classify", "no such model", "hello", "--output", str(tmp_path / "new")]) == 2
    assert main(["fill-mask", folders["pretraining"], "no mask", "[MASK]", "--output", str(tmp_path / "some")]) == 2
    assert (tmp_path / "some").read_text().startswith("\n[MASK]\n")  # the answered ones are kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.txt", "some"]
    assert main(["attend", folders["pretraining"], "hello", "--html", str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.slow
def test_an_export_and_vectors_are_replaced_only_on_request(folders, tmp_path, capsys):
    for argv in (["convert", folders["pretraining"], str(tmp_path / "x"), "--head", "encoder"],
                 ["edit", folders["pretraining"], str(tmp_path / "y"), "--positions", "40"],
                 ["embed", folders["pretraining"], "hello", "held", "--output", str(tmp_path / "z.npy")]):  # fmt: skip
        assert main(argv) == 0
        capsys.readouterr()
        assert main(argv) == 2
        assert "--overwrite replaces" in capsys.readouterr().err
        assert main([*argv, "--overwrite"]) == 0
    np.testing.assert_allclose(
        np.load(tmp_path / "z.npy")[0], pipeline("embed", folders["pretraining"])("hello"), atol=1e-5
    )


def test_one_item_that_fails_is_one_line_and_no_count(folders, capsys):
    assert main(["fill-mask", folders["pretraining"], "hello"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "text 1 ('hello') has no [MASK]" in err and " of 1 " not in err
    assert main(["fill-mask", folders["pretraining"], "hello", "[MASK]", "held"]) == 2
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].endswith("error: 2 of 3 texts could not be answered")
    assert len(err.splitlines()) == 3
    assert main(["fill-mask", folders["pretraining"], "a [MASK]", "--targets", ","]) == 2
    assert "targets: found an empty list; expected at least one token" in capsys.readouterr().err


@pytest.mark.slow
def test_a_head_that_was_never_trained_says_so_in_its_answers(folders, tmp_path, capsys, caplog):
    source = load(folders["pretraining"], head="sequence-classification", allow_missing=("classifier",))
    save_pretrained(tmp_path / "fresh", source.config, source.params, source.tokenizer, head="sequence-classification")
    for untrained in (source, tmp_path / "fresh"):
        caplog.clear()
        (row,) = pipeline("text-classification", untrained)("hello")
        assert row["untrained"] is True
        assert "untrained classifier: its answers mean nothing before it is fine-tuned" in caplog.text
    capsys.readouterr()
    assert main(["classify", str(tmp_path / "fresh"), "hello"]) == 0
    assert capsys.readouterr().out.endswith("\tuntrained\n")
    assert "untrained" in repr(pipeline("text-classification", source))
    (row,) = pipeline("text-classification", folders["sequence-classification"])("hello")
    assert set(row) == {"label", "score"}  # a trained one says nothing
