"""What docs/research.md differentiates, against torch in float64 on the same weights: Hessian-vector products, rows' gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.flatten_util import ravel_pytree

from bert_jax.model.losses import sequence_classification_loss
from bert_jax.model.task_heads import BertForSequenceClassification
from tests.parity.test_families_transformers import config_of, make_inputs, our_tree, reference

pytestmark = pytest.mark.parity

HEAD = "sequence-classification"
CONFIG = config_of("bert", HEAD)
INPUTS = make_inputs(CONFIG, HEAD)
LABELS = np.array([2, 0, 1])


def tree_of(names, tensors):
    return our_tree(((name, tensor.float()) for name, tensor in zip(names, tensors, strict=True)), CONFIG, HEAD)


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


@pytest.fixture(scope="module")
def theirs() -> torch.nn.Module:
    return reference(CONFIG, HEAD).double()


def our_loss(params, inputs, labels):
    logits = BertForSequenceClassification(CONFIG).apply({"params": params}, **inputs).logits
    return sequence_classification_loss(logits, labels)


def test_a_hessian_vector_product_is_that_of_torch(theirs):
    names, parameters = zip(*theirs.named_parameters(), strict=True)
    torch.manual_seed(1)
    direction = [torch.randn(parameter.shape).double() for parameter in parameters]
    loss = theirs(**{name: torch.tensor(x) for name, x in INPUTS.items()}, labels=torch.tensor(LABELS)).loss
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    slope = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True))
    product = torch.autograd.grad(slope, parameters)

    inputs = {name: jnp.asarray(x, jnp.int32) for name, x in INPUTS.items()}

    @jax.jit
    def ours(params, along):
        return jax.jvp(lambda params: jax.grad(our_loss)(params, inputs, LABELS), (params,), (along,))

    found = ours(tree_of(names, parameters), tree_of(names, direction))
    for tree, tensors in zip(found, (gradient, product), strict=True):
        expected = flat(tree_of(names, tensors))
        np.testing.assert_allclose(flat(tree), expected, atol=1e-4 * np.abs(expected).max())


def test_gradients_of_each_row_are_those_of_torch(theirs):
    names, parameters = zip(*theirs.named_parameters(), strict=True)
    params = tree_of(names, parameters)
    inputs = {name: jnp.asarray(x, jnp.int32)[:, None] for name, x in INPUTS.items()}
    ours = jax.jit(jax.vmap(jax.grad(our_loss), in_axes=(None, 0, 0)))(params, inputs, jnp.asarray(LABELS)[:, None])
    for row in range(len(LABELS)):
        one = {name: torch.tensor(x[row : row + 1]) for name, x in INPUTS.items()}
        loss = theirs(**one, labels=torch.tensor(LABELS[row : row + 1])).loss
        expected = flat(tree_of(names, torch.autograd.grad(loss, parameters)))
        found = flat(jax.tree.map(lambda leaf, row=row: leaf[row], ours))
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
