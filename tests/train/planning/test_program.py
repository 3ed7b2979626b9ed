"""What is read off a compiled program, against programs whose exchanges and products are counted by hand."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.sharding import axes_of
from tests.tiny import CONFIG, OPTIMIZER
from train.planning.memory import MemoryParts, TooBig, guessed_memory, memory_of, of_device
from train.planning.planner import summed
from train.planning.products import product_flops
from train.planning.program import Collective, array_bytes, read_program
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import RandomData
from train.pretraining.steps import Steps

pytestmark = pytest.mark.eight_devices
ROWS, LENGTH, PREDICTIONS = 32, 16, 3


def collectives_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], axes: tuple[int, ...] = (8,), slices: Sequence[int] = ()
) -> list:
    mesh = Mesh(np.array(jax.devices()).reshape(axes), ("x", "y")[: len(axes)])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return read_program(jax.jit(mapped).lower(*arrays).compile().as_text(), 8, slices=slices).collectives


def scanned(x: jax.Array) -> jax.Array:
    return lax.scan(lambda total, _: (total + lax.psum(total * x, "x"), None), x, None, length=5)[0]


@pytest.mark.parametrize(
    ("function", "kind", "elements", "times", "group"),
    [
        (lambda x: lax.psum(x, "x"), "all-reduce", 3 * 4, 1, 8),
        (lambda x: lax.all_gather(x, "x", tiled=True), "all-gather", 24 * 4, 1, 8),
        (lambda x: lax.psum_scatter(jnp.tile(x, (8, 1)), "x", tiled=True), "reduce-scatter", 24 * 4, 1, 8),
        (lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)]), "collective-permute", 3 * 4, 1, 2),
        (scanned, "all-reduce", 3 * 4, 5, 8),
    ],
    ids=["all-reduce", "all-gather", "reduce-scatter", "permute", "in a loop"],
)
def test_a_collective_has_its_kind_bytes_and_place(function, kind: str, elements: int, times: int, group: int):
    (found,) = collectives_of(function, (24, 4))
    assert found == Collective(kind, 4 * elements, times, times > 1, False, group)


@pytest.mark.parametrize(("axis", "group", "slices"), [("x", 2, 2), ("y", 4, 1), (("x", "y"), 8, 2)])
def test_a_collective_joins_the_devices_of_its_axes_and_their_slices(axis: Any, group: int, slices: int):
    """Two slices, one for each place of the first axis: a sum over it crosses them, though its groups are small."""
    (found,) = collectives_of(lambda x: lax.psum(x, axis), (24, 4), axes=(2, 4), slices=[0] * 4 + [1] * 4)
    assert (found.group, found.slices) == (group, slices)


@pytest.mark.parametrize(
    ("groups", "group", "slices"),
    [
        ("replica_groups={}", 16, 4),
        ("replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}", 4, 4),
        ("replica_groups={{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", 4, 1),
        ("replica_groups=[2,8]<=[16]", 8, 2),
        ("replica_groups=[4,4]<=[4,4]T(1,0)", 4, 4),
        ("replica_groups=[8,2]<=[2,2,4]T(0,2,1)", 2, 2),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=4] {'axis_1'}", 4, 1),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=4] {'axis_0'}", 4, 4),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2,'axis_2'=4] {'axis_0','axis_2'}", 8, 2),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,4}}", 2, 2),
    ],
)
def test_who_takes_part_is_read_in_any_notation(groups: str, group: int, slices: int):
    """Sixteen devices in slices of four; `[8,2]<=[2,2,4]T(0,2,1)` are the pairs {0,4}, {1,5}, ... {11,15}."""
    text = f"ENTRY %main (x: f32[4]) -> f32[4] {{\n  ROOT %r = f32[4] all-reduce(%x), {groups}, to_apply=%sum\n}}\n"
    (found,) = read_program(text, 16, slices=[place // 4 for place in range(16)]).collectives
    assert (found.group, found.slices) == (group, slices)


def test_what_lies_in_a_tpus_vmem_is_no_traffic_of_its_memory():
    shape = (
        "(f32[30522,128]{1,0:T(8,128)S(1)}, bf16[16,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}, f32[8]{0:S(3)}, pred[7]{0})"
    )
    assert array_bytes(shape) == 4 * 30522 * 128 + 2 * 16 * 128 + 4 + 4 * 8 + 7
    assert array_bytes(shape, of_memory=True) == 2 * 16 * 128 + 7


ASYNCHRONOUS = """HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%async_collective_fusion.1 (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %r = f32[4,8]{1,0} all-reduce(%p), replica_groups=[2,8]<=[16], to_apply=%sum
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %start = (f32[4,8]{1,0}, f32[64,8]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}, dimensions={0}
  %g = f32[4,8]{1,0} negate(%x)
  %done = f32[64,8]{1,0} all-gather-done(%start)
  %f = f32[4,8]{1,0} fusion(%x), kind=kCustom, calls=%async_collective_fusion.1
  ROOT %w = f32[4,8]{1,0} all-reduce(%f), replica_groups=mesh['axis_0'=4,'axis_1'=4] {'axis_1'}, to_apply=%sum
}
"""


def test_what_runs_beside_other_operations_is_told_from_what_is_waited_for():
    """Three ways in which the TPU's compiler writes a collective, and three in which it writes who takes part."""
    assert read_program(ASYNCHRONOUS, 16).collectives == [
        Collective("all-gather", 4 * 64 * 8, 1, False, True, 16, ("g",)),
        Collective("all-reduce", 4 * 4 * 8, 1, False, True, 8, ("f",)),
        Collective("all-reduce", 4 * 4 * 8, 1, False, False, 4),
    ]


