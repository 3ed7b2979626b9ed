"""Question answering: SQuAD 1.1 and 2.0, and other sets in their format (KorQuAD, XQuAD)."""

import json
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.passages import (
    Answer,
    PassageQuestion,
    Passages,
    answer_lengths,
    answer_positions,
    encode_passages,
    read_squad,
    without_padding,
)
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, quoted
from bert_jax.evaluation import squad
from bert_jax.evaluation.predictions import squad2_scores
from bert_jax.inference.tasks.question_answering import Answers, best_answers
from bert_jax.training.objectives import AnswerSpan
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import (
    FileNames,
    Outputs,
    Scores,
    Span,
    SpanExample,
    Split,
    checked_metric,
    read_splits,
    task_files,
    with_held_out,
)

logger = logging.getLogger(__name__)

_CONTEXT = 200  # characters of the passage on each side of a wrong answer


class AnswerRules(NamedTuple):
    """A benchmark's score for questions that all have answers; F1 of two answers, which identifies mistakes; and what
    its files are called besides SQuAD's names, with {split}, train or dev."""

    score: Callable[[Iterable[squad.Question], Mapping[str, str]], Scores]
    f1: Callable[[str, str], float]
    files: tuple[str, ...] = ()


SQUAD = AnswerRules(squad.squad1, squad.token_f1)
KORQUAD = AnswerRules(squad.korquad, partial(squad.character_f1, empty_rule=True), ("KorQuAD_v1.0_{split}",))
ANSWER_TASKS = {"squad1": (1, SQUAD), "squad2": (2, SQUAD), "korquad": (1, KORQUAD)}
"""Name of a task -> SQuAD's version, 2 if questions may have no answer, and the rules."""


