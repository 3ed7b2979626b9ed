"""The run directory `runs/NAME`: what lies where, one process group at a time, one config for its whole life."""

import fcntl
import json
import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from train.recipe import PretrainConfig, differing_fields, to_json


class RunDirectory:
    """Paths of a run, its lock and its config.

    config.json, environment.json, checkpoints/STEP/, metrics.jsonl, tensorboard/, curves.png, run.log, tokenizer/,
    data/ (where the run prepared its own text) and export/. A bucket's path (gs://...) works for all but the lock,
    which a bucket does not offer.
    """

    def __init__(self, path: str):
        self.path = epath.Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer"
        self.data = self.path / "data"
        self.export = self.path / "export"
        self._lock = None

    @property
    def is_remote(self) -> bool:
        return "://" in os.fspath(self.path)

    def acquire(self) -> None:
        """Makes the directory and locks it; UserError, naming host and process, where another run is live in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.is_remote:
            return
        file = open(self.path / ".lock", "a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "an unnamed process"
            file.close()
            raise UserError(
                f"{self.path}: a run is live here ({holder}); wait for it, stop it, or choose another run="
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on host {socket.gethostname()}")
        file.flush()
        self._lock = file

    def release(self) -> None:
        if self._lock:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def saved_config(self) -> dict[str, Any] | None:
        """config.json of an earlier start of this run, or None."""
        if not self.config.exists():
            return None
        try:
            return json.loads(self.config.read_text())
        except json.JSONDecodeError as error:
            raise UserError(f"{self.config}: not JSON ({error}); restore it or start a fresh run=") from None

    def settle_config(self, config: PretrainConfig, allow_change: tuple[str, ...]) -> None:
        """Writes config.json; refuses one that differs from the run's own in other fields than `allow_change` names."""
        new = json.loads(json.dumps(to_json(config)))
        old = self.saved_config()
        if old is not None:
            changed = differing_fields(old, new)
            refused = [name for name in changed if not any(name == a or name.startswith(f"{a}.") for a in allow_change)]
            if refused:
                shown = "; ".join(f"{name}: {_at(old, name)!r} became {_at(new, name)!r}" for name in refused)
                raise UserError(
                    f"{self.config}: this run was started with another config ({shown}); "
                    f"say allow_change={','.join(refused)} to go on with the new one, or choose another run="
                )
        write_json(self.config, new)


def _at(tree: dict, name: str) -> Any:
    value: Any = tree
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def write_json(path: epath.Path, value: Any) -> None:
    """Writes JSON under a temporary name first, so that the file is never half there."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


def environment() -> dict[str, Any]:
    """Versions and devices of this process, for environment.json."""
    import jax

    packages = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "backend": jax.default_backend(),
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "host": socket.gethostname(),
    }
