"""Which tensors of a file make up which parameters of a model, and those parameters as arrays."""

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.interop.arena import Arena
from bert_jax.interop.names import Parameter, family_of, find_head, parameters_of, table_keys
from bert_jax.interop.report import Report
from bert_jax.interop.stored import Stored

_FLOATS = ("float32", "float16", "bfloat16")
_THREADS = min(4, os.cpu_count() or 1)  # NumPy and the file let others run while they copy
_AHEAD = 2 * _THREADS


class Source(NamedTuple):
    """A parameter: our path and shape, the file's key, whether it is transposed there."""

    path: str
    shape: tuple[int, ...]
    key: str
    transposed: bool


class Selection(NamedTuple):
    """What is read from a file for one head, and the report on that (its `source` empty)."""

    sources: list[Source]
    report: Report


def select(tensors: Stored, config: BertConfig, head: str) -> Selection:
    """Compare a file with what the model needs; of its tensors only tied ones that are stored twice are read.

    Args:
        tensors: a file, under Hugging Face's names.
        config: whose sizes the tensors must have.
        head: which parameters are wanted.
    """
    family, parts = family_of(config), find_head(head, config).parts
    stored = table_keys(tensors, family)
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
            sources.append(Source(path, parameter.shape, key, parameter.transposed))
    for copy, original, _ in tied:
        if original in used and not _equal(tensors, stored[copy], stored[original]):
            mismatched.append(
                f"{stored[copy]}: differs from {stored[original]}, to which config.json ties it (to use the latter for "
                f"both, name {stored[copy]!r} in allow_missing; to keep both, say tie_word_embeddings: false there)"
            )
    loaded = tuple(source.path for source in sources)
    unexpected = tuple(sorted(key for name, key in stored.items() if name not in used))
    return Selection(sources, Report("", head, None, None, loaded, tuple(missing), unexpected, tuple(mismatched)))


def _mismatch(tensors: Stored, key: str, parameter: Parameter) -> str | None:
    shape, dtype = tensors.shape(key), tensors.dtype(key)
    if dtype not in _FLOATS:
        return f"{key} is {dtype}, not a float of 16 or 32 bits"
    if shape == parameter.stored_shape:
        return None
    classes = parameter.key.startswith("classifier.") and shape[1:] == parameter.stored_shape[1:]
    hint = f" (it has num_labels={shape[0]})" if classes else ""
    return f"{key} has shape {shape}; the config and head say {parameter.stored_shape}{hint}"


def _equal(tensors: Stored, a: str, b: str) -> bool:
    return a == b or (tensors.shape(a) == tensors.shape(b) and bool(np.array_equal(tensors[a], tensors[b])))


def read_arrays(
    tensors: Stored, sources: list[Source], *, contiguous: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """The parameters one after the other, read by a few threads which keep a little ahead.

    Args:
        tensors: the file.
        sources: what to read, in which order.
        contiguous: whether every array is to be C-contiguous, for a device to take over. Else one that is transposed
            in the file is a view on that transpose, which need not be turned: twice as fast.

    Yields:
        our path, float32 array, its memory aligned for a device.
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
