"""The processes of a job: join them, decide on one of them, compare what they have, and end together.

A program calls `join()` before it uses JAX's devices, and `leave()` when it is done. In between, the first process
decides what depends on a disk (`on_first_process`), and `fail()` ends all processes with one line. If a process is
lost, the others end with `EXIT_LOST`. In a process that is alone, all of these do nothing.
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from bert_jax.errors import UserError
from bert_jax.runtime.cluster import find_place
from bert_jax.runtime.control_channel import ControlChannel

_channel: ControlChannel | None = None
_ending = threading.Lock()  # held by whoever ends this process
_last_acts: list[Callable[[int, str], object]] = []


def join(options: Mapping[str, str] | None = None, *, error_line: Callable[[object], str] = str) -> None:
    """Joins this process to the others of its job, if it has any; call it before anything that starts JAX's backend.

    Args:
        options: as `find_place`.
        error_line: makes the line that is printed when another process is lost from the reason.

    Raises:
        UserError: as `find_place`.
        JobEnded: not all processes come in time, or they were told different things.
    """
    global _channel
    import jax

    if _channel is not None or jax.distributed.is_initialized():
        return
    place = find_place(options)
    if place is None:
        return
    channel = ControlChannel(place, _end, error_line)
    channel.open()
    _channel = channel
    _survive_abort()
    # The channel notices a lost process first and says who it was; JAX's service would abort this one without a reason.
    jax.distributed.initialize(
        place.coordinator,
        place.count,
        place.number,
        local_device_ids=place.devices,
        cluster_detection_method="deactivate",
        initialization_timeout=place.join_seconds,
        heartbeat_timeout_seconds=place.heartbeat_seconds + 30,
        shutdown_timeout_seconds=60,
        coordinator_bind_address=place.bind,
    )


def refuse(options: Mapping[str, str], reason: str, error_line: Callable[[object], str]) -> bool:
    """Prints the error of this process, which cannot start, and ends the processes of its job that wait for it.

    Waits a minute for them at most.

    Args:
        options, error_line: as for `join`; if the options are wrong too, the others learn nothing.
        reason: of the error.

    Returns:
        False if this process is alone; then nothing is printed.
    """
    try:
        place = find_place(options)
    except UserError:
        return False
    if place is None or _channel is not None:
        return False
    _tell(error_line(reason))
    place = dataclasses.replace(place, join_seconds=min(place.join_seconds, 60))
    ControlChannel(place, _end, error_line).refuse(reason)
    return True


def _survive_abort() -> None:
    """Delays an abort by six seconds, in which this process can end in order.

    When the first process is killed, JAX's service aborts the others within milliseconds, and nothing in JAX's Python
    interface prevents that. The handler of SIGABRT is C's `sleep`, called with the signal's number, in the thread that
    aborts; meanwhile the channel notices the loss, says so and ends the process. Any other abort comes six seconds
    later.
    """
    if not faulthandler.is_enabled():
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))


def in_a_job() -> bool:
    """Whether `join` has found other processes."""
    return _channel is not None


def own_name() -> str:
    """This process as the others' messages name it."""
    assert _channel is not None
    return str(_channel)


def is_first() -> bool:
    """Whether this process decides and writes for its job; True if it is alone."""
    if _channel is not None:
        return _channel.is_first
    import jax

    return jax.process_index() == 0


def on_first_process(
    decide: Callable[[], Any], *, errors: Sequence[type[Exception]] = (UserError, FileNotFoundError, OSError)
) -> Any:
    """Calls `decide` on the first process; every process returns its JSON value or raises its error. All must call it.

    Args:
        decide: takes as long as it likes; it must not be what starts JAX's backend, which all processes start together.
        errors: the types of error that all processes raise; of an error of several types, the first counts. Any other
            error is a bug, which the first process alone raises, and the end of that one ends all.
    """
    told: dict[str, Any] | None = None
    failure: Exception | None = None
    if is_first():
        try:
            told = {"value": decide()}
        except Exception as error:
            failure = error
            kind = next((index for index, kind in enumerate(errors) if isinstance(error, kind)), None)
            if kind is None and _channel is not None:
                raise
            told = {"error": kind, "message": str(error)}
    answer = _broadcast(told) if _channel is None else _channel.tell(told)
    if failure is not None:
        raise failure
    if "error" in answer:
        kind = answer["error"]
        raise (RuntimeError if kind is None else errors[kind])(answer["message"])
    return answer["value"]


