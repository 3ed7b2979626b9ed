"""evaluate-blimp: reading the sets, accuracies equal to a plain loop's, ties, means of groups, the verb."""

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from bert_jax.__main__ import run as run_verb
from bert_jax.errors import UserError
from bert_jax.evaluation import blimp
from bert_jax.evaluation.blimp import evaluate, read_blimp, table
from bert_jax.formats.load import load
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.model.heads import BertForMaskedLM
from tests.inference.tasks.task_folders import LONGEST, export

# name -> linguistics_term, field
SETS = {
    "zebra": ("s-selection", "syntax"),
    "agreement_1": ("agreement", "morphology"),
    "agreement_2": ("agreement", "morphology"),
    "verbs": ("argument_structure", "syntax"),
    "principle": ("binding", "syntax/semantics"),
    "raising": ("control", "syntax_semantics"),
}
WORDS = ("hello", "world", "held", "helds", "o", "h", ",", "xyz")


def pairs_of(number: int) -> list[tuple[str, str]]:
    """Seven pairs; the last are the same tokens, once as the same text and once not: "xyz" and "zyx" are [UNK]."""
    rng = np.random.default_rng(number)
    found = []
    for _ in range(5):
        good, bad = ([WORDS[i] for i in rng.integers(0, 7, rng.integers(2, 6))] for _ in range(2))
        found.append((" ".join(good), " ".join([*bad, "world"])))
    return [*found, ("Hello xyz", "hello zyx"), ("o", "o")]


def rows_of(name: str, number: int) -> list[dict[str, Any]]:
    term, field = SETS[name]
    more = {"field": field, "linguistics_term": term, "UID": name, "simple_LM_method": True}
    return [{"sentence_good": good, "sentence_bad": bad, **more} for good, bad in pairs_of(number)]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blimp") / "data"
    folder.mkdir()
    for number, name in enumerate(SETS):
        (folder / f"{name}.jsonl").write_bytes(jsonl(rows_of(name, number)))
    return folder


def archive_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(folder, "data")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model"), "mlm")


@pytest.fixture(scope="module")
def predict(model: Path) -> Likelihood:
    return Likelihood(model, batch_size=8)


def slow_scores(model: Path, sentences: set[str]) -> dict[str, float]:
    """Pseudo-log-likelihoods by a plain loop: one row at a time, without the engine, all padded to one length."""
    import jax

    config, params, tokenizer, _ = load(model)
    assert tokenizer is not None
    apply = jax.jit(
        lambda ids, mask: (
            BertForMaskedLM(config).apply({"params": params}, ids, attention_mask=mask).prediction_logits  # type: ignore[union-attr]
        )
    )
    found = {}
    for sentence in sentences:
        row = tokenizer(sentence, padding="max_length", max_length=16)
        ids, mask = row["input_ids"], row["attention_mask"]
        total = 0.0
        for position in range(1, int(mask.sum()) - 1):
            hidden = ids.copy()
            hidden[0, position] = tokenizer.mask_token_id
            logits = np.asarray(apply(hidden, mask), np.float64)[0, position]
            total += logits[ids[0, position]] - np.log(np.exp(logits).sum())
        found[sentence] = total
    return found


@pytest.mark.slow
def test_accuracies_are_those_of_a_plain_loop(model, predict, data):
    sentences = {sentence for number in range(len(SETS)) for pair in pairs_of(number) for sentence in pair}
    scores = slow_scores(model, sentences)
    right, tied = {}, {}
    for number, name in enumerate(SETS):
        differences = [scores[good] - scores[bad] for good, bad in pairs_of(number)]
        right[name] = 100 * sum(difference > 0 for difference in differences) / len(differences)
        tied[name] = sum(difference == 0 for difference in differences)
    found = evaluate(predict, read_blimp(data))
    assert {name: row["accuracy"] for name, row in found["sets"].items()} == pytest.approx(right)
    assert {name: row["ties"] for name, row in found["sets"].items()} == tied
    assert all(ties >= 2 for ties in tied.values()) and 0 < max(right.values()) <= 100 * 5 / 7
    assert len(set(right.values())) > 1  # otherwise a mix-up of sets would not be seen
    assert found["accuracy"] == pytest.approx(sum(right.values()) / len(SETS))
    assert (found["pairs"], found["ties"], found["note"]) == (7 * len(SETS), sum(tied.values()), None)
    # As the paper's table: selection belongs to argument structure; a mean of sets, not of pairs.
    assert found["phenomena"] == pytest.approx(
        {
            "agreement": (right["agreement_1"] + right["agreement_2"]) / 2,
            "argument_structure": (right["verbs"] + right["zebra"]) / 2,
            "binding": right["principle"],
            "control": right["raising"],
        }
    )
    assert found["fields"] == pytest.approx(
        {
            "morphology": (right["agreement_1"] + right["agreement_2"]) / 2,
            "syntax": (right["verbs"] + right["zebra"]) / 2,
            "syntax_semantics": (right["principle"] + right["raising"]) / 2,
        }
    )


