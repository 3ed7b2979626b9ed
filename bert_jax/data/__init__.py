"""From text to batches: text, vocabulary, tokenizer, pretraining data, data of tasks.

NumPy only: nothing here imports JAX.
"""
