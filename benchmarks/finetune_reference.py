"""Fine-tuning here and in transformers: the same task, weights, batches, recipe and schedule.

    python -m benchmarks.finetune_reference mrpc glue/MRPC --init MODEL               the losses of 20 steps, no dropout
    python -m benchmarks.finetune_reference wnut17 ner/wnut17 --init MODEL --seeds 3  the final scores, dropout on

DATA is a folder in the task's own layout, MODEL a folder or a hub id that both sides read. Ours is the training step of
`train.finetune` on its own batches; theirs is transformers' class with its own loss, torch's AdamW with bias correction
and transformers' linear schedule, on the same batches. Both start from the same weights, including a newly initialised
head. Scores are the task's own, computed from each side's logits. For question answering, transformers' loss counts
padding as a possible position of the answer, so the losses are compared on windows without padding.

--words      fields of the recipe, as train.finetune takes them: max_length=64 epochs=4 optimizer.learning_rate=1e-4
--seeds      train to the end with this many seeds (for head, example order and dropout), dropout on
--side       only the runs of one side, bert_jax or transformers, so that two processes can share the work
--results    finished runs are appended to this file
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.finetune_side import Theirs
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.load import load_tokenizer
from bert_jax.formats.source import open_source
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import make_mesh
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.prediction import Collected, Predictor
from bert_jax.training.step import abstract_state, compile_train_step, init_state
from train.finetuning.job import evaluation_order, order_of
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.start import adopted_model, starting_parameters
from train.finetuning.tasks.data import TaskData
from train.finetuning.tasks.table import open_task
from train.run.config import override

STEPS = 20
SIDES = ("bert_jax", "transformers")
ADAMW = OptimizerConfig(
    learning_rate=5e-5, warmup_steps=0, bias_correction=True, eps=1e-8, decay_from="warmup", eps_placement="outside"
)


def recipe(task: str, data: str, init: str, words: dict[str, str], *, dropout: bool) -> FinetuneConfig:
    """torch's AdamW and transformers' schedule, with `words` as train.finetune takes them."""
    config = FinetuneConfig(task=task, data=data, init=init, optimizer=ADAMW)
    if not dropout:
        words = words | {f"model.{name}": "0.0" for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    return override(config, words)


def opened(config: FinetuneConfig, given: frozenset[str]) -> tuple[FinetuneConfig, TaskData, Tokenizer]:
    """The task, and the config completed by it."""
    source = open_source(str(config.init))
    tokenizer = load_tokenizer(source)
    assert tokenizer is not None
    task = open_task(config, tokenizer)
    model = adopted_model(config, given, task.labels, task.problem_type, source.config)
    return dataclasses.replace(config, model=model).for_examples(len(task.train)), task, tokenizer


class Ours:
    """`train.finetune`'s side: its initial weights, step and batches."""

    def __init__(self, config: FinetuneConfig, task: TaskData, tokenizer: Tokenizer):
        self.config, self._task, self._tokenizer = config, task, tokenizer
        self._model, self._mesh = HEADS[task.head](config.model), make_mesh(config.mesh)
        tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
        init_key, self._key = jax.random.split(jax.random.key(config.seed))
        fresh = init_state(init_key, self._model, tx, mesh=self._mesh)
        target = abstract_state(self._model, tx, mesh=self._mesh)
        source = open_source(str(config.init))
        (params,) = starting_parameters(config, source, task.head, target.params, [fresh.params])
        self._state = dataclasses.replace(fresh, params=params)
        self._step = compile_train_step(self._model, tx, schedule, mesh=self._mesh, objective=task.objective)
        self._predict = Predictor(self._model, self._mesh, task.objective)

    def save(self, folder: Path) -> None:
        params = jax.device_get(self._state.params)
        save_pretrained(folder, self.config.model, params, self._tokenizer, head=self._task.head)

    def step(self, batch: dict[str, np.ndarray]) -> float:
        self._state, metrics = self._step(self._state, batch, self._key, self._task.objective)
        return float(metrics["loss"])

    def score(self) -> dict[str, float]:
        split = self._task.evaluations[0]
        plans = evaluation_order(self.config, self._task, split)
        outputs, _ = self._predict(self._state.params, split.encoded, plans)
        return self._task.score(split, outputs)


