"""The operations that determine speed and precision: matrix products, LayerNorm, activations, counter-hash dropout."""

import functools
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax
from jax.typing import DTypeLike

from bert_jax.config import XIELU_BETA, XIELU_EPS, BertConfig


def stream_dtype(config: BertConfig) -> jnp.dtype:
    """The type of the activations between layers: `config.activation_dtype`, or by default the type for the backend.

    On accelerators bfloat16 results halve the memory traffic. On a CPU, XLA computes products with bfloat16 results in
    at least twice the time with JAX 0.10. With JAX 0.12 they take the same time, but what surrounds the products gains
    nothing at BERT-base and at most 5 % in small models (benchmarks/results/training.md), so float32 stays.
    """
    if config.activation_dtype is not None:
        return jnp.dtype(config.activation_dtype)
    return jnp.dtype(platform_dtype(config.dtype, target_platform()))


def target_platform() -> str:
    """The platform of the devices that a program is traced for: "cpu", "tpu", or another name for GPUs.

    They are those of the mesh that is in use, such as one of devices that this machine lacks, or the default device.
    """
    # A compiled program always sees the same values: jit's cache key contains the mesh and the default device, and the
    # backend is fixed for the process.
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.config.values["jax_default_device"]
    return getattr(device, "platform", device) or jax.default_backend()


def platform_dtype(dtype: str, platform: str) -> str:
    """The default type of the activations on "cpu", "cuda", "rocm" or "tpu", for products with operands of `dtype`."""
    return "float32" if platform == "cpu" else dtype


def product(spec: str, x: Array, y: Array, dtype: DTypeLike, out_dtype: DTypeLike = jnp.float32) -> Array:
    """An einsum of two arrays with operands of `dtype` and sums in float32, in the forward and the backward pass.

    Args:
        spec: "first,second->out", one letter per axis; each letter occurs in two or three of the terms.
        x, y: arrays of any float type.
        dtype: type of the operands. With float32 this is plain `jnp.einsum`, which supports forward and reverse mode
            and derivatives of any order; bfloat16 has a custom backward pass (first derivatives in reverse mode only).
        out_dtype: type of the result; between layers `stream_dtype(config)`.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return jnp.einsum(spec, x.astype(jnp.float32), y.astype(jnp.float32)).astype(out_dtype)
    return _narrow_product(spec, dtype, out_dtype, x, y)


# Plain autodiff would multiply the float32 cotangent with float32 copies of the operands, which is 1.4 times slower.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _narrow_product(spec: str, dtype: DTypeLike, out_dtype: DTypeLike, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x.astype(dtype), y.astype(dtype), preferred_element_type=out_dtype)


def _narrow_product_forward(spec, dtype, out_dtype, x, y):
    x_narrow, y_narrow = x.astype(dtype), y.astype(dtype)
    out = jnp.einsum(spec, x_narrow, y_narrow, preferred_element_type=out_dtype)
    # Residuals must be arrays, so empty ones record the types of x and y.
    return out, (x_narrow, y_narrow, jnp.empty(0, x.dtype), jnp.empty(0, y.dtype))


def _narrow_product_backward(spec, dtype, out_dtype, residuals, cotangent):
    x, y, like_x, like_y = residuals
    operands, out = spec.split("->")
    first, second = operands.split(",")
    cotangent = cotangent.astype(dtype)
    # Weights are float32, so the product returns their gradients in float32, on every backend; devices sum float32 too.
    dx = jnp.einsum(f"{out},{second}->{first}", cotangent, y, preferred_element_type=like_x.dtype)
    dy = jnp.einsum(f"{first},{out}->{second}", x, cotangent, preferred_element_type=like_y.dtype)
    return dx, dy


_narrow_product.defvjp(_narrow_product_forward, _narrow_product_backward)


class Dense(nn.Module):
    """x @ kernel + bias over the last axis: [..., in] -> [..., features].

    Parameters: kernel float32 [in, features], truncated normal; bias float32 [features], zeros.

    Attributes:
        config: the module uses `dtype`, `activation_dtype` and `initializer_range`.
        features: width of the result.
        out_dtype: type of the result; None means the type of the activations, `stream_dtype(config)`.
    """

    config: BertConfig
    features: int
    out_dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", weight_init(self.config), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        axes = "BLN"[: x.ndim - 1]
        out_dtype = stream_dtype(self.config) if self.out_dtype is None else self.out_dtype
        y = product(f"{axes}I,IO->{axes}O", x, kernel, self.config.dtype, out_dtype)
        return (y.astype(jnp.float32) + lax.broadcast_to_rank(bias, y.ndim)).astype(y.dtype)


def weight_init(config: BertConfig) -> Callable[..., Array]:
    """Google's initialiser: normal with deviation `initializer_range`, truncated at two deviations and not rescaled."""
    return nn.initializers.truncated_normal(config.initializer_range, jnp.float32)


def layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Array:
    """Normalises the last axis with float32 statistics and the biased variance, then scales and shifts.

    It takes two passes: E[x²] - E[x]² loses precision if the mean is large compared with the standard deviation, and
    BERT's eps of 1e-12 is too small to hide that.

    Args:
        x: [..., D] of any float type.
        scale, bias: float32 [D].
        eps: added to the variance.

    Returns:
        [..., D] of x's type.
    """
    x_float = x.astype(jnp.float32)
    centred = x_float - x_float.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    scale, bias = (lax.broadcast_to_rank(vector, x.ndim) for vector in (scale, bias))
    return (centred * lax.rsqrt(variance + eps) * scale + bias).astype(x.dtype)


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters: scale float32 [D], ones; bias float32 [D], zeros."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        return layer_norm(x, scale, bias, self.config.layer_norm_eps)


def key_words(key: Array) -> Array:
    """Mixes all words of a JAX key, typed or raw, into the two words uint32 [2] that dropout uses."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    mixed = jnp.array([0x9E3779B9, 0x85EBCA6B], jnp.uint32)
    for word in jax.random.key_data(key) if typed else key:
        mixed = _mix(mixed ^ word)
    # Without the barrier XLA would inline this computation into the kernel of every dropout.
    return lax.optimization_barrier(mixed)


@struct.dataclass
class DropoutKey:
    """The seed of dropout masks: a JAX key and the number of the dropout site in the model. A pytree; `site` is static.

    Attributes:
        words: `key_words(key)`.
        site: number of the first site that uses it; two sites with the same words draw independent masks.
        rows: uint32 [B], see `numbered_rows`; None numbers the rows 0, 1, 2, ...
    """

    words: Array
    site: int = struct.field(pytree_node=False, default=0)
    rows: Array | None = None

    @classmethod
    def of(cls, key: Array) -> "DropoutKey":
        """The seed that a JAX key gives, for the rows that are being traced."""
        return cls(key_words(key), rows=_ROWS.get())

    def at(self, offset: int) -> "DropoutKey":
        """The same key with its sites numbered from `site + offset`."""
        return DropoutKey(self.words, self.site + offset, self.rows)


_ROWS: ContextVar[Array | None] = ContextVar("rows", default=None)


@contextmanager
def numbered_rows(rows: Array | None) -> Generator[None]:
    """Within it, row r of a batch draws the dropout of row `rows[r]`, its number in the whole batch.

    So a part of a batch, on one device of many or after other parts, has the dropout that it has in the whole batch.
    Open it inside the function that is traced: `jax.jit` does not see it, so a program that is compiled already keeps
    the rows of its first trace.

    Args:
        rows: uint32 [B]; None numbers them 0, 1, 2, ...
    """
    token = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(token)


def dropout(x: Array, rate: float, key: DropoutKey | None, site: int = 0) -> Array:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate).

    Args:
        x: [B, ...] of any float type.
        rate: in [0, 1).
        key: None applies no dropout.
        site: number of this dropout, counted from `key.site`.
    """
    if key is None or rate == 0.0:
        return x
    with jax.named_scope("dropout"):
        bits = dropout_bits(key.words, key.site + site, x.shape, key.rows)
        keep = bits >= keep_from(rate)
        # 1 / 0.9 in bfloat16 is off by 0.15 %: scale in float32.
        return jnp.where(keep, x.astype(jnp.float32) * (1.0 / (1.0 - rate)), 0.0).astype(x.dtype)


# As large as usual lengths and widths; the positions of [B, 256, 4096, 4096] still have distinct 32-bit numbers.
AXIS = 4096


def dropout_bits(words: Array, site: int, shape: tuple[int, ...], rows: Array | None = None) -> Array:
    """Random bits, a pure function of (key, site, row, position within the row).

    They do not depend on the devices, on the batch, or on the length to which it is padded: positions are numbered as
    if every axis had `AXIS` elements. Only those of attention probabilities of more than `AXIS` tokens depend on the
    length, because a longer axis counts with its own. `rows` has the numbers of the rows (`numbered_rows`); where a
    model makes several rows of one, as for multiple choice, theirs follow from its number.

    The key, the site and the row on axis 0 each go through a mixing round, in two words, before the position is mixed
    in. With one word the streams would overlap: the masks of two steps would be shifts of one another, and 32 bits wrap
    around after 16,384 rows of [128, 1024]. The indices come from one `broadcasted_iota` per dimension, which XLA
    partitions, so that each device hashes only its own elements.

    Returns:
        uint32 of `shape`. The upper bits are the best mixed; comparison with a threshold depends mostly on them.
    """
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    if rows is not None:
        row = _numbers_of_rows(rows, shape[0]).reshape(-1, *(1 for _ in shape[1:]))
    position = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        position = position * jnp.uint32(max(shape[axis], AXIS)) + lax.broadcasted_iota(jnp.uint32, shape, axis)
    return position_bits(position, *_row_words(words, site, row))


