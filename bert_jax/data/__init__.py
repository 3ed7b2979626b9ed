"""From text to batches: text, vocabulary, tokenizer, pretraining data, task data.

NumPy only: nothing here imports JAX.
"""
