"""Sharding: the table from parameter path to PartitionSpec, the layouts of any tree, and how a step gathers pieces."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.fused_loss import fused_cross_entropy
from bert_jax.model.losses import FusedLoss
from bert_jax.runtime.remember import remember
from bert_jax.training.mesh import (
    BATCH_AXES,
    PIECES,
    batch_pieces,
    check_mesh,
    divisors_told,
    platform_of,
    splits_rows,
)


@dataclass(frozen=True)
class Rule:
    """A row of the table: a pattern for the end of a path, and layouts; the first that divides the shape applies."""

    pattern: str
    specs: tuple[P, ...]

    def matches(self, path: str) -> bool:
        return re.search(f"(?:^|/)(?:{self.pattern})$", path) is not None


PARTITION_TABLE: tuple[Rule, ...] = (
    # The size of a published vocabulary (30522 = 2 * 3 * 5087) seldom divides. Each tensor device then stores all rows,
    # and the training step pads and splits them (`_padded`).
    Rule("embeddings/word_embeddings", (P("tensor", PIECES), P(None, PIECES))),
    Rule("embeddings/(position|token_type)_embeddings", (P(None, PIECES),)),
    Rule("encoder/projection/kernel", (P(PIECES, None),)),
    Rule("encoder/projection/bias", (P(),)),
    Rule("LayerNorm/(scale|bias)", (P(),)),
    Rule("(cross_)?attention/(query|key|value)/kernel", (P(PIECES, "tensor"),)),
    Rule("(cross_)?attention/(query|key|value)/bias", (P("tensor"),)),
    Rule("(cross_)?attention/output/kernel", (P("tensor", PIECES),)),
    Rule("attention/distance_embedding", (P(),)),
    Rule("feed_forward/intermediate/kernel", (P(PIECES, "tensor"),)),
    Rule("feed_forward/intermediate/bias", (P("tensor"),)),
    Rule("feed_forward/output/kernel", (P("tensor", PIECES),)),
    Rule("((cross_)?attention|feed_forward)/output/bias", (P(),)),
    Rule("activation/(weight|alpha_p|alpha_n)", (P(),)),
    Rule("(pooler|pre_classifier)/kernel", (P(PIECES, None),)),
    Rule("(pooler|pre_classifier)/bias", (P(),)),
    Rule("(mlm_head|detector)/transform/kernel", (P(PIECES, None),)),
    Rule("(mlm_head|detector)/transform/bias", (P(),)),
    Rule("mlm_head/bias", (P("tensor"), P())),
    Rule("mlm_head/decoder", (P("tensor", PIECES), P(None, PIECES))),
    Rule("(nsp_head|qa_head|classifier|detector/output)/(kernel|bias)", (P(),)),
    Rule("class_weights|positive_weights", (P(),)),  # of an objective
)
"""Path pattern -> PartitionSpec. A pattern matches the end of a leaf's path, so that an optimizer's moments
("opt_state/moments/mu/bert/pooler/kernel") have the layout of their parameter ("params/bert/pooler/kernel"). Scalars
are on every device. There is no default row: a new parameter needs its own."""


def path_string(path: Any) -> str:
    """A leaf's key path as "params/bert/pooler/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def partition_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The layout of a leaf. Raises UserError if a size does not divide, LookupError unless exactly one row matches."""
    if not shape:
        return P()
    problem = ""
    for spec in _specs(path, mesh):
        problem = _does_not_divide(path, shape, spec, mesh)
        if not problem:
            return spec
    raise UserError(problem)


def _specs(path: str, mesh: Mesh) -> list[P]:
    """The layouts of the row that matches, with the mesh axes that split parameters in place of `PIECES`."""
    rules = [rule for rule in PARTITION_TABLE if rule.matches(path)]
    if len(rules) != 1:
        matched = ", ".join(repr(rule.pattern) for rule in rules) or "none"
        raise LookupError(f"{path}: exactly one row of PARTITION_TABLE must match; matched: {matched}")
    used = [axis for axis in PIECES if mesh.shape[axis] > 1] or ["fsdp"]
    pieces = used[0] if len(used) == 1 else PIECES
    return [P(*(pieces if name == PIECES else name for name in spec)) for spec in rules[0].specs]


