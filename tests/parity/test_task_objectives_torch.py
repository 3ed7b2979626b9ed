"""Losses and gradients of fine-tuning are torch's, and the losses those of transformers' models."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from bert_jax.training.objectives import AnswerSpan, OneLabel, Regression, SeveralLabels

pytestmark = pytest.mark.parity

RNG = np.random.default_rng(0)


def ours(objective: Any, outputs: dict[str, np.ndarray], **batch: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rows = len(next(iter(outputs.values())))
    batch = {"weights": np.ones(rows, np.float32)} | {name: np.asarray(value) for name, value in batch.items()}

    def loss(outputs: dict) -> jax.Array:
        return objective.loss(objective.sums(lambda: SimpleNamespace(**outputs), batch), objective.denominators(batch))

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(outputs))


def compared(objective: Any, logits: np.ndarray, theirs: Any, **batch: Any) -> None:
    leaf = torch.tensor(logits, requires_grad=True)
    expected = theirs(leaf)
    expected.backward()
    loss, gradients = ours(objective, {"logits": logits}, **batch)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradients["logits"], leaf.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("shape", [(16,), (4, 6)])
def test_one_label_is_torchs_cross_entropy(shape: tuple[int, ...], weighed: bool, smoothing: float):
    logits = RNG.normal(size=(*shape, 5)).astype(np.float32)
    labels = RNG.integers(0, 5, shape)
    labels.flat[[1, 5]] = -100
    weights = np.array([0.5, 2, 1, 3, 0.25], np.float32) if weighed else None

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        weight = None if weights is None else torch.tensor(weights)
        flat = leaf.reshape(-1, 5), torch.tensor(labels).reshape(-1)
        return functional.cross_entropy(*flat, weight=weight, ignore_index=-100, label_smoothing=smoothing)

    objective = OneLabel(None if weights is None else jnp.asarray(weights), smoothing)
    compared(objective, logits, theirs, labels=labels)


def test_several_labels_are_torchs_binary_cross_entropy_and_numbers_its_squared_error():
    logits, labels = RNG.normal(size=(8, 3)).astype(np.float32) * 9, RNG.integers(0, 2, (8, 3)).astype(np.float32)
    wanted = torch.tensor(labels)
    compared(
        SeveralLabels(), logits, lambda leaf: functional.binary_cross_entropy_with_logits(leaf, wanted), labels=labels
    )
    factors = np.array([0.5, 1, 7], np.float32)
    weigh = partial(functional.binary_cross_entropy_with_logits, pos_weight=torch.tensor(factors))
    compared(SeveralLabels(jnp.asarray(factors)), logits, lambda leaf: weigh(leaf, wanted), labels=labels)
    values = torch.tensor(labels[:, 0])
    compared(Regression(), logits[:, :1], lambda leaf: functional.mse_loss(leaf.squeeze(), values), labels=labels[:, 0])


def test_losses_are_those_of_transformers_models():
    tiny = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    tiny |= {"intermediate_size": 12, "max_position_embeddings": 16, "initializer_range": 1.0}
    ids = torch.tensor(RNG.integers(1, 30, (4, 9)))

    def said(name: str, inputs: torch.Tensor, *, outputs: tuple[str, ...] = ("logits",), labels: Any, **config: Any):
        torch.manual_seed(0)
        model = getattr(transformers, name)(transformers.BertConfig(**tiny, **config)).eval()
        labels = labels if isinstance(labels, dict) else {"labels": labels}
        with torch.no_grad():
            found = model(inputs, **{key: torch.tensor(value) for key, value in labels.items()})
        return found.loss.item(), {key: found[key].numpy() for key in outputs}, labels

    sequence, tokens = "BertForSequenceClassification", "BertForTokenClassification"
    some = np.where(RNG.random((4, 9)) < 0.4, -100, RNG.integers(0, 3, (4, 9)))
    several = RNG.integers(0, 2, (4, 3)).astype(np.float32)
    numbers = RNG.normal(size=4).astype(np.float32)
    ends = {"start_positions": np.array([0, 3, 1, 0]), "end_positions": np.array([0, 8, 1, 2])}
    for objective, (expected, outputs, batch) in [
        (OneLabel(), said(sequence, ids, labels=np.array([0, 2, 1, 1]), num_labels=3)),
        (SeveralLabels(), said(sequence, ids, labels=several, num_labels=3, problem_type="multi_label_classification")),
        (Regression(), said(sequence, ids, labels=numbers, num_labels=1)),
        (OneLabel(), said(tokens, ids, labels=some, num_labels=3)),
        (OneLabel(), said("BertForMultipleChoice", ids[:, :8].reshape(2, 4, 4), labels=np.array([3, 0]))),
        (
            AnswerSpan(),
            said("BertForQuestionAnswering", ids, outputs=("start_logits", "end_logits"), labels=ends),
        ),
    ]:
        loss, _ = ours(objective, outputs, **batch, attention_mask=np.ones((len(ids), 9), np.int32))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
