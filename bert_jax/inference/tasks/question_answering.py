"""question-answering: finds the answer to a question as a slice of its passage, under transformers' keys."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from bert_jax.data.tasks.encoded import default_stride
from bert_jax.data.tasks.passages import Passages, encode_passages, without_padding
from bert_jax.data.tokenizer.words import words_of
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.formats.source import Source
from bert_jax.inference.tasks.task_model import EncodedItems, Results, Running, TaskModel, first_of, softmax
from bert_jax.inference.tasks.task_source import check_count, check_text, items_of, opened, settings_of_run, shortened

_AT_ONCE = 64  # questions whose windows are in memory together
_LEAST = {"top_k": 1, "max_answer_len": 1, "max_question_len": 1, "max_seq_len": 1, "doc_stride": 0}
Texts = str | Sequence[str]

Question = Mapping[str, str]


class Candidate(NamedTuple):
    """A slice of the passage, characters [start, end); its score, a sum of two logits; its probability in the list."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class Answers(NamedTuple):
    """The n best answers to one question, best first, and the score of "no answer".

    Attributes:
        candidates: answers with different, non-empty texts; none if no window has an allowed slice.
        null_score: the sum of the start and end logits of [CLS], in the window where it is least.
    """

    candidates: tuple[Candidate, ...]
    null_score: float

    @property
    def no_answer_score(self) -> float:
        """`null_score` minus the score of the best answer, run_squad.py's null odds; infinite without an answer."""
        return self.null_score - self.candidates[0].score if self.candidates else np.inf

    def text(self, threshold: float | None = None) -> str:
        """The best answer; "" if there is none or `no_answer_score` is above `threshold` (None: no threshold)."""
        if not self.candidates or (threshold is not None and self.no_answer_score > threshold):
            return ""
        return self.candidates[0].text


