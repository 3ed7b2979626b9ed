"""Read and write other libraries' model files: load, convert, save, download from the hub.

NumPy only, except `load`, which makes JAX arrays.
"""
