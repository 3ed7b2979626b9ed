"""Training: objectives, schedules, optimizers, sharding, the training step, prediction, distillation, checkpoints."""
