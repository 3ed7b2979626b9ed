"""Sharding: the table covers every leaf, every mesh gives the same numbers, and no device holds more than its share."""

import collections
import dataclasses
import functools
import math
import re
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names import parameters as names
from bert_jax.model.fused_loss import fused_cross_entropy
from bert_jax.model.heads import HEADS, BertForPreTraining
from bert_jax.model.layers import DropoutKey, dropout, numbered_rows
from bert_jax.training import sharding
from bert_jax.training.mesh import AXES, MeshConfig, make_mesh
from bert_jax.training.objectives import OneLabel, Pretraining
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.own_rows import sum_gradients
from bert_jax.training.sharding import (
    PARTITION_TABLE,
    axes_of,
    batch_shardings,
    check_sizes,
    fused_loss_on,
    padded_vocab_size,
    partition_spec,
    path_string,
    replicated,
    state_shardings,
)
from bert_jax.training.step import (
    TrainState,
    abstract_state,
    compile_eval_step,
    compile_train_step,
    eval_step,
    init_state,
    train_step,
)
from tests import tiny
from tests.slices import devices_in_slices

pytestmark = pytest.mark.eight_devices

# 56 rows of 24 tokens: numbers that are no other size in the program, whole (56), a micro-batch (28) or flat.
B, L, PREDICTIONS = 56, 24, 5
GLOBAL_ROWS = {56, 28, 56 * L, 28 * L, 56 * PREDICTIONS, 28 * PREDICTIONS}
CONFIG = BertConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=L,
)
TX, SCHEDULE = make_optimizer(tiny.OPTIMIZER), make_schedule(tiny.OPTIMIZER)
MODEL = BertForPreTraining(CONFIG)
KEY = jax.random.key(7)
FAST_COMPILE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


def make_batch() -> dict[str, np.ndarray]:
    return tiny.pretraining_batch(B, L, PREDICTIONS, vocab_size=CONFIG.vocab_size)


def abstract_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, zero: int = 1) -> Any:
    return AbstractMesh((data, fsdp, zero, tensor), AXES, axis_types=(AxisType.Auto,) * 4)


# --- the table ---


FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": "prelu", "tie_word_embeddings": False},
    "roberta": {"hidden_act": "xielu", "pad_token_id": 1},
    "albert": {"embedding_size": 16, "num_hidden_groups": 1},
    "distilbert": {},
    "electra": {"embedding_size": 16},
}
FAMILY_CONFIGS = {name: CONFIG.replace(model_type=name, **fields) for name, fields in FAMILIES.items()}
# What the names of Hugging Face's files say that a model has; a decoder has what no other has.
ROWS_OF = {
    (name, head): config.replace(is_decoder=True, add_cross_attention=True, position_embedding_type="relative_key")
    if head == "causal-lm"
    else config
    for name, config in FAMILY_CONFIGS.items()
    for head in names.family_of(config).heads
}


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_leaf_of_the_state_matches_exactly_one_row(head):
    for name, schedule in (("adamw", "linear"), ("lamb", "linear"), ("muon", "linear"), ("schedule-free", "constant")):
        optimizer = dataclasses.replace(tiny.OPTIMIZER, name=name, schedule=schedule)
        tx = make_optimizer(optimizer, batches=[(1, 1)])
        of_family = next(one for one in FAMILY_CONFIGS.values() if head in names.family_of(one).heads)
        config = of_family.replace(is_decoder=head == "causal-lm")
        leaves = jax.tree_util.tree_leaves_with_path(abstract_state(HEADS[head](config), tx))
        assert len(leaves) > (2 if name == "muon" else 3) * 30
        for path, leaf in leaves:
            if leaf.shape:
                rule_of(path_string(path))