def their_score(theirs: Theirs, config: FinetuneConfig, task: TaskData) -> dict[str, float]:
    """The task's own scores of transformers' logits."""
    split = task.evaluations[0]
    plans = evaluation_order(config, task, split)
    collected = Collected(len(split.encoded), max(plan.length for plan in plans))
    for plan, outputs in zip(plans, theirs.outputs(split.encoded, plans), strict=True):
        whole = {name: np.resize(values, (len(plan.counts), *values.shape[1:])) for name, values in outputs.items()}
        collected.add(plan, whole)
    return task.score(split, collected.outputs)


def without_padding(examples: Encoded, length: int) -> Encoded:
    """The rows that need no padding in a batch."""
    full = np.flatnonzero(examples.row_lengths == length)
    starts = np.cumsum(examples.row_lengths) - examples.row_lengths
    index = (starts[full][:, None] + np.arange(length)).ravel()
    return dataclasses.replace(
        examples,
        tokens={name: values[index] for name, values in examples.tokens.items()},
        row_lengths=examples.row_lengths[full],
        targets={name: values[full] for name, values in examples.targets.items()},
    )


def same_losses(config: FinetuneConfig, task: TaskData, tokenizer: Tokenizer, steps: int = STEPS) -> np.ndarray:
    """The losses of both sides, float64 [steps, 2], dropout off."""
    examples = task.train
    if task.head == "question-answering":
        examples = without_padding(examples, config.max_length)
        config = config.for_examples(len(examples))
    order = order_of(config, examples.lengths)
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(config, task, tokenizer)
        ours.save(Path(folder) / "start")
        theirs = Theirs(config.optimizer, task.head, Path(folder) / "start", seed=0)
        batches = (examples.batch(order.batch(step)) for step in range(steps))
        return np.array([(ours.step(batch), theirs.step(batch)) for batch in batches])


def scores_of(
    wanted: tuple[str, ...], config: FinetuneConfig, task: TaskData, tokenizer: Tokenizer
) -> dict[str, dict[str, Any]]:
    """Train one seed to the end on these sides, from the same weights: scores and seconds of training."""
    order = order_of(config, task.train.lengths)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(config, task, tokenizer)
        ours.save(Path(folder) / "start")
        theirs = Theirs(config.optimizer, task.head, Path(folder) / "start", seed=config.seed)
        sides = {
            "bert_jax": (ours.step, ours.score),
            "transformers": (theirs.step, lambda: their_score(theirs, config, task)),
        }
        for name in wanted:
            step, score = sides[name]
            begin = time.perf_counter()
            for number in range(config.total_steps):
                loss = step(task.train.batch(order.batch(number)))
                if number % 50 == 0:
                    print(
                        f"{name}, seed {config.seed}, step {number:,} of {config.total_steps:,}: loss {loss:.4f}",
                        file=sys.stderr,
                    )
            found[name] = {"seconds": time.perf_counter() - begin, "scores": score()}
            print(f"{name}, seed {config.seed}: {found[name]}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("data")
    parser.add_argument("--init", required=True)
    parser.add_argument("--words", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    words = dict(word.split("=", 1) for word in arguments.words)
    dropout = arguments.seeds > 0
    config = recipe(arguments.task, arguments.data, arguments.init, words, dropout=dropout)
    no_dropout = () if dropout else ("model.hidden_dropout_prob", "model.attention_probs_dropout_prob")
    config, task, tokenizer = opened(config, frozenset([*words, *no_dropout]))
    if not dropout:
        losses = same_losses(config, task, tokenizer)
        worst = np.abs(losses[:, 0] - losses[:, 1]).max()
        print(f"{arguments.task}: loss {losses[0, 0]:.4f} to {losses[-1, 0]:.4f}, at most {worst:.1e} apart")
        return
    rows, sides = [], (arguments.side,) if arguments.side else SIDES
    for seed in range(arguments.seeds):
        row = {"task": arguments.task, "seed": seed, "words": words}
        row |= scores_of(sides, dataclasses.replace(config, seed=seed), task, tokenizer)
        rows.append(row)
        if arguments.results:
            with open(arguments.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    for side in sides:
        values = np.array([row[side]["scores"][task.metric] for row in rows])
        spread = values.std(ddof=1) if len(values) > 1 else float("nan")
        seconds = np.median([row[side]["seconds"] for row in rows])
        print(f"{arguments.task}, {side}: {task.metric} {values.mean():.4f} ± {spread:.4f} ({seconds:.0f} s a run)")


if __name__ == "__main__":
    main()
