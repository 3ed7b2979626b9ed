"""Interpret the pickles inside torch's files; the interpreter can make descriptions of tensors and nothing else.

A pickle is a program. This interpreter treats it as data: a few opcodes push numbers, strings and containers; a name
such as `torch._utils._rebuild_tensor_v2` becomes inert text; and "calling" one of the few permitted names makes a
`Tensor`, which says where elements are. The interpreter never imports, looks up or calls anything by a name from the
file, and the file cannot choose the class of any object. Anything else in a pickle is an error.

Sources: torch/serialization.py and torch/_weights_only_unpickler.py (what torch.save writes and torch.load permits),
CPython's Lib/pickletools.py (the meaning of opcodes).
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.formats.torch.tensor import CALLS, PickledName, Refused, Storage, is_admitted, shown, storage_of

MAX_PICKLE = 1 << 24
"""The longest pickle that is read, in bytes. That of BERT-large, with 400 tensors, has 60 KB."""
_MAX_OPCODES = 1 << 20


class Pickle(NamedTuple):
    """The value of a pickle, the offset of the first byte after it, and its storages: key -> whole storage."""

    value: Any
    end: int
    storages: dict[str, Storage]


def read_pickle(data: bytes, start: int, where: str) -> Pickle:
    """Interpret one pickle of at most `MAX_PICKLE` bytes and a million opcodes, using under 256 MiB of memory.

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
                raise Refused(f"the key {shown(key)} twice")
            target[key] = value

    def push_name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise Refused("a name that is not text")
        full = f"{module}.{name}"
        if not is_admitted(full):
            raise Refused(f"the name {shown(full)}")
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
