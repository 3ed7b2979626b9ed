"""`--dedupe` removes what repeats earlier text, the same with any workers, and reports how much."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.manifest import shard_folder
from bert_jax.data.pretraining.shards import open_shard
from bert_jax.data.text.lines import read_lines
from bert_jax.errors import UserError
from tests.train.preparation.small_corpus import VOCABULARY, WORDS, hashes, made, write_vocabulary
from train.preparation import dedupe
from train.preparation.held_out import is_held_out
from train.preparation.show import print_report


@pytest.fixture
def options(tmp_path: Path) -> dict:
    write_vocabulary(tmp_path, *map(str, range(1000)))
    return {
        "inputs": (str(tmp_path / "texts"),),
        "output": tmp_path / "out",
        "vocab": str(tmp_path / "vocab.txt"),
        "max_seq_length": (24,),
        "dupe_factor": 1,
        "held_out": 0.0,
        "workers": 1,
        "shard_bytes": 4_000,
        "format": "lines",
        "dedupe": "lines",
    }


def line(rng: random.Random, words: int = 14) -> str:
    return " ".join(rng.choice(WORDS) + " " + str(rng.randrange(1000)) for _ in range(words))


def write(folder: Path, documents: list[list[str]], files: int) -> None:
    (folder / "texts").mkdir()
    for number in range(files):
        some = documents[number * len(documents) // files : (number + 1) * len(documents) // files]
        (folder / "texts" / f"{number:02d}.txt").write_text("\n\n".join("\n".join(lines) for lines in some))


def prepared(options: dict, **more) -> list[list[str]]:
    """The documents of the train split, as their lines."""
    count = made(**options | more)["splits"]["train"]["shards"]["count"]
    shards = [open_shard((options | more)["output"] / shard_folder("train", number)) for number in range(count)]
    names = [*VOCABULARY, *map(str, range(1000))]
    documents = [shard.document(i) for shard in shards for i in range(len(shard.documents) - 1)]
    return [[" ".join(names[token] for token in sentence) for sentence in document] for document in documents]


def test_a_long_line_is_kept_where_it_comes_first_and_short_lines_stay(options, tmp_path, capsys):
    rng = random.Random(0)
    lines = [line(rng, rng.choice([2, 14])) for _ in range(60)]
    documents = [rng.choices(lines, k=rng.randint(1, 6)) for _ in range(80)]
    documents[3] = ["  " + documents[0][0] + "\t"]
    write(tmp_path, documents, files=7)
    seen: set[str] = set()
    expected, gone = [], 0
    for document in documents:
        kept = []
        for text in map(str.strip, document):
            if len(text) < 50 or text not in seen:
                kept.append(text)
            seen.add(text)
        gone += len(document) - len(kept) if kept else 0
        expected += [kept] * bool(kept)
    assert prepared(options) == expected
    report = json.loads((options["output"] / "manifest.json").read_text())
    assert report["settings"]["dedupe"] == "lines"
    removed = report["report"]["removed"]
    assert (removed["documents"], removed["lines"]) == (80 - len(expected), gone)
    before, after = (sum(len("\n".join(lines)) for lines in texts) for texts in (documents, expected))
    assert removed["text_share"] == pytest.approx(1 - after / before, abs=0.001)
    print_report(report, title="done")
    assert f"removed: {80 - len(expected)} documents and {gone} lines of others that repeat" in capsys.readouterr().err
    assert not (options["output"] / "dedupe").exists()


def test_a_near_duplicate_is_removed_and_the_first_stays_on_its_side(options, tmp_path):
    rng = random.Random(1)
    firsts = [[line(rng, 40) for _ in range(3)] for _ in range(30)]
    copies = [[f"{lines[0]} 7", *lines[1:]] for lines in firsts[:12]]
    documents = [*firsts[:20], *copies[:6], *firsts[20:], *copies[6:], firsts[0]]
    write(tmp_path, documents, files=9)
    assert prepared(options, dedupe="near") == firsts
    # A line that only a removed document has before, is not a repeat of anything.
    documents[-1] = [copies[0][0], "the cat"]
    (tmp_path / "again").mkdir()
    write(tmp_path / "again", documents, files=9)
    both = prepared(options, dedupe="near,lines", inputs=(str(tmp_path / "again" / "texts"),), output=tmp_path / "both")
    assert both == [*firsts, documents[-1]]


@pytest.mark.slow
def test_removal_depends_neither_on_workers_nor_on_how_much_a_job_compares(options, tmp_path, monkeypatch):
    rng = random.Random(2)
    lines = [line(rng) for _ in range(150)]
    documents = [rng.choices(lines, k=5) for _ in range(60)]
    documents += [[*lines, "the cat"] for lines in documents[::3]]
    write(tmp_path, documents, files=5)
    options |= {"dedupe": "near,lines", "held_out": 0.2}
    made(**options)
    expected = hashes(options["output"])
    made(**options | {"output": tmp_path / "two", "workers": 2})
    assert hashes(tmp_path / "two") == expected
    monkeypatch.setattr(dedupe, "_MOST_HASHES", 20)
    monkeypatch.setattr(dedupe, "_SIGNATURES_AT_ONCE", 2)
    made(**options | {"output": tmp_path / "small"})
    assert hashes(tmp_path / "small") == expected


def test_a_document_whose_lines_go_stays_on_its_side(options, tmp_path):
    rng = random.Random(3)
    long = [line(rng) for _ in range(3)]
    documents = [[*long, line(rng)] for _ in range(60)]
    write(tmp_path, documents, files=2)
    options |= {"held_out": 0.3, "output": tmp_path / "out"}
    train = prepared(options)
    sides = [is_held_out("\n".join(document), 0.3) for document in documents]
    last = [document[-1] for document in documents]
    assert [lines[-1] for lines in train] == [text for text, held in zip(last, sides, strict=True) if not held]


def test_options_of_dedupe_are_checked_and_part_of_the_result(options, tmp_path):
    for wrong in ("all", "near,near", ""):
        with pytest.raises(UserError, match=r"--dedupe: found .*, expected near, lines or near,lines"):
            made(**options | {"dedupe": wrong})
    with pytest.raises(UserError, match="--dedupe: --recipe google takes the text as it is"):
        made(**options | {"recipe": "google"})
    write(tmp_path, [[line(random.Random(n))] * 2 for n in range(9)], files=1)
    made(**options)
    with pytest.raises(UserError, match=r"made with other options: dedupe 'lines' \(now None\)"):
        made(**options | {"dedupe": None})


@pytest.mark.slow
def test_repeats_in_wikipedia_are_those_that_a_set_finds(data_dir, options, tmp_path):
    source = data_dir / "text" / "wiki-zh-00.jsonl.zst"
    texts = [json.loads(text)["text"] for _, text in read_lines(source)][:3_000]
    file = tmp_path / "zh.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    seen: set[str] = set()
    repeated = 0
    for text in texts:
        for part in text.split("\n"):
            if len(part.strip().encode()) >= 50:
                repeated += part.strip() in seen
                seen.add(part.strip())
    assert repeated > 20
    options |= {"inputs": (str(file),), "format": None, "shard_bytes": 1 << 20, "workers": 2}
    removed = made(**options)["report"]["removed"]
    whole = [text for text in texts if text.strip()]
    assert removed["lines"] <= repeated <= removed["lines"] + 20 * removed["documents"]
    assert removed["documents"] < 0.02 * len(whole)
    assert 0.001 < removed["text_share"] < 0.02
    near = made(**options | {"dedupe": "near", "output": tmp_path / "near"})["report"]["removed"]
    assert near["documents"] < 0.02 * len(whole) and not near["lines"]
    assert np.isfinite(near["text_share"])


def test_what_repeats_is_removed_whether_or_not_other_documents_have_plain_sentences(options, tmp_path):
    """The numbers of what is removed are those of all documents, of which the first two have no plain sentence."""
    (tmp_path / "texts").mkdir()
    plain = ["The cat sat on the mat and the dog ran to the house.", "The dog ran on the mat and sat in the house."]
    digits = ["In 1999 there were 12 cats.", "In 2001 there were 13 dogs."]
    texts = [*digits, plain[0], plain[1], plain[1]]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ".,abcdefghijklmnopqrstuvwxyz"
    pieces = [*VOCABULARY, *words, *(f"##{letter}" for letter in words)]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in dict.fromkeys(pieces)))
    more = {"format": "jsonl", "sentences": "plain", "objective": "none", "rows": "sentences", "dedupe": "near"}
    report = made(**options | more)["report"]
    shard = open_shard(options["output"] / shard_folder("train", 0))
    kept = [b"".join(sentence.tobytes() for sentence in shard.document(number)) for number in range(2)]
    assert report["train"]["documents"] == len({*kept}) == 2
    assert report["removed"]["documents"] == 1


def test_a_start_that_was_stopped_is_not_taken_for_one_that_compares_other_things(options, tmp_path, monkeypatch):
    rng = random.Random(1)
    repeated = line(rng)
    write(tmp_path, [[line(rng), repeated] for _ in range(8)], files=2)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dedupe, "_find", stop)
        with pytest.raises(KeyboardInterrupt):
            prepared(options, dedupe="near")
    assert sum(repeated in lines for lines in prepared(options, dedupe="lines")) == 1
