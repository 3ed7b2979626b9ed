"""How the cost of a training step and of inference grows, each cost beside the law that it should follow.

    python -m benchmarks.growth [cpu] [inference] [devices] [--rounds 9] [--chips 1x1,4x4] [--json FILE]
        [--picture FILE.png]

cpu: measures steps of a small model here (forward, backward, AdamW; dropout on, random tokens) as batch, length, layers
and width grow, one at a time. All steps are compiled first, and a round runs each of them once. Time is the median of
CPU seconds over all threads, which other work on the machine disturbs less than wall seconds; memory is the compiler's
figure for what the step reads and for its temporaries.

inference: the same of the encoder's forward pass in float32, without dropout, of full rows. With 4,096 tokens or more
XLA's CPU compiler gives whole layers to YNNPACK, and spreads their constants to full arrays; from there on the law of
rows and tokens has another slope.

devices: compiles a step of BERT-tiny, which has 2 layers, for 1 to 256 v5e chips, with 64 rows of 128 a chip, and takes
time and memory from the plan. It needs libtpu, and a few minutes of a core.

The laws are sums of powers with coefficients of at least 0, fitted to the figures by least squares of the relative
errors. What is printed is the largest of these errors. The time on several devices has no fitted law: it is the middle
of one chip's range and the time that the sum of all gradients takes on the links. Figures of other runs stay in the
JSON file, so that cpu, inference, devices and the chips can be done one by one.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from benchmarks.machine import describe_cpu
from benchmarks.train_step_ours import OurStep
from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.model.heads import HEADS
from bert_jax.runtime.cpu import keep_freed_memory
from train.planning.devices import make_ready
from train.planning.estimate import exchange_time
from train.planning.machines import read_topology
from train.planning.program import Collective

POINT = {"batch": 8, "length": 128, "layers": 2, "width": 128}
SIZES = {
    "batch": (2, 4, 8, 16, 32),
    "length": (32, 64, 128, 256, 512),
    "layers": (1, 2, 4, 8),
    "width": (64, 128, 256, 512),
}
_INFERENCE = "inference, "  # begins the names of its results
_MORE_SIZES = {_INFERENCE + "batch": (2, 4, 8, 16, 24, 31, 32, 48), _INFERENCE + "length": (32, 64, 128, 256, 384, 512)}
WHOLE_LAYERS = 4096  # tokens from which on the compiler (JAX 0.10.2) gives whole layers to YNNPACK
# The powers of the law, and how it is called. An intercept is what does not grow: the update of the embeddings, say.
LAWS = {
    "batch": ((0, 1), "linear"),
    "length": ((0, 1, 2), "linear, and quadratic in attention"),
    "layers": ((0, 1), "linear"),
    "width": ((0, 1, 2), "quadratic, linear between products"),
    "devices": ((0,), "flat, and exchanges"),
}
LAWS |= {_INFERENCE + name: LAWS[name] for name in SIZES}
# A further term is linear from these sizes on, and zero below.
STEPS = {_INFERENCE + "batch": WHOLE_LAYERS // POINT["length"], _INFERENCE + "length": WHOLE_LAYERS // POINT["batch"]}
ROWS_A_CHIP, LENGTH = 64, 128


class Figure(NamedTuple):
    """The cost of a step: seconds and bytes on a device; if planned, the seconds' range and those of its exchanges."""

    seconds: float
    memory: float
    low: float | None = None
    high: float | None = None
    sums: float | None = None


def config_of(layers: int, width: int, dtype: str) -> BertConfig:
    """Heads 64 wide, and a vocabulary that is small beside them."""
    return BertConfig(
        vocab_size=2000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=512,
        dtype=dtype,
    )


class Step:
    """A training step of a size: what it does, and its bytes."""

    def __init__(self, batch: int, length: int, layers: int, width: int):
        config = config_of(layers, width, "bfloat16")
        batches = RandomBatches(
            batch_size=batch, max_seq_length=length, max_predictions=length * 20 // 128, vocab_size=config.vocab_size
        )
        step = OurStep(config, batches.batch(0))
        self.run, self.memory = step.run, bytes_of(step.program.memory)


