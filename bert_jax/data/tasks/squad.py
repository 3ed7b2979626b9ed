"""Questions about passages, in the JSON of SQuAD 1.1 and 2.0 (KorQuAD and XQuAD have the same)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.tables import read_json
from bert_jax.errors import UserError


class Answer(NamedTuple):
    """A slice of the passage: its text, and the position of its first character."""

    text: str
    start: int


class PassageQuestion(NamedTuple):
    """A question, its passage, and the gold answers: none where it has none, or where the file does not say."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


def read_squad(path: Path) -> Iterator[PassageQuestion]:
    """The questions in the order of the file.

    Raises:
        UserError: another form, an id twice, or an answer that is not in its passage where the file says it is.
    """
    seen: set[str] = set()
    articles = read_json(path)
    articles = articles.get("data") if isinstance(articles, dict) else articles
    if not isinstance(articles, list):
        raise UserError(f'{path}: not in SQuAD\'s form; expected an object with a list "data"')
    for number, article in enumerate(articles, 1):
        try:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    found = _question(qa, paragraph["context"], path)
                    if found.id in seen:
                        raise UserError(f"{path}: the question id {found.id} is there twice")
                    seen.add(found.id)
                    yield found
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}, article {number}: not in SQuAD's form, paragraphs > context and qas > id, question, answers "
                f"({error!r})"
            ) from None


def _question(qa: dict[str, Any], context: str, path: Path) -> PassageQuestion:
    id = str(qa["id"])
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in qa.get("answers", ()))
    for text, start in answers:
        if context[start : start + len(text)] != text:
            found = context[start : start + len(text)]
            raise UserError(
                f"{path}, question {id}: the answer {text!r} is not at character {start} of its context, where "
                f"{found!r} stands"
            )
    return PassageQuestion(id, qa["question"], context, answers, bool(qa.get("is_impossible", False)))
