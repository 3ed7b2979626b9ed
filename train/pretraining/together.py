"""Members of a sweep that train side by side in one program, and the average of their weights.

Branches of one trunk are such members: each goes on from the trunk's whole state (`init=`, `init_optimizer`,
`init_step`) through its own decay, and `merge=average` averages where they end (https://arxiv.org/abs/2203.05482).
"""

from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import json_text, write_whole
from bert_jax.formats.training_record import table
from bert_jax.formats.write import save_pretrained
from bert_jax.training.average import averaged
from bert_jax.training.many import by_run, compile_many_train_step, one_of, runs_mesh, stacked, stacked_shapes
from bert_jax.training.sharding import to_host
from bert_jax.training.step import TrainState, abstract_state
from train.pretraining.job import PretrainingJob
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import head_for
from train.run.config import differing_fields, to_json
from train.run.directory import RunDirectory
from train.run.job import Log, Metrics, Untimed, prefetched_batches
from train.run.log import SilentLog

MAY_DIFFER = ("seed", "optimizer.learning_rate", "optimizer.decay_share")
_ALONE_ONLY = ("stop_after", "hopeless_after", "teacher", "rollbacks", "track")
# What was measured to pay (benchmarks/RESULTS.md, eight models at once): hidden size, and positions of a batch.
_PAYS_UP_TO = (128, 512)


def why_not_together(configs: Mapping[str, PretrainConfig]) -> str | None:
    """What keeps these members from one program; None: nothing does.

    Args:
        configs: name -> config of each member.
    """
    first, *others = configs.values()
    for name, config in zip(list(configs)[1:], others, strict=True):
        differing = [one for one in differing_fields(to_json(first), to_json(config)) if one not in MAY_DIFFER]
        if differing:
            return f"member {name} differs in {differing[0]}; only {', '.join(MAY_DIFFER)} may differ in one program"
    if found := next((one for one in _ALONE_ONLY if getattr(first, one) not in (None, 0)), None):
        return f"{found} is for members that train one after the other; leave it out"
    if len({config.optimizer.decay_share for config in configs.values()}) > 1:
        optimizer = first.optimizer
        if optimizer.schedule != "stable" or optimizer.clock != "steps":
            return "optimizer.decay_share may differ with optimizer.schedule=stable optimizer.clock=steps"
    return None


def pays(config: PretrainConfig) -> bool:
    """Whether one program for all members is known to be faster: their products are too small for the machine."""
    hidden, positions = _PAYS_UP_TO
    return config.model.hidden_size <= hidden and all(of_batch <= positions for _, of_batch in config.batches)


class MemberLog(SilentLog):
    """A member's log: it keeps the rows of its metrics.jsonl, which the job writes and its checkpoints have."""

    def __init__(self, name: str, say: Callable[[str], None] | None = None):
        self.rows: list[dict[str, Any]] = []
        self._name, self.tell = name, say

    def say(self, line: str) -> None:
        if self.tell is not None:
            self.tell(f"{self._name}: {line}")

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        finite = {name: value if np.isfinite(value) else None for name, value in values.items()}
        self.rows.append({"kind": kind, "step": step, **finite})


