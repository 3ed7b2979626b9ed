"""Records some steps of a run with JAX's profiler, for TensorBoard: `profile=(FIRST, COUNT)`."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import jax
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import copy_folder


def check_profile(steps: tuple[int, ...] | None) -> None:
    """Raises UserError unless `profile` is None, or the first step to record and the number of steps."""
    whole = steps is not None and len(steps) == 2 and all(isinstance(one, int) and one >= 1 for one in steps)
    if steps is not None and not whole:
        raise UserError(f"profile: found {steps!r}; expected (FIRST, COUNT), the first step and a number of steps")


class Profile:
    """Records the steps FIRST to FIRST + COUNT - 1 of one process into `folder`, in which TensorBoard looks for them.

    A start of the run that begins after FIRST records nothing; one that ends in between keeps what it has recorded.

    Args:
        steps: (FIRST, COUNT), FIRST counted from 1; None: record nothing.
        folder: of TensorBoard's events, on a disk or in a bucket. Each process writes a file of its own name.
        say: writes a line to the log.
    """

    def __init__(self, steps: tuple[int, ...] | None, folder: epath.Path, say: Callable[[str], None]):
        self._first, count = steps or (0, 0)
        self._last = self._first + count - 1
        self._folder, self._say = folder, say
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def step(self, step: int) -> AbstractContextManager[None]:
        """Context manager around the call of a step."""
        if step == self._first:
            try:
                self._scratch = tempfile.TemporaryDirectory()
                jax.profiler.start_trace(self._scratch.name)
            except (OSError, RuntimeError) as error:
                self._scratch = None
                self._say(f"profile: nothing is recorded: {error}")
        return nullcontext() if self._scratch is None else jax.profiler.StepTraceAnnotation("train", step_num=step)

    def end(self, step: int, state: Any) -> None:
        """Called after the call of a step, with the state that it makes."""
        if self._scratch is not None and step == self._last:
            jax.block_until_ready(state)
            try:
                self._write()
            except (OSError, RuntimeError) as error:
                self._say(f"profile: the record was not written to {self._folder}: {error}")
                return
            self._say(f"recorded steps {self._first:,} to {step:,}: tensorboard --logdir {self._folder}, tab Profile")

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, RuntimeError):  # the run ends for another reason, which must not be hidden
            self._write()

    def _write(self) -> None:
        if self._scratch is None:
            return
        scratch, self._scratch = self._scratch, None
        with scratch:
            jax.profiler.stop_trace()
            if jax.process_count() > 1:  # JAX names a record after the host, which may have several processes
                for path in [path for path in Path(scratch.name).rglob("*") if path.is_file()]:
                    path.rename(path.with_name(f"process{jax.process_index()}.{path.name}"))
            copy_folder(scratch.name, self._folder)
