"""From batches to a trained tree: schedules and optimizers, sharding, the training step, checkpoints."""
