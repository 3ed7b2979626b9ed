"""TensorBoard's event file of a run, written by the thread that trains.

The writers of tensorboardX and PyTorch hand events to a thread through a queue. When the thread dies, because the disk
is full or the clock was set back, the queue fills up and training waits for ever.
"""

import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from etils import epath

from train.run.outlet import GrowingFile


class Events:
    """The records of one start of a run, as TensorBoard reads them. TensorBoard hides what an earlier start wrote of
    steps that this one repeats."""

    def __init__(self, folder: str | os.PathLike[str], start_step: int, say: Callable[[str], None]):
        """Starts a file in a local folder, which need not exist; `say` takes a line for people.

        Raises:
            ImportError: tensorboardX is not installed.
        """
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        self._event = Event
        self._file = GrowingFile(epath.Path(_next_file(Path(folder))), say, name="tensorboard")
        self._add(file_version="brain.Event:2")
        self._add(step=start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds the finite values as kind/NAME."""
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.summary import scalar

        shown = [
            scalar(f"{kind}/{name}", value).value[0]
            for name, value in values.items()
            if math.isfinite(value) and not isinstance(value, bool)
        ]
        self._add(step=step, summary=Summary(value=shown))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _add(self, **fields) -> None:
        from tensorboardX.record_writer import masked_crc32c

        # https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/record_writer.h
        data = self._event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        self._file.add(length + next(sums) + data + next(sums))


def _next_file(folder: Path) -> Path:
    """A name after all others in the folder, whatever the clock says: TensorBoard reads files in their order."""
    second = int(time.time())
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            _, mark, rest = name.partition(".tfevents.")
            number = rest.partition(".")[0]
            if mark and number.isascii() and number.isdigit():
                second = max(second, int(number) + 1)
    return folder / f"events.out.tfevents.{second:010d}.{socket.gethostname()}"
