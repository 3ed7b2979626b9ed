"""No verb replaces a file or a folder that is there, unless --overwrite says so; what it refuses stays as it was."""

from pathlib import Path

import pytest

from bert_jax import __main__ as command_line
from bert_jax.cli.training import PROGRAMS
from bert_jax.cli.verbs import FILES

# Verb -> the words that name what it writes, {} being the place. The model and the texts do not exist: a verb must
# refuse before it reads them.
FILE = {
    "fill-mask": ["no-model", "a [MASK].", "--output", "{}"],
    "classify": ["no-model", "a text", "--output", "{}"],
    "tag": ["no-model", "a text", "--output", "{}"],
    "answer": ["no-model", "a question", "--context", "a text", "--output", "{}"],
    "answer --null-odds": ["no-model", "a question", "--context", "a text", "--null-odds", "{}"],
    "choose": ["no-model", "no-file", "--output", "{}"],
    "embed": ["no-model", "a text", "--output", "{}.npy"],
    "embed --json": ["no-model", "a text", "--output", "{}.jsonl"],
    "similar": ["no-model", "a text", "another", "--output", "{}"],
    "summarise": ["no-model", "a text", "--output", "{}"],
    "likelihood": ["no-model", "a text", "--output", "{}"],
    "next-sentence": ["no-model", "a text", "another", "--output", "{}"],
    "attend": ["no-model", "a text", "--output", "{}"],
    "attend --html": ["no-model", "a text", "--html", "{}"],
    "attend --png": ["no-model", "a text", "--png", "{}"],
    "attend --npz": ["no-model", "a text", "--npz", "{}"],
    "run-compiled": ["no-model", "a text", "--output", "{}"],
    "info": ["no-model", "--output", "{}"],
    "score": ["no-run", "--output", "{}"],
    "evaluate-blimp": ["no-model", "no-data", "--output", "{}"],
    "compare": ["no-run", "--output", "{}.png"],
    "plan": ["configs/tiny.py", "--topology", "cpu:1", "--picture", "{}.png"],
}
FOLDER = {
    "convert": ["no-model", "{}"],
    "edit": ["no-model", "{}", "--keep-layers", "0"],
    "export-compiled": ["no-model", "{}", "--task", "fill-mask"],
}
WRITES_NO_FILE = {"push", "completion", "doctor", "scale", "demo", "supervise"}
WRITES_RUNS_OR_DATA = {"pretrain", "finetune", "prepare"}  # they continue what they have written; tests of their own


def test_every_verb_that_writes_is_in_the_table():
    tabled = {name.split()[0] for name in (*FILE, *FOLDER)} | WRITES_NO_FILE | WRITES_RUNS_OR_DATA
    assert {*FILES, *PROGRAMS} == tabled & {*FILES, *PROGRAMS}
    for name in FILES:
        options = command_line.make_parser(name).options()
        for word in {"output", "html", "png", "npz", "null_odds", "vectors"} & {*options}:
            rows = [words for row, words in FILE.items() if row.split()[0] == name]
            assert any(options[word] in words for words in rows), (name, word)


def refused(words: list[str], place: Path, capsys) -> str:
    assert command_line.main([word.format(place) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "exists" in line and "--overwrite" in line, line
    return line


@pytest.mark.parametrize("verb", FILE)
def test_a_file_that_is_there_is_refused(verb: str, tmp_path: Path, capsys):
    words, place = [verb.split()[0], *FILE[verb]], tmp_path / "mine"
    path = Path(next(word for word in words if word.startswith("{}")).format(place))
    path.write_bytes(b"precious")
    refused(words, place, capsys)
    assert path.read_bytes() == b"precious"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")  # a link that leads nowhere is there too
    refused(words, place, capsys)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("verb", FOLDER)
@pytest.mark.parametrize("there", ["file", "notes", "link"])
def test_a_folder_of_somebody_else_is_refused_even_with_overwrite(verb: str, there: str, tmp_path: Path, capsys):
    place, mine = tmp_path / "mine", tmp_path / "notes"
    mine.mkdir()
    (mine / "notes.txt").write_text("precious")
    if there == "file":
        place.write_text("precious")
    elif there == "link":
        place.symlink_to(mine)
    else:
        mine.rename(place)
        mine = place
    for more in ([], ["--overwrite"]):
        assert command_line.main([verb, *(word.format(place) for word in FOLDER[verb]), *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(place) in line, line
    assert {path.name for path in tmp_path.iterdir()} <= {"mine", "notes"}
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 1 + (there == "file") and {path.read_text() for path in kept} == {"precious"}


def test_a_file_that_an_earlier_start_of_embed_did_not_write_is_refused(tmp_path: Path):
    from bert_jax.cli.vector_file import VectorFile
    from bert_jax.errors import UserError

    part = tmp_path / "x.npy.part"
    part.write_bytes(b"precious")
    with pytest.raises(UserError, match=r"x\.npy\.part: already exists, and no earlier start wrote it"):
        VectorFile(tmp_path / "x.npy", width=4, made_of={}, chunk=2)
    assert part.read_bytes() == b"precious"
    part.unlink()
    (tmp_path / "notes").write_bytes(b"precious")
    part.symlink_to(tmp_path / "notes")
    with pytest.raises(UserError, match=r"x\.npy\.part: is a symbolic link"):
        VectorFile(tmp_path / "x.npy", width=4, made_of={}, chunk=2, overwrite=True)
    assert (tmp_path / "notes").read_bytes() == b"precious"


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), OSError(5, "Input/output error")])
def test_a_full_disk_is_one_line_and_exit_code_2(raised: OSError, monkeypatch, capsys):
    def fail(argv: object) -> int:
        raise raised

    monkeypatch.setattr(command_line, "run", fail)
    assert command_line.main(["convert"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"error: {raised}")
