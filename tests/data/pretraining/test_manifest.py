"""The manifest stays small: what a start reads does not grow with the number of shards, and lists are read by entry."""

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.large_corpus import LENGTH, make, words
from bert_jax.data.pretraining import arrays, shards
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.bucket import BucketDirectory, Cache
from bert_jax.data.pretraining.directory import PreparedDirectory, verify
from bert_jax.data.pretraining.manifest import read_manifest, write_list, write_manifest
from bert_jax.errors import UserError
from train.pretraining.mixture import open_data
from train.pretraining.recipe import Phase, PretrainConfig

SIZES = (8, 400)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[int, Path]:
    """Number of shards -> data; each shard has 1,000 tokens and 4 examples."""
    folder = tmp_path_factory.mktemp("corpora")
    for count in SIZES:
        make(folder / str(count), shards=count, tokens=1_000)
    return {count: folder / str(count) for count in SIZES}


def started(place: str) -> dict[str, int]:
    """What a run finds out about its data before the first step."""
    phase = Phase(LENGTH, 16, 20_000)
    config = PretrainConfig(data=place, phases=(phase,))
    data = open_data(config)
    assert len(data.digest) == 64
    return {"examples": len(data.batches(config, phase)), "tokens": data.tokens, "bytes": data.size}


def test_a_start_reads_no_more_of_a_corpus_of_many_shards(corpora, monkeypatch):
    opened: list[Path] = []
    real = arrays.open_file

    def recorded(path: Path) -> Any:
        opened.append(Path(path))
        return real(path)

    monkeypatch.setattr(arrays, "open_file", recorded)
    monkeypatch.setattr("bert_jax.files.open_file", recorded)
    found = {}
    for count, place in corpora.items():
        opened.clear()
        facts = started(str(place))
        found[count] = {str(path.relative_to(place)): path.stat().st_size for path in opened}
        assert (facts["examples"], facts["tokens"]) == (4 * count, 1_000 * count)
        files = [path for path in place.rglob("*.*") if path.is_file() and path.name != "manifest.json"]
        assert facts["bytes"] == sum(path.stat().st_size for path in files)
    few, many = (found[count] for count in SIZES)
    assert few.keys() == many.keys()
    assert sum(many.values()) - sum(few.values()) < 50  # digits of the totals


def test_a_start_fetches_no_more_of_a_bucket_with_many_shards(corpora, tmp_path):
    fetched = {}
    for count, place in corpora.items():
        MemoryFileSystem().put(str(place), f"/start-{count}", recursive=True)
        data = BucketDirectory(f"memory://start-{count}", Cache(tmp_path / str(count)))
        assert len(Batches(data, batch_size=16, max_seq_length=LENGTH)) == 4 * count
        fetched[count] = data.requests, data.fetched_bytes
    (few, its_bytes), (many, their_bytes) = fetched.values()
    assert few == many
    assert their_bytes - its_bytes < 50


def test_a_row_needs_the_blocks_of_the_lists_that_have_its_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 1024)
    make(tmp_path / "data", shards=200, tokens=1_000)
    MemoryFileSystem().put(str(tmp_path / "data"), "/one-row", recursive=True)
    data = BucketDirectory("memory://one-row", Cache(tmp_path / "cache"))
    rows = Batches(data, batch_size=1, max_seq_length=LENGTH, shuffle=False)._rows
    fetched, real = Counter(), data.fetch

    def counted(name: str, *places: int) -> bytes:
        fetched[name] += 1
        return real(name, *places)

    monkeypatch.setattr(data, "fetch", counted)
    rows.gather(np.array([4 * 150 + 1]))
    for name in ("shards.jsonl", "shards.npy", f"examples-{LENGTH}.jsonl", f"examples-{LENGTH}.npy"):
        blocks = -(-(tmp_path / "data/train" / name).stat().st_size // 1024)
        assert blocks > 3
        # What is needed of an entry may lie across two blocks; of the rows before each, all is needed to find a row.
        assert fetched[f"train/{name}"] <= (blocks if name == f"examples-{LENGTH}.npy" else 2)


def test_an_entry_is_that_of_its_line(corpora):
    data = PreparedDirectory(corpora[8])
    for name, entries in (("shards", data.shards("train")), (f"examples-{LENGTH}", data.examples("train", LENGTH))):
        lines = (corpora[8] / f"train/{name}.jsonl").read_text().splitlines()
        assert [*entries] == [json.loads(line) for line in lines]
        assert len(entries) == len(lines) == 8
        with pytest.raises(IndexError):
            entries[8]
    shard = data.shards("train")[7]["files"]["tokens"]
    assert shard["sha256"] == hashlib.sha256((corpora[8] / "train/shard-00007/tokens.npy").read_bytes()).hexdigest()
    assert data.shards("train").before.tolist() == [1_000 * number for number in range(9)]


@pytest.mark.parametrize("name", ["shards.jsonl", "shards.npy", f"examples-{LENGTH}.jsonl", f"examples-{LENGTH}.npy"])
def test_damage_of_a_list_is_named_when_a_row_needs_its_block(tmp_path, monkeypatch, name):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 512)
    make(tmp_path, shards=60, tokens=1_000)
    path = tmp_path / "train" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    batches = Batches(tmp_path, batch_size=4, max_seq_length=LENGTH, shuffle=False)
    if name != f"examples-{LENGTH}.npy":  # all of its rows are needed to find the first
        assert words(batches.batch(0)).tolist() == [5, 6, 7, 8]
    with pytest.raises(UserError, match=f"{name}: bytes .* are not what was written .*; copy the prepared data again"):
        batches.batch(59)
    assert f"{name}: its content is not what was written" in verify(tmp_path)[0]
    for change, says in ((lambda: path.write_bytes(content[:-1]), name), (path.unlink, f"{name}: missing")):
        change()
        with pytest.raises(UserError, match=says):
            Batches(tmp_path, batch_size=4, max_seq_length=LENGTH).batch(0)


def test_a_list_cannot_name_files_elsewhere(corpora, tmp_path):
    shutil.copytree(corpora[8], tmp_path / "data")
    manifest, entries = read_manifest(tmp_path / "data"), [*PreparedDirectory(tmp_path / "data").shards("train")]
    entries[3]["files"]["../../../outside"] = {"sha256": "0" * 64, "bytes": 0}
    manifest["splits"]["train"]["shards"] = write_list(tmp_path / "data", "train/shards", entries)
    write_manifest(tmp_path / "data", manifest)
    with pytest.raises(
        UserError, match=r"train/shards\.jsonl: names the file '.*outside\.npy', which is not in the dir"
    ):
        verify(tmp_path / "data")
