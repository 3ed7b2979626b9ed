"""What a run says of itself: the console, metrics.jsonl, TensorBoard, curves.png, Weights & Biases and MLflow."""
