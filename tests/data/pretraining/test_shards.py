"""Shards read back as they were written, complete or not at all, and `verify` finds every changed byte."""

import json

import numpy as np
import pytest

from bert_jax.data.pretraining.directory import verify
from bert_jax.data.pretraining.manifest import VERSION, read_manifest, write_list, write_manifest
from bert_jax.data.pretraining.shards import (
    Shard,
    describe_shard,
    open_shard,
    save_shard,
    token_dtype,
    write_array,
)
from bert_jax.errors import UserError
from tests.data.pretraining.packed import pack_documents

DOCUMENTS = [[[5, 6, 7], [8]], [[9, 10]], [[11], [12, 13], [14]]]


def arrays(documents: list[list[list[int]]]) -> list[list[np.ndarray]]:
    return [[np.array(sentence, np.int32) for sentence in document] for document in documents]


def back(shard: Shard) -> list[list[list[int]]]:
    return [[s.tolist() for s in shard.document(i)] for i in range(len(shard.documents) - 1)]


@pytest.fixture
def prepared(tmp_path):
    """A complete, small prepared directory."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "train" / "examples-128").mkdir(parents=True)
    vocabulary = write_array(tmp_path / "tokenizer" / "vocab.txt", np.arange(3))
    index = write_array(tmp_path / "train" / "examples-128" / "00000.npy", np.arange(5))
    masks = write_array(tmp_path / "train" / "examples-128" / "00000.mask_count.npy", np.arange(4))
    shard = save_shard(tmp_path / "train" / "shard-00000", pack_documents(arrays(DOCUMENTS), token_dtype(30_000)))
    example = {"rows": 5, "files": {"rows": index, "mask_count": masks}}
    lists = {"shards": write_list(tmp_path, "train/shards", [shard])}
    lists["examples"] = {"128": write_list(tmp_path, "train/examples-128", [example])}
    manifest = {
        "version": VERSION,
        "objective": "nsp",
        "settings": {"max_predictions": {"128": 20}, "masked_lm_prob": 0.15, "whole_word_masking": False},
        "tokenizer": {"vocab_size": 30_000, "files": {"vocab.txt": vocabulary}},
        "unigram_counts": write_array(tmp_path / "unigram_counts.npy", np.arange(9)),
        "splits": {"train": lists},
    }
    write_manifest(tmp_path, manifest)
    return tmp_path


def test_a_shard_comes_back_as_it_was_written(tmp_path):
    entry = save_shard(tmp_path / "shard-00003", pack_documents(arrays(DOCUMENTS), token_dtype(30_000)))
    shard = open_shard(tmp_path / "shard-00003")
    assert back(shard) == DOCUMENTS
    assert shard.tokens.dtype == np.uint16
    assert not shard.tokens.flags.owndata and not shard.tokens.flags.writeable  # a memory map
    assert (entry["documents"], entry["sentences"], entry["tokens"]) == (3, 6, 10)
    assert entry == describe_shard(tmp_path / "shard-00003")


def test_ids_past_65535_get_wider_tokens(tmp_path):
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32
    save_shard(tmp_path / "s", pack_documents(arrays([[[65_536, 1]]]), token_dtype(65_537)))
    assert back(open_shard(tmp_path / "s")) == [[[65_536, 1]]]


def test_empty_sentences_and_documents_are_left_out():
    shard = pack_documents(arrays([[[1], [], [2]], [[]], [], [[3]]]), token_dtype(9))
    assert back(shard) == [[[1], [2]], [[3]]]


def test_a_write_that_fails_leaves_no_trace(tmp_path):
    class Broken:
        tokens = np.arange(3)

        @property
        def sentences(self):
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        save_shard(tmp_path / "shard-00000", Broken())
    assert list(tmp_path.iterdir()) == []


def test_a_shard_with_offsets_of_another_is_refused(tmp_path):
    save_shard(tmp_path / "a", pack_documents(arrays(DOCUMENTS), token_dtype(9)))
    np.save(tmp_path / "a" / "sentences.npy", np.array([0, 3]))
    with pytest.raises(UserError, match=r"sentences\.npy: does not fit"):
        open_shard(tmp_path / "a")
    (tmp_path / "a" / "tokens.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"tokens\.npy: cannot be read"):
        open_shard(tmp_path / "a")
    (tmp_path / "a" / "tokens.npy").unlink()
    with pytest.raises(UserError, match=r"tokens\.npy: missing"):
        open_shard(tmp_path / "a")


def test_verify_finds_every_changed_file(prepared):
    assert verify(prepared) == []
    files = [path for path in prepared.rglob("*.*") if path.is_file() and path.name != "manifest.json"]
    assert len(files) == 11
    for path in files:
        good = path.read_bytes()
        flipped = bytearray(good)
        flipped[-1] ^= 1
        for bad, problem in [
            (bytes(flipped), "sha256 differs"),
            (good[:-1], "the manifest says"),
            (None, "No such file"),
        ]:
            path.unlink()
            if bad is not None:
                path.write_bytes(bad)
            (found,) = verify(prepared)
            assert str(path) in found
            assert problem in found
            path.write_bytes(good)
    assert verify(prepared) == []


def test_verify_finds_a_changed_manifest(prepared):
    path = prepared / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["splits"]["train"]["shards"]["total"] = 11
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="checksum differs"):
        verify(prepared)


def test_a_missing_or_foreign_manifest_is_explained(prepared, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        read_manifest(other)
    with pytest.raises(UserError, match="no such folder"):
        read_manifest(other / "not-there")
    with pytest.raises(UserError, match=r"manifest\.json: is a file, not a folder"):
        read_manifest(prepared / "manifest.json")
    manifest = prepared / "manifest.json"
    manifest.write_text('{"version": 99}')
    with pytest.raises(UserError, match=f"version 99 where {VERSION} was expected; remove the folder and prepare"):
        read_manifest(prepared)
    manifest.write_text('{"version":')
    with pytest.raises(UserError, match="not JSON"):
        read_manifest(prepared)
    manifest.unlink()
    with pytest.raises(UserError, match="did not finish"):
        read_manifest(prepared)
