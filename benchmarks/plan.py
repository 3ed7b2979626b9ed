"""Whether a plan's range holds for the steps that this machine's CPU can run: `python -m benchmarks.plan`.

For each size it plans the step of a recipe on cpu:1, times real steps, and says whether their median lies in the range.
Other work on the machine slows both down, so run it on a quiet one. It exits with 1 if a range does not hold.
"""

import sys

import jax

from bert_jax.runtime.cpu import keep_freed_memory
from train.planning.devices import make_ready
from train.planning.machines import read_topology

SIZES = (("tiny", 8, 128), ("tiny", 64, 128), ("tiny", 16, 512), ("mini", 32, 128))


def main() -> int:
    topology = read_topology("cpu:1")
    make_ready([topology])
    keep_freed_memory()

    from train.planning.planner import plan_phase, steps_on
    from train.planning.report import seconds_between
    from train.pretraining.cost import TimedSteps
    from train.pretraining.recipe import PretrainConfig
    from train.pretraining.source import RandomData
    from train.run.config import load_recipe, override

    held = []
    print(f"jax {jax.__version__}\n\n| recipe | rows x length | planned | measured | within |\n|---|---|---:|---:|---|")
    for name, rows, length in SIZES:
        config = load_recipe(f"configs/{name}.py", PretrainConfig)
        config = override(config, {"data": "random", "phases": f"(({length}, {rows}, 9000),)"})
        data = RandomData(config.model.vocab_size, "nsp")
        (phase,) = config.phases
        low, high = plan_phase(steps_on(config, data, topology), topology, phase, 1)["step_seconds"]
        timed = TimedSteps(config, data)
        measured = timed.timed_step(phase, timed.compile(phase, 1), None)["step_seconds"]
        held.append(low <= measured <= high)
        cells = (f"{name}.py", f"{rows} x {length}", seconds_between(low, high), f"{1e3 * measured:,.0f} ms", held[-1])
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
