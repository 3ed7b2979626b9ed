"""The run directory `runs/NAME`: its paths, a lock that admits one run at a time, and a config that stays the same."""

import fcntl
import json
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import (
    check_reachable,
    checksum_of,
    copy_folder,
    is_remote,
    json_text,
    read_json_lines,
    read_object,
    read_summed,
    refuse_special,
    write_json,
)
from bert_jax.formats.new_folder import refuse_foreign, remove_leftovers
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.checkpoint.manifest import ManifestError
from train.run.config import differing_fields, to_json

log = logging.getLogger(__name__)


class RunDirectory:
    """Paths of a run, its lock and its config.

    The directory contains config.json, environment.json, checkpoints/STEP/, metrics.jsonl, tensorboard/, curves.png,
    run.log, goodput.json, track.json (with track=), tokenizer/, data/ (if the run prepared its own text) and export/.
    It may be on a bucket (gs://...): then it has no lock, which buckets do not offer, and text= is refused, which needs
    a local disk.
    """

    def __init__(self, path: str):
        check_reachable(path)
        self.path = epath.Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer"
        self.data = self.path / "data"
        self.export = self.path / "export"
        self._lock: int | None = None
        self._made: list[epath.Path] = []

    @property
    def is_remote(self) -> bool:
        return is_remote(self.path)

    def acquire(self) -> None:
        """Creates and locks the directory.

        Raises UserError if it is a file or in one, if it has files of others under names that a run writes, or if
        another run, whose host and process are named, holds the lock.
        """
        if self.is_remote:
            self.path.mkdir(parents=True, exist_ok=True)
            return
        folder = self.path
        while not folder.exists():
            self._made.append(folder)
            folder = folder.parent
        if not folder.is_dir():
            raise UserError(f"run: {self.path}: {folder} is a file, not a folder; choose another run=")
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(Path(self.path))
        self._refuse_files_of_others()
        lock = self.path / ".lock"
        refuse_special(lock, follow=False)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "an unnamed process"
            os.close(descriptor)
            raise UserError(
                f"{self.path}: another run uses this directory ({holder}); wait for it, stop it, or choose another run="
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"{lock}: cannot be locked ({error.strerror}); choose a run= on a file system that has locks (flock)"
            ) from None
        for left in self.path.glob(".*.tmp"):  # of a small file that a killed run was writing
            left.unlink(missing_ok=True)
        self._lock = descriptor
        with suppress(OSError):  # the lock holds on a full disk too
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on host {socket.gethostname()}".encode())
        remove_leftovers(Path(self.export))

    def _refuse_files_of_others(self) -> None:
        """Raises UserError if a run would overwrite files of a folder that no run wrote: a model has a config.json."""
        found = {path.name for path in self.path.iterdir()}
        if found & {".lock", self.checkpoints.name} or not (taken := sorted(found & _WRITTEN)):
            return
        with suppress(UserError, OSError):
            if "checksum" in read_object(self.config):  # of a run that was copied without its lock
                return
        raise UserError(
            f"run: {self.path}: no run wrote this folder, and its {', '.join(taken)} would be overwritten; "
            "choose another run="
        )

    def nearest_folder(self) -> Path:
        """The directory itself or, if it does not exist, the nearest one above it that does; of a run on a disk."""
        path = Path(self.path).absolute()
        return next(folder for folder in (path, *path.parents) if folder.is_dir())

    def release(self) -> None:
        if self._lock is not None:
            with suppress(OSError):
                os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def discard_failed_start(self) -> None:
        """Removes the directory if `acquire` created it; keeps prepared data, and a run with metrics or checkpoints.

        For a start that failed because of the user's mistake: the corrected command then starts fresh.
        """
        made, self._made = self._made, []  # only once: two threads may end the run
        if not made or self._has_data() or read_json_lines(self.path / "metrics.jsonl"):
            return
        # Checkpoints may come before the first row of metrics, and a save that fails is the user's to mend too.
        if self.checkpoints.exists() and any(self.checkpoints.iterdir()):
            return
        self.path.rmtree()
        for folder in made[1:]:  # such as runs/, unless others have used it since
            if any(folder.iterdir()):
                return
            folder.rmdir()

    def _has_data(self) -> bool:
        """Whether data is prepared, or a part of it, which the same command continues."""
        begun = (path for name in ("counts", "parts") for path in (self.data / name).glob("*"))
        return (self.data / "manifest.json").exists() or any(begun)

    def check_export(self) -> None:
        """Raises UserError if `export/` holds what is no former export, which the end of the run could not replace."""
        if not self.is_remote:
            refuse_foreign(Path(self.export))

    def write_folder(self, folder: epath.Path, write: Callable[[Path], object]) -> None:
        """Calls `write(path)` to write `folder`; for a bucket `path` is a temporary local folder, then copied there."""
        if not self.is_remote:
            write(Path(folder))
            return
        with tempfile.TemporaryDirectory() as scratch:
            local = Path(scratch) / folder.name
            write(local)
            copy_folder(local, folder)

    def has_tokenizer(self, tokenizer: Tokenizer) -> bool:
        """Whether tokenizer/ has every file that this tokenizer writes, byte for byte."""
        try:
            with tempfile.TemporaryDirectory() as scratch:
                tokenizer.save(scratch)
                files = [path for path in Path(scratch).rglob("*") if path.is_file()]
                found = (self.tokenizer / path.relative_to(scratch).as_posix() for path in files)
                return all(theirs.read_bytes() == own.read_bytes() for theirs, own in zip(found, files, strict=True))
        except OSError:
            return False

    def on_disk(self) -> AbstractContextManager[Path]:
        """Context manager: a local folder with the run's small files, the directory itself or a temporary copy."""
        return self._on_disk(self.path, skip=("checkpoints", "data", "export", "tensorboard"))

    def export_on_disk(self) -> AbstractContextManager[Path]:
        """Context manager: `export/` as a local folder, itself or a temporary copy."""
        return self._on_disk(self.export)

    @contextmanager
    def _on_disk(self, folder: epath.Path, *, skip: tuple[str, ...] = ()) -> Generator[Path]:
        if not self.is_remote:
            yield Path(folder)
            return
        with tempfile.TemporaryDirectory() as scratch:
            copy_folder(folder, scratch, skip=skip)
            yield Path(scratch)

    def told_as_source(self) -> tuple[str, str]:
        """What to say where a command reads this run's model, and the end of the line: from a bucket it is copied."""
        if not self.is_remote:
            return str(self.path), ""
        return "COPY", f" (COPY: {self.path}, copied to a disk; no model is read from a bucket)"

    def saved_config(self) -> dict[str, Any] | None:
        """The config.json that an earlier start of this run wrote; None if there is none.

        Raises:
            UserError: it is not JSON, or its `checksum` differs.
        """
        if not self.config.exists():
            return None
        mend = "restore it, remove it if the run has checkpoints, or start a fresh run="
        try:
            return read_summed(self.config, mend)
        except OSError as error:
            raise UserError(f"{self.config}: {error.strerror}; {mend}") from None

    def config_to_resume(self) -> dict[str, Any]:
        """The saved config if the run has checkpoints, from which it resumes without reading `init=`; otherwise {}.

        If config.json was lost, it is written again from the newest checkpoint.

        Raises:
            UserError: config.json is damaged, or is lost and no checkpoint has it.
        """
        with Checkpoints(self.checkpoints) as checkpoints:
            steps = checkpoints.steps()
            saved = self.saved_config() if steps else {}
            for step in reversed(steps) if saved is None else ():
                with suppress(ValueError, KeyError):  # a damaged manifest
                    saved = checkpoints.manifest(step).metadata["config"]
                    write_json(self.config, saved | {"checksum": checksum_of(saved)})
                    log.warning("%s was missing; it is that of the checkpoint of step %d again", self.config, step)
                    break
            if saved is None:
                raise UserError(f"{self.config}: is missing, though the run has checkpoints; restore it")
            return saved

    def facts_to_resume(self) -> dict[str, Any]:
        """What the newest checkpoint records of the run, and its "step"; {} if none has a readable manifest."""
        with Checkpoints(self.checkpoints) as checkpoints:
            for step in reversed(checkpoints.steps()):
                with suppress(ManifestError):
                    return checkpoints.manifest(step).metadata | {"step": step}
        return {}

    def summary(self, exit_code: int) -> dict[str, Any]:
        """What `--json` prints: the run's path, progress and last metrics; null for what does not exist (yet).

        checkpoint: the newest saved step. train, eval: the last row of each kind in metrics.jsonl.
        """
        last = {row["kind"]: row for row in read_json_lines(self.path / "metrics.jsonl")}
        with Checkpoints(self.checkpoints) as checkpoints:
            steps = checkpoints.steps()
        return {
            "run": str(self.path),
            "exit_code": exit_code,
            "checkpoint": max(steps, default=None),
            "train": last.get("train"),
            "eval": last.get("eval"),
            "export": str(self.export) if (self.export / "config.json").exists() else None,
        }

    def saved_environment(self) -> dict[str, Any]:
        """environment.json of the last start of this run; {} if it is missing or unreadable."""
        path = self.path / "environment.json"
        try:
            return read_object(path, optional=True)
        except (UserError, OSError) as error:
            log.warning("%s; it is written anew", error)
            return {}

    def settle_config(self, config: Any, allow_change: tuple[str, ...]) -> None:
        """Writes config.json.

        Raises UserError if it differs from the saved one in a field not in `allow_change`, or in the shapes, the task
        or the metric of a run that has a checkpoint.
        """
        new = _as_saved(config)
        old = old_file = self.saved_config()
        if old is not None:
            if ("task" in old) != ("task" in new):  # the config of fine-tuning has a task
                raise UserError(f"{self.config}: belongs to a run of another program; choose another run=")
            old, changed = _compared(old, config)
            saved = self.checkpoints.exists() and any(self.checkpoints.iterdir())
            if saved and (shapes := [name for name in changed if _is_of_state(name, old, new)]):
                raise UserError(
                    f"{self.config}: the checkpoints of this run hold another state ({_changes(old, new, shapes)}); "
                    "choose another run="
                )
            refuse_changes(f"{self.config}: this run", old, config, allow_change)
        new |= {"checksum": checksum_of(new)}
        if new != old_file:  # a full disk does not stop a resume
            write_json(self.config, new)


