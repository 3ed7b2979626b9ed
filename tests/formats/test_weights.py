"""Which weights of a folder are read, and under which names."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.formats.safetensors import write_tensors
from bert_jax.formats.weights import has_weights, open_weights

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_safetensors_go_before_torch_s_and_one_file_before_several(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    (tmp_path / "model.safetensors.index.json").write_text("not read")
    write_tensors(tmp_path / "model.safetensors", {"a": ARRAY})
    with open_weights(tmp_path) as tensors:
        assert tensors.path.name == "model.safetensors"
        np.testing.assert_array_equal(tensors["a"], ARRAY)


def test_safetensors_of_flax_are_turned_into_torch_s_layout(tmp_path):
    flax = {
        "bert.embeddings.word_embeddings.embedding": ARRAY,
        "bert.pooler.dense.kernel": ARRAY,
        "bert.embeddings.LayerNorm.scale": ARRAY[0],
    }
    save_file(flax, tmp_path / "model.safetensors", metadata={"format": "flax"})
    with open_weights(tmp_path, "bert") as tensors:
        np.testing.assert_array_equal(tensors["bert.pooler.dense.weight"], ARRAY.T)
        np.testing.assert_array_equal(tensors["bert.embeddings.word_embeddings.weight"], ARRAY)
        np.testing.assert_array_equal(tensors["bert.embeddings.LayerNorm.weight"], ARRAY[0])
        out = np.empty((3, 2), np.float32)
        tensors.copy_to("bert.pooler.dense.weight", out)
        np.testing.assert_array_equal(out, ARRAY.T)


@pytest.mark.parametrize("name", ["tf_model.h5", "rust_model.ot", "model-00001-of-00002.safetensors"])
def test_a_folder_without_readable_weights_says_what_it_looked_for(tmp_path: Path, name):
    (tmp_path / name).write_bytes(b"x")
    assert not has_weights(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"contains no weights \(model\.safetensors, pytorch_model\.bin"
    ) as caught:
        open_weights(tmp_path)
    assert "\n" not in str(caught.value)
    assert (name in str(caught.value)) == (not name.endswith(".ot"))
