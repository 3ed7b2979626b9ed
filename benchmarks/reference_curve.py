"""Pretraining here and in transformers: from the same weights, with the same batches, recipe and schedule.

    python -m benchmarks.reference_curve DATA
    python -m benchmarks.reference_curve DATA --dropout --steps 2000 --batch 8 --learning-rate 1e-3 --seeds 3

DATA is a directory made by `python -m train.prepare`; the model is BERT-tiny in float32. Our side is the training
program's own step on its own batches; theirs is `reference_side`, on an export of our initial weights and on the same
batches. Warm-up takes a tenth of the steps, then comes linear decay. Without dropout, the losses of each step are
compared. With dropout, the two sides necessarily draw different masks, so the held-out masked-LM losses after the last
step are compared, over seeds. A seed changes the initial weights (the same on both sides) and the dropout; the batches
are the same for all. Each side also evaluates the other side's final weights.

--rule       google: the published rule, without bias correction; torch: unmodified `AdamW` and transformers' schedule
--norm       the type in which torch sums the gradient norm: float64, or float32 as `clip_grad_norm_` does
--sides      which to run: bert_jax, transformers; control: our side without dropout, which shows the held-out loss if
             dropout had no effect; moved: their side with each initial weight perturbed by a random relative 1e-7,
             which shows how the recipe amplifies rounding
--results    finished runs are appended to this file and not run again; one process per side may share it
"""

import argparse
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers

from benchmarks.reference_side import Batch, Theirs
from bert_jax.config import BertConfig
from bert_jax.formats.load import load_arrays
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import BertForPreTraining
from bert_jax.runtime.cpu import keep_freed_memory
from bert_jax.training.mesh import make_mesh
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import compile_eval_step, compile_train_step, init_state
from train.pretraining.fitted_model import fit_to_data
from train.pretraining.objective import objective_of, pretraining_of
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.scoring.held_out import Unigram, evaluate
from train.pretraining.source import PreparedData

