"""Batches: a pure function of (seed, step), however rows are distributed; every example once per epoch; clear errors."""

import hashlib
import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.batches import Batches, RandomBatches
from bert_jax.data.pretraining.by_length import write_by_length
from bert_jax.data.pretraining.directory import open_directory
from bert_jax.data.pretraining.examples import build_index, tokens_of
from bert_jax.data.pretraining.google_recipe import google_instances, instance_of
from bert_jax.data.pretraining.manifest import VERSION, FileList, array_file, write_list, write_manifest
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.pretraining.report import survey_index
from bert_jax.data.pretraining.rows import PreparedRows
from bert_jax.data.pretraining.shards import open_shard, save_shard, write_array
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.pretraining.packed import pack_documents
from tests.guide import blocks_of, run_blocks
from tests.root import ROOT

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(60)), *(f"##s{i}" for i in range(35))]
CLS, SEP, MASK = 2, 3, 4
MASKS = ("mask_positions", "mask_inputs", "mask_count")
L = 32


def prepare(
    directory: Path,
    *,
    objective: str = "nsp",
    rows: str = "doc-sentences",
    recipe: str = "default",
    lengths: tuple[int, ...] = (L,),
    shards: int = 3,
    documents: int = 6,
    whole_word: bool = False,
) -> Path:
    """A prepared directory in the form of bert_jax.data.pretraining.manifest, of random token ids.

    rows "twice": sentences, half of them twice.
    """
    twice = 0.5 if rows == "twice" else 0.0
    kind = {"objective": objective, "rows": "sentences" if twice else rows, "twice": twice}
    generator = np.random.default_rng(len(objective) + shards)
    (directory / "tokenizer").mkdir(parents=True)
    Tokenizer.from_vocabulary(PIECES, cased=True).save(directory / "tokenizer")
    splits = {}
    for split in ("train", "held-out"):
        home = directory / split
        home.mkdir()
        entries = []
        for number in range(shards):
            texts = [
                [generator.integers(5, len(PIECES), generator.integers(2, 14)) for _ in range(generator.integers(2, 9))]
                for _ in range(documents)
            ]
            entries.append(save_shard(home / f"shard-{number:05}", pack_documents(texts, np.dtype("<u2"))))
        opened = [open_shard(home / f"shard-{number:05}") for number in range(shards)]
        examples, orders = {}, {}
        for length in lengths:
            (home / f"examples-{length}").mkdir()
            if recipe == "google":
                made = google_instances(opened, PIECES, seed=1, dupe_factor=2, max_seq_length=length, max_predictions=5)
                indices = [made.rows]
                files = {name: home / f"examples-{length}/00000.{name}.npy" for name in MASKS}
                masks = {name: write_array(file, getattr(made, name)) for name, file in files.items()}
            else:
                indices = [
                    build_index(s, shard_number=i, max_seq_length=length, dupe_factor=2, **kind)
                    for i, s in enumerate(opened)
                ]
            name = f"{split}/examples-{length}"
            parts = [index_entry(directory, name, number, index) for number, index in enumerate(indices)]
            if recipe == "google":
                parts[0]["files"] |= masks
            examples[str(length)] = write_list(directory, name, parts)
            tokens = [survey_index(index, dict(enumerate(opened)), length)[1] for index in indices]
            if split == "train":
                orders[str(length)] = write_by_length(directory, tokens, length)
        splits[split] = {
            "shards": write_list(directory, f"{split}/shards", entries),
            "examples": examples,
            "by_length": orders,
        }
    settings = {
        "max_seq_lengths": list(lengths),
        "max_predictions": {str(length): 5 if length == L else 10 for length in lengths},
        "masked_lm_prob": 0.15,
        "whole_word_masking": whole_word,
        "static_masks": recipe == "google",
    }
    if rows != "doc-sentences":
        settings["rows"] = rows
    manifest = {"version": VERSION, "recipe": recipe, "objective": objective, "seed": 0, "settings": settings}
    tokenizer = {"vocab_size": len(PIECES), "files": {}}
    write_manifest(directory, manifest | {"tokenizer": tokenizer, "splits": splits})
    return directory


