"""fill-mask: predicts the most probable tokens for each mask of a text, under transformers' keys."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.onnx.graph import Graph
from bert_jax.formats.onnx.model import ROWS
from bert_jax.inference.engine.batching import power_of_two
from bert_jax.inference.tasks.likelihood import Hidden, hidden_rows, token_scores
from bert_jax.inference.tasks.task_model import (
    ANY_LENGTH,
    EncodedItems,
    Results,
    Running,
    TaskModel,
    first_of,
    model_inputs,
)
from bert_jax.inference.tasks.task_source import (
    check_count,
    check_max_length,
    check_text,
    is_cut,
    items_of,
    literal_tokenizer,
    opened,
    shortened,
)

logger = logging.getLogger(__name__)

_MASK_TOKENS = ("[MASK]", "<mask>")
_TOKENIZER_OPTIONS = ("truncation", "max_length", "padding")


class _Asked(NamedTuple):
    """A text's ids, int32 [L], the positions of its masks, and the ids to score (None: all)."""

    ids: np.ndarray
    masks: np.ndarray
    targets: np.ndarray | None


class FillMask(TaskModel):
    """Predicts the most probable tokens for each [MASK] of a text (or the tokenizer's own mask token, as `<mask>`).

    A text becomes one row for each of its [MASK]s, so a text with many of them makes no other output larger. The number
    of tokens per mask is rounded up to a power of two, so that few values of `top_k` compile a program of their own.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (head "pretraining" or "mlm").
        truncation: truncate texts that are too long at the end, or where the tokenizer's truncation_side says; they
            must keep all their [MASK]s. False: such texts are errors.
        top_k: the number of tokens for each [MASK], most probable first; at most the size of the vocabulary.
        targets: give the best `top_k` of these tokens only. If a word is not in the vocabulary, its first piece is
            used, with a warning, as in transformers.
        tokenizer_kwargs: `truncation` and `max_length` (at most the model's) as transformers takes them; `padding` is
            accepted but has no effect.
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.
    """

    task = "fill-mask"

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        truncation: bool = False,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **running: Unpack[Running],
    ):
        found = opened(source)
        super().__init__(found, **running)
        self.tokenizer = literal_tokenizer(self.tokenizer, found)
        self._truncation = truncation
        self.settle(top_k=top_k, targets=_listed(targets), tokenizer_kwargs=tokenizer_kwargs or {})

    def __call__(
        self,
        texts: str | Sequence[str],
        top_k: int | None = None,
        *,
        targets: str | Sequence[str] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Predicts the tokens of the masks.

        Args:
            texts: a text, or a list of them, each with at least one [MASK].
            top_k, targets, tokenizer_kwargs: override the class's options for this call.

        Returns:
            For a text with one [MASK] a list of dicts: `score` (float, the probability), `token` (int, its id),
            `token_str`, `sequence` (the text with the token filled in, decoded). For a text with several [MASK]s a list
            of such lists, one per [MASK] in order, each filled in independently of the others (`sequence` then keeps
            the special tokens, including the other masks). For a list of texts a list of these.

        Raises:
            UserError: a text has no [MASK] or is too long for the model, or no target is left.
        """
        single = isinstance(texts, str)
        options: dict[str, Any] = {"top_k": top_k, "targets": _listed(targets), "tokenizer_kwargs": tokenizer_kwargs}
        results = Results(self.stream([texts] if single else items_of(texts), **options))
        return first_of(results) if single else results

    def check_options(self, *, top_k: int, targets: Any, tokenizer_kwargs: Mapping[str, Any]) -> None:
        check_count("top_k", top_k)
        self._wanted(targets)
        if targets is not self.settled.get("targets"):
            self._warn_of_other_tokens(targets)
        if unknown := sorted(set(tokenizer_kwargs) - set(_TOKENIZER_OPTIONS)):
            known = ", ".join(_TOKENIZER_OPTIONS)
            raise UserError(f"tokenizer_kwargs: has {unknown[0]!r}; expected some of {known}")
        self._cut_at(tokenizer_kwargs)

    def encode(
        self, items: list[str], first: int, *, targets: Any, tokenizer_kwargs: Mapping[str, Any], **options: Any
    ) -> EncodedItems:
        wanted, cut_at = self._wanted(targets), self._cut_at(tokenizer_kwargs)
        rows = [self._ids(text, first + number, cut_at) for number, text in enumerate(items)]
        asked = [_Asked(ids, np.flatnonzero(ids == self.tokenizer.mask_token_id), wanted) for ids in rows]
        hidden = [Hidden(one.ids, one.masks, one.masks + 1) for one in asked]
        found = hidden_rows(hidden, pad_id=self.tokenizer.pad_token_id, mask_id=self.tokenizer.mask_token_id)
        beside = {"mlm_positions": found.targets["mlm_positions"]}
        if wanted is not None:
            padded = np.resize(wanted, power_of_two(len(wanted)))
            beside["target_ids"] = np.broadcast_to(padded, (len(found), len(padded)))
        return EncodedItems(asked, replace(found, targets=beside))

    def beside_tokens(self, *, targets: Any, **options: Any) -> dict[str, tuple[int, ...]]:
        wanted = self._wanted(targets)
        arrays: dict[str, tuple[int, ...]] = {"mlm_positions": (1,)}
        return arrays if wanted is None else arrays | {"target_ids": (power_of_two(len(wanted)),)}

    def engine_options(self, **options: Any) -> dict[str, Any]:
        if options["targets"] is not None:
            return {}
        return {"top_k": min(power_of_two(options["top_k"], 8), self.tokenizer.vocab_size)}

    def apply(self, params: Any, batch: Mapping[str, jax.Array], **options: Any) -> tuple[jax.Array, ...]:
        """Returns probabilities, float32, and ids, int32, both [B, P, k]: the k best, or `target_ids` [B, k]."""
        inputs = model_inputs(self.config, batch)
        output: Any = self._model.apply({"params": params}, **inputs, mlm_positions=batch["mlm_positions"])
        probabilities_BPV = jax.nn.softmax(output.prediction_logits, axis=-1)
        if "target_ids" not in batch:
            # A padded embedding table has rows without a token.
            return tuple(jax.lax.top_k(probabilities_BPV[..., : self.tokenizer.vocab_size], options["top_k"]))
        shape = (*probabilities_BPV.shape[:2], batch["target_ids"].shape[1])
        ids_BPk = jax.numpy.broadcast_to(batch["target_ids"][:, None], shape)
        return jax.numpy.take_along_axis(probabilities_BPV, ids_BPk, axis=-1), ids_BPk

    def outputs(
        self, g: Graph, config: BertConfig, x: str, *, packed: bool, inputs: Collection[str], **options: Any
    ) -> None:
        chances = g.op("Softmax", token_scores(g, config, x), axis=-1)  # [B, P, V]
        if "target_ids" in inputs:
            # One position for each row, as `encode` makes them: P is 1.
            ids = g.op("Unsqueeze", g.input("target_ids", [ROWS, "targets"]), [1])
            best = g.op("GatherElements", chances, ids, axis=2)
        else:
            known = g.op("Slice", chances, [0], [self.tokenizer.vocab_size], [2])
            best, ids = g.ops("TopK", known, [options["top_k"]], outputs=2, axis=2)
        g.output("scores", best, [ROWS, "positions", "tokens"])
        g.output("ids", ids, [ROWS, "positions", "tokens"], np.int64)

    def results(self, facts: list[_Asked], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        top_k = min(options["top_k"], self.tokenizer.vocab_size)
        ends = np.cumsum([0, *(len(one.masks) for one in facts)])
        return [
            self._describe(one, outputs[begin:end], top_k)
            for one, (begin, end) in zip(facts, pairwise(ends), strict=True)
        ]

    def _cut_at(self, tokenizer_kwargs: Mapping[str, Any]) -> int | None:
        """The length to truncate to, or None. `max_length` alone turns truncation on, as in transformers."""
        max_length = tokenizer_kwargs.get("max_length")
        check_max_length(max_length, self.tokenizer.special_tokens_added(pair=False))
        if not is_cut(tokenizer_kwargs.get("truncation", self._truncation or max_length is not None)):
            return None
        return min(max_length or self.longest, self.longest)

    def _ids(self, text: str, number: int, cut_at: int | None) -> np.ndarray:
        """The checked text's ids, int32 [L], with [CLS] and [SEP]."""
        check_text(text, f"text {number + 1}")
        (ids,) = self.tokenizer([text], truncation="none", max_length=ANY_LENGTH)["input_ids"]
        mask = self.tokenizer.mask_token
        shown = f"text {number + 1} ({shortened(text)})"
        masks = int((ids == self.tokenizer.mask_token_id).sum())
        if not masks:
            foreign = next((f", not {token}" for token in _MASK_TOKENS if token != mask and token in text), "")
            raise UserError(f"{shown} has no {mask}: put one in place of a word{foreign}")
        if len(ids) <= (cut_at or self.longest):
            return ids
        if cut_at is None:
            raise UserError(
                f"{shown} has {len(ids)} tokens; the model takes at most {self.longest}: shorten it, "
                "or say truncation=True"
            )
        (ids,) = self.tokenizer([text], truncation="longest_first", max_length=cut_at)["input_ids"]
        if int((ids == self.tokenizer.mask_token_id).sum()) < masks:
            raise UserError(f"{shown}: truncating it to {cut_at} tokens removes a {mask}; shorten it")
        return ids

    def _wanted(self, targets: list[str] | None) -> np.ndarray | None:
        """The ids of the targets, int32 [k], without duplicates."""
        if targets is None:
            return None
        if not targets:
            raise UserError("targets: found an empty list; expected at least one token, or None for all tokens")
        ids = [id for target in targets for id in self.tokenizer.tokens_to_ids(self._pieces_of(target)[:1])]
        if not ids:
            raise UserError(
                f"targets: found no token in {', '.join(map(repr, targets))}; expected tokens of the vocabulary"
            )
        return np.array(list(dict.fromkeys(ids)), np.int32)

    def _pieces_of(self, target: Any) -> list[str]:
        """[target] if it is a token of the vocabulary, else the pieces that the tokenizer splits it into."""
        check_text(target, "targets")
        try:
            self.tokenizer.tokens_to_ids([target])
        except UserError:
            return self.tokenizer.tokenize(target)
        return [target]

    def _warn_of_other_tokens(self, targets: list[str]) -> None:
        for target in targets:
            pieces = self._pieces_of(target)
            if len(pieces) != 1 or pieces[0] == self.tokenizer.unk_token:
                taken = f"using {pieces[0]!r} instead" if pieces else "leaving it out"
                logger.warning("targets: %r is not a token of the vocabulary; %s", target, taken)

    def _describe(self, asked: _Asked, outputs: list[tuple[np.ndarray, ...]], top_k: int) -> Any:
        """The dicts of one text, from the outputs for each of its masks."""
        single = len(asked.masks) == 1
        answers = []
        for position, ((scores_k,), (tokens_k,)) in zip(asked.masks, outputs, strict=True):
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


def _listed(targets: Any) -> list[str] | None:
    """The targets as a list, which can be read more than once."""
    if targets is None:
        return None
    return [targets] if isinstance(targets, str) else items_of(targets, "targets: a token or a list of tokens")
