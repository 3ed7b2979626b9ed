"""Our training step, compiled as the training program compiles it; run as a process, a contender of train_step.py."""

import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.rivals.serving import serve
from bert_jax.config import BertConfig
from bert_jax.model.heads import BertForPreTraining
from bert_jax.runtime.cpu import keep_freed_memory
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.objectives import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, fused_loss_on
from bert_jax.training.step import TrainState, abstract_state, compile_train_step, init_state


class StepProgram:
    """Our step for one batch, traced; `compile` it before `run`. Set malloc before making one: JAX starts here."""

    def __init__(self, config: BertConfig, batch: dict[str, np.ndarray], fused: bool = True):
        recipe = OptimizerConfig(warmup_steps=0, total_steps=1_000)
        self._model, self._tx = BertForPreTraining(config), make_optimizer(recipe)
        self._mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        self._key = jax.random.key(0)
        self._objective = Pretraining(fused_loss_on(self._mesh) if fused else None)
        self._batch: Any = batch
        start = time.perf_counter()
        step = compile_train_step(self._model, self._tx, make_schedule(recipe), self._mesh, objective=self._objective)
        state = abstract_state(self._model, self._tx, mesh=self._mesh)
        self._lowered = step.lower(state, batch, self._key, self._objective)
        self.tracing_seconds = time.perf_counter() - start

    def compile(self) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        self.compiled: Any = self._lowered.compile()
        self.compile_seconds, self.compile_cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        self.memory = self.compiled.memory_analysis()

    def new_state(self) -> TrainState:
        return init_state(self._key, self._model, self._tx, mesh=self._mesh)

    def keep_batch_on_device(self) -> None:
        self._batch = jax.device_put(self._batch, batch_shardings(self._mesh))

    def run(self, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        """The next state and the metrics, which need not be ready; `state` cannot be used again."""
        return self.compiled(state, self._batch, self._key, self._objective)


class OurStep:
    """A compiled step with a state of its own."""

    def __init__(self, config: BertConfig, batch: dict[str, np.ndarray], fused: bool = True):
        self.program = StepProgram(config, batch, fused)
        self.program.compile()
        self.state = self.program.new_state()

    def run(self) -> None:
        self.state, metrics = self.program.run(self.state)
        jax.block_until_ready((self.state, metrics))


def main() -> None:
    """FOLDER DTYPE; the folder is train_step.py's."""
    folder, dtype = Path(sys.argv[1]), sys.argv[2]
    keep_freed_memory()
    config = BertConfig.from_json(folder / "config.json").replace(dtype=dtype)
    step = OurStep(config, dict(np.load(folder / "batch.npz")))
    start = time.perf_counter()
    step.run()
    first = time.perf_counter() - start
    serve(step.run, ready_in=step.program.tracing_seconds + step.program.compile_seconds + first)


if __name__ == "__main__":
    main()