def index_entry(directory: Path, name: str, number: int, index: np.ndarray) -> dict:
    """The entry in the list `name` of an index, which this writes."""
    return {"rows": len(index), "files": {"rows": write_array(directory / array_file(name, number, "rows"), index)}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared") / "nsp", lengths=(L, 64))


@pytest.fixture(scope="module")
def static_directory(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared") / "google", recipe="google")


def open_batches(directory: Path, batch_size: int = 16, length: int = L, **options) -> Batches:
    return Batches(directory, batch_size=batch_size, max_seq_length=length, **options)


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def joined(parts: list[dict]) -> dict:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def unmasked(batch: dict) -> list[tuple[int, ...]]:
    """Each row's tokens before masking, padding cut off."""
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, columns]] = batch["mlm_labels"][rows, columns]
    return [tuple(row[:n].tolist()) for row, n in zip(ids, batch["attention_mask"].sum(axis=1), strict=True)]


def stream(batches: Batches, steps: int) -> list[tuple]:
    """(tokens, types, label) of every row of the first `steps` batches."""
    found = []
    for step in range(steps):
        batch = batches.batch(step)
        labels = batch.get("next_sentence_label", np.zeros(batches.batch_size, np.int32))
        types = [
            tuple(t[t_mask > 0]) for t, t_mask in zip(batch["token_type_ids"], batch["attention_mask"], strict=True)
        ]
        found += list(zip(unmasked(batch), types, labels.tolist(), strict=True))
    return found


def written_out(directory: Path, split: str = "train", length: int = L) -> list[tuple]:
    """What `stream` must return in the order of the index, by the definition of the examples."""
    home = directory / split
    shards = [open_shard(path) for path in sorted(home.glob("shard-*"))]
    index = np.concatenate([np.load(p) for p in sorted(home.glob(f"examples-{length}/?????.npy"))])
    rows = []
    for row in index:
        ids, types = tokens_of(row, shards, cls_token_id=CLS, sep_token_id=SEP)
        rows.append((tuple(ids.tolist()), tuple(types), int(row["label"])))
    return rows


@pytest.mark.parametrize(
    ("objective", "rows"),
    [(o, "doc-sentences") for o in ("nsp", "sop", "none")]
    + [("none", rows) for rows in ("full-sentences", "blocks", "sentences", "twice")],
)
def test_rows_are_the_examples_of_the_index(tmp_path, objective, rows):
    path = prepare(tmp_path / "data", objective=objective, rows=rows)
    batches = open_batches(path, 7, shuffle=False, pad_last=False)
    expected = written_out(path)
    assert len(batches) == len(expected)
    steps = len(expected) // 7 + 1
    assert stream(batches, steps) == (expected + expected)[: steps * 7]
    batch = batches.batch(0)
    kinds = {"input_ids": L, "token_type_ids": L, "attention_mask": L, "mlm_positions": 5, "mlm_labels": 5}
    for name, width in kinds.items():
        assert (batch[name].shape, batch[name].dtype) == ((7, width), np.int32)
    assert (batch["mlm_weights"].shape, batch["mlm_weights"].dtype) == ((7, 5), np.float32)
    if objective == "none":
        assert "next_sentence_label" not in batch
        assert batch["token_type_ids"].any() == (rows == "twice")
    else:
        assert (batch["next_sentence_label"].shape, batch["next_sentence_label"].dtype) == ((7,), np.int32)
    assert (batch["attention_mask"] == (np.arange(L) < batch["attention_mask"].sum(axis=1)[:, None])).all()
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()
    assert not batch["token_type_ids"][batch["attention_mask"] == 0].any()


@pytest.mark.parametrize("masking", [{}, {"whole_word": True}, {"strategy": "bernoulli"}], ids=str)
def test_no_mask_falls_on_a_separator_between_documents(tmp_path, masking):
    path = prepare(tmp_path / "data", objective="none", rows="full-sentences")
    batches = open_batches(path, 64, masking=MaskingConfig(probability=0.5, max_predictions=30, **masking))
    separators = 0
    for step in range(5):
        batch = batches.batch(step)
        assert not np.isin(batch["mlm_labels"][batch["mlm_weights"] > 0], (CLS, SEP)).any()
        separators += sum(row.count(SEP) - 1 for row in unmasked(batch))
    assert separators > 20


