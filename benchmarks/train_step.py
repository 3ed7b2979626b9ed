"""A pretraining step on the CPU: what the fused masked-LM loss and bfloat16 products are worth.

    python -m benchmarks.train_step [--sizes tiny,mini] [--rounds 9]

Forward, backward and AdamW, dropout on, rows of 128 tokens of which 20 are predicted, random tokens. All programs of a
size are compiled first; a round visits each of them once. Reported are medians of CPU seconds (over all threads) and of
wall seconds, the CPU median's ratio to that of the size's first row, and the compiler's figure for temporary memory.
Memory is kept as in the training program; BERT_JAX_MALLOC=0 in the environment leaves malloc alone.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.random_batches import RandomBatches
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.objectives import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import MeshConfig, fused_loss_on, make_mesh
from bert_jax.training.step import abstract_state, compile_train_step, init_state
from train.allocator import keep_freed_memory

BATCH = {"tiny": 64, "mini": 32, "small": 16, "base": 8}


class Contender:
    """A compiled step with a state of its own."""

    def __init__(self, size: str, dtype: str, fused: bool):
        self.name = f"{dtype}, {'fused' if fused else 'written out'}"
        self.key = jax.random.key(0)  # not earlier: malloc must be told before JAX starts
        config = BertConfig.preset(size, dtype=dtype)
        recipe = OptimizerConfig(warmup_steps=0, total_steps=1_000)
        model, tx = BertForPreTraining(config), make_optimizer(recipe)
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        self.objective = Pretraining(fused_loss_on(mesh) if fused else None)
        self.batch = RandomBatches(
            batch_size=BATCH[size], max_seq_length=128, max_predictions=20, vocab_size=config.vocab_size
        ).batch(0)
        step = compile_train_step(model, tx, make_schedule(recipe), mesh, objective=self.objective)
        arguments = abstract_state(model, tx, mesh=mesh), self.batch, self.key, self.objective
        self.step: Any = step.lower(*arguments).compile()
        self.temporary_bytes = self.step.memory_analysis().temp_size_in_bytes
        self.state = init_state(self.key, model, tx, mesh=mesh)
        self.seconds: list[tuple[float, float]] = []

    def run(self) -> tuple[float, float]:
        """CPU and wall seconds of one step."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.state, metrics = self.step(self.state, self.batch, self.key, self.objective)
        jax.block_until_ready((self.state, metrics))
        return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory()
    for size in options.sizes.split(","):
        contenders = [Contender(size, dtype, fused) for dtype in ("bfloat16", "float32") for fused in (True, False)]
        for contender in contenders:
            contender.run()
        for _ in range(options.rounds):
            for contender in contenders:
                contender.seconds.append(contender.run())
        print(f"{size}, {BATCH[size]} x 128")
        base = np.median(contenders[0].seconds, axis=0)[0]
        for contender in contenders:
            cpu, wall = np.median(contender.seconds, axis=0)
            memory = contender.temporary_bytes / 1e6
            print(
                f"  {contender.name:24s} CPU {cpu * 1e3:7,.0f} ms  wall {wall * 1e3:7,.0f} ms"
                f"  CPU ratio {cpu / base:.2f}  temporaries {memory:,.0f} MB"
            )


if __name__ == "__main__":
    main()
