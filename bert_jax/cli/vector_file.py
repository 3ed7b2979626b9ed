"""A file of vectors that is written from its beginning to its end, and gone on with where it was left unfinished."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import read_object, sync, write_json

_HEADER = 128  # bytes of a .npy file before its numbers


class VectorFile:
    """A .npy file, float32 [N, D], or a .jsonl file with a list a line, that is written from its beginning to its end.

    Until `finish` it is PATH.part, and PATH.part.json says what it is made of. One that was left unfinished is gone on
    with after its last whole `chunk` of rows, if it is made of the same.

        with VectorFile(path, width=384, made_of=facts, chunk=4096) as file:
            for rows in chunks_from(file.rows):
                file.append(rows)
            file.finish()

    Args:
        path: ends in .npy or .jsonl.
        width: D.
        made_of: JSON values: whatever must not change between two attempts.
        chunk: rows that are appended at a time, but for the last.

    Attributes:
        rows: how many are in it.

    Raises:
        UserError: the file exists, is of another kind, was begun with something else, or its folder does not exist;
            PATH.part.json is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], *, width: int, made_of: Mapping[str, Any], chunk: int):
        self.path = Path(path)
        self._is_npy = self.path.suffix == ".npy"
        if self.path.suffix not in (".npy", ".jsonl"):
            raise UserError(f"{path}: expected a name that ends in .npy or .jsonl")
        if not self.path.absolute().parent.is_dir():
            raise UserError(f"{path}: its folder does not exist")
        if self.path.exists():
            raise UserError(f"{path}: exists already; remove it, or name another file")
        self._part = self.path.with_name(self.path.name + ".part")
        self._facts = self.path.with_name(self.path.name + ".part.json")
        self._row_bytes = 4 * width
        self._width = width
        facts = json.loads(json.dumps({"width": width, "chunk": chunk, **made_of}))
        self.rows, size = self._found(facts, chunk)
        write_json(self._facts, facts)
        self._file = open(self._part, "r+b" if size else "wb")
        self._file.truncate(size or (_HEADER if self._is_npy else 0))
        self._file.seek(0, io.SEEK_END)

    def append(self, rows: Sequence[np.ndarray | None]) -> None:
        """Vectors float32 [D]; None where there is none: a row of NaN, or `null`."""
        if self._is_npy:
            missing = np.full(self._width, np.nan, np.float32)
            self._file.write(np.stack([missing if row is None else row for row in rows]).astype("<f4").tobytes())
        else:
            lines = (json.dumps(None if row is None else [float(x) for x in row]) + "\n" for row in rows)
            self._file.write("".join(lines).encode())
        self._file.flush()
        self.rows += len(rows)

    def finish(self) -> Path:
        """Gives it its name."""
        if self._is_npy:
            self._file.seek(0)
            self._file.write(_npy_header(self.rows, self._width))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._part, self.path)
        sync(self.path.absolute().parent)
        self._facts.unlink()
        return self.path

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _begun_with(self) -> dict[str, Any]:
        try:
            return read_object(self._facts)
        except UserError:
            raise UserError(
                f"{self._facts}: is damaged, so what {self._part} is made of is not known; remove both to begin anew"
            ) from None

    def _found(self, facts: Mapping[str, Any], chunk: int) -> tuple[int, int]:
        """Rows that are kept of an unfinished file, and its bytes up to there; 0, 0 if there is none."""
        if not (self._part.exists() and self._facts.exists()):
            return 0, 0
        before = self._begun_with()
        if changed := [name for name in {**facts, **before} if before.get(name) != facts.get(name)]:
            name = changed[0]
            raise UserError(
                f"{self._part}: was begun with {name}={before.get(name)!r}, now it is {facts.get(name)!r}; "
                "remove it to begin anew"
            )
        if self._is_npy:
            rows = max(self._part.stat().st_size - _HEADER, 0) // self._row_bytes // chunk * chunk
            return rows, _HEADER + rows * self._row_bytes if rows else 0
        ends, end = [0], 0
        with self._part.open("rb") as file:
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    ends.append(end)
        rows = (len(ends) - 1) // chunk * chunk
        return rows, ends[rows]


def _npy_header(rows: int, width: int) -> bytes:
    """Version 1.0 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), `_HEADER` bytes."""
    fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little") + fields.ljust(_HEADER - 11).encode() + b"\n"
