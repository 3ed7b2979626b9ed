"""compiled.json, which describes a compiled folder, and the check that its files are unchanged. Does not import JAX."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, quoted
from bert_jax.files import file_digest, no_folder, read_json

SCHEMA = 1
FACTS, PROGRAMS, WEIGHTS, CARD = "compiled.json", "programs.zip", "weights.safetensors", "README.md"
TASKS = ("embed", "text-classification", "token-classification", "question-answering", "fill-mask")
USUAL_PLATFORMS = ("cpu", "cuda", "tpu")
ROWS, TOKENS, MASKS = "rows", "tokens", "masks"


class ArraySpec(NamedTuple):
    """An input or output array of a program.

    Attributes:
        name: its key in the dict.
        dtype: NumPy's name of its type.
        axes: for each axis "rows", "tokens", "masks" or a size.
        pad: the padding value.
        below: its values are whole numbers from 0 to below this number, or below the size of the axis of this name;
            None: any values.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]
    pad: int = 0
    below: str | int | None = None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape, given the sizes of the named axes."""
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self.axes)


@dataclass(frozen=True)
class Facts:
    """The contents of compiled.json, except its own checksum.

    Attributes:
        task: one of `TASKS`.
        dtype: the type of the matrix products' operands; the types of inputs and outputs do not depend on it.
        platforms: the platforms that the programs were lowered for, some of cpu, cuda, rocm, tpu.
        shapes: (rows, tokens) of each program, ascending.
        inputs, outputs: those of every program.
        calling_convention_version: jax.export's.
        made_by: package -> version.
        tokenizer: the fingerprint of the tokenizer in the folder.
        files: name -> sha256 of every other file of the folder.
        masks: for fill-mask, the number of mask positions per row.
        mask_token_id: for fill-mask.
        labels: the names of the classes, in the order of the logits.
        problem_type: for text-classification, as in transformers' config.
        pooling: for embed.
    """

    task: str
    dtype: str
    platforms: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    calling_convention_version: int
    made_by: dict[str, str]
    tokenizer: str
    files: dict[str, str]
    masks: int | None = None
    mask_token_id: int | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
    pooling: str | None = None

    def sizes(self, rows: int, tokens: int) -> dict[str, int]:
        """The sizes of the named axes of one program."""
        return {ROWS: rows, TOKENS: tokens} | ({} if self.masks is None else {MASKS: self.masks})

    @property
    def jax(self) -> str:
        """The version of JAX that made the programs."""
        return self.made_by["jax"]


def program_name(rows: int, tokens: int) -> str:
    """The name of a program in the archive `PROGRAMS`."""
    return f"{rows}x{tokens}.jaxexport"


def write_facts(folder: Path, facts: Facts) -> None:
    """Writes compiled.json, with a checksum of its own contents."""
    fields: dict[str, Any] = {"schema": SCHEMA, **asdict(facts)}
    fields["inputs"], fields["outputs"] = ([spec._asdict() for spec in both] for both in (facts.inputs, facts.outputs))
    text = json.dumps(fields | {"sha256": _sum_of(fields)}, indent=1, ensure_ascii=False) + "\n"
    (folder / FACTS).write_bytes(text.encode())


def read_facts(directory: str | os.PathLike[str]) -> Facts:
    """Reads compiled.json, and checks that every file of the folder is unchanged.

    Raises:
        UserError: the folder does not exist, this version does not know the schema, or a file is missing or was
            changed.
    """
    path = Path(directory) / FACTS
    if not path.is_file():
        what = (
            "has no compiled.json; expected a folder of export-compiled"
            if path.parent.is_dir()
            else no_folder(path.parent)
        )
        raise UserError(f"{directory}: {what}")
    fields = read_json(path, "it is damaged; export again")
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        found = fields.get("schema") if isinstance(fields, dict) else type(fields).__name__
        raise UserError(
            f"{path}: schema {quoted(found)}, but this version of bert_jax reads {SCHEMA}; export again with it"
        )
    if fields.pop("sha256", None) != _sum_of(fields):
        raise UserError(f"{path}: damaged or changed, its sha256 does not match; export again")
    del fields["schema"]
    try:
        facts = _facts_of(fields)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: has unexpected fields or lacks some ({_one_line(error)}); export again") from None
    for name, expected in facts.files.items():
        _check_file(path.parent / name, expected)
    return facts


def sums_of(folder: Path) -> dict[str, str]:
    """Name -> sha256, in hex, of each file of a folder except compiled.json."""
    return {path.name: file_digest(path)[0] for path in sorted(folder.iterdir()) if path.name != FACTS}


def _facts_of(fields: dict[str, Any]) -> Facts:
    facts = Facts(**fields)
    if not {PROGRAMS, WEIGHTS} <= set(facts.files) or any(Path(name).name != name for name in facts.files):
        raise ValueError("files")
    found = Facts(
        **fields
        | {
            "platforms": tuple(facts.platforms),
            "shapes": tuple((int(rows), int(tokens)) for rows, tokens in facts.shapes),
            "labels": None if facts.labels is None else tuple(facts.labels),
            "inputs": tuple(map(_spec_of, fields["inputs"])),
            "outputs": tuple(map(_spec_of, fields["outputs"])),
        }
    )
    if not found.shapes or not isinstance(found.jax, str) or type(found.calling_convention_version) is not int:
        raise ValueError("shapes, made_by or calling_convention_version")
    if not all(isinstance(name, str) for name in (found.task, *found.platforms, *(found.labels or ()))):
        raise TypeError("task, platforms or labels")
    for spec in (*found.inputs, *found.outputs):
        spec.shape(found.sizes(1, 1))  # its axes are known
    return found


def _spec_of(fields: dict[str, Any]) -> ArraySpec:
    return ArraySpec(**fields)._replace(axes=tuple(fields["axes"]))


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise UserError(f"{path}: is missing; copy the folder again or export again")
    if file_digest(path)[0] != expected:
        raise UserError(f"{path}: damaged or changed, its sha256 differs from {FACTS}; copy or export again")


def _sum_of(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]
