"""`sweep_in=together` and `merge=average`: members of one program equal single runs; branches of a trunk are averaged."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

import bert_jax
from bert_jax.errors import UserError
from bert_jax.training.optimizer_config import OptimizerConfig
from bert_jax.training.schedules import make_schedule
from tests.run_directory import TIMES, assert_equal_states, records, state_of, stopped_at, untimed
from train import compare, pretrain
from train.pretraining.first_state import _decay_begins
from train.pretraining.sweep import together
from train.pretraining.sweep.together import MemberLog, mean_of, train_together
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED

OF_ALL = ["eval_every=2", "eval_batches=1", "log_every=2", "save_every=3", "optimizer.schedule=stable"]
TRUNK = ["phases=((32,8,8),)", "optimizer.decay_share=0.25", "export_at_end=no", "keep=8"]
BRANCH = ["phases=((32,8,7),)", "init_optimizer=true", "init_step=true", "init_at=3"]
MEMBERS = {
    "decay_share=0.5_seed=1": ["optimizer.decay_share=0.5", "seed=1"],
    "decay_share=0.5_seed=2": ["optimizer.decay_share=0.5", "seed=2"],
    "decay_share=0.3_seed=1": ["optimizer.decay_share=0.3", "seed=1"],
    "decay_share=0.3_seed=2": ["optimizer.decay_share=0.3", "seed=2"],
}
SWEPT = ["sweep=optimizer.decay_share=0.5,0.3;seed=1,2", "merge=average"]


@pytest.fixture(scope="module")
def words(recipe: str, data: str, tmp_path_factory) -> list[str]:
    """What every branch has in common: it goes on from a checkpoint in the stable phase of a trunk that went further."""
    trunk = tmp_path_factory.mktemp("trunk") / "trunk"
    assert pretrain.main([recipe, f"data={data}", *OF_ALL, *TRUNK, f"run={trunk}"]) == EXIT_DONE
    return [recipe, f"data={data}", *OF_ALL, *BRANCH, f"init={trunk}"]


@pytest.fixture(scope="module")
def branches(words: list[str], tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("branches") / "branches"
    assert pretrain.main([*words, *SWEPT, f"run={run}"]) == EXIT_DONE
    return run


def exported(folder: Path) -> dict[str, np.ndarray]:
    from transformers import BertForPreTraining

    return {name: value.numpy() for name, value in BertForPreTraining.from_pretrained(folder).state_dict().items()}


@pytest.mark.slow
@pytest.mark.parity
def test_branches_of_one_program_equal_single_runs(branches: Path, words: list[str], tmp_path: Path):
    """With dropout on: metrics, weights, moments and exports, to rounding."""
    stacked = state_of(branches / "together")
    for number, (name, own) in enumerate(MEMBERS.items()):
        if number == 1:
            continue  # three are enough
        alone, member = tmp_path / name, branches / "members" / name
        assert pretrain.main([*words, *own, f"run={alone}"]) == EXIT_DONE
        ours, theirs = records(member), records(alone)
        assert [(row["kind"], row["step"]) for row in ours] == [(row["kind"], row["step"]) for row in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.keys() == b.keys() and {"mlm_loss", "nsp_loss", "seconds", "cpu_seconds"} <= a.keys()
            assert a["tokens"] == b["tokens"]
            same = a.keys() - {"kind", *TIMES}
            assert {key: a[key] for key in same} == pytest.approx({key: b[key] for key in same}, rel=1e-4)
        for path, leaf in state_of(alone).items():
            np.testing.assert_allclose(stacked[path][number], leaf, rtol=1e-3, atol=2e-6, err_msg=path)
    first, last = (
        exported(branches / "members" / name / "export")["bert.pooler.dense.weight"] for name in list(MEMBERS)[::3]
    )
    assert np.abs(first - last).max() > 1e-4  # they are not all the same


@pytest.mark.slow
@pytest.mark.parity
def test_the_export_is_the_mean_of_the_branches(branches: Path):
    members = [exported(branches / "members" / name / "export") for name in MEMBERS]
    for name, found in exported(branches / "export").items():
        mean = np.mean([member[name].astype(np.float64) for member in members], axis=0)
        np.testing.assert_allclose(found, mean, rtol=1e-7, atol=0, err_msg=name)
    assert bert_jax.load(str(branches / "export")) is not None
    last = records(branches / "together", "eval")[-1]
    assert last["step"] == 7 and last["average_mlm_loss"] > 0
    assert f"{last['average_mlm_loss']:.4f}" in (branches / "sweep.md").read_text()
    record = json.loads((branches / "sweep.json").read_text())
    evals = {name: records(branches / "members" / name, "eval") for name in MEMBERS}
    assert [(one["name"], one["losses"], one["ended"]) for one in record["members"]] == [
        (name, [evals[name][-1]["mlm_loss"]], "done") for name in MEMBERS
    ]


@pytest.mark.slow
def test_stopped_branches_go_on_to_the_bit(branches: Path, words: list[str], tmp_path: Path, capsys):
    command = [*words, *SWEPT, f"run={tmp_path / 'stopped'}"]
    with stopped_at(5):
        assert pretrain.main(command) == EXIT_PREEMPTED
    assert pretrain.main(command) == EXIT_DONE
    assert_equal_states(tmp_path / "stopped" / "together", branches / "together")
    for name in MEMBERS:
        ours, theirs = (records(run / "members" / name) for run in (tmp_path / "stopped", branches))
        assert untimed(ours) == untimed(theirs)
    capsys.readouterr()
    picture = str(tmp_path / "c.png")
    assert compare.main([str(tmp_path / "stopped"), "--by", "seconds", "--json", "--output", picture]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [Path(row["run"]).name for row in found] == list(MEMBERS)
    assert [row["tokens"] for row in found] == [(7 - 3) * 8 * 32] * 4


@pytest.mark.slow
def test_members_of_one_program_differ_in_their_start_and_their_masks(recipe: str, data: str, tmp_path: Path):
    own = {"start.gain": "0.5,2", "masking.corruption": "(0.8,0.1,0.1),(1,0,0)", "masking.probability": "0.05,0.2"}
    words = [
        recipe,
        f"data={data}",
        *OF_ALL,
        "phases=((32,8,4),)",
        "start.positions=fourier",
        "start.heads=((0,-1,1),)",
    ]
    words += ["packing=yes", "export_at_end=no"]
    swept = ";".join(f"{name}={values}" for name, values in own.items())
    assert pretrain.main([*words, f"sweep={swept}", "sweep_in=together", f"run={tmp_path / 'all'}"]) == EXIT_DONE
    stacked, runs = state_of(tmp_path / "all" / "together"), sorted((tmp_path / "all" / "members").iterdir())
    losses = [row["loss"] for run in runs for row in records(run, "train")[:1]]
    assert len(set(losses)) == len(losses) == 8
    last = ["start.gain=2", "masking.corruption=(1,0,0)", "masking.probability=0.2"]
    assert pretrain.main([*words, *last, f"run={tmp_path / 'alone'}"]) == EXIT_DONE
    for path, leaf in state_of(tmp_path / "alone").items():
        np.testing.assert_allclose(stacked[path][7], leaf, rtol=1e-3, atol=2e-6, err_msg=path)


@pytest.mark.slow
def test_a_branch_from_the_trunks_decay_is_refused(words: list[str], tmp_path: Path):
    """The trunk's last two of eight steps are its decay; a run that starts its own schedule may begin there."""
    command = [*(word for word in words if not word.startswith("phases")), "phases=((32,8,9),)", "eval_every=8"]
    more = r"begins at step 6; say init_at= the step of a checkpoint from before that \(3, 6\)$"
    for word, line in (
        ("init_at=8", f"init_at: at step 8 .*/trunk had begun its decay, .* {more}"),
        ("init_at=none", "init_step: "),
    ):
        with pytest.raises(UserError, match=line):
            pretrain.main([*command, word, f"run={tmp_path / 'late'}"])
    elsewhere = [word.replace("(32,8,9)", "(32,16,9)") for word in command]
    with pytest.raises(UserError, match=r"6 steps are done, .* or never; .* \(32, 8, 6\), or choose another seed=$"):
        pretrain.main([*elsewhere, "init_at=6", f"run={tmp_path / 'late'}"])
    assert not (tmp_path / "late").exists()
    for allowed in (["init_at=6"], ["init_at=8", "init_step=false", "phases=((32,8,3),)"]):
        assert pretrain.main([*command, *allowed, "export_at_end=no", f"run={tmp_path / allowed[0]}"]) == EXIT_DONE