class Forward:
    """The encoder's forward pass of a size: what it does, and its bytes."""

    def __init__(self, batch: int, length: int, layers: int, width: int):
        config = config_of(layers, width, "float32")
        model = HEADS["encoder"](config)
        ids = np.random.default_rng(0).integers(0, config.vocab_size, (batch, length), np.int32)
        params = jax.jit(model.init)(jax.random.key(0), ids)["params"]
        forward = jax.jit(lambda params, ids: model.apply({"params": params}, ids)).lower(params, ids).compile()
        self.run = lambda: jax.block_until_ready(forward(params, ids))
        self.memory = bytes_of(forward.memory_analysis())


def bytes_of(memory: Any) -> int:
    """What a compiled program reads, and its temporaries."""
    return memory.temp_size_in_bytes + memory.argument_size_in_bytes


def measured(program: type[Step] | type[Forward], rounds: int) -> dict[str, dict[int, Figure]]:
    """What is measured on this machine: name -> size -> figure."""
    keep_freed_memory()
    all_sizes = {name: sizes_of(name, program) for name in SIZES}
    points = [{**POINT, name: size} for name, sizes in all_sizes.items() for size in sizes]
    points = [dict(point) for point in dict.fromkeys(tuple(point.items()) for point in points)]
    programs = []
    for point in points:
        print("compiling", ", ".join(f"{name} {size}" for name, size in point.items()), flush=True)
        programs.append(program(**point))
        programs[-1].run()
    taken = [[_cpu_seconds(program) for program in programs] for _ in range(rounds)]
    figures = [
        Figure(seconds, program.memory)
        for seconds, program in zip(np.median(taken, axis=0).tolist(), programs, strict=True)
    ]
    return {
        name: {size: figures[points.index({**POINT, name: size})] for size in sizes}
        for name, sizes in all_sizes.items()
    }


def sizes_of(name: str, program: type[Step] | type[Forward]) -> tuple[int, ...]:
    return _MORE_SIZES.get(_INFERENCE + name, SIZES[name]) if program is Forward else SIZES[name]


def _cpu_seconds(program: Step | Forward) -> float:
    started = time.process_time()
    program.run()
    return time.process_time() - started


def planned(shape: str) -> tuple[int, Figure]:
    """What is planned for a slice of v5e chips: their number, and the figure."""
    from train.planning.planner import plan_phase, steps_on
    from train.pretraining.recipe import Phase, PretrainConfig
    from train.pretraining.source import RandomData

    topology, model = read_topology(f"v5e:{shape}"), BertConfig.preset("tiny", dtype="bfloat16")
    phase = Phase(LENGTH, ROWS_A_CHIP * topology.chips, 100_000)
    config = PretrainConfig(model=model, data="random", phases=(phase,))
    steps = steps_on(config, RandomData(model.vocab_size, "nsp"), topology)
    facts = plan_phase(steps, topology, phase, steps.parts_of(phase))
    low, high = facts["step_seconds"]
    gradients = 4 * sum(leaf.size for leaf in jax.tree.leaves(steps.state.params))
    sums = exchange_time([Collective("all-reduce", gradients, 1, False, False, topology.chips)], topology)
    return topology.chips, Figure((low + high) / 2, facts["needed"], low, high, sums.middle)


def terms_of(name: str, sizes: Sequence[float]) -> np.ndarray:
    """The terms of the law of a result at these sizes, float64 [sizes, terms]."""
    terms = np.power.outer(np.asarray(sizes, float), LAWS[name][0])
    if name in STEPS:
        after = np.asarray(sizes)[:, None] >= STEPS[name]
        terms = np.concatenate([terms, np.where(after, terms[:, 1:2], 0.0)], axis=1)
    return terms


def fitted(terms: np.ndarray, figures: Sequence[float]) -> np.ndarray:
    """The law's coefficients, of at least 0, with the least squares of relative errors."""
    largest = terms.max(axis=0)  # all terms in the same range, for the solver
    return nnls(terms / largest / np.array(figures)[:, None], np.ones(len(terms)))[0] / largest


def columns(by_size: Mapping[str, Mapping[str, Any]]) -> dict[str, list]:
    """The sizes in order, and a list for each field of their figures."""
    sizes = sorted(by_size, key=int)
    fields = {field: [by_size[size][field] for size in sizes] for field in Figure._fields}
    return {"sizes": [int(size) for size in sizes], **fields}


def law_of(name: str, of: Mapping[str, Any], kind: str, at: Sequence[float]) -> np.ndarray:
    """What the law of a result says of its "seconds" or "memory" at these sizes, of planned seconds at their own."""
    if kind == "seconds" and name == "devices":
        return of["seconds"][0] + np.array(of["sums"])
    return terms_of(name, at) @ fitted(terms_of(name, of["sizes"]), of[kind])