class TogetherJob(Untimed):
    """A `Job`: trains the members' jobs in one program. Arrays of its state start with an axis R, the members.

    Each member has its own seed, learning rate, metrics.jsonl and export/. A member whose steps stay non-finite keeps
    its last good weights, counts as failed and is left out of the average, while the others go on.
    """

    rollbacks = 0

    def __init__(self, members: Mapping[str, tuple[PretrainingJob, RunDirectory]], export: Path | None):
        """
        Args:
            members: name -> its job and its directory.
            export: where the average of the members' weights is written; None: they are not averaged.
        """
        self._members, self._export = members, export
        self._jobs = [job for job, _ in members.values()]
        first = self._first = self._jobs[0]
        for job in self._jobs[1:]:
            job.evaluate_like(first)
        config = self.config = first.config
        self.mesh = runs_mesh(len(members))
        self._one = abstract_state(first.model, first.tx)
        self.target = stacked_shapes(self._one, len(members), self.mesh)
        optimizers = [job.config.optimizer for job in self._jobs]
        decays = np.array([[one.total_steps - one.decay_steps, one.total_steps] for one in optimizers], np.int32)
        differ = len({one.decay_share for one in optimizers}) > 1
        self._more = (self._by_member(decays),) if differ else ()
        self._step_in_parts = cache(
            lambda parts: compile_many_train_step(
                *(first.model, config.optimizer, self.mesh),
                accumulation=parts,
                batches=config.batches,
                factors=config.rates,
                decays_late=differ,
            )
        )
        self._keys = jax.random.wrap_key_data(
            self._by_member(np.stack([jax.random.key_data(job.dropout_key) for job in self._jobs]))
        )
        self._peaks = self._by_member(np.array([one.learning_rate for one in optimizers], np.float32))
        self._rows = {name: MemberLog(name) for name in members}
        self._logged = 0  # the last step that is in a train row

    def _by_member(self, values: np.ndarray) -> jax.Array:
        return by_run(lambda number: values[number], len(values), self.mesh)

    def first_state(self) -> TrainState:
        states = [jax.device_get(job.first_state()) for job in self._jobs]
        self._logged = int(states[0].step)
        return stacked(states, self.mesh)

    def resume(self, facts: dict[str, Any]) -> None:
        self._logged = facts["logged"]
        for name, rows in facts["rows"].items():
            self._rows[name].rows = list(rows)
        for job, own in zip(self._jobs, facts["members"], strict=True):
            job.resume(own)

    def facts(self) -> dict[str, Any]:
        return self._first.facts() | {
            "logged": self._logged,
            "rows": {name: log.rows for name, log in self._rows.items()},
            "members": [{"lowest_losses": job.facts()["lowest_losses"]} for job in self._jobs],
        }

    def train_step(self, state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, dict[str, jax.Array]]:
        _, rows, length = batch["input_ids"].shape
        step = self._step_in_parts(self.config.parts_of(length, rows, 1))
        return step(state, batch, self._keys, self._peaks, self._first.objective, *self._more)

    def on_start(self, log: Log, *, resumed: bool) -> None:
        log.say(f"{len(self._jobs)} members in one program, on {self.mesh.size} devices")
        self._first.on_start(log, resumed=resumed)
        for own in self._rows.values():
            own.tell = log.say
        self._write()

    def batches(self, step: int) -> Generator[tuple[dict[str, Any], float]]:
        while step < self.last_step:
            start, phase = self.config.phase_at(step)
            source = _Stacked([job.rows_of(start, phase) for job in self._jobs], self._by_member)
            yield from prefetched_batches(source, step - start, phase.steps)
            step = start + phase.steps

    def summarise(self, rows: list[Metrics]) -> dict[str, float]:
        """Adds a row to each member's metrics; returns the mean of their losses."""
        self._logged += len(rows)
        found = []
        for number, (job, own) in enumerate(zip(self._jobs, self._rows.values(), strict=True)):
            found.append(job.summarise([{name: value[number] for name, value in row.items()} for row in rows]))
            own.record("train", self._logged, found[-1])
        return _means(found)

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        if not self._failed(metrics["skipped_in_a_row"]).all():
            return None
        return (
            f"in each of the {len(self._jobs)} members {self.config.max_skipped_in_a_row} or more steps in a row up to "
            f"step {step:,} had a non-finite loss or gradient; earlier checkpoints are kept. Lower "
            "optimizer.learning_rate"
        )

    def _failed(self, skipped_in_a_row: Any) -> np.ndarray:
        return np.asarray(skipped_in_a_row) >= self.config.max_skipped_in_a_row

    def evaluate(self, state: TrainState, step: int, log: Log) -> None:
        """Scores each member as it is scored alone, and the average of the weights if they are merged."""
        found = []
        for number, (job, own) in enumerate(zip(self._jobs, self._rows.values(), strict=True)):
            before = len(own.rows)
            job.evaluate(self._state_of(state, number), step, own)
            found += [row["mlm_loss"] for row in own.rows[before:] if row.get("mlm_loss") is not None]
        scores = {"mlm_loss": float(np.mean(found)), "mlm_loss_best": min(found)} if found else {}
        if scores and self._export is not None:
            _, phase = self.config.phase_at(step - 1)
            scores |= self._first.scores_of_average(self._average(state), phase)
        if scores:
            log.record("eval", step, scores)
        self._write()

    def _state_of(self, state: TrainState, number: int) -> TrainState:
        job = self._jobs[number]
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), one_of(state, number), job.target)

    def _average(self, state: TrainState) -> Any:
        """The uniform mean of the weights that the members export, added up in float64."""
        good = ~self._failed(to_host(state.skipped_in_a_row))
        average = averaged(state.opt_state)
        return mean_of(to_host(state.params if average is None else average), good)

    def _write(self) -> None:
        for (_, run), own in zip(self._members.values(), self._rows.values(), strict=True):
            write_whole(run.path / "metrics.jsonl", "".join(json_text(row) + "\n" for row in own.rows))

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Exports each member, and the average of their weights."""
        self._write()
        failed = self._failed(to_host(state.skipped_in_a_row))
        for number, (job, own) in enumerate(zip(self._jobs, self._rows.values(), strict=True)):
            if not failed[number]:
                job.finish(self._state_of(state, number), step, own)
        data = self._first.data
        if self._export is None or not self.config.export_at_end or data.tokenizer is None:
            return
        names = [name for name, out in zip(self._members, failed, strict=True) if not out]
        card = table(
            {"weights": f"the uniform average of {len(names)} members of a sweep", "members": ", ".join(names)}
        )
        whole, head = self._average(state), head_for(data)
        save_pretrained(self._export, self.config.model, whole, data.tokenizer, head=head, step=step, card=card)
        log.say(f"exported the average of {len(names)} members to {self._export}")


class _Stacked:
    """The members' batches of a phase, stacked: arrays [R, B, ...]."""

    def __init__(self, sources: list[Any], by_member: Callable[[np.ndarray], jax.Array]):
        self._sources, self._by_member = sources, by_member

    def batch(self, step: int) -> dict[str, jax.Array]:
        made = [source.batch(step, None) for source in self._sources]
        return {name: self._by_member(np.stack([one[name] for one in made])) for name in made[0]}


def mean_of(trees: Any, good: np.ndarray) -> Any:
    """The mean over axis 0 of NumPy leaves [R, ...], of those that are good (bool [R]): added in float64, float32."""
    return jax.tree.map(lambda leaf: leaf[good].mean(axis=0, dtype=np.float64).astype(np.float32), trees)


def _means(found: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each value over the members in which it is finite."""
    means = {}
    for name in found[0]:
        finite = [one[name] for one in found if name in one and np.isfinite(one[name])]
        if finite:
            means[name] = float(np.mean(finite))
    return means


def check_together(configs: Mapping[str, PretrainConfig], word: str) -> None:
    """Raises UserError if these members cannot train in one program."""
    if why := why_not_together(configs):
        raise UserError(f"{word}: {why}, or say sweep_in=turn")
