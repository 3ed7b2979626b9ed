"""Whether a plan's range holds for the steps that this machine's CPU can run: `python -m benchmarks.plan [--rounds 7]`.

For each size it plans the step on cpu:1, and compiles it. Then all steps take turns. A step's time is the
median of its processor seconds over the number of cores, which is what it takes when nothing else runs here and what a
plan is about; the median of wall seconds is printed beside it. It exits with 1 if a range does not hold.
"""

import argparse
import math
import os
import statistics
import sys
import time
from typing import Any

import jax

from bert_jax.config import BertConfig
from bert_jax.runtime.cpu import keep_freed_memory
from train.planning.devices import make_ready
from train.planning.machines import read_topology

SIZES = tuple(
    (name, tokens // length, length)
    for name, tokens in (("tiny", 2048), ("mini", 1024), ("small", 512))
    for length in (64, 128, 256, 512)
)


class Step:
    """A compiled step with its state, on all cores."""

    def __init__(self, config: Any, data: Any):
        from bert_jax.training.step import init_state
        from train.pretraining.cost import TimedSteps

        steps, (phase,) = TimedSteps(config, data), config.phases
        self._compiled = steps.compile(phase, steps.parts_of(phase))
        self._state = init_state(jax.random.key(0), steps.model, steps.tx, mesh=steps.mesh)
        self._batch, self._objective = steps.batches(phase).batch(0), steps.objective
        self.taken: list[tuple[float, float]] = []
        self.run()

    def run(self) -> None:
        """One step; keeps its processor seconds over the cores, and its wall seconds."""
        cpu, wall = time.process_time(), time.perf_counter()
        self._state, metrics = self._compiled(self._state, self._batch, jax.random.key(0), self._objective)
        jax.block_until_ready(metrics)
        taken = time.process_time() - cpu, time.perf_counter() - wall
        self.taken.append((taken[0] / len(os.sched_getaffinity(0)), taken[1]))

    def seconds(self) -> tuple[float, float]:
        """Medians; the first run does not count."""
        cpu, wall = zip(*self.taken[1:], strict=True)
        return statistics.median(cpu), statistics.median(wall)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    topology = read_topology("cpu:1")
    make_ready([topology])
    keep_freed_memory()

    from train.planning.planner import plan_phase, steps_on
    from train.planning.report import seconds_between
    from train.pretraining.recipe import Phase, PretrainConfig
    from train.pretraining.source import RandomData

    planned, steps = [], []
    for name, rows, length in SIZES:
        model = BertConfig.preset(name, dtype="bfloat16")
        config = PretrainConfig(model=model, data="random", phases=(Phase(length, rows, 10_000),))
        data = RandomData(config.model.vocab_size, "nsp")
        planned.append(plan_phase(steps_on(config, data, topology), topology, config.phases[0], 1)["step_seconds"])
        steps.append(Step(config, data))
        print(f"compiled {name}, {rows} x {length}", file=sys.stderr, flush=True)
    for _ in range(rounds):
        for step in steps:
            step.run()
    held = []
    print(f"jax {jax.__version__}, load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
    print("| model | rows x length | planned | measured | of the range | wall | within |")
    print("|---|---|---:|---:|---:|---:|---|")
    for (name, rows, length), (low, high), step in zip(SIZES, planned, steps, strict=True):
        seconds, wall = step.seconds()
        held.append(low <= seconds <= high)
        place = math.log(seconds / low) / math.log(high / low)
        times = (seconds_between(low, high), f"{1e3 * seconds:,.0f} ms", f"{place:.0%}", f"{1e3 * wall:,.0f} ms")
        print(f"| {' | '.join((name, f'{rows} x {length}', *times, 'yes' if held[-1] else 'no'))} |", flush=True)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
