"""`train.prepare` and `train.pretrain` notice wrapped text, say so in their own syntax, and unwrap it when asked to."""

import json
import textwrap
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from tests.data.text.test_wrapped import PARAGRAPHS, book, wrapped
from train.preparation.options import inputs_in
from train.prepare import PrepareOptions, main, prepare
from train.pretraining.recipe import TextConfig
from train.run.ending.stopping import exit_code

FLAGS = ["--vocab-size", "150", "--max-seq-length", "32", "--dupe-factor", "1", "--workers", "1"]


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_wrapped_book_is_named_with_its_column_and_the_option_that_mends_it(tmp_path, capsys):
    file, output = written(tmp_path / "book.txt", book(72)), tmp_path / "unwrapped"
    assert main([str(file), "--output", str(tmp_path / "lines"), *FLAGS]) == 0
    err = " ".join(capsys.readouterr().err.split())
    expected = (
        "book.txt is wrapped at column 72: every line counts as a sentence and every paragraph as a document. To join the "
        "lines of each paragraph, start again with --unwrap and another --output"
    )
    assert err.count(expected) == 1
    report = json.loads((tmp_path / "lines" / "manifest.json").read_text())["report"]
    assert report["warnings"][0] == expected
    assert main([str(file), "--output", str(output), "--unwrap", *FLAGS]) == 0
    assert "wrapped" not in capsys.readouterr().err.replace(str(output), "")
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["settings"]["unwrap"] is True
    assert manifest["report"]["train"]["documents"] == 8
    assert main([str(file), "--output", str(output), "--unwrap", *FLAGS]) == 0
    with pytest.raises(UserError, match=r"made with other options: unwrap True \(now None\)"):
        main([str(file), "--output", str(output), *FLAGS])


def test_several_wrapped_files_and_those_that_are_not_are_counted(tmp_path, capsys):
    for number, width in enumerate((60, 66, 72, 78)):
        text = "\n\n".join("\n".join(wrapped(p, width)) for p in PARAGRAPHS * 2)
        written(tmp_path / "books" / f"{number}.txt", text)
    written(tmp_path / "books" / "9.txt", "\n\n".join(PARAGRAPHS))
    main([str(tmp_path / "books"), "--output", str(tmp_path / "1"), *FLAGS])
    assert "0.txt, 1.txt and 2 more files are wrapped at columns 60 to 78: every line" in capsys.readouterr().err
    main([str(tmp_path / "books"), "--output", str(tmp_path / "2"), "--unwrap", "--documents", "paragraphs", *FLAGS])
    err = capsys.readouterr().err
    assert "--unwrap: 9.txt is not wrapped at a column, so the lines stay as they are; the others are unwrapped" in err


def test_train_pretrain_names_its_own_fields(tmp_path):
    options = {"vocab_size": 150, "max_seq_length": (32,), "dupe_factor": 1, "workers": 1, "for_run": True}
    file = written(tmp_path / "book.txt", book(72))
    manifest = prepare(PrepareOptions(**options, inputs=(str(file),), output=tmp_path / "data"))
    advice = "start again with text_options.unwrap=true and another run="
    assert manifest["report"]["warnings"][0].endswith(advice)
    assert "say text_options.held_out=0." in manifest["report"]["held_out_note"]
    assert {"unwrap", "documents", "format", "objective", "vocab", "held_out"} <= set(TextConfig.__dataclass_fields__)
    options |= {"output": tmp_path / "one", "unwrap": True}
    one = written(tmp_path / "one.txt", PARAGRAPHS[0])
    with pytest.raises(UserError, match=r"as in text_options.documents=paragraphs .* it: text_options.objective=none$"):
        prepare(PrepareOptions(**options, inputs=(str(one),)))
    with pytest.raises(UserError, match=r"^text_options.documents: found 'pages', expected"):
        PrepareOptions(**options, inputs=(str(one),), documents="pages")
    pages = written(tmp_path / "pages", '{"text": "One."}\n')
    with pytest.raises(UserError, match=r"holds JSON objects; say text_options.format=jsonl if"):
        prepare(PrepareOptions(**options, inputs=(str(pages),)))
    page = written(tmp_path / "my--page", "<!DOCTYPE html>")
    with pytest.raises(UserError, match=r"my--page: a web page .* plain --wrap=none 'my--page' -o 'my--page\.txt'"):
        prepare(PrepareOptions(**options, inputs=(str(page),)))


def test_text_takes_a_folder_a_glob_or_several_with_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a, b.txt", "One.")
    written(tmp_path / "books" / "1.txt", "One.")
    for text, inputs in (
        ("books", ("books",)),
        ("books/*.txt", ("books/*.txt",)),
        ("books,a.txt", ("books", "a.txt")),
        ("books/*.txt, more/", ("books/*.txt", "more/")),
        ("a, b.txt", ("a, b.txt",)),
        ("nothing/*.txt", ("nothing/*.txt",)),
        (",".join(["a" * 100] * 3), ("a" * 100,) * 3),  # longer than a name can be
    ):
        assert inputs_in(text) == inputs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--documents", "pages"], "--documents: found 'pages', expected paragraphs, chapters, files, blank-lines:N"),
        (["--documents", "blank-lines:0"], "--documents: found 'blank-lines:0'"),
        (["--documents", "separator:("], "--documents: '(' is not a regular expression"),
        (["--documents", "separator:a{99999999999}"], "--documents: 'a{99999999999}' is not a regular expression"),
        (
            ["--unwrap", "--format", "lines"],
            "--unwrap: joins lines, but --format lines takes every line for a sentence",
        ),
        (["--unwrap", "--recipe", "google"], "--unwrap: joins lines, but --recipe google takes every line"),
        (["--documents", "files", "--recipe", "google"], "--documents: --recipe google ends documents as"),
        (["--recipe", "google", "--format", "text"], "--format text: --recipe google reads lines"),
        (["--recipe", "google", "--language", "de"], "--language: --recipe google takes every line for a sentence"),
        (["--documents", "files", "--format", "jsonl"], "--documents: divides plain text and Markdown, but a JSON"),
    ],
)
def test_options_that_exclude_each_other_are_refused_in_one_line(tmp_path, capsys, more, message):
    file = written(tmp_path / "a.txt", textwrap.fill(PARAGRAPHS[0], 70))
    assert exit_code(main, [str(file), "--output", str(tmp_path / "out"), *FLAGS, *more]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
