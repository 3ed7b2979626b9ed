"""The roll call of a job's processes, what they agree on, and how the end of one ends all. Processes are threads here."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bert_jax.runtime.cluster import Place
from bert_jax.runtime.control_channel import EXIT_LOST, ControlChannel, JobEnded
from tests.hosts import free_port


class Job:
    """The channels of a job's processes in this one process; `ends` has what each was told at the end."""

    def __init__(self, *, heartbeat: int = 60, join: int = 20):
        self.address, self.heartbeat, self.join = f"127.0.0.1:{free_port()}", heartbeat, join
        self.ends: dict[int, tuple[int, str]] = {}
        self._channels: list[ControlChannel] = []

    def close(self) -> None:
        for channel in self._channels:
            for peer in list(channel._peers.values()):
                peer.done = True
            channel._over = True
        for channel in self._channels:
            if channel._thread.ident is not None:
                channel._thread.join()
            if channel._selector.get_map():
                channel._close()

    def channel(self, number: int, count: int, *, address: str | None = None) -> ControlChannel:
        def on_end(code: int, line: str) -> bool:
            self.ends[number] = (code, line)
            return False  # a real process ends here

        address = address or self.address
        place = Place(address, address, count, number, None, self.join, self.heartbeat)
        channel = ControlChannel(place, on_end, lambda reason: f"program: error: {reason}")
        self._channels.append(channel)
        return channel

    def open(self, count: int) -> list[ControlChannel]:
        channels = [self.channel(number, count) for number in range(count)]
        each(*(channel.open for channel in channels))
        return channels

    def wait_for_ends(self, count: int) -> dict[int, tuple[int, str]]:
        deadline = time.monotonic() + 30
        while len(self.ends) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.ends


@pytest.fixture
def new_job() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(**options: int) -> Job:
        jobs.append(Job(**options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def each(*acts: Callable[[], Any]) -> list[Any]:
    """What the acts, each in a thread, returned or raised."""
    results: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            results[number] = act()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number, act), daemon=True) for number, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def vanish(channel: ControlChannel) -> None:
    """What the kernel does for a process that is killed."""
    channel._ended = True  # it can tell nobody any more
    for peer in list(channel._peers.values()):
        peer.connection.shutdown(socket.SHUT_RDWR)


def test_values_reach_the_first_in_order_and_its_decisions_reach_all(new_job):
    channels = new_job().open(3)
    assert each(*(lambda channel=channel: channel.gather({"number": channel.number}) for channel in channels)) == [
        [{"number": 0}, {"number": 1}, {"number": 2}],
        [],
        [],
    ]
    told = {"steps": [1, 2], "name": "ein Lauf – é"}
    assert (
        each(lambda: channels[0].tell(told), lambda: channels[1].tell(None), lambda: channels[2].tell(None))
        == [told] * 3
    )
    long = {"text": "x" * 3_000_000}  # more than a socket takes at once
    assert (
        each(lambda: channels[0].tell(long), lambda: channels[1].tell(None), lambda: channels[2].tell(None))
        == [long] * 3
    )
    assert each(*(channel.goodbye for channel in channels)) == [None] * 3


@pytest.mark.slow
def test_the_first_process_names_those_that_do_not_come(new_job):
    job = new_job(join=1)
    channels = [job.channel(number, 5) for number in (0, 2)]
    first, other = each(*(channel.open for channel in channels))
    assert isinstance(first, JobEnded) and isinstance(other, JobEnded)
    assert (first.code, str(first)) == (other.code, str(other))
    assert first.code == EXIT_LOST
    assert str(first).startswith(f"processes 1, 3, 4 of 5 did not come to {job.address} within 1 s")


@pytest.mark.slow
def test_a_process_says_when_the_first_does_not_answer(new_job):
    job = new_job(join=1)
    (error,) = each(job.channel(1, 2).open)
    assert isinstance(error, JobEnded) and error.code == EXIT_LOST
    assert str(error).startswith(f"process 0 did not answer at {job.address} within 1 s (Connection refused)")


@pytest.mark.slow
def test_a_process_waits_while_another_program_has_the_port(new_job):
    job = new_job(join=2, heartbeat=1)
    with socket.create_server(("127.0.0.1", int(job.address.partition(":")[2]))) as stranger:

        def greet() -> None:
            connection, _ = stranger.accept()
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\n")  # as the service of another job
            connection.close()

        threading.Thread(target=greet, daemon=True).start()
        (error,) = each(job.channel(1, 2).open)
        (taken,) = each(job.channel(0, 2).open)
    assert "something else listens there" in str(error)
    assert isinstance(taken, JobEnded) and taken.code == 2
    assert str(taken).startswith(f"cannot listen on {job.address} as the first process: Address already in use")


