"""Our optimizers and schedules against optax, torch and transformers, wherever the definitions coincide."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.weight_decay import decay_mask

pytestmark = pytest.mark.parity

STEPS = 200
SHAPES = {"word_embeddings": (9, 4), "kernel": (4, 4), "bias": (4,)}
CONSTANT = OptimizerConfig(
    learning_rate=3e-3, schedule="constant", warmup_steps=0, clip_norm=0.0, bias_correction=True, eps=1e-8
)


def random_tree(rng: np.random.Generator, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {name: (rng.normal(size=shape) * scale).astype(np.float32) for name, shape in SHAPES.items()}


def trajectory(tx: optax.GradientTransformation, seed: int, **extra) -> list[dict[str, np.ndarray]]:
    """Parameters after each of STEPS updates with random gradients of all sizes."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(jnp.asarray, random_tree(rng))
    state, found = tx.init(params), []
    update = jax.jit(tx.update)
    for step in range(STEPS):
        grads = random_tree(rng, 10.0 ** rng.uniform(-3, 1))
        extra_args = {"step": step} if extra.get("takes_step") else {}
        updates, state = update(grads, state, params, **extra_args)
        params = optax.apply_updates(params, updates)
        found.append(jax.tree.map(np.asarray, params))
    return found


def assert_same(found, expected, rtol=2e-5, atol=2e-6):
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for name in SHAPES:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, atol=atol, err_msg=f"{name}, step {step}")


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_corrected_adamw_is_optax_adamw_with_our_mask(clip_norm):
    ours = make_optimizer(dataclasses.replace(CONSTANT, clip_norm=clip_norm))
    theirs = optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        optax.adamw(3e-3, eps=1e-8, weight_decay=0.01, mask=decay_mask),
    )
    assert_same(trajectory(ours, 1, takes_step=True), trajectory(theirs, 1))


def test_lamb_for_all_tensors_is_optax_lamb():
    config = dataclasses.replace(CONSTANT, name="lamb", trust_ratio_for="all", eps=1e-6)
    theirs = optax.lamb(3e-3, eps=1e-6, weight_decay=0.01, mask=decay_mask)
    assert_same(trajectory(make_optimizer(config), 2, takes_step=True), trajectory(theirs, 2))


def test_corrected_adamw_is_torch_adamw_with_two_groups():
    rng = np.random.default_rng(3)
    weights = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in random_tree(rng).items()}
    groups = [
        {"params": [weights["word_embeddings"], weights["kernel"]], "weight_decay": 0.01},
        {"params": [weights["bias"]], "weight_decay": 0.0},
    ]
    theirs, expected = torch.optim.AdamW(groups, lr=3e-3, eps=1e-8), []
    for _ in range(STEPS):
        for name, grad in random_tree(rng, 10.0 ** rng.uniform(-3, 1)).items():
            weights[name].grad = torch.from_numpy(grad)
        theirs.step()
        expected.append({name: weight.detach().numpy().copy() for name, weight in weights.items()})
    assert_same(trajectory(make_optimizer(CONSTANT), 3, takes_step=True), expected)


def test_schedules_are_those_of_transformers():
    warmup, total = 7, 50
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=warmup, total_steps=total, decay_from="warmup")
    polynomial = dataclasses.replace(config, schedule="polynomial", power=2.0, end_learning_rate=1e-3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    pairs = [
        (config, transformers.get_linear_schedule_with_warmup(optimizer, warmup, total)),
        (
            polynomial,
            transformers.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, total, lr_end=1e-3, power=2.0),
        ),
        (
            dataclasses.replace(config, schedule="cosine"),
            transformers.get_cosine_schedule_with_warmup(optimizer, warmup, total),
        ),
    ]
    for ours, theirs in pairs:
        multiplier = theirs.lr_lambdas[0]
        steps = range(total + (1 if ours.schedule == "cosine" else 5))  # after the end theirs rises again
        expected = [0.1 * multiplier(step) for step in steps]
        np.testing.assert_allclose([make_schedule(ours)(step) for step in steps], expected, rtol=1e-5, atol=1e-9)
