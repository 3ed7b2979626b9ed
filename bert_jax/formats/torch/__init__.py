"""Read pytorch_model.bin without PyTorch and without running its pickle."""
