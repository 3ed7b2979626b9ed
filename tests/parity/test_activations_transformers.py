"""Activations, their slopes and the gradients of their parameters against transformers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bert_jax.config import HIDDEN_ACTS
from bert_jax.model.layers import ACTIVATIONS, Activation, activate

# How exact tanh is depends on what XLA makes of it.
pytestmark = [pytest.mark.parity, pytest.mark.optimized]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_slopes_equal_transformers(name):
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    tensor = torch.tensor(x, requires_grad=True)
    theirs = transformers.activations.ACT2FN[name](tensor)
    theirs.sum().backward()
    ours, slope = jax.vmap(jax.value_and_grad(lambda x: activate(x, name)))(x)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-6, atol=2e-6)
    # At a kink (0 for relu, -3 for hardswish) the slope is a convention.
    smooth = ~np.isin(x, np.array([-10, -6, -3, 0, 3, 6, 10], np.float32))
    np.testing.assert_allclose(np.asarray(slope)[smooth], tensor.grad.numpy()[smooth], rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["prelu", "xielu"])
def test_activations_with_parameters_their_slopes_and_their_gradients_equal_transformers(name):
    theirs = transformers.activations.ACT2FN[name].float()
    ours = Activation(name)
    x = np.linspace(-12, 12, 4000, dtype=np.float32)
    initial = ours.init(jax.random.key(0), x)["params"]
    # transformers makes those of xielu in bfloat16.
    for path, parameter in theirs.named_parameters():
        np.testing.assert_allclose(initial[path], parameter.detach().numpy(), rtol=4e-3)
        parameter.data += 0.3
    params = {path: jnp.asarray(parameter.detach().numpy()) for path, parameter in theirs.named_parameters()}
    tensor = torch.tensor(x, requires_grad=True)
    value = theirs(tensor)
    (value * torch.cos(tensor)).sum().backward()

    def loss(params, x):
        y = ours.apply({"params": params}, x)
        return (y * jnp.cos(x)).sum(), y

    (gradients, slope), y = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)
    np.testing.assert_allclose(y, value.detach().numpy(), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-5, atol=2e-4)
    for path, parameter in theirs.named_parameters():
        np.testing.assert_allclose(gradients[path], parameter.grad.numpy(), rtol=2e-4)


def test_every_activation_is_known():
    assert set(transformers.activations.ACT2FN) == set(HIDDEN_ACTS)
