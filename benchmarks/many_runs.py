"""Eight fine-tuning runs in one program beside the same eight one after the other.

    python -m benchmarks.many_runs [--sizes tiny,mini] [--runs 8] [--batch 16] [--length 32] [--rounds 9]

A step of sequence classification: forward, backward and AdamW, dropout on, random tokens. "At once" is one step of the
program that trains all runs, "in turn" one step for each run of the program that trains one run. A round does both.
Reports the medians of wall seconds for a step of all runs, and their ratio.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.model.heads import BertForSequenceClassification
from bert_jax.runtime.cpu import keep_freed_memory
from bert_jax.training.many import compile_many_train_step, runs_mesh, stacked
from bert_jax.training.objectives import OneLabel
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import compile_train_step, init_state


class Programs:
    """Both programs of a size, compiled, with states and batches."""

    def __init__(self, size: str, runs: int, batch: int, length: int):
        config = BertConfig.preset(size, dtype="bfloat16")
        model, recipe = BertForSequenceClassification(config), OptimizerConfig(warmup_steps=0, bias_correction=True)
        tx, mesh = make_optimizer(recipe), runs_mesh(runs)
        rng, shape = np.random.default_rng(0), (runs, batch, length)
        self.batch = {
            "input_ids": rng.integers(1_000, 30_000, shape, np.int32),
            "token_type_ids": np.zeros(shape, np.int32),
            "attention_mask": np.ones(shape, np.int32),
            "labels": rng.integers(0, 2, shape[:2], np.int32),
            "weights": np.ones(shape[:2], np.float32),
        }
        self.keys = jax.random.split(jax.random.key(0), runs)
        self.peaks = jnp.full(runs, 1e-4)
        self.states: list[Any] = [init_state(key, model, tx) for key in self.keys]
        self.state: Any = stacked([init_state(key, model, tx) for key in self.keys], mesh)
        self.many = compile_many_train_step(model, recipe, mesh)
        self.one = compile_train_step(model, tx, make_schedule(recipe))

    def at_once(self) -> None:
        self.state, metrics = self.many(self.state, self.batch, self.keys, self.peaks, OneLabel())
        jax.block_until_ready((self.state, metrics))

    def in_turn(self) -> None:
        for number, key in enumerate(self.keys):
            batch = {name: values[number] for name, values in self.batch.items()}
            self.states[number], metrics = self.one(self.states[number], batch, key, OneLabel())
            jax.block_until_ready((self.states[number], metrics))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini")
    for name, value in (("runs", 8), ("batch", 16), ("length", 32), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    keep_freed_memory()
    for size in options.sizes.split(","):
        programs = Programs(size, options.runs, options.batch, options.length)
        ways = {"at once": programs.at_once, "in turn": programs.in_turn}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(options.rounds):
            for name, way in ways.items():
                begin = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - begin)
        once, turn = (float(np.median(values)) for values in seconds.values())
        print(
            f"{size}, {options.runs} runs of {options.batch} x {options.length}: at once {once * 1e3:,.0f} ms, in turn "
            f"{turn * 1e3:,.0f} ms, {turn / once:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
