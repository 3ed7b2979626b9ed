"""A training step with the attention kernel, interpreted on a CPU, is the step without it: same dropout, same sums."""

from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.step import compile_train_step, init_state
from tests import tiny

LENGTH = 128
CONFIG = tiny.CONFIG.replace(
    num_hidden_layers=1, num_attention_heads=3, head_size=32, max_position_embeddings=LENGTH, hidden_size=16
)


def packed_batch(rows: int) -> dict[str, Any]:
    """Two sequences in each row, and padding."""
    batch, rng = tiny.pretraining_batch(rows, LENGTH), np.random.default_rng(1)
    first, second = rng.integers(40, 60, (rows, 1)), rng.integers(90, LENGTH + 1, (rows, 1))
    place = np.arange(LENGTH)
    ids = np.where(place < first, 1, np.where(place < second, 2, 0)).astype(np.int32)
    starts = np.concatenate([np.zeros_like(first), first], axis=1).astype(np.int32)
    return batch | {
        "attention_mask": (ids > 0).astype(np.int32),
        "sequence_ids": ids,
        "position_ids": np.where(ids == 2, place - first, place).astype(np.int32),
        "starts": starts,
        "next_sentence_label": rng.integers(0, 2, (rows, 2)).astype(np.int32),
    }


def moments_after_a_step(config: Any, batch: dict[str, Any], mesh: Any, accumulation: int) -> tuple[Any, Any]:
    model, tx = HEADS["pretraining"](config), make_optimizer(tiny.OPTIMIZER)
    step = compile_train_step(model, tx, make_schedule(tiny.OPTIMIZER), mesh, accumulation)
    state = init_state(jax.random.key(0), model, tx, mesh=mesh)
    state, metrics = step(state, batch, jax.random.key(1))
    return jax.device_get(state.opt_state["moments"].mu), jax.device_get(metrics)


@pytest.mark.slow
@pytest.mark.eight_devices
@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["padding", "packed"])
def test_eight_devices_with_the_kernel_learn_what_one_learns_without(packed: bool):
    batch = packed_batch(16) if packed else tiny.pretraining_batch(16, LENGTH)
    expected, expected_metrics = moments_after_a_step(CONFIG.replace(attention="xla"), batch, None, 1)
    mesh = make_mesh(MeshConfig())
    found, metrics = moments_after_a_step(CONFIG.replace(attention="kernel"), batch, mesh, 2)
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    floor = 1e-4 * float(np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(expected))))
    for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(ours - theirs)
        assert error <= 1e-5 * max(np.linalg.norm(theirs), floor), f"{jax.tree_util.keystr(path)}: {error}"


@pytest.mark.eight_devices
def test_heads_over_devices_have_plain_attention_or_a_line():
    mesh = make_mesh(MeshConfig(data=4, tensor=2))
    config = CONFIG.replace(num_attention_heads=2, attention="kernel")
    model, tx = HEADS["pretraining"](config), make_optimizer(tiny.OPTIMIZER)
    with pytest.raises(UserError, match=r"attention=kernel: found mesh.tensor=2; expected 1, or attention=auto"):
        compile_train_step(model, tx, make_schedule(tiny.OPTIMIZER), mesh)
    compile_train_step(model.clone(config=config.replace(attention="auto")), tx, make_schedule(tiny.OPTIMIZER), mesh)
