"""Random damage to files, each a pure function of a random generator: bytes, JSON values, lines of text."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

LONG = 100_000
_PIECES = (
    b"\xff", b"\0", b"\n", b"\r\n", b'"', b"'", b"\t", b",", b"{", b"]", b"-1", b"1e999", b"NaN", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\x1b[31m", "\u202e".encode(), b"../", b"/", b"%s", b"99999999999999999999", b"\0" * 64,
)  # fmt: skip


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few flipped bits, a part that is lost, repeated, moved or replaced, or a count that is huge."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        start = rng.randrange(len(changed) + 1)
        length = min(rng.choice((1, 2, 4, 8, 64, 1000)), len(changed) - start)
        part = bytes(changed[start : start + length])
        kind = rng.randrange(9)
        if kind == 0 and changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[start:]
        elif kind == 2:
            del changed[start : start + length]
        elif kind == 3:
            changed[start:start] = part * rng.choice((1, 2, 50))
        elif kind == 4:
            changed[start : start + length] = bytes(length)
        elif kind == 5:
            changed[start:start] = rng.choice(_PIECES)
        elif kind == 6:
            changed[start : start + length] = rng.randbytes(length)
        elif kind == 7:
            huge = rng.choice((0xFFFFFFFF, 0x7FFFFFFF, 1 << 31, 1 << 62, (1 << 64) - 1, 1 << 40))
            size = 8 if huge >= 1 << 32 else 4
            changed[start : start + size] = huge.to_bytes(size, rng.choice(("little", "big")))
        else:
            changed[start:start] = bytes(changed[: rng.randrange(len(changed) + 1)])
    return bytes(changed)


def of_text(data: bytes, rng: random.Random) -> bytes:
    """`of_bytes`, or another encoding, or all lines as one, or one cell, word or line that is very long or repeated."""
    kind = rng.randrange(12)
    if kind == 0:
        return data.decode(errors="replace").encode(rng.choice(("utf-16", "utf-16-le", "latin-1")), errors="replace")
    if kind == 1:
        return data.replace(b"\n", rng.choice((b"", b" ", b"\r", b"\x00", "\u2028".encode())))
    if kind == 2:
        lines = data.split(b"\n")
        lines[rng.randrange(len(lines))] *= rng.choice((0, 2, 2000))
        return b"\n".join(lines)
    if kind == 3:
        separator = rng.choice((b"\t", b" ", b",", b"|"))
        cells = data.split(separator)
        cells[rng.randrange(len(cells))] = rng.choice((b"", b"x" * LONG, b"-1", b"nan", b"1e999", b'"', b"9" * 5000))
        return separator.join(cells)
    return of_bytes(data, rng)


def of_json(data: bytes, rng: random.Random) -> bytes:
    """One value of a JSON text replaced by one of another kind, removed, or stored twice; or `of_text`."""
    if rng.random() < 0.3:
        return of_text(data, rng)
    value = json.loads(data)
    places = _places(value)
    if not places:
        return of_text(data, rng)
    for _ in range(rng.choice((1, 1, 2))):
        where, key = rng.choice(places)
        if rng.random() < 0.15:
            if isinstance(where, dict):
                where.pop(key, None)
            elif key < len(where):
                del where[key]
        elif key in where if isinstance(where, dict) else key < len(where):
            where[key] = _MARK if rng.random() < 0.5 else rng.choice(_simple(where, key, rng))
    text = json.dumps(value)
    for _ in range(text.count(f'"{_MARK}"')):
        text = text.replace(f'"{_MARK}"', rng.choice(_RAW), 1)
    return text.encode()


_MARK = "@@here@@"
_RAW = (
    "[]", "{}", "null", "true", "[null]", '[""]', '{"": 0}', '{"a": {"b": [1]}}', "[[1, 2], [3]]", "-1", "0", "0.5",
    "1e999", "-1e999", "NaN", "1" + "0" * 30, "1" + "0" * 400, '""', '"\\ud800"', '"\\u0000"', '"a\\nb\\rc"', '" "',
    '"' + "x" * LONG + '"', '"' + "\\n" * LONG + '"', "[" * 60 + "]" * 60, '{"a":' * 2000 + "1" + "}" * 2000,
    "[" * LONG + "]" * LONG, "[" + "1," * LONG + "1]", '"../../../x"', '"/etc/passwd"', '"1"', '"nan"', "1.5", "2",
)  # fmt: skip


def _simple(where: Any, key: Any, rng: random.Random) -> list[Any]:
    """Values that come from the text itself, in another place or changed a little."""
    old = where[key]
    found: list[Any] = [None, [old], {"x": old}, str(old)[:LONG], [old, old]]
    if isinstance(old, int | float) and not isinstance(old, bool):
        found += [old + 1, -old, old * 1000, old + 0.5, old == 1]
    if isinstance(old, str):
        found += [old + "x", old[::-1], old[:-1], old * 50, len(old), list(old[:50])]
    if isinstance(old, list) and old:
        found += [old[::-1], old * 2, old[:-1], old[0], [*old, rng.choice(old)]]
    if isinstance(old, dict) and old:
        found += [list(old), next(iter(old.values())), list(old.items())]
    return found


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else list(range(len(one))) if isinstance(one, list) else []
        found += [(one, key) for key in keys[:200]]
        todo += [one[key] for key in keys[:200]]
    return found


def of_json_lines(data: bytes, rng: random.Random) -> bytes:
    """`of_json` of one line; or `of_text` of all."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    if rng.random() < 0.2 or not lines[number].strip():
        return of_text(data, rng)
    lines[number] = of_json(lines[number], rng).replace(b"\n", b" ")
    return b"\n".join(lines)


def inside_gzip(change: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes, random.Random], bytes]:
    """`change` of what a gzip file holds, or of its bytes."""

    def changed(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return of_bytes(data, rng)
        return gzip.compress(change(gzip.decompress(data), rng), mtime=0)

    return changed


def change_of(name: str) -> Callable[[bytes, random.Random], bytes]:
    """The usual change of a file with this name."""
    if name.endswith(".gz"):
        return inside_gzip(change_of(name.removesuffix(".gz")))
    if name.endswith((".jsonl", ".ndjson")):
        return of_json_lines
    if name.endswith(".json"):
        return of_json
    if name.endswith((".txt", ".tsv", ".csv", ".md", ".conll", ".conllu", ".py")):
        return of_text
    return of_bytes
