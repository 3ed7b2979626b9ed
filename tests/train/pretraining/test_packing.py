"""Whether a run packs: by padding and devices, kept when it resumes; its batches, phases, evaluation and log."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.manifest import read_manifest, write_manifest
from bert_jax.data.pretraining.mixture import directories_in
from bert_jax.errors import UserError
from bert_jax.training.optimizer import OptimizerConfig
from tests.run_directory import records
from tests.unpacking import as_rows, unpacked
from train import plan, pretrain
from train.planning.machines import read_topology
from train.planning.planner import steps_on
from train.pretraining import job as pretraining
from train.pretraining.first_rows import rows_used_of_each, with_first_rows
from train.pretraining.fitted_model import with_model_for
from train.pretraining.mixture import MixedData
from train.pretraining.packing import continued_config, packing_told, with_packing
from train.pretraining.phases import Phase, rows_for
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData, RandomData
from train.run.config import load_recipe, to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE

PHASES = (Phase(48, 16, 5), Phase(32, 16, 3), Phase(48, 8, 4))


def config_of(data: str, **options) -> PretrainConfig:
    options = {"phases": PHASES, "optimizer": OptimizerConfig(warmup_steps=2), **options}
    return PretrainConfig(data=data, model=BertConfig.preset("tiny"), **options)


def packed_config(data: str, **options) -> tuple[PretrainConfig, PreparedData]:
    source = PreparedData(data)
    config = config_of(data, packing="yes", **options)
    return with_packing(with_model_for(config, source, frozenset()), source), source


@pytest.fixture(scope="module")
def run(recipe: str, data: str, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "packed"
    assert pretrain.main([recipe, f"data={data}", f"run={run}", "phases=((48,8,6),)", "packing=auto"]) == EXIT_DONE
    return run


@pytest.mark.parametrize("examples", [8, 48, 100, 256, 4096, 65_536])
@pytest.mark.parametrize("ratio", [1.03, 1.1, 1.366, 1.9, 2.7])
def test_a_batch_has_as_many_examples_as_the_recipe_says_in_rows_that_split(examples, ratio):
    rows = rows_for(examples, ratio)
    exact = examples / ratio
    assert rows == round(exact) or abs(rows * ratio - examples) <= 0.031 * examples
    power = rows & -rows
    assert not any(abs(n - exact) <= 0.03 * exact and n % (2 * power) == 0 for n in range(1, examples + 1))
    assert rows_for(examples, 1) == examples


def test_a_length_with_much_padding_is_packed(data: str):
    source = PreparedData(data)
    shares = [source.padding_share(length) for length in (32, 48)]
    assert shares[0] < 0.1 < shares[1], "the test needs a length with little padding and one with much"
    config = with_packing(config_of(data), source)
    ((length, ratio),) = config.packed
    found = source.batches(config, Phase(48, 4, 1))
    assert length == 48 and ratio == pytest.approx(len(found) / found.rows_per_epoch, abs=1e-3)
    padded = sum((array["attention_mask"] == 0).mean() for array in map(found.batch, range(20))) / 20
    assert source.padding(config, 48) == pytest.approx(padded, abs=0.02) and padded < shares[1] / 2
    assert source.padding(config, 32) == shares[0]
    assert with_packing(config_of(data, packing="no"), source).packed == ()
    assert with_packing(config_of("random"), RandomData(90, "nsp")).packed == ()


def test_little_padding_is_left_alone(data: str, monkeypatch):
    source = PreparedData(data)
    monkeypatch.setattr(source, "padding_share", lambda length: {32: 0.1, 48: 0.101}[length])
    assert [length for length, _ in with_packing(config_of(data), source).packed] == [48]
    assert [length for length, _ in with_packing(config_of(data, packing="yes"), source).packed] == [32, 48]


def test_packed_rows_that_do_not_divide_are_told_in_examples_as_phases_have_them():
    config = config_of("random", packed=((48, 1.15),), phases=((48, 16, 5),))
    (phase,) = config.phases_in_rows
    with pytest.raises(UserError, match=r"of 14 rows cannot be split evenly over 8 .* or a batch of 9 or 18 examples$"):
        config.parts_of(48, phase.batch, 8)
    assert [config.in_rows(Phase(48, batch, 1)).batch for batch in (9, 18)] == [8, 16]


def test_what_cannot_be_packed_is_said(data: str, monkeypatch):
    source = PreparedData(data)
    config = config_of(data)
    monkeypatch.setattr(jax, "device_count", lambda: 16)
    left = with_packing(config, source)
    assert left.packed == ()
    assert "not packed: phases: a batch of" in packing_told(left, source, PHASES[0])
    with pytest.raises(UserError, match=r"packing: phases: a batch of .* cannot be split evenly over 16 devices"):
        with_packing(dataclasses.replace(config, packing="yes"), source)
    with pytest.raises(UserError, match="packing: data=random has no padding"):
        with_packing(config_of("random", packing="yes"), RandomData(90, "nsp"))


def test_random_data_is_packed_as_the_config_says(data: str):
    config = config_of("random", packing="yes", packed=((32, 1.0), (48, 2.4)), phases=PHASES[:2])
    source = RandomData(90, "nsp")
    settled = with_packing(config, source)
    assert settled.packed == config.packed
    of_text, text = packed_config(data)
    for phase, most in zip(settled.phases_in_rows, (3, 1), strict=True):
        found = source.batches(settled, phase).batch(0)
        like = text.batches(of_text, phase).batch(0)
        assert {name: (a.dtype, a.ndim) for name, a in found.items()} == {
            name: (a.dtype, a.ndim) for name, a in like.items()
        }
        assert found["input_ids"].shape == (phase.batch, phase.length) and (found["attention_mask"] == 1).all()
        lengths = phase.length // most
        assert found["starts"].tolist() == [[lengths * number for number in range(most)]] * phase.batch
        for number in range(most):
            own = slice(lengths * number, lengths * (number + 1))
            assert (found["sequence_ids"][:, own] == number + 1).all()
            assert (found["position_ids"][:, own] == np.arange(lengths)).all()
            assert (found["token_type_ids"][:, own] == (np.arange(lengths) >= lengths // 2)).all()
        assert found["next_sentence_label"].shape == (phase.batch, most)
    batches, _ = source.evaluation_batches(settled, settled.phases[0])
    assert "sequence_ids" not in batches.batch(0)  # held-out examples have a row each


@pytest.mark.slow
def test_a_plan_without_data_has_the_rows_of_the_recipe(capsys):
    """Each recipe of the folder that packs: none is refused for lack of data."""
    for name, rows in (("two_hours", 64), ("night", 64), ("gpu_30min", 1056)):
        (phase, *_) = load_recipe(f"configs/{name}.py", PretrainConfig).phases
        small = f"phases=(({phase.length},{phase.batch},9),)"
        timeless = ["stop_after=none", "optimizer.schedule=linear", "optimizer.warmup_steps=none"]
        words = [f"configs/{name}.py", small, *timeless, "model.num_hidden_layers=1", "--topology", "h100:1", "--json"]
        assert plan.main(words) == EXIT_DONE
        (found,) = json.loads(capsys.readouterr().out)["plans"]
        assert found["phases"][0]["rows"] == rows, name


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_plan_counts_the_examples_that_share_rows(recipe: str, data: str, capsys):
    """Against the batches of the run: 20 of them have these tokens, and an epoch as many examples a row."""
    words = [recipe, f"data={data}", "packing=auto", "phases=((48,16,5),)", "--topology", "cpu:1", "--json"]
    assert plan.main(words) == EXIT_DONE
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)["plans"]
    (phase,), hours = found["phases"], found["hours"]
    source = PreparedData(data)
    config = with_packing(config_of(data, phases=((48, 16, 5),)), source, devices=1)
    rows = config.phases_in_rows[0]
    found = source.batches(config, rows)
    low, high = phase["step_seconds"]
    examples = rows.batch * len(found) / found.rows_per_epoch
    tokens = sum(found.batch(step)["attention_mask"].astype(bool).sum() for step in range(20)) / 20
    assert phase["rows"] == phase["device_rows"] == rows.batch < 16
    assert phase["sequences_per_second"] == [pytest.approx(examples / s, rel=1e-3) for s in (high, low)]
    assert phase["real_tokens_per_second"] == [pytest.approx(tokens / s, rel=0.03) for s in (high, low)]
    assert hours == [pytest.approx(5 * s / 3600) for s in (low, high)]
    assert f"cpu:1: a step has {rows.batch} rows of 48; packed: " in printed.err


@pytest.mark.eight_devices
def test_a_plan_packs_where_the_rows_split_over_the_devices_of_its_topology(data: str):
    config, source = config_of(data, phases=((48, 16, 5),)), PreparedData(data)
    for name, packs in (("cpu:1", True), ("cpu:8", False)):
        steps = steps_on(with_model_for(config, source, frozenset()), source, read_topology(name))
        assert steps.config.is_packed(48) == packs
        told = packing_told(steps.config, source, PHASES[0], devices=steps.mesh.size)
        assert ("not packed: phases: a batch of" in told) != packs


def test_a_resumed_run_stays_as_it_began(data: str):
    source = PreparedData(data)
    config = config_of(data)
    before = {"phases": [list(phase) for phase in PHASES]}  # of a run that is older than packing
    assert with_packing(config, source, before).packed == ()
    packed = {"phases": [[32, 16, 3]], "packing": "auto", "packed": [[32, 1.5]]}
    resumed = with_packing(config, source, packed)
    assert resumed.packed[0] == (32, 1.5) and resumed.packed[1][0] == 48
    with pytest.raises(UserError, match="packing: this run was started with packing=auto"):
        with_packing(dataclasses.replace(config, packing="no"), source, packed)


def test_phases_of_one_length_continue_the_rows(data: str, tmp_path: Path):
    config, source = packed_config(data)
    rows = [phase.batch for phase in config.phases_in_rows]
    assert rows[0] < 16 and rows[2] < 8
    job = pretraining.PretrainingJob(config, RunDirectory(str(tmp_path)), source, source)
    made = [{name: np.asarray(array) for name, array in batch.items()} for batch, _ in job.batches(0)]
    assert [batch["input_ids"].shape for batch in made] == [
        (of, phase.length) for of, phase in zip(rows, PHASES, strict=True) for _ in range(phase.steps)
    ]
    whole = source.batches(config, Phase(48, rows[0] * 5 + rows[2] * 4, 1)).batch(0)
    for name, array in whole.items():
        taken = np.concatenate([batch[name] for batch in made[:5] + made[8:]])
        np.testing.assert_array_equal(taken, array, err_msg=name)
    resumed = [np.asarray(batch["input_ids"]) for batch, _ in job.batches(10)]
    np.testing.assert_array_equal(resumed, [batch["input_ids"] for batch in made[10:]])


def test_a_run_continues_after_the_packed_rows_that_another_used(data: str):
    config, source = packed_config(data)
    facts = {"config": to_json(config), "data_digest": source.digest, "data_shares": [(1.0,)] * 3, "step": 10}
    rows = [phase.batch for phase in config.phases_in_rows]
    assert rows_used_of_each(facts) == {source.digest: {48: 5 * rows[0] + 2 * rows[2], 32: 3 * rows[1]}}


def test_rows_of_a_run_that_packed_are_not_those_of_one_that_does_not(data: str, monkeypatch):
    config, source = packed_config(data)
    facts = {"config": to_json(config), "data_digest": source.digest, "data_shares": [(1.0,)] * 3, "step": 10}
    monkeypatch.setattr(RunDirectory, "facts_to_resume", lambda self: facts)
    run: Any = SimpleNamespace(is_run=True, is_finetuning_run=False, name="runs/first", folder="runs/first")
    alone = dataclasses.replace(config_of(data, packing="no"), init="runs/first", init_data=True)
    with pytest.raises(
        UserError, match="init_data: its examples of 48 tokens are packed, and this run's are not packed"
    ):
        with_first_rows(alone, source, run)
    continued = with_first_rows(dataclasses.replace(config, init="runs/first", init_data=True), source, run)
    assert dict(continued.first_rows)[32] == 3 * config.phases_in_rows[1].batch
    # A length that only the first run used stays packed, for a run that continues from this one.
    other = dataclasses.replace(alone, phases=(Phase(40, 8, 2),))
    assert with_first_rows(other, source, run).packed == config.packed
    # At its step means in its rows.
    step = dataclasses.replace(config_of(data), init="runs/first", init_step=True, init_optimizer=True)
    assert continued_config(step, run) == facts["config"] and continued_config(alone, run) is None


def test_a_mixture_packs_each_part(data: str, corpus: Path, tmp_path: Path):
    from train.prepare import main

    other = tmp_path / "other"
    words = ["--vocab", data, "--max-seq-length", "48", "--dupe-factor", "1", "--workers", "1", "--seed", "5"]
    assert main([str(corpus), "--output", str(other), *words]) in (0, None)
    phases = (Phase(48, 16, 5),)
    config = config_of(f"{data},{other}", packing="yes", phases=phases, data_shares=((0.75, 0.25),))
    source = MixedData(config, directories_in(config.data or ""))
    config = with_packing(config, source)
    rows = config.phases_in_rows[0].batch
    batches = source.batches(config, config.phases_in_rows[0])
    whole = [batches.batch(step) for step in range(8)]
    alone = [
        as_rows(unpacked(part.batches(config, Phase(48, count, 1)).batch(0)))
        for part, count in zip(source.parts.values(), batches._pattern.before(8 * rows).tolist(), strict=True)
    ]
    found = [row for batch in whole for row in as_rows(unpacked(batch))]
    assert sorted(found) == sorted(alone[0] + alone[1])
    assert len(found) == pytest.approx(8 * 16, rel=0.1)


def test_data_without_the_order_by_length_is_trained_on_as_before(data: str, tmp_path: Path):
    import shutil

    old = tmp_path / "old"
    shutil.copytree(data, old)
    manifest = read_manifest(old)
    del manifest["splits"]["train"]["by_length"], manifest["checksum"]
    write_manifest(old, manifest)
    source, config = PreparedData(str(old)), config_of(str(old))
    assert with_packing(config, source).packed == ()
    assert "not packed: " in packing_told(config, source, PHASES[0])
    with pytest.raises(UserError, match="lacks the order of the examples by length, which packing needs; prepare"):
        with_packing(dataclasses.replace(config, packing="yes"), source)


@pytest.mark.slow
def test_a_packed_run_says_its_rows_and_padding_and_evaluates_as_without(run: Path, data: str):
    log = (run / "run.log").read_text()
    assert "; packed: 1.15 examples share a row, 8 a step; " in log and "% without packing" in log
    trained = records(run, "train")
    assert trained and all(0 <= row["padding_share"] < 0.15 for row in trained)
    speeds = [row for row in trained if "tokens_per_second" in row]
    assert speeds and all(
        row["real_tokens_per_second"] == pytest.approx(row["tokens_per_second"] * (1 - row["padding_share"]), rel=0.05)
        for row in speeds
    )
    assert json.loads((run / "config.json").read_text())["packed"] == [[48, 1.152]]
    # The first 2 x 8 held-out examples, each in a row of its own.
    source = PreparedData(data)
    held_out = source.batches(config_of(data), Phase(48, 16, 1), "held-out", shuffle=False).batch(0)
    of_class_1 = held_out["next_sentence_label"].mean()
    assert records(run, "eval")[0]["majority_accuracy"] == pytest.approx(max(of_class_1, 1 - of_class_1), abs=2 / 16)


@pytest.mark.slow
def test_a_dry_run_counts_the_rows_of_packed_examples(recipe: str, data: str, tmp_path: Path, capsys):
    words = [recipe, f"data={data}", f"run={tmp_path / 'none'}", "phases=((48,8,8),)", "packing=auto"]
    words += ["--dry-run", "--json"]
    assert pretrain.main(words) == EXIT_DONE
    packed = json.loads(capsys.readouterr().out)["phases"][0]
    assert packed["batch"] == 8 and packed["rows"] == 7
    assert packed["inputs"]["sequence_ids"]["shape"] == [7, 48]
    assert packed["positions"] == 8 * 7 * 48
    assert packed["padding_share"] < PreparedData(data).padding_share(48) / 2
