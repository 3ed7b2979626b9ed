"""The pieces that decide speed and precision: matrix products, LayerNorm, activations, dropout from a counter hash."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax
from jax.typing import DTypeLike

from bert_jax.config import BertConfig


def stream_dtype(config: BertConfig) -> jnp.dtype:
    """The type of the activations between layers: `config.activation_dtype`, or what suits the backend that traces.

    Accelerators write bfloat16 for half the memory traffic; a CPU emulates it, so that products which end in
    bfloat16 are 1.4 to 1.7 times slower there than those which end in float32.
    """
    if config.activation_dtype is not None:
        return jnp.dtype(config.activation_dtype)
    # Both are fixed for a compiled program: the default device is part of jit's key, the backend of the process.
    device = jax.config.values["jax_default_device"]
    platform = getattr(device, "platform", device) or jax.default_backend()
    return jnp.dtype(platform_dtype(config.dtype, platform))


def platform_dtype(dtype: str, platform: str) -> str:
    """The type of the activations on "cpu", "cuda", "rocm" or "tpu", for products with operands of `dtype`."""
    return "float32" if platform == "cpu" else dtype


def product(spec: str, x: Array, y: Array, dtype: DTypeLike, out_dtype: DTypeLike = jnp.float32) -> Array:
    """An einsum of two arrays with operands of `dtype` and sums in float32, in the forward and the backward pass.

    Args:
        spec: "first,second->out", one letter an axis; every letter stands in two or three of them.
        x, y: arrays of any float type.
        dtype: type of the operands. With float32 this is plain `jnp.einsum`, which differentiates any way and any
            number of times; with bfloat16 it has a backward pass of its own (reverse mode, once).
        out_dtype: type of the result; between layers `stream_dtype(config)`.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return jnp.einsum(spec, x.astype(jnp.float32), y.astype(jnp.float32)).astype(out_dtype)
    return _narrow_product(spec, dtype, out_dtype, x, y)


# Autodiff alone would multiply the float32 cotangent with float32 copies of the operands: 1.4 times slower.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _narrow_product(spec: str, dtype: DTypeLike, out_dtype: DTypeLike, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x.astype(dtype), y.astype(dtype), preferred_element_type=out_dtype)


def _narrow_product_forward(spec, dtype, out_dtype, x, y):
    x_narrow, y_narrow = x.astype(dtype), y.astype(dtype)
    out = jnp.einsum(spec, x_narrow, y_narrow, preferred_element_type=out_dtype)
    # Residuals must be arrays; these empty ones carry the types of x and y.
    return out, (x_narrow, y_narrow, jnp.empty(0, x.dtype), jnp.empty(0, y.dtype))


def _narrow_product_backward(spec, dtype, out_dtype, residuals, cotangent):
    x, y, like_x, like_y = residuals
    operands, out = spec.split("->")
    first, second = operands.split(",")
    cotangent = cotangent.astype(dtype)
    # A weight is float32, so its gradient leaves the product in float32, on every backend and between devices.
    dx = jnp.einsum(f"{out},{second}->{first}", cotangent, y, preferred_element_type=like_x.dtype)
    dy = jnp.einsum(f"{first},{out}->{second}", x, cotangent, preferred_element_type=like_y.dtype)
    return dx, dy


_narrow_product.defvjp(_narrow_product_forward, _narrow_product_backward)


class Dense(nn.Module):
    """x @ kernel + bias over the last axis: [..., in] -> [..., features].

    Parameters: kernel float32 [in, features], truncated normal; bias float32 [features], zeros.

    Attributes:
        config: `dtype` and `initializer_range` are read.
        features: width of the result.
        out_dtype: its type; None: that of the activations, `stream_dtype`.
    """

    config: BertConfig
    features: int
    out_dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", weight_init(self.config), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        axes = "BLN"[: x.ndim - 1]
        out_dtype = stream_dtype(self.config) if self.out_dtype is None else self.out_dtype
        y = product(f"{axes}I,IO->{axes}O", x, kernel, self.config.dtype, out_dtype)
        return (y + bias).astype(y.dtype)


def weight_init(config: BertConfig) -> Callable[..., Array]:
    """Google's initialiser: a normal of `initializer_range` redrawn beyond two of them, and not scaled back up."""
    return nn.initializers.truncated_normal(config.initializer_range)


def layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Array:
    """Normalise the last axis with float32 statistics and the biased variance, then scale and shift.

    In two passes: the short form E[x²] - E[x]² cancels where the mean is large beside the spread, and BERT's eps of
    1e-12 does not hide that.

    Args:
        x: [..., D] of any float type.
        scale, bias: float32 [D].

    Returns:
        [..., D] of x's type.
    """
    x_float = x.astype(jnp.float32)
    centred = x_float - x_float.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * lax.rsqrt(variance + eps) * scale + bias).astype(x.dtype)


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters: scale float32 [D], ones; bias float32 [D], zeros."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layer_norm(x, scale, bias, self.config.layer_norm_eps)


def key_words(key: Array) -> Array:
    """What dropout takes of a JAX key, typed or raw: all its words, mixed into two, as uint32 [2]."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    mixed = jnp.array([0x9E3779B9, 0x85EBCA6B], jnp.uint32)
    for word in jax.random.key_data(key) if typed else key:
        mixed = _mix(mixed ^ word)
    # Without the barrier XLA would inline these rounds into the kernel of every dropout.
    return lax.optimization_barrier(mixed)


@struct.dataclass
class DropoutKey:
    """What decides which elements are dropped: a JAX key and the place in the model. A pytree; `site` is static.

    Attributes:
        words: `key_words(key)`.
        site: number of the first dropout that it serves; two sites of one key draw independent masks.
    """

    words: Array
    site: int = struct.field(pytree_node=False, default=0)

    def at(self, offset: int) -> "DropoutKey":
        """The key that counts its sites from so many further on."""
        return DropoutKey(self.words, self.site + offset)


def dropout(x: Array, rate: float, key: DropoutKey | None, site: int = 0) -> Array:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate).

    Args:
        x: [B, ...] of any float type.
        rate: in [0, 1).
        key: None for no dropout.
        site: counted from `key.site`.
    """
    if key is None or rate == 0.0:
        return x
    with jax.named_scope("dropout"):
        keep = dropout_bits(key.words, key.site + site, x.shape) >= jnp.uint32(round(rate * 2**32))
        # 1 / 0.9 in bfloat16 is off by 0.15 %: scale in float32.
        return jnp.where(keep, x.astype(jnp.float32) * (1.0 / (1.0 - rate)), 0.0).astype(x.dtype)


_AXIS = 4096  # more than any length or width; [B, 256, 4096, 4096] still has a number of 32 bits for each position


def dropout_bits(words: Array, site: int, shape: tuple[int, ...]) -> Array:
    """Random bits, a pure function of (key, site, row, position within the row), whatever the devices, the batch or
    the length that it is padded to: positions are numbered as if every axis had `_AXIS` places.

    Key, site and row of axis 0 each go through mixing rounds of their own, in two words; only then the position
    enters. With one word streams would meet: two steps' masks would be shifts of one another, and 32 bits wrap after
    16,384 rows of [128, 1024]. The indices are one `broadcasted_iota` a dimension, which XLA partitions, so that a
    device hashes its own elements only.

    Returns:
        uint32 of `shape`. The upper bits are the good ones; a threshold needs no others.
    """
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    first, second = (_mix(word ^ row) for word in _mix(words ^ jnp.uint32(site)))
    position = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        position = position * jnp.uint32(max(shape[axis], _AXIS)) + lax.broadcasted_iota(jnp.uint32, shape, axis)
    x = position ^ first
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D) ^ second
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)


def _mix(x: Array) -> Array:
    """A bijection of 32 bits in which every bit of the input moves every bit of the output (lowbias32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _laplace(x: Array) -> Array:
    return 0.5 * (1.0 + lax.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0))))


# transformers' ACT2FN less prelu and xielu, which have parameters (`Activation`); some functions have several names.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_10": lambda x: jnp.clip(_gelu(x), -10.0, 10.0),
    "gelu_accurate": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_python": _gelu,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "hardswish": jax.nn.hard_swish,
    "laplace": _laplace,
    "leaky_relu": jax.nn.leaky_relu,
    "linear": lambda x: x,
    "mish": jax.nn.mish,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "relu6": jax.nn.relu6,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sqrtsoftplus": lambda x: jnp.sqrt(jax.nn.softplus(x)),
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activate(x: Array, name: str) -> Array:
    """The activation `name` (one of `ACTIVATIONS`), computed in float32, in x's type."""
    return ACTIVATIONS[name](x.astype(jnp.float32)).astype(x.dtype)


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
