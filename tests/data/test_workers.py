"""Worker processes keep the order, pass on exceptions, import no JAX, and end with the program."""

import os
import subprocess
import sys
import threading

import pytest

from bert_jax.data import workers as pool
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_jobs(count):
    with Workers(count) as workers:
        assert list(workers.map("builtins:len", ["x" * n for n in range(20)])) == list(range(20))
        assert list(workers.map("builtins:abs", [-3, 2])) == [3, 2]


def test_a_worker_knows_that_it_is_one():
    with Workers(2) as workers:
        assert list(workers.map("builtins:eval", ["__import__('sys').modules['bert_jax.data.workers'].in_worker"])) == [
            True
        ]
    assert not pool.in_worker


def test_jobs_are_taken_as_they_are_needed():
    taken = []

    def jobs():
        for n in range(100):
            taken.append(n)
            yield n

    with Workers(2) as workers:
        results = workers.map("builtins:abs", jobs())
        next(results)
        assert len(taken) <= 5


def test_workers_hold_no_jax_even_where_the_program_does():
    import jax  # noqa: F401

    with Workers(2) as workers:
        code = "[bool(__import__('train.preparation.jobs')), 'jax' in __import__('sys').modules, __import__('os').getpid()]"
        ((_, has_jax, pid),) = workers.map("builtins:eval", [code])
    assert not has_jax
    assert pid != os.getpid()


def test_what_a_worker_prints_does_not_spoil_its_results(capfd):
    with Workers(2) as workers:
        assert list(workers.map("builtins:eval", ["print('hello')", "1 + 1"])) == [None, 2]
    assert "hello" in capfd.readouterr().err


def test_a_users_mistake_comes_through_as_it_is_and_a_bug_with_its_traceback(tmp_path):
    with Workers(2) as workers, pytest.raises(UserError, match="missing; copy the prepared data whole"):
        list(workers.map("bert_jax.data.pretraining.shards:open_shard", [tmp_path]))
    with Workers(2) as workers, pytest.raises(RuntimeError, match=r"(?s)Traceback.*division by zero"):
        list(workers.map("builtins:eval", ["1 / 0"]))


def test_a_worker_that_dies_is_reported_and_not_waited_for():
    with Workers(2) as workers, pytest.raises(UserError, match="code -9, most likely for lack of memory; fewer"):
        list(workers.map("builtins:eval", ["__import__('os').kill(__import__('os').getpid(), 9)"]))


def test_workers_end_when_the_program_is_killed():
    program = """
import os, signal, sys
from bert_jax.data.workers import Workers
workers = Workers(2)
print(*workers.map("builtins:eval", ["__import__('os').getpid()"] * 4), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -9
    for pid in set(done.stdout.split()):
        # The pipe to a worker is closed by now; it only has to notice.
        for _ in range(100):
            if not _is_running(int(pid)):
                break
            subprocess.run(["sleep", "0.1"])
        assert not _is_running(int(pid))


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_starts_while_the_pool_ends_is_ended_too(monkeypatch):
    start, number, slow = pool._start, iter(range(3)), threading.Event()

    def start_slowly():
        second = next(number) == 1
        if second:
            slow.wait(60)
        process = start()
        if second:
            started.append(process)
        return process

    started = []
    monkeypatch.setattr(pool, "_start", start_slowly)
    threading.Timer(2, slow.set).start()  # when `with` has been left
    with pytest.raises(RuntimeError, match="division by zero"), Workers(2) as workers:
        list(workers.map("builtins:eval", ["1 / 0", "2"]))
    assert started[0].returncode == -9
