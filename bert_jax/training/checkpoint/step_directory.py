"""`StepDirectory`, the directory of a run's checkpoints: lists steps, chooses a good one, makes room, deletes old ones.

It deals with names and files, not with Orbax or devices. With several processes, only process 0 calls the methods that
change files.
"""

import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import check_reachable, is_remote, read_json, storage_errors
from bert_jax.training.checkpoint.hashing import Stamp, stamps_of
from bert_jax.training.checkpoint.manifest import MANIFEST, Manifest, ManifestError, find_damage, read_manifest

log = logging.getLogger(__name__)

# Names that Orbax uses. Orbax stores WRITER in each step's metadata, by which we recognise our own unfinished steps.
_TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
WRITER = {"writer": "bert_jax"}
_PROBE = ".writable-"  # begins the name of an empty file that is there for a moment


class SaveError(RuntimeError):
    """A step was not saved. Older steps are unchanged; `__cause__` is the original error."""


class StepDirectory:
    """A directory with one subdirectory per step, named after its number; one without a manifest is not a step.

    Attributes:
      path: The directory, which need not exist yet.
      damaged: Steps that were found to differ from their manifest; a save with the same number replaces them.
    """

    def __init__(self, path: str | os.PathLike[str]):
        check_reachable(path)
        # Orbax accepts only absolute paths; resolve() would turn a bucket's URL into a local path.
        self.path = epath.Path(path) if is_remote(path) else epath.Path(path).resolve()
        self.damaged: set[int] = set()
        self._known: set[int] = set()
        self._verified: dict[int, dict[str, Stamp]] = {}
        self._was_there = self.path.exists()
        self._swept = False
        self._failed = False

    def step_path(self, step: int) -> epath.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """The numbers of the steps, ascending. It does not verify them."""
        if not self.path.exists():
            return []
        numbers = (_step_number(path.name) for path in self.path.iterdir())
        return sorted(n for n in numbers if n is not None and (self.step_path(n) / MANIFEST).exists())

    def problems(self, step: int, misfits: Callable[[Manifest], list[str]] = lambda _: []) -> list[str]:
        """Reads every byte of a step and returns one line per problem; empty = good.

        Args:
          step: The number of the step.
          misfits: Returns one line for each way in which a manifest does not fit the caller's target.

        Raises:
          UserError: The manifest is good but `misfits` returned lines. The other files are not read then.
        """
        try:
            manifest = read_manifest(self.step_path(step))
        except ManifestError as error:
            return [str(error)]
        if wrong := misfits(manifest):
            raise UserError(f"checkpoint {self.step_path(step)} does not fit: {listed(wrong)}")
        try:
            stamps = stamps_of(self.step_path(step))
            problems = find_damage(self.step_path(step), manifest)
        except OSError as error:
            return [f"cannot be read ({error})"]
        if not problems:
            self.mark_verified(step, {name: stamps[name] for name in manifest.files})
        return problems

    def mark_verified(self, step: int, stamps: dict[str, Stamp]) -> None:
        """Remembers that every byte of a step was read, hashed and right; `stamps`: of its files before that."""
        self._verified[step] = stamps

    def _is_as_verified(self, step: int) -> bool:
        """Whether every byte of a step was read before, and no file has been written to, added or removed since."""
        try:
            read_manifest(self.step_path(step))
            found = stamps_of(self.step_path(step))
        except (ManifestError, OSError):
            return False
        del found[MANIFEST]
        return found == self._verified.get(step)

    def _is_extra(self, step: int) -> bool:
        try:
            return read_manifest(self.step_path(step)).extra
        except ManifestError:
            return False

    def choose(self, step: int | None, misfits: Callable[[Manifest], list[str]], *, extra: bool = True) -> int:
        """Returns the newest undamaged step, or `step` if that is undamaged; logs a warning for each damaged one.

        `extra`: whether the newest may be one that was saved as extra.

        Raises:
          FileNotFoundError: There are no steps, or only extra ones.
          UserError: All steps (or `step`) are damaged, `step` does not exist, or `misfits` returned lines.
        """
        steps = self.steps()
        self._warn_of_strangers()
        self._known = set(steps)
        if not extra:
            steps = [number for number in steps if not self._is_extra(number)]
        if not steps:
            raise FileNotFoundError(f"{self.path}: no checkpoint found")
        if step is not None and step not in steps:
            raise UserError(f"{self.path}: no step {step}; there are {listed(steps)}")
        reasons = []
        for candidate in reversed(steps) if step is None else [step]:
            problems = self.problems(candidate, misfits)
            if not problems:
                if reasons:
                    log.warning("going back to step %d of %s instead of step %d", candidate, self.path, steps[-1])
                return candidate
            self.damaged.add(candidate)
            reasons.append(f"step {candidate}: {listed(problems)}")
            log.warning("checkpoint %s is damaged and is not used: %s", self.step_path(candidate), listed(problems))
        raise UserError(f"{self.path}: every checkpoint to restore from is damaged. {'. '.join(reasons)}")

    def make_room(self, step: int, size: int = 0) -> None:
        """Prepares the directory for a save of `step`: removes leftovers, or renames what has the step's name.

        Raises:
          FileNotFoundError: The directory existed before and has been removed.
          SaveError: The directory is not writable, or the disk has less than `size` bytes free. If Orbax met a full
            disk on one process only, the others would wait for that one for minutes.
          ValueError: A good step with this or a greater number exists.
        """
        self._check_writable(step)
        try:
            self._make_room(step)
        except OSError as error:
            raise SaveError(f"step {step} is not saved: {self.path} cannot be tidied ({error})") from error
        if not is_remote(self.path):
            found = os.statvfs(self.path)
            free = found.f_bavail * found.f_frsize
            if found.f_blocks and free < size:
                room = f"{free / 1e6:,.1f} MB free, {size / 1e6:,.1f} MB needed"
                raise SaveError(f"step {step} was not saved to {self.path}: No space left on device ({room})")

    def _make_room(self, step: int) -> None:
        if not self._swept:
            self._sweep()
            self._swept = True
        steps = self.steps()
        if vanished := sorted(self._known - set(steps)):
            log.warning("another program removed steps from %s: %s", self.path, listed(vanished))
            self._known -= set(vanished)
        good = [number for number in steps if number not in self.damaged]
        if good and step <= good[-1]:
            raise ValueError(
                f"{self.path}: step {step} cannot be saved after step {good[-1]}; delete_after() goes back"
            )
        if step in steps:
            log.warning("replacing the damaged checkpoint %s", self.step_path(step))
            self.delete(step)
        elif self.step_path(step).exists():
            aside = self.path / f"{step}.set-aside-{uuid.uuid4().hex[:8]}"
            log.warning("renaming %s, which is in the way of a save, to %s", self.step_path(step), aside)
            self.step_path(step).rename(aside)

    def prune(self, keep: int) -> None:
        """Deletes the steps older than the newest `keep` good ones; deletes nothing if there are fewer good ones.

        Of the good ones that are not extra the newest `keep` stay too. If there is something to delete, it reads the
        retained steps, except those that it has read before and whose files have not changed since.
        """
        try:
            steps, good, regular = self.steps(), [], []
            retained = [*steps[-keep:], *[step for step in steps if not self._is_extra(step)][-keep:]]
            if set(steps) <= set(retained):  # and if some are damaged, even more would stay
                self._known = set(steps)
                return
            for step in reversed(steps):
                problems = [] if self._is_as_verified(step) else self.problems(step)
                if not problems:
                    good.append(step)
                    regular += [] if self._is_extra(step) else [step]
                elif step not in self.damaged:
                    self.damaged.add(step)
                    log.warning("checkpoint %s is damaged: %s", self.step_path(step), listed(problems))
                if len(regular) == keep:
                    break
            for step in steps:
                if len(good) >= keep and step < good[keep - 1] and step not in regular:
                    self.delete(step)
            self._known = set(self.steps())
        except storage_errors() as error:
            log.warning("older checkpoints in %s could not be removed: %s", self.path, first_line(error))

    def delete(self, step: int) -> None:
        _remove_step(self.step_path(step))
        self.damaged.discard(step)
        self._known.discard(step)
        self._verified.pop(step, None)

    def leave_unfinished(self) -> None:
        """The next save, or the end of the program, removes the files of a failed save."""
        self._swept, self._failed = False, True

    def remove_unfinished(self, step: int) -> None:
        """Removes the files of a failed save, which may have failed because the disk is full."""
        self.leave_unfinished()  # Orbax's threads may still write some of them
        try:
            for path in self.path.iterdir() if self.path.exists() else []:
                if _is_temporary(path.name) and path.name.startswith(f"{step}."):
                    path.rmtree()
            if self.step_path(step).exists() and not (self.step_path(step) / MANIFEST).exists():
                _remove_step(self.step_path(step))
        except storage_errors() as error:
            log.info("could not yet remove the rest of step %d in %s: %s", step, self.path, first_line(error))

    def remove_rest(self) -> None:
        """Removes what Orbax's threads wrote after `remove_unfinished`, at the end of the program."""
        if self._failed:
            with contextlib.suppress(*storage_errors()):
                self._sweep()

    def _check_writable(self, step: int) -> None:
        # Orbax would create a removed directory again, which would hide the loss of the steps in it.
        if self._was_there and not self.path.exists():
            held = f" with steps {listed(sorted(self._known))}" if self._known else ""
            raise FileNotFoundError(f"{self.path} existed{held} and has been removed: step {step} is not saved")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f"{_PROBE}{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)  # another process may sweep it away first
            self._was_there = self.path.exists()  # a bucket has no empty directories
        except storage_errors() as error:
            raise SaveError(f"step {step} is not saved: {self.path} is not writable ({error})") from error

    def _sweep(self) -> None:
        """Removes the rest of our interrupted saves. The caller has the run's lock, so no other program is saving."""
        for path in self.path.iterdir() if self.path.exists() else []:
            if _is_temporary(path.name):
                log.info("removing %s, which an interrupted save left", path)
                path.rmtree()
            elif _step_number(path.name) is not None and _is_unfinished(path):
                log.info("removing %s, which an interrupted save or deletion left", path)
                _remove_step(path)
            elif path.name.startswith(_PROBE):
                path.unlink(missing_ok=True)

    def _warn_of_strangers(self) -> None:
        for path in sorted(self.path.iterdir()) if self.path.exists() else []:
            if _is_temporary(path.name):
                log.info("%s is an unfinished save, running or interrupted", path)
            elif _step_number(path.name) is not None:
                if not (path / MANIFEST).exists():
                    log.warning("ignoring %s: it has no %s (a save was probably interrupted)", path, MANIFEST)
            elif not path.name.startswith("."):
                log.warning("ignoring %s: it is not a checkpoint", path)


def _step_number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None


def _is_temporary(name: str) -> bool:
    number, dot, rest = name.partition(".")
    return _step_number(number) is not None and (dot + rest).startswith(_TEMPORARY_SUFFIX)


def _is_unfinished(path: epath.Path) -> bool:
    """Whether a directory with a step's name has no manifest, and is empty or was written by us."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return False
    if not any(path.iterdir()):
        return True
    try:
        return read_json(path / _ORBAX_METADATA)["custom_metadata"] == WRITER
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_step(path: epath.Path) -> None:
    """Deletes a step. If this is interrupted, what remains is no step, and `_is_unfinished` recognises it as ours."""
    (path / MANIFEST).unlink(missing_ok=True)
    for child in path.iterdir():
        if child.is_dir():
            child.rmtree()
        elif child.name != _ORBAX_METADATA:
            child.unlink()
    path.rmtree()


def listed(items: list[Any]) -> str:
    """The first four items on one line, and the number of the others."""
    shown = "; ".join(str(item) for item in items[:4])
    return f"{shown}; and {len(items) - 4} more" if len(items) > 4 else shown


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
