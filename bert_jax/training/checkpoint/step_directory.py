"""The directory of a run's checkpoints: which steps lie there and are good, room for the next one, retention.

Knows names and files only, neither Orbax nor devices. With several processes all that changes something runs on
process 0.
"""

import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_json
from bert_jax.training.checkpoint.manifest import MANIFEST, Manifest, ManifestError, find_damage, read_manifest

log = logging.getLogger(__name__)

# Names that Orbax gives; WRITER is what it is asked to note in each step, to know our own unfinished steps by.
_TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
WRITER = {"writer": "bert_jax"}


class SaveError(RuntimeError):
    """A step was not saved. Older steps are as they were; the cause is chained."""


class StepDirectory:
    """DIRECTORY with one directory a step, named by the step's number; only what has a manifest is a step.

    Attributes:
      path: The directory, which need not exist yet.
      damaged: Steps that were found not to be as their manifest says; a save of the same number replaces them.
    """

    def __init__(self, path: str | os.PathLike[str]):
        # Orbax takes absolute paths only; resolve() would make a local path of a bucket's.
        self.path = epath.Path(path) if is_remote(path) else epath.Path(path).resolve()
        self.damaged: set[int] = set()
        self._known: set[int] = set()
        self._was_there = self.path.exists()
        self._swept = False

    def step_path(self, step: int) -> epath.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """The numbers of the steps, ascending; they are not verified here."""
        if not self.path.exists():
            return []
        numbers = (_step_number(path.name) for path in self.path.iterdir())
        return sorted(n for n in numbers if n is not None and (self.step_path(n) / MANIFEST).exists())

    def problems(self, step: int, misfits: Callable[[Manifest], list[str]] = lambda _: []) -> list[str]:
        """Reads every byte of a step; what is wrong with it, a line each. Empty = good.

        Raises:
          UserError: The manifest is good, and `misfits` says why the step is not the one wanted. The files are
            not read then.
        """
        try:
            manifest = read_manifest(self.step_path(step))
        except ManifestError as error:
            return [str(error)]
        if wrong := misfits(manifest):
            raise UserError(f"checkpoint {self.step_path(step)} does not fit: {listed(wrong)}")
        try:
            return find_damage(self.step_path(step), manifest)
        except OSError as error:
            return [f"cannot be read ({error})"]

    def choose(self, step: int | None, misfits: Callable[[Manifest], list[str]]) -> int:
        """The newest step that is as its manifest says, or `step` if it is; every other is named in a warning.

        Raises:
          FileNotFoundError: There is no step.
          UserError: There are steps and none is good, `step` is not among them, or `misfits` objects.
        """
        steps = self.steps()
        self._warn_of_strangers()
        self._known = set(steps)
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
        raise UserError(f"{self.path}: no checkpoint is as it was written. {'. '.join(reasons)}")

    def make_room(self, step: int) -> None:
        """Makes sure that a save of `step` can begin.

        Raises:
          FileNotFoundError: The directory was there and is gone.
          SaveError: Nothing can be written to it.
          ValueError: There is a good step with this number, or a later one.
        """
        self._check_writable(step)
        if not self._swept:
            self._sweep()
            self._swept = True
        steps = self.steps()
        if vanished := sorted(self._known - set(steps)):
            log.warning("steps that were in %s were removed by someone else: %s", self.path, listed(vanished))
            self._known -= set(vanished)
        good = [number for number in steps if number not in self.damaged]
        if good and step <= good[-1]:
            raise ValueError(
                f"{self.path}: step {step} cannot be saved after step {good[-1]}; delete_after() goes back"
            )
        if step in steps:
            log.warning("the damaged checkpoint %s is replaced", self.step_path(step))
            self.delete(step)
        elif self.step_path(step).exists():
            aside = self.path / f"{step}.set-aside-{uuid.uuid4().hex[:8]}"
            log.warning("%s is in the way of a save and becomes %s", self.step_path(step), aside)
            self.step_path(step).rename(aside)

    def prune(self, written: int, keep: int) -> None:
        """Deletes what is older than the newest `keep` good steps; nothing while there are fewer.

        Args:
          written: The step that has just been written and hashed; the others that stay are read again.
        """
        try:
            steps, good = self.steps(), []
            for step in reversed(steps):
                problems = [] if step == written else self.problems(step)
                if not problems:
                    good.append(step)
                elif step not in self.damaged:
                    self.damaged.add(step)
                    log.warning("checkpoint %s is damaged: %s", self.step_path(step), listed(problems))
                if len(good) == keep:
                    break
            for step in steps:
                if len(good) == keep and step < good[-1]:
                    self.delete(step)
            self._known = set(self.steps())
        except OSError as error:
            log.warning("older checkpoints in %s could not be removed: %s", self.path, first_line(error))

    def delete(self, step: int) -> None:
        _remove_step(self.step_path(step))
        self.damaged.discard(step)
        self._known.discard(step)

    def remove_unfinished(self, step: int) -> None:
        """Frees the disk of a failed save, which may have failed because the disk is full."""
        # Orbax may still be writing to it; the next save tries again.
        self._swept = False
        try:
            for path in self.path.iterdir() if self.path.exists() else []:
                if _is_temporary(path.name) and path.name.startswith(f"{step}."):
                    path.rmtree()
            if self.step_path(step).exists() and not (self.step_path(step) / MANIFEST).exists():
                _remove_step(self.step_path(step))
        except OSError as error:
            log.info("what is left of step %d in %s is not removed yet: %s", step, self.path, first_line(error))

    def _check_writable(self, step: int) -> None:
        # Orbax would make a directory that was removed anew, and forget the steps that were in it.
        if self._was_there and not self.path.exists():
            held = f" with steps {listed(sorted(self._known))}" if self._known else ""
            raise FileNotFoundError(f"{self.path} was there{held} and is gone: step {step} is not saved")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
            self._was_there = self.path.exists()  # a bucket has no empty directories
        except OSError as error:
            raise SaveError(f"step {step} is not saved: {self.path} cannot be written to ({error})") from error

    def _sweep(self) -> None:
        """Removes what interrupted saves of ours left. Who saves holds the run's lock: nobody else is writing."""
        for path in self.path.iterdir() if self.path.exists() else []:
            if _is_temporary(path.name):
                log.info("removing %s, which an interrupted save left", path)
                path.rmtree()
            elif _step_number(path.name) is not None and _is_unfinished(path):
                log.info("removing %s, which an interrupted save or deletion left", path)
                _remove_step(path)

    def _warn_of_strangers(self) -> None:
        for path in sorted(self.path.iterdir()) if self.path.exists() else []:
            if _is_temporary(path.name):
                log.info("%s is a save under way, or what is left of an interrupted one", path)
            elif _step_number(path.name) is not None:
                if not (path / MANIFEST).exists():
                    log.warning("%s has no %s, as after an interrupted save, and is ignored", path, MANIFEST)
            elif not path.name.startswith("."):
                log.warning("%s is no checkpoint and is ignored", path)


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
    """Deletes in an order that, cut short anywhere, leaves no step, and what `_is_unfinished` knows as ours."""
    (path / MANIFEST).unlink(missing_ok=True)
    for child in path.iterdir():
        if child.is_dir():
            child.rmtree()
        elif child.name != _ORBAX_METADATA:
            child.unlink()
    path.rmtree()


def listed(items: list[Any], most: int = 4) -> str:
    """The first few items on one line."""
    shown = "; ".join(str(item) for item in items[:most])
    return f"{shown}; and {len(items) - most} more" if len(items) > most else shown


def first_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
