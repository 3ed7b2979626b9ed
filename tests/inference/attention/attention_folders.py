"""Folders with models of random weights and of any number of layers and heads, as they are exported."""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import unflatten
from tests.data.tokenizer.tokenizer_folders import albert_spiece, byte_level_files, write
from tests.inference.tasks.task_folders import LONGEST, PIECES, ROBERTA

__all__ = ["LONGEST", "export"]

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": LONGEST,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": ROBERTA,
    "albert": {
        "embedding_size": 6, "num_hidden_groups": 1, "hidden_act": "gelu_new", "bos_token_id": 2, "eos_token_id": 3,
    },
    "distilbert": {},
}  # fmt: skip


def export(path: Path, head: str, model_type: str = "bert", **fields: Any) -> Path:
    """A model that takes `LONGEST` tokens (of a RoBERTa two fewer)."""
    if model_type == "roberta":
        tokenizer = Tokenizer.load(write(path / "tokenizer", **byte_level_files()))
    elif model_type == "albert":
        tokenizer = Tokenizer.load(write(path / "tokenizer", spiece__model=albert_spiece()))
    else:
        tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    fields = SIZES | FAMILIES[model_type] | fields
    config = BertConfig(vocab_size=tokenizer.vocab_size, model_type=model_type, **fields)
    rng = np.random.default_rng(2)
    rows = parameters_of(config, head)
    params = unflatten({name: rng.normal(scale=0.4, size=row.shape).astype(np.float32) for name, row in rows.items()})
    return save_pretrained(path / "model", config, params, tokenizer, head=head)