def rule_of(path: str) -> str:
    matching = [rule.pattern for rule in PARTITION_TABLE if rule.matches(path)]
    assert len(matching) == 1, f"{path}: {matching}"
    return matching[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_every_leaf_of_every_family_and_head_matches_exactly_one_row(family):
    for head in names.family_of(FAMILY_CONFIGS[family]).heads:
        config = FAMILY_CONFIGS[family].replace(is_decoder=head == "causal-lm")
        model = HEADS[head](config)
        params = jax.eval_shape(partial(model.init, KEY), np.zeros((1, 2), np.int32))["params"]
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            rule_of(path_string(path))
            partition_spec(path_string(path), leaf.shape, abstract_mesh(2, 2, 2))


@pytest.mark.slow
def test_every_row_of_the_table_is_some_leafs():
    def paths_of(tree: Any) -> list[str]:
        return [path_string(path) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.shape]

    paths = paths_of(abstract_state(MODEL, TX))
    for name, schedule in (("muon", "linear"), ("schedule-free", "constant")):
        other = make_optimizer(dataclasses.replace(tiny.OPTIMIZER, name=name, schedule=schedule), batches=[(1, 1)])
        paths += paths_of(abstract_state(MODEL, other))
    paths += [path for (_, head), config in ROWS_OF.items() for path in names.parameters_of(config, head)]
    paths += paths_of(OneLabel(np.ones(2, np.float32)))
    used = {rule_of(path) for path in paths}
    assert used == {rule.pattern for rule in PARTITION_TABLE}


@pytest.mark.parametrize("path", ["params/bert/adapter/kernel", "params/kernel", "opt_state/moments/mu/bias"])
def test_a_leaf_without_a_row_is_refused(path):
    with pytest.raises(LookupError, match=f"{path}: exactly one row .* matched: none"):
        partition_spec(path, (8, 8), abstract_mesh())


def test_scalars_need_no_row():
    assert partition_spec("an_objectives_own_number", (), abstract_mesh(2, 2, 2)) == P()


def test_moments_lie_as_their_parameters_and_counters_everywhere():
    shardings = state_shardings(abstract_state(MODEL, TX), abstract_mesh(2, 2, 2))
    moments = shardings.opt_state["moments"]
    assert moments.mu == moments.nu == shardings.params
    assert shardings.step.spec == moments.count.spec == shardings.last_skipped_step.spec == P()


def test_moments_of_any_optax_optimizer_lie_as_their_parameters():
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(1e-3, 0, 100)))
    shardings = state_shardings(abstract_state(MODEL, tx), abstract_mesh(2, 2, 2))
    assert shardings.opt_state[1][0].mu == shardings.params


@pytest.mark.parametrize("tx", [optax.adafactor(1e-3), optax.contrib.muon(1e-3)], ids=["adafactor", "muon"])
def test_what_an_optimizer_keeps_in_another_shape_is_whole_on_every_device(tx):
    state = abstract_state(MODEL, tx)
    shardings = state_shardings(state, abstract_mesh(2, 2, 2))
    kept = zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(shardings.opt_state), strict=True)
    shapes = {leaf.shape for leaf in jax.tree.leaves(state.params)}
    others = [sharding.spec for leaf, sharding in kept if leaf.shape and leaf.shape not in shapes]
    assert others and set(others) == {P()}


def test_layout_of_a_layer_is_megatrons():
    """Split by columns, then by rows: one sum per block over the tensor axis."""
    layer = state_shardings(abstract_state(MODEL, TX), abstract_mesh(2, 2, 2)).params["bert"]["encoder"]["layer_0"]
    attention, feed_forward = layer["attention"], layer["feed_forward"]
    for name in ("query", "key", "value"):
        assert attention[name]["kernel"].spec == P("fsdp", "tensor") and attention[name]["bias"].spec == P("tensor")
    assert attention["output"]["kernel"].spec == P("tensor", "fsdp")
    assert feed_forward["intermediate"]["kernel"].spec == P("fsdp", "tensor")
    assert feed_forward["intermediate"]["bias"].spec == P("tensor")
    assert feed_forward["output"]["kernel"].spec == P("tensor", "fsdp")
    assert feed_forward["output"]["bias"].spec == attention["LayerNorm"]["scale"].spec == P()


