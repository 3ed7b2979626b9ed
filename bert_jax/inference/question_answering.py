"""question-answering: the answer to a question as a slice of its passage, under transformers' keys."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.passages import Passages, encode_passages
from bert_jax.errors import UserError
from bert_jax.inference.answers import Answers, best_answers
from bert_jax.inference.checks import check_text
from bert_jax.inference.shown import Results, first_of
from bert_jax.inference.task_model import Running, TaskModel
from bert_jax.load import Loaded

_AT_ONCE = 64  # questions whose windows are in memory together
_LEAST = {"top_k": 1, "max_answer_len": 1, "max_question_len": 1, "max_seq_len": 1, "doc_stride": 0}

Question = Mapping[str, str]


class QuestionAnswering(TaskModel):
    """The best answers to questions, out of run_squad.py's n-best list over overlapping windows of the passage.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "question-answering").
        max_length: tokens of a window with its question; at most the model's.
        stride: tokens between the beginnings of two windows (transformers' `doc_stride` is the overlap); None: a third
            of `max_length`, at most 128.
        max_question_length: a question is cut after so many tokens; at most half of `max_length`.
        max_answer_length: in tokens.
        n_best: how many answers share the probability.
        null_threshold: the answer is "" where `Answers.no_answer_score` is above it (SQuAD 2.0); None: there is
            always an answer.
        **running: batch_size, dtype, cache, devices, as `TaskModel`.
    """

    task = "question-answering"
    per_token = True

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        max_length: int = 384,
        stride: int | None = None,
        max_question_length: int = 64,
        max_answer_length: int = 30,
        n_best: int = 20,
        null_threshold: float | None = None,
        **running: Unpack[Running],
    ):
        for name, value in (("max_answer_length", max_answer_length), ("n_best", n_best)):
            if value < 1:
                raise UserError(f"{name}={value}: expected at least 1")
        self.longest = max_length
        super().__init__(source, **running)
        self._stride = max(1, min(128, self.longest // 3)) if stride is None else stride
        self._n_best, self._null_threshold = n_best, null_threshold or 0.0
        self.settle(
            top_k=1,
            as_answers=False,
            max_answer_len=max_answer_length,
            max_question_len=max_question_length,
            max_seq_len=None,
            doc_stride=None,
            handle_impossible_answer=null_threshold is not None,
        )

    def __call__(
        self,
        questions: Question | Sequence[Question] | None = None,
        *,
        question: str | None = None,
        context: str | None = None,
        top_k: int | None = None,
        max_answer_len: int | None = None,
        max_question_len: int | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        handle_impossible_answer: bool | None = None,
    ) -> Any:
        """Answer questions.

        Args:
            questions: {"question": ..., "context": ...}, or a list of such.
            question, context: one question without the dict.
            top_k: how many answers to give, at most `n_best`; None: one.
            max_answer_len, max_question_len, max_seq_len, handle_impossible_answer: for this call, what the class calls
                `max_answer_length`, `max_question_length`, `max_length` (no more than that) and `null_threshold` (0 or
                None).
            doc_stride: tokens that two windows share, in the place of `stride`; with `max_seq_len` half of it, at most
                128. These five are transformers 4's names.

        Returns:
            For one question a dict: `score` (float, its share of the n-best list's probability; transformers 4 gives
            the product of the two softmaxes over a window), `start`, `end` (characters of the passage; 0 and 0 for
            none), `answer` (that slice, or ""). A list of them if `top_k` is over 1, best first. For a list of
            questions a list of these.
        """
        if (questions is None) == (question is None or context is None):
            raise UserError("expected questions, or question= and context=")
        single = questions is None or isinstance(questions, Mapping)
        asked: Any = {"question": question, "context": context} if questions is None else questions
        options: dict[str, Any] = {
            "max_answer_len": max_answer_len,
            "max_question_len": max_question_len,
            "max_seq_len": max_seq_len,
            "doc_stride": doc_stride,
            "top_k": top_k,
            "handle_impossible_answer": handle_impossible_answer,
        }
        results = Results(self.stream([asked] if single else list(asked), **options))
        return first_of(results) if single else results

    def answers(self, questions: Iterable[Question], on_error: str = "raise") -> Iterator[Any]:
        """The n-best list (`Answers`) of each question, and how good no answer is; `on_error`: see `stream`."""
        return self.stream(questions, on_error=on_error, as_answers=True)

    def check_options(self, **options: Any) -> None:
        for name, least in _LEAST.items():
            if options[name] is not None and options[name] < least:
                raise UserError(f"{name}={options[name]}: expected at least {least}")

    def stream(
        self, items: Iterable[Any], *, chunk: int = _AT_ONCE, on_error: str = "raise", **options: Any
    ) -> Iterator[Any]:
        return super().stream(items, chunk=chunk, on_error=on_error, **options)

    def encode(self, items: list[Question], first: int, **options: Any) -> tuple[tuple[Passages, list[str]], Encoded]:
        both = [_checked(one, first + number) for number, one in enumerate(items)]
        contexts = [context for _, context in both]
        asked_length, overlap = options["max_seq_len"], options["doc_stride"]
        if asked_length and overlap is None:
            overlap = min(asked_length // 2, 128)
        length = min(asked_length or self.longest, self.longest)
        passages = encode_passages(
            self.tokenizer,
            [question for question, _ in both],
            contexts,
            max_length=length,
            stride=self._stride,
            overlap=overlap,
            max_question_length=min(options["max_question_len"], length // 2),
        )
        real = passages.rows["attention_mask"].astype(bool)
        pads = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0}
        rows = Encoded({name: passages.rows[name][real] for name in pads}, pads, real.sum(axis=1), {})
        return (passages, contexts), rows

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
        return found if options["as_answers"] else [_described(one, options["top_k"], threshold) for one in found]

    def count(self, facts: Any) -> int:
        return len(facts[1])

    def describe(self, found: Answers, top_k: int = 1) -> Any:
        """An n-best list as `__call__` gives it: by `null_threshold` with "" in front or without."""
        return _described(found, top_k, self._null_threshold if self.settled["handle_impossible_answer"] else None)


def _described(found: Answers, top_k: int, threshold: float | None) -> Any:
    answers = [
        {"score": one.probability, "start": one.start, "end": one.end, "answer": one.text} for one in found.candidates
    ]
    if not found.text(threshold):
        share = 0.0 if threshold is None else 1 - sum(one.probability for one in found.candidates)
        answers.insert(0, {"score": max(share, 0.0), "start": 0, "end": 0, "answer": ""})
    return answers[0] if top_k == 1 else answers[:top_k]


def _logits(passages: Passages, outputs: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """float32 [W, L] each, -inf at padding."""
    shape = passages.rows["attention_mask"].shape
    start, end = np.full(shape, -np.inf, np.float32), np.full(shape, -np.inf, np.float32)
    for row, (start_L, end_L) in enumerate(outputs):
        start[row, : len(start_L)], end[row, : len(end_L)] = start_L, end_L
    return start, end


def _checked(question: Question, number: int) -> tuple[str, str]:
    for name in ("question", "context"):
        if not isinstance(question, Mapping) or not isinstance(question.get(name), str):
            raise UserError(f'question {number + 1}: expected {{"question": ..., "context": ...}}, {name!r} is no text')
        check_text(question[name], f"question {number + 1}, {name}")
    if not question["context"].strip():
        raise UserError(f"question {number + 1}: its context is empty, and an answer is a slice of it")
    return question["question"], question["context"]
