"""The TPU's attention kernel, interpreted on a CPU, is plain attention; lowered, it is a kernel."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.attention import Sequences, dot_product_attention
from bert_jax.model.layers import DropoutKey, key_words, numbered_rows
from tests.platforms import tracing_for

KEY = jax.random.key(3)


def inputs(rows: int, length: int, heads: int, size: int) -> tuple[jax.Array, ...]:
    """Queries, keys, values and a cotangent."""
    rng = np.random.default_rng(rows)
    return tuple(jnp.asarray(rng.normal(size=(rows, length, heads, size)), jnp.float32) for _ in range(4))


def rows_of(kind: str, rows: int, length: int) -> Sequences | None:
    rng = np.random.default_rng(length)
    if kind == "none":
        return None
    if kind == "padding":
        ends = rng.integers(0, length + 1, (rows, 1))
        ends[0] = 0  # a row without any token
        return Sequences(jnp.asarray(np.arange(length) < ends, jnp.int32))
    numbers = jnp.asarray(np.sort(rng.integers(0, 5, (rows, length)))[:, ::-1].copy(), jnp.int32)
    return Sequences(numbers, numbers)


def value_and_gradients(attention: str, dtype: str, mask: Any, arrays: tuple[jax.Array, ...], rate: float) -> list:
    @jax.jit
    def both(mask: Any, q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        # As on the second of two devices, or in the second part of a batch.
        rows = jnp.arange(q.shape[0], dtype=jnp.uint32) * jnp.uint32(2) + jnp.uint32(1)

        def attend(*qkv: jax.Array) -> jax.Array:
            with numbered_rows(rows):
                key = DropoutKey.of(KEY).at(7)
            return dot_product_attention(
                *qkv, mask=mask, dropout_rate=rate, dropout_key=key, dtype=dtype, attention=attention
            )[0]

        value, backward = jax.vjp(attend, q, k, v)
        return value, *backward(cotangent)

    return [np.asarray(x) for x in both(mask, *arrays)]


def distances(found: list, exact: list) -> list[float]:
    return [float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in zip(found, exact, strict=True)]


def assert_is_the_definition(rows: int, length: int, heads: int, size: int, kind: str, rate: float) -> None:
    """In float32 to rounding; in bfloat16 no further away than plain attention is, but for a twentieth."""
    arrays, mask = inputs(rows, length, heads, size), rows_of(kind, rows, length)
    exact = value_and_gradients("xla", "float32", mask, arrays, rate)
    assert 0 < max(distances(value_and_gradients("kernel", "float32", mask, arrays, rate), exact)) < 1e-5
    plain, found = (
        distances(value_and_gradients(attention, "bfloat16", mask, arrays, rate), exact)
        for attention in ("xla", "kernel")
    )
    assert all(ours <= 1.05 * theirs for ours, theirs in zip(found, plain, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "length", "heads", "size", "kind", "rate"),
    [
        (9, 128, 3, 64, "sequences", 0.1),  # not a multiple of 8 rows; half a block of zeros
        (2, 128, 5, 32, "padding", 0.1),
        (1, 512, 1, 64, "sequences", 0.1),
        (2, 256, 2, 128, "none", 0.0),
        pytest.param(2, 1024, 4, 32, "sequences", 0.1, marks=pytest.mark.exhaustive),
        pytest.param(3, 512, 3, 128, "padding", 0.5, marks=pytest.mark.exhaustive),
    ],
)
def test_it_is_the_definition_in_float32_and_as_close_in_bfloat16(rows, length, heads, size, kind, rate):
    assert_is_the_definition(rows, length, heads, size, kind, rate)


@pytest.mark.slow
def test_it_can_be_mapped_over_models():
    """As for the runs of several seeds in one program."""
    arrays, mask = inputs(2, 128, 2, 64)[:3], rows_of("sequences", 2, 128)
    keys = jax.random.split(KEY, 2)

    def attend(attention: str, key: Any) -> jax.Array:
        words = DropoutKey(key_words(key))
        return dot_product_attention(*arrays, mask=mask, dropout_rate=0.1, dropout_key=words, attention=attention)[0]

    found, expected = (jax.vmap(lambda key, a=a: attend(a, key))(keys) for a in ("kernel", "xla"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_lowers_for_tpus_as_one_kernel_a_pass(dtype: str):
    arrays, mask = inputs(2, 128, 3, 64)[:3], rows_of("sequences", 2, 128)

    def attend(*qkv: jax.Array) -> jax.Array:
        key = DropoutKey(key_words(KEY))
        return dot_product_attention(
            *qkv, mask=mask, dropout_rate=0.1, dropout_key=key, dtype=dtype, attention="kernel"
        )[0].sum()

    with tracing_for("TPU v5 lite"):
        both = jax.jit(jax.value_and_grad(attend, argnums=(0, 1, 2)))
        text = both.trace(*arrays).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 2
    assert "attention_forward" in text and "attention_backward" in text
    assert "tensor<2x3x128x128x" not in text  # no scores of all heads in the device's memory


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_its_products_have_the_precision_of_their_type(dtype: str, expected: str):
    """Whatever a user says of those of others; kernels have no products of a precision between these."""
    x = inputs(1, 128, 2, 64)[0]
    with jax.default_matmul_precision("high"):
        jaxpr = jax.make_jaxpr(lambda x: dot_product_attention(x, x, x, dtype=dtype, attention="kernel")[0])(x)
    assert set(re.findall(r"precision=\(Precision.(\w+), Precision.(\w+)\)", str(jaxpr))) == {(expected,) * 2}
