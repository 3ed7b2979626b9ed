"""Data in a bucket: the same batches, from verified blocks that are fetched when rows need them, in a bounded cache."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from bert_jax.data.pretraining import lookahead, shards
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.bucket import BucketDirectory, Cache
from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.manifest import files_of, manifest_checksum, read_manifest
from bert_jax.data.pretraining.shards import BlockSums
from bert_jax.errors import UserError
from tests.root import ROOT
from train.prepare import main as prepare

BLOCK = 4096
KINDS = {
    "nsp": "--dupe-factor 60",
    "full-sentences": "--objective none --rows full-sentences",
    "google": "--recipe google --dupe-factor 2",
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Blocks of 4 KiB, so that small files have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK_BYTES", BLOCK)
        yield


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    words = ["a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "mat", "tree", "and", "then", "it", "was"]
    texts = ["\n".join(" ".join(generator.choice(words, 9)) + "." for _ in range(8)) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    for kind, options in KINDS.items():
        rest = f"--vocab-size 60 --max-seq-length 32 --workers 1 --shard-bytes 25000 {options}"
        assert prepare([str(folder / "corpus.txt"), "--output", str(folder / kind), *rest.split()]) == 0
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BERT_JAX_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def upload(request):
    """Copies a folder to a bucket of its own, in memory; returns its address."""
    storage = MemoryFileSystem()

    def copy(folder: Path) -> str:
        name = f"/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}-{folder.name}"
        storage.put(str(folder), name, recursive=True)
        return f"memory:/{name}"

    return copy


def read(source, steps: int = 12, rows=None) -> str:
    """A digest of the first batches."""
    batches = Batches(source, batch_size=16, max_seq_length=32)
    made = [batches.batch(step, rows) for step in range(steps)]
    return hashlib.sha256(b"".join(array.tobytes() for batch in made for array in batch.values())).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_gives_the_batches_of_the_disk(kinds, upload, cache, kind):
    address = upload(kinds[kind])
    files = PreparedDirectory(kinds[kind]).shards("train")[0]["files"]
    assert BlockSums(files["tokens"], "tokens.npy").count > 1
    assert read(address, 100) == read(kinds[kind], 100)
    half = np.arange(8, 16)
    assert read(address, 5, half) == read(kinds[kind], 5, half)
    assert read(address) == read(kinds[kind])


@pytest.mark.slow
def test_before_the_first_step_comes_only_what_its_rows_need(kinds, upload, cache):
    data = BucketDirectory(upload(kinds["nsp"]))
    small = data.fetched_bytes, data.requests
    files = [kinds["nsp"] / name for name in ("manifest.json", "unigram_counts.npy")]
    files += (kinds["nsp"] / "tokenizer").iterdir()
    assert small == (sum(file.stat().st_size for file in files), len(files))
    batches = Batches(data, batch_size=4, max_seq_length=32)
    assert (data.fetched_bytes, data.requests) == small
    rows = batches._rows
    rows.read(batches._examples(np.zeros(4, int), np.arange(4)))
    lists = [
        e["bytes"] for name, e in files_of(read_manifest(kinds["nsp"])) if name.startswith(("train/", "held-out/"))
    ]
    # a block of the index, and of the tokens of A and of B, each of which may lie across two; and the lists of them
    assert data.requests - small[1] <= 4 * 6 + sum(-(-size // BLOCK) for size in lists)
    assert data.fetched_bytes - small[0] <= BLOCK * (data.requests - small[1])


def test_the_coming_steps_are_read_ahead(kinds, upload, cache, monkeypatch):
    batches = Batches(upload(kinds["nsp"]), batch_size=4, max_seq_length=32)
    local = Batches(kinds["nsp"], batch_size=4, max_seq_length=32)
    rows = np.array([1, 2])
    batches.batch(0, rows)
    for waiting in batches._ahead._waiting.values():
        [future.result() for future in waiting]

    def gone(*args):
        raise ConnectionError("the network is down")

    monkeypatch.setattr(BucketDirectory, "fetch", gone)
    for step in range(1, 11):
        assert all(np.array_equal(a, local.batch(step, rows)[name]) for name, a in batches.batch(step, rows).items())
    with pytest.raises(ConnectionError):
        [batches.batch(step, rows) for step in range(11, 30)]


def edit(address: str, change) -> None:
    """Changes the manifest in a bucket, with the checksum of the new content."""
    with fsspec.open(f"{address}/manifest.json", "rb") as file:
        manifest = json.loads(file.read())
    change(manifest)
    manifest["checksum"] = manifest_checksum(manifest)
    with fsspec.open(f"{address}/manifest.json", "wb") as file:
        file.write(json.dumps(manifest).encode())


def spoil(address: str, name: str, at: int) -> None:
    path = f"{address}/{name}"
    with fsspec.open(path, "rb") as file:
        content = bytearray(file.read())
    content[at] ^= 1
    with fsspec.open(path, "wb") as file:
        file.write(bytes(content))


@pytest.mark.parametrize("name", ["../../../stolen", "/tmp/stolen", "a/../../../stolen", ""])
def test_a_manifest_cannot_name_files_outside_the_cache(kinds, upload, tmp_path, cache, name):
    address = upload(kinds["nsp"])
    sha256 = hashlib.sha256(b"bad").hexdigest()
    edit(
        address,
        lambda m: m["tokenizer"]["files"].update({f"../{name}" if name else "..": {"sha256": sha256, "bytes": 3}}),
    )
    with pytest.raises(UserError, match=r"manifest\.json: names the file '.*', which is not in the directory"):
        BucketDirectory(address)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_what_is_damaged_in_the_bucket_is_one_line(kinds, upload, cache):
    address = upload(kinds["nsp"])
    spoil(address, "train/shard-00000/tokens.npy", BLOCK + 5)
    line = f"{address}/train/shard-00000/tokens.npy: bytes {BLOCK} to {2 * BLOCK} are not what was written"
    with pytest.raises(UserError) as caught:
        read(address, 100)
    assert str(caught.value).startswith(line)
    address = upload(kinds["google"])
    MemoryFileSystem().rm(f"{address.removeprefix('memory:/')}/train/examples-32/00000.npy")
    with pytest.raises(UserError, match=r"examples-32/00000\.npy: missing"):
        read(address)
    spoil(address, "manifest.json", -30)
    with pytest.raises(UserError, match=r"manifest\.json: (its content is not what was written|not JSON)"):
        read(address)
    with pytest.raises(UserError, match=r"has no manifest\.json, so it is not prepared data"):
        read(f"{address}-elsewhere")


@pytest.mark.slow
def test_a_damaged_cache_is_mended(kinds, upload, cache):
    address = upload(kinds["nsp"])
    expected = read(address, 60)
    damaged = 0
    for path in cache.glob("*/arrays/train/**/*.*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
        damaged += 1
    assert damaged > 4
    assert read(address, 60) == expected == read(kinds["nsp"], 60)
    (next(cache.glob("*/tokenizer")) / "vocab.txt").write_text("[PAD]\n")
    assert read(address, 60) == expected


def bytes_in(cache: Cache) -> int:
    """Bytes of arrays on the disk."""
    return sum(size for _, size, _ in cache._files())


@pytest.mark.slow
def test_the_cache_stays_within_its_bound_and_the_batches_right(kinds, upload, tmp_path, monkeypatch):
    address = upload(kinds["nsp"])
    whole = BucketDirectory(address, Cache(tmp_path / "whole"))
    expected = read(whole, 60)
    most = bytes_in(whole.cache) // 3
    monkeypatch.setattr(lookahead, "_THREADS", 4)  # each may be writing a block when the cache makes room
    cache = Cache(tmp_path / "cache", most)
    data = BucketDirectory(address, cache)
    batches = Batches(data, batch_size=16, max_seq_length=32)
    digest = hashlib.sha256()
    for step in range(60):
        for array in batches.batch(step).values():
            digest.update(array.tobytes())
        assert bytes_in(cache) <= most
    assert digest.hexdigest() == expected
    assert data.fetched_bytes > whole.fetched_bytes


@pytest.mark.slow
def test_processes_share_the_cache(kinds, tmp_path):
    code = (
        "import sys; from bert_jax.data.pretraining import bucket, shards; shards.BLOCK_BYTES = 4096;"
        "from tests.data.pretraining.test_bucket import read; data = bucket.BucketDirectory(sys.argv[1]);"
        "print(read(data, 60), data.fetched_bytes)"
    )
    environment = {"PYTHONPATH": str(ROOT), "BERT_JAX_DATA_CACHE": str(tmp_path / "cache"), "PATH": ""}
    command = [sys.executable, "-c", code, f"file://{kinds['nsp']}"]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate()[0].split() for process in running]
    assert [digest for digest, _ in found] == 2 * [read(kinds["nsp"], 60)]
    start = BucketDirectory(f"file://{kinds['nsp']}", Cache(tmp_path / "alone")).fetched_bytes
    arrays = sum(entry["bytes"] for name, entry in PreparedDirectory(kinds["nsp"]).files() if "train/" in name)
    # Alone, each would fetch nearly all arrays: how much exactly depends on how far it reads ahead.
    assert sum(int(count) for _, count in found) <= arrays + 2 * start < 1.5 * arrays


class MemoryAsS3(MemoryFileSystem):
    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("s3:/", "memory:/"))


def test_an_address_of_s3_needs_its_own_package(kinds, upload, cache, monkeypatch):
    with pytest.raises(UserError, match=r"s3://data: .*pip install 'bert-jax\[s3\]'"):
        BucketDirectory("s3://data")
    monkeypatch.setattr("bert_jax.files.find_spec", lambda name: name)
    monkeypatch.setitem(_registry, "s3", MemoryAsS3)
    assert read(upload(kinds["nsp"]).replace("memory:/", "s3:/")) == read(kinds["nsp"])


def test_a_bucket_that_cannot_be_reached_is_one_line(cache, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    with pytest.raises(UserError, match=r"memory://data: cannot be reached \(Name or service not known\)"):
        BucketDirectory("memory://data")


def test_without_a_home_directory_the_folder_has_to_be_named(monkeypatch):
    monkeypatch.delenv("BERT_JAX_DATA_CACHE", raising=False)

    def unknown():  # as of a user number without an entry in passwd, where HOME is unset
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(UserError, match=r"no home directory .*set BERT_JAX_DATA_CACHE to a folder"):
        Cache.of_environment()


def test_a_bound_that_is_no_number_is_refused(cache, monkeypatch):
    for wrong in ("much", "-1", "0", "nan"):
        monkeypatch.setenv("BERT_JAX_DATA_CACHE_GB", wrong)
        with pytest.raises(UserError, match="BERT_JAX_DATA_CACHE_GB: found"):
            Cache.of_environment()
    monkeypatch.setenv("BERT_JAX_DATA_CACHE_GB", "1.5")
    assert Cache.of_environment().most == 1_500_000_000
