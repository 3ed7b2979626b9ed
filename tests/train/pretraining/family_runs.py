"""Prepared text and a small config for pretraining each family, with tokenizers made for it."""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from tests.data.tokenizer.tokenizer_folders import albert_spiece, byte_level_files, write
from train.prepare import PrepareOptions, prepare
from train.pretraining.fitted_model import fit_to_data
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import PreparedData

FAMILIES = ("roberta", "albert", "distilbert")
OBJECTIVES = {"bert": "nsp", "roberta": "none", "albert": "sop", "distilbert": "none"}
LENGTH, BATCH = 24, 8
WORDS = ["hello", "world", "held", "a", "bold", "lord", "wore", "or", "told", "the", "hall", "hello", "world"]
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH + 4,
}
_OWN: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "albert": {"embedding_size": 8, "num_hidden_groups": 1, "hidden_act": "gelu_new"},
    "distilbert": {},
}


def write_text(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Documents of sentences with few letters, which every tiny vocabulary can spell."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lengths = rng.integers(3, 9, rng.integers(3, 8))
        texts.append("\n".join(" ".join(rng.choice(WORDS, n)) + "." for n in lengths))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def prepare_for(family: str, folder: Path, **options: Any) -> Path:
    """Prepared data with a tokenizer of the family, some of it held out."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab: dict[str, Any] = {"vocab_size": 45}
    if family == "roberta":
        vocab = {"vocab": str(write(folder / "vocab", **byte_level_files()))}
    elif family == "albert":
        vocab = {"vocab": str(write(folder / "vocab", spiece__model=albert_spiece()))}
    fields: dict[str, Any] = {
        "objective": OBJECTIVES[family],
        "max_seq_length": (LENGTH,),
        "dupe_factor": 2,
        "held_out": 0.3,
        "short_seq_prob": 0.5,
        "workers": 1,
        **vocab,
    }
    inputs = (str(write_text(folder / "text.txt")),)
    prepare(PrepareOptions(inputs=inputs, output=folder / "data", **fields | options))
    return folder / "data"


def small_config(family: str, **changes: Any) -> PretrainConfig:
    """Four steps, dropout on."""
    fields: dict[str, Any] = {
        "model": BertConfig(model_type=family, **_SIZES | _OWN[family]),
        "optimizer": OptimizerConfig(learning_rate=1e-3, warmup_steps=1),
        "phases": (Phase(LENGTH, BATCH, 4),),
    }
    return PretrainConfig(**fields | changes)


def fitted(family: str, data: PreparedData, **model: Any) -> PretrainConfig:
    """`small_config` with the model that the program would train on this data."""
    config = small_config(family)
    config = small_config(family, model=config.model.replace(**model))
    return small_config(family, model=fit_to_data(config, data, frozenset()))
