"""What a phase may have of its own: masks, corruption, a factor of the learning rate and dropout."""

import dataclasses
import gc
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.errors import UserError
from bert_jax.formats.training_record import training_record
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.moments import decay_by_tokens
from bert_jax.training.optimizer import OptimizerConfig, make_schedule
from tests.run_directory import assert_equal_states, records, state_of, stopped_at
from train import pretrain
from train.pretraining.fitted_model import with_model_for
from train.pretraining.job import PretrainingJob
from train.pretraining.phases import Phase, ramped_phases, settings_told
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData, RandomData
from train.pretraining.steps import Steps, check_kernels
from train.run.config import override, to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED
from train.run.fields import fields_of

PHASES = (
    Phase(32, 8, 5, mask=0.3, dropout=0.0),
    Phase(32, 16, 3, mask=0.15, rate=0.5),
    Phase(32, 8, 4, 0.05, (1, 0, 0), 0.1),
)


def config_of(phases=PHASES, **fields) -> PretrainConfig:
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=2)
    return PretrainConfig(optimizer=optimizer, phases=phases, model=BertConfig.preset("tiny"), **fields)


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, place = np.nonzero(batch["mlm_weights"])
    ids[row, batch["mlm_positions"][row, place]] = batch["mlm_labels"][row, place]
    return ids


@pytest.mark.slow
def test_phases_go_on_in_the_data_with_masks_of_their_own(data: str, tmp_path: Path):
    source = PreparedData(data)
    config = with_model_for(config_of(), source, frozenset())
    job = PretrainingJob(config, RunDirectory(str(tmp_path)), source, source)
    made = [{name: np.asarray(array) for name, array in batch.items()} for batch, _ in job.batches(0)]
    usual = source.batches(config_of(((32, 8, 20),)), Phase(32, 8, 20))
    rows = np.concatenate([unmasked(batch) for batch in made])
    np.testing.assert_array_equal(rows, np.concatenate([unmasked(usual.batch(step)) for step in range(15)]))
    for batches, share, width in ((made[:5], 0.3, 10), (made[5:8], 0.15, None), (made[8:], 0.05, 2)):
        for batch in batches:
            lengths = batch["attention_mask"].sum(axis=1)
            expected = [max(1, round(share * length)) for length in lengths.tolist()]  # create_pretraining_data.py
            np.testing.assert_array_equal(batch["mlm_weights"].sum(axis=1), expected)
            assert width in (None, batch["mlm_positions"].shape[1])
    for batch in made[8:]:  # all of the chosen tokens are [MASK]
        row, place = np.nonzero(batch["mlm_weights"])
        assert set(batch["input_ids"][row, batch["mlm_positions"][row, place]]) == {source.tokenizer.mask_token_id}
    resumed = [np.asarray(batch["input_ids"]) for batch, _ in job.batches(9)]
    np.testing.assert_array_equal(resumed, [batch["input_ids"] for batch in made[9:]])


@pytest.mark.parametrize(("with_predictions", "told"), [(3, ["62%"]), (4, [])])
def test_rows_without_a_token_to_predict_are_told(
    with_predictions: int, told: list[str], data: str, tmp_path, monkeypatch
):
    source, said = PreparedData(data), []
    job = PretrainingJob(with_model_for(config_of(), source, frozenset()), RunDirectory(str(tmp_path)), source, source)
    batch = {"mlm_weights": np.eye(8)[:, :with_predictions]}
    monkeypatch.setattr(job, "rows_of", lambda *_: SimpleNamespace(batch=lambda *_: batch))
    job.on_start(SimpleNamespace(say=said.append), resumed=False)
    assert [line.partition(" ")[0] for line in said if "of the first rows have no token to predict" in line] == told


