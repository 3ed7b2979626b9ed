"""Predictions of whole sets: every example once and in its place, whatever batch it was computed in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import BatchPlan, evaluation_batches
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.labels import IGNORED_LABEL
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.objectives import AnswerSpan, OneLabel
from bert_jax.training.prediction import Predictor
from bert_jax.training.step import apply_to
from bert_jax.tree import unflatten

COUNT, LONGEST = 21, 12
CONFIG = BertConfig(
    vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=LONGEST,
).replace(labels=("a", "b", "c"))  # fmt: skip
RNG = np.random.default_rng(0)


def examples(head: str) -> Encoded:
    choices = 2 if head == "multiple-choice" else None
    lengths = RNG.integers(3, LONGEST + 1, COUNT * (choices or 1))
    total = int(lengths.sum())
    tokens = {"input_ids": RNG.integers(5, 30, total).astype(np.int32), "token_type_ids": np.zeros(total, np.int32)}
    pads = {"input_ids": 0, "token_type_ids": 0}
    targets = {"labels": RNG.integers(0, 2, COUNT).astype(np.int32)}
    if head == "token-classification":
        tokens["labels"], pads["labels"], targets = RNG.integers(0, 3, total).astype(np.int32), IGNORED_LABEL, {}
    elif head == "question-answering":
        targets = {name: RNG.integers(0, 3, COUNT).astype(np.int32) for name in ("start_positions", "end_positions")}
    elif head == "multiple-choice":
        targets["is_choice"] = np.ones((COUNT, 2), bool)
    return Encoded(tokens, pads, lengths, targets, choices)


def params_of(head: str) -> Any:
    rows = parameters_of(CONFIG, head).items()
    return unflatten({path: RNG.normal(size=row.shape).astype(np.float32) for path, row in rows})


def all_at_once(head: str, params: Any, found: Encoded) -> tuple[Any, dict[str, np.ndarray]]:
    """The model on one batch of everything, and that batch."""
    batch = found.batch(BatchPlan(np.arange(COUNT, dtype=np.int32), np.ones(COUNT, bool), LONGEST))
    model = HEADS[head](CONFIG)
    return jax.jit(lambda params, batch: apply_to(model, params, batch, deterministic=True))(params, batch), batch


def objective_of(head: str) -> Any:
    return AnswerSpan() if head == "question-answering" else OneLabel()


def loss_of(objective: Any, output: Any, batch: Any) -> float:
    return float(objective.loss(objective.sums(lambda: output, batch), objective.denominators(batch)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "head", ["sequence-classification", "token-classification", "question-answering", "multiple-choice"]
)
def test_outputs_are_those_of_the_model_without_batches(head: str):
    found, params, objective = examples(head), params_of(head), objective_of(head)
    output, batch = all_at_once(head, params, found)
    predict = Predictor(HEADS[head](CONFIG), make_mesh(MeshConfig(), jax.devices()[:1]), objective)
    names = ("start_logits", "end_logits") if head == "question-answering" else ("logits",)
    for size, padded in ((4, (6, LONGEST)), (COUNT + 3, (LONGEST,))):
        outputs, loss = predict(params, found, evaluation_batches(found.lengths, size, padded=padded))
        assert outputs.keys() == set(names)
        for name in names:
            expected = np.asarray(getattr(output, name))
            if head in ("token-classification", "question-answering"):
                real = batch["attention_mask"] > 0
                np.testing.assert_allclose(outputs[name][real], expected[real], atol=2e-5)
            else:
                np.testing.assert_allclose(outputs[name], expected, atol=2e-5)
        assert loss == pytest.approx(loss_of(objective, output, jax.tree.map(jnp.asarray, batch)), rel=1e-4)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_eight_devices_predict_what_one_does():
    head = "token-classification"
    found, params = examples(head), params_of(head)
    plans = evaluation_batches(found.lengths, 8, padded=(LONGEST,))
    one, eight = (
        Predictor(HEADS[head](CONFIG), make_mesh(MeshConfig(), jax.devices()[:count]), OneLabel())(params, found, plans)
        for count in (1, 8)
    )
    np.testing.assert_allclose(eight[0]["logits"], one[0]["logits"], atol=2e-5)
    assert eight[1] == pytest.approx(one[1], rel=1e-5)


@pytest.mark.slow
def test_without_labels_there_is_no_loss_and_the_order_of_batches_does_not_matter():
    head = "sequence-classification"
    found, params = examples(head), params_of(head)
    unlabelled = Encoded(found.tokens, found.pads, found.row_lengths, {})
    predict = Predictor(HEADS[head](CONFIG), make_mesh(MeshConfig(), jax.devices()[:1]), OneLabel())
    plans = evaluation_batches(found.lengths, 4, padded=(6, LONGEST))
    assert len({plan.length for plan in plans}) == 2
    outputs, loss = predict(params, unlabelled, plans)
    assert loss is None
    assert np.isfinite(outputs["logits"]).all()
    np.testing.assert_array_equal(predict(params, unlabelled, plans[::-1])[0]["logits"], outputs["logits"])
