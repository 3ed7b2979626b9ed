"""A linear probe: how well a linear classifier tells classes apart by a model's frozen vectors (arXiv:1610.01644)."""

from typing import NamedTuple

import numpy as np

_MOST_STEPS, _MOST_PRODUCTS = 100, 250
_TOLERANCE = 1e-8  # of the mean loss's gradient, largest entry


class LinearProbe(NamedTuple):
    """A classifier of standardised vectors.

    Attributes:
        mean, scale: float64 [D], the training vectors' mean and standard deviation; 1 in place of a deviation of 0.
        weights: float64 [C, D].
        bias: float64 [C].
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """Float64 [N, C], of vectors [N, D]."""
        return ((vectors - self.mean) / self.scale) @ self.weights.T + self.bias

    def classes(self, vectors: np.ndarray) -> np.ndarray:
        """The most probable class of each vector, int64 [N]."""
        return self.logits(vectors).argmax(1)


def fit_probe(vectors: np.ndarray, labels: np.ndarray, classes: int) -> LinearProbe:
    """Fits multinomial logistic regression to standardised vectors; the result depends on nothing but the arguments.

    The minimum of the cross-entropy's sum plus half the squared weights, without the bias: that of scikit-learn's
    `make_pipeline(StandardScaler(), LogisticRegression())`. The problem is convex. Newton's method finds its minimum;
    conjugate gradients solve each step.

    Args:
        vectors: floats [N, D].
        labels: ints [N], from 0 to `classes` - 1.
        classes: C.
    """
    x = np.asarray(vectors, np.float64)
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale == 0, 1.0, scale)
    x = np.append((x - mean) / scale, np.ones((len(x), 1)), axis=1)
    target = np.eye(classes)[labels]
    # Of two classes scikit-learn fits one row of weights w. Two rows, w/2 and -w/2, have half its square.
    penalty = np.full(x.shape[1], 2.0 if classes == 2 else 1.0)
    penalty[-1] = 0.0
    weights = np.zeros((classes, x.shape[1]))
    loss, probability = _loss(x, target, weights, penalty)
    for _ in range(_MOST_STEPS):
        gradient = (probability - target).T @ x + penalty * weights
        if np.abs(gradient).max() <= _TOLERANCE * len(x):
            break
        step = _newton_step(x, probability, penalty, gradient)
        slope, length = float((gradient * step).sum()), 1.0
        while length > 1e-10:
            new = _loss(x, target, weights + length * step, penalty)
            if new[0] <= loss + 1e-4 * length * slope:
                break
            length /= 2
        else:  # rounding hides what is left to gain
            break
        weights = weights + length * step
        loss, probability = new
    return LinearProbe(mean, scale, weights[:, :-1], weights[:, -1])


def _loss(x: np.ndarray, target: np.ndarray, weights: np.ndarray, penalty: np.ndarray) -> tuple[float, np.ndarray]:
    """The penalised loss, and the probabilities [N, C]."""
    logits = x @ weights.T
    logits -= logits.max(1, keepdims=True)
    exponentials = np.exp(logits)
    total = exponentials.sum(1, keepdims=True)
    loss = (np.log(total[:, 0]) - (logits * target).sum(1)).sum() + (penalty * weights**2).sum() / 2
    return float(loss), exponentials / total


def _newton_step(x: np.ndarray, probability: np.ndarray, penalty: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solves Hessian · step = -gradient by conjugate gradients, the more exactly the smaller the gradient is."""
    step, rest = np.zeros_like(gradient), -gradient
    direction, square = rest, float((rest**2).sum())
    enough = square * min(0.25, square**0.5 / len(x))
    for _ in range(_MOST_PRODUCTS):
        of_logits = probability * (x @ direction.T)
        of_logits -= probability * of_logits.sum(1, keepdims=True)
        product = of_logits.T @ x + penalty * direction
        curvature = float((direction * product).sum())
        if curvature <= 0:
            break
        step = step + square / curvature * direction
        rest = rest - square / curvature * product
        before, square = square, float((rest**2).sum())
        if square <= enough:
            break
        direction = rest + square / before * direction
    return step
