"""The engine: few programs for any input, results in order and independent of other texts, bounded memory, devices."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.errors import UserError
from bert_jax.inference.engine.engine import IN_FLIGHT, MOST_PACKED, Engine
from bert_jax.inference.runtimes.xla import CPU_TOKENS, Programs
from bert_jax.inference.tasks.embed import pooled, pooled_sequences
from bert_jax.inference.tasks.task_model import model_inputs
from bert_jax.model.heads import HEADS
from tests import tiny

pytestmark = pytest.mark.eight_devices

LONGEST = 80
CONFIG = tiny.CONFIG.replace(max_position_embeddings=LONGEST, pad_token_id=1)
FAMILIES = {
    "bert": CONFIG,
    "roberta": CONFIG.replace(model_type="roberta", type_vocab_size=1, max_position_embeddings=LONGEST + 2),
    "distilbert": CONFIG.replace(model_type="distilbert"),
    "albert": CONFIG.replace(model_type="albert", embedding_size=8),
    "relative": CONFIG.replace(position_embedding_type="relative_key"),
}


def examples(lengths, seed: int = 0) -> Encoded:
    """Random ids without padding."""
    ids = np.random.default_rng(seed).integers(2, 50, int(sum(lengths))).astype(np.int32)
    tokens = {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}
    return Encoded(tokens, {"input_ids": 1, "token_type_ids": 0}, np.array(lengths, np.int64), {})


def summed(params, batch):
    """A model that compiles in no time: for each sequence, the sum of the table's rows."""
    x_BLD = params["table"][batch["input_ids"]]
    if "sequence_ids" in batch:
        return (pooled_sequences(x_BLD, batch["sequence_ids"], batch["starts"], "mean"),)
    return (pooled(x_BLD, batch["attention_mask"], "mean"),)


TABLE = {"table": np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)}


def means(rows: Encoded) -> np.ndarray:
    ends = np.cumsum(rows.row_lengths)
    return np.array([
        TABLE["table"][rows.tokens["input_ids"][end - length : end]].astype(np.float64).mean(axis=0)
        for end, length in zip(ends, rows.row_lengths, strict=True)
    ])  # fmt: skip


def of(engine: Engine, rows: Encoded) -> np.ndarray:
    return np.array([vector for (vector,) in engine.run(rows)])


@pytest.fixture(scope="module")
def one() -> list:
    return jax.devices()[:1]


@pytest.mark.parametrize(
    ("devices", "requests", "packing"),
    [
        (8, 50, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((8, 50, False), (1, 1000, False), (1, 1000, True))),
    ],
)
def test_a_thousand_requests_compile_no_more_than_the_shapes(devices, requests, packing):
    engine = Engine(Programs(summed, TABLE, jax.devices()[:devices]), longest=LONGEST, packing=packing)
    rng = np.random.default_rng(0)
    for number in range(requests):
        count = 1 if number % 3 else int(rng.integers(1, 40))
        rows = examples(rng.integers(2, LONGEST + 1, count), seed=number)
        found = of(engine, rows)
        if number % 50 == 0:
            np.testing.assert_allclose(found, means(rows), atol=1e-5)
    assert engine.compilations <= len(engine.shapes) <= 16


