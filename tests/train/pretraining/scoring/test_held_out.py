"""Held-out figures and their baselines against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.scoring.held_out import HeldOutBatches, Unigram, evaluate
from train.pretraining.source import RandomData


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

    result = evaluate(eval_step, None, host, Unigram.of(counts))
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
    result = evaluate(lambda params, batch: dict.fromkeys(names, 0.0), None, host, None)
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
    assert len(held_out) == len(first) == 6  # three batches of 16, in two parts each
    for batch, again in zip(first, second, strict=True):
        assert batch["input_ids"].shape == (8, 16)
        np.testing.assert_array_equal(batch["input_ids"], again["input_ids"])


def test_packed_runs_evaluate_the_same_examples_whatever_computes_them():
    """A step has 144 rows, of 250 examples; three steps' examples fill 6 batches of 144."""
    optimizer = OptimizerConfig(warmup_steps=1)
    fields = {"optimizer": optimizer, "phases": (Phase(16, 250, 9),), "packed": ((16, 250 / 144),), "packing": "yes"}
    for parts in (1, 2, 9, 72):
        config = PretrainConfig(**fields, tokens_per_device=144 // parts * 16, eval_batches=3)
        held_out = HeldOutBatches(config, RandomData(50, "nsp"), make_mesh(MeshConfig()), config.phases[0])
        batches = list(held_out)
        assert {batch["input_ids"].shape[0] for batch in batches} == {144 // parts}
        assert sum(batch["input_ids"].shape[0] for batch in batches) == 6 * 144


def test_a_packed_batch_in_parts_does_not_refuse_its_own_evaluation():
    config = PretrainConfig(
        optimizer=OptimizerConfig(warmup_steps=1), phases=(Phase(16, 250, 9),), packed=((16, 250 / 144),),
        packing="yes", accumulation=9,
    )  # fmt: skip
    assert len(HeldOutBatches(config, RandomData(50, "nsp"), make_mesh(MeshConfig()), config.phases[0]))


def test_without_held_out_data_there_is_no_evaluation():
    class Data(RandomData):
        def evaluation_batches(self, config, phase):
            return None

    config = PretrainConfig(phases=(Phase(16, 16, 20_000),))
    held_out = HeldOutBatches(config, Data(50, "nsp"), make_mesh(MeshConfig()), config.phases[0])
    assert not held_out
    assert evaluate(lambda params, batch: {}, None, held_out, None) == {}
