"""`pipeline(task, source)(texts)` turns texts into plain Python results, under transformers' keys."""

import os
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.fill_mask import FillMask
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.inference.tasks.multiple_choice import MultipleChoice
from bert_jax.inference.tasks.next_sentence import NextSentence
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from bert_jax.inference.tasks.summarise import Summarise
from bert_jax.inference.tasks.text_classification import TextClassification
from bert_jax.inference.tasks.token_classification import TokenClassification

TASKS: dict[str, Callable[..., Any]] = {
    "embed": TextEmbedding,
    "fill-mask": FillMask,
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "likelihood": Likelihood,
    "next-sentence": NextSentence,
    "question-answering": QuestionAnswering,
    "summarise": Summarise,
    "multiple-choice": MultipleChoice,
}


def pipeline(task: str, source: "str | os.PathLike[str] | Loaded", **options: Any) -> Callable[..., Any]:
    """Loads a model for a task. A shape is compiled when it first occurs.

    Args:
        task: a key of `TASKS`.
        source: a run directory, a Hugging Face folder, a hub id, or what `load` returned.
        **options: the options of the task's class.

    Returns:
        `predict(texts, ...)`: returns one result for a text and a list for a list; see the class's `__call__`.

    Raises:
        FileNotFoundError, UserError: as `load`.
        UserError: the task is unknown, or the model does not have the task's head.
    """
    if task not in TASKS:
        raise UserError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    return TASKS[task](source, **options)