@pytest.mark.parametrize("packing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_is_compiled_ahead_of_time_is_all_that_is_needed(packing, one):
    engine = Engine(Programs(summed, TABLE, one), longest=LONGEST, batch_size=4, packing=packing)
    told = []
    count = engine.compile_all(lambda done, total: told.append((done, total)))
    assert count == len(engine.shapes) == told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == list(range(1, count + 1))
    rng = np.random.default_rng(1)
    for size in (1, 2, 3, 5, 30):
        engine.run(examples(rng.integers(2, LONGEST + 1, size)))
    assert engine.compilations == count


@pytest.mark.parametrize("packing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_results_come_in_the_order_of_the_input_from_any_number_of_chunks(packing, one):
    engine = Engine(Programs(summed, TABLE, one), longest=LONGEST, batch_size=4, packing=packing)
    rng = np.random.default_rng(2)
    chunks = [examples(rng.integers(2, LONGEST + 1, size), seed) for seed, size in enumerate([7, 1, 0, 30, 0, 2])]
    results = list(engine.stream(chunks))
    assert [len(result) for result in results] == [7, 1, 0, 30, 0, 2]
    for chunk, result in zip(chunks, results, strict=True):
        if result:
            np.testing.assert_allclose([vector for (vector,) in result], means(chunk), atol=1e-6)
    assert list(engine.stream([])) == []


@pytest.fixture(
    scope="module",
    params=["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "bert")],
)
def family(request):
    """(apply, params) of a random model: the vector of each token."""
    config = FAMILIES[request.param]
    model = HEADS["encoder-no-pooler"](config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes)

    def apply(params, batch):
        return (model.apply({"params": params}, **model_inputs(config, batch)).last_hidden_state,)

    return apply, params


@pytest.mark.slow
def test_packed_sequences_get_what_they_get_alone(family, one):
    apply, params = family
    lengths = [3, 20, 5, 2, 9, 7, 32, 7, 12, 28, 4]
    rows = examples(lengths)
    alone = Engine(Programs(apply, params, one), longest=32, per_token=True)
    together = Engine(Programs(apply, params, one), longest=32, per_token=True, packing=True, batch_size=2)
    begins = np.cumsum(lengths) - lengths
    packed = together.run(rows)
    for number, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        own = {name: values[begin : begin + length] for name, values in rows.tokens.items()}
        ((expected,),) = alone.run(Encoded(own, rows.pads, np.array([length]), {}))
        assert packed[number][0].shape == expected.shape == (length, 16)
        np.testing.assert_allclose(packed[number][0], expected, atol=1e-5)


@pytest.mark.slow
def test_in_one_shape_a_text_s_result_does_not_depend_on_its_company(family, one):
    """The same bits at another place in the batch and beside other texts."""
    apply, params = family
    engine = Engine(Programs(apply, params, one), longest=LONGEST, batch_size=4, per_token=True)
    wanted = examples([11], seed=9)
    found = []
    for place, seed in itertools.product((0, 3), (1, 2)):
        others = examples([5, 13, 9], seed)
        lengths = [5, 13, 9]
        lengths.insert(place, 11)
        at = sum(lengths[:place])
        tokens = {
            name: np.concatenate([values[:at], wanted.tokens[name], values[at:]])
            for name, values in others.tokens.items()
        }
        found.append(engine.run(Encoded(tokens, wanted.pads, np.array(lengths), {}))[place][0])
    assert engine.compilations == 1
    assert all((result == found[0]).all() for result in found)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(family, one):
    apply, params = family
    rows = examples(np.random.default_rng(5).integers(2, 17, 21))
    several = Engine(Programs(apply, params, jax.devices()), longest=16, per_token=True, batch_size=8)
    single = Engine(Programs(apply, params, one), longest=16, per_token=True, batch_size=8)
    for ours, theirs in zip(several.run(rows), single.run(rows), strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)
    assert several.rows_of(16) == 8


def test_each_device_computes_its_share_of_the_rows(monkeypatch):
    found, run = [], Programs.__call__

    def watched(self, batch, **options):
        found.append(run(self, batch, **options)[0])
        return (found[-1],)

    monkeypatch.setattr(Programs, "__call__", watched)
    engine = Engine(Programs(summed, TABLE, jax.devices()), longest=16, batch_size=16)
    rows = examples([16] * 17)
    np.testing.assert_allclose(of(engine, rows), means(rows), atol=1e-6)
    full, alone = found
    assert full.sharding.device_set == set(jax.devices())
    assert [shard.data.shape for shard in full.addressable_shards] == [(2, 4)] * 8
    assert alone.sharding.device_set == {jax.devices()[0]}


class AnyShape:
    """Like OpenVINO and onnxruntime it takes every shape; it keeps the batches, and how many ran at the same time."""

    name, dtype, params, devices, full_batch, any_shape, compilations = "any", "float32", TABLE, 1, 256, True, 1

    def __init__(self, at_once: int, unpadded: int = 0):
        self.unpadded = unpadded
        self.at_once, self.batches, self.flying, self.most = at_once, [], 0, 0

    def __call__(self, batch, **options):
        self.batches.append(batch)
        self.flying += 1
        self.most = max(self.most, self.flying)
        return summed(TABLE, batch)

    def collect(self, started):
        self.flying -= 1
        return jax.device_get(started)

    def prepare(self, batch, **options):
        raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_runtime_that_takes_any_shape_gets_full_batches_and_no_row_of_padding(packing, batch_size):
    runtime = AnyShape(at_once=2)
    engine = Engine(runtime, longest=LONGEST, packing=packing, batch_size=batch_size)
    lengths = [*np.random.default_rng(5).integers(2, 30, 100), 70, 80, 49]
    rows = examples(lengths)
    np.testing.assert_allclose(of(engine, rows), means(rows), atol=1e-6)
    shapes = [batch["input_ids"].shape for batch in runtime.batches]
    assert all(size <= 3 if batch_size else size * length <= 256 for size, length in shapes)
    assert {length for _, length in shapes} <= set(engine.packed_lengths if packing else engine.lengths)
    full = -(-sum(lengths) // 256)
    assert batch_size or full <= len(shapes) <= full + len({length for _, length in shapes}) + 2
    key = "sequence_ids" if packing else "attention_mask"
    firsts = [
        tuple(row[mask > 0])
        for batch in runtime.batches
        for row, mask in zip(batch["input_ids"], batch[key], strict=True)
    ]
    assert len(set(firsts)) == len(firsts) and sum(map(len, firsts)) == sum(lengths)


def test_few_texts_are_shared_out_over_the_batches_that_run_at_the_same_time():
    runtime = AnyShape(at_once=4)
    rows = examples([30] * 8)
    np.testing.assert_allclose(of(Engine(runtime, longest=LONGEST, packing=True), rows), means(rows), atol=1e-6)
    assert [batch["input_ids"].shape for batch in runtime.batches] == [(1, 64)] * 4


@pytest.mark.parametrize(("unpadded", "length"), [(sys.maxsize, 17), (17, 17), (16, 18), (0, 18)])
@pytest.mark.parametrize("packing", [True, False])
def test_a_row_by_itself_has_no_padding_where_a_new_length_takes_no_time(packing, unpadded, length):
    runtime = AnyShape(at_once=1, unpadded=unpadded)
    rows = examples([17])
    np.testing.assert_allclose(of(Engine(runtime, longest=LONGEST, packing=packing), rows), means(rows), atol=1e-6)
    (batch,) = runtime.batches
    shapes = {batch[name].shape for name in ("input_ids", "token_type_ids", "attention_mask")}
    assert shapes == {(1, length)} and batch["attention_mask"].sum() == 17


def test_as_many_batches_wait_as_keep_the_runtime_busy():
    few, many = AnyShape(at_once=1), AnyShape(at_once=16)
    for runtime in (few, many):
        Engine(runtime, longest=16, batch_size=1).run(examples([16] * 100))
    assert (few.most, many.most) == (IN_FLIGHT + 1, 33)


def test_no_more_than_what_is_in_flight_is_read_ahead(one):
    engine = Engine(Programs(summed, TABLE, one), longest=16, batch_size=2)
    read = 0

    def chunks():
        nonlocal read
        while True:
            read += 1
            yield examples([5, 6])

    stream = engine.stream(chunks())
    for number in range(1, 20):
        next(stream)
        assert read <= number + IN_FLIGHT + 1


def test_a_result_keeps_nothing_but_itself_in_memory(one):
    engine = Engine(Programs(summed, TABLE, one), longest=LONGEST, packing=True)
    assert all(vector.base is None for (vector,) in engine.run(examples([5, 60, 70, 3])))


def test_weights_that_are_not_finite_are_named_and_never_answered_with(one):
    broken = {"table": TABLE["table"].copy()}
    broken["table"][7, 2] = np.nan
    engine = Engine(Programs(summed, broken, one), longest=16)
    with pytest.raises(UserError, match="parameter table is not finite"):
        engine.run(examples([16] * 20))


def test_a_packed_row_has_no_more_sequences_than_the_engine_reads(one):
    engine = Engine(Programs(summed, TABLE, one), longest=128, packing=True)
    rows = examples([2] * (3 * MOST_PACKED + 5))
    np.testing.assert_allclose(of(engine, rows), means(rows), atol=1e-6)


def test_batches_are_sized_for_the_devices_that_were_given(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert Programs(summed, TABLE, jax.devices("cpu")[:1]).full_batch == CPU_TOKENS
