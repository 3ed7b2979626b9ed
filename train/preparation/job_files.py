"""Jobs and results of workers on other machines, as JSON: values of a few known classes, so no file can run code."""

import base64
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.report import ShardStatistics
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.text.wrapped import Column
from bert_jax.errors import UserError
from bert_jax.files import json_text, parse_json
from train.preparation.dedupe import FindJob
from train.preparation.jobs import Failed, IndexJob, IndexResult, Part, ShardJob, ShardResult, UnitJob, UnitResult
from train.preparation.options import PrepareOptions
from train.preparation.removal import Removal, Removed
from train.preparation.units import FileFacts, LookJob, Unit

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Column, CorpusFile, Failed, FileFacts, FindJob, IndexJob, IndexResult, LookJob, Part, PrepareOptions, Removal,
        Removed, ShardJob, ShardResult, ShardStatistics, Unit, UnitJob, UnitResult,
    )
}  # fmt: skip


def to_bytes(value: Any) -> bytes:
    """A job, a result or an error as JSON; `from_bytes` gives an equal one."""
    return json_text(_plain(value)).encode()


def from_bytes(data: bytes, where: object) -> Any:
    """The inverse of `to_bytes`; `where`: the file, which the error names.

    Raises:
        UserError: the bytes are not what `to_bytes` returns.
    """
    try:
        return _value(parse_json(data, where))
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{where}: not a job or a result of one; prepare again") from None


def _plain(value: Any) -> Any:
    """Lists stay lists; whatever JSON lacks becomes an object with one key, which names its kind."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__name__ in _CLASSES:
        fields = value._asdict() if hasattr(value, "_asdict") else _fields(value)
        return {type(value).__name__: {name: _plain(one) for name, one in fields.items()}}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, Path):
        return {"Path": str(value)}
    if isinstance(value, np.ndarray):
        return {"array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, UserError):
        return {"UserError": str(value)}
    if isinstance(value, OSError):
        return {"OSError": [value.errno, value.strerror, value.filename and str(value.filename)]}
    raise TypeError(f"cannot be sent to a worker: {type(value).__name__}")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind in _CLASSES:
        return _CLASSES[kind](**{name: _value(one) for name, one in content.items()})
    if kind == "tuple":
        return tuple(map(_value, content))
    if kind == "dict":
        return {_value(key): _value(one) for key, one in content}
    if kind == "Path":
        return Path(content)
    if kind == "array":
        dtype, shape, data = content
        return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    if kind == "UserError":
        return UserError(content)
    if kind == "OSError":
        return OSError(*content)
    raise ValueError(kind)
