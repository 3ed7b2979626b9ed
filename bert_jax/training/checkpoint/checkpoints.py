"""Checkpoints: saved asynchronously by Orbax, hashed, verified before use, retained. The only file that imports Orbax.

Orbax writes a step under a temporary name and renames it to DIRECTORY/STEP; then one background thread makes it
durable, hashes every file and writes `manifest.json` (manifest.py). Only a step with a manifest
exists for this module, and only one that agrees with its manifest is read, or counts as kept.

Several processes call every method together, on one shared file system. Process 0 alone chooses, verifies, writes
manifests and deletes; what it decides reaches the others by a broadcast, or by the manifest they wait for.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as orbax

from bert_jax.errors import UserError
from bert_jax.training.checkpoint.manifest import (
    MANIFEST,
    LeafType,
    Manifest,
    differences,
    find_non_finite,
    flatten,
    leaf_types,
    read_manifest,
    write_manifest,
)
from bert_jax.training.checkpoint.step_directory import WRITER, SaveError, StepDirectory, first_line
from bert_jax.tree import unflatten

log = logging.getLogger(__name__)
_ITEM = "state"
_POLL_SECONDS = 0.2


class NonFiniteError(SaveError):
    """The state holds a NaN or an infinity and is not saved."""


@dataclass(frozen=True)
class Restored:
    """A state read from a checkpoint.

    Attributes:
      state: The target's tree of arrays, or a nested dictionary of NumPy arrays (`restore_arrays`).
      step: The step it was saved at.
      metadata: What `Checkpoints.save` was given with it.
    """

    state: Any
    step: int
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run; as a context manager it waits for the last save and raises what went wrong in it.

    A program that ends without `close()` may lose its last save, and the error of it.

    Args:
      directory: Where the steps lie; made at the first save. A reader changes nothing in it. Two that save into one
        directory are not told apart: the run's own lock does that.
      keep: How many verified steps are retained, at least 2. Before an older step is deleted the ones that stay are
        read and hashed again.
      timeout_seconds: How long one save may take before it counts as failed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2, timeout_seconds: int = 1200):
        if keep < 2:
            raise UserError(f"keep={keep}: at least 2 checkpoints are kept, so that one may turn out damaged")
        self._directory = StepDirectory(directory)
        self._keep = keep
        self._timeout_seconds = timeout_seconds
        self._thread: threading.Thread | None = None
        self._saving: int | None = None
        self._error: BaseException | None = None
        self._closed = False

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, exception_type, exception, traceback) -> None:
        try:
            self.close()
        except SaveError:
            if exception_type is None:
                raise
            log.exception("the last save failed too")

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> None:
        """Starts saving `state`; returns once its arrays are copied, so that they may be donated or changed.

        Waits for the save before. When that one failed its error is raised here, and this step is not tried.

        Args:
          step: Greater than every good step there is. A damaged or unfinished step of this number is replaced.
          state: Any pytree of arrays; the stored shapes and paths do not depend on the mesh.
          metadata: JSON values, kept in the manifest (tuples come back as lists).

        Raises:
          NonFiniteError: A leaf holds a NaN or an infinity; nothing is written.
          SaveError: The save before failed, or this one could not begin.
          FileNotFoundError: The directory was there and is gone.
          ValueError: A good step with this number, or a later one, exists; or metadata is no JSON.
          TypeError: A leaf is not an array.
        """
        if self._closed:
            raise ValueError(f"the checkpoints in {self._directory.path} are closed")
        self.wait()
        step = int(step)
        metadata = _checked_metadata(metadata)
        # Orbax knows NumPy's arrays and not its scalars.
        leaves = {p: np.asarray(x) if isinstance(x, np.generic) else x for p, x in flatten(state).items()}
        types = leaf_types(leaves)
        if non_finite := find_non_finite(leaves):
            others = f", as do {len(non_finite) - 1} other arrays" if len(non_finite) > 1 else ""
            raise NonFiniteError(f"step {step} is not saved: {non_finite[0]} holds values that are not finite{others}")
        on_first_process(lambda: self._directory.make_room(step))
        try:
            with self._orbax_options():
                response = orbax.save_async(
                    self._directory.step_path(step),
                    unflatten(leaves),
                    checkpointable_name=_ITEM,
                    custom_metadata=dict(WRITER),
                )
        except Exception as error:
            self._clean_up(step)
            raise SaveError(f"step {step} was not saved to {self._directory.path}: {first_line(error)}") from error
        self._saving = step
        self._thread = threading.Thread(
            target=self._finish, args=(step, response, metadata, types), name=f"checkpoint-{step}"
        )
        self._thread.start()

    def wait(self) -> None:
        """Returns once no save is under way.

        Raises:
          SaveError: The last save failed. It is raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise SaveError(
                f"step {self._saving} was not saved to {self._directory.path}: {first_line(error)}"
            ) from error

    def close(self) -> None:
        """Waits for the last save and raises its error; afterwards nothing can be saved."""
        self._closed = True
        self.wait()

    def delete_after(self, step: int) -> None:
        """Deletes the steps later than `step`, so that a run can go back to it and save those numbers again."""
        self.wait()

        def delete() -> None:
            for later in self._directory.steps():
                if later > step:
                    self._directory.delete(later)

        on_first_process(delete)

    def steps(self) -> list[int]:
        """The numbers of the steps that have a manifest, ascending; they are not verified here."""
        return self._directory.steps()

    def manifest(self, step: int) -> Manifest:
        """What the step's manifest says: metadata, tree with shapes and dtypes, files. Reads no array.

        Raises:
          ManifestError (a ValueError): The manifest is missing or damaged.
        """
        return read_manifest(self._directory.step_path(step))

    def verify(self, step: int) -> list[str]:
        """Reads every byte of a step; what is wrong with it, a line each (file, found, expected). Empty = good."""
        return self._directory.problems(step)

    def restore(self, target: Any, *, step: int | None = None, partial: bool = False) -> Restored:
        """Reads a verified step into the shapes, dtypes and shardings of `target`, bitwise as it was saved.

        Args:
          target: The state's tree of `jax.ShapeDtypeStruct` (or arrays), each with a sharding, on any mesh; a leaf
            without one goes to the first device. Containers may differ from the saved ones, paths may not.
          step: This step and no other; by default the newest good one. Steps that are damaged are passed over, each
            with a warning that says what is wrong with it.
          partial: `target` is a part of the state, for example `{"params": …}`; the rest is verified but not read.

        Raises:
          FileNotFoundError: There is no step.
          UserError: The step has another tree, shape or dtype than `target`; or there are steps, and none is good.
          RuntimeError: The step's files are good and Orbax cannot read them (too little memory, another version).
        """
        wanted = flatten(target)
        types = leaf_types(wanted)
        chosen = on_first_process(
            lambda: self._directory.choose(step, lambda manifest: differences(manifest.tree, types, partial=partial))
        )
        restored = self._load(chosen, {path: _abstract(leaf) for path, leaf in wanted.items()})
        arrays = flatten(restored.state)
        if wrong := differences(leaf_types(arrays), types, partial=False):
            raise RuntimeError(f"step {chosen} was read as another tree than it was written: {wrong[0]}")
        state = jax.tree.unflatten(jax.tree.structure(target), [arrays[path] for path in wanted])
        return Restored(state, chosen, restored.metadata)

    def restore_arrays(self, step: int | None = None, *, part: str | None = None) -> Restored:
        """Reads a verified step without knowing its tree, onto the host.

        Args:
          step: As for `restore`.
          part: Only the subtree under this top-level name, for example `"params"`; it keeps its name in the result.

        Returns:
          A nested dictionary of NumPy arrays; its keys are the names of fields, keys and positions.

        Raises:
          As `restore`; UserError too where the step has no such part.
        """

        def wanted(manifest: Manifest) -> list[str]:
            return [path for path in manifest.tree if part is None or path.split("/")[0] == part]

        def misfits(manifest: Manifest) -> list[str]:
            return [] if wanted(manifest) else [f"{part}: not in the checkpoint"]

        chosen = on_first_process(lambda: self._directory.choose(step, misfits))
        return self._load(chosen, dict.fromkeys(wanted(self.manifest(chosen)), np.ndarray))

    def _load(self, step: int, targets: Mapping[str, Any]) -> Restored:
        path = self._directory.step_path(step)
        try:
            with self._orbax_options():
                state = orbax.load(path, unflatten(targets), checkpointable_name=_ITEM)
        except Exception as error:
            # Not a reason to go back: an older step would fail the same way, or throw good work away.
            raise RuntimeError(
                f"checkpoint {path} is as it was written, but Orbax cannot read it: {first_line(error)}"
            ) from error
        return Restored(state, step, self.manifest(step).metadata)

    def _finish(self, step: int, response: Any, metadata: dict[str, Any], types: dict[str, LeafType]) -> None:
        """The rest of a save, in a thread of its own: awaits the commit, makes the step count, deletes old ones."""
        try:
            response.result(timeout=self._timeout_seconds)
            if jax.process_index() == 0:
                write_manifest(self._directory.step_path(step), step=step, metadata=metadata, tree=types)
            else:
                self._await_manifest(step)
        except BaseException as error:
            log.error("step %d was not saved to %s: %s", step, self._directory.path, first_line(error))
            self._error = error
            # After a timeout Orbax may be writing still.
            if not isinstance(error, TimeoutError):
                self._clean_up(step)
            return
        if jax.process_index() == 0:
            self._directory.prune(step, self._keep)

    def _await_manifest(self, step: int) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while not (self._directory.step_path(step) / MANIFEST).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"process 0 wrote no manifest within {self._timeout_seconds} s")
            time.sleep(_POLL_SECONDS)

    def _clean_up(self, step: int) -> None:
        if jax.process_index() == 0:
            self._directory.remove_unfinished(step)

    def _orbax_options(self) -> orbax.Context:
        options = orbax.Context()
        options.asynchronous.timeout_secs = self._timeout_seconds
        # A directory that cannot be made is then an error at once. Made in the background, other threads wait for
        # it for 300 s, and hold up the end of the process.
        options.asynchronous.create_directories_asynchronously = False
        # Random float32 values shrink by 7 % only, for twice the time of a save.
        options.array.saving.use_compression = False
        # Whether all that is in the step is wanted was settled by its manifest.
        options.pytree.loading.partial_load = True
        return options


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata of a checkpoint must be JSON: {error}") from error


# What process 0 raises every process raises: its type decides how a program goes on.
_SHARED_ERRORS = (UserError, FileNotFoundError, SaveError, ValueError, RuntimeError)


def on_first_process(decide: Callable[[], Any]) -> Any:
    """What `decide` gives on process 0 (a step's number, or None), on every process; or what it raises there."""
    if jax.process_count() == 1:
        return decide()
    number, failure = 0, None
    if jax.process_index() == 0:
        try:
            number = decide() or 0
        except Exception as error:
            failure = error
            kinds = (index for index, kind in enumerate(_SHARED_ERRORS) if isinstance(error, kind))
            number = -1 - next(kinds, len(_SHARED_ERRORS) - 1)
    number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
    if failure is not None:
        raise failure
    if number < 0:
        raise _SHARED_ERRORS[-1 - number]("process 0 could not go on; its log says why")
    return number
