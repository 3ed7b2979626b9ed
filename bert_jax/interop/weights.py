"""The weights in a folder, in whichever format, under the names and in the layout of Hugging Face's torch files."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bert_jax.interop.safetensors import TensorFile
from bert_jax.interop.sharded import Sharded
from bert_jax.interop.stored import Stored
from bert_jax.interop.torch_bin import TorchBin

SAFETENSORS = "model.safetensors"
TORCH_BIN = "pytorch_model.bin"

# The first that is there is read, as transformers does.
_FORMATS: dict[str, Callable[[Path], Stored]] = {
    SAFETENSORS: TensorFile,
    f"{SAFETENSORS}.index.json": partial(Sharded, open_shard=TensorFile),
    TORCH_BIN: TorchBin,
    f"{TORCH_BIN}.index.json": partial(Sharded, open_shard=TorchBin),
}
_UNREADABLE = {".bin", ".msgpack", ".safetensors", ".h5", ".ckpt", ".index", ".pt", ".pth", ".npz", ".onnx"}


def has_weights(directory: str | os.PathLike[str]) -> bool:
    """Whether the folder has weights in a format that is read."""
    return any((Path(directory) / name).is_file() for name in _FORMATS)


def open_weights(directory: str | os.PathLike[str]) -> Stored:
    """Open the weights in a folder; close them when done.

    Of several formats safetensors goes before PyTorch's.

    Args:
        directory: the folder.

    Returns:
        Hugging Face's name -> array in torch's [out, in] layout.

    Raises:
        FileNotFoundError: no weights, or a shard of them is missing.
        UserError: a broken file.
    """
    folder = Path(directory)
    for name, open_format in _FORMATS.items():
        if (folder / name).is_file():
            return open_format(folder / name)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in _UNREADABLE)
    hint = f"; {', '.join(others[:5])} cannot be read under such a name" if others else ""
    raise FileNotFoundError(f"{folder}: holds no weights ({', '.join(_FORMATS)}){hint}")
