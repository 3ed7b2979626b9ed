"""What fine-tuning minimises, against its definitions in float64: losses, gradients, figures, parts of a batch."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.objectives import AnswerSpan, OneLabel, Regression, SeveralLabels

RNG = np.random.default_rng(0)
WEIGHTS = np.array([1, 1, 0, 1, 1, 0], np.float32)
CLASS_WEIGHTS = np.array([0.5, 3.0, 1.25], np.float32)
TOKEN_LABELS = np.array([[0, -100, 2], [1, 1, -100], [2, 2, 2], [-100, -100, -100], [-100, 0, 1], [1, -100, 0]])
IS_CHOICE = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], bool)
MASK = np.arange(7) < np.array([7, 4, 6, 5, 7, 3])[:, None]


def drawn(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (RNG.normal(size=shape) * 2).astype(dtype)


# name -> objective, arrays that the model gives by name, what the batch has beside weights
CASES: dict[str, tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "sequences": (OneLabel(), {"logits": drawn(6, 3)}, {"labels": np.array([0, 2, 1, 1, 0, 2])}),
    "tokens": (OneLabel(), {"logits": drawn(6, 3, 3)}, {"labels": TOKEN_LABELS}),
    "smoothed": (OneLabel(None, 0.2), {"logits": drawn(6, 3)}, {"labels": np.array([0, 2, 1, 1, 0, 2])}),
    "weighed tokens": (OneLabel(jnp.asarray(CLASS_WEIGHTS)), {"logits": drawn(6, 3, 3)}, {"labels": TOKEN_LABELS}),
    "weighed and smoothed tokens": (
        OneLabel(jnp.asarray(CLASS_WEIGHTS), 0.3), {"logits": drawn(6, 3, 3)}, {"labels": TOKEN_LABELS},
    ),
    "choices": (
        OneLabel(), {"logits": drawn(6, 4)}, {"labels": np.array([3, 2, 0, 1, 1, 0]), "is_choice": IS_CHOICE},
    ),
    "smoothed choices": (
        OneLabel(None, 0.2), {"logits": drawn(6, 4)}, {"labels": np.array([3, 2, 0, 1, 1, 0]), "is_choice": IS_CHOICE},
    ),
    "several labels": (
        SeveralLabels(), {"logits": drawn(6, 3)}, {"labels": (RNG.random((6, 3)) < 0.5).astype(np.float32)},
    ),
    "weighed several labels": (
        SeveralLabels(jnp.asarray(CLASS_WEIGHTS)),
        {"logits": drawn(6, 3)}, {"labels": (RNG.random((6, 3)) < 0.5).astype(np.float32)},
    ),
    "numbers": (Regression(), {"logits": drawn(6, 1)}, {"labels": drawn(6)}),
    "answers": (
        AnswerSpan(), {"start_logits": drawn(6, 7), "end_logits": drawn(6, 7)},
        {
            "start_positions": np.array([6, 0, 1, 2, 3, 0]), "end_positions": np.array([6, 0, 5, 4, 3, 2]),
            "attention_mask": MASK.astype(np.int32),
        },
    ),
}  # fmt: skip


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum())


def defined(objective: Any, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> float:
    """The loss, written from the definition: label for label, in float64."""
    outputs = {name: values.astype(np.float64) for name, values in outputs.items()}
    outputs = {name: values.astype(np.float64) for name, values in outputs.items()}
    logits, labels, weights = outputs.get("logits", np.zeros(0)), batch.get("labels", np.zeros(0)), batch["weights"]
    total = share = 0.0
    for row in np.flatnonzero(weights):
        if isinstance(objective, AnswerSpan):
            for name in ("start", "end"):
                real = np.flatnonzero(batch["attention_mask"][row])
                total -= log_softmax(outputs[f"{name}_logits"][row, real])[batch[f"{name}_positions"][row]] / 2
            share += 1
        elif isinstance(objective, Regression):
            total, share = total + (logits[row, 0] - labels[row]) ** 2, share + 1
        elif isinstance(objective, SeveralLabels):
            p = 1 / (1 + np.exp(-logits[row]))
            ones = 1.0 if objective.positive_weights is None else np.asarray(objective.positive_weights)
            total, share = total - np.where(labels[row] == 1, ones * np.log(p), np.log(1 - p)).mean(), share + 1
        else:
            for x, label in zip(np.atleast_2d(logits[row]), np.atleast_1d(labels[row]), strict=True):
                if label == -100:
                    continue
                there = np.flatnonzero(batch["is_choice"][row]) if "is_choice" in batch else np.arange(len(x))
                weight = np.ones(len(x)) if objective.class_weights is None else np.asarray(objective.class_weights)
                smooth = objective.label_smoothing
                target = (1 - smooth) * (there == label) + smooth / len(there)
                total -= (target * weight[there] * log_softmax(x[there])).sum()
                share += weight[label]
    return float(total / share)


def slope(objective: Any, outputs: dict[str, np.ndarray], batch: dict[str, np.ndarray], h: float = 1e-5) -> dict:
    """The gradient of `defined`, by differences."""
    found = {}
    for name, values in outputs.items():
        found[name] = np.zeros(values.shape)
        for place in np.ndindex(*values.shape):
            shifted = [values.astype(np.float64) for _ in range(2)]
            shifted[0][place] += h
            shifted[1][place] -= h
            up, down = (defined(objective, outputs | {name: array}, batch) for array in shifted)
            found[name][place] = (up - down) / (2 * h)
    return found


def learnt(objective: Any, outputs: dict, batch: dict, parts: int = 1) -> tuple[float, dict, dict]:
    """Loss, gradients and figures as a step makes them: `parts` parts, each with the denominators of the whole."""
    key = id(objective), parts
    if key not in STEPS:
        STEPS[key] = objective, step_of(objective, parts)
    return jax.device_get(STEPS[key][1](outputs, batch))


# (id, parts) -> the objective, which may not be hashable and has to live for its id to be its own, and its step
STEPS: dict[tuple[int, int], tuple[Any, Any]] = {}


def step_of(objective: Any, parts: int) -> Any:
    @jax.jit
    def step(outputs: dict, batch: dict):
        denominators = objective.denominators(batch)

        def part(outputs: dict, rows: slice):
            found = SimpleNamespace(**{name: values[rows] for name, values in outputs.items()})
            sums = objective.sums(lambda: found, {name: values[rows] for name, values in batch.items()})
            return objective.loss(sums, denominators), sums

        of_parts = [
            jax.value_and_grad(part, has_aux=True)(outputs, slice(number, None, parts)) for number in range(parts)
        ]
        (loss, sums), gradients = jax.tree.map(lambda *values: sum(values), *of_parts)
        return loss, gradients, objective.metrics(sums)

    return step


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_definition(name):
    objective, outputs, batch = CASES[name]
    batch = batch | {"weights": WEIGHTS}
    loss, gradients, _ = learnt(objective, outputs, batch)
    np.testing.assert_allclose(loss, defined(objective, outputs, batch), rtol=1e-5)
    for key, expected in slope(objective, outputs, batch).items():
        np.testing.assert_allclose(gradients[key], expected, atol=1e-6)
        assert np.abs(expected[WEIGHTS == 1]).max() > 1e-2
        assert not gradients[key][WEIGHTS == 0].any()


@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_a_batch_add_up_to_the_whole(name):
    objective, outputs, batch = CASES[name]
    batch = batch | {"weights": WEIGHTS}  # the parts have 2, 1 and 1 rows that count
    whole, in_parts = (learnt(objective, outputs, batch, parts) for parts in (1, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), whole, in_parts)


@pytest.mark.parametrize("name", CASES)
def test_what_is_there_for_the_shape_alone_counts_nowhere(name):
    objective, outputs, batch = CASES[name]
    unlike = {key: values.copy() for key, values in outputs.items()}
    for values in unlike.values():
        values[WEIGHTS == 0] *= -7
    batch = batch | {"weights": WEIGHTS}
    jax.tree.map(
        np.testing.assert_array_equal, learnt(objective, outputs, batch)[::2], learnt(objective, unlike, batch)[::2]
    )
    loss, gradients, figures = learnt(objective, outputs, batch | {"weights": 0 * WEIGHTS})
    assert loss == 0
    assert not any(values.any() for values in gradients.values())
    assert all(value == 0 for value in figures.values())


def test_labels_of_which_no_class_weighs_anything_teach_nothing():
    objective = OneLabel(jnp.array([0.0, 1.0, 1.0]), 0.1)
    batch = {"labels": np.array([0, 0]), "weights": np.ones(2, np.float32)}
    loss, gradients, _ = learnt(objective, {"logits": drawn(2, 3)}, batch)
    assert loss == 0
    assert not gradients["logits"].any()


@pytest.mark.slow
def test_figures_are_shares_of_what_was_asked():
    def accuracy(objective: Any, outputs: dict, **batch: np.ndarray) -> float:
        weights = np.array([1, 1, 1, 0], np.float32)
        return float(learnt(objective, outputs, batch | {"weights": weights})[2]["accuracy"])

    logits = np.array([[5, 0, 0], [0, 5, 0], [0, 0, 5], [5, 0, 0]], np.float32)
    assert accuracy(OneLabel(), {"logits": logits}, labels=np.array([0, 1, 0, 0])) == pytest.approx(2 / 3)
    # A class's weight is no part of how often it is right.
    weighed = OneLabel(jnp.array([9.0, 1.0, 1.0]))
    assert accuracy(weighed, {"logits": logits}, labels=np.array([0, 1, 0, 0])) == pytest.approx(2 / 3)
    tokens = {"logits": np.stack([logits, logits, logits, logits])}
    labels = np.array([[0, 1, 2, -100], [-100, 0, -100, -100], [1, -100, -100, -100], [0, 1, 2, 0]])
    assert accuracy(OneLabel(), tokens, labels=labels) == pytest.approx(3 / 5)
    among = {"is_choice": np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 1]], bool)}
    assert accuracy(OneLabel(), {"logits": logits}, labels=np.array([0, 0, 2, 0]), **among) == pytest.approx(1)
    several = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 1, 1]], np.float32)
    assert accuracy(SeveralLabels(), {"logits": logits - 1}, labels=several) == pytest.approx(6 / 9)
    answers = {"start_logits": logits, "end_logits": logits[::-1].copy()}
    ends = {"start_positions": np.array([0, 1, 2, 0]), "end_positions": np.array([0, 2, 0, 0])}
    mask = np.ones((4, 3), np.int32)
    assert accuracy(AnswerSpan(), answers, **ends, attention_mask=mask) == pytest.approx(2 / 3)


def test_an_answers_loss_does_not_depend_on_the_padding():
    objective, outputs, batch = CASES["answers"]
    batch = batch | {"weights": WEIGHTS}
    wider = {name: np.pad(values, ((0, 0), (0, 9)), constant_values=50) for name, values in outputs.items()}
    mask = np.pad(batch["attention_mask"], ((0, 0), (0, 9)))
    narrow, wide = learnt(objective, outputs, batch), learnt(objective, wider, batch | {"attention_mask": mask})
    np.testing.assert_allclose(wide[0], narrow[0], rtol=1e-6)
    assert wide[2] == narrow[2]
    for name, gradient in narrow[1].items():
        np.testing.assert_allclose(wide[1][name][:, :7], gradient, atol=1e-7)
        assert not wide[1][name][mask == 0].any()
