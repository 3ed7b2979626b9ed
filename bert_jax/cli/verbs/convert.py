"""The verb convert, also called export: writes a model in the format that other programs expect."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import Verb, add_json, add_source_and_target, add_step, check_target, names
from bert_jax.cli.streaming import say, to_json, write
from bert_jax.cli.texts import file_of, lines_of
from bert_jax.errors import UserError, quoted

if TYPE_CHECKING:
    from bert_jax.data.tasks.labelled_text import LabelledText

_ABOUT = """\
Write a model in the format that other programs expect. The folder is read back and compared bit by bit before it is
renamed to DST. With --overwrite an earlier export there is replaced; any other folder is refused. This verb is also
called `export`.

  hf                     config.json, model.safetensors, the tokenizer's files, a model card: for transformers etc.
  tf1                    bert_config.json, bert_model.ckpt.*, vocab.txt: for Google's code (BERT and ALBERT)
  sentence-transformers  as hf, but the encoder alone, with a description of the pooling
  onnx                   onnx/model.onnx, config.json, the tokenizer's files: for onnxruntime, OpenVINO, optimum,
                         sentence-transformers' backend="onnx", transformers.js; needs pip install "bert-jax[onnx]"

examples:
  python -m bert_jax export runs/demo my-bert
  python -m bert_jax convert runs/demo my-encoder --head encoder   AutoModel loads it without a warning about heads
  python -m bert_jax convert uncased_L-12_H-768_A-12 my-bert       also reads pytorch_model.bin, Flax, shards ...
  python -m bert_jax convert my-bert for-google --to tf1
  python -m bert_jax convert runs/demo my-vectors --to sentence-transformers --pooling mean+normalize
  python -m bert_jax convert my-bert my-onnx --to onnx
  python -m bert_jax convert my-vectors small --to onnx --int8 --texts sentences.txt
  python -m bert_jax convert my-vectors small --to onnx --int8 --calibrate sentences.txt       for OpenVINO
  python -m bert_jax convert my-bert start --head sequence-classification --num-labels 3 --allow-missing classifier
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_and_target(parser)
    parser.add_argument(
        "--to", choices=("hf", "tf1", "sentence-transformers", "onnx"), default="hf", help="default: hf"
    )
    head = "encoder, mlm, sequence-classification ...; default: the source's own"
    parser.add_argument("--head", metavar="HEAD", help=head)
    add_step(parser)
    parser.add_argument("--num-labels", type=int, metavar="C", help="classes of a classifier that the source lacks")
    missing = "initialise these parts randomly if the source lacks them"
    parser.add_argument("--allow-missing", type=names, action="extend", default=[], metavar="NAME,...", help=missing)
    parser.add_argument("--pooling", metavar="HOW", help="mean, cls or max; +normalize for vectors of length one")
    gelu = "what gelu means in Google's own folders: default erf, in an ALBERT's tanh"
    parser.add_argument("--gelu", choices=("erf", "tanh"), help=gelu)
    shards = "split weights that are larger into several files (default 5GB)"
    parser.add_argument("--max-shard-size", metavar="SIZE", help=shards)
    int8 = "onnx: also write onnx/model_quantized.onnx, in int8"
    parser.add_argument("--int8", action="store_true", help=int8)
    ranges = """texts, one per line, some hundreds: NNCF finds the ranges of int8 on them
once, for OpenVINO; default: ranges of each call, for onnxruntime"""
    parser.add_argument("--calibrate", metavar="FILE", help=ranges)
    cost = "texts to print the cost of int8 on: a file with one per line"
    parser.add_argument("--texts", metavar="FILE", help=cost)
    task = "a labelled file of GLUE to score float32 and int8 on, such as stsb=dev.tsv"
    parser.add_argument("--score", metavar="TASK=FILE", help=task)
    add_json(parser, "one JSON object: directory, head, step, notes, unexpected")


