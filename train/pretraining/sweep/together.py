"""Members of a sweep that train side by side in one program, and the average of their weights.

Branches of one trunk are such members: each goes on from the trunk's whole state (`init=`, `init_optimizer`,
`init_step`) through its own decay, and `merge=average` averages where they end (https://arxiv.org/abs/2203.05482).
"""

import io
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.formats.training_record import table
from bert_jax.formats.write import save_pretrained
from bert_jax.training.many import by_run, compile_many_train_step, one_of, runs_mesh, stacked, stacked_shapes
from bert_jax.training.sharding import to_host
from bert_jax.training.step import TrainState, abstract_state
from train.pretraining.job import PretrainingJob, exported_weights
from train.pretraining.mixture import head_for
from train.pretraining.recipe import PretrainConfig
from train.pretraining.sweep.members import SweepWords
from train.run.config import differing_fields, to_json
from train.run.directory import RunDirectory
from train.run.goodput import Goodput
from train.run.job import Log, Metrics, Untimed, prefetched_batches, with_dropout
from train.run.launch import Launch
from train.run.log.meter import Spent
from train.run.log.run_log import RunLog
from train.run.loop import train

MAY_DIFFER = ("seed", "optimizer.learning_rate", "optimizer.decay_share", "start", "masking")
"""Fields that change how weights are drawn, what the batches hold, or a number that the compiled step is given."""
_ALONE_ONLY = ("stop_after", "hopeless_after", "teacher", "rollbacks", "track")
# What was measured to pay (benchmarks/results/transformers.md): hidden size, and positions of a batch.
_PAYS_UP_TO = (128, 512)
_SHARED = ("sequences_per_second", "tokens_per_second", "real_tokens_per_second", "mfu")


def why_not_together(configs: Mapping[str, PretrainConfig]) -> str | None:
    """What keeps these members from one program; None: nothing does.

    Args:
        configs: name -> config of each member.
    """
    first = next(iter(configs.values()))
    for name, config in configs.items():
        differing = differing_fields(to_json(first), to_json(config))
        if other := [one for one in differing if not {one, one.partition(".")[0]} & {*MAY_DIFFER}]:
            return f"member {name} differs in {other[0]}; only {', '.join(MAY_DIFFER)} may differ in one program"
    if found := next((one for one in _ALONE_ONLY if getattr(first, one) not in (None, 0)), None):
        return f"{found} is for members that train one after the other; leave it out"
    if len({config.optimizer.decay_share for config in configs.values()}) > 1:
        optimizer = first.optimizer
        if optimizer.schedule != "stable" or optimizer.clock != "steps":
            return "optimizer.decay_share may differ with optimizer.schedule=stable optimizer.clock=steps"
    return None


def in_one_program(words: SweepWords, configs: Mapping[str, PretrainConfig]) -> bool:
    """Whether the members train together, by the words of their sweep.

    Args:
        words: of the sweep.
        configs: name -> config of each member.

    Raises:
        UserError: the words ask for it, and it cannot be.
    """
    if words.merge is None:
        if words.sweep_in in (None, "turn"):
            return False
        if words.sweep_in == "auto":
            return words.halving is None and why_not_together(configs) is None and pays(next(iter(configs.values())))
    elif words.sweep_in == "turn":
        raise UserError("merge: averages members of one program; say sweep_in=together")
    word = "sweep_in" if words.sweep_in == "together" else "merge"
    if words.halving is not None:
        raise UserError(f"{word}: halving stops members that train one after the other; leave one of the two out")
    if why := why_not_together(configs):
        raise UserError(f"{word}: {why}, or say sweep_in=turn")
    return True


def pays(config: PretrainConfig) -> bool:
    """Whether one program for all members is known to be faster: their products are too small for the machine."""
    hidden, positions = _PAYS_UP_TO
    return config.model.hidden_size <= hidden and all(of_batch <= positions for _, of_batch in config.batches)


def train_together(
    run: RunDirectory,
    launch: Launch,
    goodput: Goodput,
    *,
    launches: dict[str, Launch],
    job_of: Callable[..., PretrainingJob],
    merge: bool,
) -> int:
    """Trains all members in one program, whose checkpoints are in `run`; the average goes beside it, to export/.

    Args:
        run, launch, goodput: of the program; a `work` of `in_run_directory`.
        launches: name -> launch of each member.
        job_of: as that of `train.pretrain`.
        merge: whether to average the members' weights.

    Returns:
        The exit code.
    """
    members = {}
    for name, own in launches.items():
        directory = RunDirectory(own.run)
        directory.path.mkdir(parents=True, exist_ok=True)
        members[name] = (job_of(directory, own, goodput, run), directory)
    with TogetherJob(members, run, run.path.parent / "export" if merge else None) as job:
        return train(job, run, goodput)


