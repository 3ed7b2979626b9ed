"""Other people's files, in and out, with NumPy alone: nothing here imports JAX."""
