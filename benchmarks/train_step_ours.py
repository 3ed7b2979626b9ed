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
from bert_jax.training.objectives import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import MeshConfig, fused_loss_on, make_mesh
from bert_jax.training.step import abstract_state, compile_train_step, init_state


class OurStep:
    """A compiled step with its own state. Set malloc before making one: JAX starts here."""

    def __init__(self, config: BertConfig, batch: dict[str, np.ndarray], fused: bool = True):
        self.key = jax.random.key(0)
        recipe = OptimizerConfig(warmup_steps=0, total_steps=1_000)
        model, tx = BertForPreTraining(config), make_optimizer(recipe)
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        self.objective = Pretraining(fused_loss_on(mesh) if fused else None)
        self.batch = batch
        start = time.perf_counter()
        step = compile_train_step(model, tx, make_schedule(recipe), mesh, objective=self.objective)
        lowered = step.lower(abstract_state(model, tx, mesh=mesh), batch, self.key, self.objective)
        traced, cpu = time.perf_counter(), time.process_time()
        self.step: Any = lowered.compile()
        self.tracing_seconds, self.compile_seconds = traced - start, time.perf_counter() - traced
        self.compile_cpu_seconds = time.process_time() - cpu
        self.temporary_bytes = self.step.memory_analysis().temp_size_in_bytes
        self.state = init_state(self.key, model, tx, mesh=mesh)

    def run(self) -> None:
        self.state, metrics = self.step(self.state, self.batch, self.key, self.objective)
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
    serve(step.run, ready_in=step.tracing_seconds + step.compile_seconds + first)


if __name__ == "__main__":
    main()
