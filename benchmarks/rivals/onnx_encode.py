"""onnxruntime in benchmarks/inference.py: the encoder from torch, texts sorted by length, 1,024 tokens per call.

    python -m benchmarks.rivals.onnx_encode FOLDER {plain,fused}

plain: as torch.onnx writes it, under all of onnxruntime's own optimisations; fused: after onnxruntime.transformers'
optimizer for BERT too (fused attention, LayerNorm and GELU).
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

from benchmarks.rivals.serving import serve, write_vectors

TOKENS = 1024
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class Hidden(torch.nn.Module):
    """The last hidden state alone."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state


def export(folder: Path, path: Path) -> transformers.PretrainedConfig:
    model = transformers.AutoModel.from_pretrained(folder / "model", attn_implementation="eager").eval()
    ids = torch.ones((2, 8), dtype=torch.int64)
    axes = {name: {0: "rows", 1: "length"} for name in [*NAMES, "hidden"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Hidden(model), (ids, ids, ids), str(path),
            input_names=NAMES, output_names=["hidden"], dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
    return model.config


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    texts = json.loads((folder / "texts.json").read_text())
    path = folder / f"{how}.onnx"
    config = export(folder, path)
    if how == "fused":
        fused = optimizer.optimize_model(
            str(path), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size,
            optimization_options=FusionOptions("bert"),
        )  # fmt: skip
        fused.save_model_to_file(str(path))
    start = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def encode() -> np.ndarray:
        ids = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        order = np.argsort([-len(row) for row in ids], kind="stable")
        found = np.empty((len(texts), config.hidden_size), np.float32)
        begin = 0
        while begin < len(order):
            length = len(ids[order[begin]])
            rows = order[begin : begin + max(1, TOKENS // length)]
            begin += len(rows)
            padded = np.zeros((len(rows), length), np.int64)
            for place, row in enumerate(rows):
                padded[place, : len(ids[row])] = ids[row]
            mask = (padded > 0).astype(np.int64)
            inputs = {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(padded)}
            hidden = np.asarray(session.run(None, inputs)[0])
            vectors = np.einsum("bl,bld->bd", mask.astype(np.float32), hidden) / mask.sum(1, keepdims=True)
            found[rows] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return found

    vectors = encode()
    ready = time.perf_counter() - start
    write_vectors(folder, vectors)
    serve(encode, ready_in=ready)


if __name__ == "__main__":
    main()
