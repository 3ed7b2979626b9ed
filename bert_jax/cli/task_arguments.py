"""What the verbs of fine-tuned models are called with: classify, tag, answer, choose."""

import argparse

from bert_jax.cli import attend as attend_command
from bert_jax.cli import compiled as compiled_command
from bert_jax.cli import embed as embed_command
from bert_jax.cli import likelihood as likelihood_command
from bert_jax.cli import next_sentence as next_sentence_command
from bert_jax.cli import summarise as summarise_command
from bert_jax.cli.arguments import Add, add_lines, add_running, add_source
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS

_CLASSIFY = """\
The label of each text, or pair of texts, by a model that was fine-tuned for it, and its probability; of a regression
the value. What is too long is cut at the end, as in fine-tuning, and a warning says so.

examples:
  python -m bert_jax classify runs/reviews texts.txt                  one text a line, or stdin; a result a line
  python -m bert_jax classify my-bert pairs.tsv --text premise --pair hypothesis --top-k 3
  python -m bert_jax classify my-bert --json < texts.txt              a JSON list a text: label, score
"""

_TAG = """\
The entities of each text, with their characters, by a model that was fine-tuned to tag words. Nothing is cut: a long
text is read in windows.

examples:
  python -m bert_jax tag runs/ner news.txt                            one text a line, or stdin
  python -m bert_jax tag my-bert --json < news.txt                    a JSON list a text: entity_group, score, word ...
  python -m bert_jax tag my-bert test.conll --conll > predicted.conll a word a line and its tag
"""

_ANSWER = """\
The answers to questions about passages, slices of them, by a model that was fine-tuned for it.

examples:
  python -m bert_jax answer runs/squad dev-v1.1.json --output predictions.json     SQuAD's form: id to answer
  python -m bert_jax answer my-bert dev-v2.0.json --null-threshold 0 --null-odds odds.json
  python -m bert_jax answer my-bert questions.jsonl --json                         columns question and context
  python -m bert_jax answer my-bert dev-v1.1.json --top-k 20 --json --output nbest.jsonl
"""

_CHOOSE = """\
Which of several endings is right, by a model that was fine-tuned for it: its number, counted from 0, and probability.

examples:
  python -m bert_jax choose runs/swag val.csv
  python -m bert_jax choose my-bert test.jsonl --format arc --json                 id, choice, score, scores
"""

_SOURCE = "a fine-tuning run (its best model), a folder in any published format, or a published model's id"


def add_verbs(add: Add) -> None:
    """Make the parsers of these verbs and of those that have a file of their own."""
    classify = add("classify", _CLASSIFY)
    add_source(classify, _SOURCE)
    add_lines(classify, "a text a line, or a table; none: stdin")
    classify.add_argument("--text", metavar="COL", help="FILE is a .csv, .tsv or .jsonl table: the texts' column")
    classify.add_argument("--pair", metavar="COL", help="and the column of what is paired with them")
    classify.add_argument("--top-k", type=int, default=1, metavar="K", help="labels for each text (default 1)")
    _add_common(classify, "a JSON list a text: label, score")

    tag = add("tag", _TAG)
    add_source(tag, _SOURCE)
    add_lines(tag)
    tag.add_argument("--conll", action="store_true", help="FILE has CoNLL's columns, a word a line in the first")
    tag.add_argument(
        "--aggregation",
        choices=("first", "max", "average"),
        default="first",
        help="which of a word's sub-tokens speak for it: default first",
    )
    tag.add_argument(
        "--split",
        choices=("words", "spaces", "characters"),
        default="words",
        help="what is tagged in a text, as in training: default words, punctuation apart",
    )
    _add_common(tag, "a JSON list a text: entity_group, score, word, start, end")

    answer = add("answer", _ANSWER)
    add_source(answer, _SOURCE)
    answer.add_argument("file", metavar="FILE", help="SQuAD's .json, or a table with the columns question and context")
    answer.add_argument("--output", metavar="PATH", help="write the result there")
    answer.add_argument("--top-k", type=int, default=1, metavar="K", help="answers to each question (default 1)")
    answer.add_argument("--null-threshold", type=float, metavar="T", help='answer "" where that is so much better')
    answer.add_argument("--null-odds", metavar="PATH", help="write there how much better: JSON, question id to score")
    answer.add_argument("--max-length", type=int, metavar="L", help="tokens of a window (the run's, or 384)")
    answer.add_argument("--stride", type=int, metavar="N", help="tokens between two windows (the run's, or 128)")
    answer.add_argument("--max-answer-length", type=int, metavar="N", help="in tokens (the run's, or 30)")
    _add_common(answer, "a JSON object a question: id, score, start, end, answer; with --top-k a list")

    embed_command.add_verbs(add)
    for module in (attend_command, compiled_command, likelihood_command, next_sentence_command, summarise_command):
        module.add_verb(add)

    choose = add("choose", _CHOOSE)
    add_source(choose, _SOURCE)
    choose.add_argument("file", metavar="FILE", help="questions with their choices")
    choose.add_argument("--format", choices=tuple(CHOICE_READERS), default="swag", help="FILE's form: default swag")
    _add_common(choose, "a JSON object a question: id, choice, score, scores")


def _add_common(parser: argparse.ArgumentParser, what: str) -> None:
    add_running(parser)
    parser.add_argument("--json", action="store_true", help=what)
