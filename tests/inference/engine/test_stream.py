"""A stream of results: any iterable, read in the caller's thread and a little ahead; every item gets a result."""

import copy
import itertools
import os
import pickle
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.cli import streaming as serve
from bert_jax.cli.streaming import answered_by
from bert_jax.data.prefetch import prefetch
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.source import Source
from bert_jax.inference.engine.engine import IN_FLIGHT, Engine
from bert_jax.inference.runtimes.xla import Programs
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.task_model import EncodedItems, TaskModel
from tests.inference.tasks.task_folders import LONGEST, export

CHUNK = 2 * (IN_FLIGHT + 1)  # of batches of two: more than are in flight


class Ends(TaskModel):
    """The last letter of each text, by an engine that costs nothing to compile."""

    def __init__(self):
        self.engine = Engine(Programs(last_ids, {}, jax.devices()[:1]), longest=16, batch_size=2)
        self.settled: dict[str, Any] = {}
        self.source = Source(Path("ends"))
        self.tokenizer = Tokenizer.from_vocabulary(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), cased=True)

    def encode(self, items: list[str], first: int, **options: Any) -> EncodedItems:
        for number, item in enumerate(items):
            if not item.isalpha():
                raise UserError(f"text {first + number + 1}: no letters")
        ids = np.array([ord(letter) for letter in "".join(items)], np.int32)
        tokens = {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}
        lengths = np.array([len(item) for item in items], np.int64)
        return EncodedItems(items, Encoded(tokens, dict.fromkeys(tokens, 0), lengths, {}))

    def results(self, facts: list[str], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[str]:
        return [chr(int(last_1[0])) for (last_1,) in outputs]


def last_ids(params, batch):
    ends = batch["attention_mask"].sum(axis=1) - 1
    return (batch["input_ids"][jax.numpy.arange(len(ends)), ends][:, None],)


@pytest.fixture(scope="module")
def predict() -> Ends:
    return Ends()


def texts():
    """Without end: a, ab, abc, … and again."""
    yield from (("abcdefghijklmnop" * 2)[: 1 + number % 16] for number in itertools.count())


def test_items_are_taken_in_the_thread_that_asks_for_results(predict):
    threads = set()

    def items():
        for text in itertools.islice(texts(), 35):
            threads.add(threading.current_thread())
            yield text

    assert list(predict.stream(items(), chunk=4)) == [text[-1] for text in itertools.islice(texts(), 35)]
    assert threads == {threading.current_thread()}


def test_a_slow_input_does_not_keep_what_was_read_from_its_results(predict, monkeypatch):
    """The first chunks have no rows: their results come while the next one is still being read."""
    monkeypatch.setattr(serve, "CHUNK", 2)
    bad = [UserError(str(number)) for number in range(4)]

    def items():
        yield from bad
        time.sleep(0.3)
        yield from ("ab", "abc", "7")

    found = list(answered_by(predict, items()))
    assert [item for item, _ in found] == [*bad, "ab", "abc", "7"]
    assert [str(result) for _, result in found] == ["0", "1", "2", "3", "b", "c", "text 7: no letters"]


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_what_was_read_before_the_input_failed_is_answered(predict, on_error):
    def items():
        yield from ("ab", "abc", "a", "abcd", "ab")
        raise OSError("the disk is gone")

    stream = predict.stream(items(), chunk=3, on_error=on_error)
    assert [next(stream) for _ in range(5)] == ["b", "c", "a", "d", "b"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


def test_a_pipeline_stays_in_the_process_that_made_it(predict, monkeypatch):
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="make one in each process"):
            leave(predict)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (lambda: list(predict.stream(["a"])), predict.compile_all):
        with pytest.raises(RuntimeError, match=r"^this was made before os\.fork, and would hang in this process"):
            use()


@pytest.mark.parametrize("chunk", [0, 1.5, "3"])
def test_a_chunk_that_is_no_count_is_refused(predict, chunk):
    with pytest.raises(UserError, match=r"^chunk=.*: expected a whole number, at least 1$"):
        next(predict.stream(["ab"], chunk=chunk))


@pytest.mark.parametrize("chunk", [1, 2, CHUNK])
def test_an_input_without_end_is_read_a_little_ahead(predict, chunk):
    read = 0

    def items():
        nonlocal read
        for text in texts():
            read += 1
            yield text

    stream = predict.stream(items(), chunk=chunk)
    for number, text in enumerate(itertools.islice(texts(), 5 * chunk)):
        assert next(stream) == text[-1]
        assert read <= (number // chunk + 3) * chunk  # those of its own chunk, and two more


def test_an_error_that_is_kept_keeps_no_other_text(predict):
    class Text(str):
        """A string that can be watched."""

    watched: list[weakref.ref[Text]] = []

    def items():
        for number in range(12):
            watched.append(weakref.ref(text := Text("7" if number % 4 == 3 else "ab")))
            yield text
            del text
        yield UserError("not read")

    kept = [one for one in predict.stream(items(), chunk=4, on_error="return") if isinstance(one, UserError)]
    assert [str(error) for error in kept] == [f"text {number}: no letters" for number in (4, 8, 12)] + ["not read"]
    assert not [one for one in watched if one() is not None]


def test_the_next_texts_are_encoded_before_the_device_is_done_with_these(predict, monkeypatch):
    begun = [threading.Event() for _ in range(5)]
    encode, programs = predict.encode, predict.engine.programs
    waited = []

    def noted(items, first, **options):
        begun[first // CHUNK].set()
        return encode(items, first, **options)

    class Slow:
        """Arrays that are computed when the chunk after theirs is being encoded."""

        def __init__(self, array, then: threading.Event):
            self.array, self.then = array, then

        def __array__(self, dtype=None, copy=None):
            waited.append(self.then.wait(5))
            return np.asarray(self.array)

    class Device:
        devices, any_shape, unpadded, at_once, calls = programs.devices, False, 0, 1, 0
        collect = staticmethod(jax.device_get)

        def __call__(self, batch):
            next_chunk = self.calls // (CHUNK // 2) + 1
            self.calls += 1
            (array,) = programs(batch)
            return (Slow(array, begun[next_chunk]),)

    monkeypatch.setattr(predict, "encode", noted)
    monkeypatch.setattr(predict.engine, "programs", Device())
    begun[4].set()  # there is none after the last
    assert len(list(predict.stream(["ab"] * 4 * CHUNK, chunk=CHUNK))) == 4 * CHUNK
    assert waited and all(waited)


def test_texts_that_are_cut_are_counted_once_beside_one_that_is_wrong(tmp_path, caplog):
    embed = TextEmbedding(export(tmp_path, "encoder"))
    found = list(embed.stream(["hello " * LONGEST, 7, "hello " * LONGEST, "hello"], on_error="return"))
    assert [isinstance(one, UserError) for one in found] == [False, True, False, False]
    assert [record.getMessage() for record in caplog.records] == [
        f"2 of 3 texts are longer than {LONGEST} tokens and were truncated"
    ]


def test_texts_that_are_cut_are_counted_once_for_all_chunks(tmp_path, caplog):
    embed = TextEmbedding(export(tmp_path, "encoder"))
    assert len(list(embed.stream(["hello " * LONGEST, "hello", "hello " * LONGEST, "held", "hello"], chunk=1))) == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"2 of 5 texts are longer than {LONGEST} tokens and were truncated"
    ]


def test_prefetch_makes_in_a_thread_and_raises_what_went_wrong_there():
    threads = []

    def halved(number: int) -> int:
        threads.append(threading.current_thread())
        if number == 3:
            raise UserError("the third")
        return number // 2

    coming = prefetch(halved, itertools.count())
    assert [next(coming) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(UserError, match="the third"):
        next(coming)
    assert threading.current_thread() not in threads
    assert list(prefetch(halved, [4])) == [2]
    assert threads[-1] is threading.current_thread()  # a single one
    assert list(prefetch(halved, range(3))) == [0, 0, 1]
    assert list(prefetch(halved, [])) == []


def test_the_thread_ends_with_whom_it_works_for():
    before = set(threading.enumerate())
    coming = prefetch(lambda number: number, itertools.count())
    assert next(coming) == 0
    assert len(set(threading.enumerate()) - before) == 1
    coming.close()  # type: ignore[attr-defined]
    assert not set(threading.enumerate()) - before


def test_a_vocabulary_that_does_not_fit_is_told_once_for_all_chunks(tmp_path, caplog):
    embed = TextEmbedding(export(tmp_path, "encoder"))
    assert len(list(embed.stream(["hello 세계"] * 3 + ["hello"] * 3 + ["세계 세계"], chunk=2))) == 7
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"20% of the 25 tokens are [UNK]: the vocabulary of {embed.source} does not fit these texts")
    caplog.clear()
    assert len(list(embed.stream(["hello 세계 🤷"] * 2))) == 2  # an emoji here and there is no other language
    assert not caplog.records
