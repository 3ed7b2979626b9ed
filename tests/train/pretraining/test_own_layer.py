"""docs/pretraining.md, "A layer of your own": the config file trains, and its layers are what it says."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.model.heads import HEADS
from bert_jax.training import sharding
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.step import compile_train_step, init_state
from tests import tiny
from tests.guide import blocks_of

pytestmark = pytest.mark.slow


@pytest.fixture
def guide(monkeypatch) -> SimpleNamespace:
    monkeypatch.setitem(HEADS, "mlm", HEADS["mlm"])  # so that both are as before again
    monkeypatch.setattr(sharding, "PARTITION_TABLE", sharding.PARTITION_TABLE)
    (block,) = (one for one in blocks_of("docs/pretraining.md", "py") if "intercept_methods" in one.code)
    names: dict = {}
    exec(block.code, names)
    return SimpleNamespace(**names)


def test_the_config_file_trains_its_own_layers(guide):
    config = guide.get_config()
    model = config.model.replace(vocab_size=64, hidden_size=16, num_attention_heads=2, intermediate_size=24)
    module, tx = HEADS["mlm"](model), make_optimizer(tiny.OPTIMIZER)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    state = init_state(jax.random.key(0), module, tx, mesh=mesh)
    before = jax.device_get(state.params)
    layer = before["bert"]["encoder"]["layer_0"]
    assert set(layer) == {"query", "key", "value", "mixed", "gate", "up", "down", "attention_norm", "feed_forward_norm"}
    batches = RandomBatches(batch_size=4, max_seq_length=8, max_predictions=2, vocab_size=64, next_sentence=False)
    state, metrics = compile_train_step(module, tx, make_schedule(tiny.OPTIMIZER), mesh)(
        state, batches.batch(0), jax.random.key(1)
    )
    assert metrics["finite"] == 1
    after = jax.device_get(state.params)["bert"]["encoder"]["layer_0"]
    for name in ("query", "gate", "up", "down"):
        assert np.abs(after[name]["kernel"] - layer[name]["kernel"]).max() > 0


def test_scores_of_rotary_positions_depend_on_distances_alone(guide):
    q, k = np.random.default_rng(0).normal(size=(2, 6))
    rows = jnp.broadcast_to(jnp.asarray(np.stack([q, k]))[:, None, None], (2, 9, 1, 6))
    turned_q, turned_k = np.asarray(guide.rotary(rows), np.float64)[:, :, 0]
    scores = turned_q @ turned_k.T
    for distance in range(-8, 9):
        np.testing.assert_allclose(np.diagonal(scores, distance), np.diagonal(scores, distance)[0], atol=1e-4)
    assert np.ptp([scores[0, m] for m in range(9)]) > 0.1
    np.testing.assert_allclose(scores[0, 0], q @ k, rtol=1e-5)