def refuse_changes(started: str, old: dict, config: Any, allow_change: tuple[str, ...]) -> None:
    """Raises UserError if a config differs from a saved one in a field that may not change on a resume.

    Args:
        started: what was started with the saved one: its file and what it is.
        old: the saved one.
        config: the new one.
        allow_change: fields that may change.
    """
    old, changed = _compared(old, config)
    allowed = {*allow_change, *(("optimizer.total_steps",) if "phases" in allow_change else ())}  # their sum
    refused = [name for name in changed if not any(name == a or name.startswith(f"{a}.") for a in allowed)]
    if refused:
        names = ",".join((*allow_change, *refused))
        raise UserError(
            f"{started} was started with another config ({_changes(old, _as_saved(config), refused)}); "
            f"say allow_change={names} to continue with the new one, or choose another run="
        )


def _compared(old: dict, config: Any) -> tuple[dict, list[str]]:
    """A saved config with all fields, and those in which the new one differs that are not free to change."""
    # A field that was added to the code after the run started had its default value then.
    old, new = _over(_as_saved(type(config)()), old), _as_saved(config)
    free, differing = {*_FREE, "checksum"}, differing_fields(old, new)
    # The data made of a text are a folder of the run directory, which may have moved. In fine-tuning, whose config has
    # a task, `text` is a column, and data= has the user's own files.
    if "task" not in new and old.get("text") and old["text"] == new["text"]:
        free.add("data")
    return old, [name for name in differing if free.isdisjoint({name, name.partition(".")[0]})]