def test_a_vocabulary_that_does_not_divide_is_whole_over_tensor():
    table = partial(partition_spec, "params/bert/embeddings/word_embeddings")
    bias = partial(partition_spec, "params/mlm_head/bias")
    mesh = abstract_mesh(tensor=4, fsdp=2)
    assert table((30522, 768), mesh) == P(None, "fsdp") and bias((30522,), mesh) == P()
    assert table((30720, 768), mesh) == P("tensor", "fsdp") and bias((30720,), mesh) == P("tensor")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "mini", "base-uncased", "large-cased", "base-chinese", "L-4_H-512"])
def test_published_sizes_divide(name):
    config = BertConfig.preset(name)
    state = abstract_state(BertForPreTraining(config), TX)
    for sizes in ((8, 1, 1), (1, 8, 1), (1, 1, 2), (2, 4, 2), (32, 8, 1)):
        check_sizes(config, abstract_mesh(*sizes))
        state_shardings(state, abstract_mesh(*sizes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta-base", "xlm-roberta-large", "albert-xlarge-v2", "distilbert-base-cased"])
def test_published_sizes_of_the_other_families_divide(name):
    state = abstract_state(HEADS["mlm"](BertConfig.preset(name)), TX)
    for sizes in ((8, 1, 1), (1, 8, 1), (1, 1, 2), (2, 4, 2)):
        state_shardings(state, abstract_mesh(*sizes))


# --- what does not divide ---


def test_a_parameter_that_does_not_divide_is_named_with_sizes_that_fit():
    config = CONFIG.replace(hidden_size=36)
    with pytest.raises(UserError) as error:
        state_shardings(abstract_state(BertForPreTraining(config), TX), abstract_mesh(fsdp=8))
    message = str(error.value)
    assert "embeddings/position_embeddings" in message and "(24, 36)" in message and "split into 8" in message
    assert message.endswith("sizes of 'fsdp' that fit: 1, 2, 3, 4, 6")


def test_heads_and_rows_that_do_not_divide_are_named_with_sizes_that_fit():
    with pytest.raises(
        UserError, match=r"num_attention_heads=4 cannot be split into tensor=8; sizes that fit: 1, 2, 4$"
    ):
        check_sizes(CONFIG, abstract_mesh(tensor=8))
    with pytest.raises(UserError, match=r"batch_size=50 .* data=4 x fsdp=2 x accumulation=2 = 16 .* fit: 48, 64$"):
        check_sizes(CONFIG, abstract_mesh(4, 2), batch_size=50, accumulation=2)
    check_sizes(CONFIG, abstract_mesh(4, 2), batch_size=48, accumulation=2)


# --- the same numbers on every mesh, dropout on ---


@dataclasses.dataclass(frozen=True)
class Layout:
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    zero: int = 1
    accumulation: int = 1
    fused: bool = False

    @property
    def name(self) -> str:
        sizes = [f"{field}{size}" for field, size in dataclasses.asdict(self).items() if size > 1]
        return "-".join(sizes + ["fused"] * self.fused)

    @property
    def mesh(self) -> jax.sharding.Mesh:
        count = self.data * self.fsdp * self.tensor * self.zero
        return make_mesh(MeshConfig(self.data, self.fsdp, self.tensor, self.zero), jax.devices()[:count])

    @property
    def local_rows(self) -> int:
        """Rows of a micro-batch on a device."""
        return B // (self.data * self.fsdp * self.zero * self.accumulation)


MIXED = Layout(2, 2, 2)
LAYOUTS = [
    Layout(data=4, accumulation=2, fused=True),
    Layout(tensor=4),
    MIXED,
    Layout(fsdp=4, accumulation=2),
    Layout(data=2, fsdp=2, accumulation=2, fused=True),
    Layout(data=2, zero=4),
]
MORE_LAYOUTS = [Layout(data=8), Layout(fsdp=8), Layout(tensor=2), Layout(data=8, fused=True)]
MORE_LAYOUTS += [Layout(data=2, fsdp=2, zero=2), Layout(zero=4, accumulation=2, fused=True)]


@dataclasses.dataclass(frozen=True)
class Ran:
    """One step from the fresh state: the state after it, its metrics, and the program that each device ran."""

    layout: Layout
    state: TrainState
    metrics: dict[str, Any]
    hlo: str

    @property
    def gradients(self) -> Any:
        return jax.tree.map(
            lambda m: np.asarray(m) / np.float32(1 - tiny.OPTIMIZER.b1), self.state.opt_state["moments"].mu
        )


@functools.cache
def fresh_state() -> TrainState:
    """A fresh state on the host, which all meshes start from."""
    return jax.device_get(init_state(jax.random.key(0), MODEL, TX))


def on_mesh(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    return jax.device_put(tree, state_shardings(tree, mesh))


@functools.cache
def single_device_program(accumulation: int) -> Any:
    step = jax.jit(partial(train_step, model=MODEL, tx=TX, schedule=SCHEDULE, accumulation=accumulation))
    return step.lower(fresh_state(), make_batch(), KEY).compile(compiler_options=FAST_COMPILE)


@functools.cache
def single_device(accumulation: int) -> Ran:
    program = single_device_program(accumulation)
    state, metrics = program(fresh_state(), make_batch(), KEY)
    return Ran(Layout(accumulation=accumulation), state, metrics, program.as_text() or "")


@functools.cache
def on_layout(layout: Layout) -> Ran:
    state = on_mesh(fresh_state(), layout.mesh)
    objective = Pretraining(fused_loss_on(layout.mesh) if layout.fused else None)
    step = compile_train_step(MODEL, TX, SCHEDULE, layout.mesh, layout.accumulation, objective)
    program = step.lower(state, make_batch(), KEY, objective).compile(compiler_options=FAST_COMPILE)
    batch = jax.device_put(make_batch(), batch_shardings(layout.mesh))
    key = jax.device_put(KEY, replicated(layout.mesh))
    state, metrics = program(state, batch, key, objective)
    return Ran(layout, state, metrics, program.as_text() or "")


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(layout, marks=pytest.mark.slow, id=layout.name) for layout in LAYOUTS),
        *(pytest.param(layout, marks=pytest.mark.exhaustive, id=layout.name) for layout in MORE_LAYOUTS),
    ],
)
def ran(request) -> Ran:
    return on_layout(request.param)


