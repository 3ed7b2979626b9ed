"""The verb convert, also called export: writes a model in the format that other programs expect."""

import argparse

from bert_jax.cli.arguments import Verb, add_json, add_source_and_target, add_step, check_target, names
from bert_jax.cli.streaming import say, to_json, write

_ABOUT = """\
Write a model in the format that other programs expect. The folder is read back and compared bit by bit before it is
renamed to DST. With --overwrite an earlier export there is replaced; any other folder is refused. This verb is also
called `export`.

  hf                     config.json, model.safetensors, the tokenizer's files, a model card: for transformers etc.
  tf1                    bert_config.json, bert_model.ckpt.*, vocab.txt: for Google's code (BERT and ALBERT)
  sentence-transformers  as hf, but the encoder alone, with a description of the pooling

examples:
  python -m bert_jax export runs/demo my-bert
  python -m bert_jax convert runs/demo my-encoder --head encoder   AutoModel loads it without a warning about heads
  python -m bert_jax convert uncased_L-12_H-768_A-12 my-bert       also reads pytorch_model.bin, Flax, shards ...
  python -m bert_jax convert my-bert for-google --to tf1
  python -m bert_jax convert runs/demo my-vectors --to sentence-transformers --pooling mean+normalize
  python -m bert_jax convert my-bert start --head sequence-classification --num-labels 3 --allow-missing classifier
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_and_target(parser)
    parser.add_argument("--to", choices=("hf", "tf1", "sentence-transformers"), default="hf", help="default: hf")
    head = "encoder, mlm, sequence-classification ...; default: the source's own"
    parser.add_argument("--head", metavar="HEAD", help=head)
    add_step(parser)
    parser.add_argument("--num-labels", type=int, metavar="C", help="classes of a classifier that the source lacks")
    missing = "initialise these parts randomly if the source lacks them"
    parser.add_argument("--allow-missing", type=names, default=(), metavar="NAME,...", help=missing)
    parser.add_argument("--pooling", metavar="HOW", help="mean, cls or max; +normalize for vectors of length one")
    parser.add_argument("--gelu", choices=("erf", "tanh"), help="what gelu means in Google's own folders: default erf")
    shards = "split weights that are larger into several files (default 5GB)"
    parser.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help=shards)
    add_json(parser, "one JSON object: directory, head, step, notes, unexpected")


def run(arguments: argparse.Namespace) -> None:
    """`convert SRC DST`, `export RUN DIR`: writes a folder for other programs."""
    check_target(arguments)
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
        say(f"left out, because head {report.head} does not have them: {', '.join(report.unexpected)}")
    say(f"wrote {written} (head {report.head}" + ("" if report.step is None else f", step {report.step:,}") + ")")
    if not arguments.json:
        write(str(written))
        return
    told = {"directory": str(written), "head": report.head, "step": report.step, "notes": list(report.notes)}
    write(to_json(told | {"unexpected": list(report.unexpected)}))


VERBS = {"convert": Verb(_ABOUT, add_arguments, run, runs_model=False)}
