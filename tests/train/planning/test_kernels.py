"""Schedules in a plan, of kernels and fusions: counted by hand, and against what a TPU's units can do."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from train.planning import kernels
from train.planning.estimate import estimate_tpu
from train.planning.kernels import Schedule, read_schedule, schedules
from train.planning.machines import read_topology
from train.planning.program import Operation, Program, read_program
from train.run.chips import CHIPS

# As libtpu writes it, without the operations between: an outer loop of 6 turns, whose index lies in memory meanwhile,
# a branch that skips the rest of a turn, an inner loop that starts at 2, ends at 5 and has 4 bundles, and a tail.
SCHEDULE = """
= control target key start
LB: loop body
= control target key end

     0   :  { %s90_s1 = smov 0 /* copy for cssa */ }
   0x1 LB: > { %s1_s2 = sphi %s90_s1, %s8_s2 /* phi copy */  ;;  %1 = sst [smem:[#allocation7_spill]] %s1_s2 } /* Start region 40 */
   0x2   : > { %2 = sbr.rel (%p1_p0) target = $region20  ;;  %s91_s3 = smov (!%p1_p0), 2 /* copy for cssa */ }
   0x3 LB: >> { %s2_s3 = sphi %s91_s3, %s3_s3 /* phi copy */  ;;  %s3_s3 = sadd.s32 1, %s2_s3 } /* Start region 30 */
   0x4   : >> { %p2_p1 = scmp.ge.s32.totalorder %s3_s3, 5 /* loop exit test */ }
   0x5   : >> {}
   0x6   : >> { %3 = sbr.rel (!%p2_p1) target = $region30 }
   0x7 PF: > { %s4_s4 = sld [smem:[#allocation7_spill]] } /* Start/End empty region 20 */
   0x8   : > { %s5_s5 = sadd.s32 1, %s4_s4  ;;  %s8_s2 = smov %s5_s5 }
   0x9   : > { %p3_p2 = scmp.ge.s32.totalorder %s5_s5, LIMIT /* loop exit test */ }
   0xa   :  { %4 = sbr.rel (!%p3_p2) target = $region40 }
   0xb   :  {} /* exit bundle: %kernel.1 = custom-call(%x) */
"""


def test_a_schedule_takes_a_cycle_for_each_bundle_and_turn_of_its_loops():
    assert read_schedule(SCHEDULE.replace("LIMIT", "6")) == Schedule(1 + 6 * (2 + 3 * 4 + 4) + 1, known=True)
    assert read_schedule(SCHEDULE.replace("LIMIT", "%s9_s9")) == Schedule(1 + (2 + 3 * 4 + 4) + 1, known=False)


PROGRAM = """HloModule step, is_scheduled=true

ENTRY %main (x: bf16[8,128]) -> bf16[8,128] {
  %x = bf16[8,128]{1,0} parameter(0)
  %k.3 = bf16[8,128]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"AAA"}}
  %k.4 = bf16[8,128]{1,0} custom-call(%k.3), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"AAA"}}
  %k.5 = bf16[8,128]{1,0:S(1)} custom-call(%k.4), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"AAA"}}
  ROOT %j.1 = bf16[8,128]{1,0} custom-call(%k.5), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"BBB"}}
}
"""


def test_equal_kernels_share_a_schedule_and_one_without_is_counted():
    """The compiler writes one schedule for equal kernels (`k.3` and `k.4`), for whichever it compiles first."""
    program = read_program(PROGRAM, 1, {"k.4": Schedule(700, known=True), "k.5": Schedule(600, known=False)})
    assert [operation.cycles for operation in program.operations] == [700, 700, 600, 0]
    assert program.unscheduled == 2
    assert read_program(PROGRAM, 1).unscheduled == 4


FUSIONS = """HloModule step, is_scheduled=true

%squares (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0} parameter(0)
  ROOT %b = f32[8,128]{1,0} multiply(%a, %a), metadata={op_name="layer_0"}
}