def test_loss_is_that_of_one_device(ran):
    expected = single_device(ran.layout.accumulation).metrics
    for name, value in expected.items():
        np.testing.assert_allclose(ran.metrics[name], value, rtol=1e-5, err_msg=name)


def test_gradients_are_those_of_one_device(ran):
    expected = single_device(ran.layout.accumulation).gradients
    # The gradient of the key's bias is zero but for rounding: a floor for leaves that small.
    floor = 1e-4 * float(optax.tree.norm(expected))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ran.gradients), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(a - b)
        assert error <= 1e-5 * max(np.linalg.norm(b), floor), f"{path_string(path)}: {error}"


def test_parameters_after_a_step_are_those_of_one_device(ran):
    expected = single_device(ran.layout.accumulation).state.params
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(ran.state.params), jax.tree.leaves(expected), strict=True
    ):
        # An update is up to 3e-3; where a gradient is smaller than eps = 1e-6, its rounding shows in the update.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=path_string(path))


@pytest.mark.slow
def test_dropout_is_on_in_these_comparisons():
    _, metrics = single_device_program(1)(fresh_state(), make_batch(), jax.random.key(8))
    assert abs(metrics["loss"] - single_device(1).metrics["loss"]) > 1e-3


# --- what lies on a device ---


def shapes(hlo: str) -> collections.Counter:
    """(type, dimensions) of every array in a compiled program, tuples' parts included."""
    return collections.Counter(
        (kind, tuple(int(size) for size in sizes.split(",") if size))
        for kind, sizes in re.findall(r"\b(pred|[suf]\d+|bf16)\[([\d,]*)\]", hlo)
    )


