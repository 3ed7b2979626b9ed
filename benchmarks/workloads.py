"""The models and batches of the training-step benchmarks: published sizes of BERT, 20 of 128 tokens predicted."""

import json
from pathlib import Path

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import RandomBatches

LENGTH, PREDICTIONS = 128, 20
PRESET = {"tiny": "tiny", "mini": "mini", "small": "small", "base": "base-uncased"}
ROWS = {"tiny": 64, "mini": 32, "small": 16, "base": 8}


def workload(size: str, **overrides: str) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """The config, dropout 0.1 as published, and a batch of random tokens without padding."""
    config = BertConfig.preset(PRESET[size], **overrides)
    batches = RandomBatches(
        batch_size=ROWS[size],
        max_seq_length=LENGTH,
        max_predictions=PREDICTIONS,
        vocab_size=config.vocab_size,
    )
    return config, batches.batch(0)


def write_workload(size: str, folder: Path) -> None:
    """Write the same as config.json and batch.npz, for contenders that do not use bert_jax."""
    config, batch = workload(size)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    np.savez(folder / "batch.npz", allow_pickle=False, **batch)
