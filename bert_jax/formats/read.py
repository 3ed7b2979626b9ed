"""Read a model folder of any origin: config and weights -> (config, arrays, report), with NumPy only."""

import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config import CONFIG_FILES, MODEL_TYPES, BertConfig
from bert_jax.errors import UserError, quoted
from bert_jax.formats.names.families import FamilyNames
from bert_jax.formats.names.parameters import (
    Parameter,
    family_of,
    find_head,
    head_in,
    is_encoder,
    parameters_of,
    table_keys,
)
from bert_jax.formats.safetensors import STEP
from bert_jax.formats.source import Source, open_folder
from bert_jax.formats.stored import InMemory, Stored
from bert_jax.formats.tensorflow.google import Gelu, google_hidden_act
from bert_jax.formats.weights import open_weights
from bert_jax.tree import unflatten


@dataclass(frozen=True)
class Report:
    """What a load did with every parameter; a load ignores or initialises nothing without listing it here.

    Attributes:
        source: where the model was read from.
        head: the head that the tree is for: a key of `bert_jax.model.heads.HEADS`.
        step: the training step of a run's checkpoint, or the step that an export records; None if unknown.
        verified: whether the recorded checksums match; None if the files record none.
        loaded: our paths that were read from the file.
        missing: our paths that the file does not have.
        unexpected: their keys that this head does not use.
        mismatched: one line for each wrong shape, dtype that is not a float, or tied copy that differs.
        fresh: our paths that were initialised randomly because the caller allowed them to be missing.
        notes: one line for each choice that the files leave open, and how it was made.
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
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lists = {name: getattr(self, name) for name in ("loaded", "missing", "unexpected", "mismatched", "fresh")}
        counts = ", ".join(f"{len(paths)} {name}" for name, paths in lists.items() if paths)
        return f"Report({self.source}: head {self.head}; {counts or 'nothing loaded'})"

    def problems(self, allow_missing: tuple[str, ...] = ()) -> list[str]:
        """One line for each problem that makes the load unusable, except those that `allow_missing` covers."""
        missing = [path for path in self.missing if not is_allowed(path, allow_missing)]
        lines = [line for line in self.mismatched if not is_allowed(line.split(":", 1)[0], allow_missing)]
        if missing and self.unexpected and not self.loaded:
            lines.append(
                f"none of its parameters is there; found {len(self.unexpected)} others, {quoted(self.unexpected[0])} "
                "first; expected transformers' names, without a prefix such as 'model.'"
            )
        elif missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            parts = ", ".join(sorted({repr(_part(path)) for path in missing}))
            lines.append(f"missing: {shown} (to initialise them randomly, say allow_missing=({parts},))")
        return lines

    def check(self, allow_missing: tuple[str, ...] = ()) -> None:
        """Raises a UserError for the first problem; `IncompleteModel` if the only problem is that some are missing."""
        lines = self.problems(allow_missing)
        if not lines:
            return
        more = f" (and {len(lines) - 1} more such lines)" if len(lines) > 1 else ""
        message = f"{self.source}, head={self.head!r}: {lines[0]}{more}"
        if len(lines) == 1 and not self.mismatched:
            raise IncompleteModel(message, self.missing)
        raise UserError(message)


class ReadModel(NamedTuple):
    """The config, the parameters (nested dict of float32 NumPy arrays), and the report."""

    config: BertConfig
    params: dict[str, Any]
    report: Report


def read_model(
    directory: str | os.PathLike[str] | Source,
    *,
    head: str | None = None,
    labels: tuple[str, ...] | None = None,
    verify: bool = True,
    gelu: Gelu | None = None,
) -> ReadModel:
    """Reads a folder with a BERT, RoBERTa, ALBERT, DistilBERT or ELECTRA.

    Keys may have the family's prefix or not, and may say `gamma` / `beta`; the file may store buffers and copies of
    tied tensors; weights may be float16, bfloat16 or float32 and become float32. The report lists what was missing or
    did not fit; the caller decides whether that is an error (`Report.check`).

    Args:
        directory: holds config.json (or Google's bert_config.json) and weights in a format of `weights.open_weights`.
        head: the head to read for; None: the one that config.json's `architectures` names, else the one whose
            parameters the file has. An encoder whose file has no pooler is read as "encoder-no-pooler".
        labels: names of a classifier's classes, in place of those in the config.
        verify: check the checksum over all tensors if the file has one (files written by this library do).
        gelu: for Google's files, whose "gelu" means two functions: "erf" or "tanh"; None: erf (ALBERT: tanh).

    Returns:
        ReadModel(config, params, report). Parameters that are missing or mismatched are not in `params`.

    Raises:
        FileNotFoundError: the folder or a file does not exist.
        UserError: a file is damaged, the model is of another kind, or the tensors do not match their checksum.
    """
    source = directory if isinstance(directory, Source) else open_folder(directory)
    with OpenModel(source, head=head, labels=labels, verify=verify, gelu=gelu) as model:
        flat = dict(model.arrays())
        return ReadModel(model.config, unflatten(flat), model.report)


class OpenModel:
    """A model folder that is open for reading: config and tensor names have been read, the tensors not yet.

    Args:
        source: a folder that is not a run directory.
        head, labels, verify, gelu: as in `read_model`.

    Attributes:
        config: the architecture.
        report: what will be read and what will not; `verified` is set once all arrays have been read.

    Raises:
        FileNotFoundError, UserError: as `read_model`, except for the checksum.
    """

    def __init__(
        self,
        source: Source,
        *,
        head: str | None = None,
        labels: tuple[str, ...] | None = None,
        verify: bool = True,
        gelu: Gelu | None = None,
    ):
        self.config, notes = source.config, ()
        if source.kind == "google":
            said, read = source.fields.get("hidden_act"), self.config.hidden_act
            usual = "tanh" if read == "gelu_new" else "erf"
            hidden_act, note = google_hidden_act("gelu" if said == "gelu" else read, gelu, usual)
            self.config, notes = self.config.replace(hidden_act=hidden_act), (note,) if note else ()
        elif gelu is not None:
            raise UserError(f"gelu={gelu!r}: applies only to Google's files; {source} has a {CONFIG_FILES[0]}")
        if labels is not None:
            self.config = self.config.replace(labels=labels)
        self._verify = verify
        self._tensors = open_weights(source.folder, self.config.model_type)
        try:
            if head is None:
                head = _head_of(source.fields, self._tensors, self.config)
            self._sources, report = select(self._tensors, self.config, head)
        except BaseException:
            self._tensors.close()
            raise
        recorded = self._tensors.metadata.get(STEP, "")
        step = int(recorded) if re.fullmatch(r"\d{1,18}", recorded) else None
        if note := surplus_layers(report.unexpected, self.config):
            notes += (f"{source.config_file}: {note}",)
        self.report = replace(report, source=str(source), step=step, notes=notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._tensors.close()

    def arrays(self, *, contiguous: bool = False) -> Iterator[tuple[str, np.ndarray]]:
        """Yields our path and float32 array for each parameter, then raises a UserError if the checksum does not match.

        The checksum is computed while the arrays are read, so use the arrays only after the iterator has ended.
        `contiguous`: as in `read_arrays`.
        """
        with ThreadPoolExecutor(1) as beside:
            verified = beside.submit(self._tensors.verify) if self._verify else None
            yield from read_arrays(self._tensors, self._sources, contiguous=contiguous)
            self.report = replace(self.report, verified=None if verified is None else verified.result())
        if self.report.verified is False:
            raise UserError(
                f"{self._tensors.path}: the tensors do not match the checksum recorded when the file was written: "
                "the file is damaged; copy or export it again"
            )


def from_stored(
    tensors: Mapping[str, np.ndarray], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], Report]:
    """Converts their tensors to our flat tree: the inverse of `to_stored`, with a report.

    Args:
        tensors: key -> array; a file is read one array at a time.
        config: gives the sizes that the arrays must have.
        head: the head to read for.

    Returns:
        our path -> float32 array, in the file's memory layout; and the report (its `source` is empty).
    """
    stored = tensors if isinstance(tensors, Stored) else InMemory(tensors)
    sources, report = select(stored, config, head)
    return dict(read_arrays(stored, sources)), report


def _head_of(raw: Mapping[str, Any], tensors: Stored, config: BertConfig) -> str:
    """The first head whose class `architectures` names. The keys decide if none is named, and between the two encoder
    heads, which share a class.
    """
    family = family_of(config)
    found = head_in(_table_keys(tensors, family), config)
    for name in raw.get("architectures") or []:
        for head, (suffix, _) in family.heads.items():
            if name in {kind.word + suffix for kind in MODEL_TYPES.values() if kind.family == family.name}:
                return found if is_encoder(head, config) and is_encoder(found, config) else head
    return found


def _table_keys(tensors: Stored, family: FamilyNames) -> dict[str, str]:
    try:
        return table_keys(tensors, family)
    except UserError as error:
        raise UserError(f"{tensors.path}: {error}") from None


_LAYER = re.compile(r"(?:encoder|transformer)\.layer\.(\d{1,9})\.")


def surplus_layers(keys: Iterable[str], config: BertConfig) -> str | None:
    """What to say if some of a file's unused `keys` are of layers beyond those of the config; None if none is."""
    numbers = [int(found[1]) for found in map(_LAYER.search, keys) if found]
    count = max(numbers, default=-1) + 1
    if count <= config.num_hidden_layers:
        return None
    return (
        f"num_hidden_layers is {config.num_hidden_layers}, but the weights have {count} layers; those after the first "
        f"{config.num_hidden_layers} are not used"
    )


class IncompleteModel(UserError):
    """The model lacks parameters that the head needs, and nothing else is wrong. `missing`: their paths."""

    def __init__(self, message: str, missing: tuple[str, ...]):
        super().__init__(message)
        self.missing = missing


def is_allowed(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether `allowed` contains the path or a subtree that it is in ("mlm_head" allows "mlm_head/bias")."""
    return any(path == name or path.startswith(f"{name}/") for name in allowed)


def _part(path: str) -> str:
    """The name to put in `allow_missing` for a path: a whole head, or a part of the encoder such as "bert/pooler"."""
    first, *rest = path.split("/")
    return f"{first}/{rest[0]}" if first == "bert" and rest else first


_PIECE = 32 << 20
_HUGE = 2 << 20  # pieces begin at a huge page: first touching small pages costs more time than reading the file
_ALIGNMENT = 64  # bytes; XLA copies arrays that are less aligned


class Arena:
    """Allocates arrays from a few large pieces of memory; a piece is freed with the last of its arrays.

    Args:
        total: the expected bytes of all arrays together. A piece is no larger than the bytes not yet allocated, unless
            an array needs more.
    """

    def __init__(self, total: int):
        self._left = total
        self._piece, self._used = np.empty(0, np.uint8), 0

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """An uninitialised, C-contiguous float32 array of this shape."""
        size = math.prod(shape) * 4
        start = self._used + -(self._piece.ctypes.data + self._used) % _ALIGNMENT
        if start + size > self._piece.size:
            # What is beyond the arrays is never touched, so it takes no memory.
            self._piece = np.empty(max(size, min(_PIECE, self._left)) + 2 * _HUGE, np.uint8)
            start = -self._piece.ctypes.data % _HUGE
        self._used = start + size
        self._left -= size
        return self._piece[start : start + size].view(np.float32).reshape(shape)


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_THREADS = min(4, os.cpu_count() or 1)  # threads run in parallel: NumPy and file reads release the GIL
_AHEAD = 2 * _THREADS


class Wanted(NamedTuple):
    """A parameter to read: our path and shape, the file's key, and whether it is transposed there."""

    path: str
    shape: tuple[int, ...]
    key: str
    transposed: bool


class Selection(NamedTuple):
    """The parameters to read from a file for one head, and the report (its `source` is empty)."""

    sources: list[Wanted]
    report: Report


def select(tensors: Stored, config: BertConfig, head: str) -> Selection:
    """Compares a file with what the model needs. This reads only tied tensors that are stored twice.

    Args:
        tensors: a file, under Hugging Face's names.
        config: gives the sizes that the tensors must have.
        head: the head to read for.
    """
    family, parts = family_of(config), find_head(head, config).parts
    stored = _table_keys(tensors, family)
    tied = [row for row in family.tied if config.tie_word_embeddings and row.part in parts and row.copy in stored]
    for copy, original, _ in tied:
        stored.setdefault(original, stored[copy])
    sources, missing, mismatched = [], [], []
    used = {row.copy for row in tied}
    for path, parameter in parameters_of(config, head).items():
        key = stored.get(parameter.key, stored.get(parameter.also))
        if key is None:
            missing.append(path)
            continue
        used |= {parameter.key, parameter.also}
        wrong = _mismatch(tensors, key, parameter)
        if wrong:
            mismatched.append(f"{path}: {wrong}")
        else:
            sources.append(Wanted(path, parameter.shape, key, parameter.transposed))
    for copy, original, _ in tied:
        if original in used and not _equal(tensors, stored[copy], stored[original]):
            mismatched.append(
                f"{stored[copy]}: differs from {stored[original]}, to which config.json ties it (to use the latter for "
                f"both, say allow_missing=({stored[copy]!r},); to keep both, set tie_word_embeddings: false there)"
            )
    report = Report(
        source="",
        head=head,
        loaded=tuple(source.path for source in sources),
        missing=tuple(missing),
        unexpected=tuple(sorted(key for name, key in stored.items() if name not in used)),
        mismatched=tuple(mismatched),
    )
    return Selection(sources, report)


def _mismatch(tensors: Stored, key: str, parameter: Parameter) -> str | None:
    shape, dtype = tensors.shape(key), tensors.dtype(key)
    if dtype not in _FLOATS:
        return f"{key} is {dtype}; expected float32, float16, bfloat16 or float64"
    if shape == parameter.stored_shape:
        return None
    classes = parameter.key.startswith("classifier.") and shape and shape[1:] == parameter.stored_shape[1:]
    hint = f" (the file has num_labels={shape[0]})" if classes else ""
    return f"{key} has shape {shape}; config and head need {parameter.stored_shape}{hint}"


def _equal(tensors: Stored, a: str, b: str) -> bool:
    return a == b or (tensors.shape(a) == tensors.shape(b) and bool(np.array_equal(tensors[a], tensors[b])))


def read_arrays(
    tensors: Stored, sources: list[Wanted], *, contiguous: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the parameters in order; a few threads read ahead.

    Args:
        tensors: the file.
        sources: the parameters to read, in order.
        contiguous: make every array C-contiguous, so that a device can use its memory. If false, an array that the file
            stores transposed is a view on that transpose, which is twice as fast.

    Yields:
        our path, float32 array with its memory aligned for a device.
    """
    arena = Arena(sum(4 * math.prod(source.shape) for source in sources))
    pending: deque[tuple[str, np.ndarray, Future[None]]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for path, shape, key, transposed in sources:
            view = not contiguous and transposed != tensors.transposed(key)
            array = arena.empty(shape[::-1]).T if view else arena.empty(shape)
            pending.append((path, array, pool.submit(tensors.copy_to, key, array.T if transposed else array)))
            if len(pending) > _AHEAD:
                yield _next(pending)
        while pending:
            yield _next(pending)


def _next(pending: deque[tuple[str, np.ndarray, Future[None]]]) -> tuple[str, np.ndarray]:
    path, array, future = pending.popleft()
    future.result()
    return path, array