def test_a_word_ends_with_its_document(tmp_path):
    # Every piece continues a word, as the first word of a text does for RoBERTa: a row has one word for each document.
    path = prepare(tmp_path / "data", objective="none", rows="full-sentences")
    Tokenizer.from_vocabulary([*PIECES[:5], *(f"##{i}" for i in range(95))], cased=True).save(path / "tokenizer")
    batches = open_batches(path, 64, masking=MaskingConfig(probability=0.5, max_predictions=30, whole_word=True))
    batch = batches.batch(0)
    some_words = 0
    for ids, chosen in zip(unmasked(batch), map(np.sum, batch["mlm_weights"]), strict=True):
        words = np.diff(np.flatnonzero(np.isin(ids, (CLS, SEP)))) - 1
        sums = {sum(some) for n in range(len(words) + 1) for some in itertools.combinations(words.tolist(), n)}
        assert chosen in sums
        some_words += 0 < chosen < sum(words)
    assert some_words > 10


def test_threads_that_read_the_same_shards_at_once_count_what_they_keep_once(tmp_path, monkeypatch):
    data = open_directory(prepare(tmp_path / "data", objective="none", rows="full-sentences", shards=2))
    rows = PreparedRows(data, split="train", max_seq_length=L, cls_id=CLS, sep_id=SEP, pad_id=0)
    bounds, read, together = data.bounds, [], threading.Barrier(2)

    def read_together(shards: FileList, number: int) -> np.ndarray:
        read.append(number)
        together.wait(timeout=20)
        return bounds(shards, number)

    monkeypatch.setattr(data, "bounds", read_together)
    monkeypatch.setattr(
        "bert_jax.data.pretraining.rows._BOUNDS_BYTES", sum(bounds(data.shards("train"), n).nbytes for n in range(2))
    )
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rows.read, [np.arange(len(rows))] * 2))
    rows.read(np.arange(len(rows)))
    assert sorted(read) == [0, 0, 1, 1]


