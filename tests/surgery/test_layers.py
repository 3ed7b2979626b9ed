"""Students with some of their teacher's layers: which layers, and that they compute the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import BertForMaskedLM, BertForPreTraining
from bert_jax.surgery.pruning import distilbert_student, keep_layers
from tests import tiny

CONFIG = tiny.CONFIG.replace(num_hidden_layers=3, pruned_heads=((2, (1,)),))
WHOLE = CONFIG.replace(pruned_heads=())
IDS = jnp.array([[2, 5, 6, 7, 3, 0, 0], [2, 8, 9, 10, 11, 12, 3]])
MASK = (IDS != 0).astype(jnp.int32)


def run(model, params) -> Any:
    return model.apply({"params": params}, IDS, MASK, output_hidden_states=True)


@pytest.mark.slow
def test_kept_layers_move_up_with_their_pruned_heads():
    params = Bert(CONFIG).init(jax.random.key(0), IDS)["params"]
    config, student = keep_layers(CONFIG, params, [0, 2])
    assert config == CONFIG.replace(num_hidden_layers=2, pruned_heads=((1, (1,)),))
    assert set(student["encoder"]) == {"layer_0", "layer_1"}
    assert student["encoder"]["layer_1"] is params["encoder"]["layer_2"]
    np.testing.assert_array_equal(
        run(Bert(config), student).hidden_states[1], run(Bert(CONFIG), params).hidden_states[1]
    )


@pytest.mark.slow
def test_an_albert_applies_its_layer_less_often():
    config = WHOLE.replace(model_type="albert", embedding_size=6)
    params = Bert(config).init(jax.random.key(0), IDS)["params"]
    shallow, student = keep_layers(config, params, [0, 1])
    before = run(Bert(config), params).hidden_states
    np.testing.assert_allclose(run(Bert(shallow), student).hidden_states[-1], before[2], rtol=1e-6)


def test_an_electra_keeps_its_projection():
    config = WHOLE.replace(model_type="electra", embedding_size=6)
    params = tiny.random_params(config, 0, "mlm")
    shallow, student = keep_layers(config, params, [0, 2])
    assert jax.tree.map(np.shape, student) == jax.tree.map(np.shape, tiny.random_params(shallow, 0, "mlm"))
    assert student["bert"]["encoder"]["projection"] is params["bert"]["encoder"]["projection"]


@pytest.mark.slow
def test_a_distilbert_with_all_layers_predicts_what_its_teacher_does():
    params = BertForPreTraining(WHOLE).init(jax.random.key(0), IDS)["params"]
    config, student = distilbert_student(WHOLE, params, range(3))
    assert config.model_type == "distilbert"
    like = jax.eval_shape(lambda: BertForMaskedLM(config).init(jax.random.key(0), IDS)["params"])
    assert jax.tree.map(jnp.shape, student) == jax.tree.map(jnp.shape, like)
    logits = run(BertForMaskedLM(config), student).prediction_logits
    teacher = run(BertForPreTraining(WHOLE), params).prediction_logits
    np.testing.assert_allclose(logits, teacher, atol=1e-5)


def test_numbers_of_layers_may_come_from_an_array():
    tree = {"encoder": {f"layer_{number}": {} for number in range(3)}}
    for layers in ([0], [0, 2]):
        assert keep_layers(WHOLE, tree, np.array(layers)) == keep_layers(WHOLE, tree, layers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "layers", "line"),
    [
        (WHOLE, [], "expected ascending numbers from 0 to 2"),
        (WHOLE, [2, 0], "expected ascending numbers from 0 to 2"),
        (WHOLE, [0, 3], "expected ascending numbers from 0 to 2"),
        (WHOLE.replace(model_type="albert", num_hidden_groups=3), [0], "several groups"),
    ],
)
def test_layers_that_cannot_be_kept_are_named(config, layers, line):
    with pytest.raises(UserError, match=line):
        keep_layers(config, {"encoder": {}}, layers)


def test_the_rate_of_the_teacher_s_classifiers_stays_with_them():
    teacher = WHOLE.replace(classifier_dropout=0.1)
    config, _ = distilbert_student(teacher, tiny.random_params(teacher, 0), [0, 2])
    assert config == WHOLE.replace(model_type="distilbert", num_hidden_layers=2)


def test_a_teacher_is_refused_for_what_it_is():
    for fields, found in (
        ({"model_type": "roberta"}, "found 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "positions relative_key"),
        ({"is_decoder": True}, "is_decoder=True"),
    ):
        with pytest.raises(UserError, match=found):
            distilbert_student(WHOLE.replace(**fields), {}, [0])


@pytest.mark.parametrize("config", [CONFIG, WHOLE.replace(model_type="roberta", pad_token_id=1)])
def test_a_distilbert_starts_from_a_whole_bert_only(config):
    with pytest.raises(UserError, match="a DistilBERT starts from a BERT"):
        distilbert_student(config, {}, [0])