def test_swapping_the_sentences_of_pairs_turns_right_into_wrong_but_no_tie(predict, data):
    sets = read_blimp(data)
    swapped = [one._replace(pairs=[(bad, good) for good, bad in one.pairs]) for one in sets]
    there, back = evaluate(predict, sets), evaluate(predict, swapped)
    for name, row in there["sets"].items():
        ties = 100 * row["ties"] / row["pairs"]
        assert row["accuracy"] + back["sets"][name]["accuracy"] + ties == pytest.approx(100)
    assert there["ties"] == back["ties"]


def test_a_folder_and_an_archive_of_it_are_read_alike(data, tmp_path):
    expected = read_blimp(data)
    assert [one.name for one in expected] == sorted(SETS)
    assert expected[0].pairs == pairs_of(list(SETS).index(expected[0].name))
    plain = archive_of(data)
    half = len(plain) // 2
    frames = [zstandard.ZstdCompressor().compress(part) for part in (plain[:half], plain[half:])]
    for name, packed in {
        "b.tar": plain,
        "b.tar.gz": gzip.compress(plain),
        "b.tar.zst": zstandard.ZstdCompressor().compress(plain),
        "two.tar.zst": b"".join(frames),
    }.items():
        (tmp_path / name).write_bytes(packed)
        assert read_blimp(tmp_path / name) == expected
    assert read_blimp(data.parent) == expected  # the sets are in its data/
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "b.tar.zst").write_bytes((tmp_path / "b.tar.zst").read_bytes())
    assert read_blimp(tmp_path / "alone") == expected
    with pytest.raises(UserError, match=r"has 4 archives; pass the path of one, such as .*b\.tar"):
        read_blimp(tmp_path)


def test_a_copy_of_the_repository_has_its_sets_alone(data, tmp_path):
    copy = tmp_path / "blimp-master"
    shutil.copytree(data, copy / "data")
    (copy / "data" / "._zebra.jsonl").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    (copy / "raw_results" / "summary").mkdir(parents=True)
    (copy / "raw_results" / "summary" / "models_summary.jsonl").write_text('{"name": "gpt2"}\n')
    with tarfile.open(tmp_path / "blimp.tar.gz", "w:gz") as archive:
        archive.add(copy, copy.name)
    for path in (copy, copy / "data", tmp_path / "blimp.tar.gz"):
        assert read_blimp(path) == read_blimp(data)


@pytest.mark.slow
def test_a_limit_takes_the_first_pairs_and_the_result_says_so(predict, data):
    sets = read_blimp(data, 3)
    assert sets == [one._replace(pairs=one.pairs[:3]) for one in read_blimp(data)]
    found = evaluate(predict, sets)
    assert found["note"] == "partial: the first pairs of each set, 18 of 42"
    assert found["note"] in table(found).splitlines()[-1]
    assert evaluate(predict, read_blimp(data, 7))["note"] is None


def test_sets_without_names_have_their_files_and_no_phenomenon(predict, tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b'{"sentence_good": "hello", "sentence_bad": "held"}\n\n')
    found = evaluate(predict, read_blimp(tmp_path))
    assert list(found["sets"]) == ["mine"]
    assert found["phenomena"] == found["fields"] == {}


def test_later_tokens_of_a_word_are_hidden_on_demand(predict, tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(b'{"sentence_good": "helds", "sentence_bad": "o"}\n')
    found = evaluate(predict, read_blimp(tmp_path), within_word_l2r=True)
    good, bad = predict(["helds", "o"], within_word_l2r=True)
    assert found["accuracy"] == 100 * (good["pll"] > bad["pll"])
    assert "later tokens of a word" in found["score"]


def test_progress_ends_with_all_pairs(predict, data):
    seen: list[tuple[int, int]] = []
    evaluate(predict, read_blimp(data, 2), progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2 * number, 12) for number in range(1, 7)]


