"""How long the attention kernel takes on a TPU, by the schedule of the TPU's compiler.

    python -m benchmarks.attention_kernel [--topology v5e:1x1] [ROWSxLENGTHxHEADSxSIZE ...]

Compiles a forward and a backward pass alone, bfloat16 with dropout 0.1, and prints the cycles of each. It needs no TPU,
but the compiler: pip install -e '.[tpu]'. The cycles are bundles of instructions, counted; a TPU waits now and then.
"""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from train.planning.devices import devices_of, make_ready
from train.planning.kernels import forget_schedules, schedules
from train.planning.machines import Topology, read_topology, take_topologies
from train.run.chips import CHIPS

# base-128, large-128, large-512, and a head size of MiniLM
SHAPES = ("64x128x12x64", "32x128x16x64", "8x512x16x64", "8x512x12x32")


def main(words: list[str]) -> None:
    topologies, shapes = take_topologies(words)
    (topology,) = topologies or (read_topology("v5e:1x1"),)
    make_ready([topology])
    print(f"{topology.name}: rows x length x heads x size of a head, cycles forward and backward")
    for shape in shapes or SHAPES:
        report(topology, shape)


def report(topology: Topology, shape: str) -> None:
    from bert_jax.model.attention_kernel import attend
    from bert_jax.model.layers import DropoutKey, drawn_by_kernel

    device, clock = devices_of(topology)[0], CHIPS[topology.chip].clock or 0
    rows, length, heads, size = map(int, shape.split("x"))

    def spec(sizes: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=SingleDeviceSharding(device))

    def both(q, k, v, ids, words, cotangent):
        def forward(q, k, v):
            rate, words_B2 = drawn_by_kernel(0.1, DropoutKey(words), 0, rows)
            return attend(
                q, k, v, ids, ids, words_B2, rate=rate, dtype="bfloat16", out_dtype="bfloat16", interpret=False
            )

        context, backward = jax.vjp(forward, q, k, v)
        return context, backward(cotangent)

    x = spec((rows, length, heads, size), "bfloat16")
    arguments = (x, x, x, spec((rows, length), "int32"), spec((2,), "uint32"), x)
    forget_schedules()
    with jax.sharding.use_abstract_mesh(Mesh(np.array([device]), ("one",)).abstract_mesh):
        jax.jit(both).lower(*arguments).compile()
    passes = {
        word: schedule.cycles
        for name, schedule in schedules().items()
        for word in ("forward", "backward")
        if f"attention_{word}" in name
    }
    print(f"{shape:16s} {passes}, {sum(passes.values()) / clock * 1e3:.2f} ms at {clock / 1e9} GHz", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
