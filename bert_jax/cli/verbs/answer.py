"""The verb answer: answers to questions about passages."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import FINE_TUNED, Verb, add_results, add_running, add_source, running, score_threshold
from bert_jax.cli.program import in_own_options
from bert_jax.cli.streaming import check_different, new_file, refuse_unanswered, say_error, to_json, write
from bert_jax.cli.texts import document_of, table_of, texts_of
from bert_jax.errors import UserError, errors_in_place, quoted
from bert_jax.files import near_path

_ABOUT = """\
Answer questions about passages with a model fine-tuned for it; each answer is a slice of its passage.

examples:
  python -m bert_jax answer runs/squad "When did it open?" --context article.txt
  python -m bert_jax answer runs/squad dev-v1.1.json --output predictions.json     SQuAD's format: {id: answer}
  python -m bert_jax answer my-bert dev-v2.0.json --null-threshold 0 --null-odds odds.json
  python -m bert_jax answer my-bert questions.jsonl --json                         columns question and context
  python -m bert_jax answer my-bert dev-v1.1.json --top-k 20 --json --output nbest.jsonl
"""

_CERTAIN = 1e9  # the largest no-answer score that is written: JSON has no infinity
_N_BEST = 20  # probabilities are normalised over so many answers, as in run_squad.py


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, FINE_TUNED)
    file = "SQuAD's .json, or a table with the columns question and context; with --context: the question"
    parser.add_argument("file", metavar="FILE|TEXT", help=file)
    parser.add_argument("--context", metavar="TEXT|FILE", help="the passage of the question: a text, a file, or -")
    parser.add_argument("--top-k", type=int, default=1, metavar="K", help="answers per question (default 1)")
    threshold = 'answer "" if its score exceeds that of the best answer by more than T'
    parser.add_argument("--null-threshold", type=score_threshold, metavar="T", help=threshold)
    odds = "write these differences, JSON {id: score}, for score --na-prob-file"
    parser.add_argument("--null-odds", metavar="PATH", help=odds)
    parser.add_argument("--max-length", type=int, metavar="L", help="tokens per window (default: the run's, or 384)")
    stride = "tokens between the beginnings of two windows (default: the run's, or a third of --max-length up to 128)"
    parser.add_argument("--stride", type=int, metavar="N", help=stride)
    longest = "the longest answer, in tokens (default: the run's, or 30)"
    parser.add_argument("--max-answer-length", type=int, metavar="N", help=longest)
    add_running(parser)
    add_results(parser, "one JSON object per question: id, score, start, end, answer; with --top-k a list of them")


def run(arguments: argparse.Namespace) -> None:
    """`answer DIR FILE`: writes {id: answer} for a file in SQuAD's format, or one line per row of a table.

    `answer DIR QUESTION --context PASSAGE`: one line for each question on one passage.
    """
    context: str | None = arguments.context
    if context == arguments.file == "-":
        raise UserError("stdin can be the questions or the context; name a file for the other")
    if context is None and arguments.file != "-" and not Path(arguments.file).exists():
        need = "a file has questions with their passages, and a question needs --context PASSAGE"
        raise UserError(f"{arguments.file}: no such file{near_path(arguments.file)}; {need}")
    path = table_of(arguments.file) if context is None else None
    as_squad = path is not None and _is_squad(path)
    if not 1 <= arguments.top_k <= _N_BEST:
        raise UserError(f"--top-k {arguments.top_k}: expected 1 to {_N_BEST}")
    if arguments.top_k > 1 and as_squad and not arguments.json:
        raise UserError(f"--top-k {arguments.top_k}: {{id: answer}} has one answer per question; add --json")
    check_different({"--output": arguments.output, "--null-odds": arguments.null_odds})
    odds_file = arguments.null_odds and new_file(arguments.null_odds, overwrite=arguments.overwrite)
    questions = list(_questions(path) if path else _on(context or "", arguments.file))
    if not questions:
        raise UserError(f"{arguments.file}: has no questions")
    ids = Counter(one["id"] for one in questions if not isinstance(one, UserError))
    if odds_file and (twice := [id for id, count in ids.items() if count > 1]):
        raise UserError(f"{arguments.file}: the id {quoted(twice[0])} occurs twice; --null-odds needs ids that differ")
    from bert_jax.inference.tasks.question_answering import QuestionAnswering

    predict = QuestionAnswering(
        arguments.source,
        max_seq_len=arguments.max_length,
        stride=arguments.stride,
        max_answer_len=arguments.max_answer_length,
        n_best=_N_BEST,
        null_threshold=arguments.null_threshold,
        **running(arguments),
    )
    found, odds, wrong = [], {}, 0
    answers_of = zip(questions, predict.answers(questions, on_error="return"), strict=True)
    for number, (question, answers) in enumerate(answers_of):
        name = str(number) if isinstance(question, UserError) else question["id"]
        if isinstance(answers, UserError):
            wrong += 1
            if not arguments.json and len(questions) > 1:
                say_error(answers)
            found.append([{"id": name, "answer": "", "score": 0.0, "error": in_own_options(answers)}])
            if not isinstance(question, UserError):
                odds[name] = _CERTAIN
            continue
        best = predict.describe(answers, arguments.top_k)
        found.append([{"id": name} | one for one in (best if arguments.top_k > 1 else [best])])
        odds[name] = min(answers.no_answer_score, _CERTAIN)
    if arguments.json:
        text = "\n".join(to_json(rows if arguments.top_k > 1 else rows[0]) for rows in found)
    elif as_squad:
        text = json.dumps({rows[0]["id"]: rows[0]["answer"] for rows in found}, ensure_ascii=False, indent=1)
    else:
        text = "\n".join(map(_show, found))
    if odds_file:
        odds_file.write_text(json.dumps(odds, indent=1) + "\n", encoding="utf-8")
    write(text)
    first = found[0][0].get("error")
    refuse_unanswered(wrong, len(found), "questions", first and UserError(first))


def _on(context: str, questions: str) -> Iterator[dict[str, str] | UserError]:
    """Yields id, question and context of each question that the argument gives, all on one passage."""
    passage = document_of(context)
    for number, question in enumerate(texts_of([questions])):
        wrong = next((one for one in (question, passage) if isinstance(one, UserError)), None)
        yield wrong or {"id": str(number), "question": str(question), "context": str(passage)}


def _questions(path: Path) -> Iterator[dict[str, str] | UserError]:
    """Yields id, question and context of each row, or an error in place of a row without a question or context."""
    from bert_jax.data.tasks.passages import read_squad
    from bert_jax.data.tasks.tables import has_header, named_rows

    if _is_squad(path):
        yield from ({"id": one.id, "question": one.question, "context": one.context} for one in read_squad(path))
        return
    for number, found in enumerate(errors_in_place(lambda wrong: named_rows(path, wrong))):
        if isinstance(found, UserError):
            yield found
            continue
        line, row = found
        if missing := [name for name in ("question", "context") if not isinstance(row.get(name), str)]:
            has = ", ".join(map(repr, row))
            error = UserError(f"{path}, line {line}: has no string {missing[0]!r}; it has {has}")
            if has_header(path):
                raise error
            yield error
            continue
        yield {"id": str(row.get("id", number)), "question": row["question"], "context": row["context"]}


def _is_squad(path: Path) -> bool:
    from bert_jax.data.tasks.tables import format_of

    return format_of(path) == "json"


def _show(rows: list[dict[str, Any]]) -> str:
    return "\t".join(f"{row['score']:.4f}\t{' '.join(row['answer'].split())}" for row in rows)


_KEYWORDS = {"max_seq_len": "--max-length", "max_answer_len": "--max-answer-length", "doc_stride": "--stride"}

VERBS = {"answer": Verb(_ABOUT, add_arguments, run, keywords=_KEYWORDS)}