def table(results: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| against | law | time, ms | furthest from it | memory, MB | furthest from it |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for name, of in results.items():
        cells = [f"{name}, {of['sizes'][0]} to {of['sizes'][-1]}", LAWS[name][1]]
        for kind, scale in (("seconds", 1e3), ("memory", 1e-6)):
            worst = abs(np.array(of[kind]) / law_of(name, of, kind, of["sizes"]) - 1).max()
            cells += [f"{_short(scale * of[kind][0])} to {_short(scale * of[kind][-1])}", f"{worst:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(path: Path, results: Mapping[str, Any]) -> None:
    """A column for each result: its time above, its memory below, with the law's line; inference under the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bands = [
        {name: of for name, of in results.items() if name.startswith(_INFERENCE) == ours} for ours in (False, True)
    ]
    bands = [band for band in bands if band]
    size = (3.1 * max(map(len, bands)), 5.6 * len(bands))
    figure, axes = pyplot.subplots(
        2 * len(bands), max(map(len, bands)), figsize=size, layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.set_visible(False)
    for number, band in enumerate(bands):
        for column, (name, of) in enumerate(band.items()):
            above, below = axes[2 * number][column], axes[2 * number + 1][column]
            above.set_title(f"{name}: {LAWS[name][1]}", fontsize=9, wrap=True)
            _panel(above, name, of, "seconds", 1e3)
            _panel(below, name, of, "memory", 1e-6)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


def _panel(axis: Any, name: str, of: Mapping[str, Any], kind: str, scale: float) -> None:
    axis.set_visible(True)
    planned = name == "devices"
    values = scale * np.array(of[kind])
    line = of["sizes"] if planned else np.linspace(0, of["sizes"][-1], 400)
    axis.plot(line, scale * law_of(name, of, kind, line), color="0.6", label="law")
    color, label = ("tab:orange", "compiled") if planned else ("tab:blue", _SOURCES[kind])
    if planned and kind == "seconds":
        ends = abs(scale * np.array([of["low"], of["high"]]) - values)
        axis.errorbar(of["sizes"], values, ends, fmt="o", color=color, capsize=4, label="planned, with its range")
    else:
        axis.plot(of["sizes"], values, "o", color=color, label=label)
    axis.set(
        xlabel=_AXES.get(name.removeprefix(_INFERENCE), name.removeprefix(_INFERENCE)),
        ylabel=_UNITS[kind, planned],
        ylim=(0, 1.2 * axis.get_ylim()[1]),
    )
    if planned:
        axis.set_xscale("log", base=4)
        axis.set_xticks(of["sizes"], of["sizes"])
        axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small", loc="lower right" if planned else "upper left")


_AXES = {"devices": "v5e chips", "batch": "rows", "length": "tokens of a row"}
_UNITS = {
    ("seconds", False): "CPU ms",
    ("seconds", True): "ms",
    ("memory", False): "MB",
    ("memory", True): "MB of a chip",
}
_SOURCES = {"seconds": "measured", "memory": "compiled"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="*", choices=("cpu", "inference", "devices", []), help="which of them; all by default"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chips", default="1x1,2x2,4x4,8x8,16x16")
    parser.add_argument("--json", type=Path, default=Path("runs/growth.json"))
    parser.add_argument("--picture", type=Path, default=Path("runs/growth.png"))
    options = parser.parse_args()
    what = options.what or ["cpu", "inference", "devices"]
    make_ready([read_topology("v5e:1x1" if "devices" in what else "cpu:1")])
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for program, stem in ((Step, ""), (Forward, _INFERENCE)):
        if ("inference" if stem else "cpu") not in what:
            continue
        for name, by_size in measured(program, options.rounds).items():
            found[stem + name] = {str(size): figure._asdict() for size, figure in by_size.items()}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for shape in options.chips.split(",") if "devices" in what else ():
        print(f"compiling for v5e:{shape}", flush=True)
        chips, figure = planned(shape)
        found.setdefault("devices", {})[str(chips)] = figure._asdict()
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    results = {name: columns(found[name]) for name in LAWS if name in found}
    draw(options.picture, results)
    print(describe_cpu())
    print(table(results))


if __name__ == "__main__":
    main()
