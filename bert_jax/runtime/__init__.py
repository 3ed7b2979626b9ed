"""What is set before and around JAX: memory, devices, the cache of compiled programs.

Nothing here knows what a BERT is.
"""
