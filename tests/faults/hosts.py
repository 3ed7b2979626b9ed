"""Kills of one process of a job: any process, any signal, at random moments; then the same command again, to the end.

A run is killed several times. It must end with the weights, the optimizer's state, the export and the rows of metrics
of a run that nothing happened to: bit for bit on the same processes, to 1e-4 of the losses where a start has other ones.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.tree import flatten
from tests.faults.outcome import Outcome
from tests.hosts import Hosts
from tests.train.hosts.test_equal import RECIPE
from tests.train.pretraining.family_runs import write_text
from train.prepare import main as prepare

HEARTBEAT, JOIN, LATER = 15, 90, 15
"""Seconds: the job's settings, and how much later than these all must have ended."""
STEPS = 150
STEPS_AND_SAVES = (f"phases=((16,8,{STEPS}),)", "eval_every=75", "eval_batches=2", "save_every=10")
PROGRAM = """
from tests.train.hosts.programs import keep_compiled_programs_of_every_process
keep_compiled_programs_of_every_process()
from train.pretrain import main
from train.run.ending.stopping import run_program
run_program(main)
"""
WAYS = {signal.SIGKILL: 4, signal.SIGSTOP: 2, signal.SIGTERM: 2, signal.SIGINT: 2}
"""Signal -> how often it is drawn, of 10."""
LAYOUTS = ([(2, 1)], [(2, 1)], [(2, 1)], [(2, 1)], [(4, 1)], [(2, 2), (4, 1), (1, 4)])
"""What is drawn for a run: (processes, devices of each) of its starts, in turn; several have as many devices."""
_CODES = {signal.SIGTERM: {75, -15}, signal.SIGINT: {130, -2, 75}}  # SIGSTOP and SIGKILL: 75 for all others


@dataclass(frozen=True)
class Kill:
    """What happens to one start of a run.

    Attributes:
        how: the signal.
        when: "at the start" (`seconds` after it), "in training" (once it has logged `step`), "in a save" (once a new
            checkpoint appears).
        whom: the number of the process, modulo how many there are.
        step, seconds: see `when`; `seconds` pass in each case.
    """

    how: signal.Signals
    when: str
    whom: int
    step: int
    seconds: float


def draw(rng: random.Random, kills: int) -> list[Kill]:
    found = []
    for number in range(kills):
        (how,) = rng.choices(list(WAYS), list(WAYS.values()))
        (when,) = rng.choices(["at the start", "in training", "in a save"], [2, 5, 3])
        step = int(STEPS * (number + rng.random()) / (kills + 0.5)) + 1
        seconds = rng.uniform(0, 20) if when == "at the start" else rng.uniform(0, 0.4)
        found.append(Kill(how, when, rng.randrange(4), step, seconds))
    return found


