"""Sentence vectors on the CPU beside the peers: latency, throughput and real text, in one run, in turns.

    python -m benchmarks.train_step --make-environments        once: for flax, st-onnx, st-openvino
    pip install -e '.[benchmarks]'                              once, for onnxruntime and OpenVINO
    python -m benchmarks.inference MODEL CORPUS [--shape base] [--workloads 1x16,1x37,1x128,32x128,mixed] [--rounds 9]
                                                [--in-a-row 20]

MODEL: a folder that sentence-transformers reads (all-MiniLM-L6-v2). `--shape base` uses a BERT-base with random weights
and that tokenizer instead. CORPUS: a .jsonl(.zst) file with a "text" of prose per line, for the sentences of `mixed`.

All do the same work: texts in, mean-pooled vectors of length one out, tokenising included. Each contender is its own
process that reads the model, does the work twice, and then once per round, while the others wait. Ratios divide medians
by the first contender's in the same rounds. With `--in-a-row N` a turn is N requests in a row, and the figure is per
request; without it, every request follows a pause. The cosine is the smallest over all texts, to `st`'s vectors (or
`torch`'s).

ours              TextEmbedding: packed rows, a device for each core; -one-device: one for all of them; -buckets: texts
                  padded to lengths that are powers of two; -openvino, -onnxruntime: by that runtime, the first in
                  bfloat16 (-float32, -int8), the second in float32; -auto: by what "auto" takes, in its own type
st                sentence-transformers' encode as its users run it; st-bfloat16
torch             transformers with SDPA, 32 texts of similar length at a time; -bfloat16, -compile, -bfloat16-compile
onnx              onnxruntime on what `convert --to onnx` writes, sorted, 1,024 tokens per call; -fused: after its
                  optimizer for BERT; -int8: on what `--int8` writes
openvino          OpenVINO on the same graph: it takes bfloat16 by itself where the CPU has it; -float32; -int8: by NNCF
st-onnx           sentence-transformers' backend="onnx"; -int8: with the int8 file; st-openvino: its backend="openvino"
flax              the Flax model of transformers 4.57, jitted, lengths padded to powers of two

Ready in: seconds from when the packages are imported to the first answer.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender
from benchmarks.inference_workloads import FIXED, copy_for_all, fixed_texts, mixed_texts, write_base_shape
from benchmarks.machine import describe_cpu
from benchmarks.turns import Worker, take_turns
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load_tokenizer

_OURS, _RIVALS = "benchmarks.inference_ours", "benchmarks.rivals"
CONTENDERS = {
    "ours": Contender(_OURS, "float32", "own"),
    "ours-bfloat16": Contender(_OURS, "bfloat16", "own"),
    "ours-one-device": Contender(_OURS, "float32-one", "own"),
    "ours-buckets": Contender(_OURS, "float32-buckets", "own"),
    "ours-bfloat16-buckets": Contender(_OURS, "bfloat16-buckets", "own"),
    "ours-auto": Contender(_OURS, "own-auto", "own"),
    "ours-openvino": Contender(_OURS, "bfloat16-openvino", "own"),
    "ours-openvino-float32": Contender(_OURS, "float32-openvino", "own"),
    "ours-openvino-int8": Contender(_OURS, "int8-openvino", "own"),
    "ours-onnxruntime": Contender(_OURS, "float32-onnxruntime", "own"),
    "st": Contender(f"{_RIVALS}.st_encode", "default", "default"),
    "st-bfloat16": Contender(f"{_RIVALS}.st_encode", "bfloat16", "kept"),
    "torch": Contender(f"{_RIVALS}.torch_encode", "float32", "kept"),
    "torch-bfloat16": Contender(f"{_RIVALS}.torch_encode", "bfloat16", "kept"),
    "torch-compile": Contender(f"{_RIVALS}.torch_encode", "float32-compile", "kept"),
    "torch-bfloat16-compile": Contender(f"{_RIVALS}.torch_encode", "bfloat16-compile", "kept"),
    "onnx": Contender(f"{_RIVALS}.onnx_encode", "plain", "kept"),
    "onnx-fused": Contender(f"{_RIVALS}.onnx_encode", "fused", "kept"),
    "onnx-int8": Contender(f"{_RIVALS}.onnx_encode", "int8", "kept"),
    "openvino": Contender(f"{_RIVALS}.openvino_encode", "default", "kept"),
    "openvino-float32": Contender(f"{_RIVALS}.openvino_encode", "float32", "kept"),
    "openvino-int8": Contender(f"{_RIVALS}.openvino_encode", "int8", "kept"),
    "st-onnx": Contender(f"{_RIVALS}.st_encode", "onnx", "default", "optimum"),
    "st-onnx-int8": Contender(f"{_RIVALS}.st_encode", "onnx-int8", "default", "optimum"),
    "st-openvino": Contender(f"{_RIVALS}.st_encode", "openvino", "default", "optimum"),
    "flax": Contender(f"{_RIVALS}.flax_encode", "float32", "kept", "flax"),
    "flax-bfloat16": Contender(f"{_RIVALS}.flax_encode", "bfloat16", "kept", "flax"),
}
CALIBRATION = 300  # sentences for int8, others than are measured
REFERENCES = ("st", "torch")  # the first of them that runs


def start_all(names: list[str], folder: Path, gpu: bool) -> dict[str, Worker]:
    workers = {}
    for name in names:
        print(f"starting {name}", file=sys.stderr, flush=True)
        contender = CONTENDERS[name]
        try:
            workers[name] = contender.start(contender.malloc, folder, gpu)
        except RuntimeError as error:
            print(f"  {name} skipped: {error}", flush=True)
    return workers


def vectors_of(name: str, folder: Path) -> np.ndarray:
    contender = CONTENDERS[name]
    return np.load(folder / f"vectors-{contender.module.rsplit('.', 1)[-1]}-{contender.argument}.npy")


def compare(
    workload: str, names: list[str], rounds: int, in_a_row: int, folder: Path, gpu: bool = False
) -> list[dict[str, Any]]:
    """Print the figures of the contenders, and return those that finished, milliseconds a request."""
    texts = json.loads((folder / "texts.json").read_text())
    print(f"{workload}: {len(texts):,} texts, {rounds} rounds", flush=True)
    workers = start_all(names, folder, gpu)
    reference = next((name for name in REFERENCES if name in workers), None)
    take_turns(list(workers.values()), rounds, in_a_row)
    first = next(iter(workers.values())).medians()
    print(f"  {'':23s} {'wall':>13s}  ratio {'CPU':>13s}  ratio   ready in   least cosine")
    found = []
    for name, worker in workers.items():
        if worker.failure:
            print(f"  {name:23s} ended early: {worker.failure}")
            continue
        figures, cosine = worker.medians(), float("nan")
        if reference:
            mine, theirs = vectors_of(name, folder), vectors_of(reference, folder)
            products = (mine * theirs).sum(axis=1)
            cosine = (products / np.linalg.norm(mine, axis=1) / np.linalg.norm(theirs, axis=1)).min()
        pairs = ((figures.wall_ms, first.wall_ms), (figures.cpu_ms, first.cpu_ms))
        both = " ".join(f"{mine:10,.2f} ms {mine / firsts:6.2f}" for mine, firsts in pairs)
        print(f"  {name:23s} {both} {worker.facts['ready_in']:8.1f} s   {cosine:.6f}", flush=True)
        found.append({"contender": name, "ms": figures.wall_ms, "cpu_ms": figures.cpu_ms, "cosine": float(cosine)})
        worker.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--shape", choices=("as-is", "base"), default="as-is")
    parser.add_argument("--workloads", default=",".join([*FIXED, "mixed"]))
    parser.add_argument("--texts", type=int, default=2000, help="of `mixed`")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--in-a-row", type=int, default=1, help="requests of a turn")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    options = parser.parse_args()
    names = options.contenders.split(",")
    if unknown := set(names) - set(CONTENDERS):
        parser.error(f"--contenders: {', '.join(sorted(unknown))} is not one of {', '.join(CONTENDERS)}")
    tokenizer = load_tokenizer(options.model)
    assert tokenizer is not None
    print(describe_cpu())
    with tempfile.TemporaryDirectory() as place:
        for workload in options.workloads.split(","):
            folder = Path(place) / workload
            folder.mkdir()
            if options.shape == "base":
                write_base_shape(folder / "model", tokenizer)
            else:
                copy_for_all(options.model, folder / "model")
            if workload == "mixed":
                texts = mixed_texts(options.texts, options.corpus, tokenizer)
                lengths = tokenizer.encode_flat(texts)[1] + 2
                print(f"tokens: mean {lengths.mean():.1f}, median {np.median(lengths):.0f}, most {lengths.max()}")
            else:
                texts = fixed_texts(workload, tokenizer)
            (folder / "texts.json").write_text(json.dumps(texts))
            if any("onnx" in name or name.startswith("openvino") for name in names if not name.startswith("ours")):
                convert(folder / "model", folder / "onnx", to="onnx", int8=True)
                others = mixed_texts(CALIBRATION, options.corpus, tokenizer, seed=1)
                (folder / "calibration.json").write_text(json.dumps(others))
            compare(workload, names, options.rounds, options.in_a_row, folder)


if __name__ == "__main__":
    main()