class AnswerTask:
    """A `TaskData`: find the answer to a question in a passage, if the passage has it."""

    head = "question-answering"
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type = None
    baseline = "no answer to any question"

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, version: int, rules: AnswerRules):
        release = {1: "v1.1", 2: "v2.0"}[version]
        train, dev = ([*(name.format(split=s) for name in rules.files), f"{s}-{release}"] for s in ("train", "dev"))
        names = FileNames((*train, "train"), ((*dev, *FileNames().dev[0]),), suffixes=(".json", ".jsonl"))
        files = task_files(config, names)
        if config.class_weights != "none" or config.label_smoothing:
            raise UserError("class_weights, label_smoothing: need one class per example; leave them out for answers")
        self._config, self._tokenizer, self._rules = config, tokenizer, rules
        self._last: tuple[Outputs, list[Answers]] | None = None
        self._null_answers = config.null_answers or version == 2
        self.objective = AnswerSpan()
        train, held = self._read_train(files.train)
        self.train = self._split("train", files.train, train).encoded
        self.trained_on = (files.train,)
        self.evaluations, self.tests = read_splits(files, held, self._read_labelled, self._read, self._split)
        self.metric = checked_metric(config.metric or "f1", self._nothing_said(self.evaluations[0]), config.task)

    def _read_train(self, path: Path) -> tuple[list[PassageQuestion], list[PassageQuestion]]:
        """The training questions, and those that `dev=SHARE` holds out: all questions of a passage, or none.

        It holds out the same share of passages whose questions all have answers, all have none, and have both.
        """
        questions = self._read_labelled(path)
        kinds: dict[str, set[bool]] = {}
        for question in questions:
            kinds.setdefault(question.context, set()).add(not question.answers)
        _, passages = with_held_out(self._config, list(kinds), lambda context: tuple(sorted(kinds[context])))
        held = set(passages)
        return [one for one in questions if one.context not in held], [one for one in questions if one.context in held]

    def _read_labelled(self, path: Path) -> list[PassageQuestion]:
        """Reads questions for training or scoring; raises UserError if one has no answer that it needs."""
        questions = self._read(path)
        for one in questions:
            for name, text in (("question", one.question), ("context", one.context)):
                if not text.strip():
                    raise UserError(f"{path}, question {one.id}: its {name} is empty; expected a text")
            if not (self._null_answers or one.answers):
                raise UserError(
                    f"{path}, question {one.id}: has no answer; where questions may have none, say task=squad2 (or "
                    "null_answers=true)"
                )
        if not any(one.answers or one.is_impossible for one in questions):
            raise UserError(
                f"{path}: no question has an answer or is_impossible; a file without answers can only be test=FILE"
            )
        return questions

    def _read(self, path: Path) -> list[PassageQuestion]:
        """Reads questions with or without answers; raises UserError if an answer is empty and none may be."""
        if not (questions := list(read_squad(path))):
            raise UserError(f"{path}: has no questions")
        empty = (one.id for one in questions for answer in one.answers if not answer.text.strip())
        if not self._null_answers and (id := next(empty, None)) is not None:
            raise UserError(f"{path}, question {quoted(id)}: an answer is empty; expected a slice of its context")
        return questions

    def _split(self, name: str, path: Path, questions: list[PassageQuestion]) -> Split:
        config = self._config
        passages = encode_passages(
            self._tokenizer,
            [question.question for question in questions],
            [question.context for question in questions],
            max_length=config.max_length,
            stride=config.stride,
            max_question_length=config.max_question_length,
            source=str(path),
        )
        start, end = answer_positions(passages, [_span(_learnt(question)) for question in questions])
        whole = np.zeros(len(questions), bool)
        whole[passages.question[end > 0]] = True
        self._warn(name, passages, questions, whole)
        encoded = without_padding(passages, self._tokenizer.pad_token_id, start_positions=start, end_positions=end)
        said = [bool(q.answers) or (self._null_answers and q.is_impossible) for q in questions]
        labelled = any(said) if self._null_answers else all(said)
        return Split(name, path, questions, encoded, labelled, passages)

    def _warn(self, name: str, passages: Passages, questions: list[PassageQuestion], whole: np.ndarray) -> None:
        """Warns, in a line each, of what the rows of a file lose.

        Args:
            name: of the split; only "train" learns from rows without their answer.
            passages, questions: the file's.
            whole: bool [Q]: whether some row has all of the question's answer.
        """
        config = self._config
        if count := int(passages.is_cut.sum()):
            cut = _share(count, len(questions), "question", "has", "have")
            end = "is cut there" if count == 1 else "are cut there"
            logger.warning(
                "%s: %s over %s tokens and %s; raise max_question_length=", name, cut, config.max_question_length, end
            )
        learnt = answer_lengths(passages, [_span(_learnt(question)) for question in questions]) > 0
        if name == "train" and (count := int((learnt & ~whole).sum())):
            lost = _share(count, int(learnt.sum()), "answer", "is", "are")
            rows = "its rows learn" if count == 1 else "their rows learn"
            logger.warning(
                '%s: %s whole in no row, so %s "no answer"; lower stride= or raise max_length=', name, lost, rows
            )
        lengths = answer_lengths(passages, [_span(_shortest(question)) for question in questions])
        if count := int((lengths > config.max_answer_length).sum()):
            long = _share(count, int((lengths > 0).sum()), "answer", "has", "have")
            end = "it is never predicted" if count == 1 else "they are never predicted"
            logger.warning(
                "%s: %s over %s tokens, so %s; raise max_answer_length=", name, long, config.max_answer_length, end
            )

    def score(self, split: Split, outputs: Outputs) -> Scores:
        answers = self._by_id(split, outputs)
        return self._scores(
            split,
            {id: answer.text(self._threshold) for id, answer in answers.items()},
            {id: answer.text() for id, answer in answers.items()},
            {id: answer.no_answer_score for id, answer in answers.items()},
        )

    def _nothing_said(self, split: Split) -> Scores:
        ids = [question.id for question in split.examples]
        return self._scores(split, dict.fromkeys(ids, ""), dict.fromkeys(ids, ""), dict.fromkeys(ids, 0.0))

    def baseline_scores(self, split: Split) -> Scores:
        return {name: v for name, v in self._nothing_said(split).items() if name in ("exact", "exact_match", "f1")}

    def _scores(self, split: Split, said: dict[str, str], best: dict[str, str], odds: dict[str, float]) -> Scores:
        """Scores of the predicted texts; with null answers as `squad2_scores`."""
        gold = _gold(split.examples)
        if self._null_answers:
            return squad2_scores(gold, said, best, odds, characters=self._rules is KORQUAD)
        return self._rules.score(gold, said)

    @property
    def _threshold(self) -> float | None:
        return self._config.null_threshold if self._null_answers else None

    def _answers(self, split: Split, outputs: Outputs) -> list[Answers]:
        """The n best answers to each question. Caches those of the last outputs for scores, files and report."""
        if self._last is None or self._last[0] is not outputs:
            found = best_answers(
                split.windows,
                outputs["start_logits"],
                outputs["end_logits"],
                [question.context for question in split.examples],
                max_answer_length=self._config.max_answer_length,
                null_answers=self._null_answers,
            )
            self._last = outputs, found
        return self._last[1]

    def _by_id(self, split: Split, outputs: Outputs) -> dict[str, Answers]:
        return {q.id: found for q, found in zip(split.examples, self._answers(split, outputs), strict=True)}

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        """Predicted texts; "" if no answer scores higher, even in a set where all questions have answers."""
        return [answer.text(self._config.null_threshold) for answer in self._answers(split, outputs)]

    def rows(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        rows = []
        for question, answer in zip(split.examples, self._answers(split, outputs), strict=True):
            said = answer.text(self._threshold)
            listed = {one["text"]: one for one in _listed(answer, self._null_answers)}.get(said)
            gold = {"gold": [one.text for one in question.answers]} if split.labelled else {}
            found: dict[str, Any] = {"label": said, "probability": listed["probability"] if listed else None}
            if said and listed:
                found |= {"start": listed["start"], "end": listed["end"]}
            if self._null_answers:
                found |= {"best": answer.text(), "no_answer_score": _finite(answer.no_answer_score)}
            rows.append({"id": question.id, "question": question.question, "text": question.context} | gold | found)
        return rows

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        answers = self._by_id(split, outputs)
        files: dict[str, Any] = {
            "predictions": {id: answer.text(self._threshold) for id, answer in answers.items()},
            "nbest_predictions": {id: _listed(answer, self._null_answers) for id, answer in answers.items()},
        }
        if self._null_answers:
            files["null_odds"] = {id: _finite(answer.no_answer_score) for id, answer in answers.items()}
        written = []
        for name, content in files.items():
            written.append(folder / f"{split.name}-{name}.json")
            written[-1].write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return written

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        found = []
        for question, answer in zip(split.examples, self._answers(split, outputs), strict=True):
            said = answer.text(self._threshold)
            if (score := self._f1(question, said)) < 1:
                best = answer.candidates[0] if answer.candidates else None
                found.append(
                    {
                        "id": question.id,
                        "text": question.question,
                        "context": _around(question.context, best.start if best else 0),
                        "label": " | ".join(dict.fromkeys(right.text for right in question.answers)),
                        "prediction": said,
                        "loss": 1 - score,
                    }
                )
        return sorted(found, key=lambda one: -one["loss"])

    def _f1(self, question: PassageQuestion, said: str) -> float:
        """F1 of a predicted text and the nearest right answer, which is "" if there is none."""
        return max(self._rules.f1(said, text) for text in [a.text for a in question.answers] or [""])

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        """Questions whose predicted answer shares no word with a right one, in the order of the file."""
        found = []
        for question, answer in zip(split.examples, self._answers(split, outputs), strict=True):
            said = answer.text(self._threshold)
            if self._f1(question, said) > 0:
                continue
            right = tuple(Span(a.start, a.start + len(a.text)) for a in question.answers[:1])
            best = (Span(answer.candidates[0].start, answer.candidates[0].end),) if said else ()
            found.append(SpanExample(question.question, question.context, right, best))
        return found


def _listed(answers: Answers, null_answers: bool) -> list[dict[str, Any]]:
    """The n best answers to a question, best first; with `null_answers` no answer ("") is among them."""
    found: list[dict[str, Any]] = [
        {"text": one.text, "probability": one.probability, "score": one.score, "start": one.start, "end": one.end}
        for one in answers.candidates
    ]
    if null_answers:
        share = max(0.0, 1 - sum(one["probability"] for one in found))
        found.append({"text": "", "probability": share, "score": answers.null_score, "start": 0, "end": 0})
    return sorted(found, key=lambda one: -one["score"])


def _finite(score: float) -> float:
    """The score as JSON can hold it."""
    return float(score) if np.isfinite(score) else 1e9


def _gold(questions: list[PassageQuestion]) -> list[squad.Question]:
    return [squad.Question(question.id, tuple(answer.text for answer in question.answers)) for question in questions]


def _learnt(question: PassageQuestion) -> Answer | None:
    """The first answer that is not blank."""
    return next((answer for answer in question.answers if answer.text.strip()), None)


def _shortest(question: PassageQuestion) -> Answer | None:
    """The shortest answer that is not blank: a model that predicts it is right."""
    return min((one for one in question.answers if one.text.strip()), key=lambda one: len(one.text), default=None)


def _span(answer: Answer | None) -> tuple[int, int] | None:
    """The characters [begin, end) of an answer in its passage."""
    return None if answer is None else (answer.start, answer.start + len(answer.text))


def _share(count: int, of: int, noun: str, one: str, many: str) -> str:
    """ "1 of 100 answers is" or "2 of 100 answers are", of the `noun`'s singular and both forms of a verb."""
    return f"{count:,} of {of:,} {noun}{'' if of == 1 else 's'} {one if count == 1 else many}"


def _around(context: str, character: int) -> str:
    return context[max(0, character - _CONTEXT) : character + _CONTEXT]