def test_every_leaf_comes_out_as_the_table_says(ran):
    table = jax.tree.leaves(state_shardings(abstract_state(MODEL, TX), ran.layout.mesh))
    for (path, leaf), expected in zip(jax.tree_util.tree_leaves_with_path(ran.state), table, strict=True):
        assert leaf.sharding.is_equivalent_to(expected, leaf.ndim), path_string(path)
        pieces = math.prod(ran.layout.mesh.shape[name] for names in expected.spec for name in axes_of(names))
        assert leaf.addressable_shards[0].data.size * pieces == leaf.size


def test_the_program_takes_and_keeps_pieces_only(ran):
    """The parameters of the compiled program are the pieces that the table gives a device, and no whole array."""
    state = abstract_state(MODEL, TX, mesh=ran.layout.mesh)
    rows = batch_shardings(ran.layout.mesh)
    expected = [x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(state)]
    expected += [rows.shard_shape(x.shape) for x in make_batch().values()]
    expected += [(2,)]  # the key
    entry = re.search(r"^ENTRY [^(]*\((.*)\) -> \((.*)\) \{$", ran.hlo, re.MULTILINE)
    assert entry
    taken, kept = (shapes(part) for part in entry.groups())
    assert collections.Counter(size for (_, size), n in taken.items() for _ in range(n)) == collections.Counter(
        expected
    )
    scalars = [()] * len(ran.metrics)
    returned = [x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(state)] + scalars
    assert collections.Counter(size for (_, size), n in kept.items() for _ in range(n)) == collections.Counter(returned)


def rows_of_other_devices(hlo: str) -> dict:
    return {shape: n for shape, n in shapes(hlo).items() if shape[1] and shape[1][0] in GLOBAL_ROWS}


def bits_of_other_devices(hlo: str, layout: Layout) -> dict:
    """uint32 arrays with more elements than the dropout of a device's own rows and heads."""
    heads = CONFIG.num_attention_heads // layout.tensor
    own = layout.local_rows * max(heads * L * L, L * CONFIG.hidden_size)
    return {shape: n for shape, n in shapes(hlo).items() if shape[0] == "u32" and math.prod(shape[1]) > own}


def test_no_array_has_the_rows_of_other_devices(ran):
    if ran.layout.local_rows == B:
        assert rows_of_other_devices(ran.hlo), "every tensor device sees all rows"
    else:
        assert not rows_of_other_devices(ran.hlo)


def test_no_device_makes_another_devices_dropout_bits(ran):
    heads = CONFIG.num_attention_heads // ran.layout.tensor
    assert ("u32", (ran.layout.local_rows, heads, L, L)) in shapes(ran.hlo)
    assert not bits_of_other_devices(ran.hlo, ran.layout)


def test_no_two_rows_share_a_dropout_mask_whichever_devices_have_them():
    """The masks of a batch are those of one device that has all rows, and all rows' differ."""

    def masks(params: Any, objective: Any, denominators: Any, key: Any, batch: Any, rows: Any) -> Any:
        with numbered_rows(rows):
            dropped = dropout(np.ones((*rows.shape, 64), np.float32), 0.5, DropoutKey.of(key), site=3)
        return jax.numpy.zeros((B, 64)).at[rows].set(dropped), {}  # added up over the devices

    mesh = Layout(data=2, fsdp=2, zero=2).mesh
    found, _ = jax.jit(sum_gradients(mesh)(masks))({}, {}, {}, KEY, make_batch())
    assert len(np.unique(found, axis=0)) == B
    np.testing.assert_array_equal(found, dropout(np.ones((B, 64), np.float32), 0.5, DropoutKey.of(KEY), site=3))


