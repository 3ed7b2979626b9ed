"""Fine-tunes a copy of a run on a task while it pretrains, as `python -m train.finetune` does with the saved model."""

import dataclasses
from functools import cached_property
from typing import Any, NamedTuple

import jax

from bert_jax.config import BertConfig
from bert_jax.model.heads import HEADS
from bert_jax.runtime.hosts import on_first_process
from bert_jax.training.mesh import make_mesh
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.optimizer_config import OptimizerConfig
from bert_jax.training.prediction import PlannedBatches, Predictor
from bert_jax.training.schedules import make_schedule
from bert_jax.training.sharding import batch_shardings
from bert_jax.tree import flatten, unflatten
from train.finetuning.job import evaluation_order, order_of
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import TaskData
from train.finetuning.tasks.table import open_task
from train.pretraining.mixture import DataSource
from train.pretraining.recipe import PretrainConfig
from train.pretraining.scoring.probes import files_of_task
from train.run.adopted import place_on_mesh
from train.run.job import ModelJob

MAX_LENGTH = 128


class FinetuneTask(NamedTuple):
    """A fine-tuning run's config without its model, and the task with its files read and encoded."""

    config: FinetuneConfig
    data: TaskData


def read_finetuning(config: PretrainConfig, data: DataSource) -> FinetuneTask | None:
    """The task that `finetune=` names, read with the tokenizer of the data; None without it.

    Raises:
        FileNotFoundError, UserError: it is not there, or is damaged.
    """
    if config.finetune is None or data.tokenizer is None:
        return None
    name, train, dev = files_of_task(config.finetune)
    settings = FinetuneConfig(
        task=name,
        train=str(train),
        dev=str(dev),
        epochs=config.finetune_epochs,
        optimizer=OptimizerConfig(learning_rate=config.finetune_rate, warmup_steps=0, bias_correction=True),
        max_length=min(MAX_LENGTH, config.model.longest_input),
    )
    return FinetuneTask(settings, open_task(settings, data.tokenizer))


class Finetuned:
    """A task, and copies of a model to fine-tune on it, in float32 on the first device of the first process.

    Each starts with the same random head, sees the examples in the same order and is scored after its last step, so
    scores of one run differ by its weights alone. Compiled programs serve all evaluations of a run.

    Args:
        task: what `read_finetuning` returned.
        config: the pretrained model's.
        examples: training examples to use, from the beginning of the file; None: all.
    """

    def __init__(self, task: FinetuneTask, config: BertConfig, examples: int | None):
        self._data, self._lengths = task.data, task.data.train.lengths[:examples]
        labels, kind = task.data.labels, task.data.problem_type
        # A score does not depend on the machine.
        model = config.replace(dtype="float32", attention="auto", labels=labels, problem_type=kind)
        self._config = dataclasses.replace(task.config, model=model).for_examples(len(self._lengths))

    def __call__(self, params: Any) -> dict[str, float]:
        """The loss on the dev file and GLUE's scores as metrics, such as `finetune_sst2_accuracy`.

        All processes must call it.

        Args:
            params: the pretrained model's parameters, on this host.
        """
        return on_first_process(lambda: self._score(params["bert"]))

    def _score(self, encoder: Any) -> dict[str, float]:
        job, config = self._job, self._config
        state = job.fresh_state()
        start = flatten(state.params)
        start |= {path: leaf for path, leaf in flatten({"bert": encoder}).items() if path in start}
        state = dataclasses.replace(state, params=place_on_mesh(unflatten(start), job.target.params, "this run"))
        planned = PlannedBatches(self._data.train, order_of(config, self._lengths).batch)
        batches = MeshBatches(planned, config.batch, batch_shardings(job.mesh))
        for step in range(config.total_steps):
            state, _ = job.train_step(state, batches.batch(step))
        dev = self._data.evaluations[0]
        outputs, loss = self._predict(state.params, dev.encoded, evaluation_order(config, self._data, dev))
        found = ({} if loss is None else {"loss": loss}) | self._data.score(dev, outputs)
        return {f"finetune_{config.task}_{name}": float(value) for name, value in found.items()}

    @cached_property
    def _job(self) -> ModelJob:
        config = self._config
        mesh, model = make_mesh(devices=jax.local_devices()[:1]), HEADS[self._data.head](config.model)
        optimizer = config.optimizer
        return ModelJob(config, mesh, model, self._data.objective, make_optimizer(optimizer), make_schedule(optimizer))

    @cached_property
    def _predict(self) -> Predictor:
        return Predictor(self._job.model, self._job.mesh, self._data.objective)
