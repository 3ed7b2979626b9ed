"""`ControlChannel`: heartbeats, decisions and the reason of an ending, between each process of a job and process 0.

JAX's own coordination service cannot name the processes that do not come, says nothing of why one left, and aborts all
others when one is lost. So every process keeps a TCP connection with process 0, from before JAX joins them to the end
of the job. Process 0 listens on the coordinator's own port until all have come; then JAX's service takes over the port.
Messages are JSON objects, one a line.
"""

import contextlib
import errno
import json
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bert_jax.runtime.cluster import Place

EXIT_LOST = 75  # EX_TEMPFAIL: the same command may succeed
_CONNECT_SECONDS = 5
_LISTEN_SECONDS = 20  # how long the first process waits for its port to be free
_LATE_SECONDS = 60  # how long the first process waits to tell late ones that the job has ended
_END_SECONDS = 5  # how long the first process waits for the others to end, and they for its answer


class JobEnded(Exception):
    """The job ended before it began: `code` to exit with, and the line that says why."""

    def __init__(self, code: int, line: str):
        super().__init__(line)
        self.code = code


class _Peer:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket, number: int | None = None):
        self.connection, self.number, self.name = connection, number, ""
        self.silent = 0.0  # seconds
        self.done = False  # it said goodbye
        self._unread = b""
        self._sending = threading.Lock()

    def __str__(self) -> str:
        return f"process {self.number} on {self.name}" if self.name else f"process {self.number}"

    def send(self, message: dict[str, Any]) -> None:
        """A peer that is gone is noticed where it is read from."""
        with self._sending, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None at the connection's end, or if the other end is no `ControlChannel`."""
        try:
            found = self.connection.recv(1 << 20)
            *lines, self._unread = (self._unread + found).split(b"\n")
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return None
        return messages if found and all(isinstance(message, dict) for message in messages) else None


