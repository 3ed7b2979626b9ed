"""Exports a model as a folder of `jax.export` programs, and runs such a folder without Flax and the model's code."""
