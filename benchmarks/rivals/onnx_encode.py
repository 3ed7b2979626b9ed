"""onnxruntime in benchmarks/inference.py, on the graph that `convert --to onnx` writes; texts sorted by length.

    python -m benchmarks.rivals.onnx_encode FOLDER {plain,fused,int8}

plain: under all of onnxruntime's own optimisations; fused: after onnxruntime.transformers' optimizer for BERT too (one
node for attention, LayerNorm with its residual); int8: the file that --int8 writes.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.rivals.serving import serve_vectors
from benchmarks.rivals.sorted_texts import encoder


def fused(folder: Path) -> Path:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    config = json.loads((folder / "config.json").read_text())
    model = optimizer.optimize_model(
        str(folder / "onnx" / "model.onnx"), model_type="bert", num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"], optimization_options=FusionOptions("bert"),
    )  # fmt: skip
    path = folder / "onnx" / "fused.onnx"
    model.save_model_to_file(str(path))
    return path


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    texts = json.loads((folder / "texts.json").read_text())
    exported = folder / "onnx"
    names = {"plain": "model.onnx", "int8": "model_quantized.onnx"}
    path = fused(exported) if how == "fused" else exported / "onnx" / names[how]
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(session.run(["last_hidden_state"], inputs)[0])

    encode = encoder(exported, run)
    serve_vectors(folder, lambda: encode(texts), start)


if __name__ == "__main__":
    main()
