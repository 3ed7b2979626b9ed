"""Prefetch: the same batches in the same order, bounded; it stops, passes on exceptions and leaves no thread."""

import gc
import itertools
import threading
import traceback

import pytest

from bert_jax.data.prefetch import Prefetch


class Numbers:
    """batch(step) = 10 * step; raises at step `broken`; records the steps and the threads that asked for them."""

    def __init__(self, broken: int | None = None):
        self.asked: list[int] = []
        self.threads: set[str] = set()
        self._broken = broken
        self.count = threading.Condition()

    def batch(self, step: int) -> int:
        with self.count:
            self.asked.append(step)
            self.threads.add(threading.current_thread().name)
            self.count.notify_all()
        if step == self._broken:
            raise KeyError("shard 7 is gone")
        return 10 * step

    def wait_until_asked_for(self, step: int) -> None:
        with self.count:
            assert self.count.wait_for(lambda: step in self.asked, timeout=30)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_gives_what_the_source_gives_in_order():
    source = Numbers()
    with Prefetch(source, 3, 9) as prefetched:
        assert list(prefetched) == [30, 40, 50, 60, 70, 80]
        assert list(prefetched) == []
    assert source.asked == [3, 4, 5, 6, 7, 8]
    assert source.threads == {"prefetch"}


def test_an_empty_range_ends_at_once():
    assert list(Prefetch(Numbers(), 5, 5)) == []
    assert list(Prefetch(Numbers(), 5, 3)) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_works_ahead_by_its_depth_and_no_further(depth):
    source = Numbers()
    with Prefetch(source, 0, None, depth=depth) as prefetched:
        for step in range(4):
            assert next(prefetched) == 10 * step
            source.wait_until_asked_for(step + 1 + depth)  # `depth` ready, and the one that the thread is making
            assert max(source.asked) == step + 1 + depth


def test_an_endless_prefetch_stops_on_close():
    source = Numbers()
    with Prefetch(source, 0, None) as prefetched:
        assert next(prefetched) == 0
        thread = prefetched._thread
    assert not thread.is_alive()
    assert list(prefetched) == []
    prefetched.close()


def test_leaving_by_an_exception_of_the_consumer_stops_it():
    with pytest.raises(ZeroDivisionError), Prefetch(Numbers(), 0, None) as prefetched:
        divmod(1, next(prefetched))
    assert not prefetched._thread.is_alive()


@pytest.mark.slow
def test_a_prefetch_without_references_stops():
    prefetched = Prefetch(Numbers(), 0, None)
    next(prefetched)
    thread = prefetched._thread
    del prefetched
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_an_exception_comes_out_in_its_place_with_its_traceback_and_again():
    with Prefetch(Numbers(broken=2), 0, 10) as prefetched:
        assert [next(prefetched), next(prefetched)] == [0, 10]
        with pytest.raises(KeyError, match="shard 7 is gone") as caught:
            next(prefetched)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "batch"
        with pytest.raises(KeyError):
            next(prefetched)
    assert not prefetched._thread.is_alive()


def test_closing_while_a_batch_is_in_the_making_waits_for_it():
    started, go = threading.Event(), threading.Event()

    class Slow:
        def batch(self, step: int) -> int:
            started.set()
            assert go.wait(timeout=30)
            return step

    prefetched = Prefetch(Slow(), 0, None)
    assert started.wait(timeout=30)
    closer = threading.Thread(target=prefetched.close)
    closer.start()
    go.set()
    closer.join(timeout=30)
    assert not prefetched._thread.is_alive()


def test_tells_how_long_the_consumer_waited(monkeypatch):
    clock = itertools.count(100, 7)  # the clock advances 7 s each time that it is read; only waiting reads it
    monkeypatch.setattr("bert_jax.data.prefetch.time.perf_counter", lambda: next(clock))
    with Prefetch(Numbers(), 0, 2) as prefetched:
        waited = [prefetched.waited]
        for _ in prefetched:
            waited.append(prefetched.waited)
    assert waited == [0, 7, 14]


def test_a_depth_of_zero_is_refused():
    with pytest.raises(ValueError, match="depth"):
        Prefetch(Numbers(), 0, 1, depth=0)
