"""Surgery: functions that take a config and parameters (NumPy or JAX arrays) and return a changed config and tree."""
