"""text-classification: the labels of a text or of a pair of texts, under transformers' keys."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.task_model import EncodedItems, Results, Running, TaskModel, first_of, softmax
from bert_jax.inference.tasks.task_source import (
    check_count,
    check_max_length,
    check_text,
    check_word,
    is_cut,
    items_of,
    opened,
    settings_of_run,
    shortened,
)

FUNCTIONS = ("softmax", "sigmoid", "none")
NOT_SAID: Any = ...  # the default of top_k, whose None means all labels
_ALL = 1 << 30  # more labels than any model has

Text = str | Mapping[str, str]


class TextClassification(TaskModel):
    """Labels texts and gives the scores.

    Texts that are too long for the model are truncated at the end, as in fine-tuning (for a pair, the longer text); a
    warning gives their number. Options and results are those of transformers' pipeline.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "sequence-classification").
        function_to_apply: how logits become scores: "softmax", "sigmoid" or "none", in upper or lower case. None: by
            the config's problem_type, "none" for regression, "sigmoid" for several labels per text, else "softmax".
            Without a problem_type, one label means regression, as in the loss (transformers' pipeline then applies
            "sigmoid").
        top_k: the number of labels in the list, best first; None: all. If `top_k` is given neither here nor in a call,
            the result is the best label without a list.
        truncation: False: a text that is too long is an error.
        max_length: truncate texts to so many tokens, if the model does not require fewer; None: to those of the
            fine-tuning run, or to what the model takes.
        padding: accepted as in transformers, but without effect: rows are always padded to a compiled length.
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.
    """

    task = "text-classification"

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        function_to_apply: str | None = None,
        top_k: int | None = NOT_SAID,
        truncation: bool | str = True,
        max_length: int | None = None,
        padding: bool | str | None = None,
        **running: Unpack[Running],
    ):
        found = opened(source)
        super().__init__(found, **running)
        self.settle(
            top_k=_ALL if top_k is None else top_k,
            function_to_apply=function_to_apply or _function_of(self.config),
            truncation=truncation,
            max_length=settings_of_run(found).get("max_length") if max_length is None else max_length,
        )

    def __call__(
        self,
        texts: Text | Sequence[Text],
        top_k: int | None = NOT_SAID,
        *,
        function_to_apply: str | None = None,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        padding: bool | str | None = None,
    ) -> Any:
        """Labels texts.

        Args:
            texts: a text, or a pair as {"text": ..., "text_pair": ...}, or a list of them.
            top_k, function_to_apply, truncation, max_length, padding: override the class's options for this call.

        Returns:
            For a text or a pair: a list of `top_k` dicts with `label` (str) and `score` (float); if `top_k` was never
            given, the best dict without a list. For a list of texts, a list of these. Like transformers, a call with
            one text (not a pair) and without `top_k` returns a list of one.

        Raises:
            UserError: a text is too long for the model and truncation=False.
        """
        single = isinstance(texts, str | Mapping)
        options: dict[str, Any] = {
            "top_k": None if top_k is NOT_SAID else _ALL if top_k is None else top_k,
            "function_to_apply": function_to_apply,
            "truncation": truncation,
            "max_length": max_length,
        }
        results = Results(self.stream([texts] if single else items_of(texts), **options))
        in_list = isinstance(texts, str) and top_k is NOT_SAID
        return first_of(results) if single and not in_list else results

    def check_options(
        self, *, top_k: int, function_to_apply: str, truncation: bool | str, max_length: int | None
    ) -> None:
        is_cut(truncation)
        check_max_length(max_length, self.tokenizer.special_tokens_added(pair=True))
        check_word("function_to_apply", function_to_apply, FUNCTIONS)
        if top_k is not NOT_SAID:
            check_count("top_k", top_k)

    def encode(self, items: list[Text], first: int, **options: Any) -> EncodedItems:
        pairs = [_both(text, first + number) for number, text in enumerate(items)]
        if not is_cut(options["truncation"]):
            self._refuse_long(pairs, first, options["max_length"])
        return EncodedItems(items, *self.encode_pairs(pairs, options["max_length"]))

    def results(self, facts: list[Text], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        top_k, function = options["top_k"], options["function_to_apply"].lower()
        if top_k is NOT_SAID:
            return [self._describe(logits_C, 1, function)[0] for (logits_C,) in outputs]
        return [self._describe(logits_C, top_k, function) for (logits_C,) in outputs]

    def _refuse_long(self, pairs: list[tuple[str, str | None]], first: int, max_length: int | None) -> None:
        limited = max_length is not None and max_length < self.longest
        longest, limit = (max_length, "max_length is") if limited else (self.longest, "the model takes at most")
        for number, (text, pair) in enumerate(pairs, first + 1):
            lengths = self.tokenizer.encode_flat([text] if pair is None else [text, pair])[1]
            total = int(lengths.sum()) + self.tokenizer.special_tokens_added(pair=pair is not None)
            if total > longest:
                name = f"text {number} ({shortened(text)})"
                raise UserError(f"{name} has {total} tokens; {limit} {longest}: shorten it, or say truncation=True")

    def _describe(self, logits_C: np.ndarray, top_k: int, function_to_apply: str) -> list[dict[str, Any]]:
        scores_C = logits_C.astype(np.float64)
        if function_to_apply == "softmax":
            scores_C = softmax(logits_C)
        elif function_to_apply == "sigmoid":
            scores_C = np.exp(-np.logaddexp(0, -scores_C))
        best = np.argsort(-scores_C, kind="stable")[:top_k]
        return [{"label": self.config.labels[i], "score": float(scores_C[i])} for i in best]


def _function_of(config: BertConfig) -> str:
    problem = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    by_problem = {"regression": "none", "multi_label_classification": "sigmoid"}
    return by_problem.get(problem, "softmax" if config.num_labels > 1 else "sigmoid")


def _both(text: Text, number: int) -> tuple[str, str | None]:
    if isinstance(text, str):
        return check_text(text, f"text {number + 1}"), None
    if not isinstance(text, Mapping) or "text" not in text or set(text) - {"text", "text_pair"}:
        raise UserError(
            f'text {number + 1}: expected a string or {{"text": ..., "text_pair": ...}}, found {text!r:.60}'
        )
    first, pair = check_text(text["text"], f"text {number + 1}"), text.get("text_pair")
    return first, None if pair is None else check_text(pair, f"text_pair {number + 1}")
