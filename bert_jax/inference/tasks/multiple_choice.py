"""multiple-choice: picks the most probable of several endings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from bert_jax.data.tasks.multiple_choice import Choices
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.task_model import EncodedItems, Results, Running, TaskModel, softmax
from bert_jax.inference.tasks.task_source import check_max_length, check_text, items_of, opened, settings_of_run

Question = Choices | Mapping[str, Any]


class MultipleChoice(TaskModel):
    """Picks the most probable choice of each question.

    Each choice is a row of its own, [CLS] text [SEP] choice [SEP], so questions can have any number of choices without
    further compilations. If a row is too long for the model, its longer part is truncated at the end; a warning gives
    the number of such rows.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "multiple-choice").
        max_length: truncate rows to so many tokens, if the model does not require fewer; None: to those of the
            fine-tuning run, or to what the model takes.
        **running: batch_size (which counts choices, not questions), dtype, cache, devices, runtime; see `TaskModel`.
    """

    task = "multiple-choice"
    choices = 1

    def __init__(
        self, source: "str | os.PathLike[str] | Loaded", *, max_length: int | None = None, **running: Unpack[Running]
    ):
        found = opened(source)
        super().__init__(found, **running)
        self.settle(max_length=settings_of_run(found).get("max_length") if max_length is None else max_length)

    def __call__(self, questions: Question | Sequence[Question]) -> Any:
        """Picks a choice for each question.

        Args:
            questions: {"text": ..., "choices": [...]}, or `Choices` from the readers of
                `data/tasks/multiple_choice.py`, or a list of these.

        Returns:
            For one question a dict: `choice` (int, from 0), `score` (float, its probability), `scores` (the
            probabilities of all choices, which sum to 1). For a list of questions a list of these. (transformers has no
            such pipeline.)

        Raises:
            UserError: a question is not of that form, or has no choices.
        """
        single = isinstance(questions, Choices | Mapping)
        results = Results(
            self.stream([questions] if single else items_of(questions, "a question or a list of questions"))
        )
        return results[0] if single else results

    def check_options(self, *, max_length: int | None) -> None:
        check_max_length(max_length, self.tokenizer.special_tokens_added(pair=True))

    def encode(self, items: list[Question], first: int, **options: Any) -> EncodedItems:
        both = [_rows_of(question, f"question {first + number + 1}") for number, question in enumerate(items)]
        pairs = [pair for firsts, seconds in both for pair in zip(firsts, seconds, strict=True)]
        encoded, truncated = self.encode_pairs(pairs, options["max_length"])
        return EncodedItems([len(firsts) for firsts, _ in both], replace(encoded, choices=self.choices), truncated)

    def results(self, facts: list[int], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[dict[str, Any]]:
        logits = np.array([logits_1[0] for (logits_1,) in outputs])
        cuts = np.cumsum([0, *facts])
        return [_describe(softmax(logits[begin:end])) for begin, end in pairwise(cuts)]


def _describe(scores: np.ndarray) -> dict[str, Any]:
    best = int(scores.argmax())
    return {"choice": best, "score": float(scores[best]), "scores": scores.tolist()}


def _rows_of(question: Any, name: str) -> tuple[Sequence[str], Sequence[str]]:
    """The first texts and the second texts of the choices."""
    if isinstance(question, Choices):
        first, second = question.first, question.second
        for number, text in enumerate(first, 1):
            check_text(text, f"{name}, first text of choice {number}")
    else:
        if (
            not isinstance(question, Mapping)
            or not {"text", "choices"} <= question.keys()
            or not _is_list(question["choices"])
        ):
            raise UserError(f'{name}: expected {{"text": ..., "choices": [...]}}, found {question!r:.60}')
        second = question["choices"]
        first = [check_text(question["text"], f"{name}, text")] * len(second)
    for number, text in enumerate(second, 1):
        check_text(text, f"{name}, choice {number}")
    if not second:
        raise UserError(f"{name}: has no choices; expected at least one")
    return first, second


def _is_list(choices: Any) -> bool:
    return isinstance(choices, Sequence) and not isinstance(choices, str)
