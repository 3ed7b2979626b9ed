"""The campaign of bad numbers: runs with batches and parameters that are not finite, and sources with such values.

What a run of the adding job must end with is computed from the definition, without the loop: which batches change the
parameters, which steps are saved, where it goes back to.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from safetensors.numpy import load_file, save_file

from bert_jax.cli.verbs.info import describe
from bert_jax.errors import UserError
from bert_jax.formats.load import load_config
from bert_jax.formats.source import open_source
from bert_jax.formats.tensorflow.google import write_google
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.step import abstract_state
from tests import tiny
from tests.adding_job import STEPS, AddingJob, config, run_of, state_in, sum_of
from tests.faults.kills import Killer
from tests.faults.outcome import Outcome
from tests.formats.torch import torch_files
from tests.run_directory import records
from train.pretraining.first_state import initial_parameters
from train.run.ending.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_PREEMPTED, exit_code

RUNS, STOPPED, KILLED, SOURCES = 60, 20, 20, 150
KILLS_IN_A_RUN = 4
POINTS = {
    "a run begins to go back": 2,
    "a useless checkpoint is removed": 2,
    "a checkpoint is read": 3,
    "a save starts": 6,
    "a save is written": 6,
    "the manifest is written": 6,
    "an old checkpoint is deleted": 3,
    "a step is dispatched": 30,
}
"""Point of `killed` -> which of its calls, at most, is killed. The first three are parts of a rollback."""


def cases(seed: int, folder: Path, share: float = 1.0) -> Iterator[Outcome]:
    """`share`: of the cases of each kind, at least one."""

    def count(all_of_them: int) -> int:
        return max(1, round(share * all_of_them))

    with mock.patch("train.run.log.run_log.draw_curves"):
        for number in range(count(RUNS)):
            yield _of_a_run(seed + number, folder / f"run-{number}", stopped=False)
        for number in range(count(STOPPED)):
            yield _of_a_run(seed + 10_000 + number, folder / f"stopped-{number}", stopped=True)
    yield from _of_sources(seed, folder, count(SOURCES))
    if share == 1:
        yield from of_kills(seed + 20_000, folder, KILLED)
        yield from _of_programs(folder)


class Ended(NamedTuple):
    """How a run ends: its exit code, the steps of its checkpoints, the batches that the newest was trained on, and the
    steps that no row of metrics.jsonl tells of."""

    code: int
    saved: list[int]
    used: tuple[int, ...]
    passed_over: set[int]


def by_definition(bad: set[int], explodes: int | None, save_every: int, keep: int, most: int, rollbacks: int) -> Ended:
    """`most`: max_skipped_in_a_row."""
    step, skipped, due, used, passed_over = 0, 0, False, (), set()
    saved: list[tuple[int, tuple[int, ...]]] = []
    while step < STEPS:
        batch, step = step, step + 1
        good = batch not in bad and explodes not in used
        used, skipped = ((*used, batch), 0) if good else (used, skipped + 1)
        last = step == STEPS
        if skipped >= most or (last and skipped):
            saved = [(number, of) for number, of in saved if number < step - skipped]
            if not rollbacks or not saved:
                return Ended(
                    EXIT_NOT_FINITE, [number for number, _ in saved], saved[-1][1] if saved else (), passed_over
                )
            back_to, used = saved[-1]
            rollbacks, skipped, due = rollbacks - 1, 0, False
            passed_over |= set(range(back_to + 1, step + 1))
            saved = [*saved, (step, used)][-keep:]
            continue
        due = due or step % save_every == 0 or last
        if due and not skipped:
            saved, due = [*saved, (step, used)][-keep:], False
    return Ended(EXIT_DONE, [number for number, _ in saved], used, passed_over)


class Case(NamedTuple):
    """What happens in a run of the adding job."""

    bad: set[int]
    explodes: int | None
    fields: dict[str, int]

    def wanted(self) -> Ended:
        names = ("save_every", "keep", "max_skipped_in_a_row", "rollbacks")
        return by_definition(self.bad, self.explodes, *(self.fields[name] for name in names))


def _drawn(rng: np.random.Generator) -> Case:
    bad = {int(begin) + n for begin in rng.integers(0, STEPS, rng.integers(0, 4)) for n in range(rng.integers(1, 7))}
    explodes = int(rng.integers(0, STEPS)) if rng.random() < 0.5 else None
    save_every, keep, most = int(rng.integers(1, 9)), int(rng.integers(2, 4)), int(rng.integers(1, 6))
    rollbacks = int(rng.integers(0, 5))
    fields = {"save_every": save_every, "keep": keep, "max_skipped_in_a_row": most, "rollbacks": rollbacks}
    return Case(bad, explodes, fields)


def _of_a_run(seed: int, folder: Path, *, stopped: bool) -> Outcome:
    rng = np.random.default_rng(seed)
    case = _drawn(rng)
    wanted = case.wanted()

    def job() -> AddingJob:
        return AddingJob(config(**case.fields), case.bad, case.explodes)

    stops = set(rng.integers(1, 60, 8).tolist()) if stopped else set()
    calls, code = iter(range(1_000)), EXIT_PREEMPTED

    def request(*_: Any) -> int | None:
        return EXIT_PREEMPTED if next(calls) in stops else None

    with (
        mock.patch("train.run.ending.stopping.StopRequest.exit_code", request),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        while code == EXIT_PREEMPTED:
            code, _ = run_of(job(), folder)
    wrong = _differences(case, folder, code, extra=stopped)
    shutil.rmtree(folder)
    what = "bad batches and exploding parameters" + (", stopped 8 times" if stopped else "")
    ended = "exit code 3, a good checkpoint or none" if code == EXIT_NOT_FINITE else "done"
    if wanted.passed_over and code == EXIT_DONE:
        ended = "done after rollbacks"
    return Outcome(
        what, ended if not wrong else "other than by the definition", not wrong, f"seed {seed}: {case}: {wrong}"
    )


def _differences(case: Case, folder: Path, code: int, *, extra: bool) -> str:
    """How a run in `folder` ended otherwise than by the definition; "" if it did not. `extra`: it was stopped."""
    wanted, wrong = case.wanted(), []
    if code != wanted.code:
        wrong.append(f"exit code {code}, {wanted.code} expected")
    with Checkpoints(folder / "checkpoints") as checkpoints:
        saved = checkpoints.steps()
        regular = [step for step in saved if not checkpoints.manifest(step).extra]  # a stop saves steps of its own
    if regular != wanted.saved or (saved != regular and not extra):
        wrong.append(f"checkpoints {regular} of {saved}, {wanted.saved} expected")
    if regular and not wrong:
        found = np.asarray(state_in(folder, regular[-1]).params["sum"])
        exploded = np.float32(3e38 if case.explodes in wanted.used else 0)
        expected = sum_of(set(wanted.used) - {case.explodes}) + exploded
        if not (found == expected).all():
            wrong.append(f"parameters {found}, {expected} expected")
    if saved and not np.isfinite(state_in(folder).params["sum"].sum()) and code == EXIT_NOT_FINITE:
        wrong.append("the newest checkpoint has no finite loss")
    told = [row["step"] for row in records(folder, "train")]
    if code == EXIT_DONE and told != [step for step in range(1, STEPS + 1) if step not in wanted.passed_over]:
        wrong.append(f"rows of metrics of steps {told}")
    return "; ".join(wrong)


def of_kills(seed: int, folder: Path, count: int) -> Iterator[Outcome]:
    """Each of `count` runs that go back is killed a few times; an outcome for each kill, of how the run ended."""
    rng = np.random.default_rng(seed)
    killer = Killer(folder)
    try:
        for number in range(count):
            case = _drawn(rng)
            while not case.wanted().passed_over:
                case = _drawn(rng)
            run, kills = folder / f"killed-{number}", []
            words = [str(run), json.dumps({"bad": [*case.bad], "explodes": case.explodes, "fields": case.fields})]
            for _ in range(KILLS_IN_A_RUN):
                at = [*POINTS][int(rng.choice(len(POINTS), p=_chances()))]
                when = ("before", "after", float(rng.uniform(0, 0.03)))[int(rng.integers(3))]
                kill = {"at": at, "call": int(rng.integers(1, POINTS[at] + 1)), "when": when}
                if (code := killer.run("adding_job", words, folder / f"killed-{number}.log", kill)) == -9:
                    kills.append(kill)
            code = killer.run("adding_job", words, folder / f"killed-{number}.log")
            wrong = _differences(case, run, code, extra=False)
            for kill in kills:
                ended = "as by the definition" if not wrong else "other than by the definition"
                yield Outcome(
                    f"a run with rollbacks: SIGKILL when {kill['at']}",
                    *(ended, not wrong, f"seed {seed}, run {number}: {case}, {kills}: {wrong}"),
                )
    finally:
        killer.close()


def _chances() -> list[float]:
    """Half of the kills come in a rollback."""
    return [1 / 6] * 3 + [0.5 / (len(POINTS) - 3)] * (len(POINTS) - 3)


def _of_sources(seed: int, folder: Path, count: int) -> Iterator[Outcome]:
    """A value of a random parameter of a model in one of three formats is replaced, or none."""
    rng = np.random.default_rng(seed)
    whole = folder / "whole"
    save_pretrained(whole, tiny.CONFIG, tiny.random_params(tiny.CONFIG, 3), None)
    tensors = load_file(whole / "model.safetensors")
    mesh, tx = make_mesh(MeshConfig(data=1)), make_optimizer(tiny.OPTIMIZER)
    target = abstract_state(HEADS["pretraining"](tiny.CONFIG), tx, mesh=mesh).params
    for number in range(count):
        form = ("safetensors", "torch", "tf1")[number % 3]
        key = list(tensors)[int(rng.integers(len(tensors)))]
        value = (np.nan, np.inf, -np.inf, 3e38)[int(rng.integers(4))]
        changed = {name: array.copy() for name, array in tensors.items()}
        changed[key].flat[int(rng.integers(changed[key].size))] = value
        place = folder / f"source-{number}"
        _write(place, form, changed, whole)
        case = f"seed {seed}, source {number}: {value} in {key}, {form}"
        found = describe(place)["not_finite"]
        try:
            initial_parameters(open_source(place), target, target)
            ended, held = "taken", bool(np.isfinite(value)) and found is None
        except UserError as error:
            named = found is not None and found in str(error) and "\n" not in str(error)
            ended, held = "refused by name, and info names it", named and not np.isfinite(value)
        yield Outcome(
            f"init= with {'3e38' if np.isfinite(value) else 'NaN or infinity'} in a parameter", ended, held, case
        )
        shutil.rmtree(place)


def _write(place: Path, form: str, tensors: dict[str, np.ndarray], whole: Path) -> None:
    place.mkdir()
    if form == "tf1":
        write_google(place, load_config(whole), tensors)
        return
    shutil.copy(whole / "config.json", place)
    if form == "torch":
        torch_files.save(place / "pytorch_model.bin", tensors)
    else:
        save_file(tensors, place / "model.safetensors")


_RECIPE = '''"""A small model on random tokens."""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
            vocab_size=50,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=0, clip_norm=0.0),
        phases=(Phase(16, 4, 40),),
        log_every=1, eval_every=20, eval_batches=1, save_every=1, keep=2, max_skipped_in_a_row=5, data="random",
    )
'''


def _of_programs(folder: Path) -> Iterator[Outcome]:
    """The whole pretraining program, with learning rates and first parameters that no training survives."""
    from train import pretrain

    recipe = folder / "small.py"
    recipe.write_text(_RECIPE)
    huge = folder / "huge"
    huge_config = tiny.CONFIG.replace(vocab_size=30_522)
    save_pretrained(huge, huge_config, tiny.random_params(huge_config, 4), None)
    tensors = {name: np.full_like(array, 3e38) for name, array in load_file(huge / "model.safetensors").items()}
    (huge / "model.safetensors").unlink()
    save_file(tensors, huge / "model.safetensors")
    rates = [f"optimizer.learning_rate={rate}" for rate in ("1e20", "1e30", "1e38")]
    all_words = [*([rate] for rate in rates), [rates[1], "rollbacks=2"], [f"init={huge}"]]
    for number, words in enumerate(all_words):
        run = folder / f"program-{number}"
        with contextlib.redirect_stderr(io.StringIO()):
            code = exit_code(pretrain.main, [str(recipe), f"run={run}", *words])
        held = code == EXIT_NOT_FINITE
        with Checkpoints(run / "checkpoints") as checkpoints:
            newest = max(checkpoints.steps(), default=None)
        later = [row["step"] for row in records(run, "train") if row["loss"] is not None]
        if newest is not None:
            held &= max(later) > newest
        ended = (
            "exit code 3, no checkpoint" if newest is None else "exit code 3, a checkpoint with a good step after it"
        )
        yield Outcome(
            "the program at rates up to 1e38, and from 3e38", ended if held else f"code {code}", held, " ".join(words)
        )