def between_devices(hlo: str) -> tuple[collections.Counter, collections.Counter, collections.Counter]:
    """Bytes of the results of each kind of collective in a program, outside its loops and inside, and their number."""
    computations = dict(re.findall(r"^(?:ENTRY )?%([\w.-]+) [^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL))
    looped, found = set(re.findall(r" while\(.*body=%([\w.-]+)", hlo)), set()
    while looped:
        name = looped.pop()
        found.add(name)
        looped |= set(re.findall(r"(?:to_apply|calls|body|condition)=%([\w.-]+)", computations[name])) - found
    outside, inside, number = collections.Counter(), collections.Counter(), collections.Counter()
    for name, text in computations.items():
        kinds = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
        for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text):
            size = sum(4 * math.prod(dimensions) * n for (_, dimensions), n in shapes(result).items())
            (inside if name in found else outside)[kind] += size
            number[kind] += 1
    return outside, inside, number


def test_each_gradient_is_added_up_once_and_not_in_every_part(ran):
    """The table has two uses and two parts here: adding up after each of them would double the traffic, or more."""
    layout = ran.layout
    if layout.tensor > 1:
        pytest.skip("with tensor > 1 the compiler decides what is added up where")
    outside, inside, number = between_devices(ran.hlo)
    expected, most = collections.Counter(), collections.Counter()
    leaves = jax.tree.leaves(abstract_state(MODEL, TX, mesh=layout.mesh).params)
    for leaf in leaves:
        axes = {axis for names in leaf.sharding.spec for axis in axes_of(names)}
        fsdp, zero = (getattr(layout, axis) if axis in axes else 1 for axis in ("fsdp", "zero"))
        whole, between, piece = (4 * leaf.size // pieces for pieces in (1, fsdp, fsdp * zero))
        expected["all-gather"] += (zero > 1) * between + (fsdp > 1) * whole
        expected["reduce-scatter"] += (fsdp > 1) * between + (zero > 1) * piece
        expected["all-reduce"] += piece if layout.data > 1 or fsdp * zero == 1 else 0
        for kind in ("all-gather", "reduce-scatter"):
            most[kind] += (fsdp > 1) + (zero > 1)
    found = outside + inside
    scalars = found["all-reduce"] - expected["all-reduce"]
    assert 0 <= scalars < 4 * (len(leaves) + 20), "norms of gradients, the loss and its sums"
    assert found == expected + collections.Counter({"all-reduce": scalars})
    # XLA merges those of a kind: sums of the loss, gradients over two sets of axes, their norm, and a spare one.
    most["all-reduce"] = 5
    assert all(number[kind] <= most[kind] for kind in number), number
    if layout.fsdp == 1:
        assert not inside


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(zero=4), Layout(fsdp=4)], ids=lambda layout: layout.name)
def test_matrices_are_gathered_in_the_type_of_the_products_and_gradients_summed_in_float32(layout: Layout):
    """In the program before compilation: XLA's CPU compiler has no bfloat16 collectives."""
    mesh, model = layout.mesh, BertForPreTraining(CONFIG.replace(dtype="bfloat16"))
    step = compile_train_step(model, TX, SCHEDULE, mesh)
    text = step.lower(abstract_state(model, TX, mesh=mesh), make_batch(), KEY).as_text()
    results = {
        kind: re.findall(rf'"stablehlo.{kind}".*?-> tensor<[\dx]*x(\w+)>', text, re.DOTALL)
        for kind in ("all_gather", "reduce_scatter")
    }
    matrices = sum(leaf.ndim > 1 for leaf in jax.tree.leaves(fresh_state().params)) - 1  # nsp_head has no pieces
    assert results == {"all_gather": ["bf16"] * matrices, "reduce_scatter": ["f32"] * matrices}