IN_STEPS = """HloModule step, is_scheduled=true

%start (p: f32[64,8]) -> (f32[64,8], f32[64,8], s32[2]) {
  %p = f32[64,8]{1,0} parameter(0)
  %sum.1 = f32[64,8]{1,0} all-reduce(%p), replica_groups=[2,8]<=[16], to_apply=%sum
  ROOT %t = (f32[64,8]{1,0}, f32[64,8]{1,0}, s32[2]{0:S(4)}) tuple(%p, %sum.1, %s)
}

%async_collective_fusion.2 (p: f32[64,8], q: f32[64,8], x: f32[4,4]) -> (f32[4,4], f32[64,8], f32[64,8], s32[2]) {
  %p = f32[64,8]{1,0} parameter(0)
  %sum.2 = f32[64,8]{1,0} all-reduce(%p), replica_groups=[2,8]<=[16], to_apply=%sum
  ROOT %t = (f32[4,4]{1,0}, f32[64,8]{1,0}, f32[64,8]{1,0}, s32[2]{0:S(4)}) tuple(%x, %p, %sum.2, %s)
}

%done (p: f32[64,8], q: f32[64,8]) -> f32[64,8] {
  %p = f32[64,8]{1,0} parameter(0)
  ROOT %sum.3 = f32[64,8]{1,0} all-reduce(%p), replica_groups=[2,8]<=[16], to_apply=%sum
}

%all-reduce-scatter (p: f32[64,8]) -> f32[8,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %sum.4 = f32[64,8]{1,0} all-reduce(%p), replica_groups=[2,8]<=[16], to_apply=%sum
  ROOT %piece = f32[8,8]{1,0} dynamic-slice(%sum.4, %i, %j), dynamic_slice_sizes={8,8}
}

ENTRY %main (x: f32[64,8], y: f32[4,4]) -> f32[8,8] {
  %x = f32[64,8]{1,0} parameter(0)
  %y = f32[4,4]{1,0} parameter(1)
  %async-collective-start.7 = (f32[64,8]{1,0}, f32[64,8]{1,0}, s32[2]{0:S(4)}) fusion(%x), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%start
  %a = f32[64,8]{1,0} get-tuple-element(%async-collective-start.7), index=0
  %b = f32[64,8]{1,0} get-tuple-element(%async-collective-start.7), index=1
  %f = (f32[4,4]{1,0}, f32[64,8]{1,0}, f32[64,8]{1,0}, s32[2]{0:S(4)}) fusion(%a, %b, %y), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%async_collective_fusion.2
  %c = f32[64,8]{1,0} get-tuple-element(%f), index=1
  %d = f32[64,8]{1,0} get-tuple-element(%f), index=2
  %async-collective-done.7 = f32[64,8]{1,0} fusion(%c, %d), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, calls=%done
  ROOT %r = f32[8,8]{1,0} fusion(%async-collective-done.7), kind=kCustom, calls=%all-reduce-scatter
}
"""


