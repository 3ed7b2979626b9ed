"""BertConfig: every architecture switch of a BERT, the published sizes, and the JSON of both worlds."""

import dataclasses
import difflib
import json
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeGuard

from bert_jax.errors import UserError

# Every activation without parameters of its own that transformers names in ACT2FN; the functions live in
# model/layers.py, which a test holds to this list.
HIDDEN_ACTS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
)
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "full", "dots")

# name -> (layers, hidden size, vocabulary); every published size has heads of 64 and a feed-forward of 4 D.
_PUBLISHED = {
    "tiny": (2, 128, 30522),
    "mini": (4, 256, 30522),
    "small": (4, 512, 30522),
    "medium": (8, 512, 30522),
    "base-uncased": (12, 768, 30522),
    "base-cased": (12, 768, 28996),
    "base-multilingual-cased": (12, 768, 119547),
    "base-multilingual-uncased": (12, 768, 105879),
    "base-chinese": (12, 768, 21128),
    "large-uncased": (24, 1024, 30522),
    "large-cased": (24, 1024, 28996),
} | {f"L-{n}_H-{d}": (n, d, 30522) for n in (2, 4, 6, 8, 10, 12) for d in (128, 256, 512, 768)}

# Keys of a config.json that change what the model computes, with the one value that this BERT is. Others are
# refused: to ignore them would be to run another model's weights without a word.
_FIXED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}


@dataclass(frozen=True)
class BertConfig:
    """The architecture of one BERT. Field names and defaults are those of a Hugging Face `config.json`.

    The defaults are BERT-base uncased (https://arxiv.org/abs/1810.04805, section 3). `dtype` and `remat` say
    how to compute, not what: they never change the parameters, which are float32 always.

    Attributes:
        vocab_size: V, rows of the token table.
        hidden_size: D; must be a multiple of `num_attention_heads`.
        num_hidden_layers: N.
        num_attention_heads: H.
        intermediate_size: F, width of the feed-forward.
        hidden_act: one of `HIDDEN_ACTS`, for the feed-forward and the masked-LM head; "gelu" is exact (erf).
        hidden_dropout_prob: rate after the embeddings, the attention output and the feed-forward output.
        attention_probs_dropout_prob: rate on the attention probabilities.
        max_position_embeddings: rows of the position table, the longest input.
        type_vocab_size: rows of the token-type table.
        initializer_range: standard deviation of the truncated normal before it is cut at two of them.
        layer_norm_eps: added to the variance.
        pad_token_id: the id of [PAD]; the model reads it nowhere (the mask says what is padding).
        classifier_dropout: rate before a classifier; None means `hidden_dropout_prob`.
        dtype: type of the operands of matrix products, "float32" or "bfloat16"; they accumulate in float32.
        remat: what the backward pass computes anew: "none", "full" (each layer), "dots" (all but the products
            with weights).

    Raises:
        UserError: a field has a wrong type or a value that cannot be.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    classifier_dropout: float | None = None
    dtype: str = "float32"
    remat: str = "none"

    def __post_init__(self):
        for name in _SIZES:
            self._check(name, _is_int(getattr(self, name)) and getattr(self, name) > 0, "a positive integer")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            absent = value is None and name == "classifier_dropout"
            self._check(name, absent or (_is_number(value) and 0 <= value < 1), "a probability in [0, 1)")
        for name in ("initializer_range", "layer_norm_eps"):
            value = getattr(self, name)
            self._check(name, _is_number(value) and value > 0, "a positive number")
        for name, allowed in (("hidden_act", HIDDEN_ACTS), ("dtype", DTYPES), ("remat", REMAT_POLICIES)):
            self._check(name, getattr(self, name) in allowed, f"one of {', '.join(allowed)}")
        is_token = _is_int(self.pad_token_id) and 0 <= self.pad_token_id < self.vocab_size
        self._check("pad_token_id", is_token, f"a token id below vocab_size={self.vocab_size}")
        heads = self.num_attention_heads
        divides = self.hidden_size % heads == 0
        self._check("hidden_size", divides, f"a multiple of num_attention_heads={heads}")

    def _check(self, name: str, ok: bool, expected: str) -> None:
        if not ok:
            raise UserError(f"{name}={getattr(self, name)!r}: expected {expected}")

    @property
    def head_dim(self) -> int:
        """K, the size of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like any other."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """A published size.

        Args:
            name: tiny, mini, small, medium, base-uncased, base-cased, base-multilingual-cased,
                base-multilingual-uncased, base-chinese, large-uncased, large-cased, or one of the 24 small
                models of https://arxiv.org/abs/1908.08962 as "L-4_H-256".
            **overrides: fields that differ from the published ones.
        """
        if name not in _PUBLISHED:
            raise UserError(f"unknown preset {name!r}; {_nearest(name, _PUBLISHED)}")
        layers, hidden, vocab = _PUBLISHED[name]
        sizes: dict[str, Any] = {
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return cls(**(sizes | overrides))

    @classmethod
    def from_json(cls, source: dict[str, Any] | str | PathLike[str]) -> Self:
        """Read a Hugging Face `config.json` or Google's `bert_config.json`.

        Keys that a BERT does not read (`architectures`, `pooler_fc_size` ...) are ignored; absent
        ones take the defaults, as in transformers. `dtype` in such a file is the type in which the weights are
        stored, and is ignored too.

        Args:
            source: the parsed JSON, the file, or the folder that holds one of the two files.

        Raises:
            FileNotFoundError: no such file.
            UserError: not JSON, a field of a wrong type or value, or a file of another kind of model.
        """
        if isinstance(source, dict):
            return cls._from_dict(source)
        path = Path(source)
        if path.is_dir():
            found = [path / name for name in ("config.json", "bert_config.json") if (path / name).is_file()]
            if not found:
                raise FileNotFoundError(f"{path}: holds neither config.json nor bert_config.json")
            path = found[0]
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: not a JSON file ({error})") from error
        if not isinstance(data, dict):
            raise UserError(f"{path}: expected a JSON object, found {type(data).__name__}")
        try:
            return cls._from_dict(data)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Self:
        for key, value in _FIXED.items():
            if data.get(key) not in (None, value):
                raise UserError(f"{key}={data[key]!r} is not supported; expected {value!r}")
        # ALBERT's own files say nothing of the family; this key gives them away.
        if data.get("embedding_size") not in (None, data.get("hidden_size")):
            raise UserError(f"embedding_size={data['embedding_size']!r} is ALBERT's or ELECTRA's; BERT has none")
        fields = {name: data[name] for name in _JSON_FIELDS if name in data}
        if fields.get("pad_token_id", 0) is None:
            del fields["pad_token_id"]
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """The fields of a Hugging Face `config.json`, ready for `json.dumps`.

        `dtype` and `remat` are left out: they say how this program computes, and there the key `dtype` means
        the type of the stored weights.
        """
        return {"model_type": "bert"} | {name: getattr(self, name) for name in _JSON_FIELDS}


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_JSON_FIELDS = tuple(field.name for field in dataclasses.fields(BertConfig) if field.name not in ("dtype", "remat"))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nearest(name: str, names: dict[str, Any]) -> str:
    close = difflib.get_close_matches(name, names, n=3)
    if re.fullmatch(r"L-\d+_H-\d+", name):
        return "the small models are L-2 … L-12 (even) by H-128, H-256, H-512, H-768"
    return f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(names)}"
