"""What `python -m train.prepare` is made of.

Imports no JAX.
"""