GOOD = b'{"sentence_good": "a", "sentence_bad": "b", "UID": "x"}\n'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no .jsonl file"),
        ({"x.jsonl": b""}, "x.jsonl: has no pairs"),
        ({"x.jsonl": GOOD + b"{\n"}, "x.jsonl, line 2: not JSON"),
        ({"x.jsonl": b'["a"]\n'}, "x.jsonl, line 1: expected an object with sentence_good and sentence_bad"),
        ({"x.jsonl": b'{"sentence_good": "a"}\n'}, "line 1: expected an object with sentence_good and sentence_bad"),
        (
            {"x.jsonl": b'{"sentence_good": "a", "sentence_bad": 1}\n'},
            "line 1: sentence_bad: expected a string, found 1",
        ),
        (
            {"x.jsonl": b'{"sentence_good": "\\ud800", "sentence_bad": "a"}\n'},
            "lone surrogate '\\ud800' at character 1",
        ),
        ({"x.jsonl": GOOD[:-2] + b', "field": 3}\n'}, "line 1: 'field' is 3; expected a string"),
        ({"x.jsonl": GOOD + GOOD.replace(b"x", b"y")}, "line 2: found UID y; expected x"),
        ({"x.jsonl": GOOD, "y.jsonl": GOOD}, "y.jsonl: a second file with the set x"),
        ({"x.jsonl": b"\xff\n"}, "x.jsonl, line 1: byte 0xff"),
    ],
)
def test_damaged_data_is_one_line_with_its_place(files, message, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text)
    (tmp_path / "b.tar").write_bytes(archive_of(folder))
    for path in (folder, tmp_path / "b.tar"):
        with pytest.raises(UserError) as caught:
            read_blimp(path)
        assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("b.tar", lambda plain: plain[: len(plain) // 2], r"nor a complete tar archive \(unexpected end of data\)"),
        ("b.tar", lambda plain: plain[: plain.index(b"data/verbs.jsonl")], "the archive is truncated"),
        ("b.tar", lambda plain: b"hello", "neither a folder nor a complete tar archive"),
        ("b.tar.gz", lambda plain: gzip.compress(plain)[:-9], "the compressed file is damaged"),
        ("b.tar.zst", lambda plain: zstandard.ZstdCompressor().compress(plain)[:-9], "damaged .it is truncated"),
        ("b.tar.zst", lambda plain: plain, "named .zst but not a zstd file"),
    ],
)
def test_an_archive_that_is_cut_is_never_a_smaller_one(name, damage, message, data, tmp_path):
    (tmp_path / name).write_bytes(damage(archive_of(data)))
    with pytest.raises(UserError, match=message):
        read_blimp(tmp_path / name)


