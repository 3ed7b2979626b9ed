"""Training steps in turns: each way to compute attention, packed rows and padded ones, PyTorch beside them.

    python -m benchmarks.gpu_parts.steps INPUTS OUT/base-128.json [--tiny]          or OUT/large-512.json

A part of benchmarks/gpu.py: AdamW, dropout 0.1, products in bfloat16, prepared text with its padding, one batch that
stays on the GPU. Our programs share one state and one process; PyTorch's model (SDPA, torch.compile, autocast, fused
AdamW, rivals/torch_step.py) has its own and trains on the same padded rows. cuDNN's attention cannot have our dropout:
it is compared without dropout on the probabilities, with others that have none.

`mfu` counts the products that real tokens need, each example at its own length (`train_flops`), relative to the data
sheet; `of_ceiling` relative to the fastest product of ceiling.json.
"""

import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.contenders import Contender
from benchmarks.gpu_parts.figures import AT_ONCE, PATHS, Figures, Task, reason_of, run_part
from benchmarks.gpu_parts.inputs import DATA, model_config
from benchmarks.train_step_ours import StepProgram
from benchmarks.turns import Worker
from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.errors import UserError
from train.run.chips import peak_flops
from train.run.step_cost import train_flops

Batch = dict[str, np.ndarray]
TORCH = {
    "torch SDPA, torch.compile": Contender("benchmarks.rivals.torch_step", "best", "default"),
    "torch SDPA": Contender("benchmarks.rivals.torch_step", "uncompiled", "default"),
}
ROUNDS, SECONDS = 7, 0.7


class Size(NamedTuple):
    """A published model, its length, and the rows of a step: enough that the optimizer takes a tenth at most."""

    preset: str
    length: int
    rows: int


SIZES = {"base-128": Size("base-uncased", 128, 256), "large-512": Size("large-uncased", 512, 32)}


class Way(NamedTuple):
    """How a step is computed; `dropout`: on the attention's probabilities, too."""

    attention: str
    packed: bool
    dropout: bool


def ways() -> Iterator[list[Way]]:
    """Groups that are comparable: with all dropout, and, for cuDNN, without that of the probabilities."""
    yield [Way(path, packed, True) for packed in (False, True) for path in PATHS if path != "cudnn"]
    if "cudnn" in PATHS:
        yield [Way(path, packed, False) for packed in (False, True) for path in PATHS if path != "kernel"]


class Step:
    """One of our programs, and the seconds of a step in each of its turns."""

    def __init__(self, way: Way, config: BertConfig, batch: Batch):
        config = config if way.dropout else config.replace(attention_probs_dropout_prob=0.0)
        self.way, self.program = way, StepProgram(config.replace(attention=way.attention), batch)
        self.seconds: list[float] = []

    def turn(self, state: Any, times: int) -> Any:
        began = time.perf_counter()
        for _ in range(times):
            state, metrics = self.program.run(state)
        jax.block_until_ready((state, metrics))
        self.seconds.append((time.perf_counter() - began) / times)
        return state


