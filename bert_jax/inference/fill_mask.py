"""fill-mask: the most probable tokens for each mask of a text, under transformers' keys."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.engine import Plan, length_buckets, plan_batches, power_of_two
from bert_jax.inference.task_source import folder_of, model_for
from bert_jax.load import Loaded, load_tokenizer
from bert_jax.model.heads import BertForMaskedLM


class FillMask:
    """The most probable tokens for each [MASK] of a text, or whatever the model's tokenizer calls it (`<mask>`).

    Compiled once for each shape that occurs: length bucket (powers of two from 16, and the model's longest), one row
    or a full batch, number of [MASK]s and `top_k` rounded up to powers of two. `compilations` counts them.

    Args:
        source: a run directory, a folder, or what `load` returned (head "pretraining" or "mlm").
        batch_size: rows that are computed at a time.
        dtype: "float32" or "bfloat16", the type of the products' operands.
        truncation: cut a text at the end where it is too long for the model; it must keep all its [MASK]s. Without,
            too long is an error.
    """

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        batch_size: int = 8,
        dtype: str | None = None,
        truncation: bool = False,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: expected at least 1")
        loaded, tokenizer = model_for("fill-mask", source, dtype=dtype)
        if not tokenizer.literal_special_tokens and not isinstance(source, Loaded):
            # A run prepared by Google's rules splits "[MASK]" in text; here it is how one asks.
            tokenizer = load_tokenizer(folder_of(source), literal_special_tokens=True)
            assert tokenizer is not None
        config = loaded.config
        self.tokenizer = tokenizer
        self.config = config
        self.compilations = 0
        self._params = loaded.params
        self._batch_size = batch_size
        self._truncation = truncation
        self._longest = min(tokenizer.max_length or config.longest_input, config.longest_input)
        self._model = BertForMaskedLM(config)
        self._predict = jax.jit(self._most_probable, static_argnames="top_k")

    def __call__(self, texts: str | Sequence[str], top_k: int = 5) -> list[Any]:
        """Fill in the masks.

        Args:
            texts: a text, or a list of them, each with at least one [MASK].
            top_k: how many tokens to give for each, most probable first; at most the size of the vocabulary.

        Returns:
            For one text with one [MASK] a list of dicts: `score` (float, the probability), `token` (int, its id),
            `token_str`, `sequence` (the text with the token in place, decoded). For a text with several a list of
            such lists, one a [MASK] in their order, each filled on its own (`sequence` then keeps the special
            tokens, the other masks among them). For a list of texts a list of these.

        Raises:
            UserError: a text without [MASK], or too long for the model.
        """
        if top_k < 1:
            raise UserError(f"top_k={top_k}: expected at least 1")
        if isinstance(texts, str):
            return self._run([texts], top_k)[0]
        return self._run(list(texts), top_k)

    def _run(self, texts: list[str], top_k: int) -> list[Any]:
        top_k = min(top_k, self.tokenizer.vocab_size)
        rows = [self._encode(text, number) for number, text in enumerate(texts)]
        positions = [np.flatnonzero(ids == self.tokenizer.mask_token_id) for ids in rows]
        results: list[Any] = [None] * len(rows)
        for plan in plan_batches([len(ids) for ids in rows], length_buckets(self._longest), self._batch_size):
            batch = self._pad(plan, rows, positions)
            scores_BPk, ids_BPk = jax.device_get(
                self._predict(self._params, **batch, top_k=min(power_of_two(top_k, 8), self.tokenizer.vocab_size))
            )
            for place, number in enumerate(plan.rows):
                masks = range(len(positions[number]))
                found = [(scores_BPk[place, mask, :top_k], ids_BPk[place, mask, :top_k]) for mask in masks]
                results[number] = self._describe(rows[number], positions[number], found)
        return results

    def _encode(self, text: str, number: int) -> np.ndarray:
        """Ids int32 [L] with [CLS] and [SEP]; checked."""
        (ids,) = self.tokenizer([text], truncation="none", max_length=_ANY_LENGTH)["input_ids"]
        mask = self.tokenizer.mask_token
        shown = f"text {number + 1} ({_shortened(text)})"
        masks = int((ids == self.tokenizer.mask_token_id).sum())
        if not masks:
            foreign = next((f", not {token}" for token in _MASK_TOKENS if token != mask and token in text), "")
            raise UserError(f"{shown} has no {mask}: put one where a word is wanted{foreign}")
        if len(ids) <= self._longest:
            return ids
        if not self._truncation:
            raise UserError(
                f"{shown} has {len(ids)} tokens, the model takes {self._longest}: shorten it, or ask for truncation"
            )
        ids = np.append(ids[: self._longest - 1], ids[-1])
        if int((ids == self.tokenizer.mask_token_id).sum()) < masks:
            raise UserError(f"{shown}: cut to the model's {self._longest} tokens it loses a {mask}; shorten it")
        return ids

    def _pad(self, plan: Plan, rows: list[np.ndarray], positions: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays of the plan's shape; rows that are only there for the shape repeat the first."""
        numbers = plan.rows + plan.rows[:1] * (plan.batch_size - len(plan.rows))
        masks = power_of_two(max(len(positions[number]) for number in numbers))
        input_ids = np.full((plan.batch_size, plan.length), self.tokenizer.pad_token_id, np.int32)
        attention_mask = np.zeros_like(input_ids)
        mlm_positions = np.zeros((plan.batch_size, masks), np.int32)
        for place, number in enumerate(numbers):
            input_ids[place, : len(rows[number])] = rows[number]
            attention_mask[place, : len(rows[number])] = 1
            mlm_positions[place, : len(positions[number])] = positions[number]
        return {"input_ids": input_ids, "attention_mask": attention_mask, "mlm_positions": mlm_positions}

    def _most_probable(
        self, params: Any, input_ids: jax.Array, attention_mask: jax.Array, mlm_positions: jax.Array, *, top_k: int
    ) -> tuple[jax.Array, jax.Array]:
        """Probabilities float32 and ids int32, both [B, P, k], descending."""
        self.compilations += 1  # runs when JAX traces: once a shape
        output: Any = self._model.apply({"params": params}, input_ids, attention_mask, mlm_positions=mlm_positions)
        probabilities_BPV = jax.nn.softmax(output.prediction_logits, axis=-1)
        # A table that was padded has rows that no token belongs to.
        return jax.lax.top_k(probabilities_BPV[..., : self.tokenizer.vocab_size], top_k)

    def _describe(
        self, ids: np.ndarray, positions: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[Any]:
        """The dicts of one text: ids [L], positions of its masks, and (scores [k], tokens [k]) for each of them."""
        single = len(positions) == 1
        answers = []
        for position, (scores, tokens) in zip(positions, found, strict=True):
            filled = ids.copy()
            row = []
            for score, token in zip(scores.tolist(), tokens.tolist(), strict=True):
                filled[position] = token
                kept = filled[filled != self.tokenizer.pad_token_id]
                sequence = self.tokenizer.decode(kept, skip_special_tokens=single)
                token_str = self.tokenizer.decode([token])
                row.append({"score": score, "token": token, "token_str": token_str, "sequence": sequence})
            answers.append(row)
        return answers[0] if single else answers


_ANY_LENGTH = 1 << 30
_MASK_TOKENS = ("[MASK]", "<mask>")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
