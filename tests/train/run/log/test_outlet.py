"""A log that cannot be written: the failure is said once, nothing waits, and what was not written comes later."""

import errno
import math
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath

from tests.run_directory import records
from tests.train.run.clock import Clock
from train.run.log import curves, outlet
from train.run.log.events import Events
from train.run.log.outlet import GrowingFile, Outlet
from train.run.log.run_log import RunLog


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock(1000.0)
    monkeypatch.setattr(outlet, "time", made)
    return made


class Disk:
    """`os.write`, `os.open` and `os.fsync` of the log, on a disk that takes `room` more bytes."""

    def __init__(self, monkeypatch, room: int | None = 0, error: int = errno.ENOSPC):
        self.room, self.error, self.calls = room, error, 0
        self._write, self._open, self._fsync = os.write, os.open, os.fsync
        for name in ("write", "open", "fsync"):
            monkeypatch.setattr(outlet.os, name, getattr(self, name))

    def _fail(self):
        self.calls += 1
        raise OSError(self.error, os.strerror(self.error))

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room is None:
            return self._write(descriptor, data)
        if self.room == 0:
            self._fail()
        taken = self._write(descriptor, data[: self.room])
        self.room -= taken
        return taken

    def open(self, path, flags: int, *mode: int) -> int:
        if self.room == 0 and flags & os.O_CREAT:
            self._fail()
        return self._open(path, flags, *mode)

    def fsync(self, descriptor: int) -> None:
        if self.room == 0:
            self._fail()
        self._fsync(descriptor)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("room", [0, 5, 30])
