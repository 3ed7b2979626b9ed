"""The parameters of `init=SOURCE`: heads that the source lacks, and what else may not be missing or broken."""

import logging
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.source import open_source
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.step import abstract_state
from bert_jax.tree import flatten
from tests import tiny
from train.pretraining.first_state import _check_same_moments, initial_parameters
from train.pretraining.recipe import PretrainConfig

MODEL = tiny.CONFIG.replace(vocab_size=16, layer_norm_eps=1e-5)


def source(path: Path, head: str = "pretraining") -> Path:
    """A folder in Hugging Face's layout with the parameters of one head."""
    return save_pretrained(path, MODEL, tiny.random_params(MODEL, 3, head), None, head=head)


@pytest.fixture(scope="module")
def states():
    """For an objective's head: shapes and layout of the parameters, and random values of them."""
    mesh, tx = make_mesh(MeshConfig()), make_optimizer(OptimizerConfig(warmup_steps=2, total_steps=20))

    def make(head: str):
        target = abstract_state(HEADS[head](MODEL), tx, mesh=mesh).params
        rng = np.random.default_rng(7)
        return target, jax.tree.map(
            lambda leaf: jax.device_put(rng.random(leaf.shape, np.float32), leaf.sharding), target
        )

    return {head: make(head) for head in ("pretraining", "mlm")}


def test_an_average_of_one_kind_is_not_continued_as_another():
    earlier = vars(OptimizerConfig(warmup_steps=2, average_half_life=900.0))
    ours = PretrainConfig(optimizer=OptimizerConfig(warmup_steps=2, average_tail=0.5))
    told = "has an average of its weights by optimizer.average_half_life, and this run an average .*average_tail"
    with pytest.raises(UserError, match=told):
        _check_same_moments(ours, SimpleNamespace(name="runs/trunk"), earlier)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize(
    ("head", "wanted", "drawn"),
    [
        ("pretraining", "pretraining", ()),
        ("pretraining", "mlm", ()),
        ("mlm", "pretraining", ("nsp_head", "bert/pooler")),
        ("encoder", "pretraining", ("mlm_head", "nsp_head")),
        ("encoder-no-pooler", "pretraining", ("mlm_head", "nsp_head", "bert/pooler")),
        ("sequence-classification", "mlm", ("mlm_head",)),
    ],
)
def test_heads_that_the_source_lacks_are_initialised_randomly_and_named(tmp_path, states, caplog, head, wanted, drawn):
    folder = source(tmp_path / "model", head)
    target, fresh = states[wanted]
    with caplog.at_level(logging.WARNING):
        found = flatten(initial_parameters(open_source(folder), target, fresh))
    theirs = flatten(source_arrays(folder, wanted))
    assert found.keys() == flatten(target).keys()
    for path, leaf in found.items():
        expected = flatten(fresh)[path] if path.startswith(drawn) and drawn else theirs[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=path)
        assert leaf.sharding == flatten(target)[path].sharding
    if drawn:
        assert f"has no {', '.join(drawn)}: initialised randomly" in caplog.text
    else:
        assert caplog.text == ""


def source_arrays(folder: Path, head: str):
    from bert_jax.formats.read import read_model

    return read_model(folder, head=head).params


@pytest.mark.parametrize("gone", ["cls.predictions.bias", "bert.encoder.layer.1.output.dense.weight"])
def test_half_a_head_or_anything_else_that_is_missing_is_an_error(tmp_path, states, gone):
    from safetensors.numpy import load_file, save_file

    folder = source(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors[gone]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="missing: ") as error:
        initial_parameters(open_source(folder), *states["pretraining"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_source_with_a_value_that_is_not_finite_is_refused_by_the_parameters_name(tmp_path, states, value):
    from safetensors.numpy import load_file, save_file

    folder = source(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"][0, 1] = value
    save_file(tensors, folder / "model.safetensors")
    named = r"^init: .*bert/encoder/layer_1/feed_forward/output/kernel that are not finite"
    with pytest.raises(UserError, match=named) as error:
        initial_parameters(open_source(folder), *states["pretraining"])
    assert "\n" not in str(error.value)
