"""What a BERT is: free functions on arrays, and thin Flax modules that name and initialise the parameters."""
