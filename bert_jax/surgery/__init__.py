"""Surgery: functions from a config and its parameters to a new config and parameters, of NumPy or JAX arrays."""
