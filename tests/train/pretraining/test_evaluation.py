"""Held-out figures and their baselines against scikit-learn, and the meter's averages against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from bert_jax.config import BertConfig
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.sharding import MeshConfig, make_mesh
from train.pretraining.job import HeldOutBatches, Unigram, evaluate
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import RandomData
from train.run.meter import Meter, train_flops


def batches(count: int, vocab_size: int):
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield {
            "mlm_labels": generator.integers(0, vocab_size, (4, 3)),
            "mlm_weights": generator.integers(0, 2, (4, 3)).astype(np.float32),
            "next_sentence_label": generator.choice([0, 1, 1, -100], 4),
        }


def test_baselines_are_those_of_scikit_learn():
    vocab_size = 7
    counts = np.array([0, 5, 9, 1, 0, 30, 2])
    host = list(batches(5, vocab_size))
    sums = {"mlm_loss_sum": 3.0, "mlm_correct": 1.0, "nsp_loss_sum": 2.0, "nsp_correct": 1.0}

    def eval_step(params, batch):
        real = (batch["next_sentence_label"] >= 0).sum()
        return sums | {"mlm_weight": batch["mlm_weights"].sum(), "nsp_count": real}

    result = evaluate(eval_step, None, [(b, b) for b in host], Unigram(counts))
    labels = np.concatenate([b["mlm_labels"][b["mlm_weights"] > 0] for b in host])
    pairs = np.concatenate([b["next_sentence_label"] for b in host])
    pairs = pairs[pairs >= 0]
    smoothed = np.tile((counts + 1) / (counts + 1).sum(), (len(labels), 1))
    assert result["unigram_loss"] == pytest.approx(log_loss(labels, smoothed, labels=range(vocab_size)))
    assert result["unigram_accuracy"] == pytest.approx(accuracy_score(labels, np.full(len(labels), 5)))
    assert result["majority_accuracy"] == pytest.approx(max(np.mean(pairs == 0), np.mean(pairs == 1)))
    assert result["mlm_loss"] == pytest.approx(15.0 / len(labels))
    assert result["mlm_perplexity"] == pytest.approx(np.exp(15.0 / len(labels)))
    assert result["nsp_accuracy"] == pytest.approx(5.0 / len(pairs))


def test_an_objective_without_pairs_has_no_pair_figures():
    host = [{k: v for k, v in b.items() if k != "next_sentence_label"} for b in batches(2, 7)]
    names = ("mlm_loss_sum", "mlm_correct", "mlm_weight", "nsp_loss_sum", "nsp_count", "nsp_correct")
    result = evaluate(lambda params, batch: dict.fromkeys(names, 0.0), None, [(b, b) for b in host], None)
    assert set(result) == {"mlm_loss", "mlm_perplexity", "mlm_accuracy"}


def test_held_out_data_is_opened_once_and_gives_the_same_batches_each_time():
    opened = []

    class Data(RandomData):
        def batches(self, config, phase):
            opened.append(phase)
            return super().batches(config, phase)

    optimizer = OptimizerConfig(warmup_steps=1)
    config = PretrainConfig(optimizer=optimizer, phases=(Phase(16, 16, 9),), accumulation=2, eval_batches=3)
    held_out = HeldOutBatches(config, Data(50, "nsp"), make_mesh(MeshConfig()), config.phases[0])
    first, second = list(held_out), list(held_out)
    assert opened == [Phase(16, 8, 9)]
    assert len(held_out) == len(first) == 3
    for (host, device), (again, _) in zip(first, second, strict=True):
        assert host["input_ids"].shape == (8, 16)
        np.testing.assert_array_equal(host["input_ids"], again["input_ids"])
        np.testing.assert_array_equal(host["input_ids"], device["input_ids"])


def test_where_nothing_was_held_out_there_is_nothing_to_evaluate():
    class Data(RandomData):
        def evaluation_batches(self, config, phase):
            return None

    config = PretrainConfig(phases=(Phase(16, 16, 20_000),))
    held_out = HeldOutBatches(config, Data(50, "nsp"), make_mesh(MeshConfig()), config.phases[0])
    assert not held_out
    assert evaluate(lambda params, batch: {}, None, held_out, None) == {}


def test_metrics_are_fetched_one_step_late_and_averaged_over_good_steps(monkeypatch):
    fetched = []
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree["loss"]) or tree)
    meter = Meter(BertConfig.preset("tiny"), step=10)
    batch = {"input_ids": np.zeros((2, 8)), "mlm_positions": np.zeros((2, 3))}
    rows = [(1.0, 1, 0), (float("nan"), 0, 1), (3.0, 1, 0)]
    for number, (loss, finite, in_a_row) in enumerate(rows):
        metrics = {"loss": loss, "finite": finite, "skipped_in_a_row": in_a_row, "learning_rate": float(number)}
        meter.push(metrics, batch, waited=0.0)
        assert len(fetched) == number
        assert meter.step == 10 + number
    meter.flush()
    summary = meter.summary(100)
    assert meter.step == 13
    assert summary["loss"] == 2.0
    assert summary["learning_rate"] == 2.0
    assert "mfu" not in summary


def test_speeds_leave_the_compilers_time_and_pauses_out(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("train.run.meter.time.monotonic", lambda: clock[0])
    meter = Meter(BertConfig.preset("tiny"), step=0)
    batch = {"input_ids": np.zeros((2, 8)), "mlm_positions": np.zeros((2, 3))}
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}
    meter.push(metrics, batch, waited=0.0)
    clock[0] = 60.0  # compiling
    for _ in range(4):
        meter.push(metrics, batch, waited=0.5)
        clock[0] += 1.0
    with meter.pause():
        clock[0] += 30.0  # an evaluation
    meter.flush()
    summary = meter.summary(25)
    assert summary["sequences_per_second"] == pytest.approx(2.0)
    assert summary["tokens_per_second"] == pytest.approx(16.0)
    assert summary["input_wait"] == pytest.approx(0.5)
    assert summary["eta_seconds"] == pytest.approx(20.0)


def test_a_step_that_is_still_computed_counts_in_no_speed(monkeypatch):
    """As where a run goes on a step before it logs: that line has no speeds, the next one has those of all others."""
    clock = [0.0]
    monkeypatch.setattr("train.run.meter.time.monotonic", lambda: clock[0])
    meter = Meter(BertConfig.preset("tiny"), step=0)
    batch = {"input_ids": np.zeros((2, 8))}
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}
    meter.push(metrics, batch, waited=0.0)
    meter.push(metrics, batch, waited=0.0)
    assert meter.summary(100).keys() == {"loss", "skipped_in_a_row", "learning_rate"}
    for _ in range(3):
        clock[0] += 1.0
        meter.push(metrics, batch, waited=0.0)
    assert meter.summary(100)["sequences_per_second"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "family",
    [
        {},
        pytest.param(
            {"model_type": "albert", "embedding_size": 64, "num_hidden_groups": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_count_of_operations_is_that_of_the_compiled_forward_pass(family):
    config = BertConfig(
        vocab_size=3000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024, **family
    )
    model = BertForPreTraining(config)
    ids, positions = jnp.zeros((1, 128), jnp.int32), jnp.zeros((1, 20), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    forward = jax.jit(lambda p: model.apply({"params": p}, ids, mlm_positions=positions).prediction_logits)
    cost = forward.lower(params).compile().cost_analysis()
    assert train_flops(config, 128, 20) / 3 == pytest.approx(cost["flops"], rel=0.05)
