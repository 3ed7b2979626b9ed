"""bert_jax in benchmarks/inference.py: `TextEmbedding` on texts, tokenising included.

python -m benchmarks.inference_ours FOLDER {float32,bfloat16,int8,own}[-buckets|-one|-auto|-openvino|-onnxruntime]
"""

import json
import sys
import time
from pathlib import Path

from bert_jax.runtime.cpu import keep_freed_memory, use_all_cores


def main() -> None:
    folder, (dtype, _, how) = Path(sys.argv[1]), sys.argv[2].partition("-")
    runtime = how if how in ("auto", "openvino", "onnxruntime") else "xla"
    if how != "one":
        use_all_cores()
    else:
        keep_freed_memory()
    from benchmarks.rivals.serving import serve_vectors
    from bert_jax.inference.tasks.embed import TextEmbedding

    start = time.perf_counter()
    texts = json.loads((folder / "texts.json").read_text())
    packing = False if how == "buckets" else None
    embed = TextEmbedding(folder / "model", dtype=None if dtype == "own" else dtype, packing=packing, runtime=runtime)
    serve_vectors(folder, lambda: embed(texts), start)


if __name__ == "__main__":
    main()
