"""fill-mask: the most probable tokens for each mask of a text, under transformers' keys."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.errors import UserError
from bert_jax.inference.buckets import power_of_two
from bert_jax.inference.checks import check_text, shortened
from bert_jax.inference.shown import Results, first_of
from bert_jax.inference.task_model import ANY_LENGTH, Running, TaskModel, model_inputs
from bert_jax.inference.task_source import literal_tokenizer
from bert_jax.load import Loaded

_MASK_TOKENS = ("[MASK]", "<mask>")


class _Asked(NamedTuple):
    """Ids int32 [L] of a text and the positions of its masks; the ids that are asked for, or None."""

    ids: np.ndarray
    masks: np.ndarray
    targets: np.ndarray | None


class FillMask(TaskModel):
    """The most probable tokens for each [MASK] of a text, or whatever the model's tokenizer calls it (`<mask>`).

    The number of [MASK]s and of tokens that are asked for are rounded up to powers of two, and compiled once.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (head "pretraining" or "mlm").
        truncation: cut a text at the end where it is too long for the model; it must keep all its [MASK]s. Without,
            too long is an error.
        top_k: how many tokens to give for each [MASK], most probable first; at most the size of the vocabulary.
        targets: give these tokens only, or as many of them as `top_k` says; each a token of the vocabulary.
        **running: batch_size, dtype, cache, devices, as `TaskModel`.
    """

    task = "fill-mask"

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        truncation: bool = False,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        **running: Unpack[Running],
    ):
        super().__init__(source, **running)
        self.tokenizer = literal_tokenizer(self.tokenizer, source)
        self._truncation = truncation
        self.settle(top_k=top_k, targets=targets)

    def __call__(
        self, texts: str | Sequence[str], top_k: int | None = None, *, targets: str | Sequence[str] | None = None
    ) -> list[Any]:
        """Fill in the masks.

        Args:
            texts: a text, or a list of them, each with at least one [MASK].
            top_k, targets: for this call, in the place of the class's own.

        Returns:
            For one text with one [MASK] a list of dicts: `score` (float, the probability), `token` (int, its id),
            `token_str`, `sequence` (the text with the token in place, decoded). For a text with several a list of
            such lists, one a [MASK] in their order, each filled on its own (`sequence` then keeps the special
            tokens, the other masks among them). For a list of texts a list of these.

        Raises:
            UserError: a text without [MASK], or too long for the model; a target that is no token.
        """
        single = isinstance(texts, str)
        results = Results(self.stream([texts] if single else list(texts), top_k=top_k, targets=targets))
        return first_of(results) if single else results

    def check_options(self, *, top_k: int, targets: Any) -> None:
        if top_k < 1:
            raise UserError(f"top_k={top_k}: expected at least 1")
        self._wanted(targets)

    def encode(self, items: list[str], first: int, *, targets: Any, **options: Any) -> tuple[list[_Asked], Encoded]:
        wanted = self._wanted(targets)
        rows = [self._ids(text, first + number) for number, text in enumerate(items)]
        asked = [_Asked(ids, np.flatnonzero(ids == self.tokenizer.mask_token_id), wanted) for ids in rows]
        positions = np.zeros((len(rows), power_of_two(max((len(one.masks) for one in asked), default=1))), np.int32)
        for row, one in enumerate(asked):
            positions[row, : len(one.masks)] = one.masks
        beside = {"mlm_positions": positions}
        if wanted is not None:
            padded = np.resize(wanted, power_of_two(len(wanted)))
            beside["target_ids"] = np.tile(padded.astype(np.int32), (len(rows), 1))
        lengths = np.array([len(ids) for ids in rows], np.int64)
        tokens = {"input_ids": np.concatenate([*rows, np.zeros(0, np.int32)])}
        tokens["token_type_ids"] = np.zeros_like(tokens["input_ids"])
        return asked, Encoded(tokens, {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0}, lengths, beside)

    def engine_options(self, **options: Any) -> dict[str, Any]:
        if options["targets"] is not None:
            return {}
        return {"top_k": min(power_of_two(options["top_k"], 8), self.tokenizer.vocab_size)}

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array, ...]:
        """Probabilities float32 and ids int32, both [B, P, k]: the best, descending, or of `target_ids` [B, k]."""
        inputs = model_inputs(self.config, batch)
        output: Any = self._model.apply({"params": params}, **inputs, mlm_positions=batch["mlm_positions"])
        probabilities_BPV = jax.nn.softmax(output.prediction_logits, axis=-1)
        if "target_ids" not in batch:
            # A table that was padded has rows that no token belongs to.
            return tuple(jax.lax.top_k(probabilities_BPV[..., : self.tokenizer.vocab_size], options["top_k"]))
        shape = (*probabilities_BPV.shape[:2], batch["target_ids"].shape[1])
        ids_BPk = jax.numpy.broadcast_to(batch["target_ids"][:, None], shape)
        return jax.numpy.take_along_axis(probabilities_BPV, ids_BPk, axis=-1), ids_BPk

    def results(self, facts: list[_Asked], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        top_k = min(options["top_k"], self.tokenizer.vocab_size)
        return [
            self._describe(one, scores_Pk, tokens_Pk, top_k)
            for one, (scores_Pk, tokens_Pk) in zip(facts, outputs, strict=True)
        ]

    def _ids(self, text: str, number: int) -> np.ndarray:
        """Ids int32 [L] with [CLS] and [SEP]; checked."""
        check_text(text, f"text {number + 1}")
        (ids,) = self.tokenizer([text], truncation="none", max_length=ANY_LENGTH)["input_ids"]
        mask = self.tokenizer.mask_token
        shown = f"text {number + 1} ({shortened(text)})"
        masks = int((ids == self.tokenizer.mask_token_id).sum())
        if not masks:
            foreign = next((f", not {token}" for token in _MASK_TOKENS if token != mask and token in text), "")
            raise UserError(f"{shown} has no {mask}: put one where a word is wanted{foreign}")
        if len(ids) <= self.longest:
            return ids
        if not self._truncation:
            raise UserError(
                f"{shown} has {len(ids)} tokens, the model takes {self.longest}: shorten it, or ask for truncation"
            )
        ids = np.append(ids[: self.longest - 1], ids[-1])
        if int((ids == self.tokenizer.mask_token_id).sum()) < masks:
            raise UserError(f"{shown}: cut to the model's {self.longest} tokens it loses a {mask}; shorten it")
        return ids

    def _wanted(self, targets: str | Sequence[str] | None) -> np.ndarray | None:
        """int32 [k], each once. A word as it stands in a text is asked for if that is one token."""
        if targets is None:
            return None
        targets = [targets] if isinstance(targets, str) else targets
        if not targets:
            raise UserError("targets: an empty list; leave it out for all tokens")
        ids = []
        for target in targets:
            try:
                ids += self.tokenizer.tokens_to_ids([target])
            except UserError:
                pieces = self.tokenizer.tokenize(target)
                if len(pieces) != 1 or pieces[0] == self.tokenizer.unk_token:
                    found = " ".join(pieces) or "nothing"
                    raise UserError(f"targets: {target!r} is no token of the vocabulary: it is {found}") from None
                ids += self.tokenizer.tokens_to_ids(pieces)
        return np.array(list(dict.fromkeys(ids)), np.int32)

    def _describe(self, asked: _Asked, scores_Pk: np.ndarray, tokens_Pk: np.ndarray, top_k: int) -> Any:
        """The dicts of one text."""
        single = len(asked.masks) == 1
        answers = []
        for position, scores_k, tokens_k in zip(asked.masks, scores_Pk, tokens_Pk, strict=False):
            best = slice(top_k)
            if asked.targets is not None:
                best = np.argsort(-scores_k[: len(asked.targets)], kind="stable")[:top_k]
            filled = asked.ids.copy()
            row = []
            for score, token in zip(scores_k[best].tolist(), tokens_k[best].tolist(), strict=True):
                filled[position] = token
                kept = filled[filled != self.tokenizer.pad_token_id]
                sequence = self.tokenizer.decode(kept, skip_special_tokens=single)
                token_str = self.tokenizer.decode([token])
                row.append({"score": score, "token": token, "token_str": token_str, "sequence": sequence})
            answers.append(row)
        return answers[0] if single else answers
