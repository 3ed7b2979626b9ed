"""Damaged prepared data is found when it is first read: no batch is made of bytes that were not written."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining import arrays
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.directory import PreparedDirectory, open_directory
from bert_jax.data.pretraining.manifest import manifest_checksum, read_manifest
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.errors import UserError
from train.prepare import main

KINDS = {
    "nsp": ["--objective", "nsp"],
    "blocks": ["--objective", "none", "--rows", "blocks"],
    "google": ["--recipe", "google"],
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> dict[str, Path]:
    """Kind -> data with blocks of 4 KiB, so that small files have several."""
    from bert_jax.data.pretraining import shards

    folder = tmp_path_factory.mktemp("verified")
    generator = np.random.default_rng(0)
    words = np.array(
        [
            "the",
            "a",
            "cat",
            "dog",
            "bird",
            "sat",
            "ran",
            "flew",
            "on",
            "under",
            "over",
            "mat",
            "tree",
            "house",
            "river",
            "and",
            "then",
            "it",
            "was",
        ]
    )
    text = folder / "text.txt"
    text.write_text(
        "\n\n".join("\n".join(" ".join(generator.choice(words, 9)) + "." for _ in range(8)) for _ in range(160))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK_BYTES", 4096)
        for kind, options in KINDS.items():
            words_of = [str(text), "--output", str(folder / kind), "--vocab-size", "90", "--max-seq-length", "32"]
            assert main([*words_of, *options, "--workers", "1"]) == 0
        yield {kind: folder / kind for kind in KINDS}


def read(directory: Path, steps: int = 30) -> list[bytes]:
    """The bytes of more than an epoch, of one of packed rows, and of the small files that training uses."""
    data = open_directory(directory)
    batches, packed = (kind(data, batch_size=32, max_seq_length=32) for kind in (Batches, PackedBatches))
    made = [batches.batch(step) for step in range(max(steps, batches.steps_per_epoch))]
    made += [packed.batch(step) for step in range(packed.steps_per_epoch)]
    counts = np.load(data.path / "unigram_counts.npy").tobytes()
    return [counts, *(array.tobytes() for batch in made for array in batch.values())]


@pytest.fixture
def copy(prepared: dict[str, Path], tmp_path: Path):
    """Makes a copy of the data of a kind, with links to the files; `change` replaces a file by a changed one."""

    def make(kind: str) -> Path:
        place = tmp_path / f"{kind}-{random.randrange(1 << 60)}"
        for folder, _, names in os.walk(prepared[kind]):
            target = place / Path(folder).relative_to(prepared[kind])
            target.mkdir(parents=True)
            for name in names:
                os.link(Path(folder) / name, target / name)
        return place

    return make


def change(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_of_what_is_read_is_found_before_a_batch_is_made_of_it(
    prepared, copy, kind: str, mapped: bool, monkeypatch
):
    if not mapped:
        monkeypatch.setattr(arrays, "_MOST_MAPS", 0)
        arrays.most_maps.cache_clear()
    good, rng, found = read(prepared[kind]), random.Random(0), []
    files = [name for name, entry in PreparedDirectory(prepared[kind]).files() if name.startswith("train")]
    assert {"train/shards.jsonl", "train/shards.npy", "train/examples-32.jsonl", "train/examples-32.npy"} < {*files}
    files += ["unigram_counts.npy", "tokenizer/vocab.txt", "manifest.json"]
    for name in files:
        content = bytearray((prepared[kind] / name).read_bytes())
        place = rng.randrange(len(content))
        content[place] ^= 1 << rng.randrange(8)
        damaged = copy(kind)
        change(damaged / name, bytes(content))
        try:
            assert read(damaged) == good, f"{name}: byte {place} was trained on"
        except UserError as error:
            found.append((Path(name).name, str(error)))
    arrays.most_maps.cache_clear()
    unread = 0 if kind == "blocks" else 2  # the bounds of sentences and documents are read for blocks alone
    assert len(found) >= len(files) - unread
    assert all(name in line and "\n" not in line for name, line in found)


@pytest.mark.slow
def test_a_damaged_block_is_named_with_what_to_do(prepared, copy):
    damaged = copy("nsp")
    path = damaged / "train/shard-00000/tokens.npy"
    content = bytearray(path.read_bytes())
    content[4096 + 7] ^= 1
    change(path, bytes(content))
    with pytest.raises(UserError) as caught:
        read(damaged)
    assert str(caught.value) == (
        f"{path}: bytes 4096 to 8192 are not what was written (their sum differs); copy the prepared data again, or "
        "remove it and prepare it again"
    )


def test_a_row_of_another_block_is_not_stopped_by_damage(prepared, copy):
    data = copy("nsp")
    path = data / "train/examples-32/00000.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    change(path, bytes(content))
    rows = Batches(data, batch_size=8, max_seq_length=32, shuffle=False)._rows
    rows.gather(np.arange(8))
    with pytest.raises(UserError, match="not what was written"):
        rows.gather(np.array([len(rows) - 1]))


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_every_block_of_a_row_is_verified(tmp_path: Path, monkeypatch, mapped: bool):
    """A row may lie across several blocks, and damage may be in the last of them; the others are verified once."""
    from bert_jax.data.pretraining import shards, verified

    monkeypatch.setattr(shards, "BLOCK_BYTES", 512)
    monkeypatch.setattr(verified, "most_maps", lambda: 1 << 30 if mapped else 0)
    path, array = tmp_path / "a.npy", np.arange(4000, dtype="<i4").reshape(10, 400)
    entry = shards.write_array(path, array)
    good = verified.VerifiedSlices(arrays.open_array(path, array.shape, array.dtype), entry)
    done: list = []
    good.when_verified = done.append
    np.testing.assert_array_equal(good[2:3], array[2:3])
    np.testing.assert_array_equal(good.take(np.array([9, 0, 9])), array[[9, 0, 9]])
    assert not done
    np.testing.assert_array_equal(good[0:10], array)
    np.testing.assert_array_equal(done[0][3:5], array[3:5])
    for at in (128 + 3 * 1600, 128 + 4 * 1600 - 1):  # the first and the last byte of row 3
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        (tmp_path / "b.npy").write_bytes(content)
        found = verified.VerifiedSlices(arrays.open_array(tmp_path / "b.npy", array.shape, array.dtype), entry)
        np.testing.assert_array_equal(found[5:6], array[5:6])
        with pytest.raises(UserError, match="not what was written"):
            found[3:4]
        with pytest.raises(UserError, match="not what was written"):
            found.take(np.array([3]))


@pytest.mark.parametrize("how", ["longer", "shorter"])
def test_a_file_of_another_size_is_refused_when_it_is_opened(prepared, copy, how: str):
    data = copy("nsp")
    path = data / "train/shard-00000/tokens.npy"
    content = path.read_bytes()
    change(path, content + b"\0\0" if how == "longer" else content[:-2])
    with pytest.raises(UserError, match=r"tokens\.npy: .*(the manifest says|too few)"):
        read(data)


@pytest.mark.parametrize("name", ["train/shard-00000/tokens.npy", "train/examples-32/00000.npy", "unigram_counts.npy"])
def test_a_pipe_a_folder_or_a_device_in_place_of_an_array_is_refused_at_once(prepared, copy, name: str):
    data = copy("nsp")
    (data / name).unlink()
    for make, what in (
        (lambda: os.mkfifo(data / name), "a named pipe"),
        (lambda: (data / name).symlink_to("/dev/zero"), "a device"),
        (lambda: (data / name).mkdir(), "a folder"),
    ):
        make()
        with pytest.raises(UserError, match=what):
            read(data)
        (data / name).rmdir() if what == "a folder" else (data / name).unlink()


@pytest.mark.parametrize("name", ["../../outside", "/etc/outside", "shard-00000/../../outside", "..", "a//b", "a\\b"])
def test_a_manifest_that_names_files_elsewhere_is_refused_with_its_sum_right_too(prepared, copy, name: str):
    data = copy("nsp")
    for at in ("length", "tokenizer", "split"):
        manifest = json.loads((prepared["nsp"] / "manifest.json").read_text())
        train = manifest["splits"]["train"]
        if at == "length":
            train["examples"][f"/{name}"] = train["examples"].pop("32")
        elif at == "tokenizer":
            manifest["tokenizer"]["files"][name] = {"sha256": "0" * 64, "bytes": 1}
        else:
            manifest["splits"][name] = manifest["splits"].pop("train")
        manifest["checksum"] = manifest_checksum(manifest)
        change(data / "manifest.json", json.dumps(manifest).encode())
        with pytest.raises(UserError, match="which is not in the directory"):
            read_manifest(data)


def test_the_manifests_own_sum_is_read(prepared, copy):
    data = copy("nsp")
    text = (data / "manifest.json").read_text()
    change(data / "manifest.json", text.replace('"total": ', '"total": 1', 1).encode())
    with pytest.raises(UserError, match=r"manifest\.json: its content is not what was written \(checksum differs\)"):
        Batches(data, batch_size=8, max_seq_length=32)
