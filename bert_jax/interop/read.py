"""Read somebody's model folder: its config and the weights beside it -> (config, arrays, report), with NumPy alone."""

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config import CONFIG_FILES, BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.google_gelu import Gelu, google_hidden_act
from bert_jax.interop.names import family_of, head_in, is_encoder, table_keys
from bert_jax.interop.report import Report
from bert_jax.interop.safetensors import STEP
from bert_jax.interop.selection import read_arrays, select
from bert_jax.interop.stored import InMemory, Stored
from bert_jax.interop.tree import unflatten
from bert_jax.interop.weights import has_weights, open_weights


class ReadModel(NamedTuple):
    """config, parameters (nested dict of float32 NumPy arrays), report."""

    config: BertConfig
    params: dict[str, Any]
    report: Report


class OpenModel:
    """A model folder whose config and names of tensors have been read, and whose tensors can be.

    Args:
        directory, head, labels, verify, gelu: as `read_model`.

    Attributes:
        config: the architecture.
        report: what will be read and what not; `verified` is known when all arrays were read.

    Raises:
        FileNotFoundError, UserError: as `read_model`, but for the sum.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        head: str | None = None,
        labels: tuple[str, ...] | None = None,
        verify: bool = True,
        gelu: Gelu | None = None,
    ):
        folder = Path(directory)
        raw = _read_config(folder)
        self.config = BertConfig.from_json(folder)
        notes = ()
        if not (folder / CONFIG_FILES[0]).is_file():
            hidden_act, note = google_hidden_act(self.config.hidden_act, gelu)
            self.config, notes = self.config.replace(hidden_act=hidden_act), (note,) if note else ()
        elif gelu is not None:
            raise UserError(f"gelu={gelu!r}: only Google's own files leave it open; {folder} has a {CONFIG_FILES[0]}")
        if labels is not None:
            self.config = self.config.replace(labels=labels)
        self._verify = verify
        self._tensors = open_weights(folder, self.config.model_type)
        try:
            if head is None:
                head = _head_of(raw, self._tensors, self.config)
            self._sources, report = select(self._tensors, self.config, head)
        except BaseException:
            self._tensors.close()
            raise
        recorded = self._tensors.metadata.get(STEP, "")
        step = int(recorded) if recorded.isdecimal() else None
        self.report = replace(report, source=str(folder), step=step, notes=notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._tensors.close()

    def arrays(self, *, contiguous: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """Our path and float32 array of each parameter; a UserError after the last if the sum is not the recorded one.

        The sum is taken while the arrays are read: they are to be used when all have come. `contiguous` as
        `read_arrays`.
        """
        with ThreadPoolExecutor(1) as beside:
            verified = beside.submit(self._tensors.verify) if self._verify else None
            yield from read_arrays(self._tensors, self._sources, contiguous=contiguous)
            self.report = replace(self.report, verified=verified and verified.result())
        if self.report.verified is False:
            raise UserError(
                f"{self._tensors.path}: the tensors do not have the sum that was recorded when the file was written: "
                "it is damaged; copy or export it again"
            )


def is_model_folder(directory: str | os.PathLike[str]) -> bool:
    """Whether it looks like a model's folder: a config.json that names a model type, or weights."""
    folder = Path(directory)
    if has_weights(folder):
        return True
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_model(
    directory: str | os.PathLike[str],
    *,
    head: str | None = None,
    labels: tuple[str, ...] | None = None,
    verify: bool = True,
    gelu: Gelu | None = None,
) -> ReadModel:
    """Read a folder with a BERT, RoBERTa, ALBERT or DistilBERT.

    Accepts keys with and without the family's prefix, `gamma` / `beta`, stored buffers and stored copies of tied
    tensors, and float16, bfloat16 and float32 weights; all become float32. The report says what was missing or did not
    fit; whether that is an error is for the caller (`Report.check`).

    Args:
        directory: holds config.json (or Google's bert_config.json) and weights in a format of `weights.open_weights`.
        head: which model's parameters are wanted; None: what config.json's `architectures` says, else what is there;
            an encoder that is there without a pooler is one without a pooler.
        labels: names of a classifier's classes instead of those in the config.
        verify: check the sum over all tensors where the file has one (files written by this library do).
        gelu: of Google's own files, which say "gelu" for two functions: "erf" or "tanh"; None: erf, as transformers.

    Returns:
        ReadModel(config, params, report). Parameters that are missing or mismatched are not in `params`.

    Raises:
        FileNotFoundError: no such folder or file.
        UserError: a broken file, another kind of model, or tensors that do not have their recorded sum.
    """
    with OpenModel(directory, head=head, labels=labels, verify=verify, gelu=gelu) as model:
        flat = dict(model.arrays())
        return ReadModel(model.config, unflatten(flat), model.report)


def from_stored(
    tensors: Mapping[str, np.ndarray], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], Report]:
    """Their tensors -> our tree, flat: the inverse of `names.to_stored`, with a report.

    Args:
        tensors: key -> array; a file is read one array at a time.
        config: whose sizes the arrays must have.
        head: which parameters are wanted.

    Returns:
        our path -> float32 array, in the file's order of memory; and the report (its `source` empty).
    """
    stored = tensors if isinstance(tensors, Stored) else InMemory(tensors)
    sources, report = select(stored, config, head)
    return dict(read_arrays(stored, sources)), report


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    path = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder}: holds no config.json (nor {', '.join(CONFIG_FILES[1:])}), so it is no model"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _head_of(raw: Mapping[str, Any], tensors: Stored, config: BertConfig) -> str:
    """The first head whose class is named; of the encoders', which share a class, and of none, what the keys say."""
    family = family_of(config)
    found = head_in(table_keys(tensors, family), config)
    for name in raw.get("architectures") or []:
        for head, (suffix, _) in family.heads.items():
            if name in {word + suffix for word in family.classes.values()}:
                return found if is_encoder(head, config) and is_encoder(found, config) else head
    return found
