"""What a step needs of a device's memory, by part, as the compiler counts it, or what it says if that is too much."""

import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.training.sharding import axes_of
from train.pretraining.phases import Phase
from train.pretraining.steps import Steps

_TOO_BIG = re.compile(r"RESOURCE_EXHAUSTED.*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", re.S)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class MemoryParts(NamedTuple):
    """Bytes on each device while a step runs.

    Attributes:
        parameters, optimizer, batch: what the step reads.
        padding: what their layout in memory adds to these.
        temporaries: activations and gradients, at their most.
        results: of the step, as far as they are not written over what it read.
        program: its instructions, which lie in a TPU's memory, too.
    """

    parameters: int
    optimizer: int
    batch: int
    padding: int
    temporaries: int
    results: int
    program: int

    @property
    def peak(self) -> int:
        return sum(self)


class TooBig(Exception):
    """The compiler refuses a step: its temporaries need more than a device's memory.

    Attributes:
        needed, limit: bytes; None if the compiler's message has another form than today.
    """

    def __init__(self, message: str):
        super().__init__(message)
        found = _TOO_BIG.search(message)
        self.needed = float(found[1]) * _UNITS[found[2]] if found else None
        self.limit = float(found[3]) * _UNITS[found[4]] if found else None


def of_device(tree: Any) -> int:
    """The bytes of a tree of ShapeDtypeStructs with shardings on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "sharding") and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )


def memory_of(compiled: Any, steps: Steps, phase: Phase) -> MemoryParts:
    """The parts of a compiled step's memory; they add up to what the compiler counts."""
    found = compiled.memory_analysis()
    parameters = of_device(steps.state.params)
    optimizer = of_device(steps.state) - parameters
    batch = of_device(steps.inputs(phase)) + of_device(steps.objective)
    return MemoryParts(
        parameters=parameters,
        optimizer=optimizer,
        batch=batch,
        padding=found.argument_size_in_bytes - parameters - optimizer - batch,
        temporaries=found.temp_size_in_bytes,
        results=found.output_size_in_bytes - found.alias_size_in_bytes,
        program=found.generated_code_size_in_bytes,
    )


def guessed_memory(steps: Steps, phase: Phase, rows: int) -> MemoryParts:
    """What a step needs where nothing compiles it: the state as it is, gradients, and activations by a rule.

    What a layer keeps for the backward pass was read off the programs that the TPU's compiler makes of BERT-base and
    -large: 14.6 x width + 4 x heads x length bytes a token with bfloat16 activations, 2 x width with remat "full".
    Under tensor a device has its share of heads and columns, and all of the 8 x width that lie between: what attention
    and feed-forward read, and what they add to it, in bfloat16.
    """
    config, tensor = steps.config.model, steps.mesh.shape["tensor"]
    parameters = of_device(steps.state.params)
    between, scores = 8 * config.hidden_size, 4 * config.num_attention_heads * phase.length
    kept = between + (14.6 * config.hidden_size - between + scores) / tensor
    kept = 2 * config.hidden_size if config.remat == "full" else kept
    layers = len(config.layer_order)
    return MemoryParts(
        parameters=parameters,
        optimizer=of_device(steps.state) - parameters,
        batch=of_device(steps.inputs(phase)) + of_device(steps.objective),
        padding=0,
        temporaries=_gathered_and_gradients(steps) + round(rows * phase.length * layers * kept),
        results=0,
        program=0,
    )


def _gathered_and_gradients(steps: Steps) -> int:
    """The bytes of a device's gathered parameters and of its gradients.

    The step gathers each parameter once, in the type of the products, and keeps it for the backward pass. Gradients
    are split over zero when all of them are there, over fsdp one after the other: of these the largest alone is whole.
    """
    type_, gathered, gradients, joined = jnp.dtype(steps.config.model.dtype), 0, 0, 0
    for leaf in jax.tree.leaves(steps.state.params):
        split = {axis for names in leaf.sharding.spec for axis in axes_of(names)}
        fsdp, zero = (steps.mesh.shape[axis] if axis in split else 1 for axis in ("fsdp", "zero"))
        gradient = of_device(leaf) * zero
        gradients += gradient
        joined = max(joined, (fsdp - 1) * gradient)
        if fsdp * zero > 1:
            gathered += fsdp * gradient * type_.itemsize // leaf.dtype.itemsize
    return gathered + gradients + joined
