"""`Outlet`, a place that the log writes to and that may fail, and `GrowingFile`, one that is a file.

A log that cannot be written must not stop a run: the failure is said once, and what was not written is kept and tried
again.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, refuse_special

_MOST_KEPT = 100_000  # items that could not be written; beyond these the oldest are dropped
_LONGEST_PAUSE = 64.0
_LEAST_PAUSE_ON_BUCKET = 10.0


class Outlet:
    """Delivers items in their order to a place that may fail.

    The first failure is said, and the next success. In between, items are kept, and delivery is tried again with a
    later item, after 1, 2, 4 … 64 seconds, and after twenty times as long as the failure took: it costs the run a
    twentieth of its time at most. What is delivered at a cost that grows (`wait`) waits as long.
    """

    def __init__(self, name: str, deliver: Callable[[deque[Any]], None], say: Callable[[str], None]):
        """`deliver` removes what it has delivered from its argument; `say` takes a line for people."""
        self.name, self._deliver, self._say = name, deliver, say
        self._waiting: deque[Any] = deque()
        self._dropped = 0
        self._failures = 0
        self._next_try = 0.0
        self._lock = threading.RLock()  # the thread that ends a run writes too, and saying a failure writes again

    def put(self, item: Any) -> None:
        with self._lock:
            self._waiting.append(item)
            if len(self._waiting) > _MOST_KEPT:
                self._waiting.popleft()
                self._dropped += 1
            if time.monotonic() >= self._next_try:
                self.flush()

    def wait(self, seconds: float) -> None:
        """Delivers nothing for so long, unless `flush` is called."""
        self._next_try = time.monotonic() + seconds

    def flush(self) -> None:
        """Tries to deliver what waits, whatever the pause."""
        self.attempt(lambda: self._deliver(self._waiting) if self._waiting else None)

    def close(self) -> None:
        """Tries for the last time; says what is lost."""
        self.flush()
        if self._waiting:
            self._say(f"{self.name}: {len(self._waiting):,} entries were not written")

    def attempt(self, act: Callable[[], object]) -> None:
        """Calls `act`; an exception counts as a failure of this place."""
        with self._lock:
            began = time.monotonic()
            try:
                act()
            except Exception as error:  # whatever fails, the model matters more
                now = time.monotonic()
                pause = min(2.0 ** min(self._failures, 10), _LONGEST_PAUSE)
                self._next_try = now + max(pause, 20 * (now - began))
                self._failures += 1
                if self._failures == 1:
                    why = " ".join(str(error).split()) or type(error).__name__
                    self._say(f"{self.name} failed, and training goes on without it for now: {why[:300]}")
                return
            if self._failures and not self._waiting:
                lost = f"; {self._dropped:,} entries are lost" if self._dropped else ""
                self._failures, self._dropped, self._next_try = 0, 0, 0.0
                self._say(f"{self.name} works again{lost}")


class GrowingFile:
    """A file that grows; on a bucket, which cannot append, it is rewritten every ten seconds, or at a twentieth of the
    time at most, and by `sync` and `close`. It never raises OSError.

    It refuses a symbolic link, which may lead to a file of somebody else, and anything that is not a file.
    """

    def __init__(
        self, path: epath.Path, say: Callable[[str], None], *, size: int | None = None, name: str | None = None
    ):
        """Opens the file, or makes it and its folder, as soon as that works.

        Args:
            path: the file.
            say: takes a line for people, if the file cannot be written.
            size: how many bytes of it to keep; None: all.
            name: of the file in that line; None: its own.

        Raises:
            UserError: the path is a symbolic link, a folder, a pipe or a device.
        """
        self._path, self._size = path, size
        self._whole: bytes | None = None  # of a file on a bucket
        self._descriptor: int | None = None
        self._torn_at: int | None = None
        self._outlet = Outlet(name or path.name, self._append, say)
        if not is_remote(path):
            refuse_special(path, follow=False)
        self._outlet.attempt(self._open)

    def add(self, data: bytes) -> None:
        self._outlet.put(data)

    def sync(self) -> None:
        """Waits until everything is on the disk, if that works."""
        self._outlet.flush()
        if (descriptor := self._descriptor) is not None:
            self._outlet.attempt(lambda: os.fsync(descriptor))

    def close(self) -> None:
        self._outlet.close()
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        if is_remote(self._path):
            self._whole = self._path.read_bytes()[: self._size] if self._path.exists() else b""
            return
        self._path.parent.mkdir(exist_ok=True)
        try:
            refuse_special(self._path, follow=False)
        except UserError as error:  # it has come since the start
            raise OSError(str(error)) from error
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o666)
        try:
            end = os.fstat(descriptor).st_size
            if self._size is not None and end > self._size:
                os.ftruncate(descriptor, self._size)
                end = self._size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a killed run left the last line unfinished
                os.write(descriptor, b"\n")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _append(self, waiting: deque[bytes]) -> None:
        if self._whole is None and self._descriptor is None:
            self._open()
        data = b"".join(waiting)
        if self._descriptor is None:
            assert self._whole is not None
            began = time.monotonic()
            self._path.write_bytes(self._whole + data)
            self._whole += data
            self._outlet.wait(max(_LEAST_PAUSE_ON_BUCKET, 20 * (time.monotonic() - began)))
        else:
            self._write(self._descriptor, data)
        waiting.clear()

    def _write(self, descriptor: int, data: bytes) -> None:
        """Appends all or nothing: what a full disk took of it is cut off again, now or before the next addition."""
        if self._torn_at is not None:
            os.ftruncate(descriptor, self._torn_at)
        self._torn_at = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except BaseException:
            os.ftruncate(descriptor, self._torn_at)
            self._torn_at = None
            raise
        self._torn_at = None
