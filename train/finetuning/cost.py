"""How long a fine-tuning run takes, before it starts: a training step of the most frequent length is timed."""

import time
from collections import Counter

import jax

from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.prediction import PlannedBatches
from bert_jax.training.sharding import batch_shardings
from train.finetuning.job import FinetuningJob, evaluation_order, order_of
from train.finetuning.tasks.data import TaskData
from train.run.step_cost import EVALUATION


def run_seconds(job: FinetuningJob, task: TaskData) -> float:
    """About how many seconds the run takes on this machine, without compiling and reading the data.

    It compiles the step for the most frequent length of a batch, trains random parameters for two steps, and times the
    second. Other lengths, and evaluations, take time in proportion to their tokens. A sweep takes the time of its runs
    one after another; on an accelerator it may take less.
    """
    config = job.config
    order = order_of(config, task.train.lengths)
    epoch = range(min(config.total_steps, order.steps_per_epoch))
    lengths = Counter(order.batch(step).length for step in epoch)
    length = max(lengths, key=lambda length: (lengths[length], length))
    step = next(step for step in epoch if order.batch(step).length == length)
    planned = PlannedBatches(task.train, order.batch)
    batch = MeshBatches(planned, config.batch, batch_shardings(job.mesh)).batch(step)
    state, started = job.fresh_state(), 0.0
    for _ in range(2):
        started = time.monotonic()
        state, metrics = job.train_step(state, batch)
        jax.block_until_ready(metrics)
    second_per_token = (time.monotonic() - started) / (config.batch * length)
    trained = config.batch * config.total_steps * sum(n * count for n, count in lengths.items()) / len(epoch)
    evaluated = sum(
        config.eval_batch * plan.length for split in task.evaluations for plan in evaluation_order(config, task, split)
    ) * -(-config.total_steps // config.eval_every)
    runs = config.seeds * max(1, len(config.learning_rates))
    return runs * second_per_token * (trained + EVALUATION * evaluated)