@pytest.mark.slow
def test_where_a_decay_begins():
    def begins(budget: dict[str, Any] | None = None, **fields: Any) -> int | None:
        optimizer = {"schedule": "stable", "total_steps": 100, "decay_share": 0.2} | fields
        phases = [[32, 8, 50, 1.0], [64, 12, 50, 1.0]]
        return _decay_begins({"optimizer": optimizer, "phases": phases}, budget or {})

    assert begins() == 80
    assert begins(schedule="linear") is None
    assert begins({"decay": [17, 25]}) == 17  # of stop_after
    late = OptimizerConfig(schedule="stable", total_steps=100, decay_share=0.2, warmup_steps=1, clock="tokens")
    rates = np.asarray(make_schedule(late, batches=((50, 32 * 8), (50, 64 * 12)))(np.arange(100)))
    last_at_peak = int(np.flatnonzero(rates > rates.max() * (1 - 1e-6))[-1])
    assert begins(clock="tokens") == last_at_peak != 80


@pytest.mark.slow
def test_a_member_has_its_share_of_the_time_and_curves_of_its_own(branches: Path):
    """Wall-clock time is that of the program; processor time is an equal share. A member's row comes before the sum."""
    of_all = records(branches / "together")
    for name in MEMBERS:
        own = records(branches / "members" / name)
        assert [(row["kind"], row["step"]) for row in own] == [(row["kind"], row["step"]) for row in of_all]
        for before, row, after in zip([{"seconds": 0, "cpu_seconds": 0}, *of_all], own, of_all, strict=False):
            assert before["seconds"] <= row["seconds"] <= after["seconds"]
            assert before["cpu_seconds"] <= row["cpu_seconds"] * 4 + 0.002
            assert row["cpu_seconds"] * 4 <= after["cpu_seconds"] + 0.002
            assert row["tokens"] * 4 == after["tokens"]
        (fast,) = [row for row in own if "tokens_per_second" in row][-1:]
        all_at_once = next(row for row in of_all if row["step"] == fast["step"] and row["kind"] == "train")
        assert fast["tokens_per_second"] == pytest.approx(all_at_once["tokens_per_second"] / 4)
        assert fast["eta_seconds"] == all_at_once["eta_seconds"]
        assert (branches / "members" / name / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert "eval  step        7" in (branches / "members" / name / "run.log").read_text()


def test_the_console_shows_what_a_member_says_but_not_its_metrics(tmp_path: Path, capsys):
    told: list[str] = []
    (tmp_path / "seed=1").mkdir()
    with MemberLog(epath.Path(tmp_path) / "seed=1", told.append, start_step=0, total_steps=2) as log:
        log.record("eval", 2, {"mlm_loss": 1.5})
        log.say("the disk is full")
    kept = (tmp_path / "seed=1" / "run.log").read_text()
    assert "eval  step        2  mlm_loss 1.5" in kept and "the disk is full" in kept
    assert told == ["seed=1: the disk is full"] and capsys.readouterr().err == ""


def test_the_average_of_a_sweep_on_a_bucket_goes_to_the_bucket(monkeypatch):
    places: list[epath.Path] = []

    @contextmanager
    def job(members: object, run: object, export: epath.Path) -> Iterator[None]:
        yield places.append(export)

    monkeypatch.setattr(together, "TogetherJob", job)
    monkeypatch.setattr(together, "train", lambda *job: EXIT_DONE)
    nothing: Any = None
    run = RunDirectory("gs://bucket/sweep/together")
    train_together(run, nothing, nothing, launches={}, job_of=nothing, merge=True)
    assert [str(path) for path in places] == ["gs://bucket/sweep/export"]


def test_the_mean_is_numpys_of_the_good_members():
    leaf = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    found = mean_of({"a": leaf}, np.array([True, False, True, True]))["a"]
    np.testing.assert_array_equal(found, np.mean(leaf[[0, 2, 3]].astype(np.float64), axis=0).astype(np.float32))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["sweep=optimizer.b1=0.9,0.8", "sweep_in=together"], "sweep_in: member b1=0.8 differs in optimizer.b1"),
        (["sweep=seed=0,1", "sweep_in=both"], "expected turn or together or auto"),
        (["sweep=seed=0,1", "sweep_in=turn", "merge=average"], "say sweep_in=together"),
        (["sweep=seed=0,1", "merge=average", "halving=2"], "merge: halving stops .* leave one of the two out"),
        (["sweep=seed=0,1", "sweep_in=together", "halving=2"], "sweep_in: halving stops .* leave one of the two out"),
        (["sweep=seed=0,1", "merge=average", "hopeless_after=9"], "merge: hopeless_after"),
        (["sweep=optimizer.decay_share=0.1,0.2", "merge=average"], "schedule=stable"),
        (["merge=average"], "say sweep="),
    ],
)
def test_bad_words_are_refused_before_anything_is_written(more, message, recipe: str, data: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        pretrain.main([recipe, f"data={data}", "eval_every=2", *more, f"run={tmp_path / 'bad'}"])
    assert not (tmp_path / "bad").exists()
