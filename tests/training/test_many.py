"""Many runs of one recipe in one program: bad numbers in one of them do not affect the others."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.many import compile_many_train_step, one_of, runs_mesh, stacked
from bert_jax.training.objectives import OneLabel
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.step import init_state


class Words(nn.Module):
    """A table of words and two classes. A word that is in no text has no gradient."""

    @nn.compact
    def __call__(self, input_ids, attention_mask=None, token_type_ids=None, *, deterministic=True):
        table = self.param("table", nn.initializers.normal(1.0), (10, 4))
        return SimpleNamespace(logits=nn.Dense(2)(table[input_ids].mean(axis=1)))


def test_nothing_of_a_traced_step_outlives_it():
    model, recipe, mesh = Words(), OptimizerConfig(warmup_steps=0), runs_mesh(2)
    ids = np.zeros((2, 8, 6), np.int32)
    batch = {"input_ids": ids, "token_type_ids": ids, "attention_mask": ids, "labels": ids[:, :, 0]}
    batch["weights"] = np.ones((2, 8), np.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    state = stacked([init_state(key, model, make_optimizer(recipe)) for key in keys], mesh)
    step = compile_many_train_step(model, recipe, mesh, rates=lambda path: 0.5)
    with jax.checking_leaks():
        step.lower(state, batch, keys, jnp.ones(2), OneLabel())


@pytest.mark.slow
def test_a_run_with_a_number_that_overflows_keeps_all_of_its_state_and_the_others_go_on():
    """The rate is too high for the words of the texts, and not for those that only weight decay moves."""
    model, recipe, mesh = Words(), OptimizerConfig(warmup_steps=0, weight_decay=0.01), runs_mesh(2)
    keys = jax.random.split(jax.random.key(0), 2)
    ids = np.random.default_rng(0).integers(0, 5, (2, 8, 6))
    batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    batch |= {"labels": ids[:, :, 0] % 2, "weights": np.ones((2, 8), np.float32)}
    step = compile_many_train_step(model, recipe, mesh)

    def after(*peaks: float):
        before = stacked([init_state(key, model, make_optimizer(recipe)) for key in keys], mesh)
        first = [one_of(before, run) for run in range(2)]
        state, metrics = step(before, batch, keys, jnp.array(peaks, jnp.float32), OneLabel())
        return first, state, metrics

    first, state, metrics = after(1e-3, 3e38)
    bad = one_of(state, 1)
    for (path, new), old in zip(
        jax.tree_util.tree_leaves_with_path((bad.params, bad.opt_state)),
        jax.tree.leaves((first[1].params, first[1].opt_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(new, old, err_msg=jax.tree_util.keystr(path))
    assert (bad.step, bad.skipped_total, bad.skipped_in_a_row, bad.last_skipped_step) == (1, 1, 1, 0)
    assert metrics["finite"].tolist() == [1, 0]

    _, alike, _ = after(1e-3, 1e-3)
    good, same = one_of(state, 0), one_of(alike, 0)
    for ours, theirs, old in zip(*map(jax.tree.leaves, (good.params, same.params, first[0].params)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.abs(ours - old).max() > 0
    assert good.skipped_total == 0