RULES: dict[str, dict[str, Any]] = {
    "google": {},
    "torch": {"bias_correction": True, "eps": 1e-8, "decay_from": "warmup"},
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OURS, THEIRS, CONTROL, MOVED = SIDES = ("bert_jax", "transformers", "control", "moved")


def recipe(data: PreparedData, steps: int, batch: int, *, dropout: bool, rule: str, **rates: Any) -> PretrainConfig:
    """The recipe of both sides. `rates`: fields of the optimizer, such as learning_rate."""
    still = {} if dropout else NO_DROPOUT
    config = PretrainConfig(
        model=BertConfig.preset("tiny", **still),
        optimizer=OptimizerConfig(warmup_steps=steps // 10, **RULES[rule], **rates),
        phases=(Phase(data.lengths[0], batch, steps),),
        data=str(data.path),
        eval_batches=2_048 // batch,
    )
    return dataclasses.replace(config, model=fit_to_data(config, data, frozenset()))


class Ours:
    """The training program's own step, and its evaluation."""

    def __init__(self, config: PretrainConfig, data: PreparedData, seed: int):
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        model = BertForPreTraining(config.model)
        tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
        init_key, self._dropout_key = jax.random.split(jax.random.key(seed))
        self._config = config
        self._state = init_state(init_key, model, tx, mesh=mesh)
        self._objective = objective_of(config, data, mesh)
        self._step = compile_train_step(model, tx, schedule, mesh=mesh, objective=self._objective)
        self._sums = compile_eval_step(model, mesh=mesh, pretraining=pretraining_of(config, mesh))

    def step(self, batch: Batch) -> float:
        self._state, metrics = self._step(self._state, batch, self._dropout_key, self._objective)
        return float(metrics["loss"])

    def sums(self, batch: Batch) -> dict[str, Any]:
        return self._sums(self._state.params, batch)

    def save(self, folder: Path) -> None:
        save_pretrained(folder, self._config.model, jax.device_get(self._state.params), None, head="pretraining")

    def load(self, folder: Path) -> None:
        _, params, report = load_arrays(folder, head="pretraining")
        report.check()
        self._state = dataclasses.replace(self._state, params=params)


def run(side: str, config: PretrainConfig, data: PreparedData, seed: int, norm_in: str = "float64") -> dict[str, Any]:
    """Run all steps of one side from the initial weights of `seed`, then the held-out evaluation by both sides."""
    if side == CONTROL:
        config = dataclasses.replace(config, model=config.model.replace(**NO_DROPOUT))
    batches, unigram = data.batches(config, config.phases[0]), Unigram.of(data.unigram_counts)
    with tempfile.TemporaryDirectory() as root:
        ours = Ours(config, data, seed)
        ours.save(Path(root) / "start")
        theirs = Theirs(config.optimizer, Path(root) / "start", seed, getattr(torch, norm_in))
        if side == MOVED:
            theirs.move(1e-7)
        trained, other = (theirs, ours) if side in (THEIRS, MOVED) else (ours, theirs)
        losses, wall, cpu = [], time.perf_counter(), time.process_time()
        for step in range(config.total_steps):
            losses.append(trained.step(batches.batch(step)))
            if (step + 1) % 100 == 0:
                print(f"{side}, seed {seed}, step {step + 1:,}: loss {np.mean(losses[-100:]):.4f}", flush=True)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        trained.save(Path(root) / "end")
        other.load(Path(root) / "end")
    held_out, swapped = (
        evaluate(lambda judge, batch: judge.sums(batch), judge, held_out_batches(config, data), unigram)
        for judge in (trained, other)
    )
    return {
        "side": side,
        "seed": seed,
        "losses": losses,
        "wall": wall,
        "cpu": cpu,
        "held_out": held_out,
        "held_out_by_the_other": swapped,
    }


def held_out_batches(config: PretrainConfig, data: PreparedData) -> Iterator[Batch]:
    if found := data.evaluation_batches(config, config.phases[0]):
        batches, count = found
        yield from map(batches.batch, range(count))


def report(sides: dict[str, list[dict[str, Any]]], dropout: bool) -> None:
    """Print the comparison of both sides' finished runs, in the order of seeds."""
    reference = sides[THEIRS]
    for side in (OURS, CONTROL, MOVED):
        pairs = list(zip(sides[side], reference, strict=False))
        for mine, other in pairs:
            print(
                f"seed {mine['seed']}: held-out masked-LM loss {mine['held_out']['mlm_loss']:.5f} ({side}), "
                f"{other['held_out']['mlm_loss']:.5f} ({THEIRS}), {mine['held_out']['unigram_loss']:.3f} (unigram); "
                f"CPU {mine['cpu']:,.0f} s and {other['cpu']:,.0f} s"
            )
            if not dropout:
                apart = np.abs(np.subtract(mine["losses"], other["losses"]))
                print(
                    f"        loss {mine['losses'][0]:.4f} to {mine['losses'][-1]:.4f} in {len(apart):,} steps: "
                    f"{apart.max():.1e} apart at most (step {apart.argmax():,}), {apart.mean():.1e} on average"
                )
        values = np.array([[r["held_out"]["mlm_loss"] for r in pair] for pair in pairs])
        if len(values) > 1:
            apart = values[:, 0] - values[:, 1]
            print(
                f"means {values[:, 0].mean():.5f} ({side}) and {values[:, 1].mean():.5f} ({THEIRS}): difference "
                f"{apart.mean():+.5f}, standard error {apart.std(ddof=1) / math.sqrt(len(apart)):.5f} (seeds paired)"
            )
    judged = [(r["held_out"], r["held_out_by_the_other"]) for records in sides.values() for r in records]
    print(f"two evaluators of the same weights: {max(abs(a['mlm_loss'] - b['mlm_loss']) for a, b in judged):.1e} apart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--rule", choices=RULES, default="google")
    parser.add_argument("--norm", choices=("float64", "float32"), default="float64")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sides", default=f"{OURS},{THEIRS}")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    data = PreparedData(options.data)
    if data.objective == "none":
        parser.error(f"{options.data}: was prepared without sentence pairs; prepare it with --objective nsp")
    names = ("steps", "batch", "learning_rate", "rule", "norm", "dropout")
    settings = {name: getattr(options, name) for name in names} | {"data": data.fingerprint}
    recipe_options = {"dropout": options.dropout, "rule": options.rule, "learning_rate": options.learning_rate}
    config = recipe(data, options.steps, options.batch, **recipe_options)
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for seed in range(options.seeds):
        for side in options.sides.split(","):
            record = finished(options.results, settings, side, seed)
            if record is None:
                record = run(side, config, data, seed, options.norm)
                if options.results:
                    with options.results.open("a") as file:
                        file.write(json.dumps({"settings": settings} | record) + "\n")
            sides[side].append(record)
    report(sides, options.dropout)


def finished(file: Path | None, settings: dict[str, Any], side: str, seed: int) -> dict[str, Any] | None:
    if file is None or not file.exists():
        return None
    wanted = {"settings": settings, "side": side, "seed": seed}
    records = map(json.loads, file.read_text().splitlines())
    return next((record for record in records if wanted.items() <= record.items()), None)


if __name__ == "__main__":
    main()