def _does_not_divide(path: str, shape: tuple[int, ...], spec: P, mesh: Mesh) -> str:
    if len(spec) > len(shape):
        return f"{path} of shape {shape} has fewer axes than its layout {spec} in PARTITION_TABLE"
    for axis, name in enumerate(spec):
        names = axes_of(name)
        pieces = math.prod(mesh.shape[one] for one in names)
        if shape[axis] % pieces:
            named = " x ".join(map(repr, names))
            return (
                f"{path} of shape {shape} cannot be split into {pieces} along axis {axis} "
                f"(mesh axis {named}); sizes of {named} that fit: {divisors_told(shape[axis], mesh.size)}"
            )
    return ""


def axes_of(name: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec, which is a name, several names, or None."""
    return () if name is None else (name,) if isinstance(name, str) else tuple(name)


def state_shardings(abstract_state: Any, mesh: Mesh) -> Any:
    """The tree of NamedShardings for a TrainState or any part of it (parameters alone, gradients, moments).

    `abstract_state` is a tree of arrays or ShapeDtypeStructs. An array of the optimizer's that is not shaped like its
    parameter, such as Adafactor's mean over rows, is whole on every device. Raises the errors of `partition_spec` and
    of `check_mesh`.
    """
    check_mesh(mesh)
    shapes = {path_string(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_state)}

    def of_leaf(path: Any, leaf: Any) -> NamedSharding:
        name = path_string(path)
        if name.startswith("opt_state/"):
            parts = name.split("/")
            if all(shapes.get("/".join(["params", *parts[i:]])) != leaf.shape for i in range(1, len(parts))):
                return replicated(mesh)
        return NamedSharding(mesh, partition_spec(name, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(of_leaf, abstract_state)


def batch_shardings(mesh: Mesh) -> NamedSharding:
    """The layout of every array of a batch: rows split over `BATCH_AXES`, other axes whole. A prefix for the dict."""
    return NamedSharding(mesh, P(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device: keys and metrics."""
    return NamedSharding(mesh, P())


def constrain_activations(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """A function for `Bert(config, constrain=...)` that shards the rows of [B, L, D] as those of the batch.

    Without it, under fsdp, the compiler may gather the global batch on every device.
    """
    rows = batch_shardings(mesh)
    return lambda x_BLD: jax.lax.with_sharding_constraint(x_BLD, rows)


@remember
def gather_under_fsdp(mesh: Mesh, dtype: DTypeLike = np.float32) -> Callable[[Any], Any]:
    """A function for `train_step(..., use_params=...)`, from the stored parameters to those that the step uses.

    Under fsdp it gathers each parameter before its use. So the backward pass sums each gradient and then splits it into
    the parameter's layout (a reduce-scatter). Without it the compiler compares sizes: if the weights are larger than
    the activations, it gathers the activations of the global batch on every device instead.

    If the mesh `splits_rows`, the function is for use on a device's own pieces, within `own_rows`; matrices then travel
    as `dtype`, and gradients are summed in float32.
    """

    if splits_rows(mesh):
        return lambda params: gather(params, mesh, "fsdp", dtype)

    def use(params: Any) -> Any:
        stored = state_shardings(params, mesh)
        used = jax.tree.map(lambda sharding: NamedSharding(mesh, _without_fsdp(sharding.spec)), stored)
        gathered = jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(params, stored), used)
        return jax.tree_util.tree_map_with_path(lambda path, leaf: _padded(path_string(path), leaf, mesh), gathered)

    return use


def gather(pieces: Any, mesh: Mesh, axis: str, dtype: DTypeLike = np.float32) -> Any:
    """A tree of a device's own pieces, put together over the mesh axis "zero", and then "fsdp", within `own_rows`.

    `dtype`: the type in which matrices travel; all else travels as it is, and nothing changes its type. The backward
    pass adds up the gradients of all devices in their own type, float32, and leaves each device its piece.
    """

    def of_leaf(path: Any, piece: jax.Array) -> jax.Array:
        place = place_of(axis, path_string(path), mesh)
        if place is None:
            return piece
        return _gathered(axis, place, np.dtype(dtype) if piece.ndim > 1 else piece.dtype, piece)

    return jax.tree_util.tree_map_with_path(of_leaf, pieces)


# Plain autodiff would add up the gradients in the type in which the pieces travel.
@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gathered(axis: str, place: int, dtype: np.dtype, piece: jax.Array) -> jax.Array:
    return jax.lax.all_gather(piece.astype(dtype), axis, axis=place, tiled=True).astype(piece.dtype)


def _gathered_forward(axis: str, place: int, dtype: np.dtype, piece: jax.Array) -> tuple[jax.Array, None]:
    return _gathered(axis, place, dtype, piece), None


def _gathered_backward(axis: str, place: int, dtype: np.dtype, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.psum_scatter(gradient, axis, scatter_dimension=place, tiled=True),)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def place_of(axis: str, path: str, mesh: Mesh) -> int | None:
    """The place in a leaf's shape that a mesh axis splits; None if it splits none. For a mesh that `splits_rows`."""
    if mesh.shape[axis] == 1:
        return None
    return next((place for place, name in enumerate(_specs(path, mesh)[0]) if axis in axes_of(name)), None)


def fused_loss_on(mesh: Mesh) -> FusedLoss | None:
    """`fused_cross_entropy`, for `Pretraining(fused=...)`; None where the loss written out is better.

    That is where the vocabulary is split over tensor, because each device then has only its share of the logits, and on
    TPUs, whose compiler merges the softmax into the products on either side of it.
    """
    return None if mesh.shape["tensor"] > 1 or platform_of(mesh) == "tpu" else fused_cross_entropy


def padded_vocab_size(vocab_size: int, mesh: Mesh) -> int:
    """V', V rounded up: the model in the step has V' rows, the stored state has V.

    V' is a multiple of the tensor axis, and on TPUs of 128 for each of its devices, the width of a vector register.
    Without tensor it is V: products of 30,522 columns take a TPU no longer than of 30,592, and padding is a copy.
    """
    pieces = mesh.shape["tensor"]
    multiple = 128 * pieces if pieces > 1 and platform_of(mesh) == "tpu" else pieces
    return -(-vocab_size // multiple) * multiple


def _padded(path: str, leaf: jax.Array, mesh: Mesh) -> jax.Array:
    """Pad the token table, the decoder's own table and its bias from V to V' rows, and split them over tensor.

    Other leaves stay as they are. So logits are split over the vocabulary for every V. The padding's logits are -inf:
    they are never the argmax and add nothing to a loss, and the backward pass drops their gradients.
    """
    fill = {"embeddings/word_embeddings": 0.0, "mlm_head/decoder": 0.0, "mlm_head/bias": -math.inf}
    value = next((value for end, value in fill.items() if path.endswith(end)), None)
    more = padded_vocab_size(leaf.shape[0], mesh) - leaf.shape[0] if value is not None else 0
    if not more:
        return leaf
    padded = jax.numpy.pad(leaf, ((0, more), *((0, 0) for _ in leaf.shape[1:])), constant_values=value)
    return jax.lax.with_sharding_constraint(padded, NamedSharding(mesh, P("tensor")))


def _without_fsdp(spec: P) -> P:
    return P(*(None if name == "fsdp" else name for name in spec))  # zero is 1 where this is used


def check_sizes(
    config: BertConfig, mesh: Mesh, *, batch_size: int | None = None, accumulation: int = 1, name: str = "batch_size"
) -> None:
    """Raises UserError unless the tensor axis divides the heads, and data x fsdp x zero x accumulation the rows.

    Also if `check_mesh` does. `name`: of the field that has the batch size, for the message.
    """
    check_mesh(mesh)
    heads, tensor = config.num_attention_heads, mesh.shape["tensor"]
    if heads % tensor:
        fits = divisors_told(heads, mesh.size)
        raise UserError(f"num_attention_heads={heads} cannot be split into tensor={tensor}; sizes that fit: {fits}")
    pieces = accumulation * batch_pieces(mesh)
    if batch_size is not None and batch_size % pieces:
        below = batch_size // pieces * pieces
        near = ", ".join(str(size) for size in (below, below + pieces) if size)
        zero = f"x zero={mesh.shape['zero']} " if mesh.shape["zero"] > 1 else ""
        raise UserError(
            f"{name}={batch_size} does not divide into data={mesh.shape['data']} x fsdp={mesh.shape['fsdp']} {zero}"
            f"x accumulation={accumulation} = {pieces} equal parts; nearest sizes that fit: {near}"
        )


def to_host(tree: Any) -> Any:
    """The tree with whole NumPy arrays on this process; with several processes, all must call it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)
