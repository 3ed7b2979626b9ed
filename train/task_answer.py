"""Question answering: SQuAD 1.1 and 2.0, and what has their form (KorQuAD, XQuAD)."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import metrics
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.passages import Passages, answer_positions, encode_passages
from bert_jax.data.tasks.squad import PassageQuestion, read_squad
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.answers import Answers, best_answers
from bert_jax.training.task_objectives import AnswerSpan
from train.finetune_recipe import FinetuneConfig
from train.span_page import Span, SpanExample
from train.task_data import Outputs, Scores, Split, checked_metric
from train.task_files import FileNames, task_files, with_held_out


class QuestionAnswering:
    """A `TaskData`: where in a passage the answer to a question stands, if it is there at all."""

    head = "question-answering"
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type = None

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, version: int):
        names = FileNames(
            (f"train-v{version}.{'1' if version == 1 else '0'}", "train"),
            ((f"dev-v{version}.{'1' if version == 1 else '0'}", "dev"),),
        )
        files = task_files(config, names)
        if config.class_weights != "none" or config.label_smoothing:
            raise UserError("class_weights, label_smoothing: only where an example has one class")
        self._config, self._tokenizer = config, tokenizer
        self._last: tuple[Outputs, list[Answers]] | None = None
        self._null_answers = config.null_answers or version == 2
        self.objective = AnswerSpan()
        questions = [question for question in read_squad(files.train) if question.answers or question.is_impossible]
        train, held = with_held_out(config, questions, lambda question: question.is_impossible)
        if not train:
            raise UserError(f"{files.train}: holds no questions with answers")
        self.train = self._split("train", files.train, train).encoded
        dev = [(name, path, list(read_squad(path))) for name, path in files.dev]
        dev += [("dev", files.train, held)] if held else []
        self.evaluations = tuple(self._split(name, path, found) for name, path, found in dev)
        for path, some in ((files.train, train), *((split.path, split.examples) for split in self.evaluations)):
            self._check_answered(path, some)
        self.tests = tuple(self._split(name, path, list(read_squad(path))) for name, path in files.test)
        ids = [question.id for question in self.evaluations[0].examples]
        nothing_said = self._scores(
            self.evaluations[0], dict.fromkeys(ids, ""), dict.fromkeys(ids, ""), dict.fromkeys(ids, 0.0)
        )
        self.metric = checked_metric(config.metric or "f1", nothing_said, config.task)

    def _split(self, name: str, path: Path, questions: list[PassageQuestion]) -> Split:
        if not questions:
            raise UserError(f"{path}: holds no questions")
        config = self._config
        passages = encode_passages(
            self._tokenizer,
            [question.question for question in questions],
            [question.context for question in questions],
            max_length=config.max_length,
            stride=config.stride,
            max_question_length=config.max_question_length,
        )
        first = [question.answers[0] if question.answers else None for question in questions]
        spans = [None if answer is None else (answer.start, answer.start + len(answer.text)) for answer in first]
        start, end = answer_positions(passages, spans)
        encoded = _encoded(passages, self._tokenizer.pad_token_id, start, end)
        said = [bool(q.answers) or (self._null_answers and q.is_impossible) for q in questions]
        labelled = any(said) if self._null_answers else all(said)
        return Split(name, path, questions, encoded, labelled, passages)

    def _check_answered(self, path: Path, questions: list[PassageQuestion]) -> None:
        """UserError at the first question without an answer, where there may be none."""
        none = next((q for q in questions if not (self._null_answers or q.answers)), None)
        if none is not None:
            raise UserError(
                f"{path}, question {none.id}: has no answer; where questions may have none, say task=squad2 (or "
                "null_answers=true)"
            )

    def score(self, split: Split, outputs: Outputs) -> Scores:
        ids = [question.id for question in split.examples]
        answers = dict(zip(ids, self._answers(split, outputs), strict=True))
        return self._scores(
            split,
            {id: answer.text(self._threshold) for id, answer in answers.items()},
            {id: answer.text() for id, answer in answers.items()},
            {id: answer.no_answer_score for id, answer in answers.items()},
        )

    def _scores(self, split: Split, said: dict[str, str], best: dict[str, str], odds: dict[str, float]) -> Scores:
        """Of what is said; and what any threshold could have made of the best text of each question and of `odds`."""
        gold = _gold(split.examples)
        if not self._null_answers:
            return metrics.squad1(gold, said)
        # The official script takes the best text of each question, and finds the best threshold itself.
        swept = metrics.squad2(gold, best, odds, self._config.null_threshold)
        return metrics.squad2(gold, said) | {name: v for name, v in swept.items() if name.startswith("best_")}

    @property
    def _threshold(self) -> float | None:
        return self._config.null_threshold if self._null_answers else None

    def _answers(self, split: Split, outputs: Outputs) -> list[Answers]:
        """The n best of each question. Those of the last outputs are kept: scores, files and report want the same."""
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

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        answers = self._answers(split, outputs)
        ids = [question.id for question in split.examples]
        files: dict[str, Any] = {
            "predictions": {id: answer.text(self._threshold) for id, answer in zip(ids, answers, strict=True)}
        }
        if self._null_answers:
            odds = {id: answer.no_answer_score for id, answer in zip(ids, answers, strict=True)}
            files["null_odds"] = {id: score if np.isfinite(score) else 1e9 for id, score in odds.items()}
        written = []
        for name, content in files.items():
            written.append(folder / f"{split.name}-{name}.json")
            written[-1].write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return written

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        found = []
        for question, answer in zip(split.examples, self._answers(split, outputs), strict=True):
            said = answer.text(self._threshold)
            gold = [a.text for a in question.answers] or [""]
            score = max(metrics.token_f1(text, said) for text in gold)
            if score < 1:
                best = answer.candidates[0] if answer.candidates else None
                found.append(
                    {
                        "id": question.id,
                        "text": question.question,
                        "context": _around(question.context, best.start if best else 0),
                        "label": " | ".join(dict.fromkeys(gold)),
                        "prediction": said,
                        "loss": 1 - score,
                    }
                )
        return sorted(found, key=lambda one: -one["loss"])

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        """Questions whose answer has no word in common with a right one, in the order of the file."""
        found = []
        for question, answer in zip(split.examples, self._answers(split, outputs), strict=True):
            said = answer.text(self._threshold)
            if max(metrics.token_f1(text, said) for text in [a.text for a in question.answers] or [""]) > 0:
                continue
            right = tuple(Span(a.start, a.start + len(a.text)) for a in question.answers[:1])
            best = (Span(answer.candidates[0].start, answer.candidates[0].end),) if said else ()
            found.append(SpanExample(question.question, question.context, right, best))
        return found


def _encoded(passages: Passages, pad: int, start: np.ndarray, end: np.ndarray) -> Encoded:
    real = passages.rows["attention_mask"].astype(bool)
    return Encoded(
        {name: passages.rows[name][real] for name in ("input_ids", "token_type_ids")},
        {"input_ids": pad, "token_type_ids": 0},
        real.sum(axis=1),
        {"start_positions": start, "end_positions": end},
    )


def _gold(questions: list[PassageQuestion]) -> list[metrics.Question]:
    return [metrics.Question(question.id, tuple(answer.text for answer in question.answers)) for question in questions]


def _around(context: str, character: int, width: int = 200) -> str:
    begin = max(0, character - width)
    return context[begin : character + width]