%squares.1 (c: f32[8,128]) -> f32[8,128] {
  %c = f32[8,128]{1,0} parameter(0)
  ROOT %d = f32[8,128]{1,0} multiply(%c, %c), metadata={op_name="layer_1"}
}

%sums (e: f32[8,128]) -> f32[8,128] {
  %e = f32[8,128]{1,0} parameter(0)
  ROOT %f = f32[8,128]{1,0} add(%e, %e)
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %f.1 = f32[8,128]{1,0} fusion(%x), kind=kLoop, calls=%squares, backend_config={"estimated_cycles":"500"}
  %f.2 = f32[8,128]{1,0} fusion(%f.1), kind=kLoop, calls=%squares.1, backend_config={"estimated_cycles":"500"}
  %f.3 = f32[8,128]{1,0:S(1)} fusion(%f.2), kind=kLoop, calls=%squares.1, backend_config={"estimated_cycles":"500"}
  ROOT %f.4 = f32[8,128]{1,0} fusion(%f.2), kind=kLoop, calls=%sums, backend_config={"estimated_cycles":"500"}
}
"""


def test_equal_fusions_share_a_schedule_and_others_do_not():
    """Equal are those that compute the same of arrays in the same memory, whatever the parts are called."""
    program = read_program(FUSIONS, 1, {"f.1": Schedule(70, known=True), "f.3": Schedule(60, known=False)})
    assert [operation.scheduled for operation in program.operations] == [70, 70, 0, 0]
    assert {operation.cycles for operation in program.operations} == {500} and program.unscheduled == 0


def test_a_kernel_takes_its_cycles_and_up_to_half_as_many_of_waiting_or_its_memory_traffic():
    topology, chip = read_topology("v5e:1x1"), CHIPS["v5e"]
    kernel = Operation("kernel", "k", "attention: scores", 4, 3000, 0)
    found = estimate_tpu(Program([kernel], []), topology)
    assert found.kernels == found.step == found.parts["attention: scores"]
    assert found.step == (pytest.approx(4 * 3000 / chip.clock), pytest.approx(4 * 4500 / chip.clock))
    fetched = estimate_tpu(Program([kernel._replace(traffic=10**9)], []), topology).step
    assert fetched == (pytest.approx(4 * 10**9 / chip.memory), pytest.approx(4 * 10**9 / chip.memory))


def test_the_schedule_is_found_by_the_kernels_name(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_folder", lambda: tmp_path)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--given=1")
    kernels.keep_schedules()
    kernels.keep_schedules()
    given, folder, *_ = words = os.environ["LIBTPU_INIT_ARGS"].split()
    assert given == "--given=1" and folder.endswith(f"={tmp_path}") and len(words) == 4
    (tmp_path / "1795-kernel.1-01-final_bundles.txt").write_text(SCHEDULE.replace("LIMIT", "1"))
    (tmp_path / "1795-kernel.1-00-schedule-analysis_final_bundles.txt").write_text("no bundles")
    assert schedules() == {"kernel.1": Schedule(1 + 18 + 1, known=True)}
    kernels.forget_schedules()
    assert schedules() == {}


COMPILED = """
import json, sys
import jax, jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from train.planning.devices import devices_of, make_ready
from train.planning.kernels import forget_schedules, schedules
from train.planning.machines import read_topology
from train.planning.program import read_program

topology = read_topology(sys.argv[1])
make_ready([topology])
mesh = jax.sharding.Mesh(devices_of(topology)[:1], ("x",))
whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def product(turns, x, y, out):
    zero = jnp.zeros(out.shape, jnp.float32)
    out[...] = lax.fori_loop(2, 2 + turns, lambda i, sum: sum + jnp.dot(x[...], y[...] + i.astype(y.dtype),
        preferred_element_type=jnp.float32), zero).astype(out.dtype)


def halved(x, out):
    out[...] = lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x[...])


def compiled(calls, *shapes):
    forget_schedules()
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=whole) for shape in shapes]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jax.jit(calls).lower(*arrays)
    program = read_program(lowered.compile().as_text(), 1, schedules())
    return [one.cycles for one in program.operations if one.kind == "kernel"], program.unscheduled


