"""The activation after a dense layer as a module, since two of transformers' have parameters: prelu and xielu."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.model.layers import activate

XIELU_BETA = 0.5
XIELU_EPS = -1e-6


class Activation(nn.Module):
    """The activation `act` (one of `config.HIDDEN_ACTS`) of [..., F], computed in float32, in the input's type.

    Parameters: of "prelu" (https://arxiv.org/abs/1502.01852) weight [1], 0.25; of "xielu"
    (https://arxiv.org/abs/2411.13010) alpha_p and alpha_n [1], whose softplus is 0.8 and 0.3; of all others none.
    """

    act: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        with jax.named_scope(self.act):
            if self.act == "prelu":
                weight = self.param("weight", nn.initializers.constant(0.25), (1,))
                return prelu(x.astype(jnp.float32), weight).astype(x.dtype)
            if self.act == "xielu":
                alpha_p = self.param("alpha_p", nn.initializers.constant(_inverse_softplus(0.8)), (1,))
                alpha_n = self.param("alpha_n", nn.initializers.constant(_inverse_softplus(0.8 - XIELU_BETA)), (1,))
                return xielu(x.astype(jnp.float32), alpha_p, alpha_n).astype(x.dtype)
            return activate(x, self.act)


def prelu(x: Array, weight: Array) -> Array:
    """x where it is positive, weight · x elsewhere."""
    return jnp.where(x > 0, x, weight * x)


def xielu(x: Array, alpha_p: Array, alpha_n: Array) -> Array:
    """α⁺x² + βx where x is positive, α⁻(eˣ - 1 - x) + βx elsewhere; α⁺ = softplus(alpha_p), α⁻ = β + softplus(alpha_n).

    As transformers' XIELUActivation with β = 0.5; what is raised is at most -1e-6.
    """
    positive = jax.nn.softplus(alpha_p) * x * x
    negative = (jnp.expm1(jnp.minimum(x, XIELU_EPS)) - x) * (XIELU_BETA + jax.nn.softplus(alpha_n))
    return jnp.where(x > 0, positive, negative) + XIELU_BETA * x


def _inverse_softplus(y: float) -> float:
    return math.log(math.expm1(y))
