"""The attention kernels of GPUs, interpreted on a CPU, are plain attention; lowered for CUDA, they are kernels."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.model import attention_gpu, attention_kernel
from bert_jax.model.attention import dot_product_attention
from bert_jax.model.layers import DropoutKey, key_words
from tests.model.test_attention_kernel import KEY, assert_is_the_definition, inputs, rows_of
from tests.platforms import tracing_for


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "length", "heads", "size", "kind", "rate"),
    [
        (3, 128, 2, 64, "sequences", 0.1),
        (2, 256, 2, 32, "padding", 0.5),
        (2, 128, 1, 128, "none", 0.0),
    ],
)
def test_they_are_the_definition_in_float32_and_as_close_in_bfloat16(
    rows, length, heads, size, kind, rate, monkeypatch
):
    monkeypatch.setattr(attention_kernel, "attend", attention_gpu.attend)  # "kernel" on a CPU is that of TPUs
    assert_is_the_definition(rows, length, heads, size, kind, rate)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # JAX 0.12
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_lower_for_cuda_as_one_kernel_forwards_and_two_back(dtype: str):
    arrays, mask = inputs(2, 384, 3, 64)[:3], rows_of("sequences", 2, 384)

    def attend(*qkv: jax.Array) -> jax.Array:
        key = DropoutKey(key_words(KEY))
        context, _ = dot_product_attention(
            *qkv, mask=mask, dropout_rate=0.1, dropout_key=key, dtype=dtype, attention="kernel"
        )
        return jnp.sum(context)

    with tracing_for("NVIDIA H100"):
        both = jax.jit(jax.value_and_grad(attend, argnums=(0, 1, 2)))
        text = both.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@__gpu$xla.gpu.triton") == 3
    assert "tensor<2x3x384x384x" not in text  # no scores of all heads in the device's memory
