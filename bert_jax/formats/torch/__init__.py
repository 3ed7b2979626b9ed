"""pytorch_model.bin, read without PyTorch and without running its pickle.

Reading only: safetensors is what is written.
"""
