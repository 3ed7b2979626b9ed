"""Weights that are spread over several files, with an index that says which tensor is in which."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.stored import Stored

_LARGEST_INDEX = 1 << 24


class Sharded(Stored):
    """All shards as one mapping from name to array.

    Args:
        index: the `.index.json`; its "weight_map" says for each name which file beside it has the tensor.
        open_shard: makes one of those files readable.

    Attributes:
        metadata: of the shard that is named first.

    Raises:
        FileNotFoundError: a shard is missing.
        UserError: the index is no such thing, a shard is broken, or they contradict each other.
    """

    def __init__(self, index: Path, open_shard: Callable[[Path], Stored]):
        self.path = index
        places = _weight_map(index)
        self._shards: dict[str, Stored] = {}
        try:
            for name in dict.fromkeys(places.values()):
                if not (index.parent / name).is_file():
                    raise FileNotFoundError(f"{index.parent}: holds no {name}, which {index.name} lists")
                self._shards[name] = open_shard(index.parent / name)
            self._homes: dict[str, Stored] = {}
            for name, shard in self._shards.items():
                for key in shard:
                    if key in self._homes:
                        raise UserError(f"{index.parent}: {key} is both in {self._homes[key].path.name} and in {name}")
                    self._homes[key] = shard
            for key, name in places.items():
                if key not in self._shards[name]:
                    raise UserError(f"{index}: says that {key} is in {name}, which has no such tensor")
        except BaseException:
            self.close()
            raise
        self.metadata = next(iter(self._shards.values())).metadata

    def __len__(self) -> int:
        return len(self._homes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __getitem__(self, key: str) -> np.ndarray:
        return self._homes[key][key]

    def shape(self, key: str) -> tuple[int, ...]:
        return self._homes[key].shape(key)

    def dtype(self, key: str) -> str:
        return self._homes[key].dtype(key)

    def copy_to(self, key: str, out: np.ndarray) -> None:
        self._homes[key].copy_to(key, out)

    def verify(self) -> bool | None:
        found = [shard.verify() for shard in self._shards.values()]
        return False if False in found else None if None in found else True

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


def _weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > _LARGEST_INDEX:
        raise UserError(f"{index}: has {index.stat().st_size} bytes; an index has fewer than {_LARGEST_INDEX}")
    try:
        fields = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{index}: not a JSON file ({error})") from None
    places = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: expected a JSON object with a weight_map from names of tensors to files")
    for name in places.values():
        if name != Path(name).name or "\\" in name or name in ("", ".", ".."):
            raise UserError(f"{index}: lists {name!r}; its files lie beside it and have plain names")
    return places
