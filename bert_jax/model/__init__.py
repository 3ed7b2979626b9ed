"""The model: functions on arrays that compute, and thin Flax modules that name and initialise the parameters."""
