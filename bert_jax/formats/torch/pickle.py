"""Interpret the pickles inside torch's files; the interpreter can make descriptions of tensors and nothing else.

A pickle is a program. This interpreter treats it as data: a few opcodes push numbers, strings and containers; a name
such as `torch._utils._rebuild_tensor_v2` becomes inert text; and "calling" one of the few permitted names makes a
`Tensor`, which says where elements are. The interpreter never imports, looks up or calls anything by a name from the
file, and the file cannot choose the class of any object. Anything else in a pickle is an error.

A description is a storage in the file, or a strided view of one; it has no elements. The functions that make it check
everything that a hostile file could get wrong: types, signs, sizes, and that a view stays within its storage.

Sources: torch/serialization.py (what torch.save writes; `persistent_load`), torch/_utils.py (`_rebuild_tensor*`),
torch/_weights_only_unpickler.py (what torch.load permits), CPython's Lib/pickletools.py (the meaning of opcodes).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from bert_jax.errors import UserError, quoted

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


MAX_PICKLE = 1 << 24
"""The longest pickle that is read, in bytes. That of BERT-large, with 400 tensors, has 60 KB."""
_MAX_OPCODES = 1 << 20


class Pickle(NamedTuple):
    """The value of a pickle, the offset of the first byte after it, and its storages: key -> whole storage."""

    value: Any
    end: int
    storages: dict[str, Storage]


def read_pickle(data: bytes, start: int, where: str) -> Pickle:
    """Interprets one pickle of at most `MAX_PICKLE` bytes and a million opcodes, using under 256 MiB of memory.

    Args:
        data: bytes that contain the pickle.
        start: where in `data` the pickle begins.
        where: the file, for messages.

    Returns:
        The pickle; its value consists of None, bool, int, float, str, `Storage`, `Tensor`, `PickledName`, list, tuple
        and dict.

    Raises:
        UserError: the pickle contains anything else, or is damaged.
    """
    machine = _Machine(data, start)
    try:
        return machine.run()
    except Refused as found:
        line = f"{where}: its pickle holds {found} (byte {machine.at}); bert_jax reads only tensors from a pickle"
        raise UserError(line) from None


class _Machine:
    """The stack, the marks on it, and the numbered objects that the pickle may refer to again."""

    def __init__(self, data: bytes, start: int):
        self.data, self.at = data, start
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self) -> Pickle:
        for _ in range(_MAX_OPCODES):
            code = self.take(1)
            if code == b".":
                return Pickle(self.pop(), self.at, self.storages)
            action = _ACTIONS.get(code)
            if action is None:
                raise Refused(f"the opcode 0x{code[0]:02x}, which no tensor needs,")
            action(self)
        raise Refused(f"more than {_MAX_OPCODES} opcodes")

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise Refused("no end: the file is truncated or damaged")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def long(self) -> int:
        octets = self.take(self.number("<B"))
        if len(octets) > 16:
            raise Refused(f"an integer of {len(octets)} bytes")
        return int.from_bytes(octets, "little", signed=True)

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused("text that is not UTF-8") from None

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 256)
        if end < 0:
            raise Refused("a name without an end")
        text = self.text(end - self.at)
        self.take(1)
        return text

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Refused("an opcode that needs a value when the stack is empty")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise Refused("an opcode that needs a mark when there is none")
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def top(self, kind: type) -> Any:
        value = self.pop()
        if type(value) is not kind:
            raise Refused(f"an opcode that adds to a {kind.__name__}, but finds a {type(value).__name__}")
        self.stack.append(value)
        return value

    def push_tuple(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise Refused("a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Other types, and integers of many digits, could be chosen to collide or to take very long to hash.
            if type(key) is not str and not (type(key) is int and abs(key) < 1 << 31):
                raise Refused(f"a {type(key).__name__} as a key")
            if key in target:
                raise Refused(f"the key {quoted(key)} twice")
            target[key] = value

    def push_name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise Refused("a name that is not text")
        full = f"{module}.{name}"
        if not is_admitted(full):
            raise Refused(f"the name {quoted(full)}")
        self.stack.append(PickledName(full))

    def remember(self, index: int) -> None:
        value = self.pop()
        self.stack.append(value)
        self.memo[index] = value

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise Refused(f"a reference to object {index}, which it has not made,")
        self.stack.append(self.memo[index])

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        call = CALLS.get(function.text) if type(function) is PickledName else None
        if call is None or type(arguments) is not tuple:
            raise Refused(f"a call of a {type(function).__name__} with a {type(arguments).__name__}")
        self.stack.append(call(arguments))

    def build(self) -> None:
        # Ignored: the attributes of an OrderedDict, where torch keeps `_metadata`, the version numbers of the modules.
        if type(self.pop()) is not dict:
            raise Refused("attributes that are not a dict")
        self.top(dict)


_ACTIONS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"\x8a": lambda m: m.stack.append(m.long()),
    b"G": lambda m: m.stack.append(m.number(">d")),
    b"X": lambda m: m.stack.append(m.text(m.number("<I"))),
    b"\x8c": lambda m: m.stack.append(m.text(m.number("<B"))),
    b"U": lambda m: m.stack.append(m.text(m.number("<B"))),  # a string of Python 2
    b")": lambda m: m.stack.append(()),
    b"]": lambda m: m.stack.append([]),
    b"}": lambda m: m.stack.append({}),
    b"t": lambda m: m.stack.append(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"s": lambda m: m.set_items([*reversed((m.pop(), m.pop()))]),
    b"u": lambda m: m.set_items(m.pop_to_mark()),
    b"c": lambda m: m.push_name(m.line(), m.line()),
    b"\x93": lambda m: m.push_name(*reversed((m.pop(), m.pop()))),
    b"q": lambda m: m.remember(m.number("<B")),
    b"r": lambda m: m.remember(m.number("<I")),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"h": lambda m: m.recall(m.number("<B")),
    b"j": lambda m: m.recall(m.number("<I")),
    b"R": _Machine.reduce,
    b"b": _Machine.build,
    b"Q": lambda m: m.stack.append(storage_of(m.pop(), m.storages)),
}


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
        raise Refused(f"the storage {quoted(key)} with two types or sizes")
    view = reference[5] if len(reference) == 6 else None
    if view is None:
        return whole
    if type(view) is not tuple or len(view) != 3 or not _are_sizes(view[1:]) or view[1] + view[2] > numel:
        raise Refused(f"a part of the storage {quoted(key)} that exceeds it")
    return Storage(key, dtype, numel, first=view[1], count=view[2])


def _ordered_dict(arguments: tuple) -> dict:
    if arguments:
        raise Refused("an OrderedDict with arguments")
    return {}


def _rebuild_tensor(arguments: tuple) -> Tensor:
    """The tensor of the arguments storage, offset, shape, stride, then perhaps requires_grad and hooks, then flags."""
    if len(arguments) not in (4, 6, 7):
        raise Refused(f"a tensor of {len(arguments)} arguments")
    return _tensor(*arguments[:4], dtype=None, flags=arguments[6] if len(arguments) > 6 else None)


def _rebuild_tensor_v3(arguments: tuple) -> Tensor:
    """The tensor as of `_rebuild_tensor`, with the dtype before the flags, because the storage has none."""
    if len(arguments) not in (7, 8) or type(arguments[6]) is not PickledName:
        raise Refused("a tensor without a dtype")
    return _tensor(*arguments[:4], dtype=arguments[6].text, flags=arguments[7] if len(arguments) > 7 else None)


def _rebuild_parameter(arguments: tuple) -> Tensor:
    """The tensor of the arguments tensor, requires_grad, hooks, then perhaps attributes."""
    if len(arguments) not in (3, 4) or type(arguments[0]) is not Tensor:
        raise Refused("a parameter that is not a tensor")
    return arguments[0]


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *, dtype: str | None, flags: Any) -> Tensor:
    if type(storage) is not Storage or not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(stride):
        raise Refused("a tensor whose storage, offset, shape or stride is invalid")
    name = storage.dtype if dtype is None else _dtype(dtype)
    if name is None:
        raise Refused(f"a tensor of dtype {quoted(dtype)}")
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


CALLS: dict[str, Callable[[tuple], Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
}
"""Name in a pickle -> the function that turns the arguments of its "call" into a description."""
