"""Loading: time and peak memory of `bert_jax.load` and `load_arrays` beside transformers' `from_pretrained`.

    python -m benchmarks.load [--sizes base,large] [--rounds 9]

`load_arrays` does what `from_pretrained` does: arrays on the host, in the file's order. `load` puts them on the device,
which orders them differently. The folders are made first, with random weights: one written by transformers, one by
bert_jax; loading the latter also computes the sha256 over all tensors. Each load is its own process, which has imported
its libraries and has touched and freed as much memory as the file is large (a virtual machine's host is slow to provide
memory that was idle for a while, and the first process would pay for it). Time runs from the call until every parameter
has been summed once; memory is the peak minus what the process held before. The candidates take turns. Reports medians,
and their ratios to transformers' in the same run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZES = {"base": "base-uncased", "large": "large-uncased"}
THEIRS, HOST, OURS, OWN = "transformers", "load_arrays", "load", "load, its own folder"


def load_theirs(folder: str) -> Callable[[], None]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model_class = transformers.BertForPreTraining

    def run() -> None:
        model = model_class.from_pretrained(folder)
        with torch.no_grad():
            print(sum(float(parameter.sum()) for parameter in model.parameters()), file=sys.stderr)

    return run


def load_ours(folder: str, on_host: bool) -> Callable[[], None]:
    import jax

    import bert_jax.data.tokenizer.tokenizer
    from bert_jax.formats.load import load, load_arrays

    assert bert_jax.data.tokenizer.tokenizer
    jax.device_put(np.ones(1)).block_until_ready()
    load_it = load_arrays if on_host else load

    def run() -> None:
        params = load_it(folder, head="pretraining").params
        print(sum(float(np.asarray(leaf).sum()) for leaf in jax.tree.leaves(params)), file=sys.stderr)

    return run


def resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM the peak so far. (ru_maxrss would start at the parent's.)"""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(candidate: str, folder: str) -> None:
    """The child: one load, reported as JSON on stdout."""
    run = load_theirs(folder) if candidate == THEIRS else load_ours(folder, on_host=candidate == HOST)
    np.ones((Path(folder) / "model.safetensors").stat().st_size, np.uint8)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, cpu, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
    run()
    seconds = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": resident("VmHWM") - before}))


def make_folders(size: str, root: Path) -> dict[str, Path]:
    """A folder written by transformers, and its conversion by bert_jax."""
    import torch
    import transformers

    import bert_jax
    from bert_jax.formats.load import load_arrays

    torch.manual_seed(0)
    fields = bert_jax.BertConfig.preset(SIZES[size]).to_json()
    theirs, ours = root / f"{size}-theirs", root / f"{size}-ours"
    transformers.BertForPreTraining(transformers.BertConfig(**fields)).save_pretrained(theirs)
    config, params, report = load_arrays(theirs)
    bert_jax.save_pretrained(ours, config, params, None, head=report.head)
    return {THEIRS: theirs, HOST: theirs, OURS: theirs, OWN: ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="base,large")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(*options.child)
        return
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as root:
            compare(size, make_folders(size, Path(root)), options.rounds)


def compare(size: str, folders: dict[str, Path], rounds: int) -> None:
    file = (folders[THEIRS] / "model.safetensors").stat().st_size
    rows: dict[str, list[dict[str, float]]] = {candidate: [] for candidate in folders}
    for number in range(rounds + 1):
        for candidate, folder in folders.items():
            command = [sys.executable, "-m", "benchmarks.load", "--child", candidate, str(folder)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            if number:  # the first round reads the files into memory
                rows[candidate].append(json.loads(result.stdout))
    medians = {c: {key: float(np.median([r[key] for r in found])) for key in found[0]} for c, found in rows.items()}
    print(f"BERT-{size}, {file / 1e6:,.0f} MB, {rounds} rounds")
    for candidate, found in medians.items():
        ratio = found["seconds"] / medians[THEIRS]["seconds"]
        print(
            f"{candidate:22s} {found['seconds']:7.3f} s ({ratio:.2f} x)   {found['cpu']:7.3f} CPU s"
            f"   peak {found['peak'] / 1e6:7,.0f} MB ({found['peak'] / file:.2f} x the file)"
        )


if __name__ == "__main__":
    main()
