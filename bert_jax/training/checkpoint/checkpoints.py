"""`Checkpoints`: save a state asynchronously, verify it before use, delete old steps. The only file that imports Orbax.

Orbax writes a step under a temporary name and renames it to DIRECTORY/STEP. Then a background thread syncs it to disk,
hashes every file (hashing.py) and writes `manifest.json` (manifest.py). This module ignores steps without a manifest,
and only reads or retains steps that agree with their manifest.

With several processes, all of them call every method together, on one shared file system. Each hashes and syncs the
files that it wrote. Only process 0 chooses, verifies, writes manifests and deletes. It broadcasts its decisions; the
other processes wait for its manifests.
"""

import atexit
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as orbax

from bert_jax.errors import UserError
from bert_jax.files import storage_errors
from bert_jax.runtime.hosts import on_first_process
from bert_jax.training.checkpoint.hashing import POLL_SECONDS, hash_and_sync, receive, send, stamps_of
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
# Orbax's threads log a traceback each when a save fails; the save's own error says it in one line.
logging.getLogger("absl").addFilter(lambda record: "_SignalingThread.run() raised" not in str(record.msg))
_ITEM = "state"

SHARED_ERRORS = (UserError, FileNotFoundError, SaveError, ValueError, RuntimeError, OSError)
"""For `on_first_process`: every process raises the type that process 0 raises, because programs react to the type."""


class NonFiniteError(SaveError):
    """The state contains a NaN or an infinity and was not saved."""


