"""From text to batches: tokenizer, examples, shards, masks. NumPy only: nothing here imports JAX."""
