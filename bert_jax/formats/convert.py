"""Convert a model from any form that `load` reads to one that other programs expect: `python -m bert_jax convert`."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bert_jax.errors import UserError
from bert_jax.formats.load import load, load_arrays, load_tokenizer
from bert_jax.formats.names.parameters import find_head, is_encoder
from bert_jax.formats.onnx.save import save_onnx
from bert_jax.formats.read import ReadModel, Report
from bert_jax.formats.sentence_transformers import Vectors, vectors_of
from bert_jax.formats.source import AnySource, Source, open_source
from bert_jax.formats.tensorflow.google import Gelu
from bert_jax.formats.training_record import training_record
from bert_jax.formats.write import save_pretrained

_ENCODERS = ("encoder", "encoder-no-pooler")


class Converted(NamedTuple):
    """The folder that was written, the report on every parameter that was read, and whether it has a tokenizer."""

    directory: Path
    report: Report
    has_tokenizer: bool


def convert(
    source: AnySource,
    directory: str | os.PathLike[str],
    *,
    to: Literal["hf", "tf1", "sentence-transformers", "onnx"] = "hf",
    head: str | None = None,
    step: int | None = None,
    num_labels: int | None = None,
    allow_missing: Iterable[str] = (),
    pooling: str | None = None,
    max_shard_size: int | str = "5GB",
    gelu: Gelu | None = None,
    int8: bool = False,
    calibration: Sequence[str] = (),
) -> Converted:
    """Reads `source` and writes it in another form, or for another head.

    Args:
        source: as in `load`: a run directory, a folder in any format, a hub id.
        directory: the folder to write. A former export is replaced; any other existing folder is an error.
        to: "hf" (config.json and model.safetensors), "tf1" (Google's checkpoint), "sentence-transformers" or
            "onnx" (config.json and onnx/model.onnx).
        head: the head to write; None: the head that `source` has, or for sentence-transformers its encoder.
        step: of a run directory, the checkpoint to read; None: the newest, or of a fine-tuning run its best model.
        num_labels, allow_missing: as in `load`.
        pooling: as in `save_pretrained`. None: an encoder keeps that of `source`, with its maximum length and prompts;
            if `source` has none, "mean" for sentence-transformers and none for hf and onnx. Google's form has none.
        max_shard_size: as in `save_pretrained`.
        gelu: as in `load`.
        int8, calibration: for onnx, as in `save_onnx`.

    Raises:
        FileNotFoundError, UserError: as `load`, `save_pretrained` and `save_onnx`.
    """
    if int8 and to != "onnx":
        raise UserError(f'int8=True: to={to!r} stores float32; expected to="onnx"')
    if pooling is not None and to == "tf1":
        raise UserError(f"pooling={pooling!r}: Google's format has none; leave it out, or write another folder for it")
    if to == "sentence-transformers" and head not in (None, *_ENCODERS):
        raise UserError(f"head={head!r}: sentence-transformers has encoders only; expected {' or '.join(_ENCODERS)}")
    opened = open_source(source)
    if to == "sentence-transformers" and head is None:
        head = _encoder_in(opened, step)
    config, params, report = _read(opened, head, step, num_labels, tuple(allow_missing), gelu)
    if num_labels is not None and "classifier" not in find_head(report.head, config).parts:
        raise UserError(
            f"num_labels={num_labels}: the head {report.head} has no classes; say head='sequence-classification', or "
            "leave it out"
        )
    try:
        vectors = vectors_of(opened.folder, pooling)
    except UserError as error:
        if pooling is not None or to not in ("hf", "tf1"):
            raise
        vectors, report = None, replace(report, notes=(*report.notes, f"its pooling is left out: {error}"))
    if vectors is not None and pooling is None and (to == "tf1" or not is_encoder(report.head, config)):
        why = "Google's format has none" if to == "tf1" else f"the head {report.head} is not an encoder"
        report = replace(report, notes=(*report.notes, f"the pooling {vectors.pooling} is left out: {why}"))
        vectors = None
    if vectors is None and to == "sentence-transformers":
        vectors = vectors_of(opened.folder, "mean")
    tokenizer = load_tokenizer(opened, **options_of(vectors))
    card = training_record(opened.folder, report.step) if opened.is_run else None
    if opened.published:
        card = {"converted from": opened.published}
    step = report.step
    if to == "tf1" and step is not None:
        if not opened.is_run:  # a run's card says the step
            report = replace(report, notes=(*report.notes, f"its step {step:,} is left out: Google's format has none"))
        step = None
    facts = {"head": report.head, "step": step, "card": card, "sentence_transformers": vectors}
    if to == "onnx":
        written = save_onnx(directory, config, params, tokenizer, **facts, int8=int8, calibration=calibration)
    else:
        sized = {"max_shard_size": max_shard_size, "tf1": to == "tf1"}
        written = save_pretrained(directory, config, params, tokenizer, **facts, **sized)
    return Converted(written, report, tokenizer is not None)


def options_of(vectors: Vectors | None) -> dict[str, Any]:
    """The options of `load_tokenizer` for a folder of sentence-transformers: its maximum length, if it names one."""
    return {} if vectors is None or vectors.max_length is None else {"max_length": vectors.max_length}


def _read(
    source: Source,
    head: str | None,
    step: int | None,
    num_labels: int | None,
    allow_missing: tuple[str, ...],
    gelu: Gelu | None,
) -> ReadModel:
    """Reads on the host, without running JAX, unless some parameters have to be initialised randomly."""
    if allow_missing or num_labels is not None:
        loaded = load(source, head=head, step=step, num_labels=num_labels, allow_missing=allow_missing, gelu=gelu)
        return ReadModel(loaded.config, loaded.params, loaded.report)
    found = load_arrays(source, head=head, step=step, gelu=gelu)
    found.report.check()
    return found


def _encoder_in(source: Source, step: int | None) -> str:
    """The head "encoder" if `source` has a pooler (or its family never has one), else "encoder-no-pooler"."""
    config, _, report = load_arrays(source, step=step, verify=False)
    has_pooler = not config.has_pooler or "pooler" in find_head(report.head, config).parts
    return "encoder" if has_pooler else "encoder-no-pooler"
