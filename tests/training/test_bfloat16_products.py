"""Programs compiled in bfloat16: products have kernels of that type, and embeddings are looked up, not multiplied."""

import re
from typing import Any

import jax
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.mesh import make_mesh
from bert_jax.training.objectives import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import fused_loss_on
from bert_jax.training.step import abstract_state, compile_train_step

pytestmark = pytest.mark.optimized

B, L, P = 8, 32, 5
# Products that have float32 operands all the same: the end of their names, and why that does no harm.
FLOAT32_PRODUCTS = {
    "nsp_head/BI,BO->IO": "two columns",
    "nsp_head/BO,IO->BI": "two columns",
    "pooler/BI,BO->IO": "contracts over the B rows alone, a share of 1 / (12 L) of a layer's products",
}
CONFIG = BertConfig.preset("tiny", dtype="bfloat16", num_hidden_layers=1, max_position_embeddings=L)


def products(hlo: str) -> dict[str, set[str]]:
    """The types of the operands of each dot of a compiled program, by its operation's name."""
    types = dict(re.findall(r"(%[\w.\-]+) = (\w+)\[", hlo))
    found: dict[str, set[str]] = {}
    for line in re.findall(r"^.* dot\(.*$", hlo, re.MULTILINE):
        operands = re.findall(r"%[\w.\-]+", line.split(" dot(")[1].split(")")[0])
        name = re.search(r'op_name="([^"]*)"', line)
        assert name and len(operands) == 2, line
        found.setdefault(name[1].removesuffix("/dot_general"), set()).update(types[operand] for operand in operands)
    return found


def program(config: BertConfig, fused: bool) -> str:
    tx, schedule = make_optimizer(recipe := OptimizerConfig(warmup_steps=0, total_steps=100)), make_schedule(recipe)
    model, mesh = BertForPreTraining(config), make_mesh(devices=jax.devices()[:1])
    objective = Pretraining(fused_loss_on(mesh) if fused else None)
    step = compile_train_step(model, tx, schedule, mesh, objective=objective)
    source = RandomBatches(batch_size=B, max_seq_length=L, max_predictions=P, vocab_size=config.vocab_size)
    arguments: Any = abstract_state(model, tx, mesh=mesh), source.batch(0), jax.random.key(0), objective
    return step.lower(*arguments).compile().as_text() or ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "fused"),
    [
        ({}, True),
        ({}, False),
        ({"position_embedding_type": "relative_key_query"}, True),
        ({"model_type": "albert", "embedding_size": 64, "tie_word_embeddings": False, "remat": "full"}, True),
    ],
    ids=["bert", "written out", "relative", "albert"],
)
def test_no_product_of_matrix_size_falls_back_to_float32(fields, fused):
    """XLA's CPU compiler multiplies bfloat16 in float32 if it has no kernel: half as fast, and silently."""
    text = program(CONFIG.replace(**fields), fused)
    found = products(text)
    assert len(found) > 20
    wide = {name for name, types in found.items() if types != {"bf16"}}
    assert not {name for name in wide if not name.endswith(tuple(FLOAT32_PRODUCTS))}
    assert {end for end in FLOAT32_PRODUCTS for name in wide if name.endswith(end)} == set(FLOAT32_PRODUCTS)
    # The gradient of the token table is a scatter of B L rows.
    size = CONFIG.replace(**fields).embedding_width
    assert re.search(rf"f32\[{CONFIG.vocab_size},{size}\]\S* scatter\(", text)
    assert f"[{B * L},{CONFIG.vocab_size}]" not in text and f"[{B},{L},{CONFIG.vocab_size}]" not in text
