"""What one GPU makes of this code, in one command of at most 25 minutes that needs nothing but the packages.

    python -m benchmarks.gpu OUT [--parts ceiling,parity,base-128,large-512,inference,muon,compiled] [--minutes 25]
    python -m benchmarks.gpu OUT --tiny         every part with tiny sizes, on a CPU too: it shows that they run

It makes its text, vocabulary, shards and model itself. Each part is a process that writes OUT/PART.json after each
figure. The same command again leaves out the parts that are whole and starts the others anew, so several shorter calls
(`--minutes 9`) measure what one does not reach.

ceiling     products of bfloat16 matrices alone, and a copy, relative to the data sheet
parity      loss and gradients of each way to compute attention, beside those of the plain one
base-128    training steps in turns: each way, packed rows and padded ones, PyTorch's SDPA with torch.compile beside
large-512   them; and their memory
inference   sentence vectors, beside transformers on torch
muon        the updates of all matrices of a model, one by one and many at once
compiled    a folder of `export-compiled` run on the GPU

Exit codes: 0 all parts are whole, 1 some are not, 2 there is no GPU.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_parts.figures import is_whole


class Part(NamedTuple):
    """A module of gpu_parts, the minutes that it may take, and flags for XLA."""

    module: str
    minutes: float
    flags: str = ""


# XLA tries several kernels for each product, which takes longer than all else in a part that measures no time.
_NO_TRIALS = "--xla_gpu_autotune_level=0"
PARTS = {
    "ceiling": Part("ceiling", 1),
    "parity": Part("parity", 3.5, _NO_TRIALS),
    "base-128": Part("steps", 6),
    "large-512": Part("steps", 8),
    "inference": Part("encode", 4),
    "muon": Part("muon", 2),
    "compiled": Part("compiled", 1.5, _NO_TRIALS),
}
LEAST_SECONDS = 20  # a part that has less time left is not started
_DEVICE = "import jax; device = jax.devices()[0]; print(device.platform, device.device_kind)"


def device() -> str:
    """JAX's platform and name of the first device, seen by another process: this one must hold no GPU memory."""
    found = subprocess.run([sys.executable, "-c", _DEVICE], env=environment(), stdout=subprocess.PIPE, text=True)
    return found.stdout.strip() or "nothing"


def environment(flags: str = "") -> dict[str, str]:
    """Of a part's process; `flags`: for XLA, in addition to those that are set."""
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": paths, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
    return os.environ | own | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}


def run(module: str, words: list[str], seconds: float, flags: str = "") -> str | None:
    """Run a module of gpu_parts; why it did not end well, or None."""
    command = [sys.executable, "-m", f"benchmarks.gpu_parts.{module}", *words]
    # In a group of its own, so that PyTorch's process, which a part starts, ends with it and leaves the GPU's memory.
    with subprocess.Popen(command, env=environment(flags), process_group=0) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return f"ended with code {code}" if code else None


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, a table for each set of columns."""
    lines: list[str] = []
    columns: list[str] = []
    for row in rows:
        if list(row) != columns:
            columns = list(row)
            lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines.append(f"| {' | '.join(str(value) for value in row.values())} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--minutes", type=float, default=25, help="of the whole call; default: 25")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    found = device()
    on_gpu = found.startswith(("gpu", "cuda"))
    if not on_gpu and not options.tiny:
        print(
            f"JAX sees no GPU here, but {found}: nothing was measured. --tiny tries every part on it", file=sys.stderr
        )
        return 2
    print(f"{found}; {options.minutes:g} minutes at most", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    files = {part: options.out / f"{part}.json" for part in parts}
    tiny = ["--tiny"] if options.tiny else []
    with tempfile.TemporaryDirectory() as inputs:
        missing = not all(is_whole(file) for file in files.values())
        if missing and (problem := run("inputs", [inputs, *tiny], deadline - time.monotonic())):
            print(f"making the text and the model: {problem}", file=sys.stderr)
            return 1
        for part, file in files.items():
            left = deadline - time.monotonic()
            if is_whole(file):
                print(f"\n{part}: whole, in {file}")
            elif left < LEAST_SECONDS:
                print(f"\n{part}: no time is left; the same command again starts with it")
            else:
                print(f"\n{part}", flush=True)
                words = [inputs, str(file), *tiny]
                if problem := run(PARTS[part].module, words, min(left, 60 * PARTS[part].minutes), PARTS[part].flags):
                    print(f"{part}: {problem}; {file} has what was measured until then", file=sys.stderr)
    for part, file in files.items():
        if file.exists():
            print(f"\n## {part}\n{table(json.loads(file.read_text())['rows'])}")
    if not on_gpu:
        print("\nThis was a CPU: the parts run, and the figures of a GPU wait for one.")
    return 0 if all(is_whole(file) for file in files.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
