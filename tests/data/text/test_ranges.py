"""A file read in ranges, by as many readers as there are, gives the same documents and the same messages as the file."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest
import zstandard

from bert_jax.data.text.corpus import Corpus
from bert_jax.data.text.ranges import divide
from bert_jax.data.text.sources import CorpusFile
from bert_jax.errors import UserError

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def odd_text(seed: int, lines: int = 400) -> str:
    """Lines of words, blank ones of several kinds, line ends of two kinds, rules and headings."""
    rng = random.Random(seed)
    kinds = ("{}", "{}", "{}", "{}\r", "", "", " \t", "\u3000", "***", "CHAPTER {}", "\u200b", "{} \x85 {} \u2028")
    words = ("naïve", "字", "dog", "long-winded", "\U0001f600", "e\u0301")
    made = [rng.choice(kinds).replace("{}", " ".join(rng.choices(words, k=rng.randint(1, 9)))) for _ in range(lines)]
    return "\ufeff" + "\n".join(made) + rng.choice(["", "\n", "\n\n"])


def documents(sources: list[CorpusFile], **options) -> list[str]:
    return list(Corpus(sources, may_be_empty=True, **options))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("rule", [None, "blank-lines:2", r"separator:\*+", "heading:CHAPTER"])
def test_the_ranges_of_a_text_have_its_documents_in_its_order(tmp_path: Path, suffix: str, rule: str | None):
    for seed in range(8):
        path = tmp_path / f"{seed}.txt{suffix}"
        path.write_bytes(PACK[suffix](odd_text(seed).encode()))
        whole = CorpusFile(path, "text")
        expected = documents([whole], documents=rule)
        for size in (1, 40, 700):
            ranges = divide(whole, size, documents=rule)
            assert len(ranges) > 3
            assert len(ranges) <= 16 or not suffix
            found = [documents([part], documents=rule) for part in ranges]
            assert list(itertools.chain.from_iterable(found)) == expected
            assert min(map(len, found[1:])) >= (1 if "separator" not in str(rule) else 0)


def test_a_document_of_google_goes_on_in_the_next_file_and_range(tmp_path: Path):
    files = []
    for seed in range(6):
        (tmp_path / f"{seed}.txt").write_bytes(odd_text(seed, 30).encode())
        files.append(CorpusFile(tmp_path / f"{seed}.txt", "lines"))
    (tmp_path / "3.txt").write_text("no blank line in\nthis file")
    expected = documents(files, as_google=True)
    for size in (1, 100):
        ranges = [part for file in files for part in divide(file, size, as_google=True)]
        assert len(ranges) > 15
        assert documents(ranges, as_google=True) == expected
        starts = [number for number, part in enumerate(ranges) if part.start]
        groups = [ranges[a:b] for a, b in itertools.pairwise([0, *starts, len(ranges)])]
        assert [text for group in groups for text in documents(group, as_google=True)] == expected


@pytest.mark.parametrize("suffix", PACK)
def test_the_ranges_of_json_lines_have_its_objects_and_name_its_lines(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.jsonl{suffix}"
    lines = [json.dumps({"text": f"Text {n} " + "字 x" * (n % 7)}, ensure_ascii=False) for n in range(100)]
    path.write_bytes(PACK[suffix]("\n\n".join(lines).encode()))
    source = CorpusFile(path, "jsonl")
    ranges = divide(source, 50)
    assert len(ranges) >= 14
    assert [text for part in ranges for text in documents([part])] == documents([source])
    lines[90] = "{"
    path.write_bytes(PACK[suffix]("\n\n".join(lines).encode()))
    messages = []
    for part in divide(source, 50):
        try:
            documents([part])
        except UserError as error:
            messages.append(str(error))
    with pytest.raises(UserError) as whole:
        documents([source])
    assert messages == [str(whole.value)]
    assert ", line 181: not JSON" in messages[0]


def test_the_ranges_of_a_parquet_file_are_its_row_groups(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"Text {n}." for n in range(95)], "n": list(range(95))})
    parquet.write_table(table, path, row_group_size=10)
    source = CorpusFile(path, "parquet")
    ranges = divide(source, 1)
    assert [(part.start, part.stop, part.lines_before) for part in ranges][:2] == [(0, 1, 0), (1, 2, 10)]
    assert len(ranges) == 10
    assert [text for part in ranges for text in documents([part])] == documents([source])
    assert 1 < len(divide(source, 1_000)) < 10


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("markdown", {}),
        ("text", {"unwrap": True}),
        ("text", {"documents": "files"}),
        ("text", {"documents": "chapters"}),
    ],
)
def test_text_whose_documents_depend_on_what_is_before_them_is_not_divided(tmp_path: Path, format: str, options: dict):
    (tmp_path / "a").write_text(odd_text(0))
    assert divide(CorpusFile(tmp_path / "a", format), 10, **options) == [CorpusFile(tmp_path / "a", format)]


def test_damage_in_a_compressed_file_is_named_while_it_is_divided(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(odd_text(0, 2000).encode())[:-400])
    with pytest.raises(UserError, match=r"a.txt.gz, after line \d+: the compressed file ends too early"):
        divide(CorpusFile(path, "text"), 100)
