"""Muon: the momentum of a matrix, with its singular values made equal (https://kellerjordan.github.io/posts/muon)."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bert_jax.errors import UserError
from bert_jax.training.sharding import path_string

ProductType = Literal["float32", "bfloat16"]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, by its author


class MuonState(NamedTuple):
    """The number of updates made (int32 scalar), and the mean gradients (float32, shapes of the matrices)."""

    count: Array
    mu: Any


def is_hidden_matrix(path: str) -> bool:
    """Whether Muon updates the parameter at `path`: the matrices between embeddings and output.

    Those are the kernels of the layers, of ALBERT's projection, of the pooler and of the masked-LM transform, also in
    the tree of a bare `Bert`. Embeddings and output layers get AdamW, as the author of Muon advises.
    """
    return path.endswith("/kernel") and path.startswith(("bert/", "encoder/", "pooler/", "mlm_head/transform/"))


def hidden_matrices(params: Any) -> Any:
    """A tree like `params` whose leaves are `is_hidden_matrix(path)` (bool). Raises UserError if all are False."""
    found = jax.tree_util.tree_map_with_path(lambda path, _: is_hidden_matrix(path_string(path)), params)
    if not any(jax.tree.leaves(found)):
        raise UserError("optimizer.name is 'muon': found no matrix for it; expected the tree of a Bert, or under bert")
    return found


def scale_by_muon(momentum: float, products: ProductType = "float32") -> optax.GradientTransformation:
    """Muon for trees of matrices, scaled so that an update has the size of AdamW's: 0.2 sqrt(max(rows, columns)).

    With that scale (https://arxiv.org/abs/2502.16982, section 2.2) learning rates and weight decays of AdamW apply.
    The momentum is Nesterov's, with the bias of its beginning corrected, as in `optax.contrib.scale_by_muon`. On a mesh
    the compiler gathers or splits the products of `orthogonalize` as it does those of a layer.
    """

    def init(params: Any) -> MuonState:
        return MuonState(jnp.zeros([], jnp.int32), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        count = jnp.asarray(optax.safe_increment(state.count))
        mu = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state.mu, updates)
        now, ahead = (1 - momentum ** n.astype(jnp.float32) for n in (count, count + 1))

        def direction(m: Array, g: Array) -> Array:
            nesterov = momentum * (m / ahead) + (1 - momentum) * (g / now)
            return 0.2 * math.sqrt(max(g.shape)) * orthogonalize(nesterov, products)

        return jax.tree.map(direction, mu, updates), MuonState(count, mu)

    return optax.GradientTransformation(init, update)


_EPS = 1e-8  # added to the Frobenius norm by which a matrix is divided first, as in Optax


def orthogonalize(x_IJ: Array, products: ProductType = "float32") -> Array:
    """A matrix with the singular vectors of `x_IJ` and singular values of about 1, by five Newton-Schulz steps.

    Optax's `orthogonalize_via_newton_schulz`, with a choice of what the products multiply. The author of Muon computes
    all of it in bfloat16; here only the operands are rounded, as in a layer: products return float32, and so does this.

    Args:
        x_IJ: float32.
        products: "bfloat16" takes 0.35 (wide) to 0.75 (tall) of float32's time on a CPU with AMX.
    """
    a, b, c = COEFFICIENTS
    dtype = jnp.dtype(products)

    def product(left: Array, right: Array, axes: tuple[int, int] = (1, 0)) -> Array:
        contracted = ((axes[:1], axes[1:]), ((), ()))
        return jax.lax.dot_general(
            left.astype(dtype), right.astype(dtype), contracted, preferred_element_type=jnp.float32
        )

    # No transposed copy of a tall matrix: XLA's CPU products of such copies take up to three times as long in bfloat16.
    wide = x_IJ.shape[0] <= x_IJ.shape[1]
    long = 1 if wide else 0
    x = x_IJ / (jnp.linalg.norm(x_IJ) + _EPS)
    for _ in range(5):
        gram = product(x, x, (long, long))
        polynomial = b * gram + c * product(gram, gram)
        x = a * x + (product(polynomial, x) if wide else product(x, polynomial))
    return x
