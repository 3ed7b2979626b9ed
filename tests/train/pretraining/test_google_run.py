"""Continuing a pretraining run of Google's TF1 code: parameters, moments, step, and the next update."""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import to_stored
from bert_jax.formats.source import open_source
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint, write_bundle
from bert_jax.formats.tensorflow.names import is_of_optimizer, to_tf1
from bert_jax.model.heads import BertForMaskedLM, BertForPreTraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import abstract_state
from bert_jax.tree import as_numpy
from train import pretrain
from train.pretraining.first_state import first_state
from train.pretraining.recipe import Phase, PretrainConfig
from train.run.ending.stopping import EXIT_DONE

GOOGLE = OptimizerConfig(learning_rate=0.01, warmup_steps=0)


@pytest.fixture(scope="module")
def folder(data_dir: Path) -> Path:
    return data_dir / "checkpoints" / "keras-bert-tiny-adam"


@pytest.fixture(scope="module")
def variables(folder) -> dict[str, np.ndarray]:
    with Tf1Checkpoint(folder) as stored:
        return dict(stored)


def start(folder, *, model=BertForPreTraining, optimizer=GOOGLE, steps=10_000, **fields):
    """The state that a run of this config starts with, and its optimizer."""
    architecture = BertConfig.from_json(Path(folder) / "bert_config.json")
    config = PretrainConfig(
        model=architecture, optimizer=optimizer, phases=(Phase(16, 8, steps),), init=str(folder), init_optimizer=True
    )
    config = dataclasses.replace(config, **fields)
    tx = make_optimizer(config.optimizer, batches=config.batches)
    target = abstract_state(model(architecture), tx)
    zeros = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), target)
    state = first_state(config, target, lambda: zeros, open_source(str(config.init)))
    assert jax.tree.structure(state) == jax.tree.structure(target)
    leaves = jax.tree.leaves(state)
    assert all(leaf.sharding == want.sharding for leaf, want in zip(leaves, jax.tree.leaves(target), strict=True))
    assert len({id(leaf) for leaf in leaves}) == len(leaves)  # the training step donates each
    return state, tx, config


def by_googles_names(tree, folder, head="pretraining") -> dict[str, np.ndarray]:
    architecture = BertConfig.from_json(folder / "bert_config.json")
    return to_tf1(to_stored(as_numpy(jax.device_get(tree)), architecture, head), "bert")


def test_parameters_moments_and_count_come_out_of_googles_checkpoint(folder, variables):
    state, _, _ = start(folder)
    moments = state.opt_state["moments"]
    for tree, slot in ((state.params, ""), (moments.mu, "/adam_m"), (moments.nu, "/adam_v")):
        ours = by_googles_names(tree, folder)
        assert len(ours) == 46
        for name, array in ours.items():
            assert np.array_equal(array, variables[name + slot]), name + slot
    assert int(moments.count) == int(variables["global_step"]) > 0
    assert int(state.step) == 0
    assert (int(state.skipped_total), int(state.last_skipped_step)) == (0, -1)


@pytest.mark.slow
def test_the_step_comes_along_when_it_is_asked_for(folder, variables):
    state, _, config = start(folder, init_step=True)
    assert int(state.step) == int(variables["global_step"])
    schedule = make_schedule(config.optimizer)
    expected = 0.01 * (1 - int(variables["global_step"]) / 10_000)
    assert float(schedule(state.step)) == pytest.approx(expected, rel=1e-5)


def adam_weight_decay_optimizer(name, w, m, v, g, learning_rate):
    """google-research/bert's optimization.py, class AdamWeightDecayOptimizer, in float64."""
    w, m, v, g = (x.astype(np.float64) for x in (w, m, v, g))
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g**2
    update = m / (np.sqrt(v) + 1e-6)
    if not re.search("LayerNorm|layer_norm|bias", name):
        update = update + 0.01 * w
    return w - learning_rate * update, m, v


@pytest.mark.slow
def test_the_next_update_is_that_of_googles_optimizer(folder, variables):
    state, tx, _ = start(folder)
    generator = np.random.default_rng(0)
    grads = jax.tree.map(lambda p: generator.normal(size=p.shape).astype(np.float32), state.params)
    updates, opt_state = jax.jit(tx.update)(grads, state.opt_state, state.params, step=state.step)
    params = jax.tree.map(np.add, jax.device_get(state.params), jax.device_get(updates))

    google_grads = by_googles_names(grads, folder)
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in google_grads.values()))
    assert norm > 1  # so that it is clipped
    trees = (params, opt_state["moments"].mu, opt_state["moments"].nu)
    ours = [by_googles_names(tree, folder) for tree in trees]
    moved = 0.0
    for name, g in google_grads.items():
        before = [variables[name + slot] for slot in ("", "/adam_m", "/adam_v")]
        expected = adam_weight_decay_optimizer(name, *before, g / max(norm, 1), learning_rate=0.01)
        for what, tree, value in zip(("weights", "adam_m", "adam_v"), ours, expected, strict=True):
            np.testing.assert_allclose(tree[name], value, rtol=2e-5, atol=1e-7, err_msg=f"{name} {what}")
        moved = max(moved, float(np.abs(expected[0] - before[0]).max()))
    assert moved > 1e-3


