"""One pretraining step of each family, and one of distillation, against transformers and torch: loss and gradients.

The batch is from prepared text, the weights go over in an exported folder, dropout is off. Gradients are read off the
first moments, which after one unclipped update are (1 - b1) times them.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.formats.names.parameters import architecture_of, parameters_of
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS, BertForMaskedLM
from bert_jax.training.distillation import Distillation, DistillationConfig
from bert_jax.training.objectives import PRETRAINING, Objective
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import init_state, train_step
from bert_jax.tree import flatten
from tests.train.pretraining.family_runs import fitted, prepare_for
from train.pretraining.mixture import head_for
from train.pretraining.source import PreparedData

pytestmark = [pytest.mark.parity, pytest.mark.slow]

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, total_steps=10, clip_norm=0.0)
STILL: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}


def our_step(config: BertConfig, head: str, batch: Any, objective: Objective = PRETRAINING) -> tuple[Any, float, Any]:
    """Parameters before the step, its loss, and flat gradients."""
    model, tx, schedule = HEADS[head](config), make_optimizer(OPTIMIZER), make_schedule(OPTIMIZER)
    state = init_state(jax.random.key(0), model, tx)

    def step(state: Any, objective: Objective) -> Any:
        return train_step(state, batch, jax.random.key(1), objective, model=model, tx=tx, schedule=schedule)

    after, metrics = jax.jit(step)(state, objective)
    moments = flatten(jax.device_get(after.opt_state["moments"].mu))
    return jax.device_get(state.params), float(metrics["loss"]), {k: v / (1 - 0.9) for k, v in moments.items()}


def theirs_from(config: BertConfig, head: str, params: Any, folder: Path) -> Any:
    """transformers' model with our parameters, loaded without a warning."""
    save_pretrained(folder, config, params, None, head=head)
    their_class = getattr(transformers, architecture_of(config, head))
    model, said = their_class.from_pretrained(folder, output_loading_info=True)
    assert not any(said[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def tensors(batch: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs without token types, and labels [B, L] with -100 where nothing is predicted."""
    labels = np.full(batch["input_ids"].shape, -100)
    for row, weights in enumerate(batch["mlm_weights"]):
        labels[row, batch["mlm_positions"][row][weights > 0]] = batch["mlm_labels"][row][weights > 0]
    inputs = {name: torch.tensor(batch[name].astype(np.int64)) for name in ("input_ids", "attention_mask")}
    return inputs, torch.tensor(labels)


def assert_same_gradients(config: BertConfig, head: str, ours: dict[str, np.ndarray], theirs: Any) -> None:
    named = dict(theirs.named_parameters())
    for path, row in parameters_of(config, head).items():
        grad = named[row.key].grad
        expected = np.zeros(row.stored_shape) if grad is None else grad.numpy()
        expected = expected.T if row.transposed else expected
        scale = max(np.abs(expected).max(), 1e-3)  # the key bias has no gradient but rounding
        np.testing.assert_allclose(ours[path], expected, atol=2e-5 * scale, rtol=0, err_msg=path)


def tells_apart(batch: Any) -> bool:
    """Whether there are rows with padding, and where there are pairs, of both kinds."""
    labels = set(batch.get("next_sentence_label", np.array([0, 1])).tolist())
    return not batch["attention_mask"].all() and labels == {0, 1}


@pytest.mark.parametrize("family", ["roberta", "albert", "distilbert"])
def test_the_loss_of_a_step_is_transformers_own(family: str, tmp_path: Path):
    data = PreparedData(str(prepare_for(family, tmp_path / "prepared")))
    own = {"classifier_dropout": 0.0} if family == "albert" else {}
    config = fitted(family, data, **STILL, **own)
    batches, head = data.batches(config, config.phases[0]), head_for(data)
    batch = next(batch for batch in map(batches.batch, range(20)) if tells_apart(batch))
    params, loss, gradients = our_step(config.model, head, batch)
    model = theirs_from(config.model, head, params, tmp_path / "model")
    inputs, labels = tensors(batch)
    if family == "albert":
        inputs["token_type_ids"] = torch.tensor(batch["token_type_ids"].astype(np.int64))
        inputs["sentence_order_label"] = torch.tensor(batch["next_sentence_label"].astype(np.int64))
    output = model(**inputs, labels=labels)
    output.loss.backward()
    assert loss == pytest.approx(output.loss.item(), rel=1e-5)
    assert_same_gradients(config.model, head, gradients, model)


@pytest.mark.parametrize("restrict", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_step_of_distillation_is_the_one_of_distilberts_code(restrict: bool, tmp_path: Path):
    """The losses of its `Distiller.step`: torch's own KLDivLoss, CrossEntropyLoss and CosineEmbeddingLoss."""
    data = PreparedData(str(prepare_for("distilbert", tmp_path / "prepared")))
    student = fitted("distilbert", data, **STILL)
    batch = data.batches(student, student.phases[0]).batch(0)
    theirs = student.model.replace(model_type="bert", num_hidden_layers=3)
    ids = jnp.zeros((1, 1), jnp.int32)
    teacher_params = BertForMaskedLM(theirs).init(jax.random.key(5), ids)["params"]
    weights = DistillationConfig(restrict_ce_to_mask=restrict)
    objective = Distillation(teacher_params, BertForMaskedLM(theirs), weights)
    params, loss, gradients = our_step(student.model, "mlm", batch, objective)

    model = theirs_from(student.model, "mlm", params, tmp_path / "student")
    teacher = theirs_from(theirs, "mlm", jax.device_get(teacher_params), tmp_path / "teacher")
    inputs, labels = tensors(batch)
    s = model(**inputs, output_hidden_states=True)
    with torch.no_grad():
        t = teacher(**inputs, output_hidden_states=True)
    attended = inputs["attention_mask"].bool()
    learnt = labels > -1 if restrict else attended
    kl = torch.nn.KLDivLoss(reduction="batchmean")(
        (s.logits[learnt] / 2).log_softmax(-1), (t.logits[learnt] / 2).softmax(-1)
    )
    mlm = torch.nn.CrossEntropyLoss(ignore_index=-100)(s.logits.flatten(0, 1), labels.flatten())
    last, wanted = s.hidden_states[-1][attended], t.hidden_states[-1][attended]
    cosine = torch.nn.CosineEmbeddingLoss(reduction="mean")(last, wanted, torch.ones(len(last)))
    expected = 5.0 * 2.0**2 * kl + 2.0 * mlm + 1.0 * cosine
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(student.model, "mlm", gradients, model)
