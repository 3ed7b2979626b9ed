"""What torch's files say of tensors: storages in a file, and strided views of them. Descriptions only, no elements.

The functions check everything that a hostile file could lie about: types, signs, sizes, and that a view stays within
its storage. Source: torch/_utils.py (`_rebuild_tensor*`), torch/serialization.py (`persistent_load`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

_MAX_AXES = 32
_MAX_SIZE = 1 << 48

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8",
}  # fmt: skip
_DTYPES = {*_STORAGES.values(), "uint16", "uint32", "uint64"}


class Refused(Exception):
    """Something that no file of tensors holds; its text completes "the pickle holds ..."."""


@dataclass(frozen=True, slots=True)
class PickledName:
    """A name in a pickle, such as "torch.FloatStorage": text, never looked up."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of elements in the file, perhaps a part of a longer one: elements [first, first + count) of `numel`."""

    key: str
    dtype: str
    numel: int
    first: int
    count: int

    @property
    def nbytes(self) -> int:
        """Of the whole run of `numel` elements."""
        return self.numel * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Tensor:
    """A strided view of a storage; sizes, strides and offset count elements of `dtype` (NumPy's name)."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def extent(self) -> int:
        """How many elements lie from the first to the last one, gaps included; 0 if there is none."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        """Of the elements, without gaps."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def is_admitted(name: str) -> bool:
    """Whether a pickle of tensors may hold this name."""
    return name in CALLS or _storage_dtype(name) is not None or _dtype(name) is not None


def storage_of(reference: Any, known: dict[str, Storage]) -> Storage:
    """A persistent id -> its storage; the whole of a new one is added to `known`.

    Args:
        reference: ("storage", type, key, location, numel) and, in the form before zip files, a sixth: None, or
            (key, first, count) for a part of it.
        known: key -> the whole storage.

    Raises:
        Refused: it is anything else, or disagrees with an earlier mention.
    """
    if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
        raise Refused("a reference to something that is no storage")
    kind, key, numel = reference[1], reference[2], reference[4]
    dtype = _storage_dtype(kind.text) if type(kind) is PickledName else None
    if dtype is None or type(key) is not str or not _is_size(numel):
        raise Refused("a storage without type, key or size")
    whole = known.setdefault(key, Storage(key, dtype, numel, 0, numel))
    if (whole.dtype, whole.numel) != (dtype, numel):
        raise Refused(f"the storage {shown(key)} with two types or sizes")
    view = reference[5] if len(reference) == 6 else None
    if view is None:
        return whole
    if type(view) is not tuple or len(view) != 3 or not _are_sizes(view[1:]) or view[1] + view[2] > numel:
        raise Refused(f"a part of the storage {shown(key)} that leaves it")
    return Storage(key, dtype, numel, first=view[1], count=view[2])


def _ordered_dict(arguments: tuple) -> dict:
    if arguments:
        raise Refused("an OrderedDict with arguments")
    return {}


def _rebuild_tensor(arguments: tuple) -> Tensor:
    """(storage, offset, shape, stride), then requires_grad and hooks, then flags."""
    if len(arguments) not in (4, 6, 7):
        raise Refused(f"a tensor of {len(arguments)} arguments")
    return _tensor(*arguments[:4], dtype=None, flags=arguments[6] if len(arguments) > 6 else None)


def _rebuild_tensor_v3(arguments: tuple) -> Tensor:
    """As above, with the dtype before the flags: the storage has none."""
    if len(arguments) not in (7, 8) or type(arguments[6]) is not PickledName:
        raise Refused("a tensor without a dtype")
    return _tensor(*arguments[:4], dtype=arguments[6].text, flags=arguments[7] if len(arguments) > 7 else None)


def _rebuild_parameter(arguments: tuple) -> Tensor:
    """(tensor, requires_grad, hooks), perhaps attributes."""
    if len(arguments) not in (3, 4) or type(arguments[0]) is not Tensor:
        raise Refused("a parameter that is no tensor")
    return arguments[0]


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *, dtype: str | None, flags: Any) -> Tensor:
    if type(storage) is not Storage or not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(stride):
        raise Refused("a tensor whose storage, offset, shape or stride is not one")
    name = storage.dtype if dtype is None else _dtype(dtype)
    if name is None:
        raise Refused(f"a tensor of dtype {shown(dtype)}")
    if flags:
        raise Refused("a tensor that is to be negated or conjugated")
    if len(shape) != len(stride) or prod(size for size in shape if size) >= _MAX_SIZE:
        raise Refused(f"a tensor of {len(shape)} axes with {len(stride)} strides, or of an impossible size")
    tensor = Tensor(storage, offset, shape, stride, name)
    available = storage.count * np.dtype(storage.dtype).itemsize
    if tensor.extent and (offset + tensor.extent) * np.dtype(name).itemsize > available:
        raise Refused(f"a tensor of shape {shape} and stride {stride} that leaves its storage of {available} bytes")
    return tensor


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_SIZE


def _are_sizes(value: Any) -> bool:
    return type(value) is tuple and len(value) <= _MAX_AXES and all(_is_size(size) for size in value)


def _storage_dtype(name: str) -> str | None:
    module, _, kind = name.rpartition(".")
    return _STORAGES.get(kind) if module in ("torch", "torch.storage") else None


def _dtype(name: str) -> str | None:
    module, _, dtype = name.rpartition(".")
    return dtype if module == "torch" and dtype in _DTYPES else None


def shown(value: object) -> str:
    """Something from a file as it may stand in a message: on one line, not too long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


CALLS: dict[str, Callable[[tuple], Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
}
"""Name in a pickle -> what a "call" of it with a tuple of arguments describes."""
