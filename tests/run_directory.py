"""A run directory as training writes it, made without training."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.training.checkpoint.checkpoints import Checkpoints


def write_run(
    directory: Path, config: dict[str, Any], params: dict, tokenizer: Tokenizer, *, steps: tuple[int, int]
) -> Path:
    """config.json, the tokenizer and two checkpoints: `params` at the second step, all of them larger by 1 at the first."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer.save(directory / "tokenizer")
    with Checkpoints(directory / "checkpoints") as checkpoints:
        for step, shift in zip(steps, (1.0, 0.0), strict=True):
            tree = jax.tree.map(lambda x, shift=shift: jnp.asarray(x + np.float32(shift)), params)
            checkpoints.save(step, {"step": jnp.int32(step), "params": tree, "opt_state": jnp.zeros(4)}, {})
            checkpoints.wait()
    return directory
