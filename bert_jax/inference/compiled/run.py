"""Runs a folder of `export-compiled` on arrays or rows of ids, without Flax and the model's code."""

import os
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from bert_jax.errors import UserError, quoted
from bert_jax.formats.safetensors import TensorFile
from bert_jax.inference.compiled.facts import (
    FACTS,
    MASKS,
    PROGRAMS,
    TOKENS,
    WEIGHTS,
    ArraySpec,
    Facts,
    program_name,
    read_facts,
)
from bert_jax.inference.engine.batching import plan_batches
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from bert_jax.runtime.forks import MadeHere, refuse_inherited

LARGEST_PROGRAMS = 256 << 20
"""Bytes of all programs of a folder at most, when they are unpacked. One of BERT-large has a megabyte."""

Size = tuple[int, int]  # rows and length of a batch
Row = Mapping[str, Any] | Sequence[int] | np.ndarray


class Compiled:
    """The programs of a folder and their weights, on the first device of this process.

    Each program is compiled for this device when first needed, or by `compile_all`. Calls from several threads are
    safe.

    Args:
        folder, facts, programs, weights: as `load_compiled` reads them.

    Attributes:
        facts: the contents of compiled.json: task, inputs, outputs, labels, pooling and others.
        shapes: (rows, tokens) of each program, ascending.

    Raises:
        RuntimeError, also of each call: this process was forked after JAX was in use, where it would hang.
    """

    def __init__(
        self,
        folder: Path,
        facts: Facts,
        programs: Mapping[Size, jax_export.Exported],
        weights: Mapping[str, np.ndarray],
    ):
        refuse_inherited("JAX")
        self._made_here = MadeHere()
        self.folder, self.facts, self.shapes = folder, facts, facts.shapes
        self._programs = programs
        self._weights = jax.device_put(dict(weights), jax.local_devices()[0])
        self._compiled: dict[Size, Any] = {}
        self._lock = threading.Lock()
        self._lengths = sorted({tokens for _, tokens in self.shapes})

    def __reduce__(self) -> Any:
        raise TypeError("compiled programs are not pickled or copied; call load_compiled in each process")

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the program for a batch that has one of the shapes.

        Args:
            batch: all arrays of `facts.inputs`, int32, for one of `shapes`.

        Returns:
            The arrays of `facts.outputs`, as NumPy arrays.

        Raises:
            UserError: an array is missing, unknown, of another shape or dtype, or has a number out of range.
        """
        shape = self._shape_of(batch)
        outputs = self._program(shape)(self._weights, {spec.name: batch[spec.name] for spec in self.facts.inputs})
        found = jax.device_get(outputs)
        return {spec.name: found[spec.name] for spec in self.facts.outputs}

    def run(self, rows: Sequence[Row]) -> list[dict[str, np.ndarray]]:
        """Runs any number of rows of any length, and returns their outputs in order.

        Rows are padded to the smallest length that fits, batches are filled with copies of rows, and the outputs of
        padding and copies are removed.

        Args:
            rows: for each row its ids; or a dict with `input_ids` and any arrays that differ from their defaults:
                `token_type_ids` (0), `attention_mask` (1), `mlm_positions` (the positions of the mask token).

        Returns:
            For each row a dict of the arrays of `facts.outputs`, without the axis of rows. An axis of tokens has the
            length of the row, an axis of masks the number of its masks.

        Raises:
            UserError: a row is empty or too long, an array does not fit, or an output is not finite.
        """
        prepared = [self._prepared(row, f"row {number + 1}") for number, row in enumerate(rows)]
        results: list[dict[str, np.ndarray]] = [{} for _ in prepared]
        for plan in plan_batches([len(row["input_ids"]) for row in prepared], self._lengths, self._sizes):
            numbers = np.resize(plan.rows, plan.batch_size)
            sizes = self.facts.sizes(plan.batch_size, plan.length)
            batch = {spec.name: np.full(spec.shape(sizes), spec.pad, np.int32) for spec in self.facts.inputs}
            for place, number in enumerate(numbers):
                for name, values in prepared[number].items():
                    batch[name][place, : len(values)] = values
            outputs = self(batch)
            for place, number in enumerate(plan.rows):
                results[number] = self._cut(outputs, place, prepared[number])
        for number, result in enumerate(results):
            for name, array in result.items():
                if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                    raise UserError(f"row {number + 1}: output {name} is not finite (NaN or infinite)")
        return results

    def compile_all(self) -> None:
        """Compiles every program now, so that no later call waits for it."""
        for shape in self.shapes:
            self._program(shape)

    def _program(self, shape: Size) -> Any:
        self._made_here.check()
        if shape not in self._compiled:
            with self._lock:
                if shape not in self._compiled:
                    self._compiled[shape] = self._compile(shape)
        return self._compiled[shape]

    def _compile(self, shape: Size) -> Any:
        sizes = self.facts.sizes(*shape)
        batch = {spec.name: jax.ShapeDtypeStruct(spec.shape(sizes), np.int32) for spec in self.facts.inputs}
        try:
            return jax.jit(self._programs[shape].call).lower(self._weights, batch).compile()
        except Exception as error:
            raise _unusable(self.folder, self.facts, shape, "compiled", error) from None

    def _shape_of(self, batch: Mapping[str, np.ndarray]) -> Size:
        """Checks a batch and returns the shape of its program."""
        wanted = [spec.name for spec in self.facts.inputs]
        if set(batch) != set(wanted):
            raise UserError(f"batch has {', '.join(sorted(batch)) or 'no arrays'}; expected {', '.join(wanted)}")
        found = np.shape(batch["input_ids"])
        if found not in self.shapes:
            known = ", ".join(str(list(shape)) for shape in self.shapes)
            raise UserError(f"input_ids has shape {list(found)}; there are programs for {known}")
        rows, tokens = found
        sizes = self.facts.sizes(rows, tokens)
        for spec in self.facts.inputs:
            array = batch[spec.name]
            if not isinstance(array, np.ndarray) or array.dtype != spec.dtype:
                kind = f"of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                raise UserError(f"{spec.name} is {kind}; expected a NumPy array of {spec.dtype}")
            if array.shape != (expected := spec.shape(sizes)):
                raise UserError(
                    f"{spec.name} has shape {list(array.shape)}; expected {list(expected)}, to match input_ids"
                )
            _check_values(spec, array, sizes, spec.name)
        return rows, tokens

    def _prepared(self, row: Row, where: str) -> dict[str, np.ndarray]:
        """Checks a row and returns all its arrays, int64, without padding."""
        given = dict(row) if isinstance(row, Mapping) else {"input_ids": row}
        specs = {spec.name: spec for spec in self.facts.inputs}
        if strangers := sorted(set(given) - set(specs)):
            raise UserError(f"{where}: has {quoted(strangers[0])}; expected {', '.join(specs)}")
        ids = _numbers(given.get("input_ids", ()), f"{where}, input_ids")
        if not 1 <= len(ids) <= self._lengths[-1]:
            raise UserError(f"{where} has {len(ids)} tokens; the programs take 1 to {self._lengths[-1]}")
        usual = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        if self.facts.masks is not None:
            usual["mlm_positions"] = np.flatnonzero(ids == self.facts.mask_token_id)
        arrays = {"input_ids": ids}
        for name, spec in specs.items():
            array = _numbers(given[name], f"{where}, {name}") if name in given else arrays.get(name, usual.get(name))
            assert array is not None
            most = self.facts.masks if MASKS in spec.axes else len(ids)
            assert most is not None
            if MASKS in spec.axes and not 1 <= len(array) <= most:
                raise UserError(f"{where} has {len(array)} masks; the programs take 1 to {most}")
            if TOKENS in spec.axes and len(array) != most:
                raise UserError(f"{where}: {name} has {len(array)} numbers; expected {most}, as in input_ids")
            _check_values(spec, array, self.facts.sizes(1, len(ids)), f"{where}, {name}")
            arrays[name] = array
        return arrays

    def _sizes(self, rows: int, length: int) -> list[int]:
        """The sizes of the batches for so many rows: full ones, then the smallest that fits the rest."""
        sizes = [size for size, tokens in self.shapes if tokens == length]
        full, left = divmod(rows, sizes[-1])
        return [sizes[-1]] * full + [min(size for size in sizes if size >= left)] * bool(left)

    def _cut(
        self, outputs: Mapping[str, np.ndarray], place: int, row: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        own = {TOKENS: len(row["input_ids"]), MASKS: len(row.get("mlm_positions", ()))}
        return {
            spec.name: outputs[spec.name][place][tuple(slice(own.get(str(axis))) for axis in spec.axes[1:])].copy()
            for spec in self.facts.outputs
        }


def load_compiled(directory: str | os.PathLike[str], *, cache: bool = False) -> Compiled:
    """Reads a folder of `export-compiled`, checks all its files, and puts its weights on the first device.

    Args:
        directory: the folder.
        cache: keep compiled programs on disk for the next start, unless JAX already has a cache elsewhere.

    Raises:
        UserError: a file is missing or was changed, or the programs are not for the platform or the version of JAX that
            runs here.
    """
    folder = Path(directory)
    facts = read_facts(folder)
    check_runs_here(folder, facts)
    if cache:
        keep_compiled_programs()
    programs = read_programs(folder, facts)
    return Compiled(folder, facts, programs, read_weights(folder, programs.values()))


def check_runs_here(folder: Path, facts: Facts) -> None:
    """Raises UserError unless the programs can run on this version of JAX and its platform."""
    oldest = jax_export.minimum_supported_calling_convention_version
    newest = jax_export.maximum_supported_calling_convention_version
    version, made = facts.calling_convention_version, f"{folder / FACTS}: made with jax {facts.jax}"
    if not oldest <= version <= newest:
        cure = "install a newer jax" if version > newest else "export again"
        ours = f"jax {jax.__version__} here runs {oldest} to {newest}"
        raise UserError(f"{made} in calling convention {version}, but {ours}; {cure}")
    if (platform := jax_export.default_export_platform()) not in facts.platforms:
        known = ", ".join(facts.platforms)
        raise UserError(f"{made} for {known}, but JAX runs on {platform} here; export for {platform} too")


def read_programs(folder: Path, facts: Facts) -> dict[Size, jax_export.Exported]:
    """Reads the programs of a folder, by shape.

    Raises:
        UserError: this JAX cannot read a program, or a program differs from what compiled.json says.
    """
    path = folder / PROGRAMS
    try:
        with zipfile.ZipFile(path) as file:
            members = {shape: file.getinfo(program_name(*shape)) for shape in facts.shapes}
            inflated = sum(member.file_size for member in members.values())
            if inflated > LARGEST_PROGRAMS:
                raise UserError(f"{path}: {inflated:,} bytes of programs; at most {LARGEST_PROGRAMS >> 20} MB are read")
            blobs = {shape: _unpacked(file, member) for shape, member in members.items()}
    except UserError:
        raise
    except Exception as error:  # zipfile raises many kinds
        what = f"does not have the programs that {FACTS} names"
        raise UserError(f"{path}: {what} ({quoted(str(error))}); export again") from None
    programs = {}
    for shape, blob in blobs.items():
        try:
            programs[shape] = program = jax_export.deserialize(bytearray(blob))
            _, inputs = map(_described, _inputs_of(program))
            outputs = _described(program.out_tree.unflatten(program.out_avals))
            if shape == facts.shapes[0]:
                program.mlir_module()  # checks StableHLO's own version, the same in all programs
        except Exception as error:
            raise _unusable(folder, facts, shape, "read", error) from None
        sizes = facts.sizes(*shape)
        for what, said, is_so in (
            ("platforms", facts.platforms, tuple(program.platforms)),
            ("calling convention", facts.calling_convention_version, program.calling_convention_version),
            ("inputs", _expected(facts.inputs, sizes), inputs),
            ("outputs", _expected(facts.outputs, sizes), outputs),
        ):
            if said != is_so:
                raise UserError(
                    f"{path}: {program_name(*shape)} has {what} {is_so}, but {FACTS} says {said}; export again"
                )
    return programs


def _unpacked(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member, of which no more is unpacked than the size that it declares; it may hold more.

    Only a read of so many bytes is bounded, and only of members without compression or with deflate.
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed, and not with deflate")
    with file.open(member) as content:
        return content.read(member.file_size)


def _unusable(folder: Path, facts: Facts, shape: Size, what: str, error: Exception) -> UserError:
    """The error for a program that cannot be `what` ("read" or "compiled"), most likely by this version of JAX."""
    why = " ".join(str(error).split())[:200]
    made = f"made with jax {facts.jax}, here is {jax.__version__}"
    return UserError(f"{folder / PROGRAMS}: {program_name(*shape)} cannot be {what} ({made}): {why}")


def read_weights(folder: Path, programs: Iterable[jax_export.Exported]) -> dict[str, np.ndarray]:
    """Reads the parameters, by path.

    Raises:
        UserError: their names, shapes or types are not those that a program takes.
    """
    with TensorFile(folder / WEIGHTS) as file:
        weights = {name: file[name] for name in file}
    found = {name: (array.shape, array.dtype.name) for name, array in weights.items()}
    for program in programs:
        wanted = _described(_inputs_of(program)[0])
        if found != wanted:
            wrong = next(iter(sorted(found.items() ^ wanted.items())))[0]
            raise UserError(f"{folder / WEIGHTS}: {wrong} does not match the programs; export again")
    return weights


def _inputs_of(program: jax_export.Exported) -> tuple[Any, Any]:
    """The weights and the batch that a program takes, as abstract arrays."""
    (weights, batch), _ = program.in_tree.unflatten(program.in_avals)
    return weights, batch


def _expected(specs: Sequence[ArraySpec], sizes: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {spec.name: (spec.shape(sizes), spec.dtype) for spec in specs}


def _described(arrays: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(array.shape), np.dtype(array.dtype).name) for name, array in arrays.items()}


def _numbers(values: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.zeros((0, 0))
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise UserError(f"{where}: expected a list of whole numbers, found {array.dtype} of shape {list(array.shape)}")
    return array.astype(np.int64)


def _check_values(spec: ArraySpec, array: np.ndarray, sizes: Mapping[str, int], where: str) -> None:
    if spec.below is None or not array.size:
        return
    most = (sizes[spec.below] if isinstance(spec.below, str) else spec.below) - 1
    if array.min() < 0 or array.max() > most:
        wrong = array.min() if array.min() < 0 else array.max()
        raise UserError(f"{where}: {wrong} is out of range; expected 0 to {most}")
