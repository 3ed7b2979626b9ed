"""Examples that share rows are learnt as if each had its own: loss, gradients and logits, also on a mesh, in parts."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.model.fused_loss import fused_cross_entropy
from bert_jax.model.heads import HEADS, BertForMaskedLM
from bert_jax.training.distillation import Distillation, DistillationConfig
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.objectives import PRETRAINING, Objective, Pretraining
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, fused_loss_on
from bert_jax.training.step import apply_to, compile_train_step, init_state
from tests import tiny
from tests.data.pretraining.test_batches import PIECES, L, prepare
from tests.unpacking import unpacked

CONFIG = tiny.CONFIG.replace(
    vocab_size=len(PIECES),
    max_position_embeddings=L + 8,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for objective in ("nsp", "none"):
        data = prepare(tmp_path_factory.mktemp("packed") / objective, objective=objective)
        source = PackedBatches(data, batch_size=8, max_seq_length=L)
        made = (source.batch(step) for step in range(source.steps_per_epoch))
        found[objective] = next(batch for batch in made if {1, 2} <= set(batch["sequence_ids"].max(axis=1).tolist()))
    return found


def loss_and_gradients(model: Any, params: Any, batch: dict[str, Any], objective: Objective) -> tuple[float, Any]:
    def loss(params: Any) -> Any:
        sums = objective.sums(partial(apply_to, model, params, batch, deterministic=True), batch)
        return objective.loss(sums, objective.denominators(batch))

    found, gradients = jax.jit(jax.value_and_grad(loss))(params)
    return float(found), gradients


def assert_equal_leaves(found: Any, expected: Any) -> None:
    floor = 1e-4 * float(optax.tree.norm(expected))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.subtract(a, b))
        assert error <= 1e-5 * max(np.linalg.norm(b), floor), f"{jax.tree_util.keystr(path)}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "config", "head", "fused"),
    [
        ("nsp", CONFIG, "pretraining", None),
        (
            "nsp",
            CONFIG.replace(position_embedding_type="relative_key_query", num_hidden_layers=1),
            "pretraining",
            fused_cross_entropy,
        ),
        ("none", CONFIG.replace(model_type="roberta", pad_token_id=1, num_hidden_layers=1), "mlm", None),
    ],
    ids=["bert", "relative", "roberta"],
)
def test_loss_and_gradients_are_those_of_the_examples_alone(batches, objective, config, head, fused):
    packed = batches[objective]
    alone = unpacked(packed)
    if config.family == "roberta":  # its positions follow from the ids
        packed, alone = (
            batch | {"input_ids": np.where(batch["attention_mask"], np.maximum(batch["input_ids"], 2), 1)}
            for batch in (packed, alone)
        )
    model, params = HEADS[head](config), tiny.random_params(config, 0, head, scale=0.2)
    loss, gradients = loss_and_gradients(model, params, packed, Pretraining(fused))
    expected_loss, expected = loss_and_gradients(model, params, alone, Pretraining(fused))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert_equal_leaves(gradients, expected)
    if head == "pretraining":
        logits, expected_logits = (
            apply_to(model, params, batch, deterministic=True).seq_relationship_logits for batch in (packed, alone)
        )
        np.testing.assert_allclose(logits[packed["next_sentence_label"] >= 0], expected_logits, atol=1e-5)


@pytest.mark.slow
def test_distillation_of_packed_rows_is_that_of_the_examples_alone(batches):
    packed, config = batches["none"], CONFIG.replace(num_hidden_layers=1)
    params, theirs = (tiny.random_params(config, seed, "mlm", scale=0.2) for seed in (0, 1))
    objective = Distillation(theirs, BertForMaskedLM(config), DistillationConfig())
    loss, gradients = loss_and_gradients(BertForMaskedLM(config), params, packed, objective)
    expected_loss, expected = loss_and_gradients(BertForMaskedLM(config), params, unpacked(packed), objective)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert_equal_leaves(gradients, expected)


@pytest.mark.slow
def test_what_another_example_of_the_row_says_changes_nothing(batches):
    """Not even by a bit: other tokens get a weight of exactly 0."""
    packed = batches["nsp"]
    is_second = packed["sequence_ids"] == 2
    changed = packed | {"input_ids": np.where(is_second, (packed["input_ids"] + 7) % len(PIECES), packed["input_ids"])}
    model, params = HEADS["pretraining"](CONFIG), tiny.random_params(CONFIG, 0, scale=0.2)
    first, second = (apply_to(model, params, batch, deterministic=True) for batch in (packed, changed))
    assert np.array_equal(first.seq_relationship_logits[:, 0], second.seq_relationship_logits[:, 0])
    two = packed["sequence_ids"].max(axis=1) > 1
    assert not np.array_equal(first.seq_relationship_logits[two, 1], second.seq_relationship_logits[two, 1])


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_step_over_eight_devices_and_in_parts_is_that_of_one(tmp_path: Path):
    """With dropout on, rows with different numbers of examples on each device."""
    source = PackedBatches(prepare(tmp_path / "data"), batch_size=16, max_seq_length=L)
    counts = source.batch(0)["sequence_ids"].max(axis=1)
    assert len({int(part.sum()) for part in np.split(counts, 8)}) > 1, "the test needs devices with different numbers"
    config = CONFIG.replace(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_hidden_layers=1)
    model, tx, schedule = HEADS["pretraining"](config), make_optimizer(tiny.OPTIMIZER), make_schedule(tiny.OPTIMIZER)
    key, ran = jax.random.key(1), []
    for mesh, accumulation in ((None, 1), (make_mesh(MeshConfig()), 2)):
        state = init_state(jax.random.key(0), model, tx, mesh=mesh)
        if mesh is None:
            step, batch, objective = compile_train_step(model, tx, schedule), source.batch(0), PRETRAINING
        else:
            objective = Pretraining(fused_loss_on(mesh))
            step = compile_train_step(model, tx, schedule, mesh, accumulation, objective)
            batch = MeshBatches(source, 16, batch_shardings(mesh)).batch(0)
        state, metrics = step(state, batch, key, objective)
        ran.append((jax.device_get(state.opt_state["moments"].mu), jax.device_get(metrics)))
    (expected, expected_metrics), (found, metrics) = ran
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    assert metrics["sequences"] == counts.sum()
    assert_equal_leaves(found, expected)
