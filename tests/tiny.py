"""The tiny BERT that tests share, its random parameters, batch and optimizer: one set of shapes compiles once."""

from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.tree import unflatten

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=24,
)
# Without clipping, one update leaves (1 - b1) * gradient in the first moment: gradients can be read off the state.
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, total_steps=100, clip_norm=0.0)


def random_flat(
    config: BertConfig, seed: int, head: str = "pretraining", *, scale: float = 1.0
) -> dict[str, np.ndarray]:
    """Parameters by path, float32, drawn from a normal distribution of standard deviation `scale`."""
    rng = np.random.default_rng(seed)
    rows = parameters_of(config, head)
    return {path: (scale * rng.normal(size=row.shape)).astype(np.float32) for path, row in rows.items()}


def random_params(config: BertConfig, seed: int, head: str = "pretraining", *, scale: float = 1.0) -> dict[str, Any]:
    """`random_flat` as a tree."""
    return unflatten(random_flat(config, seed, head, scale=scale))


def pretraining_batch(
    rows: int = 8, length: int = 12, predictions: int = 4, *, vocab_size: int = CONFIG.vocab_size, seed: int = 0
) -> dict[str, np.ndarray]:
    """A batch of random ids with padding, masked positions and sentence pairs."""
    rng, shortest = np.random.default_rng(seed), length // 2
    return {
        "input_ids": rng.integers(0, vocab_size, (rows, length)).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, (rows, length)).astype(np.int32),
        "attention_mask": (np.arange(length) < rng.integers(shortest, length + 1, (rows, 1))).astype(np.int32),
        "mlm_positions": rng.integers(0, shortest, (rows, predictions)).astype(np.int32),
        "mlm_labels": rng.integers(0, vocab_size, (rows, predictions)).astype(np.int32),
        # Very different numbers of predictions a row: the mean of micro-batch means is not the whole batch's mean.
        "mlm_weights": (np.arange(predictions) < rng.integers(0, predictions + 1, (rows, 1))).astype(np.float32),
        "next_sentence_label": rng.integers(0, 2, rows).astype(np.int32),
    }