def test_what_a_full_disk_did_not_take_is_written_later_in_order_and_whole(tmp_path, monkeypatch, clock, error, room):
    path, said = tmp_path / "metrics.jsonl", []
    disk = Disk(monkeypatch, room, error)
    file = GrowingFile(epath.Path(path), said.append)
    lines = [f"row {number} of the log\n".encode() for number in range(100)]
    for number, line in enumerate(lines):
        clock.now += 0.1
        if number == 90:
            assert len(said) == 1 and said[0].startswith(
                "metrics.jsonl failed, and training goes on without it for now"
            )
            assert disk.calls < 12  # ten seconds: it is not tried for each row
            assert not path.exists() or path.read_bytes() == b"".join(lines[: room // len(lines[0])])
            disk.room = None
        file.add(line)
        file.sync() if number == 95 else None
    file.close()
    assert path.read_bytes() == b"".join(lines)
    assert said[1:] == ["metrics.jsonl works again"]


def test_a_file_on_a_bucket_is_written_anew_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch, clock):
    """Each upload is of the whole file: with one for each row a run of 20,000 rows sends 100 GB."""
    monkeypatch.setattr(outlet, "is_remote", lambda path: True)
    path, uploads = epath.Path(tmp_path / "metrics.jsonl"), []
    write_bytes = type(path).write_bytes

    def upload(self, data: bytes) -> int:
        clock.now += 2.0 * len(data) / 10_000
        uploads.append(clock.now)
        return write_bytes(self, data)

    monkeypatch.setattr(type(path), "write_bytes", upload)
    file, lines, began = GrowingFile(path, str), [b"a row\n"] * 1_000, clock.now
    for line in lines:
        clock.now += 0.5
        file.add(line)
    assert 10 < len(uploads) <= (clock.now - began) / 10
    file.sync()  # as before a checkpoint
    assert path.read_bytes() == b"".join(lines)
    file.add(b"last\n")
    file.close()
    assert path.read_bytes() == b"".join(lines) + b"last\n"


def test_a_place_that_is_down_for_days_is_tried_again_and_again(clock):
    tried = []

    def deliver(waiting) -> None:
        tried.append(clock.now)
        raise OSError("no")

    place = Outlet("it", deliver, lambda line: None)
    for number in range(1100):
        clock.now += 65
        place.put(number)
    assert len(tried) == 1100


def test_what_waits_has_a_bound_and_what_is_lost_is_said(monkeypatch, clock):
    taken, said, broken = [], [], [True]

    def deliver(waiting) -> None:
        if broken:
            raise OSError("no")
        taken.extend(waiting)
        waiting.clear()

    monkeypatch.setattr(outlet, "_MOST_KEPT", 10)
    place = Outlet("it", deliver, said.append)
    for number in range(25):
        place.put(number)
    broken.clear()
    place.flush()
    assert taken == list(range(15, 25))
    assert said[1] == "it works again; 15 entries are lost"


def test_a_place_that_fails_slowly_is_tried_a_twentieth_of_the_time(clock):
    tries = []

    def deliver(waiting) -> None:
        tries.append(clock.now)
        clock.now += 60
        raise TimeoutError

    place = Outlet("slow", deliver, lambda line: None)
    for _ in range(10_000):
        clock.now += 1
        place.put(None)
    assert len(tries) * 60 <= (clock.now - 1000) / 20 + 60


def records_of(path: Path) -> list:
    """The events of a file, as https://www.tensorflow.org/tutorials/load_data/tfrecord describes it."""
    from tests.formats.tensorflow.tensorboard import part

    Event, checked = part("proto.event_pb2").Event, part("record_writer").masked_crc32c
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == checked(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == checked(body)
        found.append(Event.FromString(body))
        at += 16 + length
    return found


def test_tensorboard_gets_finite_numbers_under_their_names_and_hides_repeated_steps(tmp_path, monkeypatch):
    threads = threading.active_count()
    for start, clock in ((0, 2_000_000_000.0), (4, 1_000_000_000.0)):  # the clock is set back
        monkeypatch.setattr("train.run.log.events.time", SimpleNamespace(time=lambda clock=clock: clock))
        events = Events(tmp_path, start, print)
        events.add("train", start + 2, {"loss": 0.5, "f1": 0.0, "far": -1e39, "norm": float("nan"), "best": True})
        events.close()
    assert threading.active_count() == threads
    first, second = (records_of(path) for path in sorted(tmp_path.iterdir()))
    assert [record.file_version for record in first] == ["brain.Event:2", "", ""]
    assert [(record.session_log.status, record.step) for record in second] == [(0, 0), (1, 5), (0, 6)]
    assert [record.wall_time for record in second] == [1_000_000_000.0] * 3
    values = [(value.tag, value.WhichOneof("value"), value.simple_value) for value in second[2].summary.value]
    kind = "simple_value"
    assert values == [("train/loss", kind, 0.5), ("train/f1", kind, 0.0), ("train/far", kind, -math.inf)]


def test_writing_event_files_loads_no_pytorch(tmp_path):
    program = "import sys; from train.run.log.events import Events; events = Events(sys.argv[1], 0, print); "
    program += "events.add('eval', 1, {'f1': 1.0}); events.close(); "
    program += "print([name for name in ('torch', 'tensorboardX', 'google.cloud') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("full", ["tensorboard", "metrics.jsonl", "run.log", "curves.png"])
def test_a_part_of_the_log_that_cannot_be_written_takes_no_other_part_with_it(tmp_path: Path, monkeypatch, full: str):
    open_ = os.open

    def refuse(path, flags, *arguments):
        if full in os.fspath(path) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_(path, flags, *arguments)

    monkeypatch.setattr(outlet.os, "open", refuse)
    if full == "curves.png":
        monkeypatch.setattr(curves, "write_whole", lambda path, content: refuse(path, os.O_CREAT))
    with RunLog(epath.Path(tmp_path), start_step=0, total_steps=400) as log:
        for step in range(400):
            log.record("train", step, {"loss": 1.0, "mlm_loss": 1.0})
            log.draw()
        log.keep()
    names = {"tensorboard", "metrics.jsonl", "run.log", "curves.png"} - {full}
    found = {path.name for path in tmp_path.iterdir() if path.is_file() or any(path.iterdir())}
    assert found == names
    if full != "metrics.jsonl":
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 400
    if full != "run.log":
        said = (tmp_path / "run.log").read_text()
        assert said.count(f"{full} failed, and training goes on without it for now: [Errno 28] No space left") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_under_tensorboard_does_not_stop_the_log(tmp_path: Path):
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        with RunLog(epath.Path(tmp_path), start_step=0, total_steps=1000) as log:
            for step in range(1000):
                log.record("train", step, {"loss": 1.0})
    finally:
        subprocess.run(["umount", folder], check=True)
    assert [row["step"] for row in records(tmp_path)] == [*range(1000)]


def test_a_console_that_cannot_be_written_ends_nothing(tmp_path: Path):
    console = open("/dev/full", "w", buffering=1)
    with RunLog(epath.Path(tmp_path), start_step=0, total_steps=9, stream=console) as log:
        for step in range(9):
            log.record("eval", step, {"loss": 1.0})
    with pytest.raises(OSError, match="No space"):
        console.close()
    assert len((tmp_path / "run.log").read_text().splitlines()) == 9
