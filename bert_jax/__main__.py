"""The command line, `python -m bert_jax VERB` (console script: bert-jax): arguments, exit codes, one line an error.

Results go to stdout, everything else to stderr. What a verb needs is imported when it runs, so that help is instant.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from bert_jax.cli.arguments import SOURCE, add_running, add_source, names, numbers
from bert_jax.cli.task_arguments import add_verbs
from bert_jax.errors import UserError

EXIT_DONE, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 0, 2, 130, 141

_ABOUT = """\
Look at, try and hand on a BERT: a run directory of train.pretrain, a folder in any published format, or a published
model, downloaded on first use.

examples:
  python -m bert_jax fill-mask runs/demo "Python is a [MASK] language."
  python -m bert_jax fill-mask google-bert/bert-base-uncased "The capital of France is [MASK]."
  python -m bert_jax classify runs/reviews texts.txt
  python -m bert_jax info runs/demo
  python -m bert_jax export runs/demo my-bert
  python -m bert_jax convert my-bert for-google --to tf1
"""

_SCORE = """\
Score predictions by the official rules: what train.finetune writes for any of its tasks, and what others write for
SQuAD, KorQuAD, CoNLL and GLUE. A table of your own is task classify.

examples:
  python -m bert_jax score squad1 dev-v1.1.json predictions.json
  python -m bert_jax score squad2 dev-v2.0.json predictions.json --na-prob-file null_odds.json --json
  python -m bert_jax score conll test.conll predicted.conll
  python -m bert_jax score mrpc dev.tsv MRPC.tsv
  python -m bert_jax score classify dev.csv runs/mails/predictions/dev-predictions.csv --label folder
"""

_FILL_MASK = """\
The most probable tokens for each mask of each text: [MASK], or what the model's tokenizer calls it (RoBERTa: <mask>).

examples:
  python -m bert_jax fill-mask runs/demo "Python is a [MASK] language."
  python -m bert_jax fill-mask my-bert "The [MASK] sat on the [MASK]." --top-k 3
  python -m bert_jax fill-mask my-bert --json < texts.txt        one text a line, one JSON list a line
"""

_INFO = """\
What is in a model: config, step, number of parameters, one sha256 over all of them (the same for a run directory and
its export), whether the files agree with the sums recorded when they were written, and the tree with shapes.

examples:
  python -m bert_jax info runs/demo
  python -m bert_jax info my-bert --layers
  python -m bert_jax info my-bert --json
"""

_CONVERT = """\
Write a model as others want it. What is written is read back and compared bit by bit before it takes its name; a former
export is replaced, any other folder is left alone. `export` is another word for it.

  hf                     config.json, model.safetensors, the tokenizer's files, a model card: for transformers & co.
  tf1                    bert_config.json, bert_model.ckpt.*, vocab.txt: for Google's code (BERT and ALBERT)
  sentence-transformers  as hf, the encoder alone, and how a text becomes a vector

examples:
  python -m bert_jax export runs/demo my-bert
  python -m bert_jax convert runs/demo my-encoder --head encoder   for AutoModel, without a word about unused heads
  python -m bert_jax convert uncased_L-12_H-768_A-12 my-bert       and pytorch_model.bin, Flax, shards ...
  python -m bert_jax convert my-bert for-google --to tf1
  python -m bert_jax convert runs/demo my-vectors --to sentence-transformers --pooling mean+normalize
  python -m bert_jax convert my-bert start --head sequence-classification --num-labels 3 --allow-missing classifier
"""

_EDIT = """\
Alter a model and write it as `export` does: fewer layers, fewer heads, words of a domain as tokens, longer inputs. Then
train it on: what was added starts where it does no harm, and knows nothing yet.

examples:
  python -m bert_jax edit my-bert student --keep-layers 0,2,4,7,9,11
  python -m bert_jax edit my-bert student --student distilbert
  python -m bert_jax edit my-bert smaller --prune-heads 0:1,3 --prune-heads 2:0
  python -m bert_jax edit my-bert medical --words terms.txt --into-unused   one word a line, in place of [unused0]
  python -m bert_jax edit my-bert long --positions 1024 --how interpolate