def run(arguments: argparse.Namespace) -> None:
    """`convert SRC DST`, `export RUN DIR`: writes a folder for other programs."""
    check_target(arguments)
    size, to = arguments.max_shard_size, arguments.to
    if size and to in ("tf1", "onnx"):
        raise UserError(f"--max-shard-size {size}: --to {to} writes the weights in one file; leave it out")
    measured = _what_to_measure(arguments)
    from bert_jax.formats.convert import convert
    from bert_jax.formats.load import load_tokenizer

    calibration = _texts_of(arguments.calibrate)
    if (calibration or measured != ([], None)) and load_tokenizer(arguments.source) is None:
        need = "which --calibrate, --texts and --score need; leave them out"
        raise UserError(f"{arguments.source}: has no tokenizer, {need}")

    written, report, has_tokenizer = convert(
        arguments.source,
        arguments.directory,
        to=to,
        head=arguments.head,
        step=arguments.step,
        num_labels=arguments.num_labels,
        allow_missing=arguments.allow_missing,
        pooling=arguments.pooling,
        max_shard_size=size or "5GB",
        gelu=arguments.gelu,
        int8=arguments.int8,
        calibration=calibration,
    )
    for note in report.notes:
        say(note)
    if not has_tokenizer:
        say(f"{arguments.source} has no tokenizer; the folder has none either")
    if report.unexpected:
        say(f"left out, because head {report.head} does not have them: {', '.join(report.unexpected)}")
    say(f"wrote {written} (head {report.head}" + ("" if report.step is None else f", step {report.step:,}") + ")")
    cost = _cost_of_int8(written, *measured) if arguments.int8 else {}
    if not arguments.json:
        write(str(written))
        return
    told = {"directory": str(written), "head": report.head, "step": report.step, "notes": list(report.notes)}
    write(to_json(told | {"unexpected": list(report.unexpected)} | ({"int8": cost} if arguments.int8 else {})))


def _what_to_measure(arguments: argparse.Namespace) -> tuple[list[str], tuple[str, "list[LabelledText]"] | None]:
    """The texts of --texts, and the task and rows of --score, which are read before anything is written."""
    from bert_jax.data.tasks.published import GLUE
    from bert_jax.evaluation.int8 import labelled_examples

    if not arguments.int8 and arguments.calibrate:
        raise UserError("--calibrate finds the ranges of int8; add --int8")
    if not arguments.int8 and (arguments.texts or arguments.score):
        raise UserError("--texts and --score measure what int8 costs; add --int8")
    texts = _texts_of(arguments.texts)
    if not arguments.score:
        return texts, None
    task, equals, name = arguments.score.partition("=")
    if not equals:
        raise UserError(f"--score {arguments.score}: expected TASK=FILE, such as stsb=dev.tsv")
    if task not in GLUE:
        raise UserError(f"--score {arguments.score}: {quoted(task)} is not a task of GLUE; expected {', '.join(GLUE)}")
    return texts, (task, labelled_examples(task, file_of(name)))


def _texts_of(file: str | None) -> list[str]:
    """The lines of a file that are not blank; none without a file."""
    texts = []
    for text in lines_of(file) if file else ():
        if isinstance(text, UserError):
            raise text
        if text.strip():
            texts.append(text)
    if file and not texts:
        raise UserError(f"{file}: has no text; expected one per line")
    return texts


def _cost_of_int8(folder: Path, texts: list[str], task: tuple[str, "list[LabelledText]"] | None) -> dict[str, Any]:
    """Say how far int8 is from float32, and return the same figures."""
    from bert_jax.evaluation.int8 import compare_on_texts, glue_score, open_graph
    from bert_jax.formats.load import load_config, load_tokenizer
    from bert_jax.formats.onnx.save import MODEL, QUANTIZED
    from bert_jax.formats.sentence_transformers import Vectors, vectors_of
    from bert_jax.formats.write import longest_text

    sizes = [(folder / name).stat().st_size / 1e6 for name in (MODEL, QUANTIZED)]
    say(f"{QUANTIZED}: {sizes[1]:,.1f} MB; {MODEL}: {sizes[0]:,.1f} MB")
    if not texts and task is None:
        say("what int8 costs was not measured; name texts with --texts FILE, or a task of GLUE with --score TASK=FILE")
        return {}
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    assert tokenizer is not None  # `run` has asked
    vectors = vectors_of(folder) or Vectors("mean")
    if vectors.lower_case:
        tokenizer = tokenizer.lower_cased()
    prompt = vectors.prompt if vectors.include_prompt else ""
    longest = longest_text(config, tokenizer)
    facts = (tokenizer, longest, vectors.pooling, config.labels, prompt, vectors.truncate_dim)
    whole, small = (open_graph(folder / name, *facts) for name in (MODEL, QUANTIZED))
    found: dict[str, Any] = {}
    if texts:
        found |= compare_on_texts(whole, small, texts)
        figures = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        say(f"int8 beside float32 on {len(texts):,} texts: {figures}")
    if task is not None:
        before, after = (glue_score(graph, *task) for graph in (whole, small))
        for name, value in before.items():
            found[f"{task[0]} {name}"] = {"float32": value, "int8": after[name]}
            say(f"{task[0]}, {name}: float32 {value:.4f}, int8 {after[name]:.4f}")
    return found


VERBS = {"convert": Verb(_ABOUT, add_arguments, run, runs_model=False)}