def examples_of(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the predictions of each example of a batch, packed or not."""
    numbers_BL = batch.get("sequence_ids", batch["attention_mask"])
    owners_BP = np.take_along_axis(numbers_BL, batch["mlm_positions"], axis=1) * (batch["mlm_weights"] > 0)
    places = range(1, numbers_BL.max() + 1)
    tokens_BK, predictions_BK = (np.stack([(of == k).sum(axis=1) for k in places], 1) for of in (numbers_BL, owners_BP))
    return tokens_BK[tokens_BK > 0], predictions_BK[tokens_BK > 0]


def speeds(config: BertConfig, batch: Batch, seconds: float, ceiling: float | None) -> dict[str, Any]:
    """What a step on the batch came to, in so many seconds."""
    tokens, predictions = examples_of(batch)
    flops = (
        sum(train_flops(config, *pair) for pair in zip(tokens.tolist(), predictions.tolist(), strict=True)) / seconds
    )
    peak = peak_flops(jax.devices()[0].device_kind)
    return {
        "ms": round(1e3 * seconds, 3),
        "sequences_per_second": round(len(tokens) / seconds, 1),
        "real_tokens_per_second": round(tokens.sum() / seconds),
        "padding": round(1 - tokens.sum() / batch["input_ids"].size, 4),
        "mfu": peak and round(flops / peak, 4),
        "of_ceiling": ceiling and round(flops / ceiling, 4),
    }


def calls_of(compiled: Any) -> str:
    """Which libraries and kernels a compiled program calls, and how often: what shows that a path was taken."""
    found = Counter(re.findall(r'custom_call_target="([^"]+)"', compiled.as_text()))
    return ", ".join(f"{count} {name}" for name, count in found.most_common(8))


def prepare_step(way: Way, config: BertConfig, batch: Batch, figures: Figures, pool: ThreadPoolExecutor) -> Any:
    """The step and a future of its compilation; None if the path refuses the work."""
    try:
        step = Step(way, config, batch)
    except UserError as error:  # a path says what it cannot do
        figures.add(**way._asdict(), refused=reason_of(error))
        return None
    except Exception as error:
        figures.add(**way._asdict(), failed=reason_of(error))
        return None
    return step, pool.submit(step.program.compile)


def compiled_steps(started: list[tuple[Step, Future[None]]], figures: Figures) -> Iterator[Step]:
    for step, future in started:
        try:
            future.result()
            step.program.keep_batch_on_device()
            yield step
        except Exception as error:
            figures.add(**step.way._asdict(), failed=reason_of(error))


def start_torch(torch: Contender, config: BertConfig, dropout: bool, batch: Batch, folder: Path) -> Worker:
    folder.mkdir()
    rates = {} if dropout else {"attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config.replace(**rates).to_json()))
    np.savez(folder / "batch.npz", allow_pickle=False, **batch)
    return torch.start(torch.malloc, folder, gpu=jax.default_backend() == "gpu")


def steps_of_a_turn(seconds: float) -> int:
    """How many steps make a turn."""
    return max(1, min(30, round(SECONDS / seconds)))


def take_turns(steps: list[Step], torch: Worker | None, figures: Figures) -> list[Step]:
    """Time the steps; those that fail are reported and left out of what is returned."""
    state: Any = None
    times: dict[Step, int] = {}
    times_of_torch = 1
    failed: set[Step] = set()
    for number in range(-2, ROUNDS):  # the first two say how many steps make a turn
        for step in [step for step in steps if step not in failed]:
            try:
                state = steps[0].program.new_state() if state is None else state
                state = step.turn(state, times.get(step, 1))
            except Exception as error:
                failed.add(step)
                figures.add(**step.way._asdict(), failed=reason_of(error))
                state = None
                continue
            if number < 0:
                times[step] = steps_of_a_turn(step.seconds.pop())
        if torch and not torch.failure:
            torch.step(times_of_torch)
            if number < 0 and torch.figures:
                times_of_torch = steps_of_a_turn(torch.figures[-1].wall_ms / 1e3)
    return [step for step in steps if step not in failed]


def measure(task: Task) -> None:
    size = SIZES[task.out.stem]
    config = model_config(task.tiny, size.preset)
    ceiling = task.out.with_name("ceiling.json")
    found = json.loads(ceiling.read_text())["rows"] if ceiling.exists() else []
    fastest = max((1e12 * row["tflops"] for row in found if "tflops" in row), default=None)
    rows = 2 if task.tiny else size.rows
    batches = {
        packed: kind(task.inputs / DATA, batch_size=rows, max_seq_length=size.length).batch(0)
        for packed, kind in ((False, Batches), (True, PackedBatches))
    }
    figures = task.figures(preset=size.preset, length=size.length, rows_of_a_step=rows)
    for group in ways():
        dropout = group[0].dropout
        # tiny: on a CPU torch.compile takes minutes
        theirs = {"attention": list(TORCH)[task.tiny], "packed": False, "dropout": dropout}
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(AT_ONCE) as pool:
            rival = pool.submit(
                start_torch, TORCH[theirs["attention"]], config, dropout, batches[False], Path(place) / "torch"
            )
            started = [prepare_step(way, config, batches[way.packed], figures, pool) for way in group]
            steps = list(compiled_steps([pair for pair in started if pair], figures))
            torch = None
            try:
                torch = rival.result()
            except RuntimeError as error:
                figures.add(**theirs, failed=reason_of(error))
            steps = take_turns(steps, torch, figures)
            for step in steps:
                memory = step.program.memory
                figures.add(
                    **step.way._asdict(),
                    **speeds(config, batches[step.way.packed], float(np.median(step.seconds)), fastest),
                    slowest_ms=round(1e3 * max(step.seconds), 3),
                    held_gb=round(memory.argument_size_in_bytes / 1e9, 3),
                    temporary_gb=round(memory.temp_size_in_bytes / 1e9, 3),
                    compile_s=round(step.program.compile_seconds, 1),
                    calls=calls_of(step.program.compiled),
                )
            if torch:
                if torch.failure:
                    figures.add(**theirs, failed=torch.failure)
                else:
                    seconds = torch.medians(last=ROUNDS).wall_ms / 1e3
                    figures.add(
                        **theirs,
                        **speeds(config, batches[False], seconds, fastest),
                        slowest_ms=round(max(turn.wall_ms for turn in torch.figures[-ROUNDS:]), 3),
                        peak_gb=round(torch.facts["device_bytes"] / 1e9, 3),
                    )
                torch.stop()
    stats = jax.devices()[0].memory_stats() or {}
    figures.add(all_our_programs="peak", peak_gb=round(stats.get("peak_bytes_in_use", 0) / 1e9, 3))
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