def products(blocks, turns, layers=1):
    block, weights = pl.BlockSpec((256, 512), lambda i: (i, 0)), pl.BlockSpec((512, 512), lambda i: (0, 0))
    shapes = (256 * blocks, 512), (512, 512)
    cores = pltpu.CompilerParams(dimension_semantics=("parallel",))  # a v5p has two
    def kernel(x, y):
        return pl.pallas_call(lambda *refs: product(turns, *refs), grid=(blocks,), in_specs=[block, weights],
            out_specs=block, compiler_params=cores, out_shape=jax.ShapeDtypeStruct(shapes[0], jnp.bfloat16))(x, y)
    def calls(x, y):
        for _ in range(layers):
            x = jnp.tanh(kernel(x, y))
        return x
    return compiled(calls, *shapes)


found = {f"{blocks},{turns}": products(blocks, turns)[0][0] for blocks in (4, 8, 16) for turns in (4, 8, 16)}
lengths = pl.pallas_call(halved, out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32))
print(json.dumps({"cycles": found, "layers": products(64, 4, 5),
    "unknown": compiled(lambda x: lengths(x.astype(jnp.float32)), (16, 128))}))
"""


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler (libtpu) is not installed")
@pytest.mark.exhaustive
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_the_schedule_of_a_compiled_kernel_is_read(chip: str):
    """It grows by the same number of cycles with each block and turn, and a product takes what the matrix units need."""
    name = f"{chip}:{'1x1' if CHIPS[chip].axes == 2 else '1x1x1'}"
    command = [sys.executable, "-c", COMPILED, name]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    cycles = {tuple(map(int, key.split(","))): value for key, value in found["cycles"].items()}
    for size in (4, 8, 16):
        assert cycles[16, size] - cycles[8, size] == 2 * (cycles[8, size] - cycles[4, size]) > 0
        assert cycles[size, 16] - cycles[size, 8] == 2 * (cycles[size, 8] - cycles[size, 4]) > 0
    one = (cycles[16, 16] - cycles[16, 8] - (cycles[8, 16] - cycles[8, 8])) / 64  # of a turn of a block
    least = 2 * 256 * 512 * 512 / (CHIPS[chip].flops / CHIPS[chip].clock)
    assert least < one < 2 * least
    layers, unscheduled = found["layers"]
    assert len(layers) == 5 and all(layers) and unscheduled == 0
    assert found["unknown"][1] == 1


ELEMENTWISE = """
import json
import jax, jax.numpy as jnp
from train.planning.devices import devices_of, make_ready
from train.planning.kernels import forget_schedules, schedules
from train.planning.machines import read_topology
from train.planning.program import read_program

topology = read_topology("v5e:1x1")
make_ready([topology])
whole = jax.sharding.SingleDeviceSharding(devices_of(topology)[0])


def longest(function, *shapes):
    forget_schedules()
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole) for shape in shapes]
    compiled = jax.jit(function).lower(*arrays).compile()
    return max(one.scheduled for one in read_program(compiled.as_text(), 1, schedules()).operations)


def norm(x):
    return jnp.square(x).sum()


def doubled(x):
    return 2 * x


rows = (2048, 4096, 8192)
print(json.dumps({one.__name__: [longest(one, (size, 1024)) for size in rows] for one in (norm, doubled)}))
"""


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler (libtpu) is not installed")
@pytest.mark.exhaustive
def test_the_schedules_of_the_compilers_own_fusions_are_what_a_v5e_needs_for_them():
    """A cycle writes at most one register of 1,024 numbers and reads at most three."""
    found = json.loads(
        subprocess.run([sys.executable, "-c", ELEMENTWISE], check=True, capture_output=True, text=True).stdout
    )
    for at, rows in enumerate((2048, 4096, 8192)):
        assert rows / 3 <= found["norm"][at] < 2 * rows
        assert rows <= found["doubled"][at] < 2 * rows