def refuse_links(folder: Path) -> None:
    """Raises UserError if a run directory has a symbolic link in it: a run would write to the place that it names.

    The directory itself may be a link. Weights & Biases keeps links in wandb/, which only its own client writes to.
    """
    for path, folders, files in os.walk(folder):
        if path == os.fspath(folder) and "wandb" in folders:
            folders.remove("wandb")
        for name in (*folders, *files):
            # A temporary file is removed, whatever it is.
            if (found := Path(path, name)).is_symlink() and not (name.startswith(".") and name.endswith(".tmp")):
                raise UserError(
                    f"{found}: is a symbolic link, and a run writes to no place outside its directory; remove it, or "
                    f"make {folder} itself a link"
                )


# What a run would overwrite: not data/, which may be prepared before, nor tensorboard/, whose files have new names.
_WRITTEN = {
    *("config.json", "curves.png", "environment.json", "export", "goodput.json", "metrics.jsonl", "predictions"),
    *("report", "run.log", "runs.jsonl", "tokenizer", "track.json"),
}

# Fields that say where metrics go, suit the run to a machine, let it go on where it failed, or follow from others: a
# resumed run may have others.
_FREE = (
    "packed", "track", "profile", "accumulation", "tokens_per_device", "model.attention", "max_failed_saves", "budgets",
    "rollbacks", "hopeless_after", "blimp", "blimp_every", "blimp_pairs",
    "probe", "probe_every", "probe_examples",
    "finetune", "finetune_every", "finetune_examples", "finetune_epochs", "finetune_rate",
)  # fmt: skip


