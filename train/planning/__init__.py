"""The parts of `python -m train.plan`, which compiles the real step for a machine that one does not have."""
