"""What a step costs: its floating-point operations, that of an evaluation beside it, the types that are slow here."""

import jax

from bert_jax.config import BertConfig
from bert_jax.runtime.cpu import multiplies_bfloat16
from bert_jax.training.optimizer_config import OptimizerConfig

EVALUATION = 1 / 3  # the time of a forward pass, as a share of that of a training step with as many tokens


def slow_type_told(model: BertConfig, optimizer: OptimizerConfig) -> str | None:
    """A line on a CPU that has no instructions for the type of the matrix products; else None."""
    if jax.default_backend() != "cpu" or multiplies_bfloat16() is not False:
        return None
    words = ["model.dtype=float32"] if model.dtype == "bfloat16" else []
    if optimizer.name == "muon" and optimizer.muon_products == "bfloat16":
        words.append("optimizer.muon_products=float32")
    return f"this CPU has no instructions for bfloat16: to be faster say {' '.join(words)}" if words else None


def lacks_memory(error: jax.errors.JaxRuntimeError) -> bool:
    """Whether XLA refuses a program for its memory, when it compiles it (TPU) or runs it (GPU)."""
    return "RESOURCE_EXHAUSTED" in str(error)


def train_flops(config: BertConfig, length: int, predictions: int) -> float:
    """Floating-point operations of forward and backward pass (3 x forward) for one sequence, matrix products only."""
    d, f, e, v = config.hidden_size, config.intermediate_size, config.embedding_width, config.vocab_size
    a = config.num_attention_heads * config.head_dim
    layer = 2 * length * (4 * d * a + 2 * d * f) + 4 * length * length * a
    projection = 2 * length * e * d if config.has_projection else 0
    return 3.0 * (projection + len(config.layer_order) * layer + 2 * predictions * (d * e + e * v))
