"""Which implementation computes attention: the plain one, the platform's kernel, or cuDNN's; `BertConfig.attention`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.typing import DTypeLike

from bert_jax.errors import UserError
from bert_jax.model.layers import target_platform

LANES = 128
"""Columns of a TPU's register: the kernel computes rows of a multiple of it, and heads that divide it."""
LONGEST = 1024
HEAD_SIZES = (32, 64, 128)
# Compiled for v5e, v5p, v6e and TPU7x, the kernel takes the fewer cycles the larger the matrix units are. The v4 has an
# eighth of the v5e's VMEM, and the kernel spills there; the v3 has no bfloat16 products in kernels.
_HELPS_ON = ("TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x")


class Call(NamedTuple):
    """One call of attention.

    Attributes:
        length, key_length, head_size: L, M and K.
        dtype: type of the products' operands.
        mask: "none", "padding" (of keys), "sequences" (numbered queries and keys) or "pairs" (any mask).
        dropout: whether probabilities are dropped.
        more: what else it asks for, such as "relative positions"; None if nothing.
    """

    length: int
    key_length: int
    head_size: int
    dtype: DTypeLike
    mask: str
    dropout: bool
    more: str | None = None


def choose(asked: str, call: Call) -> str:
    """The implementation of a call: "xla", "kernel" or "cudnn".

    "auto" takes the kernel on TPUs for what it computes in bfloat16: it keeps no scores for the backward pass, and by
    the compiler's schedule a step takes no longer (BERT-base at 128: equal time, 0.6 GB less; the gain in time grows
    with the length). It takes the plain path for all else: float32, which has derivatives of any order, TPUs where the
    kernel spills, and GPUs, where nothing was measured.

    Raises:
        UserError: `asked` is "kernel" or "cudnn", which cannot compute this call.
    """
    platform = target_platform()
    if asked == "xla":
        return "xla"
    if asked == "auto":
        helps = platform == "tpu" and _kind() in _HELPS_ON and jnp.dtype(call.dtype) == jnp.bfloat16
        return "kernel" if helps and _why_no_kernel(call, platform) is None else "xla"
    why_not = _why_no_kernel(call, platform) if asked == "kernel" else _why_no_cudnn(call, platform)
    if why_not is not None:
        raise UserError(f"attention={asked}: {why_not}; attention=auto computes this too")
    return asked


def _why_no_kernel(call: Call, platform: str) -> str | None:
    if (why_not := _why_only_plain(call)) is not None:
        return why_not
    if call.key_length != call.length or call.length % LANES or call.length > LONGEST:
        lengths = f"{call.length} queries and {call.key_length} keys"
        return f"found {lengths}; expected the same multiple of {LANES} of both, at most {LONGEST}"
    if call.head_size not in HEAD_SIZES:
        return f"found heads of size {call.head_size}; expected one of {', '.join(map(str, HEAD_SIZES))}"
    if platform == "tpu" and _kind() in ("TPU v2", "TPU v3"):
        return f"{_kind()} multiplies no bfloat16 in kernels; expected a TPU v4 or later"
    if platform != "cpu" and not _one_device_at_a_time():
        return "the compiler cannot divide a kernel between devices; expected one device, or jax.shard_map"
    return None


def _why_no_cudnn(call: Call, platform: str) -> str | None:
    if platform in ("cpu", "tpu"):
        return f"cuDNN is for NVIDIA GPUs, found {platform}"
    if (why_not := _why_only_plain(call)) is not None:
        return why_not
    if jnp.dtype(call.dtype) != jnp.bfloat16:
        return f"found dtype={jnp.dtype(call.dtype)}; expected bfloat16"
    if call.dropout:
        return "found dropout, which cuDNN repeats in each step; expected attention_probs_dropout_prob=0"
    if call.mask == "sequences":
        return "found several sequences in a row; expected one, as with packing=no"
    if call.head_size % 8 or call.head_size > 128:
        return f"found heads of size {call.head_size}; expected a multiple of 8, at most 128"
    return None


def _why_only_plain(call: Call) -> str | None:
    if call.more is not None:
        return f"found {call.more}; expected none"
    if call.mask == "pairs":
        return "found a mask for each pair of positions, such as a decoder's; expected a mask of padding"
    return None


def _kind() -> str:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.device_kind if device is not None else jax.devices()[0].device_kind


def _one_device_at_a_time() -> bool:
    """Whether the traced program is for one device: alone, or each of those of a `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.device_count() == 1
    return mesh.size == 1 or all(kind == AxisType.Manual for kind in mesh.axis_types)
