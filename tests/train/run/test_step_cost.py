"""The operations of a step are the compiler's own count; types that are slow on this CPU are told."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import BertConfig
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.optimizer_config import OptimizerConfig
from train.run import step_cost
from train.run.step_cost import slow_type_told, train_flops


@pytest.mark.slow
@pytest.mark.parametrize("family", [{}, {"model_type": "albert", "embedding_size": 64, "num_hidden_groups": 1}])
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


@pytest.mark.parametrize(("model", "optimizer", "cpu_has", "said"), [
    ("bfloat16", {}, False, "model.dtype=float32"),
    ("bfloat16", {"name": "muon"}, False, "model.dtype=float32"),
    ("bfloat16", {"muon_products": "bfloat16"}, False, "model.dtype=float32"),  # AdamW has no such products
    (
        "bfloat16", {"name": "muon", "muon_products": "bfloat16"}, False,
        "model.dtype=float32 optimizer.muon_products=float32",
    ),
    ("float32", {"name": "muon", "muon_products": "bfloat16"}, False, "optimizer.muon_products=float32"),
    ("float32", {}, False, None),
    ("bfloat16", {}, True, None),
    ("bfloat16", {}, None, None),
])  # fmt: skip
def test_bfloat16_on_a_cpu_without_instructions_for_it_is_told(model, optimizer, cpu_has, said, monkeypatch):
    monkeypatch.setattr(step_cost, "multiplies_bfloat16", lambda: cpu_has)
    line = slow_type_told(BertConfig.preset("tiny", dtype=model), OptimizerConfig(**optimizer))
    assert line == (said and f"this CPU has no instructions for bfloat16: to be faster say {said}")
