"""Other people's files, in and out: load, read, convert, write, the hub.

NumPy only, but for `load`, which makes JAX arrays where it is asked to.
"""
