"""A file of vectors, written as they are computed, continued after an interruption, or joined from parts."""

import fcntl
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bert_jax.cli.shards import PartFile
from bert_jax.cli.streaming import new_file
from bert_jax.errors import UserError, quoted
from bert_jax.files import read_object, refuse_special, sync, write_json

if TYPE_CHECKING:
    import numpy as np

_HEADER = 128  # bytes of a .npy file before its numbers


class VectorFile:
    """A file of vectors, written from beginning to end: .npy, float32 [N, D], or .jsonl, one list per line.

    Until `finish` its name is PATH.part, and PATH.part.json records `made_of`. An unfinished file with the same
    `made_of` is continued after its last complete `chunk` of rows. A lock keeps a second program from PATH.part.

        with VectorFile(path, width=384, made_of=facts, chunk=4096) as file:
            for rows in chunks_from(file.rows):
                file.append(rows)
            file.finish()

    Args:
        path: ends in .npy or .jsonl.
        width: D.
        made_of: JSON values that must not change between two attempts.
        chunk: rows per `append`, except the last.
        overwrite: replace `path` if it exists, and an unfinished file that was made of something else.

    Attributes:
        rows: the number of rows written so far.
        missing: how many of them have no vector.

    Raises:
        UserError: the path exists, has another ending, or its folder does not exist; an unfinished file was made of
            something else; PATH.part.json is damaged; another program is writing the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        width: int,
        made_of: Mapping[str, Any],
        chunk: int,
        overwrite: bool = False,
    ):
        self.path = new_file(path, overwrite=overwrite)
        self._is_npy = self.path.suffix == ".npy"
        if self.path.suffix not in (".npy", ".jsonl"):
            raise UserError(f"{path}: expected a name ending in .npy or .jsonl")
        self._part = self.path.with_name(self.path.name + ".part")
        self._facts = self.path.with_name(self.path.name + ".part.json")
        self._row_bytes = 4 * width
        self._width = width
        facts = json.loads(json.dumps({"width": width, "chunk": chunk, **made_of}))
        for path in (self._part, self._facts):
            refuse_special(path, follow=False)
        self._file = _locked(self._part)
        try:
            if self._part.stat().st_size and not self._facts.exists() and not overwrite:
                raise UserError(f"{self._part}: already exists, and no earlier start wrote it; --overwrite replaces it")
            self.rows, size = self._found(facts, chunk, overwrite)
            write_json(self._facts, facts)
            self._file.truncate(size)  # of a file that begins anew, also what stands where the header will
            self._file.truncate(size or (_HEADER if self._is_npy else 0))
            self._file.seek(0, io.SEEK_END)
            self.missing = self._missing()
        except BaseException:
            self._file.close()
            raise

    def append(self, rows: "Sequence[np.ndarray | None]") -> None:
        """Appends vectors, float32 [D]; None becomes a row of NaN, in .jsonl `null`."""
        import numpy as np

        if self._is_npy:
            missing = np.full(self._width, np.nan, np.float32)
            self._file.write(np.stack([missing if row is None else row for row in rows]).astype("<f4").tobytes())
        else:
            lines = (json.dumps(None if row is None else [float(x) for x in row]) + "\n" for row in rows)
            self._file.write("".join(lines).encode())
        self._file.flush()
        self.rows += len(rows)
        self.missing += sum(row is None for row in rows)

    @property
    def size(self) -> int:
        """The bytes of the file, now and when it is finished."""
        return os.fstat(self._file.fileno()).st_size

    def finish(self) -> Path:
        """Completes the file and renames it to `path`, which it returns."""
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

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _missing(self) -> int:
        """The rows without a vector, of those that an earlier start wrote."""
        if not self.rows:
            return 0
        if not self._is_npy:
            with self._part.open("rb") as file:
                return sum(line == b"null\n" for line in file)
        import numpy as np

        vectors = np.memmap(self._part, "<f4", "r", _HEADER, (self.rows, self._width))
        return int(np.isnan(vectors[:, 0]).sum())

    def _begun_with(self) -> dict[str, Any]:
        try:
            return read_object(self._facts)
        except UserError:
            raise UserError(
                f"{self._facts}: is damaged, so {self._part} cannot be continued; remove both to start again"
            ) from None

    def _found(self, facts: Mapping[str, Any], chunk: int, overwrite: bool) -> tuple[int, int]:
        """The rows to keep of an unfinished file, and their bytes; 0, 0 to start again."""
        if not self._facts.exists():
            return 0, 0
        try:
            before = self._begun_with()
        except UserError:
            if overwrite:
                return 0, 0
            raise
        if overwrite and before != facts:
            return 0, 0
        if changed := [name for name in {**facts, **before} if before.get(name) != facts.get(name)]:
            name = changed[0]
            raise UserError(
                f"{self._part}: was started with {name}={quoted(before.get(name))}, but now it is "
                f"{quoted(facts.get(name))}; remove it to start again, or say --overwrite"
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


def _locked(part: Path) -> IO[bytes]:
    """The unfinished file, opened and locked until it is closed; made if there is none."""
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = part.exists() and os.path.samestat(part.stat(), os.fstat(file.fileno()))
        except BlockingIOError:
            is_free = False
        except OSError:  # a file system without locks
            is_free = True
        if not is_free:  # or just finished: the file that was opened has its name already
            raise UserError(f"{part}: another program is writing it; wait until it ends, or name another file")
    except BaseException:
        file.close()
        raise
    return file


def join_parts(part: PartFile, width: int) -> None:
    """Joins the parts of a file of vectors, if all are complete.

    Args:
        part: one of them.
        width: D.
    """
    if part.path.suffix == ".npy":
        part.join(lambda rows: _npy_header(rows, width), _HEADER)
    else:
        part.join()


def _npy_header(rows: int, width: int) -> bytes:
    """`_HEADER` bytes, version 1.0 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html)."""
    fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little") + fields.ljust(_HEADER - 11).encode() + b"\n"