@pytest.mark.parametrize(
    ("masking", "told"),
    [
        (None, []),
        (MaskingConfig(whole_word=True, corruption=(1, 0, 0)), []),
        (MaskingConfig(corruption=(1, 0, 0)), ["whole_word=True"]),
        (MaskingConfig(probability=0.3, whole_word=True), ["probability=0.3"]),
    ],
)
def test_masks_in_place_of_those_that_the_data_was_prepared_for_are_told(masking, told, data: str, tmp_path: Path):
    """One field of `masking` replaces them all, so that whole words are lost without a word about them."""
    source, said = PreparedData(data), []
    settings = source.manifest["settings"] | {"whole_word_masking": True}
    source.manifest = source.manifest | {"settings": settings}
    config = with_model_for(config_of(masking=masking), source, frozenset())
    job = PretrainingJob(config, RunDirectory(str(tmp_path)), source, source)
    job.on_start(SimpleNamespace(say=said.append), resumed=False)
    lines = [line for line in said if line.startswith("masks: ")]
    assert len(lines) == len(told) and all(word in line for word, line in zip(told, lines, strict=True))


def test_held_out_masks_do_not_follow_the_phase(data: str):
    source = PreparedData(data)

    def held_out(phase: Phase) -> dict[str, np.ndarray]:
        found = source.evaluation_batches(config_of((phase,)), phase)
        assert found
        return found[0].batch(0)

    usual = held_out(Phase(32, 8, 5))
    for name, array in held_out(Phase(32, 8, 5, 0.4, (1, 0, 0))).items():
        np.testing.assert_array_equal(array, usual[name])


def test_random_data_has_as_many_predictions_as_the_share_needs():
    config = config_of((Phase(32, 8, 5), Phase(32, 8, 5, 0.3)))
    for phase, width in zip(config.phases, (5, 10), strict=True):
        assert RandomData(90, "none").batches(config, phase).batch(0)["mlm_positions"].shape == (8, width)


@pytest.mark.slow
def test_the_rate_of_a_phase_multiplies_the_schedule_of_the_run():
    config = config_of()
    warm_up = optax.linear_schedule(0, 1e-3, 2)
    factors = [1.0] * 5 + [0.5] * 3 + [0.1] * 4
    expected = [f * (warm_up(s) if s < 2 else 1e-3 * (12 - s) / 12) for s, f in enumerate(factors)]
    schedule = make_schedule(config.optimizer, factors=config.rates)
    np.testing.assert_allclose([schedule(step) for step in range(12)], expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(np.arange(12)), expected, rtol=1e-6)
    assert config_of((Phase(32, 8, 5, 0.3),)).rates == ()


def test_phases_of_three_numbers_are_written_as_ever_and_longer_ones_come_back():
    config = config_of(((32, 8, 5), (32, 8, 4, None, None, 0.5)))
    assert to_json(config)["phases"] == [[32, 8, 5], [32, 8, 4, None, None, 0.5]]
    field = next(field for field in fields_of(config) if field.path == "phases")
    assert shlex.split(field.word) == ["phases=((32, 8, 5), (32, 8, 4, None, None, 0.5))"]
    saved = json.loads(json.dumps(to_json(config_of())))["phases"]
    assert config_of(tuple(saved)).phases == PHASES
    typed = override(config, {"phases": "((32, 8, 5, 0.3, (1, 0, 0)), (32, 8, 4))"})
    assert typed.phases == (Phase(32, 8, 5, 0.3, (1.0, 0.0, 0.0)), Phase(32, 8, 4))


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ((32, 8, 5, 1.5), r"phases: found the mask share 1.5 in \(32, 8, 5, 1.5\); expected one between 0 and 1"),
        ((32, 8, 5, 0.3, (0.8, 0.1)), r"phases: found \(0.8, 0.1\); expected the shares of \[MASK\]"),
        ((32, 8, 5, 0.3, (0.8, 0.3, -0.1)), "which add up to 1"),
        ((32, 8, 5, None, None, 0), "phases: found the learning-rate factor 0"),
        ((32, 8, 5, None, None, 1, 1), "phases: found the dropout 1 in .*; expected a rate from 0 to below 1"),
        ((32, 8, 5, None, None, 1, "no"), "phases: found the dropout 'no'"),
    ],
)
def test_wrong_settings_of_a_phase_are_refused(phase: tuple, says: str):
    with pytest.raises(UserError, match=says):
        config_of((phase,))


