"""`MetricsFile`, metrics.jsonl of a run, whose rows a resumed run checks and continues."""

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_file, refuse_special, with_shared_names, write_whole
from train.run.log.outlet import GrowingFile


class MetricsFile:
    """metrics.jsonl of a run that is at step `step`: the rows so far, to which it adds.

    A checkpoint records how many bytes the file had and their sum (`written`), so a resumed run knows whether its rows
    are all there, and as they were written.

    Attributes:
        rows: the rows, oldest first.
        problem: what was wrong with the file, a line for the log; None if nothing was.
    """

    def __init__(self, path: epath.Path, say: Callable[[str], None], *, step: int, written: dict[str, Any] | None):
        """Keeps the rows up to `step`; a run without checkpoints starts at step 0 and makes all of them again.

        Of a damaged file it keeps the rows that can be read; the file as it was stays beside it.

        Args:
            path: of metrics.jsonl.
            say: takes a line for people, if rows cannot be written; they are kept, and written later.
            step: where the run continues.
            written: what `written()` returned when the checkpoint of this step was saved; None without checkpoint.

        Raises:
            UserError: the file has no row of metrics, so it is not a run's; or it is not a file.
        """
        content = _content_of(path)
        size = written["bytes"] if written else 0
        self.problem = None
        if written is None or hashlib.sha256(content[:size]).hexdigest() != written["sha256"]:
            content, self.problem = _repaired(path, content, step, whole=written is None)
            size = len(content)
        self.rows = [with_shared_names(json.loads(line)) for line in content[:size].splitlines()]
        self._file = GrowingFile(path, say, size=size)
        self._sum, self._bytes = hashlib.sha256(content[:size]), size

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        data = f"{json.dumps(row)}\n".encode()
        self._sum.update(data)
        self._bytes += len(data)
        self._file.add(data)

    def written(self) -> dict[str, Any]:
        """The size and the sum of the file, after all of it is on the disk or, if that fails, as it is to be."""
        self._file.sync()
        return {"bytes": self._bytes, "sha256": self._sum.hexdigest()}

    def close(self) -> None:
        self._file.close()


def _content_of(path: epath.Path) -> bytes:
    if not is_remote(path):
        refuse_special(path, follow=False)
    with contextlib.suppress(FileNotFoundError):
        return read_file(path)
    return b""


def _repaired(path: epath.Path, content: bytes, step: int, *, whole: bool) -> tuple[bytes, str | None]:
    """Replaces the file by its readable rows up to `step`; returns these, and what was wrong.

    `whole`: nobody has recorded what the file should have, so it is good if every complete line of it is a row.
    """
    *lines, last = content.split(b"\n")
    rows = [row for line in (*lines, last) if (row := _row_of(line)) is not None]
    if not rows and content.strip():
        raise UserError(
            f"{path}: has no row of metrics, so it is not the file of a run, and is not overwritten; move it away, or "
            "choose another run="
        )
    kept = b"".join(f"{json.dumps(row)}\n".encode() for row in rows if row["step"] <= step)
    problem = None
    if not whole or any(line.strip() and _row_of(line) is None for line in lines):
        problem = f"{path.name} is damaged: it has not the rows that were written up to step {step:,}"
        if content:
            aside = path.with_name(f"{path.name}.damaged-{hashlib.sha256(content).hexdigest()[:8]}")
            write_whole(aside, content)
            problem += f"; those that can be read are kept, and {aside.name} is the file as it was"
    if not content.startswith(kept):  # otherwise it is cut, for which a full disk has room
        write_whole(path, kept)
    return kept, problem


def _row_of(line: bytes) -> dict[str, Any] | None:
    """The row in a line of metrics.jsonl; None if it has none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = isinstance(row, dict) and isinstance(row.get("kind"), str) and type(row.get("step")) is int
    return row if good else None