@pytest.mark.slow
def test_lambs_norms_are_those_of_whole_tensors_where_each_device_has_a_piece():
    """A norm of a piece would give each piece its own trust ratio."""
    tx = make_optimizer(dataclasses.replace(tiny.OPTIMIZER, name="lamb", trust_ratio_for="all"))
    mesh, found = Layout(zero=4).mesh, {}
    for devices in (None, mesh):
        step, state = compile_train_step(MODEL, tx, SCHEDULE, devices), init_state(KEY, MODEL, tx)
        state = jax.device_get(state) if devices is None else on_mesh(jax.device_get(state), mesh)
        program = step.lower(state, make_batch(), KEY).compile(compiler_options=FAST_COMPILE)
        batch, key = make_batch(), KEY
        if devices is not None:
            batch, key = jax.device_put(batch, batch_shardings(mesh)), jax.device_put(key, replicated(mesh))
        for _ in range(2):  # the second starts from moments that are not zero
            state, _ = program(state, batch, key)
        found[devices] = jax.device_get(state)
    for (path, new), one in zip(
        jax.tree_util.tree_leaves_with_path(found[mesh].params), jax.tree.leaves(found[None].params), strict=True
    ):
        if not path_string(path).endswith("key/bias"):  # its gradient is rounding alone
            # Rounding is up to 1.7e-5 on a CPU with AVX2 alone; the norm of a quarter moves a table by 3.9e-4.
            assert np.linalg.norm(new - one) <= 1e-4 * np.linalg.norm(one), path_string(path)


def test_where_the_vocabulary_is_cut_and_on_tpus_the_loss_is_written_out():
    assert fused_loss_on(MIXED.mesh) is None and fused_loss_on(Layout(tensor=2).mesh) is None
    assert fused_loss_on(Layout().mesh) is fused_cross_entropy
    on = {kind: make_mesh(MeshConfig(), devices_in_slices(1, kind)) for kind in ("tpu", "gpu")}
    assert fused_loss_on(on["tpu"]) is None and fused_loss_on(on["gpu"]) is fused_cross_entropy


def test_on_tpus_each_piece_of_a_vocabulary_fills_whole_registers():
    tpus, gpus = devices_in_slices(1, "tpu"), devices_in_slices(1, "gpu")
    assert padded_vocab_size(30522, make_mesh(MeshConfig(tensor=4), tpus)) == 240 * 128
    assert padded_vocab_size(30522, make_mesh(MeshConfig(tensor=4), gpus)) == 30524
    assert padded_vocab_size(30522, make_mesh(MeshConfig(zero=8), tpus)) == 30522


