"""A folder of `export-compiled`, run on the GPU: a part of benchmarks/gpu.py.

Programs for cpu and cuda are made, and run by `python -m bert_jax run-compiled`, and in this process: their outputs are
those of the pipeline's own function on the same device, bit for bit, and those of the CPU but for rounding.
"""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu_parts.ceiling import seconds_each
from benchmarks.gpu_parts.figures import Task, run_part
from benchmarks.gpu_parts.inputs import MODEL
from bert_jax.inference.compiled.export import export_compiled
from bert_jax.inference.compiled.run import load_compiled
from bert_jax.inference.tasks.embed import TextEmbedding

ROWS, TOKENS = 32, 128


def by_the_pipeline(model: TextEmbedding, batch: dict[str, np.ndarray], device: Any) -> np.ndarray:
    params = jax.device_put(jax.device_get(model.engine.programs.params), device)
    on_device = jax.device_put(batch, device)
    return jax.device_get(jax.jit(lambda params, batch: model.apply(params, batch))(params, on_device)[0])


def measure(task: Task) -> None:
    figures = task.figures()
    rng = np.random.default_rng(0)
    mask = (np.arange(TOKENS) < rng.integers(5, TOKENS + 1, ROWS)[:, None]).astype(np.int32)
    batch = {
        "input_ids": rng.integers(5, 500, (ROWS, TOKENS), dtype=np.int32) * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }
    for dtype in ("float32", "bfloat16"):
        model = TextEmbedding(task.inputs / MODEL, dtype=dtype)
        with tempfile.TemporaryDirectory() as place:
            folder = export_compiled(
                task.inputs / MODEL,
                Path(place) / "compiled",
                "embed",
                lengths=[TOKENS],
                batch_sizes=[ROWS],
                platforms=("cpu", "cuda"),
                dtype=dtype,
            )
            compiled = load_compiled(folder)
            found = compiled(batch)["embeddings"]
            here = by_the_pipeline(model, batch, jax.devices()[0])
            on_cpu = by_the_pipeline(model, batch, jax.devices("cpu")[0])
            texts = Path(place) / "texts.txt"
            texts.write_text("the of and in\nto was is for\n")
            command = [sys.executable, "-m", "bert_jax", "run-compiled", str(folder), str(texts)]
            ran = subprocess.run(command, capture_output=True, text=True)
            figures.add(
                dtype=dtype,
                equal_to_the_pipeline=bool(np.array_equal(found, here)),
                largest_difference_from_cpu=float(np.abs(found - on_cpu).max()),
                run_compiled_exit_code=ran.returncode,
                run_compiled_lines=len(ran.stdout.splitlines()),
                ms=round(1e3 * seconds_each(partial(compiled, batch)), 3),
                **({} if ran.returncode == 0 else {"said": ran.stderr.strip()[-300:]}),
            )
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
