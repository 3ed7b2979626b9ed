"""How long a start waits for its training step: a first start, and a later one that finds the compiled step on disk.

    python -m benchmarks.compile [--size base] [--dtype bfloat16] [--starts 3]

Every start is a fresh process with the training program's own cache of compiled programs (compilation_cache.py), in an
initially empty folder: a cold start, then a warm one, `--starts` times each. Reports the medians of wall seconds for
tracing and lowering and for compiling (or reading the compiled program), and the CPU seconds of the latter.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np


def measure(size: str, dtype: str) -> None:
    """The child: one compilation, reported as JSON on stdout."""
    from bert_jax.runtime.compilation_cache import cache_folder, keep_compiled_programs
    from bert_jax.runtime.cpu import keep_freed_memory

    keep_freed_memory()
    keep_compiled_programs()
    assert cache_folder()

    from benchmarks.train_step_ours import StepProgram
    from benchmarks.workloads import workload

    config, batch = workload(size, dtype=dtype)
    step = StepProgram(config, batch)
    step.compile()
    print(json.dumps([step.tracing_seconds, step.compile_seconds, step.compile_cpu_seconds]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="base")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.size, options.dtype)
        return
    command = [sys.executable, "-m", "benchmarks.compile", "--child", "--size", options.size, "--dtype", options.dtype]
    starts: dict[str, list[list[float]]] = {"cold": [], "warm": []}
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as cache:
            for found in starts.values():
                environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
                environment |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": cache}
                result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                found.append(json.loads(result.stdout))
    for temperature, found in starts.items():
        tracing, compiling, cpu = np.median(found, axis=0)
        print(
            f"{options.size} {options.dtype}, {temperature}: traced and lowered in {tracing:.2f} s, "
            f"compiled in {compiling:.2f} s ({cpu:.2f} CPU s), {options.starts} starts"
        )


if __name__ == "__main__":
    main()
