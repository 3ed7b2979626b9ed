"""BertConfig: every architecture switch of BERT, RoBERTa, ALBERT and DistilBERT, and what cannot be."""

import dataclasses
import difflib
import json
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

from bert_jax.config_checks import FAMILY_OF as FAMILY_OF
from bert_jax.config_checks import HIDDEN_ACTS as HIDDEN_ACTS
from bert_jax.config_checks import check
from bert_jax.config_json import fields_of, json_of
from bert_jax.errors import UserError
from bert_jax.presets import PRESETS

CONFIG_FILES = ("config.json", "bert_config.json", "albert_config.json")


@dataclass(frozen=True)
class BertConfig:
    """The architecture of one BERT, RoBERTa, ALBERT or DistilBERT.

    Field names and defaults are those of a Hugging Face `config.json`; the defaults are BERT-base uncased
    (https://arxiv.org/abs/1810.04805, section 3) whatever `model_type` says: take the other families from `preset` or
    `from_json`. `dtype` and `remat` say how to compute, not what: they never change the parameters, which are float32
    always.

    Attributes:
        vocab_size: V, rows of the token table.
        hidden_size: D; must be a multiple of `num_attention_heads`.
        num_hidden_layers: N.
        num_attention_heads: H.
        intermediate_size: F, width of the feed-forward.
        hidden_act: one of `HIDDEN_ACTS`, for the feed-forward and the masked-LM head; "gelu" is exact (erf).
        hidden_dropout_prob: rate after the embeddings, the attention output and the feed-forward output (DistilBERT
            has none after the attention output, ALBERT none after the feed-forward output).
        attention_probs_dropout_prob: rate on the attention probabilities.
        max_position_embeddings: rows of the position table; `longest_input` says how many positions an input may have.
        type_vocab_size: rows of the token-type table; DistilBERT has no such table.
        initializer_range: standard deviation of the truncated normal before it is cut at two of them.
        layer_norm_eps: added to the variance.
        pad_token_id: the id of [PAD]. RoBERTa's positions follow from it; the other families read it nowhere (the mask
            says what is padding).
        classifier_dropout: rate before a classifier; None means `hidden_dropout_prob`.
        dtype: type of the operands of matrix products, "float32" or "bfloat16"; they accumulate in float32.
        remat: what the backward pass computes anew: "none", "full" (each layer), "dots" (all but the products
            with weights).
        model_type: a key of `FAMILY_OF`.
        embedding_size: E, width of the embeddings in ALBERT; None means `hidden_size`.
        num_hidden_groups: ALBERT: how many groups of layers have parameters of their own; None means 1.
        inner_group_num: ALBERT: layers of a group, all of which are applied `num_hidden_layers / num_hidden_groups`
            times.
        position_embedding_type: "absolute", "relative_key" (https://arxiv.org/abs/1803.02155) or "relative_key_query"
            (https://arxiv.org/abs/2009.13658, method 4).
        is_decoder: each position sees only those before it.
        add_cross_attention: layers also attend to an encoder's output; decoders only.
        tie_word_embeddings: the masked-LM head multiplies with the token table, and has no table of its own.
        pruned_heads: (number of the layer, numbers of its heads that are gone) for each layer that lost any; in ALBERT
            of a layer with parameters of its own.
        chunk_size_feed_forward: positions that the feed-forward takes at once, 0 = all.
        labels: names of the classes of a classifier.
        problem_type: one of `PROBLEM_TYPES`, or None: it follows from the labels (see `losses`).
        bos_token_id, eos_token_id: the ids of the tokens around a text; the model reads them nowhere.
        qa_dropout: DistilBERT: rate before the question-answering head.
        seq_classif_dropout: DistilBERT: rate before the classifier of a sequence.
        sinusoidal_pos_embds: DistilBERT: the position table is that of https://arxiv.org/abs/1706.03762, section 3.5,
            and is not trained.

    Raises:
        UserError: a field has a wrong type, a value that cannot be, or one that this family does not have.
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
    model_type: str = "bert"
    embedding_size: int | None = None
    num_hidden_groups: int | None = None
    inner_group_num: int = 1
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    pruned_heads: tuple[tuple[int, tuple[int, ...]], ...] = ()
    chunk_size_feed_forward: int = 0
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    problem_type: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    qa_dropout: float = 0.1
    seq_classif_dropout: float = 0.2
    sinusoidal_pos_embds: bool = False

    def __post_init__(self):
        check(self)

    @property
    def family(self) -> str:
        """ "bert", "roberta", "albert" or "distilbert": what `model_type` computes like."""
        return FAMILY_OF[self.model_type]

    @property
    def head_dim(self) -> int:
        """K, the size of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """E, the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def num_labels(self) -> int:
        """C, the number of classes."""
        return len(self.labels)

    @property
    def num_parameter_layers(self) -> int:
        """How many subtrees `layer_i` there are: N, or in ALBERT as many as its groups have layers."""
        if self.family != "albert":
            return self.num_hidden_layers
        return (self.num_hidden_groups or 1) * self.inner_group_num

    @property
    def layer_order(self) -> tuple[int, ...]:
        """The number of the subtree `layer_i` that is applied at each depth."""
        if self.family != "albert":
            return tuple(range(self.num_hidden_layers))
        per_group = self.num_hidden_layers / (self.num_hidden_groups or 1)
        groups = (int(i / per_group) for i in range(self.num_hidden_layers))
        return tuple(group * self.inner_group_num + i for group in groups for i in range(self.inner_group_num))

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """Numbers, before any pruning, of the self-attention heads that the subtree `layer_i` has."""
        gone = dict(self.pruned_heads).get(layer, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in gone)

    @property
    def longest_input(self) -> int:
        """Positions that an input may have: RoBERTa's first stands in row `pad_token_id` + 1."""
        used = self.pad_token_id + 1 if self.family == "roberta" else 0
        return self.max_position_embeddings - used

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like any other."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """A published size.

        Args:
            name: tiny, mini, small, medium, base-uncased, base-cased, base-multilingual-cased,
                base-multilingual-uncased, base-chinese, large-uncased, large-cased, or one of the 24 small
                models of https://arxiv.org/abs/1908.08962 as "L-4_H-256"; roberta-base, roberta-large,
                distilroberta-base, xlm-roberta-base, xlm-roberta-large; albert-base, -large, -xlarge, -xxlarge with
                -v1 or -v2 (activation as in Google's code); distilbert-base-uncased, -cased, -multilingual-cased.
            **overrides: fields that differ from the published ones.
        """
        if name not in PRESETS:
            raise UserError(f"unknown preset {name!r}; {_nearest(name, PRESETS)}")
        return cls(**(PRESETS[name] | overrides))

    @classmethod
    def from_json(cls, source: dict[str, Any] | str | PathLike[str]) -> Self:
        """Read a Hugging Face `config.json`, or Google's `bert_config.json` or `albert_config.json`.

        Keys that the model does not read (`architectures`, `pooler_fc_size` ...) are ignored; absent ones take the
        defaults of the family's class in transformers. `dtype` in such a file is the type in which the weights are
        stored, and is ignored too.

        Args:
            source: the parsed JSON, the file, or the folder that holds one of these files.

        Raises:
            FileNotFoundError: no such file.
            UserError: not JSON, a field of a wrong type or value, or a file of another kind of model.
        """
        if isinstance(source, dict):
            return cls(**fields_of(source))
        path = Path(source)
        if path.is_dir():
            found = [path / name for name in CONFIG_FILES if (path / name).is_file()]
            if not found:
                raise FileNotFoundError(f"{path}: holds no config.json (nor Google's {' or '.join(CONFIG_FILES[1:])})")
            path = found[0]
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: not a JSON file ({error})") from error
        if not isinstance(data, dict):
            raise UserError(f"{path}: expected a JSON object, found {type(data).__name__}")
        try:
            return cls(**fields_of(data))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The fields of a Hugging Face `config.json` in the family's own spelling, ready for `json.dumps`.

        `dtype` and `remat` are left out: they say how this program computes, and there the key `dtype` means
        the type of the stored weights.
        """
        fields = dataclasses.fields(self)
        return json_of({f.name: getattr(self, f.name) for f in fields}, {f.name: f.default for f in fields})


def _nearest(name: str, names: dict[str, Any]) -> str:
    close = difflib.get_close_matches(name, names, n=3)
    if re.fullmatch(r"L-\d+_H-\d+", name):
        return "the small models are L-2 … L-12 (even) by H-128, H-256, H-512, H-768"
    return f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(names)}"
