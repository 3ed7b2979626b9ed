"""Weights in several files: each is checked, a missing one is named, and the index is compared with the files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.formats.safetensors import TensorFile, write_tensors
from bert_jax.formats.weights import Sharded

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def index(tmp_path) -> Path:
    write_tensors(tmp_path / ONE, {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"who": "first"})
    write_tensors(tmp_path / TWO, {"b": np.ones(2, np.float16), "c": np.zeros(1, np.float32)})
    return write_index(tmp_path, {"a": ONE, "b": TWO, "c": TWO})


def write_index(folder: Path, places: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": places}))
    return path


def test_the_shards_are_one_mapping(index):
    with Sharded(index, TensorFile) as tensors:
        assert sorted(tensors) == ["a", "b", "c"]
        assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert (tensors.shape("b"), tensors.dtype("b")) == ((2,), "float16")
        assert tensors.metadata["who"] == "first"
        out = np.empty((3, 2), np.float32)
        tensors.copy_to("a", out.T)
        assert out.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert tensors.verify() is True


def test_damage_to_any_shard_is_noticed(index):
    path = index.with_name(TWO)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Sharded(index, TensorFile) as tensors:
        assert tensors.verify() is False
    save_file({"b": np.ones(2, np.float16), "c": np.zeros(1, np.float32)}, path)
    with Sharded(index, TensorFile) as tensors:
        assert tensors.verify() is None  # one of them has no sum


def test_a_missing_shard_is_named(index):
    index.with_name(TWO).unlink()
    with pytest.raises(FileNotFoundError, match=rf"contains no {TWO}, which model\.safetensors\.index\.json lists"):
        Sharded(index, TensorFile)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a\\b", "", ".", ".."])
def test_files_elsewhere_are_refused(index, name):
    with pytest.raises(UserError, match="expected the name of a file beside the index"):
        Sharded(write_index(index.parent, {"a": name}), TensorFile)


def test_an_invalid_index_is_one_clear_line(index):
    for content in (b"", b"{", b"[1]", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"[" * 10**5):
        index.write_bytes(content)
        with pytest.raises(UserError, match=r"index\.json: (not JSON|expected a JSON object)") as caught:
            Sharded(index, TensorFile)
        assert "\n" not in str(caught.value)


def test_index_and_shards_must_agree(index):
    with pytest.raises(UserError, match=rf"says that 'b' is in {ONE}, which has no such tensor"):
        Sharded(write_index(index.parent, {"a": ONE, "b": ONE, "c": TWO}), TensorFile)
    write_tensors(index.with_name(TWO), {"a": np.ones(1, np.float32), "b": np.ones(1), "c": np.ones(1)})
    with pytest.raises(UserError, match=rf"'a' is in both {ONE} and {TWO}"):
        Sharded(write_index(index.parent, {"a": ONE, "b": TWO}), TensorFile)


def test_an_index_of_many_tensors_takes_one_pass_over_each_file(tmp_path):
    passes = []

    class Counted(TensorFile):
        def __iter__(self):
            passes.append(self.path.name)
            return super().__iter__()

    names = [f"tensor{number}" for number in range(100)]
    write_tensors(tmp_path / ONE, {name: np.zeros(0, np.float32) for name in names})
    with Sharded(write_index(tmp_path, dict.fromkeys(names, ONE)), Counted) as tensors:
        assert sorted(tensors) == sorted(names)
    assert passes == [ONE]
