"""What a fine-tuned model says of examples of any length: few compiled shapes, results in the examples' order."""

import logging
import os
from typing import Any

import jax
import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import Batch
from bert_jax.errors import UserError
from bert_jax.inference.engine import length_buckets, plan_batches
from bert_jax.inference.task_source import HEAD_OF, model_for
from bert_jax.load import Loaded
from bert_jax.model.heads import HEADS

logger = logging.getLogger(__name__)

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("logits", "start_logits", "end_logits")


class TaskModel:
    """The model of a task and its tokenizer. What all the pipelines of fine-tuned models share.

    Compiled once for each shape that occurs: length bucket (powers of two from 16, and the longest), one row or a full
    batch. `compilations` counts them.

    Args:
        task: a key of `task_source.HEAD_OF`.
        source: a run directory, a folder, a hub id, or what `load` returned, with the head of the task.
        batch_size: rows that are computed at a time.
        dtype: "float32" or "bfloat16", the type of the products' operands.

    Attributes:
        config, tokenizer: of the model.
        source: where it was read from.
        longest: tokens that a row may have.
    """

    def __init__(
        self,
        task: str,
        source: "str | os.PathLike[str] | Loaded",
        *,
        batch_size: int = 8,
        dtype: str | None = None,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: expected at least 1")
        loaded, self.tokenizer = model_for(task, source, dtype=dtype)
        self.config = loaded.config
        self.source = loaded.report.source
        self.longest = min(self.tokenizer.max_length or self.config.longest_input, self.config.longest_input)
        self.compilations = 0
        self._params = loaded.params
        self._batch_size = batch_size
        self._model = HEADS[HEAD_OF[task]](self.config)
        self._predict = jax.jit(self._apply)

    def outputs(self, examples: Encoded, longest: int | None = None) -> list[tuple[np.ndarray, ...]]:
        """The head's outputs for each example: (logits,), or (start_logits, end_logits), float32, padded ends and all.

        Args:
            examples: rows of at most `longest` tokens.
            longest: the longest row that can come; None: the model's.
        """
        results: list[tuple[np.ndarray, ...]] = [()] * len(examples)
        if not results:
            return results
        buckets = length_buckets(longest or self.longest)
        for plan in plan_batches(examples.lengths.tolist(), buckets, self._batch_size):
            numbers = np.resize(plan.rows, plan.batch_size)
            counts = np.arange(plan.batch_size) < len(plan.rows)
            batch = examples.batch(Batch(numbers, counts, plan.length))
            arrays = jax.device_get(self._predict(self._params, *(batch[name] for name in _INPUTS)))
            for place, number in enumerate(plan.rows):
                results[number] = tuple(array[place] for array in arrays)
        return results

    def warn_of_cut(self, examples: Encoded, texts: list[str], pairs: list[str] | None) -> None:
        """Log how many of the texts (or pairs) that became these rows had to be cut to the model's length."""
        full = np.flatnonzero(examples.row_lengths == self.longest)
        lengths = self.tokenizer.encode_flat([texts[i] for i in full])[1]
        if pairs is not None:
            lengths = lengths + self.tokenizer.encode_flat([pairs[i] for i in full])[1]
        cut = int((lengths + self.tokenizer.special_tokens_added(pair=pairs is not None) > self.longest).sum())
        if cut:
            logger.warning("%d of %d texts are longer than %d tokens and were cut", cut, len(texts), self.longest)

    def _apply(self, params: Any, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        self.compilations += 1  # runs when JAX traces: once a shape
        output: Any = self._model.apply({"params": params}, *inputs)
        return tuple(getattr(output, name) for name in _OUTPUTS if hasattr(output, name))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
