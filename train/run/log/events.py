"""TensorBoard's event file of a run, written by the thread that trains.

The writers of tensorboardX and PyTorch hand events to a thread through a queue. When the thread dies, because the disk
is full or the clock was set back, the queue fills up and training waits for ever. To import either also loads all of
PyTorch where it is installed, which takes longer than a small task's steps. So the few fields that scalars need are
encoded here: event.proto and summary.proto of https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto.
"""

import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from etils import epath

from bert_jax.formats.tensorflow.entries import FIXED32, FIXED64, integer_field, message_field, varint
from bert_jax.formats.tensorflow.table import masked_crc32c
from train.run.log.outlet import GrowingFile

_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # fields of an Event
_TAG, _SIMPLE_VALUE = 1, 2  # fields of a Summary.Value
_START = integer_field(1, 1)  # a SessionLog whose status is START


class Events:
    """The records of one start of a run, as TensorBoard reads them. TensorBoard hides what an earlier start wrote of
    steps that this one repeats."""

    def __init__(self, folder: str | os.PathLike[str], start_step: int, say: Callable[[str], None]):
        """Starts a file in a local folder, which need not exist; `say` takes a line for people."""
        self._file = GrowingFile(epath.Path(_next_file(Path(folder))), say, name="tensorboard")
        self._add(message_field(_FILE_VERSION, b"brain.Event:2"))
        self._add(integer_field(_STEP, start_step + 1) + message_field(_SESSION_LOG, _START))

    def add(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds the finite values as kind/NAME."""
        shown = (
            message_field(1, _scalar(f"{kind}/{name}", value))
            for name, value in values.items()
            if math.isfinite(value) and not isinstance(value, bool)
        )
        self._add(integer_field(_STEP, step) + message_field(_SUMMARY, b"".join(shown)))

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def _add(self, fields: bytes) -> None:
        # https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/record_writer.h
        data = varint(_WALL_TIME << 3 | FIXED64) + struct.pack("<d", time.time()) + fields
        length = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        self._file.add(length + next(sums) + data + next(sums))


def _scalar(tag: str, value: float) -> bytes:
    """A Summary.Value. A zero is written too: without its bytes the value would be of no kind at all."""
    with np.errstate(over="ignore"):  # beyond float32 it is infinite
        number = np.float64(value).astype("<f4").tobytes()
    return message_field(_TAG, tag.encode()) + varint(_SIMPLE_VALUE << 3 | FIXED32) + number


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
