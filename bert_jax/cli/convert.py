"""The verb convert, also called export: a model written as others want it."""

import argparse

from bert_jax.cli.arguments import SOURCE, Verb, add_step, names
from bert_jax.cli.streaming import say, write

_ABOUT = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help=SOURCE)
    parser.add_argument("directory", metavar="DST", help="the folder to write")
    parser.add_argument("--to", choices=("hf", "tf1", "sentence-transformers"), default="hf", help="default: hf")
    parser.add_argument(
        "--head", metavar="HEAD", help="encoder, mlm, sequence-classification ...; default: what is there"
    )
    add_step(parser)
    parser.add_argument("--num-labels", type=int, metavar="C", help="classes of a classifier that is drawn anew")
    parser.add_argument(
        "--allow-missing", type=names, default=(), metavar="NAME,...", help="parts that are drawn anew if missing"
    )
    parser.add_argument("--pooling", metavar="HOW", help="mean, cls or max; +normalize for vectors of length one")
    parser.add_argument("--gelu", choices=("erf", "tanh"), help="what gelu means in Google's own folders: default erf")
    parser.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="larger weights are cut (default 5GB)")


def run(arguments: argparse.Namespace) -> None:
    """`convert SRC DST`, `export RUN DIR`: a folder for others."""
    from bert_jax.formats.convert import convert

    written, report, has_tokenizer = convert(
        arguments.source,
        arguments.directory,
        to=arguments.to,
        head=None if arguments.head == "as-is" else arguments.head,
        step=arguments.step,
        num_labels=arguments.num_labels,
        allow_missing=arguments.allow_missing,
        pooling=arguments.pooling,
        max_shard_size=arguments.max_shard_size,
        gelu=arguments.gelu,
    )
    for note in report.notes:
        say(note)
    if not has_tokenizer:
        say(f"{arguments.source} has no tokenizer; the folder has none either")
    if report.unexpected:
        say(f"left out, since head {report.head} has no place for it: {', '.join(report.unexpected)}")
    say(f"wrote {written} (head {report.head}" + ("" if report.step is None else f", step {report.step:,}") + ")")
    write(str(written))


VERBS = {"convert": Verb(_ABOUT, add_arguments, run, runs_model=False)}
