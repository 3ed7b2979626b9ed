"""Questions in SQuAD's JSON: articles of paragraphs, or Hugging Face's rows, each with one question and its passage."""

from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError

FORM = "paragraphs > context and qas > id, question, answers; or rows of id, question, context, answers"

_NAMES = {type(None): "null", str: "a text", bool: "true or false"}


def questions_of(article: Any) -> Iterator[tuple[Any, Any]]:
    """(question, passage) of each question of an article, or of a row, which has no paragraphs but its own context.

    Raises:
        KeyError, TypeError, AttributeError: it has neither form.
    """
    if "paragraphs" not in article and "context" in article:
        yield article, article["context"]
        return
    for paragraph in article["paragraphs"]:
        for qa in paragraph["qas"]:
            yield qa, paragraph.get("context")  # which scoring does not need


def answers_of(qa: Any, where: str) -> list[dict[str, Any]]:
    """The answers of a question, each with its text and (unchecked) answer_start; [] if it says nothing of them.

    Args:
        qa: SQuAD's `answers` is a list of objects; that of Hugging Face's rows is one object with a list for each name.
        where: the file and the question, for messages.

    Raises:
        UserError: `answers` has neither form.
    """
    answers = qa.get("answers", [])
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not (isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)):
            raise UserError(
                f"{where}: 'answers' is an object, as in Hugging Face's datasets; expected two lists of one length in "
                "it, text and answer_start"
            )
        return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        found = "a list of other values" if isinstance(answers, list) else _NAMES.get(type(answers), "a number")
        raise UserError(
            f"{where}: 'answers' is {found}; expected a list of objects, each with text and answer_start, and [] where "
            "the question has no answer"
        )
    return answers
