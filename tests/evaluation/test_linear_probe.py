"""The linear probe against scikit-learn's logistic regression."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bert_jax.evaluation.linear_probe import fit_probe


@pytest.mark.parametrize(("classes", "noise"), [(2, 3.0), (2, 0.0), (5, 3.0)])
def test_it_is_scikit_learns_logistic_regression(classes: int, noise: float):
    generator = np.random.default_rng(classes)
    normal = generator.normal(size=(300, 12))
    logits = normal @ generator.normal(size=(12, classes))
    vectors = normal * np.logspace(-2, 2, 12) + 5
    vectors[:, 3] = 7.0  # a feature without a spread
    labels = (logits + noise * generator.gumbel(size=logits.shape)).argmax(1)
    train, test = slice(0, 200), slice(200, None)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000))
    theirs.fit(vectors[train], labels[train])
    probe = fit_probe(vectors[train].astype(np.float32), labels[train], classes)
    odds = np.exp(probe.logits(vectors[test]))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), theirs.predict_proba(vectors[test]), atol=1e-4)
    np.testing.assert_array_equal(probe.classes(vectors[test]), theirs.predict(vectors[test]))


def test_vectors_that_say_nothing_give_the_most_frequent_class():
    probe = fit_probe(np.ones((10, 4)), np.array([1] * 7 + [0] * 3), 2)
    np.testing.assert_array_equal(probe.classes(np.ones((3, 4))), [1, 1, 1])
    np.testing.assert_allclose(np.exp(probe.logits(np.ones((1, 4)))[0]).tolist(), [(3 / 7) ** 0.5, (7 / 3) ** 0.5])
