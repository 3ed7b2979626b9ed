"""A job whose model is four numbers: each batch adds its own number to them, so the parameters tell which batches a run
was trained on. Some batches have no finite loss, and one makes parameters with which no batch has one."""

import json
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.step import TrainState
from tests.tiny import CONFIG, OPTIMIZER
from train.pretraining.recipe import Phase, PretrainConfig
from train.run.directory import RunDirectory
from train.run.goodput import Goodput
from train.run.job import Untimed
from train.run.log.meter import mean_of_good_steps
from train.run.loop import train
from train.run.stages import Stages

STEPS = 30


@jax.jit
def _step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    loss = state.params["sum"].sum() * 0 + batch["loss"]
    good = jnp.isfinite(loss)
    added = state.params["sum"] + batch["adds"]
    state = TrainState(
        step=state.step + 1,
        params={"sum": jnp.where(good, added, state.params["sum"])},
        opt_state={"count": state.opt_state["count"] + good.astype(jnp.int32)},
        skipped_total=state.skipped_total + (~good).astype(jnp.int32),
        skipped_in_a_row=jnp.where(good, 0, state.skipped_in_a_row + 1),
        last_skipped_step=jnp.where(good, state.last_skipped_step, state.step),
    )
    metrics = {"loss": loss, "finite": good.astype(jnp.int32), "skipped_in_a_row": state.skipped_in_a_row}
    return state, metrics | {"skipped_total": state.skipped_total, "learning_rate": jnp.float32(0)}


class AddingJob(Untimed):
    """`bad`: the numbers of the batches without a finite loss. `explodes`: the number of the batch that leaves finite
    parameters (3e38) of which the sum, and so every later loss, is infinite."""

    def __init__(self, config: PretrainConfig, bad: Iterable[int] = (), explodes: int | None = None):
        self.config, self.mesh, self.bad, self.explodes = config, make_mesh(MeshConfig(data=1)), set(bad), explodes
        self.rollbacks = config.rollbacks
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        self.target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), jax.eval_shape(self.first_state)
        )
        self.evaluated: list[int] = []
        self.finished: int | None = None

    def first_state(self) -> TrainState:
        zero = jnp.int32(0)
        return TrainState(zero, {"sum": jnp.zeros(4)}, {"count": jnp.int32(0)}, zero + 0, zero + 0, zero - 1)

    def resume(self, facts: dict[str, Any]) -> None: ...

    def train_step(
        self, state: TrainState, batch: dict[str, Any], dropout: float | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        return _step(state, batch)

    def on_start(self, log: Any, *, resumed: bool) -> None: ...

    def batches(self, step: int) -> Generator[tuple[dict[str, Any], float]]:
        for number in range(step, self.config.total_steps):
            adds = np.full(4, 3e38, np.float32) if number == self.explodes else numbers_of(number)
            loss = np.float32(np.nan if number in self.bad else number)
            yield {"input_ids": np.zeros((1, 8), np.int32), "adds": adds, "loss": loss}, 0.0

    def summarise(self, rows: list[dict[str, np.ndarray]], speeds: dict[str, float]) -> dict[str, float]:
        return mean_of_good_steps(rows) | speeds

    def why_stop(self, metrics: dict[str, np.ndarray], step: int) -> str | None:
        skipped = int(metrics["skipped_in_a_row"])
        return f"{skipped} steps in a row" if skipped >= self.config.max_skipped_in_a_row else None

    def evaluate(self, state: TrainState, step: int, log: Any) -> None:
        self.evaluated.append(step)
        log.record("eval", step, {"mlm_loss": float(step)})

    def facts(self) -> dict[str, Any]:
        return {}

    def finish(self, state: TrainState, step: int, log: Any) -> None:
        self.finished = step


def config(**fields: Any) -> PretrainConfig:
    usual = {"log_every": 1, "eval_every": 10, "save_every": 5, "keep": 3, "max_skipped_in_a_row": 4}
    return PretrainConfig(model=CONFIG, optimizer=OPTIMIZER, phases=(Phase(8, 1, STEPS),), **usual | fields)


def main(words: list[str]) -> int:
    """A program that trains the job in FOLDER: FOLDER '{"bad": [8], "explodes": null, "fields": {"rollbacks": 1}}'."""
    folder, case = Path(words[0]), json.loads(words[1])
    with mock.patch("train.run.log.run_log.draw_curves"):
        return run_of(AddingJob(config(**case["fields"]), case["bad"], case["explodes"]), folder)[0]


def run_of(job: AddingJob, folder: Path) -> tuple[int, list[int]]:
    """The exit code, and the steps of the checkpoints."""
    folder.mkdir(exist_ok=True)
    code = train(job, RunDirectory(str(folder)), Goodput(None, Stages()))
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return code, checkpoints.steps()


def state_in(folder: Path, step: int | None = None) -> TrainState:
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.restore(AddingJob(config()).target, step=step).state


def numbers_of(batch: int) -> np.ndarray:
    """What a batch adds: float32 [4]. The sum of any choice of batches is exact, and tells which they are."""
    added = np.zeros(4, np.float32)
    added[batch // 8] = 2 ** (batch % 8)
    return added


def sum_of(batches: Iterable[int]) -> np.ndarray:
    return sum((numbers_of(batch) for batch in batches), np.zeros(4, np.float32))
