"""Pretraining RoBERTa, ALBERT and DistilBERT: the model that fits the data, and the same steps on every mesh."""

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.errors import UserError
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.step import compile_eval_step, compile_train_step, init_state
from tests.train.pretraining.family_runs import BATCH, FAMILIES, LENGTH, fitted, prepare_for, small_config
from train.pretraining.fitted_model import fit_to_data
from train.pretraining.mixture import head_for
from train.pretraining.recipe import Phase
from train.pretraining.source import PreparedData, RandomData


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """family -> its prepared data, made once."""

    @cache
    def of(family: str) -> PreparedData:
        return PreparedData(str(prepare_for(family, tmp_path_factory.mktemp(family))))

    return of


def test_roberta_takes_its_padding_and_corners_from_the_tokenizer(data_of):
    model = fitted("roberta", data_of("roberta")).model
    assert (model.pad_token_id, model.bos_token_id, model.eos_token_id) == (1, 0, 2)
    assert model.vocab_size == data_of("roberta").vocab_size
    assert model.longest_input == model.max_position_embeddings - 2


def test_the_command_line_overrides_the_model(data_of):
    config = small_config("roberta")
    config = small_config("roberta", model=config.model.replace(pad_token_id=3, vocab_size=64))
    model = fit_to_data(config, data_of("roberta"), frozenset({"model.pad_token_id", "model.vocab_size"}))
    assert (model.pad_token_id, model.vocab_size, model.bos_token_id) == (3, 64, 0)


def test_positions_that_only_roberta_lacks_are_one_line(data_of):
    config = small_config("roberta")
    config = small_config("roberta", model=config.model.replace(max_position_embeddings=LENGTH + 1))
    with pytest.raises(UserError, match=rf"length {LENGTH} is more than the {LENGTH - 1} positions.* pad_token_id = 1"):
        fit_to_data(config, data_of("roberta"), frozenset())


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_pairs_are_not_for_families_without_them(family):
    config = small_config(family)
    with pytest.raises(UserError, match=r"objective nsp: say text_options\.objective=none"):
        fit_to_data(config, RandomData(50, "nsp"), frozenset())


def test_a_sentence_twice_is_not_for_a_model_with_one_token_type(tmp_path):
    data = PreparedData(str(prepare_for("bert", tmp_path, objective="none", rows="sentences", twice=0.5)))
    with pytest.raises(UserError, match=r"model\.type_vocab_size: found 1; .* say text_options\.twice=0 "):
        fitted("bert", data, type_vocab_size=1)


def test_random_tokens_without_pairs_are_all_of_the_first_type():
    sizes: dict[str, Any] = {"batch_size": 2, "max_seq_length": 8, "max_predictions": 2, "vocab_size": 20}
    assert not RandomBatches(**sizes, next_sentence=False).batch(0)["token_type_ids"].any()
    assert RandomBatches(**sizes).batch(0)["token_type_ids"].sum() == 2 * 4


def steps(family: str, data: PreparedData, devices: int, sizes: MeshConfig, **model: Any) -> Any:
    """Three steps with two accumulated parts each, dropout on: their metrics, the last moments, an evaluation's sums."""
    config = fitted(family, data, **model)
    mesh = make_mesh(sizes, jax.devices()[:devices])
    module = HEADS[head_for(data)](config.model)
    tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
    state = init_state(jax.random.key(0), module, tx, mesh=mesh)
    step = compile_train_step(module, tx, schedule, mesh, accumulation=2)
    batches, metrics = data.batches(config, config.phases[0]), []
    for number in range(3):
        state, found = step(state, batches.batch(number), jax.random.key(1))
        metrics.append(jax.device_get(found))
    held_out, _ = data.evaluation_batches(config, Phase(LENGTH, BATCH, 1)) or (None, 0)
    assert held_out
    sums = compile_eval_step(module, mesh)(state.params, held_out.batch(0))
    return metrics, jax.device_get(state.opt_state["moments"].mu), jax.device_get(sums)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("roberta", {"tie_word_embeddings": False}),  # 29 tokens: the tables are padded where tensor is 2
        pytest.param("albert", {"remat": "full"}, marks=pytest.mark.exhaustive),
        pytest.param("distilbert", {}, marks=pytest.mark.exhaustive),
    ],
    ids=FAMILIES,
)
@pytest.mark.eight_devices
def test_eight_devices_make_the_steps_of_one(data_of, family, model):
    data = data_of(family)
    one, one_moments, one_sums = steps(family, data, 1, MeshConfig(1, 1, 1), **model)
    eight, moments, sums = steps(family, data, 8, MeshConfig(2, 2, 2), **model | {"remat": "none"})
    assert all(row["finite"] == 1 for row in one)
    assert (one[-1]["nsp_loss"] > 0) == (family == "albert")
    for ours, theirs in zip(eight, one, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    for name, value in one_sums.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)
    noise = 1e-3 * float(optax.tree.norm(one_moments))  # the key bias has no gradient but rounding
    for ours, theirs in zip(jax.tree.leaves(moments), jax.tree.leaves(one_moments), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * max(np.linalg.norm(theirs), noise)


def test_held_out_rows_that_only_fill_the_batch_are_all_padding(data_of):
    data = data_of("roberta")
    config = fitted("roberta", data)
    count = data.examples(LENGTH, "held-out")
    batches, number = data.evaluation_batches(config, Phase(LENGTH, count + 3, 1)) or (None, 0)
    assert batches and number == 1
    batch = batches.batch(0)
    assert set(batch["input_ids"][count:].ravel().tolist()) == {1}
    assert not batch["mlm_weights"][count:].any() and not batch["attention_mask"][count:].any()
