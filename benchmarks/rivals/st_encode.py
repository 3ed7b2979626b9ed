"""sentence-transformers in benchmarks/inference.py: `SentenceTransformer.encode`, which sorts by length itself.

    python -m benchmarks.rivals.st_encode FOLDER {default,bfloat16,onnx,onnx-int8,openvino}

The last three are its backends, as its users run them: onnx reads the folder that `convert --to onnx` writes, openvino
makes its own graph from the PyTorch weights.
"""

import json
import sys
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from benchmarks.rivals.serving import serve_vectors


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    start = time.perf_counter()
    texts = json.loads((folder / "texts.json").read_text())
    options = {
        "default": {},
        "bfloat16": {"model_kwargs": {"dtype": torch.bfloat16}},
        "onnx": {"backend": "onnx", "model_kwargs": {"provider": "CPUExecutionProvider"}},
        "onnx-int8": {"backend": "onnx", "model_kwargs": {"file_name": "model_quantized.onnx"}},
        "openvino": {"backend": "openvino"},
    }
    source = folder / ("onnx" if how.startswith("onnx") else "model")
    model = SentenceTransformer(str(source), device="cpu", **options[how])

    def encode():
        return model.encode(texts, show_progress_bar=False)

    serve_vectors(folder, encode, start)


if __name__ == "__main__":
    main()
