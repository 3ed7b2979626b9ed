"""The verb score: predictions scored by the official rules."""

import argparse
import math
from pathlib import Path

from bert_jax.cli.arguments import Verb, add_json
from bert_jax.cli.streaming import write
from bert_jax.errors import UserError
from bert_jax.files import json_text

_ABOUT = """\
Score predictions by the official rules: what train.finetune writes for any of its tasks, and what others write for
SQuAD, KorQuAD, CoNLL and GLUE. A table of your own is task classify.

examples:
  python -m bert_jax score squad1 dev-v1.1.json predictions.json
  python -m bert_jax score squad2 dev-v2.0.json predictions.json --na-prob-file null_odds.json --json
  python -m bert_jax score conll test.conll predicted.conll
  python -m bert_jax score mrpc dev.tsv MRPC.tsv
  python -m bert_jax score classify dev.csv runs/mails/predictions/dev-predictions.csv --label folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="a task of train.finetune, conll, or ax, GLUE's diagnostic set")
    parser.add_argument("gold", metavar="GOLD", help="the labelled file")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="JSON, columns, or a table of id and prediction")
    parser.add_argument("--label", metavar="NAME", help="classify: the column of labels (default label)")
    parser.add_argument("--id", metavar="NAME", help="classify: the column of ids (default: row numbers)")
    parser.add_argument("--kind", choices=("class", "classes", "number"), help="classify: of the labels")
    parser.add_argument("--na-prob-file", metavar="FILE", help="squad2: JSON, question id to no-answer score")
    parser.add_argument(
        "--na-prob-thresh", type=float, default=1.0, metavar="T", help="above it: no answer (default 1)"
    )
    add_json(parser, "one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """`score TASK GOLD PREDICTIONS`: what the official script says."""
    from bert_jax.data.tasks.labelled_text import Columns
    from bert_jax.evaluation.score import score

    given = {"label": arguments.label, "id": arguments.id, "kind": arguments.kind}
    own = {name: value for name, value in given.items() if value is not None}
    if own and arguments.task != "classify":
        raise UserError(f"--label, --id, --kind are of classify; {arguments.task} has its own columns")
    scores = score(
        arguments.task,
        Path(arguments.gold),
        Path(arguments.predictions),
        no_answer_scores=Path(arguments.na_prob_file) if arguments.na_prob_file else None,
        no_answer_threshold=arguments.na_prob_thresh,
        columns=Columns(None, **own) if own else None,
    )
    if arguments.json:
        write(json_text(scores))
    else:
        width = max(map(len, scores))
        shown = {name: f"{value:.15g}" if math.isfinite(value) else "none" for name, value in scores.items()}
        write("\n".join(f"{name:{width}}  {value}" for name, value in shown.items()))


VERBS = {"score": Verb(_ABOUT, add_arguments, run, runs_model=False)}
