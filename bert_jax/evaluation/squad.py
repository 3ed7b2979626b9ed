"""The scores of SQuAD 1.1, SQuAD 2.0 and KorQuAD, by the rules of the official scripts.

SQuAD: evaluate-v1.1.py (P. Rajpurkar, S. Jiang) and evaluate-v2.0.py, https://rajpurkar.github.io/SQuAD-explorer/.

KorQuAD: evaluate-v1.0.py, https://korquad.github.io/KorQuad%201.0/. It compares characters: Korean particles are
part of the word, so an answer with a different particle shares no word with the gold answer, but most characters.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bert_jax.data.tasks.squad_form import FORM, answers_of, questions_of
from bert_jax.errors import UserError, quoted

_ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


Comparison = Callable[[str, str], float]
"""Compares an answer with a gold one: from 0, nothing in common, to 1."""


class Question(NamedTuple):
    """A question of a dataset: its id and the texts of its gold answers (none if it is unanswerable)."""

    id: str
    answers: tuple[str, ...]


def questions(dataset: Any, *, source: str = "dataset") -> Iterator[Question]:
    """Yields the questions of a SQuAD file, in order.

    Args:
        dataset: the parsed JSON: the object with `data`, or the list in it; or a list of Hugging Face's rows.
        source: the file's name for messages.

    Raises:
        UserError: the JSON does not have SQuAD's structure.
    """
    articles = dataset.get("data") if isinstance(dataset, dict) else dataset
    try:
        for article in articles:  # pyrefly: ignore[not-iterable]
            for qa, _ in questions_of(article):
                id = str(qa["id"])
                texts = tuple(answer["text"] for answer in answers_of(qa, f"{source}, question {quoted(id)}"))
                if not all(isinstance(text, str) for text in texts):
                    raise TypeError("an answer is not a text")
                yield Question(id, texts)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source}: not SQuAD's format; expected data > {FORM} ({quoted(str(error))})") from None


def normalise(text: str) -> str:
    """Lower-cases, removes ASCII punctuation, then the words a, an and the, and leaves single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """1 if the normalised texts are equal, else 0."""
    return float(normalise(answer) == normalise(gold))


def token_f1(answer: str, gold: str, *, empty_rule: bool = True) -> float:
    """F1 of the two bags of words after `normalise`.

    Args:
        answer, gold: texts.
        empty_rule: version 2.0's rule: if one side has no words, the score is 1 if the other has none either, else 0.
            Version 1.1 has no such rule: the score is 0 if no word is in both.
    """
    found, right = normalise(answer).split(), normalise(gold).split()
    if empty_rule and not (found and right):
        return float(found == right)
    return overlap_f1(found, right)


def overlap_f1(found: Sequence[str], right: Sequence[str]) -> float:
    """F1 of two bags of words or characters; 0 if they have none in common."""
    common = (Counter(found) & Counter(right)).total()
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)


