"""OpenVINO in benchmarks/inference.py, on the graph that `convert --to onnx` writes; texts sorted by length.

    python -m benchmarks.rivals.openvino_encode FOLDER {default,float32,int8}

default: OpenVINO chooses the type, bfloat16 where the CPU multiplies it; int8: quantized by NNCF, calibrated on other
sentences, which is how OpenVINO's users get int8. One text goes to a model compiled for latency, several to one
compiled for throughput, with as many calls at a time as it asks for.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import openvino
import transformers

from benchmarks.rivals.serving import serve_vectors
from benchmarks.rivals.sorted_texts import batches, pool


def quantized(model: openvino.Model, texts: list[str], tokenizer) -> openvino.Model:
    import nncf

    ids = (tokenizer(text, truncation=True, max_length=512, return_tensors="np") for text in texts)
    inputs = [{name: np.asarray(array, np.int64) for name, array in row.items()} for row in ids]
    return nncf.quantize(model, nncf.Dataset(inputs), model_type=nncf.ModelType.TRANSFORMER)


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    texts = json.loads((folder / "texts.json").read_text())
    exported = folder / "onnx"
    start = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    core = openvino.Core()
    model = core.read_model(exported / "onnx" / "model.onnx")
    if how == "int8":
        model = quantized(model, json.loads((folder / "calibration.json").read_text()), tokenizer)
        start = time.perf_counter()  # quantizing is done once, before
    options = {"INFERENCE_PRECISION_HINT": "f32"} if how == "float32" else {}
    hint = "LATENCY" if len(texts) == 1 else "THROUGHPUT"
    compiled = core.compile_model(model, "CPU", options | {"PERFORMANCE_HINT": hint})
    queue = openvino.AsyncInferQueue(compiled, compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
    found = np.empty((len(texts), compiled.output(0).partial_shape[2].get_length()), np.float32)

    def keep(request: openvino.InferRequest, call: tuple[np.ndarray, np.ndarray]) -> None:
        rows, mask = call
        found[rows] = pool(request.get_output_tensor(0).data, mask)

    queue.set_callback(keep)
    single = compiled.create_infer_request()

    def encode() -> np.ndarray:
        calls = batches(texts, tokenizer)
        if len(texts) == 1:
            ((_, inputs),) = calls
            found[:] = pool(single.infer(inputs)[0], inputs["attention_mask"])
            return found
        for rows, inputs in calls:
            queue.start_async(inputs, (rows, inputs["attention_mask"]))
        queue.wait_all()
        return found

    serve_vectors(folder, encode, start)


if __name__ == "__main__":
    main()
