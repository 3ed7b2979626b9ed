"""A pretraining step on the CPU beside its rivals: wall and CPU time, in one run, in turns.

    python -m benchmarks.train_step --make-environments       once, for flax and keras: .venv-flax, .venv-keras, and
                                                              .venv-optimum for benchmarks/inference.py
    python -m benchmarks.train_step [--sizes tiny,mini,base] [--rounds 9] [--rivals torch-eager,torch-best,…]

All do the same work: BertForPreTraining of that size, 20 of 128 tokens predicted, dropout 0.1, forward, backward and
AdamW, on the same batch of random tokens. Each contender is its own process that compiles, does two steps, and
then one step per round, while the others wait. Ratios divide medians by ours in the same rounds: in bfloat16, or on a
CPU without instructions for it in float32.

torch-eager       transformers as its users run it: float32, logits at all positions (fused AdamW, SDPA: its defaults)
torch-best        only predicted positions into the head, bfloat16 by autocast, SDPA, torch.compile, fused AdamW
torch-uncompiled  the same without torch.compile; both also as NAME-float32, without autocast
flax              the Flax model of transformers 4.57, jitted; flax-bfloat16
keras             keras-hub on JAX, compile and train_on_batch, no next-sentence loss; keras-bfloat16
ours-bfloat16-3.13: ours with the newest JAX, in .venv-3.13, which `make fast PYTHON=python3.13` makes

Each contender runs in the malloc setting in which it was fastest (benchmarks/contenders.py); NAME@SETTING chooses
another: --rivals torch-best@default,torch-best@huge,torch-best@kept,torch-best@kept+huge finds the fastest.
The ceiling is the speed of BERT-base's largest product alone, measured in the same rounds; the share is the speed of
our model's products (train/run/step_cost.py) relative to it. If memory is short, --at-once N runs N rivals at a time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.contenders import CONTENDERS, MALLOC
from benchmarks.machine import describe_cpu
from benchmarks.rivals.environments import make_environments
from benchmarks.turns import Figures, Worker, take_turns
from benchmarks.workloads import LENGTH, PREDICTIONS, ROWS, workload, write_workload
from bert_jax.runtime.cpu import multiplies_bfloat16
from train.run.step_cost import train_flops

TYPES = ["bfloat16", "float32"] if multiplies_bfloat16() else ["float32", "bfloat16"]
OURS = [f"ours-{dtype}" for dtype in TYPES]
PRODUCTS = [f"product-{dtype}" for dtype in TYPES]
RIVALS = ["torch-eager", "torch-best", "torch-uncompiled", "flax", "keras"]


def start_all(names: list[str], folder: Path) -> dict[str, Worker]:
    """Start the contenders one after the other, by "NAME@SETTING"; print why any of them does not start."""
    workers = {}
    for name in names:
        name, _, malloc = name.partition("@")
        malloc = malloc or CONTENDERS[name].malloc
        print(f"starting {name}@{malloc}", file=sys.stderr, flush=True)
        try:
            workers[f"{name}@{malloc}"] = CONTENDERS[name].start(malloc, folder)
        except RuntimeError as error:
            print(f"  {name} skipped: {error}", flush=True)
    return workers


def stop_all(workers: dict[str, Worker]) -> None:
    for worker in workers.values():
        worker.stop()


def report(name: str, worker: Worker, ours: Figures) -> None:
    name, _, malloc = name.partition("@")
    if worker.failure:
        print(f"  {name:18s} {malloc:10s} ended early: {worker.failure}", flush=True)
        return
    figures = worker.medians()
    ready = f"{worker.facts['ready_in']:7.1f} s" if "ready_in" in worker.facts else " " * 9
    print(
        f"  {name:18s} {malloc:10s} {figures.wall_ms:8,.0f} ms {figures.wall_ms / ours.wall_ms:6.2f}"
        f" {figures.cpu_ms:8,.0f} ms {figures.cpu_ms / ours.cpu_ms:6.2f} {ready}"
        f" {figures.peak_mb:8,.0f} MB {figures.page_faults:9,.0f}",
        flush=True,
    )


def report_ceiling(size: str, ours: dict[str, Worker], products: dict[str, Worker]) -> None:
    """Print how close our steps come to the speed of the products that they consist of."""
    flop = train_flops(workload(size)[0], LENGTH, PREDICTIONS) * ROWS[size]
    print(f"  {flop / 1e9:,.0f} GFLOP of products in a step")
    for (name, step), product in zip(ours.items(), products.values(), strict=True):
        ceiling, reached = product.facts["flop"] / product.medians().wall_ms, flop / step.medians().wall_ms
        print(
            f"  {name.partition('@')[0]:17s} {reached / 1e6:5,.0f} GFLOP/s, {reached / ceiling:.0%} of the"
            f" {ceiling / 1e6:,.0f} of a product alone"
        )


def compare(size: str, rivals: list[str], rounds: int, at_once: int, folder: Path) -> None:
    print(f"{size}, {ROWS[size]} x {LENGTH}, {rounds} rounds, {describe_cpu()}", flush=True)
    write_workload(size, folder)
    ours, products = start_all(OURS, folder), start_all(PRODUCTS, folder)
    if len(ours) + len(products) < len(OURS) + len(PRODUCTS):
        raise SystemExit("nothing to compare with")
    print(f"  {'':29s} {'wall':>11s}  ratio {'CPU':>11s}  ratio  ready in  at most held    faults")
    first = next(iter(ours.values()))
    for begin in range(0, max(len(rivals), 1), at_once):
        theirs = start_all(rivals[begin : begin + at_once], folder)
        take_turns([*ours.values(), *products.values(), *theirs.values()], rounds)
        for name, worker in theirs.items():
            report(name, worker, first.medians(last=rounds))
        stop_all(theirs)
    for name, worker in ours.items():
        report(name, worker, first.medians())
    report_ceiling(size, ours, products)
    stop_all(ours | products)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini,base", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rivals", default=",".join(RIVALS), help=f"NAME or NAME@MALLOC; malloc: {', '.join(MALLOC)}")
    parser.add_argument("--at-once", type=int, default=len(CONTENDERS), help="rivals that run at the same time")
    parser.add_argument("--make-environments", action="store_true", help="install the rivals' packages, and end")
    options = parser.parse_args()
    if options.make_environments:
        make_environments()
        return
    rivals = [name for name in options.rivals.split(",") if name]
    for name in rivals:
        contender, _, malloc = name.partition("@")
        if contender not in CONTENDERS or malloc not in ("", *MALLOC):
            parser.error(f"--rivals: {name!r} is not NAME or NAME@MALLOC with one of {', '.join(CONTENDERS)}")
    if unknown := set(options.sizes.split(",")) - set(ROWS):
        parser.error(f"--sizes: {', '.join(sorted(unknown))} is not one of {', '.join(ROWS)}")
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            compare(size, rivals, options.rounds, options.at_once, Path(folder))


if __name__ == "__main__":
    main()
