"""Who computes a pipeline's outputs: XLA, OpenVINO or onnxruntime, each behind the same interface."""

RUNTIMES = ("auto", "xla", "openvino", "onnxruntime")
