"""The parts of `python -m train.prepare`.

Nothing here imports JAX.
"""