def test_a_number_of_predictions_for_all_contradicts_a_share_of_a_phase():
    masking = MaskingConfig(max_predictions=5)
    with pytest.raises(UserError, match=r"masking\.max_predictions=5 is for all; say masking.max_predictions=none"):
        config_of(masking=masking)
    assert config_of(((32, 8, 5, 0.15),), masking=masking)


def test_static_masks_and_a_share_of_a_phase_are_refused_at_the_start(data: str):
    source = PreparedData(data)
    source.manifest = {**source.manifest, "recipe": "google"}
    with pytest.raises(UserError, match=r"has masks of its own, and those of .*data are static"):
        source.check_masks(PHASES[0])
    source.check_masks(Phase(32, 8, 5, rate=0.5))


def test_a_ramp_has_as_many_examples_of_each_batch_and_all_of_its_steps():
    ramp = ramped_phases(32, (8, 16, 32), 700, mask=0.3)
    assert ramp == (Phase(32, 8, 400, 0.3), Phase(32, 16, 200, 0.3), Phase(32, 32, 100, 0.3))
    assert sum(phase.steps for phase in ramped_phases(32, (8, 24, 40, 56), 1001)) == 1001
    with pytest.raises(UserError, match="phases: 10 steps are too few for batches of 16, 64, 256"):
        ramped_phases(32, (16, 64, 256), 10)


