"""Input files: one that cannot be read is named and the others are done; what has been read is not read again."""

import gzip
import json
import os
from pathlib import Path

import pytest

from bert_jax.data.text.sources import find_sources
from bert_jax.data.vocabulary import count_words
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError
from bert_jax.files import read_object
from tests.train.preparation.small_corpus import arguments, hashes, made, make_documents, write_vocabulary
from train.preparation import jobs, units
from train.preparation.stages import Failures, look_at
from train.preparation.units import FileFacts, InputRecord, units_of
from train.prepare import PrepareOptions, main, prepare
from train.run.ending.stopping import exit_code


@pytest.fixture
def options(tmp_path: Path) -> dict:
    """Twelve files, of which some are a unit, some less and one more."""
    write_vocabulary(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(12):
        write(tmp_path / "texts" / f"{number:02d}.txt.gz", make_documents(40 if number == 5 else number, seed=number))
    return {
        "inputs": (str(tmp_path / "texts"),),
        "output": tmp_path / "out",
        "vocab": str(tmp_path / "vocab.txt"),
        "max_seq_length": (24,),
        "dupe_factor": 1,
        "held_out": 0.1,
        "workers": 1,
        "shard_bytes": 2_000,
    }


def write(path: Path, documents: list[str]) -> None:
    path.write_bytes(gzip.compress("\n\n".join(documents).encode(), mtime=0))


def changed_unseen(path: Path) -> None:
    """Changes a file's content, but neither its size nor its time: who reads it, fails."""
    stat = path.stat()
    path.write_bytes(b"\xff" * stat.st_size)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def prepared(output: Path) -> dict[str, str]:
    return {name: value for name, value in hashes(output).items() if name != "inputs.json"}


def test_files_that_cannot_be_read_are_named_and_only_they_are_read_again(options, tmp_path, capsys):
    made(**options | {"output": tmp_path / "undisturbed"})
    texts = tmp_path / "texts"
    whole = {path: path.read_bytes() for path in sorted(texts.iterdir())}
    broken = [texts / f"{number:02d}.txt.gz" for number in (3, 5, 8)]
    broken[0].write_bytes(whole[broken[0]][:-9])
    broken[1].write_bytes(gzip.compress(b"Good.\n\nCaf\xe9.\n"))
    broken[2].write_bytes(b"text")
    assert exit_code(main, arguments(options)) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4
    assert "03.txt.gz, after line " in err[0] and "ends too early" in err[0]
    assert "05.txt.gz, line 3: byte 0xe9" in err[1]
    assert "08.txt.gz: named .gz but not a gzip file" in err[2]
    assert "error: 3 of 12 files cannot be read, see above; mend them or leave them out, and start the same" in err[3]
    assert not (options["output"] / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in options["output"].glob("parts/*/unit.json")}
    assert len(kept) >= 5
    assert exit_code(main, arguments(options)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    for path, data in whole.items():
        if path in broken:
            path.write_bytes(data)
    # Two units have a broken file and whole ones, which are read again.
    units = {path.parent.name for path in kept}
    for unit in units_in(options):
        if unit.key in units:
            for source in unit.sources:
                changed_unseen(source.path)
    made(**options)
    assert prepared(options["output"]) == prepared(tmp_path / "undisturbed")


def units_in(options: dict) -> list:
    resolved = PrepareOptions(**options).resolved()
    sources = find_sources(resolved.inputs)
    record = InputRecord(options["output"] / "inputs.json", resolved)
    with Workers(1) as runner:
        return units_of(resolved, sources, look_at(resolved, sources, record, runner, Failures(sources)))


def test_a_broken_file_may_be_left_out_but_no_other(options, tmp_path):
    broken = tmp_path / "texts" / "11.txt.gz"
    data = broken.read_bytes()
    broken.write_bytes(data[:-9])
    with pytest.raises(UserError, match=r"11.txt.gz, after line .* \(mend this file or leave it out, and start the"):
        made(**options)
    kept = {path: path.stat().st_mtime_ns for path in options["output"].glob("parts/*/unit.json")}
    broken.unlink()
    extra = tmp_path / "texts" / "99.txt.gz"
    for number in (0, 1):
        write(extra.with_name(f"99{number}.txt.gz"), make_documents(3))
    with pytest.raises(UserError, match="made with other options: the text itself"):
        made(**options)
    for number in (0, 1):
        extra.with_name(f"99{number}.txt.gz").unlink()
    first = tmp_path / "texts" / "00.txt.gz"
    first.rename(tmp_path / "away")
    with pytest.raises(UserError, match="made with other options: the text itself"):
        made(**options)
    (tmp_path / "away").rename(first)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    made(**options)
    assert len(json.loads((options["output"] / "sources.json").read_text())) == 11


def test_a_broken_file_is_named_before_a_vocabulary_is_learnt_and_the_others_are_not_counted_again(
    options, tmp_path, monkeypatch
):
    learn = options | {"vocab": None, "vocab_size": 100}
    whole = made(**learn | {"output": tmp_path / "whole"})
    counted = []
    monkeypatch.setattr(jobs, "count_words", lambda texts, **more: counted.append(1) or count_words(texts, **more))
    broken = tmp_path / "texts" / "07.txt.gz"
    data = broken.read_bytes()
    broken.write_bytes(gzip.compress(b"Good.\n\nCaf\xe9.\n"))
    for more in (learn, learn | {"held_out": None}):
        with pytest.raises(UserError, match=r"07.txt.gz, line 3: byte 0xe9"):
            made(**more | {"output": tmp_path / f"out-{more['held_out']}"})
        assert not (tmp_path / f"out-{more['held_out']}" / "tokenizer").exists()
    assert len(counted) > 4
    counted.clear()
    broken.write_bytes(data)
    manifest = made(**learn | {"output": tmp_path / "out-0.1"})
    assert manifest["tokenizer"] == whole["tokenizer"]
    assert len(counted) == 1
    assert not (tmp_path / "out-0.1" / "counts").exists()


def test_a_file_with_a_new_time_is_read_again_and_one_with_a_new_text_refused(options, tmp_path):
    made(**options)
    path = tmp_path / "texts" / "04.txt.gz"
    os.utime(path, ns=(1, 1))
    made(**options)
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # the time in the header: the size stays
    path.write_bytes(data)
    with pytest.raises(UserError, match="made with other options: the text itself"):
        made(**options)


def test_so_many_files_that_their_record_could_not_be_read_again_are_refused(options, tmp_path, monkeypatch):
    options = options | {"output": tmp_path / "many"}
    monkeypatch.setattr(units, "LARGEST_JSON", 200)
    with pytest.raises(
        UserError, match=r"^the text is in \d+ files, too many to remember in inputs\.json .*; join them"
    ):
        prepare(PrepareOptions(**options))
    assert not options["output"].exists()
    monkeypatch.undo()
    prepare(PrepareOptions(**options))
    files = read_object(options["output"] / "inputs.json")["files"]
    of_one_range = {name: facts for name, facts in files.items() if len(facts["ranges"]) == 1}
    assert of_one_range
    for name, facts in of_one_range.items():
        assert len(json.dumps({name: facts})) == pytest.approx(units._ENTRY_BYTES + len(name), abs=20)


def test_a_finished_directory_is_recognised_without_reading_the_text(options, tmp_path):
    manifest = made(**options)
    for path in (tmp_path / "texts").iterdir():
        changed_unseen(path)
    assert made(**options) == manifest


@pytest.mark.slow
def test_small_files_share_units_and_the_next_group_does_not_depend_on_them(options, tmp_path):
    resolved = PrepareOptions(**options | {"shard_bytes": 1_000}).resolved()
    names = [f"{number:05d}" for number in range(3_000)]
    sources = []
    for name in names:
        (tmp_path / name).write_text("x")
        sources += find_sources([tmp_path / name])

    def units(sizes: dict[str, int], broken: str = "") -> list:
        facts = {
            source: FileFacts(sizes.get(source.path.name, 30), 0, source.path.name, False, ((0, None, 0),), None)
            for source in sources
            if source.path.name != broken
        }
        return units_of(resolved, sources, facts)

    whole, mended = units({}), units({"00002": 400})
    assert [source for unit in whole for source in unit.sources] == sources
    assert {len(unit.sources) for unit in whole[:10]} == {34}
    assert {unit.key for unit in whole if unit.sources[0].path.name >= "01024"} <= {unit.key for unit in mended}
    without_the_first = {unit.key for unit in units({}, broken="01024")}
    assert {unit.key for unit in whole if unit.sources[-1].path.name < "01024"} <= without_the_first


def test_unfinished_work_of_an_earlier_version_is_refused(options):
    with pytest.raises(UserError, match="no such file"):
        made(**options | {"inputs": (*options["inputs"], "nothing.txt")})
    (options["output"] / "train").mkdir(parents=True)
    (options["output"] / "unfinished.json").write_text('{"options": {"input": []}, "vocabulary": {}}')
    with pytest.raises(UserError, match="holds the unfinished work of another version; choose another directory"):
        made(**options)
    assert "version" not in read_object(options["output"] / "unfinished.json")
