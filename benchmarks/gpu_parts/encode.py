"""Sentence vectors beside transformers on torch, as in benchmarks/inference.py: a part of benchmarks/gpu.py."""

import json
import tempfile
from pathlib import Path

import jax

from benchmarks.gpu_parts.figures import Task, run_part
from benchmarks.gpu_parts.inputs import CORPUS, MODEL
from benchmarks.inference import compare
from benchmarks.inference_workloads import FIXED, copy_for_all, fixed_texts, mixed_texts
from bert_jax.formats.load import load_tokenizer

CONTENDERS = ["ours-bfloat16", "ours", "torch-bfloat16", "torch-bfloat16-compile", "torch"]


def measure(task: Task) -> None:
    figures = task.figures()
    tokenizer = load_tokenizer(task.inputs / MODEL)
    assert tokenizer is not None
    # without torch.compile on a CPU: there it needs a compiler and minutes
    names = [name for name in CONTENDERS if not (task.tiny and name.endswith("compile"))]
    on_gpu = jax.default_backend() == "gpu"
    for workload in ["1x16"] if task.tiny else [*FIXED, "mixed"]:
        rounds, in_a_row = 3 if task.tiny else 7, 1 if workload == "mixed" else 20
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            copy_for_all(str(task.inputs / MODEL), folder / "model")
            if workload == "mixed":
                texts = mixed_texts(2000, task.inputs / CORPUS, tokenizer)
            else:
                texts = fixed_texts(workload, tokenizer)
            (folder / "texts.json").write_text(json.dumps(texts))
            found = compare(workload, names, rounds, in_a_row, folder, on_gpu)
        for row in found:
            figures.add(workload=workload, texts_per_second=round(1e3 * len(texts) / row["ms"], 1), **row)
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
