"""KorQuAD 1.0's scores by the rules of its official script: SQuAD 1.1's, but over characters and without articles.

The script: evaluate-v1.0.py, https://korquad.github.io/KorQuad%201.0/. Korean words carry their particles, so that an
answer with another one has no word of the right one, but most of its characters.
"""

from collections.abc import Iterable, Mapping

from bert_jax.metrics.squad import PUNCTUATION, Question, mean_of_best, overlap_f1

_QUOTES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def korquad(gold: Iterable[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """exact_match and f1 in percent, the best over a question's answers; a question without a prediction scores 0.

    Raises:
        UserError: no questions, or one without an answer.
    """
    return mean_of_best(gold, predictions, exact_match_of_words, character_f1)


def exact_match_of_words(answer: str, gold: str) -> float:
    """1 where both have the same words once normalised, else 0."""
    return float(_words(answer) == _words(gold))


def character_f1(answer: str, gold: str) -> float:
    """F1 over the bags of characters of both, normalised, blanks aside; 0 where they have none in common."""
    return overlap_f1("".join(_words(answer)), "".join(_words(gold)))


def _words(text: str) -> list[str]:
    """Quotes and brackets become blanks; then lower case, without ASCII punctuation."""
    return text.translate(_QUOTES).lower().translate(PUNCTUATION).split()
