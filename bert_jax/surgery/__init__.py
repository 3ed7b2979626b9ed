"""Surgery: a config and its parameters in, another config and its parameters out; NumPy or JAX arrays alike."""
