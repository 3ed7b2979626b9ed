"""sentence-transformers in benchmarks/inference.py: `SentenceTransformer.encode`, which sorts by length itself.

python -m benchmarks.rivals.st_encode FOLDER {default,bfloat16}
"""

import json
import sys
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from benchmarks.rivals.serving import serve, write_vectors


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    start = time.perf_counter()
    texts = json.loads((folder / "texts.json").read_text())
    kwargs = {"dtype": torch.bfloat16} if how == "bfloat16" else {}
    model = SentenceTransformer(str(folder / "model"), device="cpu", model_kwargs=kwargs)

    def encode():
        return model.encode(texts, show_progress_bar=False)

    vectors = encode()
    ready = time.perf_counter() - start
    write_vectors(folder, vectors)
    serve(encode, ready_in=ready)


if __name__ == "__main__":
    main()
