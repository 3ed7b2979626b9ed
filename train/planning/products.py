"""Counts the operations of the matrix products in a traced program, with every turn of its loops and every device."""

import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core


def product_flops(jaxpr: Any) -> float:
    """2 x rows x columns x contracted, summed over the products of a jaxpr that run in one call of it.

    Includes what is computed again in the backward pass. In a `shard_map` each device has its own products; the bodies
    of a kernel written by hand run once for each point of its grid. Of a branch the costlier side counts; a loop of
    unknown length counts once.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            length = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * length
        elif name == "cond":
            total += max(product_flops(branch.jaxpr) for branch in params["branches"])
        else:
            total += _times(name, params) * sum(product_flops(inner) for inner in _inner(params))
    return total


def _times(name: str, params: dict[str, Any]) -> int:
    if name == "scan":
        return params["length"]
    if name == "shard_map":
        return math.prod(params["mesh"].shape[axis] for axis in params.get("manual_axes", params["mesh"].axis_names))
    if name == "pallas_call":
        return math.prod(params["grid_mapping"].grid)
    return 1


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, core.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, core.Jaxpr):
                yield one