def drawn_by_kernel(rate: float, key: DropoutKey | None, site: int, rows: int) -> tuple[float, Array]:
    """What a kernel needs to draw the bits of `dropout` for itself, with `position_bits` and `keep_from`.

    Returns:
        the rate, 0 without a key, and the words of each row, uint32 [rows, 2], zeros where nothing is dropped.
    """
    if key is None or rate == 0.0:
        return 0.0, jnp.zeros((rows, 2), jnp.uint32)
    return rate, jnp.stack(_row_words(key.words, key.site + site, _numbers_of_rows(key.rows, rows)), axis=-1)


def _numbers_of_rows(rows: Array | None, count: int) -> Array:
    """The numbers, uint32 [count], of the `count` rows that a model has made of the rows numbered `rows`."""
    if rows is None:
        return lax.iota(jnp.uint32, count)
    several = count // rows.shape[0]
    return (rows[:, None] * jnp.uint32(several) + lax.iota(jnp.uint32, several)[None]).reshape(-1)


def _row_words(words: Array, site: int, row: Array) -> tuple[Array, Array]:
    """The two words, each of row's shape, that the bits of all positions of row number `row` are mixed with."""
    first, second = (_mix(word ^ row) for word in _mix(words ^ jnp.uint32(site)))
    return first, second


def position_bits(position: Array, first: Array, second: Array) -> Array:
    """The bits of a position, uint32, given the words of its row."""
    x = position ^ first
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D) ^ second
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)


def bits_of_head(query: Array, key: Array, head: Array, first: Array, second: Array) -> Array:
    """`dropout_bits` of the probabilities of one head, of those of all, [B, H, L, M]; uint32.

    Args:
        query, key: uint32, the positions of each element.
        head: its number, a scalar.
        first, second: the words of the row (`drawn_by_kernel`).
    """
    # The head's bits are above those of the position: added to it, or to what it is mixed with, they do the same.
    first ^= jnp.asarray(head, jnp.uint32) * jnp.uint32(AXIS * AXIS)
    return position_bits(query * jnp.uint32(AXIS) + key, first, second)


def keep_from(rate: float) -> Array:
    """The smallest bits with which an element is kept."""
    return jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _mix(x: Array) -> Array:
    """A bijection on 32-bit words in which every input bit affects every output bit (lowbias32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + lax.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + jnp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _laplace(x: Array) -> Array:
    return 0.5 * (1.0 + lax.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0))))


# transformers' ACT2FN without prelu and xielu, which have parameters (`Activation`); some functions have several names.
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
    """The activation `name` (one of `ACTIVATIONS`), computed in float32 and returned in x's type."""
    return ACTIVATIONS[name](x.astype(jnp.float32)).astype(x.dtype)


class Activation(nn.Module):
    """The activation `act` (one of `config.HIDDEN_ACTS`) of [..., F], computed in float32 and returned in x's type.

    Parameters: "prelu" (https://arxiv.org/abs/1502.01852) has weight [1], initially 0.25; "xielu"
    (https://arxiv.org/abs/2411.13010) has alpha_p and alpha_n [1], whose softplus is initially 0.8 and 0.3; the others
    have none.
    """

    act: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        with jax.named_scope(self.act):
            if self.act == "prelu":
                weight = self.param("weight", _constant(0.25), (1,))
                return prelu(x.astype(jnp.float32), weight.reshape(())).astype(x.dtype)
            if self.act == "xielu":
                alpha_p = self.param("alpha_p", _constant(_inverse_softplus(0.8)), (1,))
                alpha_n = self.param("alpha_n", _constant(_inverse_softplus(0.8 - XIELU_BETA)), (1,))
                return xielu(x.astype(jnp.float32), alpha_p.reshape(()), alpha_n.reshape(())).astype(x.dtype)
            return activate(x, self.act)


def _constant(value: float) -> Callable[..., Array]:
    return nn.initializers.constant(value, jnp.float32)


def prelu(x: Array, weight: Array) -> Array:
    """x where x is positive, weight · x elsewhere."""
    return jnp.where(x > 0, x, weight * x)


def xielu(x: Array, alpha_p: Array, alpha_n: Array) -> Array:
    """α⁺x² + βx where x is positive, α⁻(eˣ - 1 - x) + βx elsewhere; α⁺ = softplus(alpha_p), α⁻ = β + softplus(alpha_n).

    As transformers' XIELUActivation with β = 0.5, which clips the exponent to at most -1e-6.
    """
    positive = jax.nn.softplus(alpha_p) * x * x
    negative = (jnp.expm1(jnp.minimum(x, XIELU_EPS)) - x) * (XIELU_BETA + jax.nn.softplus(alpha_n))
    return jnp.where(x > 0, positive, negative) + XIELU_BETA * x


def _inverse_softplus(y: float) -> float:
    return math.log(math.expm1(y))
