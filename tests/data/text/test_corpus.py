"""Files become documents and sentences as the user meant, and errors name the file and line of every kind of damage."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
import zstandard

from bert_jax.data.text import corpus as sentences_module
from bert_jax.data.text.corpus import Corpus, split_sentences
from bert_jax.data.text.lines import read_lines
from bert_jax.data.text.sources import find_sources
from bert_jax.errors import UserError

TWO_DOCUMENTS = "The cat sat. It slept.\nThen it ate.\n\n  \nA dog came.\n"


def read(*inputs, **options) -> list[str]:
    format = options.pop("format", None)
    return list(Corpus(find_sources([str(i) for i in inputs], format=format), **options))


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def compressed(text: str, suffix: str) -> bytes:
    data = text.encode()
    return {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}[suffix](data)


def test_blank_lines_separate_documents(tmp_path):
    file = write(tmp_path / "a.txt", "\n\n" + TWO_DOCUMENTS + "\n\n")
    assert read(file) == ["The cat sat. It slept.\nThen it ate.", "A dog came."]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_compressed_files_read_like_plain_ones(tmp_path, suffix):
    text = write(tmp_path / f"a.txt{suffix}", compressed(TWO_DOCUMENTS, suffix))
    lines = write(tmp_path / f"a.jsonl{suffix}", compressed('{"text": "One."}\n\n{"text": "Two."}', suffix))
    assert len(read(text)) == 2
    assert read(lines) == ["One.", "Two."]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_the_first_bytes_tell_the_compression_and_several_members_are_read(tmp_path, suffix):
    file = write(tmp_path / "a.txt", compressed("One.\n\n", suffix) + compressed("Two.\n", suffix))
    assert read(file) == ["One.", "Two."]


def test_zstd_is_read_with_frames_to_skip_and_told_what_to_do_about_a_long_window(tmp_path):
    skip = b"\x50\x2a\x4d\x18\x04\0\0\0size"
    frames = skip + zstandard.compress(b"One.\n\n") + skip + zstandard.compress(b"Two.\n") + skip
    assert read(write(tmp_path / "a.txt.zst", frames)) == ["One.", "Two."]
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    long = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    file = write(tmp_path / "b.txt.zst", long.compress(b"One.\n") + long.flush())
    with pytest.raises(UserError, match=r"b\.txt\.zst: its window is over 128 MB; unpack it: unzstd -M2048MB FILE"):
        read(file)


def test_a_file_ends_a_document_unless_read_as_google_does(tmp_path):
    files = [write(tmp_path / "1", "One.\n"), write(tmp_path / "2", "Two.\n\nThree.\n")]
    assert read(*files) == ["One.", "Two.", "Three."]
    assert read(*files, as_google=True) == ["One.\nTwo.", "Three."]


def test_google_reads_lines_without_any_carriage_return_and_takes_a_byte_order_mark_for_text(tmp_path):
    # TensorFlow 2.15's gfile.GFile gives these files' lines as "One.", "two", "", "Three."; "\ufeff", "four", "", "five"
    files = [
        write(tmp_path / "1", "One.\r\nt\rwo\r\n\r\nThree.\n\r"),
        write(tmp_path / "2", "\ufeff\nfour\n\r\r\nfive"),
    ]
    assert read(*files, as_google=True) == ["One.\ntwo", "Three.\n\ufeff\nfour", "five"]
    assert read(*files) == ["One.\r\nt\rwo\r", "Three.", "four", "five"]
    write(tmp_path / "1", b"One.\n\xff\n")
    with pytest.raises(UserError, match=r"1, line 2: byte 0xff"):
        read(*files, as_google=True)


def test_lines_end_at_newlines_only(tmp_path):
    separators = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"
    line = separators.join("abcdefghij")
    file = write(tmp_path / "a.txt", f"{line}\r\nend")
    (document,) = read(file)
    assert document.split("\n") == [line + "\r", "end"]


def test_one_json_object_is_one_document_whatever_blank_lines_it_has(tmp_path):
    file = write(
        tmp_path / "a.jsonl", json.dumps({"body": "One.\n\nTwo.", "id": 1}) + "\n" + json.dumps({"body": " \n"})
    )
    assert read(file, field="body") == ["One.\nTwo."]


def test_parquet_rows_are_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": [1, 2], "body": ["One.\n\nTwo.", "셋."]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", field="body") == ["One.\nTwo.", "셋."]
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text'; the file has 'id', 'body'"):
        read(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["One.", None]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet, row 2: the field 'text' is null"):
        read(tmp_path / "b.parquet")
    write(tmp_path / "c.parquet", (tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"c\.parquet, after row 0: cannot be read as Parquet"):
        read(tmp_path / "c.parquet")


def test_folders_globs_and_files_are_read_once_each_and_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "deep/c.txt", ".hidden", ".git/x", "out/shard"):
        write(tmp_path / "in" / name, name)
    inputs = [tmp_path / "in" / "b.txt", tmp_path / "in", tmp_path / "in" / "*.txt"]
    sources = find_sources([str(i) for i in inputs], exclude=tmp_path / "in" / "out")
    assert [str(s.path.relative_to(tmp_path / "in")) for s in sources] == ["b.txt", "a.txt", "deep/c.txt"]


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.jsonl", "jsonl"), ("a.JSONL.gz", "jsonl"), ("a.parquet", "parquet"), ("a.txt.zst", "text"), ("a", "text")],
)
def test_the_format_follows_the_suffix(tmp_path, name, format):
    write(tmp_path / name, "x")
    assert find_sources([str(tmp_path / name)])[0].format == format
    assert find_sources([str(tmp_path / name)], format="lines")[0].format == "lines"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nbad \xff\xfe byte\n", r"a\.txt, line 2: byte 0xff at position 5 is not UTF-8"),
        ("a.txt", "word".encode("utf-16"), r"a\.txt, line 1: the file is UTF-16"),
        ("a.txt", b" \n\n", r"a\.txt: no text in the corpus, it is empty"),
        ("a.txt", b"", r"a\.txt: no text in the corpus, it is empty"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"', r"a\.jsonl, line 2: not JSON \(.* at column 13\)"),
        ("a.jsonl", '\n{"title": "a", "body": "b"}', r"a\.jsonl, line 2: no field 'text'; the object has 'title', 'body'"),
        ("a.jsonl", '{"text": ["a"]}', r"a\.jsonl, line 1: the field 'text' is a list, expected text"),
        ("a.jsonl", '{"text": null}', r"a\.jsonl, line 1: the field 'text' is null"),
        ("a.jsonl", '"a"', r"a\.jsonl, line 1: found text, expected an object"),
        ("a.jsonl", r'{"text": "ab\ud800"}', r"a\.jsonl, line 1: half of a surrogate pair \(\\ud800\) at character 3"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl, line 1: not JSON \(nested too deeply\)"),
        ("a.json", "{}", r"a\.json: one JSON object per line \(--format jsonl\)"),
        ("a.txt.gz", b"plain", r"a\.txt\.gz: named \.gz but not a gzip file"),
        ("a.gz", gzip.compress(b"line\n" * 9999, mtime=0)[:-30], r"a\.gz, after line \d+: the compressed file ends too early"),
        ("a.zst", zstandard.compress(b"line\n" * 9999)[:-5], r"a\.zst, after line \d+: the compressed file ends too early"),
        ("a.gz", gzip.compress(b"line\n" * 99, mtime=0)[:-6] + b"\0" * 6, r"a\.gz, after line \d+: the compressed file is damaged"),
        ("a.zst", zstandard.compress(b"line\n")[:4] + b"\xff" * 20, r"a\.zst, after line 0: the compressed file is damaged"),
    ],
)  # fmt: skip
def test_a_bad_file_is_reported_with_its_name_and_line(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        read(write(tmp_path / name, content))
    assert "\n" not in str(error.value)


def test_a_pipe_is_refused_before_a_byte_of_it_is_lost():
    reading, writing = os.pipe()
    os.write(writing, b"a line\n" * 99)
    os.close(writing)
    with pytest.raises(UserError, match=rf"/dev/fd/{reading}: cannot be read \(is a named pipe; expected a file\)"):
        list(read_lines(Path(f"/dev/fd/{reading}")))
    os.close(reading)


@pytest.mark.parametrize(
    ("package", "name", "content", "extra"),
    [
        ("zstandard", "a.txt", zstandard.compress(b"One."), r"a\.txt: reading zstd .* pip install 'bert-jax\[train\]'"),
        ("pyarrow", "a.parquet", b"PAR1", r"a\.parquet: reading Parquet .* pip install 'bert-jax\[parquet\]'"),
        ("sentencex", "a.txt", b"One.", r"splitting sentences .* pip install 'bert-jax\[train\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package, name, content, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=extra):
        split_sentences(read(write(tmp_path / name, content))[0])


def test_inputs_that_match_nothing_are_named(tmp_path):
    for name, message in [("no.txt", "no such file or folder"), ("*.no", "no file matches"), (".", "no files in")]:
        with pytest.raises(UserError, match=message):
            find_sources([str(tmp_path / name)])


def test_a_huge_document_is_cut_at_line_ends_and_counted(tmp_path):
    file = write(tmp_path / "a.txt", "One one.\nTwo two.\nThree three.\n\nFour.\n")
    corpus = Corpus(find_sources([str(file)]), max_document_chars=18)
    assert list(corpus) == ["One one.\nTwo two.", "Three three.", "Four."]
    assert (corpus.documents, corpus.cut) == (2, 1)


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "Mr. Smith paid $3.50 for it.  He left!\n\nA heading\nWhat?! No.", ["Mr. Smith paid $3.50 for it.", "He left!", "A heading", "What?!", "No."]),
        ("de", "Am 3. Mai z. B. ging Dr. Müller. Er kam.", ["Am 3. Mai z. B. ging Dr. Müller.", "Er kam."]),
        ("en", "우크라이나는 동유럽 국가다. 수도는 키이우이다! 2021년 12월 31일까지 3.14를 썼다.", ["우크라이나는 동유럽 국가다.", "수도는 키이우이다!", "2021년 12월 31일까지 3.14를 썼다."]),
        ("en", "馬克士威線圈是一個裝置。為了紀念馬克士威！真的嗎？「他說：你好。」", ["馬克士威線圈是一個裝置。", "為了紀念馬克士威！", "真的嗎？", "「他說：你好。」"]),
        ("en", "これはペンです。本当ですか？", ["これはペンです。", "本当ですか？"]),
        ("en", "यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("en", " \n ", []),
    ],
)  # fmt: skip
def test_sentences_end_where_a_reader_would_end_them(language, text, sentences):
    assert split_sentences(text, language) == sentences


@pytest.mark.parametrize(
    "sentence", ["馬克士威線圈是一個在大體積條件下能產生均勻磁場的裝置。", "The cat saw Mr. Smith. "]
)
def test_a_very_long_line_splits_into_the_same_sentences(sentence):
    assert split_sentences(sentence * 3_000) == split_sentences(sentence) * 3_000


@pytest.mark.parametrize("unit", ["「は？」", "यह।", "“Hi. ", "字" * 7, "word "])
def test_the_work_for_a_long_line_grows_with_its_length_only(unit, monkeypatch):
    """sentencex may take quadratic time, so it must never get a long text, nor much of it twice."""
    segment = sentences_module._segmenter()
    seen = []

    def recorded(language: str, text: str) -> list[str]:
        seen.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentences_module, "_segmenter", lambda: recorded)
    text = unit * (100_000 // len(unit))
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")
    assert max(seen) <= (8_000 if " " in unit else 1_000)
    assert sum(seen) < 1.5 * len(text)


@pytest.mark.slow
def test_real_wikipedia_reads_as_articles(data_dir):
    for language, documents in [("en", 3064), ("ko", 4799), ("zh", 6555)]:
        corpus = Corpus(find_sources([str(data_dir / "text" / f"wiki-{language}-00.jsonl.zst")]))
        texts = list(corpus)
        assert len(texts) == corpus.documents == documents
        lengths = sorted(len(s) for text in texts[:50] for s in split_sentences(text))
        assert lengths[len(lengths) // 2] < 200
        assert len(split_sentences(texts[0])) > 2
