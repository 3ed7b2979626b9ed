"""text-classification: the classes of a text or of a pair of texts, under transformers' keys."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.errors import UserError
from bert_jax.inference.checks import check_text
from bert_jax.inference.shown import Results, first_of
from bert_jax.inference.task_model import Running, TaskModel, softmax
from bert_jax.load import Loaded

FUNCTIONS = ("softmax", "sigmoid", "none")
AS_SET: Any = ...  # what a call says of top_k where it says nothing; None is all of them
_ALL = 1 << 30  # labels

Text = str | Mapping[str, str]


class TextClassification(TaskModel):
    """The labels of texts with their scores.

    A text that is too long for the model is cut at the end, of a pair the longer first, as in fine-tuning; a warning
    says how many were.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "sequence-classification").
        function_to_apply: what makes scores of logits, "softmax", "sigmoid" or "none". None: by the config's
            problem_type, "none" for regression, "sigmoid" for several labels at once, else "softmax". Where the config
            says nothing and there is one label it is a regression, as the loss takes it (transformers' pipeline
            applies "sigmoid" then).
        top_k: how many labels to give, the best first; None: all.
        **running: batch_size, dtype, cache, devices, as `TaskModel`.
    """

    task = "text-classification"

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        function_to_apply: str | None = None,
        top_k: int | None = 1,
        **running: Unpack[Running],
    ):
        super().__init__(source, **running)
        self.settle(top_k=_number(top_k), function_to_apply=function_to_apply or _function_of(self.config))

    def __call__(
        self, texts: Text | Sequence[Text], top_k: int | None = AS_SET, *, function_to_apply: str | None = None
    ) -> list[Any]:
        """Classify texts.

        Args:
            texts: a text, or a pair as {"text": ..., "text_pair": ...}, or a list of them.
            top_k, function_to_apply: for this call, in the place of the class's own.

        Returns:
            For one text a list of `top_k` dicts: `label` (str), `score` (float). For a list of texts a list: of dicts
            if `top_k` is 1, else of lists.
        """
        single = isinstance(texts, str | Mapping)
        options: dict[str, Any] = {"top_k": _number(top_k), "function_to_apply": function_to_apply}
        results = Results(self.stream([texts] if single else list(texts), **options))
        return first_of(results) if single and isinstance(results[0], list) else results

    def check_options(self, *, top_k: int, function_to_apply: str) -> None:
        if function_to_apply not in FUNCTIONS:
            raise UserError(f"function_to_apply={function_to_apply!r}: expected one of {', '.join(FUNCTIONS)}")
        if top_k < 1:
            raise UserError(f"top_k={top_k}: expected at least 1")

    def encode(self, items: list[Text], first: int, **options: Any) -> tuple[list[Text], Encoded]:
        return items, self.encode_pairs([_both(text, first + number) for number, text in enumerate(items)])

    def results(self, facts: list[Text], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        rows = [self._describe(logits_C, **options) for (logits_C,) in outputs]
        return [row[0] for row in rows] if options["top_k"] == 1 else rows

    def _describe(self, logits_C: np.ndarray, top_k: int, function_to_apply: str) -> list[dict[str, Any]]:
        scores_C = logits_C.astype(np.float64)
        if function_to_apply == "softmax":
            scores_C = softmax(logits_C)
        elif function_to_apply == "sigmoid":
            scores_C = np.exp(-np.logaddexp(0, -scores_C))
        best = np.argsort(-scores_C, kind="stable")[:top_k]
        return [{"label": self.config.labels[i], "score": float(scores_C[i])} for i in best]


def _number(top_k: int | None) -> int | None:
    """What `settle` and `stream` make of it: None is as settled."""
    return None if top_k is AS_SET else _ALL if top_k is None else top_k


def _function_of(config: BertConfig) -> str:
    problem = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    by_problem = {"regression": "none", "multi_label_classification": "sigmoid"}
    return by_problem.get(problem, "softmax" if config.num_labels > 1 else "sigmoid")


def _both(text: Text, number: int) -> tuple[str, str | None]:
    if isinstance(text, str):
        return check_text(text, f"text {number + 1}"), None
    if not isinstance(text, Mapping) or "text" not in text or set(text) - {"text", "text_pair"}:
        raise UserError(f'text {number + 1}: expected a text, or {{"text": ..., "text_pair": ...}}, found {text!r:.60}')
    pair = text.get("text_pair")
    return check_text(text["text"], f"text {number + 1}"), pair and check_text(pair, f"text_pair {number + 1}")