@dataclass(frozen=True)
class Restored:
    """A state read from a checkpoint.

    Attributes:
      state: The target's tree of arrays, or a nested dictionary of NumPy arrays (`restore_arrays`).
      step: The step at which it was saved.
      metadata: The metadata given to `Checkpoints.save`.
    """

    state: Any
    step: int
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run. As a context manager it waits for the last save and raises its error.

    A program that ends without `close()` may lose its last save and that save's error.

    Args:
      directory: The directory of the steps; the first save creates it, reading changes nothing in it. Only one program
        may save to it at a time; this class does not check that, the run's lock does.
      keep: The number of verified steps to retain, at least 2, and as many that are not extra (see `save`). Older steps
        are deleted only while this object has read every byte of the retained ones, when it saved or chose them or now,
        and none of their files has changed since.
      timeout_seconds: The time after which an unfinished save counts as failed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2, timeout_seconds: int = 1200):
        if keep < 2:
            raise UserError(f"keep={keep}: expected at least 2, so that a run survives one damaged checkpoint")
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

    def save(self, step: int, state: Any, metadata: Mapping[str, Any], *, extra: bool = False) -> None:
        """Starts saving `state`; returns once its arrays are copied, so that the caller may donate or change them.

        It first waits for the previous save. If that one failed, it raises that save's error and does not save this
        step.

        Args:
          step: Greater than every existing good step. A damaged or unfinished step with this number is replaced.
          state: Any pytree of arrays; the stored shapes and paths do not depend on the mesh.
          metadata: JSON values, stored in the manifest (tuples become lists).
          extra: The step is not one of the run's schedule, as when it is saved because the program is stopped. It never
            takes the place of one that is: `keep` of those stay too, and `restore` can pass over the extra ones.

        Raises:
          NonFiniteError: A leaf contains a NaN or an infinity; nothing is written.
          SaveError: The previous save failed, or this one could not start.
          FileNotFoundError: The directory existed before and has been removed.
          ValueError: A good step with this or a greater number exists, `metadata` is not JSON, an array has no
            elements, or a key of the tree is empty or contains "/".
          TypeError: A leaf is not an array, or is a typed random key.
        """
        if self._closed:
            raise ValueError(f"the checkpoints in {self._directory.path} are closed")
        self.wait()
        step = int(step)
        metadata = _checked_metadata(metadata)
        # Orbax accepts NumPy arrays but not NumPy scalars.
        leaves = {p: np.asarray(x) if isinstance(x, np.generic) else x for p, x in flatten(state).items()}
        types = leaf_types(leaves)
        if non_finite := find_non_finite(leaves):
            others = f", as do {len(non_finite) - 1} other arrays" if len(non_finite) > 1 else ""
            raise NonFiniteError(f"step {step} is not saved: {non_finite[0]} holds values that are not finite{others}")
        size = sum(leaf.nbytes for leaf in leaves.values())
        on_first_process(lambda: self._directory.make_room(step, size), errors=SHARED_ERRORS)
        tree: Any = unflatten(leaves)
        try:
            with self._orbax_options():
                response = orbax.save_async(
                    self._directory.step_path(step),
                    tree,
                    checkpointable_name=_ITEM,
                    custom_metadata=dict(WRITER),
                )
        except Exception as error:
            self._clean_up(step)
            raise SaveError(f"step {step} was not saved to {self._directory.path}: {_cause(error)}") from error
        self._saving = step
        atexit.unregister(self._say_error)
        atexit.register(self._say_error)  # called when the threads have ended
        self._thread = threading.Thread(
            target=self._finish, args=(step, response, metadata, types, extra), name=f"checkpoint-{step}"
        )
        try:
            self._thread.start()
        except RuntimeError:  # the system gives no more threads
            self._thread.run()
            self._thread = None

    def is_idle(self) -> bool:
        """Whether no save is running; `wait` then returns at once, and raises the last save's error."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until no save is running.

        Raises:
          SaveError: The last save failed. Each failure is raised once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise SaveError(f"step {self._saving} was not saved to {self._directory.path}: {_cause(error)}") from error

    def close(self) -> None:
        """Waits for the last save and raises its error; afterwards `save` raises ValueError."""
        self._closed = True
        atexit.unregister(self._say_error)
        try:
            self.wait()
        finally:
            if jax.process_index() == 0:
                self._directory.remove_rest()

    def delete_old(self) -> None:
        """Deletes the steps before the newest `keep` good ones, as each save does: a killed program may not have."""
        if jax.process_index() == 0 and len(self._directory.steps()) > self._keep:
            self._directory.prune(self._keep)

    def delete_after(self, step: int) -> None:
        """Deletes the steps after `step`, so that a run can continue from it and save those numbers again."""
        self.wait()

        def delete() -> None:
            for later in self._directory.steps():
                if later > step:
                    self._directory.delete(later)

        on_first_process(delete, errors=SHARED_ERRORS)

    def steps(self) -> list[int]:
        """The numbers of the steps that have a manifest, ascending. It does not verify them."""
        return self._directory.steps()

    def manifest(self, step: int) -> Manifest:
        """The step's manifest: metadata, tree with shapes and dtypes, files. Reads no array.

        Raises:
          ManifestError (a ValueError): The manifest is missing or damaged.
        """
        return read_manifest(self._directory.step_path(step))

    def verify(self, step: int) -> list[str]:
        """Reads every byte of a step and returns one line per problem (file, found, expected); empty = good."""
        return self._directory.problems(step)

    def restore(self, target: Any, *, step: int | None = None, partial: bool = False, extra: bool = True) -> Restored:
        """Verifies a step and reads it, bitwise as it was saved, with the shardings of `target`.

        Args:
          target: The state's tree of `jax.ShapeDtypeStruct` (or arrays), each with a sharding, on any mesh; a leaf
            without one goes to the first device. Containers may differ from the saved ones, paths may not.
          step: The step to read; None means the newest good one: damaged steps are skipped, each with a warning that
            names the damage.
          extra: Whether the newest may be one that was saved as `extra`.
          partial: `target` is a part of the state, for example `{"params": …}`; the rest is verified but not loaded.

        Raises:
          FileNotFoundError: There are no steps, or only those that may not be chosen.
          UserError: The step's tree, shapes or dtypes differ from `target`'s; the step is damaged or does not exist; or
            all steps are damaged.
          RuntimeError: The step's files are good but Orbax cannot read them (too little memory, another version).
        """
        wanted = flatten(target)
        types = leaf_types(wanted)
        chosen = on_first_process(
            lambda: self._directory.choose(
                step, lambda manifest: differences(manifest.tree, types, partial=partial), extra=extra
            ),
            errors=SHARED_ERRORS,
        )
        restored = self._load(chosen, {path: _abstract(leaf) for path, leaf in wanted.items()})
        arrays = flatten(restored.state)
        if wrong := differences(leaf_types(arrays), types, partial=False):
            raise RuntimeError(f"Orbax read step {chosen} with another tree than the saved one: {wrong[0]}")
        state = jax.tree.unflatten(jax.tree.structure(target), [arrays[path] for path in wanted])
        return Restored(state, chosen, restored.metadata)

    def restore_arrays(self, step: int | None = None, *, part: str | None = None) -> Restored:
        """Verifies a step and reads it onto the host, without a target.

        Args:
          step: As for `restore`.
          part: A top-level name, for example `"params"`: reads only its subtree; None reads all. The result contains
            the name.

        Returns:
          `Restored` whose state is a nested dictionary of NumPy arrays; its keys are those of the saved paths (names of
          fields, keys, positions).

        Raises:
          As `restore`; also UserError if the step has no such part.
        """

        def wanted(manifest: Manifest) -> list[str]:
            return [path for path in manifest.tree if part is None or path.split("/")[0] == part]

        def misfits(manifest: Manifest) -> list[str]:
            return [] if wanted(manifest) else [f"{part}: not in the checkpoint"]

        chosen = on_first_process(lambda: self._directory.choose(step, misfits), errors=SHARED_ERRORS)
        return self._load(chosen, dict.fromkeys(wanted(self.manifest(chosen)), np.ndarray))

    def _load(self, step: int, targets: Mapping[str, Any]) -> Restored:
        path = self._directory.step_path(step)
        try:
            with self._orbax_options():
                wanted: Any = unflatten(targets)
                state = orbax.load(path, wanted, checkpointable_name=_ITEM)
        except Exception as error:
            # Do not fall back to an older step: it would fail in the same way, or lose progress without need.
            raise RuntimeError(
                f"checkpoint {path} is undamaged, but Orbax cannot read it: {first_line(error)}"
            ) from error
        return Restored(state, step, self.manifest(step).metadata)

    def _finish(
        self, step: int, response: Any, metadata: dict[str, Any], types: dict[str, LeafType], extra: bool
    ) -> None:
        """Finishes a save in its own thread: waits for Orbax, writes the manifest, deletes old steps."""
        written = False
        try:
            response.result(timeout=self._timeout_seconds)
            written = True
            if jax.process_index() == 0:
                self._write_manifest(step, metadata, types, extra)
            else:
                self._await_manifest(step)
        except BaseException as error:
            self._error = error
            if written or not isinstance(error, TimeoutError):
                self._clean_up(step)
            elif jax.process_index() == 0:
                self._directory.leave_unfinished()  # Orbax may still be writing
            return
        if jax.process_index() == 0:
            self._directory.prune(self._keep)

    def _say_error(self) -> None:
        """Says why the last save failed, in a program that ends without asking."""
        if self._error is not None:
            log.error("step %d was not saved to %s: %s", self._saving, self._directory.path, _cause(self._error))

    def _write_manifest(self, step: int, metadata: dict[str, Any], types: dict[str, LeafType], extra: bool) -> None:
        """On process 0: hashes its files, waits for the sums of the others, writes the manifest."""
        path = self._directory.step_path(step)
        stamps = stamps_of(path)
        files = hash_and_sync(path, 0) | receive(path, jax.process_count(), self._timeout_seconds)
        write_manifest(path, step=step, metadata=metadata, tree=types, files=files, extra=extra)
        self._directory.mark_verified(step, {name: stamps[name] for name in files})

    def _await_manifest(self, step: int) -> None:
        """On the other processes: hashes their files, sends the sums to process 0, waits for the manifest."""
        path, process = self._directory.step_path(step), jax.process_index()
        try:
            sums = hash_and_sync(path, process)
        except storage_errors() as error:
            send(path, process, None, error=first_line(error))
            raise
        send(path, process, sums)
        deadline = time.monotonic() + self._timeout_seconds
        while not (path / MANIFEST).exists():
            if not path.exists():
                raise SaveError("process 0 could not finish it; its log has the error")
            if time.monotonic() > deadline:
                raise TimeoutError(f"process 0 did not write the manifest within {self._timeout_seconds} s")
            time.sleep(POLL_SECONDS)

    def _clean_up(self, step: int) -> None:
        _await_orbax_threads(10)
        if jax.process_index() == 0:
            self._directory.remove_unfinished(step)

    def _orbax_options(self) -> orbax.Context:
        options = orbax.Context()
        options.asynchronous.timeout_secs = self._timeout_seconds
        # So a directory that cannot be created fails at once. Otherwise other threads wait 300 s for it, which delays
        # the end of the process.
        options.asynchronous.create_directories_asynchronously = False
        # Compression would shrink random float32 values by only 7 % and double the time of a save.
        options.array.saving.use_compression = False
        # The comparison with the manifest has already checked that the target may be a part of the step.
        options.pytree.loading.partial_load = True
        return options


def _cause(error: BaseException) -> str:
    """An error of a save on one line; of TensorStore's, which name files of ours, only the system's own message."""
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(found[1])) if found else first_line(error)


def _await_orbax_threads(seconds: float) -> None:
    """Waits for the threads of a save that has failed: they may still be writing files of it."""
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("orbax."):
            thread.join(max(0.0, deadline - time.monotonic()))


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
