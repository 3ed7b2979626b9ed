"""Layer-wise rates are torch's AdamW with a group of parameters for each rate."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch

from bert_jax.config import BertConfig
from bert_jax.training.layer_rates import layer_rates, with_rates
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.weight_decay import is_decayed
from bert_jax.tree import flatten, unflatten
from tests import tiny
from tests.training.test_layer_rates import SIZES, depth_of

pytestmark = pytest.mark.parity


def test_updates_are_those_of_torch_with_a_group_a_rate():
    config = BertConfig(**SIZES)
    params = tiny.random_flat(config, 0, "token-classification")
    rng = np.random.default_rng(1)
    grads = [
        {path: (rng.normal(size=value.shape) * 3).astype(np.float32) for path, value in params.items()}
        for _ in range(4)
    ]
    rate = 0.01
    leaves = {path: torch.nn.Parameter(torch.tensor(value)) for path, value in params.items()}
    learning = [path for path in params if depth_of(path) > 0]  # freeze=embeddings
    groups = [
        {
            "params": [leaves[path]],
            "lr": rate * 0.7 ** (4 - depth_of(path)),
            "weight_decay": 0.01 if is_decayed(path) else 0.0,
        }
        for path in learning
    ]
    theirs = torch.optim.AdamW(groups, eps=1e-6)
    for step in grads:
        for path in learning:
            leaves[path].grad = torch.tensor(step[path])
        torch.nn.utils.clip_grad_norm_([leaves[path] for path in learning], 1.0)
        theirs.step()

    recipe = OptimizerConfig(learning_rate=rate, warmup_steps=0, schedule="constant", bias_correction=True)
    ours = with_rates(make_optimizer(recipe), layer_rates(config, freeze="embeddings", decay=0.7))
    tree: Any = unflatten(params)
    state, update = ours.init(tree), jax.jit(ours.update)
    for number, step in enumerate(grads):
        updates, state = update(unflatten(step), state, tree, step=number)
        tree = optax.apply_updates(tree, updates)
    for path, value in flatten(tree).items():
        np.testing.assert_allclose(value, leaves[path].detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=path)
