"""`sweep=` and `halving=`: members equal single runs, a sweep that was stopped equals one that was not."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import train.pretraining.job
import train.run.loop
from bert_jax.errors import UserError
from bert_jax.files import write_json
from tests.run_directory import assert_equal_states, records, stopped_at
from tests.traced import traced
from train import compare, pretrain
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.sweep import sweep as sweeps
from train.pretraining.sweep.members import (
    Halving,
    SweepWords,
    halving_of,
    legs_of,
    members_of,
    take_sweep,
    values_of,
)
from train.pretraining.sweep.sweep import mean_and_error
from train.run.config import to_json
from train.run.ending.stopping import (
    EXIT_DONE,
    EXIT_HOPELESS,
    EXIT_NOT_FINITE,
    EXIT_PREEMPTED,
    StopRequest,
    Terminated,
)
from train.run.log.meter import Meter, Spent
from train.run.stages import Stages

SHORT = ["phases=((32,8,8),)", "eval_every=2", "eval_batches=1", "log_every=3", "save_every=3", "export_at_end=no"]
SWEPT = ["sweep=optimizer.learning_rate=1e-3,1e-5;seed=0,1", "halving=2"]


@pytest.fixture(scope="module")
def words(recipe: str, data: str) -> list[str]:
    return [recipe, f"data={data}", *SHORT]


@pytest.fixture(scope="module")
def straight(words: list[str], tmp_path_factory) -> Path:
    """A sweep that was never stopped."""
    run = tmp_path_factory.mktemp("sweeps") / "straight"
    with traced() as names:
        assert pretrain.main([*words, *SWEPT, f"run={run}"]) == EXIT_DONE
    assert names.count("step_on_mesh") <= 2  # one for each rate, whatever the seed and the leg
    return run


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "sweep.json").read_text())


def scores(run: Path) -> list[tuple[int, str, float]]:
    return [(row["step"], row["kind"], row["mlm_loss"]) for row in records(run)]


def test_values_are_split_outside_brackets_and_members_are_their_product():
    found = values_of("phases=((64,8,10),),((64,4,20),); seed=0,1")
    assert found == {"phases": ["((64,8,10),)", "((64,4,20),)"], "seed": ["0", "1"]}
    members = members_of({"optimizer.learning_rate": ["1e-3", "2e-3"], "seed": ["0", "1"]})
    assert [one.name for one in members] == [
        f"learning_rate={rate}_seed={n}" for rate in ("1e-3", "2e-3") for n in "01"
    ]
    both = members_of({"model.attention_dropout": ["0"], "start.attention_dropout": ["1"]})
    assert both[0].name == "model.attention_dropout=0_start.attention_dropout=1"
    assert take_sweep(["c.py", "sweep=seed=0,1", "halving=2", "x=1"]) == (
        SweepWords("seed=0,1", "2"),
        ["c.py", "x=1"],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("seed", "expected FIELD=VALUE,VALUE"),
        ("seed=1,,2", "expected FIELD=VALUE,VALUE"),
        ("seed=1;seed=2", "seed is there twice"),
        ("run=a,b", "must be the same for all members"),
        ("eval_batches=1,2", "must be the same for all members"),
        ("text_options.cased=yes,no", "must be the same for all members"),
    ],
)
def test_values_that_cannot_be_swept_are_refused(text: str, message: str):
    with pytest.raises(UserError, match=message):
        values_of(text)


def test_a_member_of_many_phases_has_a_name_that_a_file_system_takes(tmp_path: Path):
    phases = [f"({','.join(f'(32,{batch},10,0.15,(1.0,0.0,0.0))' for batch in range(8, 8 + n))})" for n in (1, 20, 21)]
    first, second, third = (member.name for member in members_of({"phases": phases}))
    assert first == "phases=-32-8-10-0.15-1.0-0.0-0.0-"
    for name in (second, third):
        (tmp_path / name).mkdir()


def test_halving_follows_successive_halving():
    """Jamieson and Talwalkar, algorithm 1: with n members and eta there are ceil(log_eta n) rungs, then one is left."""
    for eta in (2, 3, 4):
        for members in (1, 2, 3, 8, 9, 10, 27):
            rule, left = halving_of(str(eta), members), members
            assert rule is not None
            assert len(rule.shares) == next(k for k in range(9) if eta**k >= members)
            for share, power in zip(rule.shares, range(len(rule.shares), 0, -1), strict=True):
                assert share == eta**-power
                left = rule.kept(left)
            assert left == 1
    assert halving_of("3@0.1,0.5", 9) == Halving(3, (0.1, 0.5))
    assert halving_of(None, 4) is None
    for wrong in ("1", "x", "2@", "2@0.5,0.25", "2@0.5,1", "2@nan"):
        with pytest.raises(UserError, match="halving: found"):
            halving_of(wrong, 4)


def test_rungs_are_at_evaluations_of_their_own():
    config = PretrainConfig(phases=(Phase(32, 8, 70_000),), eval_every=1_000)
    assert legs_of(config, Halving(2, (0.1, 0.25, 0.5))) == [7_000, 18_000, 35_000, 70_000]
    assert legs_of(config, None) == [70_000]
    with pytest.raises(UserError, match="lower eval_every"):
        legs_of(config, Halving(2, (0.001, 0.002)))


@pytest.mark.slow
def test_branches_are_not_compared_before_they_begin(words: list[str], tmp_path: Path, caplog):
    trunk = [*words, "optimizer.schedule=stable", "optimizer.warmup_steps=1"]
    assert pretrain.main([*trunk, f"run={tmp_path / 'trunk'}"]) == EXIT_DONE
    branches = [*trunk, f"init={tmp_path / 'trunk'}", "init_optimizer=true", "init_step=true", "init_at=6"]
    branches += ["optimizer.decay_share=0.3", "phases=((32,8,10),)", "sweep=seed=1,2"]
    message = r"at step 6, .* begin at step 6; give shares above 0\.6, as in halving=2@0\.8"
    with pytest.raises(UserError, match=message):
        pretrain.main([*branches, "halving=2", f"run={tmp_path / 'early'}"])
    assert not (tmp_path / "early/members/seed=1/metrics.jsonl").exists()
    assert pretrain.main([*branches, "halving=2@0.8", f"run={tmp_path / 'branches'}"]) == EXIT_DONE
    assert sorted(len(one["losses"]) for one in record(tmp_path / "branches")["members"]) == [1, 2]
    for name in ("seed=1", "seed=2"):
        assert "; starting at step 6" in (tmp_path / "branches/members" / name / "run.log").read_text()
    assert "goodput.json is missing" not in caplog.text  # a new run has none, whatever its first step


def test_means_have_their_standard_errors():
    losses = [3.0, 3.5, 3.2]
    mean, error = mean_and_error(losses)
    assert mean == pytest.approx(np.mean(losses)) and error == pytest.approx(stats.sem(losses))
    assert math.isnan(mean_and_error([1.0])[1])


@pytest.mark.slow
def test_the_better_half_goes_on_and_the_table_is_sorted(straight: Path):
    members = record(straight)["members"]
    first = sorted(members, key=lambda one: one["losses"][0])
    assert all(len(one["losses"]) == 1 and one["ended"] == "stopped" for one in first[2:])
    second = sorted(first[:2], key=lambda one: one["losses"][1])
    assert (len(second[0]["losses"]), second[0]["ended"]) == (3, "done")
    assert (len(second[1]["losses"]), second[1]["ended"]) == (2, "stopped")
    for member in members:  # what is compared is in the run's own metrics
        own = {step: loss for step, kind, loss in scores(straight / "members" / member["name"]) if kind == "eval"}
        assert member["losses"] == [own[step] for step in (2, 4, 8)[: len(member["losses"])]]
    page = (straight / "sweep.md").read_text().splitlines()
    rates, seeds = second[0]["fields"].values()
    assert page[4].startswith(f"| {rates} | {seeds} | {second[0]['losses'][-1]:.4f} | 8 | done")
    assert (straight / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("how", ["turn", "together"])
def test_a_sweep_that_fails_before_its_first_step_leaves_nothing_behind(how: str, words: list[str], tmp_path: Path):
    command = [*words, "sweep=seed=0,1", f"sweep_in={how}", f"run={tmp_path / 'run'}"]
    with pytest.raises(UserError, match="init_step: needs another run's optimizer state"):
        pretrain.main([*command, "init_step=true"])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_member_equals_the_run_that_trains_alone(straight: Path, words: list[str], tmp_path: Path):
    winner = next(one for one in record(straight)["members"] if one["ended"] == "done")
    fields = [f"{name}={value}" for name, value in winner["fields"].items()]
    assert pretrain.main([*words, *fields, f"run={tmp_path / 'alone'}"]) == EXIT_DONE
    assert scores(tmp_path / "alone") == scores(straight / "members" / winner["name"])
    assert_equal_states(tmp_path / "alone", straight / "members" / winner["name"])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["inside", "after the leg", "after the record"])
def test_a_sweep_that_was_stopped_equals_one_that_was_not(
    where: str, straight: Path, words: list[str], tmp_path: Path, monkeypatch
):
    class KilledError(Exception):
        pass

    command = [*words, *SWEPT, f"run={tmp_path / 'stopped'}"]
    if where == "inside":
        with stopped_at(5):
            assert pretrain.main(command) == EXIT_PREEMPTED
    else:
        real, count = sweeps._Sweep._write, [0]

        def write(self) -> None:
            count[0] += 1
            if where == "after the record":
                real(self)
            if count[0] == 4:
                raise KilledError
            if where == "after the leg":
                real(self)

        monkeypatch.setattr(sweeps._Sweep, "_write", write)
        with pytest.raises(KilledError):
            pretrain.main(command)
    monkeypatch.undo()
    assert pretrain.main(command) == EXIT_DONE
    assert record(tmp_path / "stopped") == record(straight)
    for member in record(straight)["members"]:
        ours, theirs = (run / "members" / member["name"] for run in (tmp_path / "stopped", straight))
        assert scores(ours) == scores(theirs)
        assert_equal_states(ours, theirs)
    assert (tmp_path / "stopped" / "sweep.md").read_text() == (straight / "sweep.md").read_text()


@pytest.mark.slow
def test_compare_shows_all_members(straight: Path, tmp_path: Path, capsys):
    assert compare.main([str(straight), "--json", "--output", str(tmp_path / "c.png")]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [Path(row["run"]).name for row in found] == [one["name"] for one in record(straight)["members"]]


@pytest.mark.slow
def test_the_table_says_what_keeps_its_losses_from_being_compared(straight: Path, words: list[str], tmp_path: Path):
    run = tmp_path / "run"
    swept = ["sweep=phases=((32,8,2),),((48,8,2),)", f"run={run}"]
    assert pretrain.main([*(word for word in words if not word.startswith("phases=")), *swept]) == EXIT_DONE
    first, second = (one["name"] for one in record(run)["members"])
    assert (
        "\n\nNote: the runs are evaluated on rows of different lengths, so their losses do not compare "
        f"({first}: rows of 32; {second}: rows of 48)\n"
    ) in (run / "sweep.md").read_text()
    assert "Note:" not in (straight / "sweep.md").read_text()


@pytest.mark.slow
def test_members_that_fail_are_out_and_the_others_go_on(words: list[str], tmp_path: Path):
    run = tmp_path / "failing"
    more = ["sweep=optimizer.learning_rate=1e-3,0,1e30", "hopeless_after=1000", "max_skipped_in_a_row=1"]
    code = pretrain.main([*words, *more, f"run={run}"])
    ended = [one["ended"] for one in record(run)["members"]]
    assert ended[1] == "hopeless" and ended[2] in ("not finite", "hopeless")
    assert code == (EXIT_DONE if ended[0] == "done" else EXIT_HOPELESS)


@pytest.mark.slow
def test_members_that_end_with_their_time_have_the_loss_of_their_end(recipe: str, data: str, tmp_path, monkeypatch):
    monkeypatch.setattr(train.run.loop, "LOOK_EVERY", 2)
    monkeypatch.setattr(train.pretraining.job, "LOOK_EVERY", 2)
    monkeypatch.setattr(Meter, "spent", lambda _, step: Spent(256 * step, 2.0 * step, 0.0))
    budget = ["phases=((32,8,100),)", "stop_after=30s", "optimizer.schedule=stable", "optimizer.warmup_steps=2"]
    run = tmp_path / "run"
    more = ["eval_every=50", "eval_batches=1", "export_at_end=no", "sweep=seed=0,1"]
    assert pretrain.main([recipe, f"data={data}", *budget, *more, f"run={run}"]) == EXIT_DONE
    for member in record(run)["members"]:
        last = records(run / "members" / member["name"])[-1]
        step, loss = last["step"], last["mlm_loss"]
        assert step < 16 and last["kind"] == "eval" and member["losses"] == [loss]
        assert f"| {loss:.4f} | {step} | done |" in (run / "sweep.md").read_text()


@pytest.mark.slow
def test_a_sweep_that_is_stopped_while_a_member_ends_begins_no_other(words: list[str], tmp_path: Path, monkeypatch):
    """SIGTERM in the last evaluation, save or export of a member, which looks for no signal any more."""
    begun: list[str] = []

    def leg(launch, _) -> int:
        begun.append(Path(launch.run).name)
        with StopRequest(Stages(), 300) as stop:
            assert stop.exit_code(8) is None
            os.kill(os.getpid(), signal.SIGTERM)
        return EXIT_DONE

    monkeypatch.setattr(sweeps, "in_run_directory", leg)
    monkeypatch.setattr(sweeps, "_loss_at", lambda run, step: 1.0)
    with pytest.raises(Terminated):
        pretrain.main([*words, "sweep=seed=0,1", "sweep_in=turn", f"run={tmp_path / 'run'}"])
    assert begun == ["seed=0"]
    assert [one["ended"] for one in record(tmp_path / "run")["members"]] == ["done", None]


@pytest.mark.slow
def test_what_comes_of_failing_members_follows_the_codes(words: list[str], tmp_path: Path, monkeypatch):
    """Each member's leg ends with a code that the test chooses."""
    ends: dict[str, int] = {}
    monkeypatch.setattr(sweeps, "in_run_directory", lambda launch, _: ends[Path(launch.run).name])
    monkeypatch.setattr(sweeps, "_loss_at", lambda run, step: float(Path(run).name[-1]))
    more = [*words, "sweep=seed=0,1,2,3", "halving=2@0.5", f"run={tmp_path / 'codes'}"]
    ends |= {"seed=0": EXIT_NOT_FINITE, "seed=1": EXIT_HOPELESS, "seed=2": EXIT_DONE, "seed=3": EXIT_DONE}
    assert pretrain.main(more) == EXIT_DONE
    ended = [one["ended"] for one in record(tmp_path / "codes")["members"]]
    assert ended == ["not finite", "hopeless", "done", "done"]  # half of the four that began go on
    more[-1] = f"run={tmp_path / 'none'}"
    ends |= {"seed=2": EXIT_NOT_FINITE, "seed=3": EXIT_NOT_FINITE}
    assert pretrain.main(more) == EXIT_NOT_FINITE
    more[-1] = f"run={tmp_path / 'full'}"
    ends |= {"seed=1": 74}
    assert pretrain.main(more) == 74
    assert [one["ended"] for one in record(tmp_path / "full")["members"]] == ["not finite", None, None, None]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["sweep=optimizer.learning_rte=1,2"], "learning_rte is not a field"),
        (["sweep=seed=0,x"], "sweep: member seed=x: seed: found 'x'"),
        (["sweep=keep=2,1"], "sweep: member keep=1: keep: found 1"),
        (["sweep=seed=0,1", "seed=3"], "seed is also a word of its own"),
        (["sweep=seed=1,1.0"], "are the same"),
        (["halving=2"], "say sweep="),
        (["sweep=seed=0,1", "--dry-run"], "leave sweep= out"),
        (["sweep=data_temperature=1,2"], "sweep: data_temperature says how much .* say eval_data=DIR too"),
        (
            ["sweep=seed=0,1", "halving=2", "stop_after=9s", "optimizer.schedule=stable", "optimizer.warmup_steps=1"],
            "halving: .* stop_after= .*; leave one of the two out",
        ),
        (["sweep=seed=0,1", "text=x.txt"], "run python -m train.prepare first"),
    ],
)
def test_bad_words_are_refused_before_anything_is_written(more, message, words: list[str], tmp_path: Path):
    with pytest.raises(UserError, match=message):
        pretrain.main([*words, *more, f"run={tmp_path / 'bad'}"])
    assert not (tmp_path / "bad").exists()