@pytest.mark.slow
def test_with_bias_correction_the_moments_count_as_that_many_steps_old(folder, variables):
    corrected = dataclasses.replace(GOOGLE, bias_correction=True, weight_decay=0.0, clip_norm=0.0)
    state, tx, _ = start(folder, optimizer=corrected)
    grads = jax.tree.map(lambda p: np.zeros(p.shape, np.float32), state.params)
    updates, opt_state = jax.jit(tx.update)(grads, state.opt_state, state.params, step=state.step)
    count = int(variables["global_step"]) + 1
    assert int(opt_state["moments"].count) == count
    name = "bert/pooler/dense/kernel"
    m = 0.9 * variables[f"{name}/adam_m"].astype(np.float64) / (1 - 0.9**count)
    v = 0.999 * variables[f"{name}/adam_v"].astype(np.float64) / (1 - 0.999**count)
    expected = -0.01 * m / (np.sqrt(v) + 1e-6)
    np.testing.assert_allclose(by_googles_names(updates, folder)[name], expected, rtol=2e-5, atol=1e-9)


def test_a_masked_lm_takes_its_share(folder, variables):
    state, _, _ = start(folder, model=BertForMaskedLM)
    ours = by_googles_names(state.opt_state["moments"].mu, folder, head="mlm")
    assert len(ours) == 46 - 4  # neither pooler nor sentence pairs
    assert all(np.array_equal(array, variables[f"{name}/adam_m"]) for name, array in ours.items())


def changed(variables, tmp_path, folder, **changes) -> Path:
    """The checkpoint with some variables left out (None) or replaced."""
    tensors = {name: changes.get(name.replace("/", "."), array) for name, array in variables.items()}
    write_bundle(tmp_path / "model.ckpt-7", {name: array for name, array in tensors.items() if array is not None})
    (tmp_path / "bert_config.json").write_bytes((folder / "bert_config.json").read_bytes())
    return tmp_path


@pytest.mark.slow
def test_what_does_not_fit_is_one_line(folder, variables, tmp_path):
    no_step = changed(variables, tmp_path, folder, global_step=None)
    assert int(start(no_step)[0].opt_state["moments"].count) == 0
    for fields, said in (
        ({"init_step": True}, "init_step: .* has no global_step"),
        ({"optimizer": dataclasses.replace(GOOGLE, bias_correction=True)}, "bias_correction: .* has no global_step"),
    ):
        with pytest.raises(UserError, match=said):
            start(no_step, **fields)
    for changes, said in (
        ({"bert.pooler.dense.kernel.adam_v": None}, "has no moment adam_v of bert/pooler/kernel, which this run"),
        ({"bert.pooler.dense.bias": None}, "has no parameter of bert/pooler/bias, which this run"),
        (
            {"bert.pooler.dense.bias.adam_m": np.zeros(5, np.float32)},
            r"moment adam_m of bert/pooler/bias: bert.pooler.dense.bias has shape \(5,\); config and head need",
        ),
        ({name.replace("/", "."): None for name in variables if is_of_optimizer(name)}, "holds no moments of Google"),
    ):
        with pytest.raises(UserError, match=said) as raised:
            start(changed(variables, tmp_path, folder, **changes))
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_steps_that_cannot_be_continued_are_refused(folder, tmp_path, variables):
    step = int(variables["global_step"])
    with pytest.raises(UserError, match=rf"is at step {step}, and the phases end at step {step}: nothing is left"):
        start(folder, init_step=True, steps=step)
    with pytest.raises(UserError, match="init_step: needs another run's optimizer state; say init=RUN"):
        start(folder, init_step=True, init_optimizer=False)
    for other in (
        dataclasses.replace(GOOGLE, name="muon"),
        dataclasses.replace(GOOGLE, name="schedule-free", schedule="constant"),
    ):
        says = rf"Adam's moments of all .* optimizer\.name={other.name} .*; leave init_optimizer out"
        with pytest.raises(UserError, match=says):
            start(folder, optimizer=other)
    with pytest.raises(UserError, match="is not a run directory and has no TF1 checkpoint"):
        start(folder, init=str(tmp_path))


@pytest.mark.slow
def test_the_program_continues_where_googles_stopped(folder, variables, tmp_path, capfd):
    step = int(variables["global_step"])
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        '"""Goes on."""\n\nfrom train.pretraining.recipe import PretrainConfig\n\n\ndef get_config():\n    return PretrainConfig()\n'
    )
    words = [
        f"phases=((16, 8, {step + 3}),)",
        "optimizer.warmup_steps=0",
        "data=random",
        "model.vocab_size=15",
        f"run={tmp_path / 'run'}",
    ]
    words += [f"init={folder}", "init_optimizer=true", "init_step=true", "log_every=1"]
    assert pretrain.main([str(recipe), *words]) == EXIT_DONE
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir()] == [str(step + 3)]
    assert f"at step {step:,}" in capfd.readouterr().err
