"""A model as `jax.export` programs in a folder, and how such a folder is run.

Running needs neither Flax nor the model's code.
"""