def _broadcast(told: dict[str, Any] | None) -> dict[str, Any]:
    """The first process's object on all, over JAX's devices, for programs that joined by `jax.distributed` itself."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        assert told is not None
        return json.loads(json.dumps(told))
    text = json.dumps(told).encode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    room = np.zeros(size, np.uint8)
    if told is not None:
        room[:] = np.frombuffer(text, np.uint8)
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(room), np.uint8)))


def gathered(value: Any) -> list[Any]:
    """The JSON values of all processes, in their order, on the first; [] on the others. All must call it."""
    return [value] if _channel is None else _channel.gather(value)


def same_everywhere(facts: Mapping[str, Any]) -> None:
    """Ends with one line if the processes have different facts. All must call it.

    Args:
        facts: name -> JSON value; nested objects have dotted names in the message.

    Raises:
        UserError: on all processes, with both values of each fact that differs in the first process that differs.
    """
    if _channel is None:
        return
    found = gathered(dict(facts))

    def compare() -> None:
        for number, theirs in enumerate(found[1:], 1):
            if differing := [*_differences(found[0], theirs)]:
                shown = "; ".join(
                    f"{name}: process 0 has {a}, process {number} has {b}" for name, a, b in differing[:3]
                )
                more = f" (and {len(differing) - 3} more differences)" if len(differing) > 3 else ""
                raise UserError(f"the processes must run the same: {shown}{more}")

    on_first_process(compare)


def _differences(ours: Any, theirs: Any, name: str = "") -> list[tuple[str, str, str]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        parts = (_differences(ours.get(key), theirs.get(key), f"{name}.{key}" if name else key) for key in keys)
        return [difference for part in parts for difference in part]
    return [] if ours == theirs else [(name, _shown(ours), _shown(theirs))]


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def connect(mesh: Any) -> None:
    """Connects the CPUs of all processes for every group of the mesh's axes. All must call it.

    Without it they connect in the first step that needs a group, and then JAX gives up on a process that comes 30 s
    after another: one that compiles the step, say, while the other has it in its cache. Once they are connected, they
    wait for each other without a limit, as other devices do.

    Args:
        mesh: a jax.sharding.Mesh over the devices of all processes.
    """
    import jax

    if _channel is None or jax.default_backend() != "cpu":
        return
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    one = jax.make_array_from_callback((), everywhere, lambda _: np.float32(1))
    axes = [name for name, size in mesh.shape.items() if size > 1]
    for group in (group for count in range(1, len(axes) + 1) for group in itertools.combinations(axes, count)):
        add = jax.shard_map(
            partial(jax.lax.psum, axis_name=group),
            mesh=mesh,
            in_specs=everywhere.spec,
            out_specs=everywhere.spec,
            check_vma=False,
        )
        added = jax.jit(add).lower(one).compile()
        gathered(None)
        on_first_process(lambda: None)  # all are here
        jax.block_until_ready(added(one))


def before_ending(act: Callable[[int, str], object]) -> Callable[[], None]:
    """Has `act(code, line)` called if another process ends this one; returns a function that withdraws it."""
    _last_acts.append(act)
    return lambda: _last_acts.remove(act)


def _end(code: int, line: str) -> bool:
    """Prints the line and lets the last acts run; False if this process is ending already. For the channel's thread."""
    if not _ending.acquire(blocking=False):
        return False
    _act_last(code, line, seconds=10)
    return True


def _act_last(code: int, line: str, *, seconds: float) -> None:
    """Prints the line and lets the last acts run, but waits only for `seconds`: a disk or a pipe may hang."""

    def act() -> None:
        _tell(line)
        for last in reversed(_last_acts[:]):
            try:
                last(code, line)
            except Exception as error:  # the next one still runs
                _tell(f"while ending: {error}")
        if sys.stdout is not None:
            sys.stdout.flush()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)


def end_at_once(code: int, line: str, *, seconds: float = 10) -> NoReturn:
    """Ends this process from any thread, whatever the others do, and the other processes of its job with it.

    Prints the line and lets the last acts run, for at most `seconds`. The others end with the same code and line.
    """
    if not _ending.acquire(blocking=False):
        time.sleep(seconds)  # another thread ends this process, unless it hangs
        os._exit(code)
    _act_last(code, line, seconds=seconds)
    if _channel is not None:
        _channel.end(code, line)
    os._exit(code)


def _tell(line: str) -> None:
    if sys.stderr is not None:  # a parent may have closed it
        with contextlib.suppress(OSError):  # or its reader has gone
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def fail(code: int, line: str, *, others: tuple[int, str] | None = None) -> NoReturn:
    """Prints `line` and ends this process with `code`, and all others with the same or with the two in `others`.

    If another process ends the job at the same time, this one ends as that one says.
    """
    assert _channel is not None
    if not _ending.acquire(blocking=False):
        time.sleep(60)  # the channel's thread ends this process
    try:
        _tell(line.rstrip())
        _channel.end(*(others or (code, line)))
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:  # also if nobody reads stdout any more
        os._exit(code)  # the normal end would wait for the others, which have left


def await_end_by_another() -> None:
    """Waits a little: what failed here may have failed because another process is lost, which then ends this one."""
    time.sleep(3)


def leave() -> None:
    """Waits until all processes are done, and takes this one out of the job."""
    global _channel
    if _channel is None:
        return
    _channel.goodbye()
    import jax

    jax.distributed.shutdown()
    _channel = None
