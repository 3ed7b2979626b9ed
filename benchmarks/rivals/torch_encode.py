"""transformers on torch in benchmarks/inference.py: SDPA, mean pooling, batches of 32 texts of similar length.

    python -m benchmarks.rivals.torch_encode FOLDER {float32,bfloat16}[-compile]

`-compile` uses torch.compile and pads lengths to multiples of 32, so that few shapes are compiled. On a GPU, if torch
sees one.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks.rivals.serving import serve_vectors

ROWS = 32


def main() -> None:
    folder, (dtype, _, compiled) = Path(sys.argv[1]), sys.argv[2].partition("-")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    texts = json.loads((folder / "texts.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    loaded = transformers.AutoModel.from_pretrained(folder / "model", attn_implementation="sdpa")
    model = loaded.to(device, getattr(torch, dtype)).eval()
    if compiled:
        model = torch.compile(model, dynamic=False)
    multiple = 32 if compiled and len(texts) > 1 else None

    @torch.inference_mode()
    def encode() -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        found = np.empty((len(texts), loaded.config.hidden_size), np.float32)
        for begin in range(0, len(texts), ROWS):
            rows = order[begin : begin + ROWS]
            inputs = tokenizer(
                [texts[i] for i in rows],
                padding=True, truncation=True, max_length=512, pad_to_multiple_of=multiple, return_tensors="pt",
            ).to(device)  # fmt: skip
            hidden = model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][..., None].float()
            vectors = (hidden * mask).sum(1) / mask.sum(1)
            found[rows] = torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()
        return found

    serve_vectors(folder, encode, start)


if __name__ == "__main__":
    main()
