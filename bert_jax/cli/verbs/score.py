"""The verb score: scores predictions by the official rules."""

import argparse
import math
from pathlib import Path

from bert_jax.cli.arguments import Verb, add_results, score_threshold
from bert_jax.cli.streaming import write
from bert_jax.errors import UserError, in_a_line
from bert_jax.files import json_text

_ABOUT = """\
Score predictions by the official rules: those that train.finetune writes for any of its tasks, and the files that other
programs write for SQuAD, KorQuAD, CoNLL, CoNLL-U and GLUE. For a table of your own use the task classify.

A run directory, or a SPLIT.jsonl of its predictions/, has the gold labels with the predictions.

examples:
  python -m bert_jax score runs/mails
  python -m bert_jax score mrpc runs/mrpc/predictions/dev.jsonl
  python -m bert_jax score squad1 dev-v1.1.json predictions.json
  python -m bert_jax score squad2 dev-v2.0.json predictions.json --na-prob-file null_odds.json --json
  python -m bert_jax score conll test.conll predicted.conll
  python -m bert_jax score pos test.conllu predicted.conll
  python -m bert_jax score mrpc dev.tsv MRPC.tsv
  python -m bert_jax score classify dev.csv runs/mails/predictions/dev-predictions.csv --label folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = "a task of train.finetune, conll, or ax (GLUE's diagnostic set); or alone: a fine-tuning run"
    parser.add_argument("task", metavar="TASK|RUN", help=tasks)
    gold = "the labelled file; or, without PREDICTIONS, predictions/SPLIT.jsonl of a fine-tuning run"
    parser.add_argument("gold", metavar="GOLD", nargs="?", help=gold)
    predictions = (
        "JSON, columns, or a table of id and prediction; for classify also a .jsonl of the verb classify --json"
    )
    parser.add_argument("predictions", metavar="PREDICTIONS", nargs="?", help=predictions)
    parser.add_argument(
        "--label", metavar="NAME", help="classify: the column of labels, or columns: 'a|b' (default label)"
    )
    parser.add_argument("--id", metavar="NAME", help="classify: the column of ids (default: row numbers)")
    parser.add_argument("--kind", choices=("class", "classes", "number"), help="classify: the kind of label")
    parser.add_argument("--na-prob-file", metavar="FILE", help="squad2: no-answer scores, JSON {id: score}")
    threshold = 'squad2: an answer whose no-answer score is above T counts as "" (default 1)'
    parser.add_argument("--na-prob-thresh", type=score_threshold, metavar="T", help=threshold)
    add_results(parser, "one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """`score TASK GOLD PREDICTIONS`, `score TASK SPLIT.jsonl` or `score RUN`: prints the official script's scores."""
    from bert_jax.data.tasks.labelled_text import Columns
    from bert_jax.evaluation.predictions import score_file, score_run
    from bert_jax.evaluation.score import score

    given = {"label": arguments.label, "id": arguments.id, "kind": arguments.kind}
    own = {name: value for name, value in given.items() if value is not None}
    if arguments.predictions is None:
        if own or arguments.na_prob_file or arguments.na_prob_thresh is not None:
            raise UserError(
                "--label, --id, --kind, --na-prob-file and --na-prob-thresh belong to GOLD PREDICTIONS; say both files"
            )
        if arguments.gold is None:
            return _show(score_run(arguments.task), arguments.json)
        return _show({"": score_file(arguments.task, Path(arguments.gold))}, arguments.json)
    if arguments.na_prob_thresh is not None and arguments.na_prob_file is None:
        threshold = f"--na-prob-thresh {arguments.na_prob_thresh}"
        raise UserError(f"{threshold}: needs the scores that it applies to; say --na-prob-file FILE, or leave it out")
    if own and arguments.task != "classify":
        raise UserError(f"--label, --id, --kind are for classify only; {arguments.task} has its own columns")
    scores = score(
        arguments.task,
        Path(arguments.gold),
        Path(arguments.predictions),
        no_answer_scores=Path(arguments.na_prob_file) if arguments.na_prob_file else None,
        no_answer_threshold=arguments.na_prob_thresh,
        columns=Columns(None, **own) if own else None,
    )
    return _show({"": scores}, arguments.json)


def _show(splits: dict[str, dict[str, float]], as_json: bool) -> None:
    """Prints the scores of each split under its name; those of a file, whose name is "", alone."""
    if as_json:
        write(json_text(splits.get("", splits)))
        return
    for split, scores in splits.items():
        shown = {in_a_line(name): f"{value:.15g}" if math.isfinite(value) else "none" for name, value in scores.items()}
        width = max(map(len, shown))
        lines = [f"{name:{width}}  {value}" for name, value in shown.items()]
        write("\n".join([f"{in_a_line(split)}:", *(f"  {line}" for line in lines)] if split else lines))


VERBS = {"score": Verb(_ABOUT, add_arguments, run, runs_model=False)}