def member(name: str, content: bytes = b"", *, size: bytes | None = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member of a tar archive whose header may give another size than its content has."""
    found = tarfile.TarInfo(name)
    found.size, found.type = len(content), kind
    header = bytearray(found.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size or header[124:136]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % 512)


BACK = b"\xff" * 10 + (2**16 - 512).to_bytes(2, "big")  # 512 bytes back, to the header itself
DIGITS = b"1" * (70 << 10)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (member("b.jsonl", size=BACK), b"", "unexpected end of data"),
        (member("a.jsonl", GOOD), member("b.jsonl", size=BACK), "unexpected end of data"),
        (member("a.jsonl", GOOD), member("x", size=BACK, kind=tarfile.XHDTYPE), "unexpected end of data"),
        (member("a.jsonl", GOOD), member("b.jsonl", size=b"77777777777\0"), "unexpected end of data"),
        (
            member("x", DIGITS, kind=tarfile.XHDTYPE),
            member("a.jsonl", GOOD),
            "a header of 71,680 bytes; at most 65,536",
        ),
        (member("a.jsonl", GOOD), member("x") * 9, "more than 9 members, BLiMP has 67"),
        (member("a.jsonl", GOOD), b"\1" * 512, "invalid header"),
    ],
)
def test_an_archive_that_would_never_end_is_refused(first, second, message, tmp_path, monkeypatch):
    monkeypatch.setattr(blimp, "MOST_MEMBERS", 9)
    (tmp_path / "b.tar").write_bytes(first + second + bytes(1024))
    with pytest.raises(UserError, match=rf"b\.tar: neither a folder nor a complete tar archive \({message}"):
        read_blimp(tmp_path / "b.tar")


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_all_lengths_and_links_are_read_as_tarfile_writes_them(format, tmp_path):
    folder = "/".join(["a folder" if format == tarfile.USTAR_FORMAT else "폴더" * 20] * 3)
    records = {} if format == tarfile.USTAR_FORMAT else {"comment": "a commit"}
    headers = records if format == tarfile.PAX_FORMAT else None
    with tarfile.open(tmp_path / "b.tar", "w", format=format, pax_headers=headers) as archive:
        for name in ("x.jsonl", "link.jsonl", "y.jsonl", "deep/er.jsonl"):
            one = tarfile.TarInfo(f"{folder}/{name}")
            if name == "link.jsonl":
                one.type, one.linkname = tarfile.LNKTYPE, f"{folder}/x.jsonl"
            else:
                one.size = len(GOOD)
            archive.addfile(one, io.BytesIO(GOOD.replace(b', "UID": "x"', b"").ljust(len(GOOD))))
    with tarfile.open(tmp_path / "b.tar") as archive:
        files = [one.name for one in archive if one.isreg()]
    plain = (tmp_path / "b.tar").read_bytes()
    assert [name for name, _, _ in blimp._members(plain)] == files
    assert [one.name for one in read_blimp(tmp_path / "b.tar")] == ["x", "y"]


def test_a_sentence_that_cannot_be_scored_is_named(predict, tmp_path):
    rows = [{"sentence_good": "o", "sentence_bad": "hello"}, {"sentence_good": "o", "sentence_bad": "hello " * LONGEST}]
    (tmp_path / "mine.jsonl").write_bytes(jsonl(rows))
    with pytest.raises(UserError, match=r"^mine, pair 2: text .* tokens; the model takes at most"):
        evaluate(predict, read_blimp(tmp_path))


@pytest.mark.slow
def test_the_published_sets_are_67_in_12_phenomena(data_dir):
    sets = read_blimp(data_dir / "blimp" / "blimp-data.tar.zst", 1)
    assert len(sets) == 67 and all(one.whole == 1000 for one in sets)
    # https://arxiv.org/abs/1912.00582, table 2: how many sets each phenomenon has
    counts = {one.phenomenon: sum(other.phenomenon == one.phenomenon for other in sets) for one in sets}
    assert counts == {
        "anaphor_agreement": 2, "argument_structure": 9, "binding": 7, "control_raising": 5,
        "determiner_noun_agreement": 8, "ellipsis": 2, "filler_gap_dependency": 7, "irregular_forms": 2,
        "island_effects": 8, "npi_licensing": 7, "quantifiers": 4, "subject_verb_agreement": 6,
    }  # fmt: skip
    assert {one.field for one in sets} == {"morphology", "semantics", "syntax", "syntax_semantics"}


def run(*argv: object) -> None:
    run_verb(["evaluate-blimp", *(str(word) for word in argv)])


@pytest.mark.slow
def test_the_verb_writes_a_table_or_json(model, predict, data, capsys):
    expected = evaluate(predict, read_blimp(data))
    run(model, data, "--json")
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found == json.loads(json.dumps(expected | {"model": str(model)}))
    run(model, data, "--limit", 2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:7]] == sorted(SETS)
    assert lines[-1].endswith("mean of 6 sets, 12 pairs (partial: the first pairs of each set, 12 of 42)")
    with pytest.raises(UserError, match="--limit 0"):
        run(model, data, "--limit", 0)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        run(model, data / "none")


@pytest.mark.parametrize("name", ["b.tar.gz", "b.tar.zst", "b.tar"])
def test_an_archive_that_inflates_beyond_its_bound_is_refused(name, data, tmp_path, monkeypatch):
    plain = archive_of(data)
    packed = {"b.tar.gz": gzip.compress, "b.tar.zst": zstandard.compress, "b.tar": bytes}[name](plain)
    (tmp_path / name).write_bytes(packed)
    monkeypatch.setattr(blimp, "LARGEST_ARCHIVE", len(plain))
    assert read_blimp(tmp_path / name)
    monkeypatch.setattr(blimp, "LARGEST_ARCHIVE", len(plain) - 1)
    with pytest.raises(UserError, match=r"more than 0 MB unpacked, BLiMP has 20; unpack it and pass the folder"):
        read_blimp(tmp_path / name)
