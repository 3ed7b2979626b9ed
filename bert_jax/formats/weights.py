"""Read and write the weights in a folder, in any format, in one file or in shards, under Hugging Face's names."""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError, quoted
from bert_jax.files import read_object
from bert_jax.formats.flax import FlaxMsgpack, hf_names
from bert_jax.formats.safetensors import TensorFile, write_tensors
from bert_jax.formats.stored import Renamed, Stored
from bert_jax.formats.tensorflow.bundle import is_checkpoint
from bert_jax.formats.tensorflow.names import open_google
from bert_jax.formats.torch.bin import TorchBin

LARGEST_INDEX = 1 << 24
"""Bytes of an index at most."""
_FILE_NAME = re.compile(r"[\w.+ -]{1,200}")


class Sharded(Stored):
    """All shards as one mapping from name to array.

    Args:
        index: the `.index.json`; its "weight_map" gives for each tensor the file, beside the index, that holds it.
        open_shard: opens one of those files.

    Attributes:
        metadata: that of the shard that the index names first.

    Raises:
        FileNotFoundError: a shard is missing.
        UserError: the index is invalid, a shard is damaged, or index and shards contradict each other.
    """

    def __init__(self, index: Path, open_shard: Callable[[Path], Stored]):
        self.path = index
        places = _weight_map(index)
        self._shards: dict[str, Stored] = {}
        try:
            for name in dict.fromkeys(places.values()):
                if not (index.parent / name).is_file():
                    raise FileNotFoundError(f"{index.parent}: contains no {name}, which {index.name} lists")
                self._shards[name] = open_shard(index.parent / name)
            self._entries: dict[str, Stored] = {}
            for name, shard in self._shards.items():
                for key in shard:
                    if key in self._entries:
                        raise UserError(
                            f"{index.parent}: {quoted(key)} is in both {self._entries[key].path.name} and {name}"
                        )
                    self._entries[key] = shard
            for key, name in places.items():
                if self._entries.get(key) is not self._shards[name]:
                    raise UserError(f"{index}: says that {quoted(key)} is in {name}, which has no such tensor")
        except BaseException:
            self.close()
            raise
        self.metadata = next(iter(self._shards.values())).metadata

    def __getitem__(self, key: str) -> np.ndarray:
        return self._entries[key][key]

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape(key)

    def dtype(self, key: str) -> str:
        return self._entries[key].dtype(key)

    def copy_to(self, key: str, out: np.ndarray) -> None:
        self._entries[key].copy_to(key, out)

    def verify(self) -> bool | None:
        found = [shard.verify() for shard in self._shards.values()]
        return False if False in found else None if None in found else True

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


def shards_of(index: Path) -> list[str]:
    """The shards that an index lists; they are beside it. Raises a UserError if it is no such index."""
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > LARGEST_INDEX:
        raise UserError(f"{index}: has {index.stat().st_size} bytes; an index may have at most {LARGEST_INDEX}")
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: expected a JSON object with a weight_map from names of tensors to files")
    for name in places.values():
        if name in (".", "..") or not _FILE_NAME.fullmatch(name):
            raise UserError(f"{index}: lists {quoted(name)}; expected the name of a file beside the index")
    return places


SAFETENSORS, TORCH, FLAX = "model.safetensors", "pytorch_model.bin", "flax_model.msgpack"
INDEX = ".index.json"
"""Suffix of the file that lists the shards, where the weights are split into several files."""
SHARD = r"model-\d{5}-of-\d{5}\.safetensors"
"""Pattern of the names that `write_weights` gives to shards."""

_READERS: dict[str, Callable[[Path], Stored]] = {SAFETENSORS: TensorFile, TORCH: TorchBin, FLAX: FlaxMsgpack}
WEIGHTS = tuple(name + end for name in _READERS for end in ("", INDEX))
"""The files of weights that are read, in order of preference; an index stands for the shards that it lists."""
_UNREADABLE = {".bin", ".msgpack", ".safetensors", ".h5", ".ckpt", ".index", ".pt", ".pth", ".npz", ".onnx"}


def has_weights(directory: str | os.PathLike[str]) -> bool:
    """Whether the folder has weights in a format that bert_jax reads."""
    folder = Path(directory)
    return any((folder / name).is_file() for name in WEIGHTS) or is_checkpoint(folder)


def open_weights(directory: str | os.PathLike[str], model_type: str | None = None) -> Stored:
    """Opens the weights in a folder; the caller closes them.

    If the folder has several formats, the order of preference is safetensors, PyTorch, Flax, Google; within a format
    a single file comes before shards.

    Args:
        directory: the folder.
        model_type: config.json's, on which the names in Flax's and Google's files depend. None: guess from the names.

    Returns:
        Hugging Face's name -> array in torch's [out, in] layout.

    Raises:
        FileNotFoundError: the folder has no weights, or a shard is missing.
        UserError: a file is damaged, or belongs to another kind of model.
    """
    folder = Path(directory)
    for name, reader in _READERS.items():
        if (folder / name).is_file():
            return _torch_names(reader(folder / name), model_type)
        if (folder / (name + INDEX)).is_file():
            return _torch_names(Sharded(folder / (name + INDEX), reader), model_type)
    if is_checkpoint(folder):
        return open_google(folder, model_type)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in _UNREADABLE)
    hint = f"; bert_jax does not read files named {', '.join(others[:5])}" if others else ""
    raise FileNotFoundError(f"{folder}: contains no weights ({', '.join(_READERS)}, *.ckpt.index){hint}")


def _torch_names(stored: Stored, model_type: str | None) -> Stored:
    """Renames arrays that Flax wrote, in msgpack or in safetensors, to torch's names; returns others unchanged."""
    separator = "." if stored.metadata.get("format") == "flax" else "/" if FLAX in stored.path.name else None
    if separator is None:
        return stored
    try:
        return Renamed(stored, hf_names(stored, model_type, separator))
    except BaseException:
        stored.close()
        raise


def write_weights(
    folder: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], max_shard_size: int
) -> None:
    """Writes model.safetensors, or numbered shards and their index if it would be larger than `max_shard_size`.

    Args:
        folder: the folder to write to.
        tensors: Hugging Face's name -> array.
        metadata: strings for the header of each file.
        max_shard_size: bytes of tensors; a larger tensor gets a shard of its own.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for key, array in tensors.items():
        if shards[-1] and size + array.nbytes > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][key] = array
        size += array.nbytes
    if len(shards) == 1:
        write_tensors(folder / SAFETENSORS, tensors, metadata)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / name, shard, metadata)
        places |= dict.fromkeys(shard, name)
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / (SAFETENSORS + INDEX)).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8", newline="\n")


def shard_bytes(size: int | str) -> int:
    """The bytes that "5GB", "500MB" or a number says.

    As in transformers, KB, MB and GB are powers of ten; KiB and so on are powers of two. Raises UserError for any other
    text.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[KMGT]I?B)", str(size).strip().upper())
    if found is None or isinstance(size, bool):
        raise UserError(f"max_shard_size={size!r}: expected bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    number, unit = found.groups()
    base = 1024 if "I" in unit else 1000
    return max(1, int(float(number) * base ** " KMGT".index(unit[:1] or " ")))
