"""Descriptions of the tensors in torch's files: storages in the file, and strided views of them; no elements.

The functions check everything that a hostile file could get wrong: types, signs, sizes, and that a view stays within
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
    """The pickle holds something that no file of tensors needs; the text completes "its pickle holds ..."."""


@dataclass(frozen=True, slots=True)
class PickledName:
    """A name in a pickle, such as "torch.FloatStorage": text that is never looked up."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Elements [first, first + count) of a storage of `numel` elements in the file."""

    key: str
    dtype: str
    numel: int
    first: int
    count: int

    @property
    def nbytes(self) -> int:
        """The size of the whole storage of `numel` elements."""
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
        """The number of storage elements from the first to the last one, gaps included; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        """The size of the elements, without gaps."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def is_admitted(name: str) -> bool:
    """Whether a pickle of tensors may contain this name."""
    return name in CALLS or _storage_dtype(name) is not None or _dtype(name) is not None


def storage_of(reference: Any, known: dict[str, Storage]) -> Storage:
    """The storage, or part of one, that a persistent id refers to; a new storage is added to `known`.

    Args:
        reference: ("storage", type, key, location, numel) and, in the form before zip files, a sixth element: None,
            or (key, first, count) for a part of the storage.
        known: key -> whole storage.

    Raises:
        Refused: the reference has another form, or disagrees with an earlier one.
    """
    if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
        raise Refused("a reference to something that is not a storage")
    kind, key, numel = reference[1], reference[2], reference[4]
    dtype = _storage_dtype(kind.text) if type(kind) is PickledName else None
    if dtype is None or type(key) is not str or not _is_size(numel):
        raise Refused("a storage without a type, key or size")
    whole = known.setdefault(key, Storage(key, dtype, numel, 0, numel))
    if (whole.dtype, whole.numel) != (dtype, numel):
        raise Refused(f"the storage {shown(key)} with two types or sizes")
    view = reference[5] if len(reference) == 6 else None
    if view is None:
        return whole
    if type(view) is not tuple or len(view) != 3 or not _are_sizes(view[1:]) or view[1] + view[2] > numel:
        raise Refused(f"a part of the storage {shown(key)} that exceeds it")
    return Storage(key, dtype, numel, first=view[1], count=view[2])


def _ordered_dict(arguments: tuple) -> dict:
    if arguments:
        raise Refused("an OrderedDict with arguments")
    return {}


def _rebuild_tensor(arguments: tuple) -> Tensor:
    """Arguments: storage, offset, shape, stride, then perhaps requires_grad and hooks, then perhaps flags."""
    if len(arguments) not in (4, 6, 7):
        raise Refused(f"a tensor of {len(arguments)} arguments")
    return _tensor(*arguments[:4], dtype=None, flags=arguments[6] if len(arguments) > 6 else None)


def _rebuild_tensor_v3(arguments: tuple) -> Tensor:
    """As `_rebuild_tensor`, with the dtype before the flags, because the storage has none."""
    if len(arguments) not in (7, 8) or type(arguments[6]) is not PickledName:
        raise Refused("a tensor without a dtype")
    return _tensor(*arguments[:4], dtype=arguments[6].text, flags=arguments[7] if len(arguments) > 7 else None)


def _rebuild_parameter(arguments: tuple) -> Tensor:
    """Arguments: tensor, requires_grad, hooks, then perhaps attributes."""
    if len(arguments) not in (3, 4) or type(arguments[0]) is not Tensor:
        raise Refused("a parameter that is not a tensor")
    return arguments[0]


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *, dtype: str | None, flags: Any) -> Tensor:
    if type(storage) is not Storage or not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(stride):
        raise Refused("a tensor whose storage, offset, shape or stride is invalid")
    name = storage.dtype if dtype is None else _dtype(dtype)
    if name is None:
        raise Refused(f"a tensor of dtype {shown(dtype)}")
    if flags:
        raise Refused("a tensor whose flags say that it is negated or conjugated")
    if len(shape) != len(stride) or prod(size for size in shape if size) >= _MAX_SIZE:
        raise Refused(f"a tensor of {len(shape)} axes with {len(stride)} strides, or of an impossible size")
    tensor = Tensor(storage, offset, shape, stride, name)
    available = storage.count * np.dtype(storage.dtype).itemsize
    if tensor.extent and (offset + tensor.extent) * np.dtype(name).itemsize > available:
        raise Refused(f"a tensor of shape {shape} and stride {stride} that exceeds its storage of {available} bytes")
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
    """The repr of a value from a file, cut to 100 characters, for a message."""
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
"""Name in a pickle -> the function that turns the arguments of its "call" into a description."""
