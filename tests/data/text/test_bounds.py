"""Files that inflate: memory stays bounded whatever a small file becomes, and what no text would be is refused."""

import gzip
import json
import shlex
import subprocess
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import zstandard

from bert_jax import files
from bert_jax.data.tasks import tables
from bert_jax.data.text import corpus, lines
from bert_jax.data.text.corpus import Corpus
from bert_jax.data.text.lines import read_lines
from bert_jax.data.text.ranges import divide
from bert_jax.data.text.sources import find_sources
from bert_jax.errors import UserError


def zeros(path: Path, count: int, *, line: int = 0) -> Path:
    """`count` MB of zeros, or of lines of `line` MB, in a few kilobytes."""
    made = gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else zstandard.open(path, "wb")
    with made as file:
        for number in range(1, count + 1):
            file.write(b"a" * (1 << 20))
            if line and number % line == 0:
                file.write(b"\n")
    return path


def peak_of(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt.gz"])
def test_a_line_without_end_in_a_small_file_is_refused_with_bounded_memory(name, tmp_path):
    path = zeros(tmp_path / name, 150)
    assert path.stat().st_size < 1 << 20

    def read():
        with pytest.raises(UserError, match=rf"{name}, line 1: longer than 64 MB; split it \(JSON: several"):
            list(read_lines(path))

    assert peak_of(read) < 260 << 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt.gz"])
def test_dividing_such_a_file_keeps_no_line(name, tmp_path):
    path = zeros(tmp_path / name, 150)
    (source,) = find_sources([path])
    assert peak_of(lambda: divide(source, 1 << 20)) < 90 << 20


@pytest.mark.slow
def test_a_zstd_file_is_decompressed_a_little_at_a_time(tmp_path):
    path = zeros(tmp_path / "a.txt.zst", 300, line=1)
    assert peak_of(lambda: [None for _ in read_lines(path)]) < 150 << 20


def test_what_is_advised_for_a_long_line_cuts_no_character(tmp_path, monkeypatch):
    text = "中文字符。甲乙！a" * 60_000
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(UserError, match="longer than 1 MB; split it") as error:
        list(read_lines(tmp_path / "a.txt"))
    command = str(error.value).rpartition("cuts: ")[2].removesuffix(" FILE)")
    ran = subprocess.run(
        [*shlex.split(command), tmp_path / "a.txt"], env={"LC_ALL": "C"}, stdout=subprocess.PIPE, check=True
    )
    assert ran.stdout.decode() == text.replace("。", "。\n").replace("！", "！\n")


def test_a_long_line_is_cut_at_blanks_and_loses_nothing(tmp_path):
    text = "".join(f"word{number} " for number in range(500)).strip()
    (tmp_path / "a.txt").write_text(f"{text}\n\nNext.\n")
    found = Corpus(find_sources([tmp_path / "a.txt"]), max_document_chars=100)
    pieces = list(found)
    assert " ".join(piece.strip() for piece in pieces[:-1]) == text
    assert max(map(len, pieces)) <= 100
    assert (found.documents, found.cut) == (2, 1)


def test_parquet_that_repeats_one_long_text_takes_the_memory_of_a_few(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    words = pyarrow.array(["long text " * 300_000])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 256, pyarrow.int32()), words)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000
    before = pyarrow.default_memory_pool().max_memory()

    def read():
        assert sum(1 for _ in corpus.read_texts(find_sources([path])[0], ["text"])) == 256

    assert peak_of(read) < 100 << 20
    assert pyarrow.default_memory_pool().max_memory() < max(before, 200 << 20)


def test_parquet_that_inflates_as_no_text_does_is_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["x" * 3_000_000]}), tmp_path / "a.parquet", compression="zstd")
    assert len(list(Corpus(find_sources([tmp_path / "a.parquet"])))) == 1
    monkeypatch.setattr(corpus, "LARGEST_INFLATED", 1 << 20)
    with pytest.raises(UserError, match=r"a\.parquet: [\d,]+ bytes of a column become [\d,]+, which is no text"):
        list(Corpus(find_sources([tmp_path / "a.parquet"])))


def test_an_archive_whose_mimetype_inflates_is_named_as_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.txt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", b"\0" * (50 << 20))

    def read():
        with pytest.raises(UserError, match="a ZIP archive, not text"):
            find_sources([tmp_path / "a.txt"])

    assert peak_of(read) < 10 << 20


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_whose_mimetype_is_compressed_is_not_unpacked_to_learn_what_it_is(tmp_path, compression):
    with zipfile.ZipFile(tmp_path / "a.txt", "w", compression) as file:
        file.writestr("mimetype", b"application/epub+zip" + b"\0" * (50 << 20))

    def read():
        with pytest.raises(UserError, match="a ZIP archive, not text"):
            find_sources([tmp_path / "a.txt"])

    assert peak_of(read) < 10 << 20


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * 64 + "]" * 64 + "}", "nested too deeply"),
        ("[" + "[], " * 150 + "[]]}", "153 lists and objects; at most 150 are read"),
    ],
)
def test_a_json_line_beyond_the_bounds_of_json_is_refused(tmp_path, monkeypatch, rest, message):
    monkeypatch.setattr(files, "MOST_JSON_PARTS", 10_000_000 if "deeply" in message else 150)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + '\n{"text": "a", "more": ' + rest + "\n")
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: not JSON \({message}\); expected one object per line"):
        list(Corpus(find_sources([tmp_path / "a.jsonl"])))


@pytest.mark.parametrize("kind", ["list", "binary", "null"])
def test_parquet_without_text_is_refused_before_a_row_is_read(tmp_path, monkeypatch, kind):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 9], pyarrow.int32()), pyarrow.nulls(9, pyarrow.int8()))
    column = {"list": lists, "binary": pyarrow.array([b"a"]), "null": pyarrow.nulls(1)}[kind]
    parquet.write_table(pyarrow.table({"id": ["1"], "text": column}), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("rows were read"))
    with pytest.raises(UserError, match=rf"a\.parquet: the column 'text' holds '{kind}.*', expected text \(string\)$"):
        list(Corpus(find_sources([tmp_path / "a.parquet"])))


def test_all_kinds_of_text_in_parquet_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = pyarrow.array(["One."])
    kinds = [text.cast(kind) for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())]
    for column in (*kinds, text.dictionary_encode(), text.cast(pyarrow.large_string()).dictionary_encode()):
        parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
        assert list(Corpus(find_sources([tmp_path / "a.parquet"]))) == ["One."]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zst"])
def test_of_a_json_file_beyond_its_bound_no_more_is_read(tmp_path, monkeypatch, name):
    packed = {"json": bytes, "gz": gzip.compress, "zst": zstandard.compress}[name.rpartition(".")[2]]
    (tmp_path / name).write_bytes(packed(b"[1,\n" + b"2,\n" * 9998 + b"3]"))
    monkeypatch.setattr(tables, "LARGEST_JSON", 30_000)
    monkeypatch.setattr(files, "LARGEST_JSON", 30_000)
    assert len(tables.json_of_text(tmp_path / name)) == 10_000
    read = []
    monkeypatch.setattr(files, "LARGEST_JSON", 1 << 10)
    monkeypatch.setattr(tables, "LARGEST_JSON", 1 << 10)
    monkeypatch.setattr(tables, "read_lines", lambda path: (read.append(1) or line for line in read_lines(path)))
    with pytest.raises(UserError, match=rf"{name}: not JSON \(longer than 0 MB\)"):
        tables.json_of_text(tmp_path / name)
    assert len(read) < 400