@pytest.mark.slow
def test_strangers_do_not_disturb_the_roll_call(new_job):
    job = new_job()
    first = job.channel(0, 2)
    waiting = threading.Thread(target=first.open, daemon=True)
    waiting.start()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"hello": {}}\n', b"[]\n", b""):
        stranger = reach(job.address)
        stranger.sendall(said)
        stranger.close()
    other = job.channel(1, 2)
    assert each(other.open) == [None]
    waiting.join(20)
    assert each(lambda: first.tell({"a": 1}), lambda: other.tell(None)) == [{"a": 1}] * 2


def test_a_stranger_that_said_nothing_may_leave_while_the_job_runs(new_job):
    job = new_job()
    first, other = job.channel(0, 2), job.channel(1, 2)
    waiting = threading.Thread(target=first.open, daemon=True)
    waiting.start()
    with reach(job.address) as stranger:
        assert each(other.open) == [None]
        waiting.join(20)
        stranger.settimeout(10)
        assert stranger.recv(1) == b""  # hung up on
    assert each(lambda: first.tell({"a": 1}), lambda: other.tell(None)) == [{"a": 1}] * 2
    assert job.ends == {}


def reach(address: str) -> socket.socket:
    host, port = address.split(":")
    for _ in range(200):
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(address)


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ([(0, 2), (1, 3)], "the number of processes: process 0 has 2, process 1 on HOST has 3"),
        ([(0, 3), (1, 3), (1, 3)], "two processes have the number 1: process 1 on HOST and process 1 on HOST"),
    ],
)
def test_processes_that_were_told_different_things_all_end(new_job, places, line):
    job = new_job()
    found = each(*(job.channel(number, count).open for number, count in places))
    assert [(error.code, str(error).replace(socket.gethostname(), "HOST")) for error in found] == [(2, line)] * len(
        found
    )


@pytest.mark.parametrize("refuser", [0, 1])
def test_a_process_that_cannot_start_ends_those_that_wait(new_job, refuser):
    job = new_job()
    channels = [job.channel(number, 3) for number in range(3)]
    acts = [channel.open for channel in channels]
    acts[refuser] = lambda: channels[refuser].refuse("no such config")
    found = each(*acts)
    assert found[refuser] is None
    others = [error for number, error in enumerate(found) if number != refuser]
    assert [(error.code, str(error)) for error in others] == [(2, "no such config")] * 2


@pytest.mark.slow
def test_a_process_that_is_started_again_joins_the_roll_call(new_job):
    job = new_job()
    first, again, third = (job.channel(number, 3) for number in range(3))
    waiting = threading.Thread(target=first.open, daemon=True)
    waiting.start()
    killed = reach(job.address)
    killed.sendall(json.dumps({"hello": 1, "count": 3, "name": "host"}).encode() + b"\n")
    killed.close()
    assert each(again.open, third.open) == [None, None]
    waiting.join(20)
    assert each(lambda: first.gather("a"), lambda: again.gather("b"), lambda: third.gather("c"))[0] == ["a", "b", "c"]


@pytest.mark.parametrize("who", [0, 1])
def test_the_end_of_one_is_the_end_of_all_with_its_code_and_line(new_job, who):
    job = new_job()
    channels = job.open(3)
    threading.Thread(target=channels[who].end, args=(2, "program: error: data: no such file")).start()
    ends = job.wait_for_ends(2)
    assert ends == {number: (2, "program: error: data: no such file") for number in range(3) if number != who}


@pytest.mark.parametrize("who", [0, 2])
def test_a_process_that_vanishes_ends_all_others(new_job, who):
    job = new_job()
    channels = job.open(3)
    name = f"process {who} on {socket.gethostname()}"
    vanish(channels[who])
    ends = job.wait_for_ends(2)
    for number in {0, 1, 2} - {who}:
        code, line = ends[number]
        assert code == EXIT_LOST
        assert line.startswith(f"program: error: {name} has left without a word")


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_silent_process_counts_as_lost_after_the_heartbeat(new_job, who, monkeypatch):
    job = new_job(heartbeat=1)
    channels = job.open(2)
    silenced = channels[who]
    monkeypatch.setattr(silenced, "_beat", lambda: None)
    code, line = job.wait_for_ends(2)[1 - who]  # the silent one notices that it was left, and may be first
    assert code == EXIT_LOST
    assert line.startswith(f"program: error: process {who} on {socket.gethostname()} has been silent for 1 s")


@pytest.mark.slow
def test_processes_that_are_busy_for_longer_than_the_heartbeat_stay(new_job):
    job = new_job(heartbeat=1)
    channels = job.open(2)

    def decide() -> dict[str, Any]:
        time.sleep(2.5)
        return channels[0].tell({"prepared": True})

    assert each(decide, lambda: channels[1].tell(None)) == [{"prepared": True}] * 2
    assert each(*(channel.goodbye for channel in channels)) == [None] * 2
    assert job.ends == {}