@pytest.mark.slow
def test_a_sweep_keeps_its_values_and_its_directory(straight: Path, words: list[str]):
    with pytest.raises(UserError, match="was started with other values"):
        pretrain.main([*words, "sweep=seed=0,1", f"run={straight}"])
    with pytest.raises(UserError, match="was started with other values"):
        pretrain.main([*words, SWEPT[0], f"run={straight}", "sweep_in=together"])
    with pytest.raises(UserError, match="has a single run in it"):
        pretrain.main([*words, "sweep=seed=0,1", f"run={next((straight / 'members').iterdir())}"])


def test_the_directory_of_a_sweep_takes_no_single_run(words: list[str], tmp_path: Path):
    """With a config.json in it the sweep would not be taken up again."""
    write_json(tmp_path / sweeps.RECORD, {})
    with pytest.raises(UserError, match=r"has a sweep in it; say its sweep= too, or choose another run=$"):
        pretrain.main([*words, f"run={tmp_path}"])
    assert [path.name for path in tmp_path.iterdir()] == [sweeps.RECORD]


def test_a_sweep_keeps_its_config(words: list[str], tmp_path: Path, capsys):
    """Its finished members are not trained again, so nothing else would see that the others are to differ from them."""
    run = tmp_path / "sweep"
    command, trained = [*words, "sweep=seed=0,1", f"run={run}"], []

    def pretrain_in(directory: Any, launch: Any, goodput: Any, **options: Any) -> int:
        trained.append(launch.config.seed)
        write_json(directory.path / "config.json", to_json(launch.config))
        return EXIT_DONE if len(trained) == 1 else EXIT_PREEMPTED

    def sweep(*more: str) -> int:
        found, rest = take_sweep([*command, *more])
        assert found is not None
        return sweeps.sweep(found, rest, "", pretrain_in, pretrain.job_of)

    assert sweep() == EXIT_PREEMPTED
    with pytest.raises(UserError, match=r"this sweep was started with another config .*'linear' became 'cosine'"):
        sweep("optimizer.schedule=cosine")
    with pytest.raises(UserError, match="was started with other values or another rule"):
        sweep("halving=2")
    assert sweep("blimp_pairs=10") == sweep("log_every=1", "allow_change=log_every") == EXIT_PREEMPTED
    assert trained == [0, 1, 1, 1]


def test_the_rungs_of_a_sweep_stay(words: list[str], tmp_path: Path):
    """A resume with other evaluations would compare losses of other steps."""
    found, rest = take_sweep([*words, "sweep=seed=0,1", "halving=2", f"run={tmp_path / 'sweep'}"])
    assert found is not None
    stopped = lambda *_, **options: EXIT_PREEMPTED  # noqa: E731
    assert sweeps.sweep(found, rest, "", stopped, pretrain.job_of) == EXIT_PREEMPTED
    with pytest.raises(UserError, match=r'another rule .*"rungs": \{"seed=0": \[4, 8\]'):
        sweeps.sweep(found, [*rest, "eval_every=3", "allow_change=eval_every"], "", stopped, pretrain.job_of)
