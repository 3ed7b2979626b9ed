"""Questions about passages: the JSON of SQuAD 1.1 and 2.0, rows of a model, and answers from its logits.

After google-research/bert's run_squad.py, but with characters instead of its words: each token knows its characters
in the passage, so an answer is always a slice of the passage (as in transformers' run_qa.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.encoded import Encoded, best_windows, default_stride, windows
from bert_jax.data.tasks.squad_form import FORM, answers_of, questions_of
from bert_jax.data.tasks.tables import ONE_PER_LINE, json_of_text, json_rows
from bert_jax.data.tokenizer.layout import Segments, assemble
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, quoted, valid_unicode


class Answer(NamedTuple):
    """A slice of the passage: its text, and the position of its first character."""

    text: str
    start: int


class PassageQuestion(NamedTuple):
    """A question, its passage, and the gold answers: empty if it has none or the file gives none."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


def read_squad(path: Path) -> Iterator[PassageQuestion]:
    """The questions in the order of the file, which has SQuAD's form, or Hugging Face's: rows in a list, or in .jsonl.

    Raises:
        UserError: another format, a duplicate id, or an answer that is not in its passage where the file says.
    """
    seen: set[str] = set()
    for where, article in _articles(path):
        try:
            for qa, context in questions_of(article):
                found = _question(qa, context, path)
                if found.id in seen:
                    raise UserError(f"{path}: the question id {quoted(found.id)} is there twice")
                seen.add(found.id)
                yield found
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, {where}: not in SQuAD's form, {FORM} ({quoted(str(error))})") from None


def _articles(path: Path) -> Iterator[tuple[str, Any]]:
    """The place in the file and the value of each article or row."""
    if ".jsonl" in path.suffixes:
        yield from ((f"line {number}", row) for number, row in json_rows(path))
        return
    articles = json_of_text(path, ONE_PER_LINE)
    articles = articles.get("data") if isinstance(articles, dict) else articles
    if not isinstance(articles, list):
        raise UserError(f'{path}: not in SQuAD\'s form; expected an object with a list "data"')
    yield from ((f"article {number}", article) for number, article in enumerate(articles, 1))


def _question(qa: Any, context: Any, path: Path) -> PassageQuestion:
    id = valid_unicode(str(qa["id"]), f"{path}: the question id {quoted(qa['id'])}")
    given = answers_of(qa, f"{path}, question {quoted(id)}")
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in given)
    if not all(isinstance(text, str) for text in (context, qa["question"], *(text for text, _ in answers))):
        raise TypeError("the context, the question or an answer is not a text")
    if not all(type(start) is int and start >= 0 for _, start in answers):
        raise TypeError("an answer_start is not a whole number from 0 up")
    for name, text in (("question", qa["question"]), ("context", context)):
        valid_unicode(text, f"{path}, question {quoted(id)}: its {name}")
    for text, start in answers:
        if context[start : start + len(text)] != text:
            found = context[start : start + len(text)]
            raise UserError(
                f"{path}, question {quoted(id)}: the answer {quoted(text)} is not at character {start} of its context, "
                f"where {quoted(found)} stands"
            )
    return PassageQuestion(id, qa["question"], context, answers, bool(qa.get("is_impossible", False)))


_AT_ONCE = 256  # texts


class Passages(NamedTuple):
    """Windows [W, L] over passages, each with its question before it.

    Attributes:
        rows: input_ids, token_type_ids, attention_mask, int32 [W, L].
        offsets: int32 [W, L, 2]: where in the passage a token begins and ends, in characters.
        in_passage: bool [W, L]: whether a token belongs to the passage.
        is_best: bool [W, L]: whether it does, and this window gives it more context than any other.
        question: int32 [W]: the window's question; windows of one question are consecutive.
        is_cut: bool [Q]: whether a question had more than `max_question_length` tokens.
    """

    rows: dict[str, np.ndarray]
    offsets: np.ndarray
    in_passage: np.ndarray
    is_best: np.ndarray
    question: np.ndarray
    is_cut: np.ndarray


