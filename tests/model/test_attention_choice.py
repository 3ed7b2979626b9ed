"""Which implementation computes attention on which device, and what is told to a user whose choice cannot."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import PartitionSpec

from bert_jax.errors import UserError
from bert_jax.model import attention_choice
from bert_jax.model.attention import Sequences, dot_product_attention
from bert_jax.model.attention_choice import Call, choose
from bert_jax.model.encoder import Bert
from tests import tiny
from tests.platforms import tracing_for

COVERED = Call(128, 128, 64, jnp.bfloat16, "sequences", True)
TPU, GPU = "TPU v5 lite", "NVIDIA H100"


@pytest.mark.parametrize(
    ("kind", "changes", "chosen"),
    [
        (TPU, {}, "kernel"),
        (TPU, {"mask": "none", "dropout": False, "length": 512, "key_length": 512}, "kernel"),
        (TPU, {"dtype": jnp.float32}, "xla"),  # for derivatives of any order
        (TPU, {"length": 96, "key_length": 96}, "xla"),
        (TPU, {"length": 2048, "key_length": 2048}, "xla"),
        (TPU, {"length": 1}, "xla"),  # of a decoder with a cache
        (TPU, {"head_size": 80}, "xla"),
        (TPU, {"mask": "pairs"}, "xla"),
        (TPU, {"more": "relative positions"}, "xla"),
        ("TPU v3", {}, "xla"),
        ("TPU v4", {}, "xla"),
        (GPU, {}, "xla"),
        ("cpu", {}, "xla"),
    ],
)
def test_auto_takes_the_kernel_where_it_helps(kind: str, changes: dict[str, Any], chosen: str):
    with tracing_for(kind):
        assert choose("auto", COVERED._replace(**changes)) == chosen


def test_auto_takes_no_kernel_that_the_compiler_would_have_to_divide():
    with tracing_for(TPU, size=4):
        assert choose("auto", COVERED) == "xla"
        with pytest.raises(UserError, match=r"attention=kernel: the compiler cannot divide a kernel between devices"):
            choose("kernel", COVERED)


def test_on_a_tpus_host_programs_for_its_cpu_have_no_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(attention_choice, "_kind", lambda: TPU)
    assert choose("auto", COVERED) == ("kernel" if jax.device_count() == 1 else "xla")
    with jax.default_device(jax.devices("cpu")[0]):
        assert choose("auto", COVERED) == "xla"


def test_inside_shard_map_each_device_has_the_kernel():
    """As in the training step over several devices."""
    x = jnp.ones((8, 128, 1, 64), jnp.bfloat16)

    def attend(q: jax.Array) -> jax.Array:
        return dot_product_attention(q, q, q, dtype=jnp.bfloat16, out_dtype=jnp.bfloat16, attention="auto")[0]

    with tracing_for(TPU, size=4):
        over_devices = jax.shard_map(attend, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"), check_vma=False)
        lowered = {
            name: jax.jit(f).trace(x).lower(lowering_platforms=("tpu",)).as_text()
            for name, f in (("devices", over_devices), ("whole", attend))
        }
    assert "attention_forward" in lowered["devices"] and "attention_forward" not in lowered["whole"]


@pytest.mark.parametrize(
    ("asked", "kind", "changes", "says"),
    [
        ("kernel", GPU, {"length": 100}, "found 100 queries and 128 keys; expected the same multiple of 128"),
        ("kernel", "TPU v3", {}, "TPU v3 multiplies no bfloat16 in kernels"),
        ("kernel", TPU, {"length": 100}, "found 100 queries and 128 keys; expected the same multiple of 128"),
        ("kernel", TPU, {"head_size": 16}, "found heads of size 16; expected one of 32, 64, 128"),
        ("kernel", TPU, {"more": "relative positions"}, "found relative positions; expected none"),
        ("kernel", "cpu", {"mask": "pairs"}, "found a mask for each pair of positions"),
        ("cudnn", "cpu", {}, "cuDNN is for NVIDIA GPUs, found cpu"),
        ("cudnn", GPU, {"dtype": jnp.float32}, "found dtype=float32; expected bfloat16"),
        ("cudnn", GPU, {"mask": "padding"}, "found dropout, which cuDNN repeats in each step"),
        ("cudnn", GPU, {"dropout": False}, "found several sequences in a row; expected one, as with packing=no"),
        ("cudnn", GPU, {"dropout": False, "mask": "none", "head_size": 256}, "found heads of size 256"),
    ],
)
def test_a_choice_that_cannot_be_is_one_line(asked: str, kind: str, changes: dict[str, Any], says: str):
    with tracing_for(kind), pytest.raises(UserError, match=f"attention={asked}: {says}") as error:
        choose(asked, COVERED._replace(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_model_says_what_it_asked_for():
    """What only the plain path computes reaches the choice from the model's arguments."""
    config = tiny.CONFIG.replace(attention="kernel", head_size=32, max_position_embeddings=128, num_hidden_layers=1)
    ids = jnp.ones((1, 128), jnp.int32)
    params = jax.eval_shape(lambda: Bert(config).init(jax.random.key(0), ids[:, :1]))["params"]

    def apply(**options: Any) -> Any:
        return jax.eval_shape(lambda params: Bert(config).apply({"params": params}, ids, **options), params)

    apply(attention_mask=ids)
    for options, says in (
        ({"head_mask": jnp.ones(2)}, "a mask of heads"),
        ({"output_attentions": True}, "attention probabilities to return"),
        ({"attention_mask": jnp.ones((1, 128, 128))}, "a mask for each pair"),
    ):
        with pytest.raises(UserError, match=says):
            apply(**options)


@pytest.mark.parametrize("mask", [None, Sequences(jnp.ones((2, 128), jnp.int32))], ids=["no mask", "padding"])
def test_cudnn_lowers_for_cuda_with_lengths(mask: Any, monkeypatch: pytest.MonkeyPatch):
    """Off a GPU, JAX cannot ask for the versions that it checks."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)
    x = jnp.ones((2, 128, 2, 64))

    def attend(*qkv: jax.Array) -> jax.Array:
        return dot_product_attention(*qkv, mask=mask, dtype=jnp.bfloat16, attention="cudnn")[0].sum()

    with tracing_for(GPU):
        text = jax.jit(jax.grad(attend)).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax" in text and "__cudnn$fmhaSoftmaxBackward" in text
    assert ("PADDING" in text) == (mask is not None)


@pytest.mark.slow
def test_cudnn_gives_no_wrong_numbers_for_padding_before_a_token(monkeypatch: pytest.MonkeyPatch):
    plain = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *qkv, implementation, **more: plain(*qkv, **more))
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(3, 8, 2, 8)), jnp.float32) for _ in range(3))
    keys = jnp.asarray([[1] * 5 + [0] * 3, [1] * 8, [1, 0, 1] + [0] * 5], jnp.int32)

    def attend(attention: str, dtype: Any) -> jax.Array:
        return dot_product_attention(q, k, v, Sequences(keys), dtype=dtype, attention=attention)[0]

    with tracing_for(GPU):
        found = attend("cudnn", jnp.bfloat16)
    np.testing.assert_allclose(found[:2], attend("xla", jnp.float32)[:2], atol=0.02)
    assert np.isnan(found[2]).all()
