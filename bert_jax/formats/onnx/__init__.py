"""ONNX: a model as a graph of standard operators, which onnxruntime, OpenVINO and transformers.js run."""