@pytest.mark.parametrize("batch_size", [1, 7, 16, 64, 1000])
def test_each_epoch_has_each_example_once_whatever_the_batch_size(directory, batch_size):
    batches = open_batches(directory, batch_size)
    expected = sorted(written_out(directory))
    n = len(expected)
    assert n % 7
    assert n < 1000  # so that one batch spans several epochs
    rows = stream(batches, -(-3 * n // batch_size))
    epochs = [rows[i * n : (i + 1) * n] for i in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == expected
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]


def test_the_order_does_not_depend_on_the_batch_size(directory):
    rows = stream(open_batches(directory, 8), 12)
    assert rows == stream(open_batches(directory, 32), 3)
    small = joined([open_batches(directory, 8).batch(step) for step in range(12)])
    assert equal(small, joined([open_batches(directory, 32).batch(step) for step in range(3)]))


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_the_shares_of_all_processes_make_up_the_batch(directory, processes):
    whole = open_batches(directory)
    each = 16 // processes
    # a step in the middle, and the one that holds the end of the first epoch
    for step in (3, len(whole) // 16):
        shares = [open_batches(directory).batch(step, slice(p * each, (p + 1) * each)) for p in range(processes)]
        assert equal(joined(shares), whole.batch(step))


def test_any_rows_in_any_order_can_be_made(directory):
    batches = open_batches(directory)
    generator = np.random.default_rng(0)
    for step in (0, 5, len(batches) // 16, 10**9):
        whole = batches.batch(step)
        for rows in (
            slice(None, None, 3),
            slice(14, 2, -2),
            np.array([3]),
            np.array([15, 0, 0, 7]),
            generator.permutation(16),
            np.array([], np.int64),
        ):
            assert equal(batches.batch(step, rows), {name: array[rows] for name, array in whole.items()})
    with pytest.raises(IndexError):
        batches.batch(0, np.array([16]))
    with pytest.raises(ValueError, match="negative"):
        batches.batch(-1)


def test_a_step_does_not_depend_on_the_steps_made_before(directory):
    walked = open_batches(directory)
    steps = [walked.batch(step) for step in range(40)]
    for step in (39, 0, 17):
        assert equal(open_batches(directory).batch(step), steps[step])


def test_another_process_makes_the_same_bytes(directory):
    code = (
        "import sys, hashlib; from bert_jax.data.pretraining.batches import Batches;"
        "b = Batches(sys.argv[1], batch_size=16, max_seq_length=32, seed=5).batch(77, slice(4, 12));"
        "assert 'jax' not in sys.modules;"
        "print(hashlib.sha256(b''.join(b[k].tobytes() for k in sorted(b))).hexdigest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(directory)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    here = open_batches(directory, seed=5).batch(77, slice(4, 12))
    assert out.stdout.strip() == hashlib.sha256(b"".join(here[k].tobytes() for k in sorted(here))).hexdigest()


def test_masks_and_order_change_with_the_epoch_and_the_seed(directory):
    batches = open_batches(directory, 1, shuffle=False)
    n = len(batches)
    once, again = batches.batch(0), batches.batch(n)
    assert unmasked(once) == unmasked(again)
    masks = {tuple(batches.batch(epoch * n)["mlm_positions"][0].tolist()) for epoch in range(20)}
    assert len(masks) > 10
    assert stream(open_batches(directory, seed=1), 2) != stream(open_batches(directory, seed=2), 2)


def test_masks_depend_on_example_and_epoch_not_on_the_order(directory):
    """Shuffled and in order, example by example: the same masks."""
    n = len(open_batches(directory))
    rows = [open_batches(directory, n, shuffle=s, pad_last=False).batch(1) for s in (True, False)]
    content = [
        sorted(zip(unmasked(b), b["input_ids"].tolist(), b["mlm_positions"].tolist(), strict=True)) for b in rows
    ]
    assert content[0] == content[1]


def test_each_length_of_a_directory_has_its_own_examples(directory):
    batches = open_batches(directory, 16, 64, shuffle=False, pad_last=False)
    assert batches.max_predictions == 10
    assert stream(batches, 2) == written_out(directory, length=64)[:32]


def test_evaluation_counts_every_held_out_example_once(directory):
    batches = open_batches(directory, 16, split="held-out", shuffle=False)
    expected = written_out(directory, "held-out")
    assert len(expected) % 16
    assert batches.steps_per_epoch == -(-len(expected) // 16)
    assert stream(batches, batches.steps_per_epoch)[: len(expected)] == expected
    last = batches.batch(batches.steps_per_epoch - 1)
    real = len(expected) % 16
    for name, fill in {"next_sentence_label": -100, "mlm_weights": 0, "attention_mask": 0, "input_ids": 0}.items():
        assert last[name].shape[0] == 16
        assert (last[name][real:] == fill).all()
    assert last["mlm_weights"][:real].any(axis=1).all()
    assert equal(batches.batch(batches.steps_per_epoch - 1, slice(12, 16)), {k: v[12:] for k, v in last.items()})
    nothing = batches.batch(batches.steps_per_epoch - 1, np.array([15]))
    assert nothing["next_sentence_label"].tolist() == [-100]
    # the epoch after begins with a batch of its own
    assert unmasked(batches.batch(batches.steps_per_epoch)) == [row[0] for row in expected[:16]]


def test_static_masks_are_the_ones_prepared(static_directory):
    home = static_directory / "train"
    shards = [open_shard(path) for path in sorted(home.glob("shard-*"))]
    made = google_instances(shards, PIECES, seed=1, dupe_factor=2, max_seq_length=L, max_predictions=5)
    batches = open_batches(static_directory, 8, shuffle=False, pad_last=False)
    assert len(batches) == len(made.rows)
    for step in range(2 * len(made.rows) // 8):
        batch = batches.batch(step)
        for row in range(8):
            instance = instance_of(made, (8 * step + row) % len(made.rows), shards, cls_token_id=CLS, sep_token_id=SEP)
            length, count = len(instance.input_ids), len(instance.mlm_positions)
            assert batch["input_ids"][row, :length].tolist() == list(instance.input_ids)
            assert batch["token_type_ids"][row, :length].tolist() == list(instance.token_type_ids)
            assert batch["mlm_positions"][row].tolist() == [*instance.mlm_positions, *[0] * (5 - count)]
            assert batch["mlm_labels"][row].tolist() == [*instance.mlm_labels, *[0] * (5 - count)]
            assert batch["mlm_weights"][row].sum() == count
            assert batch["attention_mask"][row].sum() == length


def test_static_masks_refuse_other_settings(static_directory):
    same = MaskingConfig(probability=0.15, max_predictions=5)
    assert equal(open_batches(static_directory, masking=same).batch(0), open_batches(static_directory).batch(0))
    assert open_batches(static_directory, masking=MaskingConfig()).max_predictions == 5
    for other in (MaskingConfig(probability=0.2), MaskingConfig(whole_word=True), MaskingConfig("roberta")):
        with pytest.raises(UserError, match="static"):
            open_batches(static_directory, masking=other)
    with pytest.raises(UserError, match="static"):
        open_batches(static_directory, max_predictions=7)


def test_mask_settings_are_the_data_s_until_the_caller_says_otherwise(tmp_path):
    path = prepare(tmp_path / "data", whole_word=True, shards=1)
    assert open_batches(path).masking == MaskingConfig(max_predictions=5, whole_word=True)
    assert open_batches(path, max_predictions=3).masking == MaskingConfig(max_predictions=3, whole_word=True)
    assert open_batches(path, masking=MaskingConfig("roberta")).masking == MaskingConfig("roberta", max_predictions=5)
    # more is masked than the data was prepared for: the width follows
    assert open_batches(path, masking=MaskingConfig(probability=0.4)).max_predictions == 13
    assert open_batches(path, masking=MaskingConfig("bernoulli")).max_predictions > 10
    assert open_batches(path, masking=MaskingConfig("bernoulli")).batch(0)["mlm_labels"].shape[1] > 10


def test_a_width_that_drops_choices_of_bernoulli_warns(directory, caplog):
    open_batches(directory, masking=MaskingConfig("bernoulli", max_predictions=5))
    assert "max_predictions=5 drops" in caplog.text


def test_a_directory_of_one_example_works(tmp_path):
    path = prepare(tmp_path / "data", shards=1, documents=2, lengths=(L,))
    first = np.load(path / "train/examples-32/00000.npy")[:1]
    edit_list(path, "examples-32", lambda entries: [index_entry(path, "train/examples-32", 0, first)])
    batch = open_batches(path, 4).batch(5)
    assert len(set(unmasked(batch))) == 1
    assert len({tuple(row) for row in batch["mlm_positions"].tolist()}) > 1


def edit_list(path: Path, name: str, change) -> None:
    """Writes a list of the train split again, as `change` makes it of the old one."""
    entries = [json.loads(line) for line in (path / f"train/{name}.jsonl").read_text().splitlines()]
    facts = write_list(path, f"train/{name}", change(entries))
    manifest = json.loads((path / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    train.update(shards=facts) if name == "shards" else train["examples"].update({name.partition("-")[2]: facts})
    write_manifest(path, manifest)


def test_a_length_that_was_not_prepared_names_those_that_were(directory):
    with pytest.raises(UserError, match=r"no examples of length 48; it has 32, 64.*--max-seq-length 32,48,64"):
        open_batches(directory, length=48)


def test_an_unknown_split_names_those_there_are(directory):
    with pytest.raises(UserError, match="no split 'dev'; it has train, held-out"):
        open_batches(directory, split="dev")


def test_sizes_that_make_no_sense_are_refused(directory):
    with pytest.raises(UserError, match="batch_size"):
        open_batches(directory, 0)
    with pytest.raises(UserError, match="max_predictions"):
        open_batches(directory, max_predictions=33)
    with pytest.raises(UserError, match="max_predictions"):
        open_batches(directory, max_predictions=0)


def test_random_rows_have_no_more_predictions_than_tokens():
    sizes = {"batch_size": 2, "max_seq_length": 8, "vocab_size": 20}
    assert RandomBatches(max_predictions=8, **sizes).batch(0)["mlm_positions"].tolist() == [[*range(8)]] * 2
    with pytest.raises(UserError, match="max_predictions is 9, but a row has 8 tokens at most"):
        RandomBatches(max_predictions=9, **sizes)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


DAMAGE = {
    "manifest gone": (lambda p: (p / "manifest.json").unlink(), "did not finish"),
    "index gone": (lambda p: (p / "train/examples-32/00001.npy").unlink(), "00001.npy: missing"),
    "tokens gone": (lambda p: (p / "train/shard-00001/tokens.npy").unlink(), "tokens.npy: missing"),
    "tokenizer gone": (lambda p: [f.unlink() for f in (p / "tokenizer").iterdir()], "tokenizer"),
    "tokenizer replaced": (
        lambda p: Tokenizer.from_vocabulary(PIECES[:50], cased=True).save(p / "tokenizer"),
        "a tokenizer of 50 entries.*one of 100",
    ),
    "index cut": (lambda p: truncate(p / "train/examples-32/00001.npy"), "00001.npy"),
    "tokens cut": (lambda p: truncate(p / "train/shard-00001/tokens.npy"), "tokens.npy"),
    "index shorter": (
        lambda p: write_array(p / "train/examples-32/00001.npy", np.load(p / "train/examples-32/00001.npy")[:-1]),
        "the manifest says",
    ),
    "index of something else": (
        lambda p: write_array(
            p / "train/examples-32/00001.npy", np.zeros(len(np.load(p / "train/examples-32/00001.npy")))
        ),
        "not an index",
    ),
    "no examples": (
        lambda p: edit_list(p, "examples-32", lambda entries: []),
        "no examples",
    ),
    "another shard's tokens": (
        lambda p: np.save(p / "train/shard-00001/tokens.npy", np.full(3, 6, "<u2")),
        r"shard-00001/tokens.npy: has 3 entries, the manifest says \d+",
    ),
    "tokens of another width": (
        lambda p: np.save(p / "train/shard-00001/tokens.npy", np.full(3, 6, "<u4")),
        r"shard-00001/tokens.npy: not an array of uint16",
    ),
    "other shards": (
        lambda p: write_shard_again(p / "train/shard-00001", [[np.full(3, 6)]]),
        "points outside the token shards",
    ),
    "fewer shards": (
        lambda p: edit_list(p, "shards", lambda entries: entries[:-1]),
        "points outside the token shards",
    ),
    "other tokenizer": (
        lambda p: write_shard_again(p / "train/shard-00001", [[np.full(10**4, 99 + 1)]]),
        "token id 100 in the shards.*100 entries",
    ),
    "longer examples": (
        lambda p: longer_examples(p),
        r"has an example of \d+ tokens",
    ),
}


def write_shard_again(path: Path, documents: list) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    entry = save_shard(path, pack_documents(documents, np.dtype("<u2")))
    edit_list(path.parents[1], "shards", lambda entries: [entries[0], entry, *entries[2:]])


def longer_examples(path: Path) -> None:
    longer = [np.load(file) for file in sorted(path.glob("train/examples-64/*.npy"))]
    edit_list(
        path, "examples-32", lambda _: [index_entry(path, "train/examples-32", *one) for one in enumerate(longer)]
    )


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_clear_line(tmp_path, name):
    path = prepare(tmp_path / "data", lengths=(L, 64), shards=2)
    damage, said = DAMAGE[name]
    damage(path)
    with pytest.raises(UserError, match=said) as caught:
        stream(open_batches(path, 64), 10)
    assert "\n" not in str(caught.value)


def test_many_steps_from_many_shards_stay_right(tmp_path):
    path = prepare(tmp_path / "data", shards=9, documents=2)
    batches = open_batches(path, 5, shuffle=False, pad_last=False)
    expected = written_out(path)
    assert stream(batches, len(expected) // 5) == expected[: len(expected) // 5 * 5]
    assert sorted(stream(open_batches(path, len(expected)), 1)) == sorted(expected)


@pytest.mark.slow
def test_more_shards_than_files_may_be_open_by_default(tmp_path):
    path = prepare(tmp_path / "data", shards=60, documents=2)
    code = (
        "import resource, sys; from bert_jax.data.pretraining.batches import Batches, RandomBatches;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]));"
        "b = Batches(sys.argv[1], batch_size=64, max_seq_length=32); b.batch(0);"
        "Batches(sys.argv[1], split='held-out', batch_size=64, max_seq_length=32).batch(0)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_code_of_the_guide_runs(directory, tmp_path, monkeypatch):
    blocks = blocks_of("docs/batches.md", "python")
    assert blocks
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(directory.parent)
    for name in ("wiki", "books"):
        (directory.parent / name).symlink_to(prepare(tmp_path / name, lengths=(128,)))
    run_blocks(blocks)