def encode_passages(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    max_length: int = 384,
    stride: int | None = None,
    overlap: int | None = None,
    max_question_length: int = 64,
    source: str = "the questions",
) -> Passages:
    """Rows [CLS] question [SEP] window of the passage [SEP], padded to `max_length`.

    Args:
        tokenizer: the model's.
        questions, contexts: equally many.
        max_length: tokens per row, L.
        stride: tokens of the passage from the beginning of one window to that of the next; more than a window counts
            as one; None: `default_stride`.
        overlap: instead of `stride`, the number of tokens that two windows share: what transformers calls a stride.
        max_question_length: a longer question is truncated to this number of tokens.
        source: the file of the questions, for messages.

    Raises:
        UserError: no questions, a question that leaves no room for its passage, a stride below 1, or an overlap of
            whole windows.
    """
    if not len(questions):
        raise UserError("no questions, so there is nothing to encode")
    asked, shown = _tokens(tokenizer, questions), _tokens(tokenizer, contexts)
    added = tokenizer.special_tokens_added(pair=True)
    stride = default_stride(max_length) if stride is None else stride
    firsts, seconds, best, owner, cut = [], [], [], [], []
    for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        question_ids, (ids, offsets) = asked[question][0][:max_question_length], shown[context]
        cut.append(len(asked[question][0]) > max_question_length)
        room = max_length - added - len(question_ids)
        if room < 1:
            raise UserError(
                f"{source}: {len(question_ids)} tokens of question {number + 1}, {quoted(question)}, leave no room for "
                f"its passage in a row of {max_length}; allow longer rows (max_length, of a pipeline max_seq_len) or "
                "shorter questions (max_question_length, of a pipeline max_question_len)"
            )
        if overlap is not None and overlap >= room:
            raise UserError(
                f"question {number + 1}: windows that share {overlap} tokens (doc_stride), and have room for {room} of "
                f"its passage; expected at most {room - 1}"
            )
        found = windows(len(ids), room, stride if overlap is None else room - overlap)
        best_of = best_windows(len(ids), found)
        for index, (start, length) in enumerate(found):
            within = slice(start, start + length)
            firsts.append(question_ids)
            seconds.append((ids[within], offsets[within]))
            best.append(best_of[within] == index)
            owner.append(number)
    first = _segments(firsts, [np.zeros((len(ids), 2), np.int32) for ids in firsts])
    second = _segments([ids for ids, _ in seconds], [offsets for _, offsets in seconds])
    kept = np.stack([first.lengths, second.lengths])
    pads = {"input_ids": tokenizer.pad_token_id, "offset_mapping": 0}
    rows = assemble(tokenizer.layouts[1], [first, second], kept, pads, max_length)
    offsets, special = rows.pop("offset_mapping"), rows.pop("special_tokens_mask")
    # The passage is the last segment, so its tokens are the last ones that are not special.
    position = np.cumsum(special == 0, axis=1) - 1 - first.lengths[:, None]
    in_passage = (special == 0) & (position >= 0)
    is_best = np.zeros_like(in_passage)
    is_best[in_passage] = np.concatenate(best)
    return Passages(rows, offsets, in_passage, is_best, np.array(owner, np.int32), np.array(cut))


def without_padding(passages: Passages, pad: int, **targets: np.ndarray) -> Encoded:
    """The rows of the passages end to end; `pad`: the id of [PAD]; `targets`: as in `Encoded`."""
    real, pads = passages.rows["attention_mask"].astype(bool), {"input_ids": pad, "token_type_ids": 0}
    return Encoded({name: passages.rows[name][real] for name in pads}, pads, real.sum(axis=1), targets)


def answer_positions(passages: Passages, answers: Sequence[tuple[int, int] | None]) -> tuple[np.ndarray, np.ndarray]:
    """The first and last token of each window's answer, int32 [W] each; 0 ([CLS]) where not all of it is there.

    Args:
        answers: for each question the characters [begin, end) of its answer in the passage, or None.
    """
    first, last = np.zeros(len(passages.question), np.int32), np.zeros(len(passages.question), np.int32)
    for row, number in enumerate(passages.question):
        answer = answers[number]
        columns = np.flatnonzero(passages.in_passage[row])
        if answer is None or not len(columns):
            continue
        begins, ends = passages.offsets[row, columns].T
        touched = columns[(begins < answer[1]) & (ends > answer[0])]
        whole = begins[0] <= answer[0] and ends[-1] >= answer[1]
        if whole and len(touched):
            first[row], last[row] = touched[0], touched[-1]
    return first, last


def answer_lengths(passages: Passages, answers: Sequence[tuple[int, int] | None]) -> np.ndarray:
    """The number of tokens of each question's answer, also of one that no window shows whole: int64 [Q].

    Args:
        answers: as for `answer_positions`; 0 for None.
    """
    spans_Q2 = np.array([(0, 0) if answer is None else answer for answer in answers], np.int64).reshape(-1, 2)
    begins_W1, ends_W1 = np.split(spans_Q2[passages.question], 2, axis=1)
    touched_WL = (passages.offsets[..., 0] < ends_W1) & (passages.offsets[..., 1] > begins_W1)
    found = np.zeros(len(answers), np.int64)
    np.add.at(found, passages.question, (touched_WL & passages.is_best).sum(axis=1))  # each token is best in one window
    return found


def _tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Text -> ids [T] and offsets [T, 2], without special tokens; a repeated text is encoded once."""
    found = {}
    distinct = list(dict.fromkeys(texts))
    for begin in range(0, len(distinct), _AT_ONCE):
        some = distinct[begin : begin + _AT_ONCE]
        ids, lengths, offsets = tokenizer.encode_flat_with_offsets(some)
        ends = np.cumsum(lengths)[:-1]
        found |= zip(some, zip(np.split(ids, ends), np.split(offsets, ends), strict=True), strict=True)
    return found


def _segments(ids: list[np.ndarray], offsets: list[np.ndarray]) -> Segments:
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return Segments(lengths, {"input_ids": np.concatenate(ids), "offset_mapping": np.concatenate(offsets)})
