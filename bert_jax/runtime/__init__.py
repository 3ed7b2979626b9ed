"""Settings for JAX and the process: memory, devices, the cache of compiled programs. Independent of BERT."""
