"""The parts of `python -m train.doctor`.

Nothing here imports JAX.
"""