class ControlChannel:
    """This process's connection with the first process of the job; the first's, with all others.

    `open()` returns when all are there. Then a thread listens. When another process ends the job or is lost, it calls
    `on_end(code, line)` and ends this process with that code, unless that returns False because the process is ending
    already.
    """

    def __init__(self, place: Place, on_end: Callable[[int, str], bool], error_line: Callable[[object], str]):
        self.number, self.count = place.number, place.count
        self._place, self._on_end, self._error_line = place, on_end, error_line
        self._name = socket.gethostname()
        self._heartbeat = float(place.heartbeat_seconds)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._come: list[_Peer] = []  # to the roll call of the first process
        self._news = threading.Condition()
        self._values: dict[int, dict[int, Any]] = {}  # turn -> number of a process -> its value
        self._decisions: dict[int, dict[str, Any]] = {}
        self._turn = 0
        self._ended = False  # somebody has ended the job
        self._answered = threading.Event()  # the first process knows that this one has ended it
        self._over = False  # all have said goodbye
        self._last_tick = time.monotonic()
        self._next_beat = 0.0
        self._thread = threading.Thread(target=self._listen, name="control channel", daemon=True)

    def __str__(self) -> str:
        return f"process {self.number} on {self._name}"

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def open(self) -> None:
        """Waits until all processes are there, then listens in a thread.

        Raises:
            JobEnded: some do not come in time, they were told different things, or one came only to `refuse`.
        """
        with contextlib.ExitStack() as failed:
            failed.callback(self._close)
            if self.is_first:
                self._await_all()
            else:
                self._reach_first({})
            failed.pop_all()
        self._last_tick = time.monotonic()
        self._thread.start()

    def refuse(self, line: str) -> None:
        """Comes to the roll call in place of `open()` only to end it for all with code 2: this process cannot start."""
        with contextlib.suppress(JobEnded):
            if self.is_first:
                self._await_all(line)
            else:
                self._reach_first({"end": 2, "line": line})
        self._close()

    # The roll call ----------------------------------------------------------------------------------------------------

    def _await_all(self, why_not: str | None = None) -> None:
        """The first process's part; with `why_not` it tells each of the others, and ends all."""
        end = None if why_not is None else (2, why_not)
        deadline = time.monotonic() + self._place.join_seconds
        with self._listener() as listener:
            self._selector.register(listener, selectors.EVENT_READ)
            while len(self._come) < self.count - 1 and time.monotonic() < deadline:
                for key, _ in self._selector.select(min(1.0, self._heartbeat / 4)):
                    if key.fileobj is listener:
                        connection, _ = listener.accept()
                        connection.settimeout(self._heartbeat)
                        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))
                    elif (found := self._greet(key.data)) and end is None:
                        end = found
                        # Who comes late shall hear of it too.
                        deadline = min(deadline, time.monotonic() + _LATE_SECONDS)
                self._beat()
            self._selector.unregister(listener)
        for key in list(self._selector.get_map().values()):
            if key.data not in self._come:  # a stranger that said nothing: its leaving must not end the job
                self._drop(key.data)
        if missing := [number for number in range(1, self.count) if number not in self._peers]:
            who = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            limit = f"within {self._place.join_seconds} s; start the same command on every host"
            why = f"{who}{more} of {self.count} did not come to {self._place.coordinator} {limit}"
            end = end or (EXIT_LOST, why)
        for peer in self._come:
            peer.silent = 0.0
            if end is None:
                peer.send({"welcome": self._name, "heartbeat": self._heartbeat})
            else:
                peer.send({"end": end[0], "line": end[1]})
        if end is not None:
            self._await_goodbyes()
            raise JobEnded(*end)

    def _listener(self) -> socket.socket:
        host, _, port = (self._place.bind or f"[::]:{self._place.coordinator.rpartition(':')[2]}").rpartition(":")
        host = host.strip("[]")
        both = host == "::" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or (host != "::" and ":" in host) else socket.AF_INET
        at = ("" if host == "::" else host, int(port))
        # After a restart the last job's first process may still be ending.
        until = time.monotonic() + min(_LISTEN_SECONDS, self._place.join_seconds)
        while True:
            try:
                return socket.create_server(at, family=family, dualstack_ipv6=both, backlog=1024)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    why = f"cannot listen on {host}:{port} as the first process: {error.strerror}"
                    raise JobEnded(2, why) from None
            time.sleep(0.5)

    def _greet(self, peer: _Peer) -> tuple[int, str] | None:
        """Takes what a process says that comes; returns code and reason if that is the end of the job."""
        messages = peer.read()
        if messages is None:  # a stranger, or a process that is started again
            self._drop(peer)
            return None
        for message in messages:
            number, count = message.get("hello"), message.get("count")
            if not isinstance(number, int):
                continue
            peer.number, peer.name = number, str(message.get("name", ""))
            twin = self._peers.get(number)
            if twin is not None and twin.is_gone():
                self._drop(twin)
                twin = None
            self._come.append(peer)
            self._peers[number] = peer
            if "end" in message:
                return message["end"], message["line"]
            if count != self.count:
                return 2, f"the number of processes: process 0 has {self.count}, {peer} has {count}"
            if twin is not None or not 0 < number < self.count:
                return 2, f"two processes have the number {number}: {twin or self} and {peer}"
        return None

    def _reach_first(self, more: dict[str, Any]) -> None:
        deadline = time.monotonic() + self._place.join_seconds
        host, _, port = self._place.coordinator.rpartition(":")
        why = "no answer"
        while time.monotonic() < deadline:
            try:
                connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)
            except OSError as error:
                why = error.strerror or str(error)
            else:
                connection.settimeout(self._heartbeat)
                peer = _Peer(connection, 0)
                self._selector.register(connection, selectors.EVENT_READ, peer)
                peer.send({"hello": self.number, "count": self.count, "name": self._name, **more})
                if self._is_welcome(peer):
                    self._peers[0] = peer
                    return
                why = "something else listens there, or the first process started again"
                self._drop(peer)
            time.sleep(0.5)
        raise JobEnded(
            EXIT_LOST,
            f"process 0 did not answer at {self._place.coordinator} within {self._place.join_seconds} s ({why}); start "
            "the same command on every host",
        )

    def _is_welcome(self, peer: _Peer) -> bool:
        """Waits for the first process to say that all are there; False if the connection ends or goes silent."""
        silent_since = time.monotonic()
        while time.monotonic() - silent_since < self._heartbeat:
            if not self._selector.select(1.0):
                continue
            messages = peer.read()
            if messages is None:
                return False
            silent_since = time.monotonic()
            for message in messages:
                if "end" in message:
                    raise JobEnded(message["end"], message["line"])
                if "welcome" in message:
                    peer.name, self._heartbeat = message["welcome"], message["heartbeat"]
                    return True
        return False

    # What they agree on -----------------------------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all processes on the first, in their order; [] on the others. All must call it."""
        self._turn += 1
        if not self.is_first:
            self._peers[0].send({"turn": self._turn, "value": value})
            return []
        self._wait(lambda: len(self._values.get(self._turn, ())) == self.count - 1)
        found = self._values.pop(self._turn)
        return [value, *(found[number] for number in range(1, self.count))]

    def tell(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """The first process's JSON object on all of them, which must all call it; the others give None."""
        self._turn += 1
        if not self.is_first:
            self._wait(lambda: self._turn in self._decisions)
            return self._decisions.pop(self._turn)
        assert message is not None
        self._send_all({"turn": self._turn, "decision": message})
        return json.loads(json.dumps(message))

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._news:
            while not ready():
                self._news.wait(1.0)  # a limit, so that Ctrl-C gets through; who waits for a lost process is ended

    def _send_all(self, message: dict[str, Any]) -> None:
        for peer in list(self._peers.values()):  # the thread may drop one meanwhile
            peer.send(message)

    # The end ----------------------------------------------------------------------------------------------------------

    def goodbye(self) -> None:
        """Waits until all processes have called it: nothing is left to do for any."""
        if self.is_first:
            self._wait(lambda: all(peer.done for peer in list(self._peers.values())))
        self._send_all({"bye": True})
        self._over = True
        self._thread.join()
        self._close()

    def end(self, code: int, line: str) -> None:
        """Ends the other processes with this code and this line; the caller must then end this one.

        Returns when the others have ended, on the first process; when that one knows, on the others; or after seconds.
        """
        self._ended = True
        self._send_all({"end": code, "line": line})
        if self.is_first:
            self._thread.join(_END_SECONDS)
        else:
            self._answered.wait(_END_SECONDS)

    def _await_goodbyes(self) -> None:
        """Waits until all connections have ended, for at most some seconds."""
        deadline = time.monotonic() + _END_SECONDS
        while (self._peers or self._come) and time.monotonic() < deadline:
            for key, _ in self._selector.select(0.2):
                if isinstance(key.data, _Peer) and key.data.read() is None:
                    self._drop(key.data)

    def _listen(self) -> None:
        while not self._over or not all(peer.done for peer in self._peers.values()):
            for key, _ in self._selector.select(min(1.0, self._heartbeat / 8)):
                peer = key.data
                messages = peer.read()
                if messages is None:
                    self._drop(peer)
                    self._lost(peer, "has left without a word: it was killed, or its machine is gone")
                    continue
                peer.silent = 0.0
                for message in messages:
                    self._take(peer, message)
            if self._ended and not self._peers:
                return
            self._beat()
            for peer in list(self._peers.values()):
                if peer.silent > self._heartbeat and not peer.done:
                    self._drop(peer)
                    self._lost(peer, f"has been silent for {self._heartbeat:g} s: it hangs, or its network is gone")

    def _beat(self) -> None:
        """Sends a sign of life when one is due, and counts for how long each peer has been silent.

        A pause of this process itself (its machine slept) is no silence of the others.
        """
        now = time.monotonic()
        passed = min(now - self._last_tick, self._heartbeat / 4)
        self._last_tick = now
        for peer in self._peers.values():
            peer.silent += passed
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat / 4
            self._send_all({"beat": True})

    def _take(self, peer: _Peer, message: dict[str, Any]) -> None:
        if "end" in message:
            self._come_to_end(message["end"], message["line"])
            return
        with self._news:
            if "value" in message:
                assert peer.number is not None
                self._values.setdefault(message["turn"], {})[peer.number] = message["value"]
            elif "decision" in message:
                self._decisions[message["turn"]] = message["decision"]
            elif "bye" in message:
                peer.done = True
            self._news.notify_all()

    def _lost(self, peer: _Peer, why: str) -> None:
        if not peer.done:
            if (stood_still := time.monotonic() - self._last_tick) > self._heartbeat:
                what = f"this process itself stood still for {stood_still:.0f} s, and the others went on without it"
            else:
                what = f"{peer} {why}"
            line = self._error_line(f"{what}; the same command continues from the last checkpoint")
            self._come_to_end(EXIT_LOST, line)

    def _come_to_end(self, code: int, line: str) -> None:
        self._answered.set()
        if self._ended:
            return
        self._ended = True
        self._send_all({"end": code, "line": line})  # the first process tells the others
        if self._on_end(code, line):
            if self.is_first:  # it ends last: JAX aborts the others when its service is gone
                self._await_goodbyes()
            os._exit(code)

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _drop(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it was dropped before
            self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer in self._come:
            self._come.remove(peer)
        if self._peers.get(-1 if peer.number is None else peer.number) is peer:
            del self._peers[peer.number]  # type: ignore[arg-type]