"""

_STEP = "this checkpoint of a run directory; default: the newest good one"


class _Parser(argparse.ArgumentParser):
    """argparse with one line an error."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _heads(text: str) -> tuple[int, tuple[int, ...]]:
    layer, colon, heads = text.partition(":")
    if not colon or not layer.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a layer and its heads, as in 0:1,3")
    return int(layer), numbers(heads)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; `arguments.verb` names the one that was called."""
    parser = _Parser(prog="python -m bert_jax", description=_ABOUT, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(verb: str, about: str, aliases: Sequence[str] = ()) -> argparse.ArgumentParser:
        first = about.split(".", 1)[0].split(":", 1)[0].replace("\n", " ")
        form = argparse.RawTextHelpFormatter
        return verbs.add_parser(verb, aliases=aliases, help=first, description=about, formatter_class=form)

    fill = add("fill-mask", _FILL_MASK)
    add_source(fill)
    fill.add_argument("texts", metavar="TEXT", nargs="*", help="texts with [MASK]; none: one a line from stdin")
    fill.add_argument("--top-k", type=int, default=5, metavar="K", help="tokens for each [MASK] (default 5)")
    fill.add_argument("--targets", type=names, metavar="WORD,...", help="only these, each a token of the vocabulary")
    fill.add_argument("--truncate", action="store_true", help="cut texts that are too long at the end; else an error")
    add_running(fill)
    fill.add_argument("--json", action="store_true", help="a JSON list a text: score, token, token_str, sequence")

    add_verbs(add)

    info = add("info", _INFO)
    add_source(info)
    info.add_argument("--step", type=int, metavar="N", help=_STEP)
    info.add_argument("--layers", action="store_true", help="every layer by itself, not one line for all alike")
    info.add_argument("--json", action="store_true", help="one JSON object")

    convert = add("convert", _CONVERT, aliases=("export",))
    convert.add_argument("source", metavar="SRC", help=SOURCE)
    convert.add_argument("directory", metavar="DST", help="the folder to write")
    convert.add_argument("--to", choices=("hf", "tf1", "sentence-transformers"), default="hf", help="default: hf")
    convert.add_argument(
        "--head", metavar="HEAD", help="encoder, mlm, sequence-classification ...; default: what is there"
    )
    convert.add_argument("--step", type=int, metavar="N", help=_STEP)
    convert.add_argument("--num-labels", type=int, metavar="C", help="classes of a classifier that is drawn anew")
    convert.add_argument(
        "--allow-missing", type=names, default=(), metavar="NAME,...", help="parts that are drawn anew if missing"
    )
    convert.add_argument("--pooling", metavar="HOW", help="mean, cls or max; +normalize for vectors of length one")
    convert.add_argument("--gelu", choices=("erf", "tanh"), help="what gelu means in Google's own folders: default erf")
    convert.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="larger weights are cut (default 5GB)")

    score = add("score", _SCORE)
    score.add_argument("task", metavar="TASK", help="a task of train.finetune, conll, or ax, GLUE's diagnostic set")
    score.add_argument("gold", metavar="GOLD", help="the labelled file")
    score.add_argument("predictions", metavar="PREDICTIONS", help="JSON, columns, or a table of id and prediction")
    score.add_argument("--label", metavar="NAME", help="classify: the column of labels (default label)")
    score.add_argument("--id", metavar="NAME", help="classify: the column of ids (default: row numbers)")
    score.add_argument("--kind", choices=("class", "classes", "number"), help="classify: of the labels")
    score.add_argument("--na-prob-file", metavar="FILE", help="squad2: JSON, question id to no-answer score")
    score.add_argument("--na-prob-thresh", type=float, default=1.0, metavar="T", help="above it: no answer (default 1)")
    score.add_argument("--json", action="store_true", help="one JSON object")

    edit = add("edit", _EDIT)
    edit.add_argument("source", metavar="SRC", help=SOURCE)
    edit.add_argument("directory", metavar="DST", help="the folder to write")
    edit.add_argument("--step", type=int, metavar="N", help=_STEP)
    edit.add_argument("--keep-layers", type=numbers, metavar="0,2,...", help="drop the layers that are not named")
    edit.add_argument("--student", choices=("distilbert",), help="make it a DistilBERT of six layers, or --keep-layers")
    edit.add_argument(
        "--prune-heads", type=_heads, action="append", default=[], metavar="LAYER:HEAD,...", help="once for each layer"
    )
    edit.add_argument("--words", metavar="FILE", help="a word a line; each becomes a token")
    edit.add_argument("--into-unused", action="store_true", help="in the place of [unused0] ...; else appended")
    edit.add_argument(
        "--initial",
        choices=("mean", "pieces"),
        default="mean",
        help="what new rows start as: default mean",
    )
    edit.add_argument("--positions", type=int, metavar="L", help="how many tokens an input may have")
    edit.add_argument("--how", choices=("tile", "interpolate"), default="tile", help="new positions: default tile")
    edit.add_argument("--json", action="store_true", help="one JSON object: directory, changes, new_tokens")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code: 0 done, 2 the user's mistake (one line, no traceback), 130 Ctrl-C, 141 closed pipe."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        arguments = make_parser().parse_args(argv)
        from bert_jax.cli import commands

        commands.VERBS[arguments.verb](arguments)
        sys.stdout.flush()
    except (UserError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        print("error: " + " ".join(str(error).split("\n")), file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`); without this Python complains again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
