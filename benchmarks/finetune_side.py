"""transformers' side of `finetune_reference`: its class for a task, torch's AdamW, the same batches."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.reference_side import their_optimizer, their_scheduler
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.training.optimizer import OptimizerConfig

CLASSES = {
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "multiple-choice": transformers.AutoModelForMultipleChoice,
}
_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
_TARGETS = ("labels", "start_positions", "end_positions")


class Theirs:
    """A transformers model, trained with its own loss."""

    def __init__(self, config: OptimizerConfig, head: str, folder: Path, seed: int):
        torch.manual_seed(seed)
        options: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True}
        loaded: Any = CLASSES[head].from_pretrained(folder, **options)
        self.model, said = loaded
        assert not any(said[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        self._clip_norm = config.clip_norm
        self._optimizer = their_optimizer(self.model, config)
        self._scheduler = their_scheduler(self._optimizer, config)

    def step(self, batch: dict[str, np.ndarray]) -> float:
        self.model.train()
        loss = self.model(**_tensors(batch, (*_INPUTS, *_TARGETS))).loss
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._scheduler.step()
        return loss.item()

    def outputs(self, examples: Encoded, plans: list[BatchPlan]) -> list[dict[str, np.ndarray]]:
        """The logits of each batch, by our names."""
        self.model.eval()
        found = []
        with torch.no_grad():
            for plan in plans:
                output = self.model(**_tensors(examples.batch(plan), _INPUTS))
                names = [name for name in ("logits", "start_logits", "end_logits") if name in output]
                found.append({name: output[name].numpy() for name in names})
        return found


def _tensors(batch: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The arrays of a batch, without the rows that only fill up the shape."""
    rows = batch["weights"] > 0 if "labels" in batch or "start_positions" in batch else slice(None)
    wanted = {name: batch[name][rows] for name in names if name in batch}
    return {
        name: torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))
        for name, array in wanted.items()
    }