def test_an_exchange_beside_several_products_counts_once_and_is_no_traffic_of_theirs():
    """As the TPU's compiler writes it: a start, a product that hands the exchange's arrays on, and an end."""
    program = read_program(IN_STEPS, 16)
    assert program.collectives == [
        Collective("all-reduce", 4 * 64 * 8, 1, False, True, 8, ("f",)),
        Collective("reduce-scatter", 4 * 64 * 8, 1, False, False, 8),
    ]
    traffic = {operation.name: operation.traffic for operation in program.operations}
    assert traffic["f"] == 2 * 4 * 4 * 4 + 8  # reads and writes its own matrix, and the state of the exchange
    assert traffic["async-collective-start.7"] == traffic["async-collective-done.7"] == 0


IN_A_CHAIN = """HloModule step, is_scheduled=true

%async_collective_fusion.1 (x: bf16[8,8], p: bf16[8,8]) -> (bf16[8,8], bf16[64,8], s32[2]) {
  %p = bf16[8,8]{1,0} parameter(1)
  %gather = bf16[64,8]{1,0} all-gather(%p), replica_groups=[2,8]<=[16], dimensions={0}
  ROOT %t = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, s32[2]{0:S(4)}) tuple(%x, %gather, %s)
}

%async_collective_fusion.2 (x: bf16[8,8], p: bf16[8,8], g: bf16[64,8]) -> (bf16[8,8], bf16[64,8], bf16[64,8]) {
  %p = bf16[8,8]{1,0} parameter(1)
  %gather.1 = bf16[64,8]{1,0} all-gather(%p), replica_groups=[2,8]<=[16], dimensions={0}
  ROOT %t = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, bf16[64,8]{1,0}) tuple(%x, %g, %gather.1)
}

ENTRY %main (x: bf16[8,8], p: bf16[8,8]) -> bf16[8,8] {
  %x = bf16[8,8]{1,0} parameter(0)
  %p = bf16[8,8]{1,0} parameter(1)
  %f.1 = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, s32[2]{0:S(4)}) fusion(%x, %p), kind=kOutput, calls=%async_collective_fusion.1
  %y = bf16[8,8]{1,0} get-tuple-element(%f.1), index=0
  %g = bf16[64,8]{1,0} get-tuple-element(%f.1), index=1
  %f.2 = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, s32[2]{0:S(4)}) fusion(%y, %p, %g), kind=kOutput, output_to_operand_aliasing={{1}: (2, {})}, calls=%async_collective_fusion.2
  %z = bf16[8,8]{1,0} get-tuple-element(%f.2), index=0
  ROOT %f.3 = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, s32[2]{0:S(4)}) fusion(%z, %p), kind=kOutput, calls=%async_collective_fusion.1
}
"""


def test_a_product_hides_only_the_exchanges_whose_arrays_it_hands_on():
    """A product after them that takes only their products has nothing of the first exchange."""
    first, last = read_program(IN_A_CHAIN, 16).collectives
    assert (first.beside, last.beside) == (("f.1", "f.2"), ("f.3",))


def steps_of(mesh: MeshConfig | None = None, devices: int = 8, **fields: Any) -> Steps:
    mesh, fields = mesh or MeshConfig(), {"model": CONFIG} | fields
    config = PretrainConfig(optimizer=OPTIMIZER, phases=(Phase(LENGTH, ROWS, 100),), mesh=mesh, **fields)
    return Steps(config, RandomData(config.model.vocab_size, "nsp"), make_mesh(config.mesh, jax.devices()[:devices]))