class MemberLog(RunLog):
    """The log of a member, in its own directory. The console shows what it says, but not its metrics."""

    def __init__(self, directory: epath.Path, tell: Callable[[str], None], **options: Any):
        """`tell` takes a line for the console; `options`: of `RunLog`."""
        self._name, self._tell = directory.name, tell
        super().__init__(directory, stream=io.StringIO(), **options)

    def say(self, line: str) -> None:
        self._tell(f"{self._name}: {line}")
        self._keep_line(line)

    def _say_record(self, line: str) -> None:
        self._keep_line(line)


class TogetherJob(Untimed):
    """A `Job`: trains the members' jobs in one program. Arrays of its state start with an axis R, the members.

    Each member has its own seed, learning rate, log and export/. A member whose steps stay non-finite keeps its last
    good weights, counts as failed and is left out of the average, while the others go on. A context manager, which
    closes the members' logs.
    """

    def __init__(
        self, members: Mapping[str, tuple[PretrainingJob, RunDirectory]], run: RunDirectory, export: epath.Path | None
    ):
        """
        Args:
            members: name -> its job and its directory.
            run: of the program, with the checkpoints of all members.
            export: where the average of the members' weights is written; None: they are not averaged.
        """
        self._members, self._run, self._export = members, run, export
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
            lambda parts, dropout: compile_many_train_step(
                with_dropout(first.model, dropout),
                config.optimizer,
                self.mesh,
                accumulation=parts,
                batches=config.batches,
                factors=config.rates,
                with_numbers=differ,
            )
        )
        self._keys = jax.random.wrap_key_data(
            self._by_member(np.stack([jax.random.key_data(job.dropout_key) for job in self._jobs]))
        )
        self._peaks = self._by_member(np.array([one.learning_rate for one in optimizers], np.float32))
        self._logs: list[MemberLog] = []
        self._step = self._logged = 0  # the last step dispatched, and the last one in a train row
        self._written: list[dict[str, Any] | None] = [None] * len(members)  # of each member's metrics.jsonl
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def _by_member(self, values: np.ndarray) -> jax.Array:
        return by_run(lambda number: values[number], len(values), self.mesh)

    def first_state(self) -> TrainState:
        states = [jax.device_get(job.first_state()) for job in self._jobs]
        self._step = self._logged = int(states[0].step)
        return stacked(states, self.mesh)

    def resume(self, facts: dict[str, Any]) -> None:
        self._step, self._logged = facts["step"], facts["logged"]
        self._written = [own["metrics"] for own in facts["members"]]
        for job, own in zip(self._jobs, facts["members"], strict=True):
            job.resume(own)

    def facts(self) -> dict[str, Any]:
        pairs = zip(self._jobs, self._logs, strict=True)
        return self._first.facts() | {
            "step": self._step,
            "logged": self._logged,
            "members": [{"lowest_losses": job.facts()["lowest_losses"]} | log.keep() for job, log in pairs],
        }

    def dropout_at(self, step: int) -> float | None:
        return self.config.dropout_at(step)

    def train_step(
        self, state: TrainState, batch: dict[str, Any], dropout: float | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        _, rows, length = batch["input_ids"].shape
        step = self._step_in_parts(self.config.parts_of(length, rows, 1), dropout)
        self._step += 1
        return step(state, batch, self._keys, self._peaks, self._first.objective, *self._more)

    def on_start(self, log: Log, *, resumed: bool) -> None:
        log.say(f"{len(self._jobs)} members in one program, on {self.mesh.size} devices")
        self._first.on_start(log, resumed=resumed)

        def spent(step: int) -> Spent | None:
            """A member's own tokens, the seconds on the clock, and its share of the processor time."""
            of_all = log.spent(step)
            if of_all is None:
                return None
            members = len(self._jobs)
            return Spent(of_all.tokens // members, of_all.seconds, round(of_all.cpu_seconds / members, 3))

        for (_, run), written in zip(self._members.values(), self._written, strict=True):
            own = MemberLog(
                run.path,
                log.say,
                start_step=self._step,
                written=written,
                total_steps=self.last_step,
                spent=spent,
                share_to_draw=0.05 / len(self._jobs),
            )
            self._logs.append(self._open.enter_context(own))

    def batches(self, step: int) -> Generator[tuple[dict[str, Any], float]]:
        while step < self.last_step:
            start, phase = self.config.phase_at(step)
            source = _Stacked([job.rows_of(start, phase) for job in self._jobs], self._by_member)
            yield from prefetched_batches(source, step - start, phase.steps)
            step = start + phase.steps

    def summarise(self, rows: list[Metrics], speeds: dict[str, float]) -> dict[str, float]:
        """Adds a row to each member's metrics, with an equal share of the speeds; returns the mean of their losses."""
        self._logged += len(rows)
        shares = {name: speed / (len(self._jobs) if name in _SHARED else 1) for name, speed in speeds.items()}
        found = []
        for number, (job, own) in enumerate(zip(self._jobs, self._logs, strict=True)):
            found.append(job.summarise([{name: value[number] for name, value in row.items()} for row in rows], {}))
            own.record("train", self._logged, found[-1] | shares)
        return _means(found) | speeds

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        if (np.asarray(metrics["skipped_in_a_row"]) < self.config.max_skipped_in_a_row).any():
            return None
        return (
            f"in each of the {len(self._jobs)} members {self.config.max_skipped_in_a_row} or more steps in a row up to "
            f"step {step:,} had a non-finite loss or gradient; earlier checkpoints are kept. Lower "
            "optimizer.learning_rate"
        )

    def _failed(self, state: TrainState) -> np.ndarray:
        """bool [R]: the members whose last step was skipped. A single run that ends so has failed too."""
        return to_host(state.skipped_in_a_row) > 0

    def evaluate(self, state: TrainState, step: int, log: Log) -> None:
        """Scores each member as it is scored alone, and the average of the weights if they are merged."""
        found = []
        for number, (job, own) in enumerate(zip(self._jobs, self._logs, strict=True)):
            before = len(own.records)
            job.evaluate(self._state_of(state, number), step, own)
            found += [row["mlm_loss"] for row in own.records[before:] if row.get("mlm_loss") is not None]
            own.draw()
        scores = {"mlm_loss": float(np.mean(found)), "mlm_loss_best": min(found)} if found else {}
        good = ~self._failed(state)
        if scores and good.any() and self._export is not None:
            _, phase = self.config.phase_at(step - 1)
            scores |= self._first.scores_of_average(self._average(state, good), phase)
        if scores:
            log.record("eval", step, scores)

    def _state_of(self, state: TrainState, number: int) -> TrainState:
        job = self._jobs[number]
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), one_of(state, number), job.target)

    def _average(self, state: TrainState, good: np.ndarray) -> Any:
        """The uniform mean of the weights that the good members (bool [R]) export, added up in float64."""
        return mean_of(to_host(exported_weights(state)), good)

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Exports each member, and the average of their weights."""
        failed = self._failed(state)
        for number, (job, own) in enumerate(zip(self._jobs, self._logs, strict=True)):
            if failed[number]:
                own.say("is not exported, since its last steps had a non-finite loss or gradient")
            else:
                job.finish(self._state_of(state, number), step, own)
        data = self._first.data
        if self._export is None or not self.config.export_at_end or data.tokenizer is None:
            return
        names = [name for name, out in zip(self._members, failed, strict=True) if not out]
        card = table(
            {"weights": f"the uniform average of {len(names)} members of a sweep", "members": ", ".join(names)}
        )
        whole, head, tokenizer = self._average(state, ~failed), head_for(data), data.tokenizer

        def write(folder: Path) -> None:
            save_pretrained(folder, self.config.model, whole, tokenizer, head=head, step=step, card=card)

        self._run.write_folder(self._export, write)
        log.say(f"exported the average of {len(names)} members to {self._export}")


class _Stacked:
    """The members' batches of a phase, stacked: arrays [R, B, ...]."""

    def __init__(self, sources: list[Any], by_member: Callable[[np.ndarray], jax.Array]):
        self._sources, self._by_member = sources, by_member

    def batch(self, step: int) -> dict[str, jax.Array]:
        made = [source.batch(step, None) for source in self._sources]
        return {name: self._by_member(stack_padded([one[name] for one in made])) for name in made[0]}


def stack_padded(arrays: list[np.ndarray]) -> np.ndarray:
    """Stacks arrays that differ in their last axis at most, with zeros after the shorter ones.

    Members with other masks have other numbers of predictions in a row, and one without a weight changes no loss.
    """
    widest = max(array.shape[-1] for array in arrays)
    if all(array.shape[-1] == widest for array in arrays):
        return np.stack(arrays)
    return np.stack([np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, widest - array.shape[-1])]) for array in arrays])


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
