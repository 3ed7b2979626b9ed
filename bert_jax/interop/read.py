"""Read somebody's model folder: config.json and the weights beside it -> (config, arrays, report), with NumPy alone."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.names import (
    architecture_of,
    family_of,
    find_head,
    head_in,
    parameters_of,
    table_keys,
)
from bert_jax.interop.safetensors import STEP, TensorFile
from bert_jax.interop.tree import unflatten

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Report:
    """What became of every parameter of a load: nothing is dropped or made up in silence.

    Attributes:
        source: where it was read from.
        head: which model the tree is for: a key of `bert_jax.model.heads.HEADS`.
        step: the training step, of a run's checkpoint or recorded in an export; None where nothing says.
        verified: whether stored sums were found and agree; None where there are none.
        loaded: our paths that came from the file.
        missing: our paths that the file has not.
        unexpected: their keys that this head does not use.
        mismatched: one line each: another shape, a dtype that is no float, a tied copy that differs.
        fresh: our paths that were initialised anew because the caller allowed them to be missing.
    """

    source: str
    head: str
    step: int | None = None
    verified: bool | None = None
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    def problems(self, allow_missing: tuple[str, ...] = ()) -> list[str]:
        """What makes the load unusable: one line each; what starts with a name in `allow_missing` is left out."""
        missing = [path for path in self.missing if not is_allowed(path, allow_missing)]
        lines = [line for line in self.mismatched if not is_allowed(line.split(":", 1)[0], allow_missing)]
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            parts = ", ".join(sorted({path.split("/")[0] for path in missing}))
            lines.append(f"missing: {shown} (to start them fresh, name them in allow_missing, as in ({parts!r},))")
        return lines

    def check(self, allow_missing: tuple[str, ...] = ()) -> None:
        """Raise a UserError with the first problem, and how many there are."""
        lines = self.problems(allow_missing)
        if lines:
            more = f" (and {len(lines) - 1} more such lines)" if len(lines) > 1 else ""
            raise UserError(f"{self.source}, head={self.head!r}: {lines[0]}{more}")


class ReadModel(NamedTuple):
    """config, parameters (nested dict of float32 NumPy arrays), report."""

    config: BertConfig
    params: dict[str, Any]
    report: Report


def is_allowed(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether a path is one of `allowed` or lies below one ("mlm_head" allows "mlm_head/bias")."""
    return any(path == name or path.startswith(f"{name}/") for name in allowed)


def is_model_folder(directory: str | os.PathLike[str]) -> bool:
    """Whether it looks like a Hugging Face folder: a config.json that names a model type, or weights."""
    folder = Path(directory)
    if (folder / WEIGHTS).is_file():
        return True
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_model(directory: str | os.PathLike[str], *, head: str | None = None, verify: bool = True) -> ReadModel:
    """Read a Hugging Face BERT folder.

    Accepts keys with and without "bert.", `gamma` / `beta`, stored buffers and stored copies of tied tensors, and
    float16, bfloat16 and float32 weights; all become float32. The report says what was missing or did not fit; whether
    that is an error is for the caller (`Report.check`).

    Args:
        directory: holds config.json and model.safetensors.
        head: which model's parameters are wanted; None: what config.json's `architectures` says, else what is there.
        verify: check the sum over all tensors where the file has one (files written by this library do).

    Returns:
        ReadModel(config, params, report). Parameters that are missing or mismatched are not in `params`.

    Raises:
        FileNotFoundError: no such folder or file.
        UserError: a broken file, another kind of model, or tensors that do not have their recorded sum.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    raw = _read_config(folder)
    config = BertConfig.from_json(folder / "config.json")
    if not (folder / WEIGHTS).is_file():
        others = sorted(path.name for path in folder.iterdir() if path.suffix in _OTHER_WEIGHTS)
        hint = f"; {', '.join(others)} cannot be read, only {WEIGHTS}" if others else ""
        raise FileNotFoundError(f"{folder}: holds no {WEIGHTS}{hint}")
    with TensorFile(folder / WEIGHTS) as tensors:
        verified = tensors.verify() if verify else None
        if verified is False:
            raise UserError(
                f"{tensors.path}: the tensors do not have the sha256 that was recorded when the file was written: "
                "it is damaged; copy or export it again"
            )
        if head is None:
            head = _head_of(raw, tensors, config)
        flat, report = from_stored(tensors, config, head)
        recorded = tensors.metadata.get(STEP, "")
    step = int(recorded) if recorded.isdecimal() else None
    return ReadModel(config, unflatten(flat), replace(report, source=str(folder), step=step, verified=verified))


_OTHER_WEIGHTS = {".bin", ".msgpack", ".safetensors", ".h5", ".ckpt", ".index"}


def from_stored(
    tensors: Mapping[str, np.ndarray], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], Report]:
    """Their tensors -> our tree, flat: the inverse of `names.to_stored`, with a report.

    Args:
        tensors: key -> array; a `TensorFile` is read one array at a time.
        config: whose sizes the arrays must have.
        head: which parameters are wanted.

    Returns:
        our path -> float32 array, C-contiguous; and the report (its `source` empty).
    """
    family, parts = family_of(config), find_head(head, config).parts
    stored = table_keys(tensors, family)
    flat: dict[str, np.ndarray] = {}
    missing, mismatched, used = [], [], set()
    for path, parameter in parameters_of(config, head).items():
        key = parameter.key if parameter.key in stored else parameter.also
        if key not in stored:
            missing.append(path)
            continue
        used |= {parameter.key, parameter.also}
        array = tensors[stored[key]]
        if array.dtype.name not in ("float32", "float16", "bfloat16"):
            mismatched.append(f"{path}: {stored[key]} is {array.dtype.name}, not a float of 16 or 32 bits")
        elif array.shape != parameter.stored_shape:
            found = f"{stored[key]} has shape {array.shape}"
            mismatched.append(f"{path}: {found}; the config and head say {parameter.stored_shape}")
        else:
            ours = array.T if parameter.transposed else array
            flat[path] = np.asarray(ours, dtype=np.float32, order="C")
    for copy, original, part in family.tied:
        if config.tie_word_embeddings and part in parts and copy in stored and original in used:
            used.add(copy)
            if not _equal(tensors, stored[copy], stored[original]):
                mismatched.append(
                    f"{stored[copy]}: differs from {stored[original]}, to which it is tied in this model (to use the "
                    f"latter for both, name {stored[copy]!r} in allow_missing)"
                )
    unexpected = tuple(sorted(key for name, key in stored.items() if name not in used))
    report = Report("", head, None, None, tuple(flat), tuple(missing), unexpected, tuple(mismatched))
    return flat, report


def _equal(tensors: Mapping[str, np.ndarray], a: str, b: str) -> bool:
    first, second = tensors[a], tensors[b]
    return first.shape == second.shape and bool(np.array_equal(first, second))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: holds no config.json, so it is no Hugging Face folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _head_of(raw: Mapping[str, Any], tensors: TensorFile, config: BertConfig) -> str:
    named = raw.get("architectures") or []
    for head in family_of(config).heads:
        if architecture_of(config, head) in named:
            return head
    return head_in(table_keys(tensors, family_of(config)), config)