@pytest.fixture(scope="module")
def data_parallel():
    steps = steps_of()
    return steps, steps.compile(steps.config.phases[0], 1)


def parameters_of() -> int:
    shapes = jax.eval_shape(HEADS["pretraining"](CONFIG).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.slow
def test_data_parallel_sums_each_gradient_once(data_parallel):
    """By hand: every parameter in float32, and some scalars: sums of the losses, their weights and hits."""
    _, compiled = data_parallel
    found = summed(read_program(compiled.as_text(), 8).collectives)
    (one,) = found  # XLA's CPU has no asynchronous ones, and without micro-batches there is no loop
    assert (one["kind"], one["in_loop"], one["asynchronous"], one["group"]) == ("all-reduce", False, False, 8)
    assert 4 * parameters_of() <= one["bytes"] <= 4 * parameters_of() + 64


@pytest.mark.slow
def test_the_parts_of_the_memory_add_up_to_what_the_compiler_counts(data_parallel):
    steps, compiled = data_parallel
    memory = memory_of(compiled, steps, steps.config.phases[0])
    counted = compiled.memory_analysis()
    arguments = counted.argument_size_in_bytes
    assert memory.peak == arguments + counted.temp_size_in_bytes + (
        counted.output_size_in_bytes - counted.alias_size_in_bytes + counted.generated_code_size_in_bytes
    )
    assert memory.parameters == 4 * parameters_of()
    assert memory.optimizer == pytest.approx(2 * memory.parameters, abs=100)  # two moments, and counts of steps
    batch = ROWS // 8 * (3 * LENGTH + 3 * PREDICTIONS + 1) * 4
    assert memory.batch == batch
    assert abs(memory.padding) < 0.01 * arguments


def test_a_state_in_pieces_takes_its_share_of_a_device():
    whole, pieces = steps_of(devices=1), steps_of(MeshConfig(data=2, fsdp=4))
    assert of_device(whole.state) == whole.state_bytes
    assert of_device(pieces.state) < 0.4 * whole.state_bytes  # all but biases, LayerNorms and small heads in four


WIDE = CONFIG.replace(hidden_size=64, num_attention_heads=8, intermediate_size=256, vocab_size=64)
TOKENS, LAYERS = 4 * LENGTH, CONFIG.num_hidden_layers  # of a device, which computes four rows


def guess_for(mesh: MeshConfig | None = None, **fields: Any) -> tuple[MemoryParts, Steps]:
    steps = steps_of(mesh, model=WIDE.replace(**fields))
    return guessed_memory(steps, steps.config.phases[0], 4), steps


def bytes_of(steps: Steps, *axes: str) -> list[int]:
    """Bytes of the whole parameters that these axes split."""
    leaves = jax.tree.leaves(steps.state.params)
    return [
        4 * one.size for one in leaves if set(axes) & {name for part in one.sharding.spec for name in axes_of(part)}
    ]


def test_the_rule_for_memory_counts_whole_gradients_and_what_is_gathered():
    whole, _ = guess_for()
    everything = whole.parameters
    activations = TOKENS * LAYERS * (14.6 * 64 + 4 * 8 * LENGTH)
    assert whole.temporaries == pytest.approx(everything + activations, abs=1)
    for dtype, share in (("float32", 1), ("bfloat16", 1 / 2)):  # of the bytes of the stored parameters
        zero, steps = guess_for(MeshConfig(zero=8), dtype=dtype)
        gathered = share * sum(bytes_of(steps, "zero"))
        assert zero.temporaries == pytest.approx(everything + gathered + activations, abs=1)
        assert zero.parameters < everything / 4
        fsdp, steps = guess_for(MeshConfig(fsdp=8), dtype=dtype)
        one = 7 / 8 * max(bytes_of(steps, "fsdp"))  # besides its piece
        assert fsdp.temporaries == pytest.approx(fsdp.parameters + one + gathered + activations, abs=1)
    both, steps = guess_for(MeshConfig(fsdp=2, zero=4))
    split = sum(bytes_of(steps, "fsdp", "zero"))
    one = 1 / 2 * max(bytes_of(steps, "fsdp"))
    expected = everything - split / 2 + one + split + activations
    assert both.temporaries == pytest.approx(expected, abs=1)


def test_the_rule_for_memory_splits_heads_and_columns_over_tensor():
    for tensor in (2, 8):
        found, _ = guess_for(MeshConfig(tensor=tensor))
        kept = 8 * 64 + (6.6 * 64 + 4 * 8 * LENGTH) / tensor
        assert found.temporaries == pytest.approx(found.parameters + TOKENS * LAYERS * kept, abs=1)
    again, _ = guess_for(MeshConfig(tensor=8), remat="full")
    assert again.temporaries == again.parameters + TOKENS * LAYERS * 2 * 64


@pytest.mark.slow
def test_the_rule_for_memory_goes_where_compiled_programs_go():
    """From data to pieces of the state, and to fewer heads and columns on each device, which always has eight rows."""

    def of(mesh: MeshConfig) -> tuple[int, int]:
        steps = steps_of(mesh, model=WIDE.replace(max_position_embeddings=32, vocab_size=512))
        phase = Phase(32, 64 // steps.mesh.shape["tensor"], 100)
        return memory_of(steps.compile(phase, 1), steps, phase).temporaries, guessed_memory(steps, phase, 8).temporaries

    data, zero, fsdp, tensor = map(of, (MeshConfig(), MeshConfig(zero=8), MeshConfig(fsdp=8), MeshConfig(tensor=4)))
    for compiled_or_guessed in (0, 1):
        assert zero[compiled_or_guessed] > data[compiled_or_guessed]
        assert fsdp[compiled_or_guessed] > data[compiled_or_guessed]
        assert tensor[compiled_or_guessed] < 0.7 * data[compiled_or_guessed]


@pytest.mark.slow
def test_products_are_those_of_the_closed_formula_whatever_the_loops_and_devices():
    """Three times the forward pass, https://arxiv.org/abs/2001.08361 (section 2.1), with heads and pooler."""
    d, f, v, layers = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG.vocab_size, CONFIG.num_hidden_layers
    layer = LENGTH * (4 * d * d + 2 * d * f) + 2 * LENGTH * LENGTH * d
    row = layers * layer + PREDICTIONS * (d * d + d * v) + d * d + 2 * d
    formula = 3 * 2 * ROWS * row
    for fields in ({"fused_loss": False}, {"fused_loss": False, "accumulation": 4, "devices": 2}):
        steps = steps_of(**{"devices": 1} | fields)
        traced = steps.trace(steps.config.phases[0], steps.parts_of(steps.config.phases[0]))
        assert product_flops(traced.jaxpr.jaxpr) == pytest.approx(formula, rel=1e-6)
    assert steps.flops(steps.config.phases[0]) == pytest.approx(formula, rel=0.05)  # without pooler and pairs


def test_what_the_backward_pass_computes_again_counts_as_products_of_the_program():
    def loss(w: jax.Array, x: jax.Array, wrap: Callable[..., Any]) -> jax.Array:
        return wrap(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))(x).sum()

    w, x = jnp.ones((8, 8)), jnp.ones((4, 8))
    plain, again = (
        product_flops(jax.make_jaxpr(jax.grad(partial(loss, wrap=wrap)))(w, x).jaxpr)
        for wrap in (lambda function: function, jax.checkpoint)
    )
    one = 2 * 4 * 8 * 8
    assert plain == 5 * one and again == 7 * one  # two forward, three backward (none for x); two forward again


def test_the_compilers_refusal_says_how_much_is_needed():
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (44.00G) exceeds "
        "available HBM (15.75G)."
    )
    assert (TooBig(message).needed, TooBig(message).limit) == (44 * 2**30, 15.75 * 2**30)
    assert TooBig("RESOURCE_EXHAUSTED: in other words").needed is None
