"""The verb info: describes a model: config, step, parameter count, checksum, and whether its files are undamaged."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import Verb, add_results, add_source, add_step
from bert_jax.cli.streaming import write
from bert_jax.config import BertConfig
from bert_jax.errors import UserError, in_a_line
from bert_jax.files import read_summed
from bert_jax.shown import duration

_ABOUT = """\
Describe a model: config, step, number of parameters, one sha256 over all of them (the same for a run directory and its
export), whether the files match the checksums recorded when they were written, whether all parameters are finite, how a
sentence-transformers folder makes vectors, which runtime and type a pipeline takes on this machine, and the parameter
tree with shapes.

examples:
  python -m bert_jax info runs/demo
  python -m bert_jax info my-bert --layers
  python -m bert_jax info my-bert --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_step(parser)
    parser.add_argument("--layers", action="store_true", help="list every layer; default: one line for equal layers")
    add_results(parser, "one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """`info DIR`: prints a description of a model."""
    found = describe(arguments.source, step=arguments.step)
    if arguments.json:
        write(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        write(show(found, every_layer=arguments.layers))


def describe(source: str | os.PathLike[str], *, step: int | None = None) -> dict[str, Any]:
    """Describes a model, as JSON values: everything that `python -m bert_jax info` prints.

    Args:
        source: a run directory, a Hugging Face folder or a hub id.
        step: this checkpoint of a run; None: the newest undamaged one, or of a fine-tuning run its best model.

    Returns:
        kind: "run" or "folder"; path; published: "ORG/NAME@COMMIT" for a model from the hub, else None; head; config
            (Hugging Face's fields).
        step: None if a folder does not record it; steps: all steps of a run.
        parameters: their number; sha256: `tree.sha256_of_parameters`, the same for a run and its export.
        verified: whether all bytes match the checksums recorded when they were written; None without checksums.
        not_finite: the first parameter that has a NaN or an infinity; None if none has.
        damaged: step -> what is wrong with it, for the run's steps that are newer than the one described.
        goodput: the seconds in the run's goodput.json; None without one.
        missing, unexpected, mismatched, notes: from the load report.
        tokenizer: tokens, cased, fingerprint; None without a tokenizer.
        vectors: what the files of a sentence-transformers folder say: pooling, max_length (None: nothing), prompts,
            prompt (the one put before each text; "": none), include_prompt (whether the pooling counts its tokens),
            lower_case (whether texts are lower-cased first), similarity, truncate_dim; None for another folder.
        runtime: name, dtype: what a pipeline of this model takes on this machine by itself.
        tree: path -> shape.

    Raises:
        FileNotFoundError, UserError: as `bert_jax.load`.
    """
    from bert_jax.formats.load import load_arrays, load_tokenizer
    from bert_jax.formats.sentence_transformers import vectors_of
    from bert_jax.formats.source import open_source
    from bert_jax.formats.weights import open_weights
    from bert_jax.inference.runtimes.choice import on_this_machine
    from bert_jax.tree import first_not_finite, flatten, parameter_count, sha256_of_parameters

    opened = open_source(source)
    config, params, report = load_arrays(opened, step=step, verify=False)
    tokenizer = load_tokenizer(opened)
    runtime = on_this_machine(config)
    vectors, of_vectors = None, []
    try:
        vectors = None if opened.is_run else vectors_of(opened.folder)
    except UserError as error:  # such as a layer that we do not have: embed refuses it, and the model loads
        of_vectors = [str(error)]
    verified, steps, damaged = report.verified, [], {}
    if opened.is_run:
        steps, damaged = _steps(opened.folder, report.step)
    if not (read := opened.best(step)).is_run:  # a folder, or the best model of a fine-tuning run
        with open_weights(read.folder, config.model_type) as tensors:
            verified = tensors.verify()
    return {
        "kind": "run" if opened.is_run else "folder",
        "path": str(source),
        "published": opened.published,
        "head": report.head,
        "step": report.step,
        "steps": steps,
        "config": config.to_json(),
        "parameters": parameter_count(params),
        "sha256": sha256_of_parameters(params),
        "verified": verified,
        "not_finite": first_not_finite(flatten(params).items()),
        "damaged": damaged,
        "goodput": _goodput(opened.folder) if opened.is_run else None,
        "missing": list(report.missing),
        "unexpected": list(report.unexpected),
        "notes": [*report.notes, *of_vectors],
        "mismatched": list(report.mismatched),
        "tokenizer": tokenizer
        and {"tokens": tokenizer.vocab_size, "cased": tokenizer.cased, "fingerprint": tokenizer.fingerprint},
        "vectors": vectors
        and {
            "pooling": vectors.pooling,
            "max_length": vectors.max_length,
            "prompts": vectors.prompts,
            "prompt": vectors.prompt,
            "include_prompt": vectors.include_prompt,
            "lower_case": vectors.lower_case,
            "similarity": vectors.similarity,
            "truncate_dim": vectors.truncate_dim,
        },
        "runtime": {"name": runtime.title, "dtype": runtime.dtype},
        "tree": {name: list(array.shape) for name, array in flatten(params).items()},
    }


def _steps(run: Path, shown: int | None) -> tuple[list[int], dict[str, list[str]]]:
    from bert_jax.training.checkpoint.checkpoints import Checkpoints

    with Checkpoints(run / "checkpoints") as checkpoints:
        steps = checkpoints.steps()
        newer = [step for step in steps if shown is not None and step > shown]
        problems = {str(step): checkpoints.verify(step) for step in newer}
    return steps, {step: lines for step, lines in problems.items() if lines}


def show(found: dict[str, Any], *, every_layer: bool) -> str:
    """Formats the description: facts, then the parameter tree, with one line for equal layers unless `every_layer`."""
    kind = {"run": "run directory", "folder": "folder"}[found["kind"]]
    facts = {
        "directory": f"{found['path']} ({kind})",
        "published": found["published"],
        "model": f"{found['head']}: {_size(found['config'])}",
        "config": ", ".join(f"{name} {value}" for name, value in found["config"].items() if name not in _IN_SIZE),
        "step": _step(found),
        "parameters": f"{found['parameters']:,}",
        "sha256": found["sha256"],
        "verified": _verified(found),
        "finite": "yes" if found["not_finite"] is None else f"NO: {found['not_finite']} has a NaN or an infinity",
        "tokenizer": _tokenizer(found["tokenizer"]),
        "vectors": found["vectors"] and _vectors(found["vectors"]),
        "runtime": f"{found['runtime']['name']}, {found['runtime']['dtype']} (what a pipeline takes on this machine)",
        "time": found["goodput"] and _time(found["goodput"]),
    }
    facts |= {name: ", ".join(found[name]) for name in ("missing", "unexpected", "mismatched", "notes")}
    lines = [f"{name:<12}{value}" for name, value in facts.items() if value]
    tree = {path: tuple(shape) for path, shape in found["tree"].items()}
    rows = [(path, str(list(shape))) for path, shape in (tree if every_layer else _folded(tree)).items()]
    width = max((len(path) for path, _ in rows), default=0)
    return "\n".join(map(in_a_line, [*lines, "tree", *(f"  {path:<{width}}  {shape}" for path, shape in rows)]))


_IN_SIZE = {
    "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "n_layers", "dim", "n_heads", "hidden_dim",
}  # fmt: skip


def _size(fields: dict[str, Any]) -> str:
    config = BertConfig.from_json(fields)  # its field names are the same for every family
    return (
        f"{config.model_type}, {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.vocab_size} tokens, {config.max_position_embeddings} positions"
    )


def _step(found: dict[str, Any]) -> str:
    if found["step"] is None:
        return "not recorded"
    there = f" (the run has {', '.join(f'{step:,}' for step in found['steps'])})" if found["steps"] else ""
    return f"{found['step']:,}{there}"


def _verified(found: dict[str, Any]) -> str:
    damaged = "".join(f"; step {step} is DAMAGED: {lines[0]}" for step, lines in found["damaged"].items())
    if found["verified"] is None:
        return "no: the file has no checksum"
    if not found["verified"]:
        return "NO: the weights do not match the checksum recorded when they were written; they are damaged"
    return "yes: every byte matches the checksums recorded when it was written" + damaged


def _goodput(run: Path) -> dict[str, float] | None:
    """The numbers in a run's goodput.json; None if it is missing or damaged, which stops nothing."""
    try:
        found = read_summed(run / "goodput.json")
    except (UserError, OSError):
        return None
    numbers = {name: value for name, value in found.items() if type(value) in (int, float)}
    return numbers if {"wall", "productive", "starts", "stopped"} <= numbers.keys() and numbers["wall"] > 0 else None


def _time(goodput: dict[str, float]) -> str:
    """Where the time of a run went: the productive part, then the other parts, the longest first."""
    wall, starts = goodput["wall"], goodput["starts"]
    rest = {name: value for name, value in goodput.items() if name not in _NO_PART_OF_WALL and value >= wall / 1000}
    parts = [f"{name} {rest[name] / wall:.1%}" for name in sorted(rest, key=lambda name: -rest[name])]
    shown = f"{goodput['productive'] / wall:.1%} of {duration(wall)} productive; {', '.join(parts)}"
    return shown + (f"; {starts:.0f} starts, stopped for {duration(goodput['stopped'])} between" if starts > 1 else "")


_NO_PART_OF_WALL = ("wall", "productive", "stopped", "starts", "written")


def _tokenizer(tokenizer: dict[str, Any] | None) -> str:
    if tokenizer is None:
        return "none"
    return f"{tokenizer['tokens']} tokens, {'cased' if tokenizer['cased'] else 'uncased'}"


def _vectors(vectors: dict[str, Any]) -> str:
    parts = [vectors["pooling"]]
    if vectors["max_length"] is not None:
        parts.append(f"of at most {vectors['max_length']} tokens")
    if vectors["truncate_dim"] is not None:
        parts.append(f"its first {vectors['truncate_dim']} numbers")
    if vectors["lower_case"]:
        parts.append("of texts in lower case")
    parts.append(f"compared by {vectors['similarity']}")
    parts += [f"prompt {name}: {prompt!r}" for name, prompt in vectors["prompts"].items() if prompt]
    if vectors["prompt"]:
        parts.append(f"before each text by itself: {vectors['prompt']!r}")
    if not vectors["include_prompt"]:
        parts.append("a prompt's tokens are left out of the pooling")
    return "; ".join(parts)


def _folded(tree: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Joins parameters with the same shape in all layers: layer_0 … layer_11 become layer_{0-11}."""
    layers = sorted({int(match[1]) for path in tree if (match := _LAYER.search(path))})
    folded: dict[str, tuple[int, ...]] = {}
    for path, shape in tree.items():
        row = _LAYER.sub("layer_*", path)
        alike = [tree.get(row.replace("*", str(layer))) for layer in layers]
        name = row.replace("*", f"{{{layers[0]}-{layers[-1]}}}") if row != path and len(layers) > 1 else path
        folded[name if set(alike) == {shape} else path] = shape
    return folded


_LAYER = re.compile(r"\blayer_(\d+)\b")


VERBS = {"info": Verb(_ABOUT, add_arguments, run, runs_model=False)}