class QuestionAnswering(TaskModel):
    """Finds the best answers to questions: run_squad.py's n-best list over overlapping windows of the passage.

    For a fine-tuning run, the defaults of lengths, windows and `null_threshold` are those that its evaluation used, so
    that it gives the same answers here. For any other source they are those of run_squad.py, given below.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "question-answering").
        max_seq_len: tokens of a window with its question, default 384; at most the model's limit.
        stride: tokens from the beginning of a window to that of the next, default a third of `max_seq_len`, at most
            128.
        doc_stride: the number of tokens that two windows share; replaces `stride`.
        max_question_len: truncate questions to so many tokens, default 64; at most half of `max_seq_len`, unless that
            is the fine-tuning run's.
        max_answer_len: the longest answer, in tokens, default 30.
        n_best: the number of answers over which probabilities are normalised.
        top_k: the number of answers to give, at most `n_best`.
        null_threshold: the answer is "" if `Answers.no_answer_score` is above this (SQuAD 2.0); None: 0, if
            `handle_impossible_answer`.
        handle_impossible_answer: whether the answer may be ""; None: only if `null_threshold` is given.
        align_to_words: widen answers to whole words, as transformers 4 does by default; False: give the slices that
            run_squad.py finds, which can split a word where the tokens do.
        padding: accepted as in transformers 4, but without effect: rows are always padded to a compiled length.
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.
    """

    task = "question-answering"
    per_token = True

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        max_seq_len: int | None = None,
        stride: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        max_answer_len: int | None = None,
        n_best: int = 20,
        top_k: int = 1,
        null_threshold: float | None = None,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool = False,
        padding: bool | str | None = None,
        **running: Unpack[Running],
    ):
        found = opened(source)
        run = _settings_of_run(found)
        self._run_length: int | None = run.get("max_seq_len")
        length: int = (self._run_length or 384) if max_seq_len is None else max_seq_len
        null_threshold = run.get("null_threshold") if null_threshold is None else null_threshold
        check_count("max_seq_len", length)
        check_count("n_best", n_best)
        self.longest = length
        super().__init__(found, **running)
        stride = run.get("stride") if stride is None else stride
        self._stride = default_stride(self.longest) if stride is None else stride
        check_count("stride", self._stride)
        self._n_best, self._null_threshold = n_best, null_threshold or 0.0
        self.settle(
            top_k=top_k,
            as_answers=False,
            max_answer_len=run.get("max_answer_len", 30) if max_answer_len is None else max_answer_len,
            max_question_len=run.get("max_question_len", 64) if max_question_len is None else max_question_len,
            max_seq_len=None,
            doc_stride=doc_stride,
            align_to_words=align_to_words,
            handle_impossible_answer=(
                null_threshold is not None if handle_impossible_answer is None else handle_impossible_answer
            ),
        )

    def __call__(
        self,
        questions: Question | Sequence[Question] | None = None,
        *,
        question: Texts | None = None,
        context: Texts | None = None,
        top_k: int | None = None,
        max_answer_len: int | None = None,
        max_question_len: int | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool | None = None,
        padding: bool | str | None = None,
    ) -> Any:
        """Answers questions.

        Args:
            questions: {"question": ..., "context": ...}, or a list of these.
            question, context: instead of `questions`: a question and its context; or a list of questions and one
                context for all of them, or a list with a context for each.
            top_k, max_answer_len, max_question_len, max_seq_len, doc_stride, handle_impossible_answer, align_to_words,
                padding: override the class's options for this call, under transformers 4's names. `max_seq_len` can
                only lower the class's value; without `doc_stride`, windows then share half of it, at most 128 tokens.

        Returns:
            For one question a dict: `score` (float, its probability among the n best; transformers 4 gives the product
            of the two softmaxes over a window), `start`, `end` (characters of the passage; 0 and 0 for no answer),
            `answer` (that slice, or ""). If `top_k` is over 1, a list of such dicts, best first. For a list of
            questions a list of these.

        Raises:
            UserError: a question is not of that form, its context is empty, or an option has a wrong value.
        """
        if (questions is None) == (question is None or context is None):
            raise UserError("no question: expected questions, or both question= and context=")
        asked: Any = _beside_each_other(question, context) if questions is None else questions
        single = isinstance(asked, Mapping)
        options: dict[str, Any] = {
            "max_answer_len": max_answer_len,
            "max_question_len": max_question_len,
            "max_seq_len": max_seq_len,
            "doc_stride": doc_stride,
            "top_k": top_k,
            "handle_impossible_answer": handle_impossible_answer,
            "align_to_words": align_to_words,
        }
        results = Results(
            self.stream(
                [asked] if single else items_of(asked, '{"question": ..., "context": ...} or a list of such dicts'),
                **options,
            )
        )
        return first_of(results) if single else results

    def answers(self, questions: Iterable[Question | UserError], on_error: str = "raise") -> Iterator[Any]:
        """Yields the `Answers` of each question; `on_error` as in `stream`."""
        return self.stream(questions, on_error=on_error, as_answers=True)

    def check_options(self, **options: Any) -> None:
        for name, least in _LEAST.items():
            value = options[name]
            if value is not None:
                check_count(name, value, least)

    def stream(
        self, items: Iterable[Any], *, chunk: int = _AT_ONCE, on_error: str = "raise", **options: Any
    ) -> Iterator[Any]:
        return super().stream(items, chunk=chunk, on_error=on_error, **options)

    def encode(self, items: list[Question], first: int, **options: Any) -> EncodedItems:
        both = [_checked(one, first + number) for number, one in enumerate(items)]
        contexts = [context for _, context in both]
        asked_length, overlap = options["max_seq_len"], options["doc_stride"]
        length = min(asked_length or self.longest, self.longest)
        if asked_length and overlap is None:
            overlap = min(length // 2, 128)
        most = length // 2
        if length == self._run_length:  # its evaluation kept longer questions, if they left a token for the passage
            most = length - self.tokenizer.special_tokens_added(pair=True) - 1
        passages = encode_passages(
            self.tokenizer,
            [question for question, _ in both],
            contexts,
            max_length=length,
            stride=self._stride,
            overlap=overlap,
            max_question_length=min(options["max_question_len"], most),
        )
        _check_passages(passages, contexts, first)
        return EncodedItems((passages, contexts), without_padding(passages, self.tokenizer.pad_token_id))

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        passages, contexts = facts
        threshold = self._null_threshold if options["handle_impossible_answer"] else None
        found = best_answers(
            passages,
            *_logits(passages, outputs),
            contexts,
            n_best=self._n_best,
            max_answer_length=options["max_answer_len"],
            null_answers=threshold is not None,
        )
        if options["as_answers"]:
            return found
        if options["align_to_words"]:
            found = [_of_whole_words(one, context) for one, context in zip(found, contexts, strict=True)]
        return [_described(one, options["top_k"], threshold) for one in found]

    def describe(self, found: Answers, top_k: int = 1) -> Any:
        """The best answers as dicts, as `__call__` returns them; `null_threshold` decides whether "" comes first."""
        threshold = self._null_threshold if self.settled["handle_impossible_answer"] else None
        return self.marked(_described(found, top_k, threshold))


def best_answers(
    passages: Passages,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    contexts: Sequence[str],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
    null_answers: bool = False,
) -> list[Answers]:
    """Finds the answers to each question, from the logits of all its windows.

    In each window, the `n_best` best starts are combined with the `n_best` best ends (of equal logits, the first).
    Padding is neither: the loss does not train its logits, and how much there is depends on the batch. A combination
    counts if both are tokens of the passage, this window shows the start with the most context, and the end
    is not before the start.

    Args:
        passages: the windows.
        start_logits, end_logits: float [W, L], L at least the tokens of the longest window.
        contexts: the passages, one per question.
        n_best: the number of answers to keep.
        max_answer_length: in tokens.
        null_answers: whether "no answer" counts in the normalisation of probabilities (SQuAD 2.0).
    """
    found: list[list[tuple[float, int, int]]] = [[] for _ in contexts]
    null = np.full(len(contexts), np.inf)
    real_WL = passages.rows["attention_mask"][:, : start_logits.shape[1]] > 0
    start_logits, end_logits = (np.where(real_WL, logits, -np.inf) for logits in (start_logits, end_logits))
    for row, number in enumerate(passages.question):
        start_L, end_L = start_logits[row], end_logits[row]
        null[number] = min(null[number], float(start_L[0]) + float(end_L[0]))
        starts, ends = (np.argsort(-logits_L, kind="stable")[:n_best] for logits_L in (start_L, end_L))
        start_SE, end_SE = np.meshgrid(starts, ends, indexing="ij")
        legal = passages.in_passage[row, start_SE] & passages.in_passage[row, end_SE] & passages.is_best[row, start_SE]
        legal &= (end_SE >= start_SE) & (end_SE - start_SE < max_answer_length)
        for first, last in zip(start_SE[legal], end_SE[legal], strict=True):
            begin, end = int(passages.offsets[row, first, 0]), int(passages.offsets[row, last, 1])
            found[number].append((float(start_L[first]) + float(end_L[last]), begin, end))
    return [
        _answers(slices, context, float(score), n_best, null_answers)
        for slices, context, score in zip(found, contexts, null, strict=True)
    ]


def _answers(
    slices: list[tuple[float, int, int]], context: str, null_score: float, n_best: int, null_answers: bool
) -> Answers:
    kept: dict[str, tuple[float, int, int]] = {}
    for score, begin, end in sorted(slices, key=lambda one: -one[0]):
        text = context[begin:end]
        if text and text not in kept:
            kept[text] = score, begin, end
            if len(kept) == n_best:
                break
    scores = np.array([score for score, _, _ in kept.values()] + [null_score] * null_answers)
    shares = softmax(scores) if len(scores) else scores
    candidates = tuple(
        Candidate(text, begin, end, score, float(share))
        for (text, (score, begin, end)), share in zip(kept.items(), shares, strict=False)
    )
    return Answers(candidates, null_score)


def _of_whole_words(found: Answers, context: str) -> Answers:
    words = words_of(context)
    begins, ends = [begin for begin, _ in words], [end for _, end in words]

    def widened(one: Candidate) -> Candidate:
        begin = begins[max(bisect_right(begins, one.start) - 1, 0)]
        end = ends[min(bisect_left(ends, one.end), len(ends) - 1)]
        begin, end = min(begin, one.start), max(end, one.end)
        return one._replace(text=context[begin:end], start=begin, end=end)

    return found._replace(candidates=tuple(map(widened, found.candidates)))


def _settings_of_run(source: Source | Loaded) -> dict[str, Any]:
    """The options that a fine-tuning run's evaluation used, under this class's names."""
    run = settings_of_run(source)
    if not run:
        return {}
    null_answers = run.get("null_answers") or run["task"] == "squad2"
    return {
        "max_seq_len": run.get("max_length", 384),
        "stride": run.get("stride"),
        "max_question_len": run.get("max_question_length", 64),
        "max_answer_len": run.get("max_answer_length", 30),
        "null_threshold": run.get("null_threshold", 0.0) if null_answers else None,
    }


def _described(found: Answers, top_k: int, threshold: float | None) -> Any:
    answers = [
        {"score": one.probability, "start": one.start, "end": one.end, "answer": one.text} for one in found.candidates
    ]
    if not found.text(threshold):
        share = 0.0 if threshold is None else 1 - sum(one.probability for one in found.candidates)
        answers.insert(0, {"score": max(share, 0.0), "start": 0, "end": 0, "answer": ""})
    return answers[0] if top_k == 1 else answers[:top_k]


def _logits(passages: Passages, outputs: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """The start and end logits, both float32 [W, L], with -inf at padding."""
    shape = passages.rows["attention_mask"].shape
    start, end = np.full(shape, -np.inf, np.float32), np.full(shape, -np.inf, np.float32)
    for row, (start_L, end_L) in enumerate(outputs):
        start[row, : len(start_L)], end[row, : len(end_L)] = start_L, end_L
    return start, end


def _beside_each_other(question: Any, context: Any) -> Any:
    """Pairs texts as {"question", "context"}: one dict for a text, a list of dicts for a list."""
    if isinstance(question, str):
        if not isinstance(context, str):
            raise UserError("question is one text, but context is a list; expected one text")
        return {"question": question, "context": context}
    questions = list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise UserError(
            f"question has {len(questions)} texts, context {len(contexts)}: expected equal numbers, or one context"
        )
    return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]


def _checked(question: Question, number: int) -> tuple[str, str]:
    for name in ("question", "context"):
        if not isinstance(question, Mapping) or not isinstance(question.get(name), str):
            raise UserError(
                f'question {number + 1}: expected {{"question": ..., "context": ...}}, but {name!r} is not a string'
            )
        check_text(question[name], f"question {number + 1}, {name}")
    if not question["context"].strip():
        raise UserError(f"question {number + 1}: its context is empty; expected a passage with the answer")
    return question["question"], question["context"]


def _check_passages(passages: Passages, contexts: list[str], first: int) -> None:
    has_token = np.zeros(len(contexts), bool)
    has_token[passages.question[passages.in_passage.any(axis=1)]] = True
    if not has_token.all():
        number = int(has_token.argmin())
        name = f"question {first + number + 1}: its context ({shortened(contexts[number])})"
        raise UserError(f"{name} has no token; expected a passage with the answer")
