"""pytorch_model.bin, read without PyTorch and without running its pickle."""
