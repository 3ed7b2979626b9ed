"""`sweep=`: pretrains one member for each combination of values, in turn or in one program, and compares them.

With `halving=` the members advance rung by rung, and only the best of a rung go on: successive halving
(https://arxiv.org/abs/1502.07943, section 3).
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import checksum_of, read_summed, write_json, write_whole
from bert_jax.formats.training_record import read_metrics
from bert_jax.runtime import hosts
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from train.compare import differences, figure_of, read_run
from train.pretraining.recipe import PretrainConfig
from train.pretraining.sweep.members import Halving, Member, SweepWords, halving_of, legs_of, members_of, values_of
from train.run.config import to_json
from train.run.directory import RunDirectory, refuse_changes
from train.run.ending.stopping import EXIT_DONE, EXIT_HOPELESS, EXIT_NOT_FINITE, PAUSED, raise_unanswered
from train.run.launch import Launch, in_run_directory, parse, start_jax
from train.run.log.curves import png
from train.run.log.run_log import score_text

RECORD = "sweep.json"
_WHY_OUT = {EXIT_NOT_FINITE: "not finite", EXIT_HOPELESS: "hopeless"}


def sweep(
    words: SweepWords, argv: list[str], usage: str, pretrain_in: Callable[..., int], job_of: Callable[..., Any]
) -> int:
    """Trains the sweep in `run=`, from where it stopped, by these of `train.pretrain`; returns the exit code.

    That is 0 if a member was trained to the end, the code of the member that stopped the sweep (a signal, a full disk),
    or that of the first member if all of them failed.

    Raises:
        UserError: as `parse`, of a member, which it names; or the run directory has something else in it.
    """
    launch = parse(argv, usage, PretrainConfig)
    if launch.dry_run:
        raise UserError("--dry-run: forecasts a single run; leave sweep= out")
    if launch.config.text is not None:
        raise UserError("sweep: takes prepared data; run python -m train.prepare first and give its output as data=DIR")
    values = values_of(words.sweep)
    if both := sorted(values.keys() & launch.given):
        raise UserError(f"sweep: {both[0]} is also a word of its own; leave that out")
    if launch.config.eval_data is None and (weights := sorted(values.keys() & {"data_shares", "data_temperature"})):
        raise UserError(
            f"sweep: {weights[0]} says how much the held-out loss of each directory counts, so the losses would not "
            "compare; say eval_data=DIR too"
        )
    members = members_of(values)
    rule = halving_of(words.halving, len(members))
    launches = [_launch_of(launch, member, argv, usage) for member in members]
    _refuse_equal(members, launches)
    from train.pretraining.sweep.together import (  # loads the job, which mistakes need not
        in_one_program,
        train_together,
    )

    together = in_one_program(words, {member.name: one.config for member, one in zip(members, launches, strict=True)})
    legs = [legs_of(one.config, rule) for one in launches]
    if launch.hosts:
        raise UserError(f"{next(iter(launch.hosts))}: a sweep trains in one process; leave it out")
    start_jax(launch)
    if hosts.in_a_job():
        raise UserError("sweep: trains in one process, and this is one of several; start it on one host alone")
    run = RunDirectory(launch.run)
    run.acquire()
    try:
        if run.config.exists():
            raise UserError(f"{run.path}: has a single run in it; choose another run=")
        how = partial(train_together, job_of=job_of, merge=words.merge is not None) if together else None
        return _Sweep(run.path, launch, members, launches, legs, rule, pretrain_in, how).train(values)
    except (UserError, FileNotFoundError):
        runs = (str(run.path / "together"), *(one.run for one in launches))
        if not any(_rows(one) or _newest(one) for one in runs):
            run.discard_failed_start()  # its sweep.json would refuse the corrected command
        raise
    finally:
        run.release()


def _launch_of(launch: Launch, member: Member, argv: list[str], usage: str) -> Launch:
    words = [f"{name}={value}" for name, value in member.fields.items()]
    own = [word for word in argv if not word.startswith("run=")]
    try:
        found = parse([*own, *words, f"run={launch.run}/members/{member.name}"], usage, PretrainConfig)
    except UserError as error:
        raise UserError(f"sweep: member {member.name}: {error}") from None
    return dataclasses.replace(found, as_json=False)


def _refuse_equal(members: list[Member], launches: list[Launch]) -> None:
    seen: dict[str, str] = {}
    for member, launch in zip(members, launches, strict=True):
        for same in (member.name, json.dumps(to_json(launch.config), sort_keys=True)):
            if same in seen:
                raise UserError(f"sweep: {seen[same]} and {member.name} are the same; leave one of the values out")
            seen[same] = member.name


class _Sweep:
    """The members in order, and their record in sweep.json, which is written after each leg of each member."""

    def __init__(
        self,
        path: epath.Path,
        launch: Launch,
        members: list[Member],
        launches: list[Launch],
        legs: list[list[int]],
        halving: Halving | None,
        pretrain_in: Callable[..., int],
        together: "partial[int] | None" = None,
    ):
        self._path, self._launch, self._members, self._halving = path, launch, members, halving
        self._pretrain_in, self._together = pretrain_in, together
        self._launches = {member.name: one for member, one in zip(members, launches, strict=True)}
        self._legs = {member.name: steps for member, steps in zip(members, legs, strict=True)}

    def train(self, values: dict[str, list[str]]) -> int:
        self._rule: dict[str, Any] = {
            "sweep": values,
            "halving": None if self._halving is None else [self._halving.eta, *self._halving.shares],
            "rungs": None if self._halving is None else self._legs,  # they follow from eval_every and phases too
            "sweep_in": "turn" if self._together is None else "together",
            "merge": self._together is not None and self._together.keywords["merge"],
        }
        self._take_up()
        if self._together is not None and not all(one.ended for one in self._members):
            code = self._train_all()
            if code not in (EXIT_DONE, EXIT_NOT_FINITE):
                return code
        for leg in range(len(next(iter(self._legs.values())))):
            for number, member in enumerate(self._members, 1):
                if member.ended is None and len(member.losses) == leg:
                    raise_unanswered()
                    until = self._legs[member.name][leg]
                    _say(f"member {number} of {len(self._members)}, {member.name}: to step {until:,}")
                    code = self._train(member, leg)
                    if code not in (EXIT_DONE, PAUSED, *_WHY_OUT):
                        return code
            self._stop_the_worse(leg)
        self._report(values)
        if self._launch.as_json:
            print(json.dumps({"run": str(self._path), "members": [dataclasses.asdict(one) for one in self._members]}))
        if any(member.ended == "done" for member in self._members):
            return EXIT_DONE
        first = next(one.ended for one in self._members if _failed(one))
        return next(code for code, why in _WHY_OUT.items() if why == first)

    def _train_all(self) -> int:
        """Trains the members in one program, and records what came of each."""
        assert self._together is not None
        first = next(iter(self._launches.values()))
        _say(f"{len(self._members)} members in one program")
        in_one = dataclasses.replace(first, run=str(self._path / "together"))
        code = in_run_directory(in_one, partial(self._together, launches=self._launches))
        if code not in (EXIT_DONE, EXIT_NOT_FINITE):
            return code
        for member in self._members:
            run = self._launches[member.name].run
            last = next((row for row in reversed(_rows(run)) if row["kind"] == "train"), {})
            if code == EXIT_NOT_FINITE or last.get("skipped_in_a_row"):  # as a single run, whose last step must be good
                member.ended = _WHY_OUT[EXIT_NOT_FINITE]
            else:
                member.losses, member.ended = [_loss_at(run, None)], "done"
        self._write()
        return code

    def _train(self, member: Member, leg: int) -> int:
        """Trains a member to the end of a leg, unless it is there, and records what came of it."""
        launch, steps = self._launches[member.name], self._legs[member.name]
        last = leg == len(steps) - 1
        code = EXIT_DONE
        if last or _newest(launch.run) < steps[leg]:
            try:
                until = None if last else steps[leg]
                code = in_run_directory(launch, partial(self._pretrain_in, pause_at=until))
            except UserError as error:
                raise UserError(f"sweep: member {member.name}: {error}") from None
        if code in _WHY_OUT:
            member.ended = _WHY_OUT[code]
            _say(f"{member.name} is out: {member.ended}")
        elif code in (EXIT_DONE, PAUSED):
            member.losses.append(_loss_at(launch.run, None if last else steps[leg]))
            member.ended = "done" if last else None
        else:
            return code
        self._write()
        return code

    def _stop_the_worse(self, leg: int) -> None:
        """After a rung: members beyond the best 1/eta end. For equal losses the first member is better."""
        if self._halving is None or leg == len(self._halving.shares):
            return
        began = [one for one in self._members if len(one.losses) > leg or (len(one.losses) == leg and _failed(one))]
        reached = sorted((one for one in began if len(one.losses) > leg), key=lambda one: _rank(one.losses[leg]))
        if reached and reached[0].losses[leg] is None:
            raise UserError(
                "halving: no member has a held-out loss to compare; prepare the data with --held-out 0.1, or leave "
                "halving= out"
            )
        for member in reached[self._halving.kept(len(began)) :]:
            if member.ended is None:
                member.ended = "stopped"
                _say(f"{member.name} stops at step {self._legs[member.name][leg]:,}, by halving")
        self._write()

    def _take_up(self) -> None:
        """Reads what an earlier start recorded."""
        record = self._path / RECORD
        if not record.exists():
            self._write()
            return
        found = read_summed(record, "choose another run=")
        old = {name: found.get(name) for name in self._rule}
        if old != self._rule:
            raise UserError(
                f"{record}: this sweep was started with other values or another rule ({json.dumps(old)}); say those "
                "again, or choose another run="
            )
        refuse_changes(f"{record}: this sweep", found["config"], self._launch.config, self._launch.allow_change)
        for member, before in zip(self._members, found["members"], strict=True):
            member.losses, member.ended = before["losses"], before["ended"]

    def _write(self) -> None:
        members = [dataclasses.asdict(member) for member in self._members]
        facts = self._rule | {"config": to_json(self._launch.config), "members": members}
        facts = json.loads(json.dumps(facts))
        write_json(self._path / RECORD, facts | {"checksum": checksum_of(facts)})

    def _loss_of_average(self) -> float | None:
        rows = (row for row in reversed(_rows(str(self._path / "together"))) if row["kind"] == "eval")
        return next((row.get("average_mlm_loss") for row in rows), None)

    def _report(self, values: dict[str, list[str]]) -> None:
        """Writes sweep.md and sweep.png, and prints the table."""
        members = sorted(self._members, key=lambda one: (-len(one.losses), _rank(one.loss)))
        lines = [
            f"| {' | '.join(values)} | held-out loss | at step | |",
            f"|{'---|' * len(values)}---:|---:|---|",
        ]
        for one in members:
            at = self._legs[one.name][len(one.losses) - 1] if one.losses else None
            if one.ended == "done":  # with stop_after the phases' steps are only the most
                at = next((row["step"] for row in reversed(_rows(self._launches[one.name].run))), at)
            cells = (*one.fields.values(), score_text(one.loss), "" if at is None else f"{at:,}", one.ended or "")
            lines.append(f"| {' | '.join(cells)} |")
        if len(values.get("seed", ())) > 1:
            lines += ["", *_over_seeds(self._members, [name for name in values if name != "seed"])]
        if (average := self._loss_of_average()) is not None:
            lines += ["", f"The average of the members' weights, in export/: {average:.4f}"]
        paths = [self._launches[one.name].run for one in self._members]
        runs = [dataclasses.replace(read_run(path), name=epath.Path(path).name) for path in paths if _rows(path)]
        lines += [line for note in (differences(runs) if runs else ()) for line in ("", f"Note: {note}")]
        table = "\n".join(lines)
        print(table, file=sys.stderr)
        write_whole(self._path / "sweep.md", f"# {len(members)} members\n\n{table}\n\n![curves](sweep.png)\n")
        if runs:
            write_whole(self._path / "sweep.png", png(figure_of(runs, "step")))
        _say(f"{self._path / 'sweep.md'} has the table, sweep.png the curves; members/ has the runs")


def _newest(run: str) -> int:
    with Checkpoints(RunDirectory(run).checkpoints) as checkpoints:
        return max(checkpoints.steps(), default=0)


def _rows(run: str) -> list[dict[str, Any]]:
    return read_metrics(epath.Path(run) / "metrics.jsonl")


def _loss_at(run: str, step: int | None) -> float | None:
    """The held-out loss after a step, of the average of the weights if the run has one; None: at the end."""
    rows = _rows(run)
    end = rows[-1]["step"] if rows and step is None else step
    evaluations = (row for row in reversed(rows) if row["kind"] == "eval" and row["step"] == end)
    return next((row.get("average_mlm_loss", row.get("mlm_loss")) for row in evaluations), None)


def _failed(member: Member) -> bool:
    return member.ended in _WHY_OUT.values()


def _rank(loss: float | None) -> float:
    return math.inf if loss is None else loss


def mean_and_error(losses: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, the deviation with n - 1 over the root of n; NaN for the error of one."""
    found = np.array(losses, np.float64)
    return float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.nan


def _over_seeds(members: list[Member], others: list[str]) -> list[str]:
    """The table of means over the seeds of the members that were trained to the end."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for one in members:
        if one.ended == "done" and (loss := one.loss) is not None:
            groups.setdefault(tuple(one.fields[name] for name in others), []).append(loss)
    rows = [(key, *mean_and_error(losses), len(losses)) for key, losses in groups.items()]
    return [
        f"| {' | '.join((*others, 'mean', 'standard error', 'seeds'))} |",
        f"|{'---|' * len(others)}---:|---:|---:|",
        *(
            f"| {' | '.join((*key, score_text(mean), score_text(error), str(count)))} |"
            for key, mean, error, count in sorted(rows, key=lambda row: row[1])
        ),
    ]


def _say(line: str) -> None:
    print(f"sweep: {line}", file=sys.stderr, flush=True)