@pytest.mark.slow
def test_the_second_moment_of_a_ramp_forgets_by_tokens():
    config = config_of(ramped_phases(32, (8, 16, 32), 7))
    at = decay_by_tokens(3000, config.batches)
    tokens = np.repeat([8, 16, 32], [4, 2, 1]) * 32.0
    for count in range(1, 8):
        b2, rest, corrected = at(jax.numpy.int32(count), jax.numpy.int32(count - 1))
        kept = 0.5 ** (tokens[count - 1] / 3000)
        expected = [kept, 1 - kept, 1 - 0.5 ** (tokens[:count].sum() / 3000)]
        np.testing.assert_allclose([b2, rest, corrected], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_run_resumes_to_the_bit_inside_each_phase(recipe: str, data: str, tmp_path: Path):
    words = [recipe, f"data={data}", f"phases={tuple(map(tuple, PHASES))}", "log_every=1", "optimizer.average_tail=0.5"]
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    assert pretrain.main([*words, f"run={through}"]) == EXIT_DONE
    for at in (3, 7, 10):
        with stopped_at(at):
            assert pretrain.main([*words, f"run={stopped}"]) == EXIT_PREEMPTED
    assert pretrain.main([*words, f"run={stopped}"]) == EXIT_DONE
    assert_equal_states(stopped, through)
    assert state_of(stopped)["step"] == 12
    config = config_of()
    expected = [float(make_schedule(config.optimizer, factors=config.rates)(s)) for s in range(12)]
    assert [row["learning_rate"] for row in records(stopped, "train")] == pytest.approx(expected, rel=1e-5)
    assert "rows of 32, 8 on a device, 5% masks, 100/0/0, rate x 0.1" in (stopped / "run.log").read_text()
    assert "32, 16, 3, 0.15" in training_record(stopped, 12)
    saved = tuple(json.loads((stopped / "config.json").read_text())["phases"])
    assert dataclasses.replace(config, phases=saved) == config


@pytest.mark.slow
def test_a_phase_has_dropout_of_its_own(recipe: str, data: str, tmp_path: Path, monkeypatch):
    """And its first step counts as one that compiles, for which no garbage is looked for."""
    words = [recipe, f"data={data}", "log_every=1", "eval_every=4"]
    none = [f"model.{name}=0" for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")]
    collects, step = [], PretrainingJob.train_step

    def note(self, state, batch, dropout):
        collects.append(gc.isenabled())
        return step(self, state, batch, dropout)

    monkeypatch.setattr(PretrainingJob, "train_step", note)
    runs = {
        "late": ["phases=((32, 8, 2, None, None, 1, 0), (32, 8, 2))"],
        "the same": ["phases=((32, 8, 2), (32, 8, 2, None, None, 1, 0.1))", *none],
        "never": ["phases=((32, 8, 4),)", *none],
    }
    losses = {}
    for name, more in runs.items():
        assert pretrain.main([*words, *more, f"run={tmp_path / name}"]) == EXIT_DONE
        losses[name] = [row["loss"] for row in records(tmp_path / name, "train")]
    assert collects == [False, True, False, True] * 2 + [False, True, True, True]
    assert_equal_states(tmp_path / "late", tmp_path / "the same")
    assert losses["late"][:2] == losses["never"][:2]
    assert losses["late"][2:] != losses["never"][2:]
    assert "rows of 32, 8 on a device, no dropout" in (tmp_path / "late" / "run.log").read_text()
    assert BertConfig.from_json(tmp_path / "late" / "export" / "config.json").hidden_dropout_prob == 0.1


@pytest.mark.slow
def test_a_phase_that_the_models_attention_cannot_compute_is_refused_before_the_first_begins():
    model = BertConfig.preset("tiny", num_hidden_layers=1, attention="kernel")
    config = dataclasses.replace(config_of(((128, 8, 2), (32, 8, 2))), model=model)
    source, mesh = RandomData(90, "none"), make_mesh(MeshConfig(data=1))
    with pytest.raises(UserError, match=r"phases: number 2, of length 32: model\.attention=kernel: found 32 queries"):
        check_kernels(config, source, mesh)
    check_kernels(dataclasses.replace(config, phases=((128, 8, 2),)), source, mesh)


def test_shares_of_a_phase_are_told_as_they_are():
    phase = Phase(8, 8, 8, mask=0.125, rate=0.5, dropout=0.004)
    assert settings_told(phase) == ", 12.5% masks, rate x 0.5, 0.4% dropout"


@pytest.mark.slow
def test_the_step_that_is_planned_for_a_phase_has_its_dropout():
    model = BertConfig.preset("tiny", num_hidden_layers=1)
    phase, config = Phase(32, 8, 2, dropout=0.0), dataclasses.replace(config_of(), model=model)
    programs = [
        str(Steps(one, RandomData(90, "none"), make_mesh(MeshConfig(data=1))).trace(of, 1).jaxpr)
        for one, of in (
            (config, phase),
            (dataclasses.replace(config, model=model.with_dropout(0.0)), phase._replace(dropout=None)),
            (config, phase._replace(dropout=None)),
        )
    ]
    assert programs[0] == programs[1] != programs[2]


@pytest.mark.slow
def test_a_ramp_with_masks_and_rates_resumes_to_the_bit_inside_each_piece(recipe: str, data: str, tmp_path: Path):
    pieces = zip(ramped_phases(32, (8, 16, 32), 12), (0.3, 0.15, 0.05), (1, 0.7, 0.4), strict=True)
    ramp = tuple(tuple(phase._replace(mask=mask, rate=rate)) for phase, mask, rate in pieces)
    assert [steps for _, _, steps, *_ in ramp] == [7, 3, 2]
    words = [recipe, f"data={data}", f"phases={ramp}", "optimizer.b2_half_life=3000", "optimizer.clock=tokens"]
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    assert pretrain.main([*words, f"run={through}"]) == EXIT_DONE
    for at in (4, 8, 11):
        with stopped_at(at):
            assert pretrain.main([*words, f"run={stopped}"]) == EXIT_PREEMPTED
    assert pretrain.main([*words, f"run={stopped}"]) == EXIT_DONE
    assert_equal_states(stopped, through)
    assert state_of(stopped)["step"] == 12
