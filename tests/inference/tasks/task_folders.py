"""Folders with fine-tuned models of random weights, as they are exported."""

from pathlib import Path
from typing import Any

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import unflatten
from tests import tiny
from tests.data.tokenizer.tokenizer_folders import byte_level_files, write

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "held", "##s", "##held", *"helowrd,.'中"]
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LONGEST = 34


def export(path: Path, head: str, model_type: str = "bert", **fields: Any) -> Path:
    """A model of one layer, 8 wide, that takes `LONGEST` tokens; `fields` of the config may say otherwise."""
    if model_type == "roberta":
        tokenizer = Tokenizer.load(write(path / "tokenizer", **byte_level_files()))
        fields = ROBERTA | fields
    else:
        tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    sizes |= {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": LONGEST}
    config = BertConfig(**sizes | {"model_type": model_type} | fields)
    flat = tiny.random_flat(config, 2, head)
    for name in (name for name in flat if name.endswith("bias")):
        flat[name] *= 0.1  # so that the texts decide
    return save_pretrained(path / "model", config, unflatten(flat), tokenizer, head=head)