def cases(seed: int, folder: Path, runs: int = 16, kills: int = 4) -> Iterator[Outcome]:
    """The outcomes of `kills` kills of each of so many runs."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    (folder / "recipe.py").write_text(RECIPE)
    options = ["--max-seq-length", "16,24", "--vocab-size", "45", "--held-out", "0.3", "--dupe-factor", "2"]
    text = write_text(folder / "text.txt", documents=60)
    assert prepare([str(text), "--output", str(folder / "data"), *options, "--workers", "1"]) == 0
    rng = random.Random(seed)
    unkilled: dict[tuple[int, int], Path] = {}
    for number in range(runs):
        starts = rng.choice(LAYOUTS)
        plan = draw(rng, kills)
        if (like := starts[0]) not in unkilled:
            unkilled[like] = folder / f"unkilled-{like[0]}x{like[1]}"
            with launch(folder, unkilled[like], *like) as hosts:
                ends = hosts.wait(1200)
            assert [end.code for end in ends] == [0] * like[0], ends
        run = folder / f"run-{number}"
        found = [killed for turn, kill in enumerate(plan) if (killed := end_of(folder, run, starts, turn, kill))]
        wrong = finish(folder, run, starts, len(plan), unkilled[like])
        equal = "to the bit" if len(starts) == 1 else "to 1e-4"
        for kill, processes, problem in found:
            problem = problem or wrong
            yield Outcome(
                f"{kill.how.name} of one of {processes} processes {kill.when}",
                problem.splitlines()[0][:100] if problem else f"equal {equal}",
                problem is None,
                f"seed {seed}, run {number}: {kill}, starts {starts}: {problem}",
            )
        if not wrong:
            shutil.rmtree(run)


def launch(folder: Path, run: Path, count: int, devices: int) -> Hosts:
    words = [str(folder / "recipe.py"), f"data={folder / 'data'}", f"run={run}", "allow_change=mesh", *STEPS_AND_SAVES]
    limits = [f"--heartbeat-seconds={HEARTBEAT}", f"--join-seconds={JOIN}"]
    return Hosts(count, ["-c", PROGRAM, *words, *limits], folder / "logs" / run.name, devices=devices)


def end_of(
    folder: Path, run: Path, starts: list[tuple[int, int]], turn: int, kill: Kill
) -> tuple[Kill, int, str | None] | None:
    """Starts the run and kills one process; (kill, processes, what went wrong), or None if all had ended before."""
    count, devices = starts[turn % len(starts)]
    before = saved(run)
    with launch(folder, run, count, devices) as hosts:
        began = time.monotonic()
        alive = True
        while (
            alive
            and not {
                "at the start": time.monotonic() - began > kill.seconds,
                "in training": len(rows_of(run)) >= kill.step,
                "in a save": bool(saved(run) - before),
            }[kill.when]
        ):
            time.sleep(0.01)
            alive = all(process.poll() is None for process in hosts.processes)
        if alive and kill.when != "at the start":
            time.sleep(kill.seconds)
        if any(process.poll() is not None for process in hosts.processes):
            ends = hosts.wait(JOIN + HEARTBEAT + LATER)
            codes = [end.code for end in ends]
            return None if set(codes) == {0} else (kill, count, f"ended before the signal with {codes}: {ends}")
        whom = kill.whom % count
        hosts.signal(whom, kill.how)
        signalled = time.monotonic()
        joined = kill.when != "at the start"
        for number, process in enumerate(hosts.processes):
            if number != whom or kill.how != signal.SIGSTOP:
                limit = (HEARTBEAT if joined else JOIN + HEARTBEAT) + LATER
                if kill.how in _CODES:
                    limit += 120  # a save is promised, no time
                with contextlib.suppress(Exception):  # judged below
                    process.wait(max(0.01, signalled + limit - time.monotonic()))
        late = [n for n, process in enumerate(hosts.processes) if process.poll() is None and n != whom]
        if kill.how == signal.SIGSTOP:
            hosts.signal(whom, signal.SIGCONT)
        try:
            ends = hosts.wait(120)
        except TimeoutError as error:
            return kill, count, f"does not end: {error}"
        codes = [end.code for end in ends]
        if count > 1 and late:
            return kill, count, f"processes {late} ended too late: {ends}"
        if codes == [0] * count:
            return None
        others = {code for number, code in enumerate(codes) if number != whom}
        if kill.how == signal.SIGKILL or kill.how == signal.SIGSTOP:
            good = others <= {75} and codes[whom] in ({-9} if kill.how == signal.SIGKILL else {75})
            good |= kill.how == signal.SIGSTOP and count == 1
        else:
            good = set(codes) <= _CODES[kill.how]
        return kill, count, None if good else f"ended with {codes} where process {whom} was signalled: {ends}"


def finish(folder: Path, run: Path, starts: list[tuple[int, int]], turn: int, unkilled: Path) -> str | None:
    """Starts the run until it is done; what differs from the unkilled run, None if nothing does."""
    for again in range(3):
        with launch(folder, run, *starts[(turn + again) % len(starts)]) as hosts:
            ends = hosts.wait(1200)
        codes = {end.code for end in ends}
        if codes == {0}:
            return difference(run, unkilled, exact=len(starts) == 1)
        if 75 not in codes:
            break
    return f"the last start ended with {[end.code for end in ends]}: {ends}"


def difference(run: Path, unkilled: Path, *, exact: bool) -> str | None:
    ours, theirs = rows_of(run), rows_of(unkilled)
    if [row["step"] for row in ours] != list(range(1, STEPS + 1)):
        steps = [row["step"] for row in ours]
        lacks, twice = sorted(set(range(1, STEPS + 1)) - set(steps)), sorted({s for s in steps if steps.count(s) > 1})
        return f"rows of metrics: lacks steps {lacks}, has twice {twice}"
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs, strict=True))
    if worst > (0 if exact else 1e-4):
        return f"the losses differ by {worst}"
    if not exact:
        return None
    states = []
    for directory in (run, unkilled):
        with Checkpoints(directory / "checkpoints") as checkpoints:
            states.append(flatten(checkpoints.restore_arrays(STEPS).state))
    for path, leaf in states[1].items():
        if not np.array_equal(leaf, states[0][path]):
            return f"{path} differs"
    export = "export/model.safetensors"
    return None if (run / export).read_bytes() == (unkilled / export).read_bytes() else "the exports differ"


def saved(run: Path) -> set[str]:
    """The names of finished and unfinished checkpoints."""
    try:
        return {path.name for path in (run / "checkpoints").iterdir()}
    except FileNotFoundError:
        return set()


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of training in metrics.jsonl that are whole."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row for line in lines if (row := json.loads(line))["kind"] == "train"]
