"""Weights & Biases and MLflow: `track=wandb` or `track=mlflow` sends a run's metrics there through their clients."""

import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import is_remote, read_object, write_json
from train.run.log.meter import Spent
from train.run.log.outlet import Outlet

_PROJECT = "bert_jax"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another
# By MLflow, some of them only at some places of a name. A row that it refuses would keep all later ones waiting.
_REFUSED = re.compile(r"[^\w. -]")


class Service(Protocol):
    """One tracked run of a service.

    Attributes:
        id: the run's name in the service; the same id continues the same run.
        place: where to look at it.
    """

    id: str
    place: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, *, failed: bool) -> None: ...


def check_tracker(name: str | None) -> None:
    """Checks the value of `track=` before a run writes anything.

    Raises:
        UserError: no such service, or its package is not installed.
    """
    if name is None:
        return
    if name not in SERVICES:
        raise UserError(f"track: found {name!r}; expected {' or '.join(SERVICES)}")
    if find_spec(name) is None:
        raise UserError(f"track: {name} is not installed; pip install 'bert-jax[{name}]'")


class Tracker:
    """Sends records to a service, through an `Outlet`: if it fails, training goes on, and the records come later."""

    def __init__(self, name: str, run: epath.Path, config: Mapping[str, Any], say: Callable[[str], None]):
        """Starts a tracked run, or continues the one that `track.json` of the run directory names.

        Args:
            name: a key of `SERVICES`.
            run: the run directory; its last part is the run's name in the service.
            config: of the run, as JSON values.
            say: takes a line for people.
        """
        self._name, self._run, self._config, self._say = name, run, config, say
        self._service: Service | None = None
        self._outlet = Outlet(f"track: {name}", self._send, say)
        self._outlet.attempt(self._start)

    def _start(self) -> Service:
        ids = read_object(self._run / "track.json", optional=True)
        service = self._service = SERVICES[self._name](self._run, self._config, ids.get(self._name))
        if ids.get(self._name) != service.id:
            write_json(self._run / "track.json", ids | {self._name: service.id})
        self._say(f"track: {self._name} has this run as {service.place}")
        return service

    def log(self, kind: str, step: int, row: Mapping[str, Any]) -> None:
        """Sends the numbers of a row of metrics.jsonl: `Spent` under their own names, the others as kind/name.

        Folders and labels, which are parts of names, may have characters that a service refuses.
        """
        values = {
            name if name in Spent._fields else f"{kind}/{_REFUSED.sub('_', name)}": float(value)
            for name, value in row.items()
            if isinstance(value, int | float) and name != "step"
        }
        self._outlet.put((step, values))

    def _send(self, waiting: deque[tuple[int, dict[str, float]]]) -> None:
        service = self._service or self._start()
        while waiting:
            service.log(*waiting[0])
            waiting.popleft()

    def close(self, *, failed: bool) -> None:
        """Ends the run in the service; `failed`: this program ends with an error."""
        self._outlet.close()
        if (service := self._service) is not None:
            self._outlet.attempt(lambda: service.close(failed=failed))


class WandbRun:
    """A `Service`: a run of Weights & Biases. WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and the like have their usual
    meaning; its files are in the run directory's wandb/."""

    def __init__(self, run: epath.Path, config: Mapping[str, Any], id: str | None):
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run.name,
            id=id,
            resume=None if id is None else "allow",
            config=dict(config),
            dir=tempfile.gettempdir() if is_remote(run) else os.fspath(run),
            settings=wandb.Settings(console="off", silent=True, disable_code=True),
        )
        # Steps of ours, not its own: a run that was killed repeats some, which its own counter would refuse.
        self._run.define_metric("*", step_metric="step")
        self.id = str(self._run.id)
        self.place = (None if self._run.offline else self._run.url) or f"{self.id} (offline; wandb sync sends it)"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


class MlflowRun:
    """A `Service`: a run of MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME have their usual meaning."""

    def __init__(self, run: epath.Path, config: Mapping[str, Any], id: str | None):
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if found is None else found.experiment_id
            id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
            params = [Param(key, str(value)[:500]) for key, value in _flat(config).items()]
            for begin in range(0, len(params), 100):  # the most that a request may hold
                self._client.log_batch(id, params=params[begin : begin + 100])
        else:
            self._client.update_run(id, status="RUNNING")
        self.id: str = id
        self.place = f"{id} at {self._client.tracking_uri}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


SERVICES: dict[str, Callable[[epath.Path, Mapping[str, Any], str | None], Service]] = {
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a nested config under dotted names, as the command line has them."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