def squad1(gold: Iterable[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """exact_match and f1 in percent.

    Each question scores its best over the gold answers; a question without a prediction scores 0.

    Raises:
        UserError: there are no questions, or a question has no gold answer.
    """
    return mean_of_best(gold, predictions, exact_match, partial(token_f1, empty_rule=False))


def mean_of_best(
    gold: Iterable[Question],
    predictions: Mapping[str, str],
    exact_match: Comparison,
    f1: Comparison,
) -> dict[str, float]:
    """Version 1.1's scores as in `squad1`, with the given `exact_match(answer, gold)` and `f1(answer, gold)`."""
    total, exact, overlap = 0, 0.0, 0.0
    for question in gold:
        total += 1
        if not question.answers:
            raise UserError(f"question {quoted(question.id)} has no gold answer; only squad2 allows that")
        if question.id in predictions:
            answer = predictions[question.id]
            exact += max(exact_match(answer, right) for right in question.answers)
            overlap += max(f1(answer, right) for right in question.answers)
    if not total:
        raise UserError("there are no questions to score")
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * overlap / total}


def squad2(
    gold: Iterable[Question],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    *,
    exact_match: Comparison = exact_match,
    f1: Comparison = token_f1,
) -> dict[str, float]:
    """The scores of evaluate-v2.0.py under its own keys, in its order.

    Args:
        gold: all questions.
        predictions: id -> answer, "" for no answer. A question without a prediction is not counted in the total, as in
            the script.
        no_answer_scores: id -> the model's confidence that there is no answer, on any scale (the script calls it
            na_prob). With these the function also finds the best thresholds.
        threshold: an answer counts as "" if its no-answer score is above this. The script's default is 1.0, for
            probabilities.
        exact_match, f1: compare an answer and a gold one, "" for none; the script's, unless the set has its own.

    Returns:
        exact, f1, total; HasAns_… and NoAns_… for the questions with and without an answer, if there are any; with
        `no_answer_scores` also best_exact, best_exact_thresh, best_f1, best_f1_thresh. All are percentages except the
        totals and thresholds.

    Raises:
        UserError: no question has a prediction, or a question with a prediction has no no-answer score.
    """
    questions = list(gold)
    answered = {question.id: bool(question.answers) for question in questions}
    exact, overlap = _raw_scores(questions, predictions, exact_match, f1)
    if not exact:
        raise UserError("no question has a prediction, so there is nothing to score")
    scores = dict.fromkeys(exact, 0.0) if no_answer_scores is None else no_answer_scores
    if lacking := [id for id in exact if id not in scores]:
        raise UserError(f"question {lacking[0]} has a prediction but no no-answer score ({len(lacking)} in all)")
    applied = [
        {id: float(not answered[id]) if scores[id] > threshold else value for id, value in raw.items()}
        for raw in (exact, overlap)
    ]
    result = _means(applied[0], applied[1], list(exact))
    for name, there in (("HasAns", True), ("NoAns", False)):
        if ids := [id for id in exact if answered[id] is there]:
            result |= {f"{name}_{key}": value for key, value in _means(applied[0], applied[1], ids).items()}
    if no_answer_scores is not None:
        for name, raw in (("exact", exact), ("f1", overlap)):
            best, at = _best_threshold(predictions, raw, no_answer_scores, answered)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def _raw_scores(
    questions: Sequence[Question], predictions: Mapping[str, str], exact_match: Comparison, f1: Comparison
) -> tuple[dict[str, float], dict[str, float]]:
    exact, overlap = {}, {}
    for question in questions:
        if question.id in predictions:
            answer = predictions[question.id]
            # The gold answers that are not empty after normalisation.
            right = [text for text in question.answers if not exact_match(text, "")] or [""]
            exact[question.id] = max(exact_match(answer, text) for text in right)
            overlap[question.id] = max(f1(answer, text) for text in right)
    return exact, overlap


def _means(exact: Mapping[str, float], f1: Mapping[str, float], ids: Sequence[str]) -> dict[str, float]:
    return {
        "exact": 100.0 * sum(exact[id] for id in ids) / len(ids),
        "f1": 100.0 * sum(f1[id] for id in ids) / len(ids),
        "total": len(ids),
    }


def _best_threshold(
    predictions: Mapping[str, str],
    raw: Mapping[str, float],
    no_answer_scores: Mapping[str, float],
    answered: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score, in percent, and its threshold: the highest no-answer score at which questions are answered.

    The script's search: start with no question answered, then answer one more at a time in the order of rising
    no-answer scores (for ties, the order of their file). Of equal scores the first one counts.
    """
    current = best = float(sum(not there for there in answered.values()))
    threshold = 0.0
    for id in sorted(no_answer_scores, key=lambda id: no_answer_scores[id]):
        if id not in raw:
            continue
        current += raw[id] if answered[id] else -1.0 if predictions[id] else 0.0
        if current > best:
            best, threshold = current, no_answer_scores[id]
    return 100.0 * best / len(raw), threshold


_QUOTES = str.maketrans("'\"《》<>〈〉()‘’", " " * 12)


def korquad(gold: Iterable[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """KorQuAD's exact_match and f1 in percent: `squad1`, with errors and all, but with KorQuAD's two rules."""
    return mean_of_best(gold, predictions, exact_match_of_words, character_f1)


def exact_match_of_words(answer: str, gold: str) -> float:
    """1 if the words of both are equal after KorQuAD's normalisation, else 0."""
    return float(_words(answer) == _words(gold))


def character_f1(answer: str, gold: str, *, empty_rule: bool = False) -> float:
    """F1 of the two bags of characters after KorQuAD's normalisation, without spaces.

    Args:
        answer, gold: texts.
        empty_rule: as in `token_f1`; for sets with questions that have no answer. KorQuAD has no such rule: the score
            is 0 if no character is in both.
    """
    found, right = ("".join(_words(text)) for text in (answer, gold))
    if empty_rule and not (found and right):
        return float(found == right)
    return overlap_f1(found, right)


def _words(text: str) -> list[str]:
    """KorQuAD's normalisation: quotes and brackets become spaces; then lower case, without ASCII punctuation."""
    return text.translate(_QUOTES).lower().translate(PUNCTUATION).split()