@pytest.mark.slow
def test_a_vocabulary_padded_for_a_tpu_gives_the_same_step(monkeypatch):
    monkeypatch.setattr(sharding, "platform_of", lambda mesh: "tpu")
    layout = Layout(fsdp=2, tensor=2, accumulation=2)
    assert padded_vocab_size(CONFIG.vocab_size, layout.mesh) == 256
    padded, expected = on_layout.__wrapped__(layout), single_device(layout.accumulation)
    assert re.search(r"\[\d+,5,128\]", padded.hlo), "each device has logits of a half of 256"
    for name, value in expected.metrics.items():
        np.testing.assert_allclose(padded.metrics[name], value, rtol=1e-5, err_msg=name)
    for a, b in zip(jax.tree.leaves(padded.gradients), jax.tree.leaves(expected.gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(optax.tree.norm(expected.gradients)))


@pytest.mark.slow
def test_shardings_of_inputs_and_outputs_alone_would_hold_the_global_batch():
    """Shows what the constraints are for, and that the search above finds it."""
    mesh = Layout(fsdp=8).mesh
    state, rows, everywhere = on_mesh(fresh_state(), mesh), batch_shardings(mesh), replicated(mesh)
    layouts = state_shardings(state, mesh)
    step = jax.jit(
        partial(train_step, model=MODEL, tx=TX, schedule=SCHEDULE),
        in_shardings=(layouts, rows, everywhere),
        out_shardings=(layouts, everywhere),
    )
    program = step.lower(state, make_batch(), KEY).compile(compiler_options=FAST_COMPILE)
    assert rows_of_other_devices(program.as_text() or "")


@pytest.mark.slow
def test_activations_are_constrained_after_the_embeddings_and_each_layer():
    step = compile_train_step(MODEL, TX, SCHEDULE, MIXED.mesh)
    text = step.lower(abstract_state(MODEL, TX, mesh=MIXED.mesh), make_batch(), KEY).as_text()
    activations = f"tensor<{B}x{L}x{CONFIG.hidden_size}xf32>"
    forward = [line for line in text.splitlines() if "sharding_constraint" in line and activations in line]
    assert len(forward) == 2 * (1 + CONFIG.num_hidden_layers), "once going forward and once going back"
    assert all('{"data", "fsdp", "zero"}, {}, {}' in line for line in forward)


@pytest.mark.slow
def test_the_searches_find_what_they_look_for():
    """In the program of a single device, which holds everything."""
    assert rows_of_other_devices(single_device(1).hlo)
    assert bits_of_other_devices(single_device(1).hlo, MIXED)


@pytest.mark.slow
def test_a_state_is_born_in_pieces_and_from_the_same_draws_on_every_mesh():
    mesh = MIXED.mesh
    born = jax.jit(partial(init_state, model=MODEL, tx=TX, mesh=mesh)).lower(jax.random.key(0))
    program = born.compile(compiler_options=FAST_COMPILE)
    found = {size for _, size in shapes(program.as_text() or "")}
    assert (48, 16) in found, "the token table's piece"
    assert not found & {(96, 32), (96, 16), (48, 32), (64, 32), (32, 64)}
    state = program(jax.random.key(0))
    table = state.params["bert"]["embeddings"]["word_embeddings"]
    assert {shard.data.shape for shard in table.addressable_shards} == {(48, 16)}
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(fresh_state()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # the options of the two compilers differ


# --- evaluation, and what is refused on tracing ---


@pytest.mark.slow
@pytest.mark.parametrize("layout", [MIXED, Layout(data=2, fsdp=2, zero=2)], ids=lambda layout: layout.name)
def test_evaluation_on_a_mesh_is_that_of_one_device(layout: Layout):
    params = fresh_state().params
    found = compile_eval_step(MODEL, layout.mesh)(on_mesh(params, layout.mesh), make_batch())
    expected = jax.jit(partial(eval_step, model=MODEL))(params, make_batch())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [{}, {"model_type": "albert", "embedding_size": 16, "tie_word_embeddings": False}], ids=["bert", "albert"]
)
def test_a_vocabulary_that_does_not_divide_is_padded_in_the_step_and_nowhere_else(family):
    model = BertForPreTraining(CONFIG.replace(vocab_size=97, **family))
    mesh, batch = make_mesh(MeshConfig(2, 2, 2)), make_batch()
    program = compile_train_step(model, TX, SCHEDULE, mesh).lower(abstract_state(model, TX, mesh=mesh), batch, KEY)
    compiled = program.compile(FAST_COMPILE)
    ours, metrics = compiled(init_state(KEY, model, TX, mesh=mesh), batch, KEY)
    theirs, expected = compile_train_step(model, TX, SCHEDULE)(init_state(KEY, model, TX), batch, KEY)
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], expected["grad_norm"], rtol=1e-5)
    assert float(metrics["mlm_accuracy"]) == pytest.approx(float(expected["mlm_accuracy"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours.params, theirs.params)
    assert ours.params["bert"]["embeddings"]["word_embeddings"].shape == (97, model.config.embedding_width)
    sizes = {int(size) for size in re.findall(r"f32\[\d+,\d+,(\d+)\]", compiled.as_text())}
    assert 49 in sizes  # half of 98, on each of two devices
    assert not {97, 98} & sizes
    sums = compile_eval_step(model, mesh)(ours.params, batch)
    here = jax.device_put(jax.device_get(ours.params), jax.devices()[0])
    expected = eval_step(here, batch, model=model)
    np.testing.assert_allclose(sums["mlm_loss_sum"], expected["mlm_loss_sum"], rtol=1e-5)


def test_a_batch_that_does_not_divide_by_the_accumulation_is_refused():
    step = compile_train_step(MODEL, TX, SCHEDULE, MIXED.mesh, accumulation=4)
    message = r"batch_size=56 .* accumulation=4 = 16 equal parts; nearest sizes that fit: 48, 64"
    with pytest.raises(UserError, match=message):
        step.lower(abstract_state(MODEL, TX, mesh=MIXED.mesh), make_batch(), KEY)