# Fields that decide which parameters there are, their shapes, or what their scores are: no checkpoint fits once they
# have changed. By the metric the run chose the best model, whose parameters only export/ has.
_OF_STATE = {"seeds", "learning_rates", "task", "kind", "metric", "model.problem_type"} | {
    f"model.{name}"
    for name in (
        "model_type", "vocab_size", "hidden_size", "embedding_size", "num_hidden_layers", "num_hidden_groups",
        "inner_group_num", "intermediate_size", "max_position_embeddings", "type_vocab_size", "position_embedding_type",
        "add_cross_attention", "tie_word_embeddings", "pruned_heads", "head_size",
    )
}  # fmt: skip


def _is_of_state(name: str, old: dict, new: dict) -> bool:
    """Whether no checkpoint of a run fits once this field has changed."""
    before, after = _at(old, name), _at(new, name)
    if name == "optimizer.name":
        return {before, after} != {"adamw", "lamb"}  # these two keep the same moments
    if name in ("optimizer.average_half_life", "optimizer.average_tail"):
        return (before is None) != (after is None)
    if name == "model.hidden_act":
        return not {before, after}.isdisjoint(("prelu", "xielu"))  # these two have parameters
    return name in _OF_STATE


def _changes(old: dict, new: dict, names: list[str]) -> str:
    return "; ".join(f"{name}: {_at(old, name)!r} became {_at(new, name)!r}" for name in names)


def _as_saved(config: Any) -> dict[str, Any]:
    return json.loads(json_text(to_json(config)))


def _over(defaults: dict, given: dict) -> dict:
    """`given`, with missing keys taken from `defaults`, in nested objects too."""
    both = {
        k: _over(defaults[k], v) for k, v in given.items() if isinstance(v, dict) and isinstance(defaults.get(k), dict)
    }
    return defaults | given | both


def _at(tree: dict, name: str) -> Any:
    value: Any = tree
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
