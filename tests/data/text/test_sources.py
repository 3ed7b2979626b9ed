"""Folders, globs and files become the corpus; a file that is not text is named, with what to do about it."""

import errno
import gzip
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from bert_jax.data.text import markdown
from bert_jax.data.text.corpus import Corpus
from bert_jax.data.text.sources import find_sources
from bert_jax.errors import UserError


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", r"a PDF, not text; convert it: pdftotext 'a\.pdf' 'a\.txt'"),
        ("a.txt", b"%PDF-1.4\n", r"a PDF, not text"),
        ("a.docx", zipped(word__document="<w/>"), r"a Word document, not text; .*pandoc .*'a\.docx' -o 'a\.txt'"),
        ("a.epub", zipped(mimetype="application/epub+zip"), "an EPUB book, not text"),
        ("a.odt", zipped(mimetype="application/vnd.oasis.opendocument.text"), "an OpenDocument text, not text"),
        ("a.zip", zipped(a="text"), r"a ZIP archive, not text; unpack it: unzip 'a\.zip'"),
        ("a.txt", b"PK\x03\x04 cut off", "a ZIP archive"),
        ("a.tar.gz", gzip.compress(tarred()), r"a tar archive, not text; unpack it: tar -xf 'a\.tar\.gz'"),
        ("a.html", b"\n<!DOCTYPE html>\n<html>", r"a web page \(HTML\), not text; convert it: pandoc -f html"),
        ("a.txt", b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml">', "a web page"),
        ("a.rtf", b"{\\rtf1\\ansi", "a rich-text document"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Word or Office document"),
        ("wiki.xml", b'<mediawiki xmlns="http', r"a dump of a wiki \(XML\), .*wikiextractor"),
        ("a.bz2", b"BZh91AY&SY", r"compressed with bzip2, not text; unpack it: bunzip2 'a\.bz2'"),
        ("a.xz", b"\xfd7zXZ\0", "compressed with xz"),
        ("a.bin", b"PAR1", "a Parquet file, not text; read it with --format parquet"),
        ("a.txt", "a plain word".encode("utf-16-le"), "UTF-16 without a byte-order mark"),
        ("a.png", b"\x89PNG\r\n", "a picture"),
        ("a.txt", b'{"text": "One."}\n{"text": "Two."}\n', "holds JSON objects; say --format jsonl"),
        ("a.csv", b"id,text\n1,One.\n", r"a table by its name, .*pandas\.read_csv\('a\.csv', dtype=str, .*\.to_json\('a\.jsonl'"),
        ("a.tsv.gz", gzip.compress(b"id\ttext\n"), r"say --format text .*read_csv\('a\.tsv\.gz', sep='\\t', dtype"),
        ("it's.csv", "id;text\n1;A, b".encode("utf-16"), r"read_csv\('it\\'s\.csv', sep=';', encoding='utf-16', dtype"),
        ("it's.pdf", b"%PDF-1.4\n", r"pdftotext 'it'\\''s\.pdf' 'it'\\''s\.txt'"),
        ("a.xml.gz", gzip.compress(b'<?xml version="1.0"?>\n<PubmedArticleSet>'), "XML, not text; make JSON lines of it"),
        ("a.xml", b'\xef\xbb\xbf<TEI xmlns="http://www.tei-c.org/ns/1.0">', "XML, not text"),
        ("a.warc.wet", b"WARC/1.0\r\nWARC-Type: warcinfo", r"an archive of web pages \(WARC, WET\), not text; make JSON lines"),
        ("a.srt", b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,000\r\nOne.", "subtitles with their times, .*> 'a.txt'"),
        ("a.fa", b">chr1 of a test\n" + b"ACGT" * 15 + b"\nACGT\n", r"sequences \(FASTA\), .*: awk .* 'a\.fa' > 'a\.txt'"),
        ("a.vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\nOne.", "subtitles with their times"),
        ("a.txt", b'[\n {\n  "text": "One."', r"a JSON array, not text; .*: jq -c '\.\[\]' 'a\.txt' > 'a-2\.jsonl'"),
        ("a.json", b'[{"text": "One."}]', r"a JSON array, not text; .*> 'a\.jsonl'"),
        ("a.jsonl", b'[{"text": "One."}]', r"a JSON array, not text; .*> 'a-2\.jsonl'"),
        ("a.txt", b"One.\rTwo.\r\rThree.", r"lines that end in \\r alone, not text; .*tr '\\r' '\\n' < 'a.txt' > 'a-2.txt'"),
        ("a.txt", "One.".encode("utf-32"), "UTF-32, not text; convert it: iconv -f UTF-32"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0", r"an Arrow stream, .*open_stream\('a.arrow'\).*'a\.parquet'"),
        ("a.feather", b"ARROW1\0\0", r"an Arrow file, .*read_table\('a\.feather'\), 'a\.parquet'"),
        ("a.txt.gz", gzip.compress(gzip.compress(b"One.")), "compressed twice, not text; unpack it once"),
        ("a.lz4", b"\x04\x22\x4d\x18d@", r"compressed with lz4, not text; unpack it: unlz4 'a\.lz4'"),
        ("a.Z", b"\x1f\x9d\x90", r"compressed with compress, not text; unpack it: gunzip 'a\.Z'"),
        ("wiki_00", b'<doc id="12" url="" title="A">\nA\n', r"WikiExtractor's pages in <doc> elements; .*--json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time at which they are made
)  # fmt: skip
def test_what_is_not_text_is_named_in_one_line(tmp_path, name, content, message):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "0.txt").write_text("A text.\n")
    (tmp_path / "books" / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        find_sources([tmp_path / "books"])
    assert str(error.value).startswith(str(tmp_path / "books" / name))
    assert "\n" not in str(error.value)


def test_text_that_only_looks_like_something_else_is_text(tmp_path):
    for number, content in enumerate(
        (
            "<3 hearts.\n",
            "%PDF is a format.\n",
            "{braces} in prose\n",
            "[{1}] is a note.\n",
            "<xml> is.\n",
            "1\n2 --> 3\n",
            "a\r\nb\r\n",
            "\0One zero byte, " * 3,
        )
    ):
        (tmp_path / f"{number}.txt").write_text(content)
    assert [source.format for source in find_sources([tmp_path])] == ["text"] * 8


def test_a_folder_a_glob_and_a_double_star_name_files_in_order(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b/c/3.txt", "b/c/4.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*inputs: str) -> list[str]:
        return [str(s.path.relative_to(tmp_path)) for s in find_sources([str(tmp_path / name) for name in inputs])]

    assert names("b") == ["b/1.txt", "b/2.txt", "b/c/3.txt", "b/c/4.log"]
    assert names("**/*.txt") == ["a.txt", "b/1.txt", "b/2.txt", "b/c/3.txt"]
    assert names("b/*.txt", "a.txt", "b") == ["b/1.txt", "b/2.txt", "a.txt", "b/c/3.txt", "b/c/4.log"]


def test_a_tilde_is_a_home_directory_or_the_beginning_of_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("~$notes.txt").write_text("Text.\n", encoding="utf-8")  # as of a document that is open in an editor
    Path("a.txt").write_text("Text.\n", encoding="utf-8")
    found = [source.path for source in find_sources(["~$notes.txt", "~/a.txt"])]
    assert found == [Path("~$notes.txt"), tmp_path / "a.txt"]


def test_links_below_a_folder_are_followed_once_and_a_broken_one_is_a_file_to_read(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("two\n")
    (tmp_path / "texts" / "a.txt").write_text("one\n")
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "texts")
    found = [source.path.relative_to(tmp_path) for source in find_sources([tmp_path / "texts"])]
    assert found == [Path("texts/a.txt"), Path("texts/linked/b.txt")]
    (tmp_path / "texts" / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert tmp_path / "texts" / "gone.txt" in [source.path for source in find_sources([tmp_path / "texts"])]


def test_a_link_to_itself_is_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"loop: cannot be read \(Too many levels of symbolic links\)"):
        list(Corpus(find_sources([tmp_path])))


def test_a_folder_that_cannot_be_read_is_named_and_not_left_out(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").write_text("one\n")
    scan = os.scandir

    def refusing(folder):
        if os.fspath(folder).endswith("locked"):  # the mode of a folder means nothing to root
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UserError, match=r"locked: cannot be read \(Permission denied\)"):
        find_sources([tmp_path])


def test_a_name_that_is_not_utf8_is_one_line(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("Text.\n")
    with pytest.raises(UserError, match=r"caf\\xe9\.txt': the name is not UTF-8; rename it, or leave it out"):
        find_sources([tmp_path])


def test_text_that_lies_in_the_output_is_said_to(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    for name in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(UserError, match=r"lies in the output .*, whose files are no text; choose another output"):
            find_sources([name], exclude=tmp_path)


def test_files_of_wikiextractor_are_recognised_and_lose_titles_and_redirects(tmp_path):
    pages = [
        {
            "id": "12",
            "revid": "1",
            "url": "https://x?curid=12",
            "title": "Anarchism",
            "text": "Anarchism\n\nIt is.\nSo.",
        },
        {"id": "13", "revid": "2", "url": "https://x?curid=13", "title": "AfghanistanHistory", "text": ""},
        {"id": "14", "revid": "3", "url": "https://x?curid=14", "title": "Autism", "text": "Autism is a condition."},
    ]
    lines = "".join(json.dumps(page) + "\n" for page in pages)
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / "wiki_00").write_text(lines)
    (tmp_path / "AA" / "wiki_01.gz").write_bytes(gzip.compress(lines.encode()))
    sources = find_sources([tmp_path])
    assert [source.format for source in sources] == ["wikipedia", "wikipedia"]
    assert list(Corpus(sources)) == ["It is.\nSo.", "Autism is a condition."] * 2
    both = Corpus(find_sources([tmp_path / "AA" / "wiki_00"]), field="title,text")
    assert list(both)[::2] == ["Anarchism\nIt is.\nSo.", "Autism\nAutism is a condition."]


def test_several_fields_are_paragraphs_of_one_document(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "One.\\nTwo.", "id": 1, "title": "A title"}\n')
    assert list(Corpus(find_sources([tmp_path]), field="title,body")) == ["A title\nOne.\nTwo."]
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: no field 'text'; the object has 'body', 'id', 'title'"):
        list(Corpus(find_sources([tmp_path]), field="title,text"))
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["One."], "n": [1], "title": ["A title"]}), path)
    assert list(Corpus(find_sources([path]), field="title,body")) == ["A title\nOne."]
    with pytest.raises(UserError, match=r"a\.parquet: the column 'n' holds 'int64', expected text"):
        list(Corpus(find_sources([path]), field="title,n"))


MARKDOWN = """\
---
title: front matter
---
# The *keeper*

The lighthouse keeper [kept](https://rock.example) a **book**
in which he wrote `down` every ship &amp; its hour.
<br>
![a picture](lamp.png)

```python
import ships
```

- one lamp
- two
  lamps

| ship | hour |
|------|------|
| red  | nine |

<div>boilerplate</div>

## The schooner

> She came by.

    indented code

She ~~sank~~ left.\\
Nobody stood at the wheel.

海は広い
そして青い。
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_markdown_keeps_the_words_and_loses_the_markup(tmp_path, newline):
    (tmp_path / "a.md").write_bytes(MARKDOWN.replace("\n", newline).encode())
    (document,) = Corpus(find_sources([tmp_path]))
    assert document.split("\n") == [
        "The keeper",
        "The lighthouse keeper kept a book in which he wrote down every ship & its hour.",
        "one lamp",
        "two lamps",
        "ship hour",
        "red nine",
        "The schooner",
        "She came by.",
        "She sank left.",
        "Nobody stood at the wheel.",
        "海は広いそして青い。",
    ]
    with_rule = "\n\n".join(f"# Part {n}\n\n{'A sentence of some length. ' * 10}" for n in range(3))
    (tmp_path / "a.md").write_text(with_rule)
    assert len(list(Corpus(find_sources([tmp_path])))) == 1
    assert len(list(Corpus(find_sources([tmp_path]), documents="chapters"))) == 3
    (tmp_path / "b.txt").write_text("# Part\n")
    assert list(Corpus(find_sources([tmp_path / "b.txt"], format="markdown"))) == ["Part"]


@pytest.mark.parametrize(
    "text",
    [
        "Words.\n\n````\n```\n# no heading\n````\n\n# A heading",
        "Words.\n\n~~~\n~~~ a\n# no heading\n~~~\n\n# A heading",
        "```Words.```\n\n```\n# no heading\n```\n\n# A heading",
    ],
)
def test_a_long_markdown_file_is_not_cut_within_code(text, monkeypatch):
    monkeypatch.setattr(markdown, "_PART_CHARS", 12)
    assert [line for line in markdown.markdown_lines(text.split("\n")) if line] == ["Words.", "A heading"]


@pytest.mark.parametrize(
    ("before", "line", "words"),
    [
        ([], "Some words.\n", 1000),  # without a heading
        (["```"], "code\n", 0),  # without an end
        ([], "Some words.", 1000),  # without a blank line
        (["| a | b |", "|---|---|"], "| some | words |", 1000),
    ],
)
def test_a_markdown_file_without_a_place_to_end_a_part_is_read_in_parts(before, line, words, monkeypatch):
    monkeypatch.setattr(markdown, "_PART_CHARS", 500)
    lines = [*before, *(line * 1000 if line.endswith("\n") else f"{line}\n" * 1000).split("\n")]
    parts = list(markdown._parts(lines))
    assert len(parts) > 5
    assert max(len("\n".join(part)) for part in parts) < 1_100
    text = " ".join(markdown.markdown_lines(lines))
    assert text.count("words") == words
    assert "code" not in text


def test_a_markdown_file_in_parts_has_the_text_of_the_whole(monkeypatch):
    lines = ("\n" + MARKDOWN.partition("---\n#")[2].replace("#", "") * 20).split("\n")
    whole = [line for line in markdown.markdown_lines(lines) if line]
    monkeypatch.setattr(markdown, "_PART_CHARS", len(MARKDOWN))
    assert len(list(markdown._parts(lines))) > 9
    assert [line for line in markdown.markdown_lines(lines) if line] == whole


def test_cells_that_a_table_lacks_are_bounded_and_its_words_are_kept():
    """Each row of one letter would have 180 cells: a megabyte of such tables takes ten gigabytes."""
    table = ["|a" * 180, "|-" * 180, *["b"] * 360, ""]
    found = list(markdown.markdown_lines(table * 20))
    assert "".join(found).count("b") == 20 * 360
    assert sum(map(len, found)) < 20 * 360 * 180 / 10
    ragged = ["| a | b |", "|---|---|", "| c |", "| d | e |"]
    assert [line.rstrip() for line in markdown.markdown_lines(ragged) if line] == ["a b", "c", "d e"]


def test_a_line_of_backquotes_takes_time_in_proportion_to_its_length():  # with its square: an hour
    assert "".join(markdown.markdown_lines(["`" * 500_000 + " `"])).startswith("`")


def test_a_picture_within_a_very_long_line_is_left_out(monkeypatch):
    monkeypatch.setattr(markdown, "_PART_CHARS", 1_000)
    line = f"Before ![a lamp](data:image/png;base64,{'iVBOR/+' * 1_000}==) after."
    assert "".join(markdown.markdown_lines([line])) == "Before  after."
    words = "word " * 1_000
    assert "".join(markdown.markdown_lines([words])).replace(" ", "") == words.replace(" ", "")


def test_a_markdown_paragraph_takes_time_in_proportion_to_its_length(monkeypatch):
    join, lengths = markdown.joined, []
    monkeypatch.setattr(markdown, "joined", lambda a, b: lengths.append(len(a)) or join(a, b))
    assert "".join(markdown.markdown_lines(["A *few* words."] * 50)) == " ".join(["A few words."] * 50)
    assert max(lengths) < 100


PARTS = "HEAD 1\n\n\nOne one.\n\nTwo.\n\n\n\nHEAD 2\nThree.\n----\nFour.\n"


@pytest.mark.parametrize(
    ("rule", "documents"),
    [
        ("paragraphs", ["HEAD 1", "One one.", "Two.", "HEAD 2\nThree.\n----\nFour."]),
        ("files", ["HEAD 1\nOne one.\nTwo.\nHEAD 2\nThree.\n----\nFour."]),
        ("blank-lines:2", ["HEAD 1", "One one.\nTwo.", "HEAD 2\nThree.\n----\nFour."]),
        ("blank-lines:3", ["HEAD 1\nOne one.\nTwo.", "HEAD 2\nThree.\n----\nFour."]),
        ("separator:-+", ["HEAD 1\nOne one.\nTwo.\nHEAD 2\nThree.", "Four."]),
        ("heading:HEAD [0-9]", ["HEAD 1\nOne one.\nTwo.", "HEAD 2\nThree.\n----\nFour."]),
        ("chapters", ["HEAD 1\nOne one.\nTwo.\nHEAD 2\nThree.\n----\nFour."]),
    ],
)
def test_a_rule_says_what_a_document_is(tmp_path, rule, documents):
    (tmp_path / "a.txt").write_text(PARTS)
    assert list(Corpus(find_sources([tmp_path]), documents=rule)) == documents


def test_a_chapter_takes_its_heading_with_it(tmp_path):
    first, second = ("A sentence of a chapter. " * 20).strip(), ("Another sentence. " * 20).strip()
    (tmp_path / "a.txt").write_text(f"TITLE\n\n\nCHAPTER 1\n\n\n{first}\n\n{first}\n\n\n\nCHAPTER 2\n\n\n{second}\n")
    assert list(Corpus(find_sources([tmp_path]), documents="chapters")) == [
        f"TITLE\nCHAPTER 1\n{first}\n{first}",
        f"CHAPTER 2\n{second}",
    ]


def test_a_line_that_separates_documents_is_never_joined_to_the_line_before_it(tmp_path):
    row = "so that the text has a column at which all of its lines have been wrapped,"
    text = f"{row}\nwhich takes two lines\n\n" * 12 + f"{row}\n<|endoftext|>\nThe next document."
    (tmp_path / "a.txt").write_text(text)
    rule = r"separator:<\|endoftext\|>"
    assert len(list(Corpus(find_sources([tmp_path]), documents=rule, unwrap=True))) == 2


def test_jsonl_texts_are_unwrapped_one_by_one(tmp_path: Path):
    row = "so that the text has a column at which all of its lines have been wrapped,"
    texts = [f"{row}\nwhich takes two lines\n\n" * 12, "One.\nTwo."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    wrapped, verse = Corpus(find_sources([tmp_path]), unwrap=True)
    assert wrapped.split("\n") == [f"{row} which takes two lines"] * 12
    assert verse == texts[1]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.zst", "a.txt.gz", "a.parquet"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 231508\n")
    with pytest.raises(UserError, match=rf"{name}: a Git LFS pointer, not the file itself; .*git lfs pull"):
        list(Corpus(find_sources([path])))
