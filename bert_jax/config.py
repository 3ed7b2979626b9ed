"""`BertConfig`, which describes an architecture, and the checks of its fields."""

import dataclasses
import re
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeGuard

from bert_jax.config_json import MODEL_TYPES, fields_of, json_of
from bert_jax.errors import UserError, did_you_mean, quoted, valid_unicode
from bert_jax.files import read_object
from bert_jax.presets import PRESETS
from bert_jax.shown import ShownConfig

# The keys of transformers' ACT2FN; model/layers.py has the functions.
HIDDEN_ACTS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu",
    "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu",
)  # fmt: skip
XIELU_BETA, XIELU_EPS = 0.5, -1e-6
"""The constants of "xielu", which transformers stores beside its parameters."""

DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "full", "dots")
ATTENTIONS = ("auto", "xla", "kernel", "cudnn")
COMPUTE_FIELDS = ("dtype", "activation_dtype", "remat", "attention")

POSITION_EMBEDDING_TYPES = ("absolute", "relative_key", "relative_key_query")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
CONFIG_FILES = ("config.json", "bert_config.json", "albert_config.json")


@dataclass(frozen=True, repr=False)
class BertConfig(ShownConfig):
    """The architecture of one BERT, RoBERTa, ALBERT, DistilBERT or ELECTRA.

    Field names are those of a Hugging Face `config.json`. The defaults are those of BERT-base uncased
    (https://arxiv.org/abs/1810.04805, section 3) for every `model_type`: use `preset` or `from_json` for the other
    families. `COMPUTE_FIELDS` set types and memory use of the computation; they never change the parameters, which are
    always float32.

    Attributes:
        vocab_size: V, rows of the token table.
        hidden_size: D; must be a multiple of `num_attention_heads`, unless `head_size` is given.
        num_hidden_layers: N, the number of layers.
        num_attention_heads: H, the number of attention heads of a layer.
        head_size: K, the size of one attention head; None means D / H. transformers has no other sizes.
        intermediate_size: F, width of the feed-forward.
        hidden_act: "gelu" (the exact form, erf), "gelu_new" (tanh), "relu" or another of `HIDDEN_ACTS`, for the
            feed-forward and the masked-LM head.
        hidden_dropout_prob: rate after the embeddings, the attention output and the feed-forward output (DistilBERT
            has none after the attention output, ALBERT none after the feed-forward output).
        attention_probs_dropout_prob: rate on the attention probabilities.
        max_position_embeddings: rows of the position table; the longest input has `longest_input` positions.
        type_vocab_size: rows of the token-type table; DistilBERT has no such table.
        initializer_range: standard deviation of the normal distribution that initialises weights, before truncation
            at two standard deviations.
        layer_norm_eps: added to the variance.
        pad_token_id: the id of [PAD]. RoBERTa computes its positions from it; the other families ignore it (the
            attention mask marks padding).
        classifier_dropout: rate before a classifier; None means `hidden_dropout_prob`.
        dtype: type of the operands of matrix products, "float32" or "bfloat16"; they accumulate in float32.
        activation_dtype: type of the results of matrix products, and so of the activations between layers; None means
            float32 on a CPU and `dtype` on accelerators.
        remat: what the backward pass recomputes: "none", "full" (each layer), "dots" (everything except the products
            with weights).
        attention: what computes attention, one of `ATTENTIONS`: "xla" (plain operations), "kernel" (TPUs and
            GPUs), "cudnn" (NVIDIA GPUs), or "auto": the kernel on TPUs where it helps, else "xla"
            (`model/attention_choice.py`).
        model_type: "bert", "roberta", "albert", "distilbert", "electra" or another key of `MODEL_TYPES`.
        embedding_size: E, width of the embeddings in ALBERT and ELECTRA; None means `hidden_size`.
        num_hidden_groups: ALBERT: number of groups of layers, each with its own parameters; None means 1.
        inner_group_num: ALBERT: layers in each group; a group is applied `num_hidden_layers / num_hidden_groups` times.
        position_embedding_type: "absolute", "relative_key" (https://arxiv.org/abs/1803.02155) or "relative_key_query"
            (https://arxiv.org/abs/2009.13658, method 4).
        is_decoder: each position attends only to itself and to earlier positions.
        add_cross_attention: layers also attend to an encoder's output; decoders only.
        tie_word_embeddings: the masked-LM head multiplies with the token table instead of a table of its own.
        pruned_heads: (layer number, numbers of its removed heads) for each layer with removed heads; in ALBERT the
            number is that of a layer with its own parameters.
        chunk_size_feed_forward: positions that the feed-forward computes at a time, 0 = all.
        labels: names of the classes of a classifier.
        problem_type: "regression", "single_label_classification" or "multi_label_classification"; None: the loss
            infers it (see `losses.sequence_classification_loss`).
        bos_token_id, eos_token_id: the ids of the tokens around a text; the model does not use them.
        qa_dropout: DistilBERT: rate before the question-answering head.
        seq_classif_dropout: DistilBERT: rate before the classifier of a sequence or choice; ELECTRA: of a choice.
        sinusoidal_pos_embds: DistilBERT: the position table is that of https://arxiv.org/abs/1706.03762, section 3.5,
            and is not trained.

    Raises:
        UserError: a field has a wrong type, an impossible value, or a value that its family does not support.
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
    activation_dtype: str | None = None
    remat: str = "none"
    attention: str = "auto"
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
    head_size: int | None = None

    def __post_init__(self):
        take_python_numbers(self)
        _check(self)

    @property
    def family(self) -> str:
        """The family whose computation `model_type` uses: "bert", "roberta", "albert", "distilbert" or "electra"."""
        return MODEL_TYPES[self.model_type].family

    @property
    def head_dim(self) -> int:
        """K, the size of one attention head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """E, the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def has_token_types(self) -> bool:
        """Whether there is a table of token types."""
        return self.family != "distilbert"

    @property
    def tells_token_types(self) -> bool:
        """Whether a second token type exists."""
        return self.has_token_types and self.type_vocab_size > 1

    @property
    def has_projection(self) -> bool:
        """Whether a dense layer takes the embeddings to the hidden size."""
        return self.family == "albert" or self.embedding_width != self.hidden_size

    @property
    def has_pooler(self) -> bool:
        """Whether the family's encoder has a pooler; some heads do without it."""
        return self.family not in ("distilbert", "electra")

    @property
    def mlm_act(self) -> str:
        """The activation of the masked-LM head."""
        return "gelu" if self.family in ("roberta", "electra") else self.hidden_act

    @property
    def pre_classifier_act(self) -> str:
        """The activation after the dense layer that some classifiers have in place of the pooler."""
        return {"distilbert": "relu", "electra": "gelu"}.get(self.family, "tanh")

    @property
    def num_labels(self) -> int:
        """C, the number of classes."""
        return len(self.labels)

    @property
    def num_parameter_layers(self) -> int:
        """The number of subtrees `layer_i`: N, or in ALBERT the number of groups times the layers in each."""
        if self.family != "albert":
            return self.num_hidden_layers
        return (self.num_hidden_groups or 1) * self.inner_group_num

    @property
    def layer_order(self) -> tuple[int, ...]:
        """For each depth, the number i of the subtree `layer_i` that is applied there."""
        if self.family != "albert":
            return tuple(range(self.num_hidden_layers))
        per_group = self.num_hidden_layers / (self.num_hidden_groups or 1)
        groups = (int(i / per_group) for i in range(self.num_hidden_layers))
        return tuple(group * self.inner_group_num + i for group in groups for i in range(self.inner_group_num))

    def heads_of(self, layer: int) -> tuple[int, ...]:
        """The self-attention heads that remain in the subtree `layer_{layer}`, numbered as before any pruning."""
        gone = dict(self.pruned_heads).get(layer, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in gone)

    @property
    def longest_input(self) -> int:
        """The maximum length of an input. RoBERTa's first position is row `pad_token_id` + 1 of the table."""
        used = self.pad_token_id + 1 if self.family == "roberta" else 0
        return self.max_position_embeddings - used

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; it is checked like every config."""
        return dataclasses.replace(self, **changes)

    def with_dropout(self, rate: float) -> Self:
        """A copy with this rate of dropout wherever the encoder has one, the attention's probabilities included."""
        return self.replace(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The config of a published model.

        Args:
            name: tiny, mini, small, medium, base-uncased, base-cased, base-multilingual-cased,
                base-multilingual-uncased, base-chinese, large-uncased, large-cased, or one of the 24 small
                models of https://arxiv.org/abs/1908.08962 as "L-4_H-256"; roberta-base, roberta-large,
                distilroberta-base, xlm-roberta-base, xlm-roberta-large; albert-base, -large, -xlarge, -xxlarge with
                -v1 or -v2 (activation as in Google's code); distilbert-base-uncased, -cased, -multilingual-cased;
                electra-small, -base, -large (the discriminators).
            **overrides: values of fields to use instead of the published ones.

        Raises:
            UserError: an unknown name, or a wrong value of a field.
        """
        if name not in PRESETS:
            raise UserError(f"unknown preset {name!r}; {_nearest(name, PRESETS)}")
        return cls(**(PRESETS[name] | overrides))

    @classmethod
    def from_json(cls, source: dict[str, Any] | str | PathLike[str]) -> Self:
        """Reads a Hugging Face `config.json`, or Google's `bert_config.json` or `albert_config.json`.

        Keys that the model does not use (`architectures`, `pooler_fc_size` ...) are ignored; for absent keys the
        defaults of the family's class in transformers apply. `dtype` in such a file is the type of the stored weights
        and is ignored too.

        Args:
            source: the parsed JSON, the file, or the folder that holds one of these files.

        Raises:
            FileNotFoundError: the file does not exist, or the folder contains none of them.
            UserError: the file is not JSON, a field has a wrong type or value, or the file describes another kind of
                model.
        """
        if isinstance(source, dict):
            return cls(**fields_of(source))
        path = Path(source)
        if path.is_dir():
            found = [path / name for name in CONFIG_FILES if (path / name).is_file()]
            if not found:
                raise FileNotFoundError(
                    f"{path}: contains no config.json (nor Google's {' or '.join(CONFIG_FILES[1:])})"
                )
            path = found[0]
        data = read_object(path)
        try:
            return cls(**fields_of(data))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The fields of a Hugging Face `config.json` in the family's own spelling, ready for `json.dumps`.

        It omits `COMPUTE_FIELDS`: they set how this program computes, whereas in a `config.json` the key `dtype` means
        the type of the stored weights.
        """
        fields = dataclasses.fields(self)
        return json_of({f.name: getattr(self, f.name) for f in fields}, {f.name: f.default for f in fields})


LARGEST_SIZES = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 17,
    "num_hidden_layers": 4096,
    "num_attention_heads": 4096,
    "intermediate_size": 1 << 20,
    "max_position_embeddings": 1 << 24,
    "type_vocab_size": 1 << 20,
    "inner_group_num": 4096,
    "embedding_size": 1 << 17,
    "num_hidden_groups": 4096,
    "head_size": 1 << 17,
}
"""The largest value of each size, far above any model that was ever trained; a config with more is damaged."""
MOST_PARAMETERS = 10**13
"""Parameters of the encoder at most, roughly counted; a model of 48 layers and hidden size 8,192 has 4e10."""
_REQUIRED_SIZES = tuple(
    name for name in LARGEST_SIZES if name not in ("embedding_size", "num_hidden_groups", "head_size")
)

_RATES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "qa_dropout",
    "seq_classif_dropout",
)

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "hidden_act": HIDDEN_ACTS,
    "dtype": DTYPES,
    "activation_dtype": (*DTYPES, None),
    "remat": REMAT_POLICIES,
    "attention": ATTENTIONS,
    "model_type": tuple(MODEL_TYPES),
    "position_embedding_type": POSITION_EMBEDDING_TYPES,
    "problem_type": (*PROBLEM_TYPES, None),
}

_MAYBE_COUNTS = {"bos_token_id": 0, "eos_token_id": 0, "embedding_size": 1, "num_hidden_groups": 1, "head_size": 1}
_FLAGS = ("is_decoder", "add_cross_attention", "tie_word_embeddings", "sinusoidal_pos_embds")


def _check(config: BertConfig) -> None:
    """Raise UserError that names the first field with a wrong type, or a value that its family does not support."""
    _check_numbers(config)
    for name, allowed in _CHOICES.items():
        _require(config, name, getattr(config, name) in allowed, f"one of {', '.join(map(str, allowed))}")
    for name in _FLAGS:
        _require(config, name, isinstance(getattr(config, name), bool), "true or false")
    is_token = is_int(config.pad_token_id) and 0 <= config.pad_token_id < config.vocab_size
    _require(config, "pad_token_id", is_token, f"a token id below vocab_size={config.vocab_size}")
    heads = config.num_attention_heads
    divides = config.head_size is not None or config.hidden_size % heads == 0
    _require(config, "hidden_size", divides, f"a multiple of num_attention_heads={heads}, or head_size with it")
    are_names = isinstance(config.labels, tuple) and all(isinstance(label, str) for label in config.labels)
    _require(config, "labels", bool(are_names and config.labels), "a tuple of at least one name")
    for label in config.labels:
        valid_unicode(label, f"the label {quoted(label)}")
    one_class = config.problem_type == "single_label_classification" and config.num_labels == 1
    _require(config, "problem_type", not one_class, "regression or multi_label_classification for a single label")
    _check_family(config)
    _check_pruned_heads(config)
    _check_parameters(config)


def _require(config: BertConfig, name: str, ok: bool, expected: str) -> None:
    if not ok:
        raise UserError(f"{name}={quoted(getattr(config, name))}: expected {expected}")


def _check_numbers(config: BertConfig) -> None:
    for name in _REQUIRED_SIZES:
        value = getattr(config, name)
        _require(config, name, is_int(value) and value > 0, "a positive integer")
    for name in _RATES:
        value = getattr(config, name)
        absent = value is None and name == "classifier_dropout"
        _require(config, name, absent or (is_number(value) and 0 <= value < 1), "a probability in [0, 1)")
    for name in ("initializer_range", "layer_norm_eps"):
        value = getattr(config, name)
        _require(config, name, is_number(value) and 0 < value < 1e30, "a positive number below 1e30")
    for name, least in _MAYBE_COUNTS.items():
        value = getattr(config, name)
        ok = value is None or (is_int(value) and value >= least)
        _require(config, name, ok, f"a whole number of at least {least}, or None")
    for name, most in LARGEST_SIZES.items():
        value = getattr(config, name)
        _require(config, name, value is None or value <= most, f"at most {most}")
    chunk = config.chunk_size_feed_forward
    _require(config, "chunk_size_feed_forward", is_int(chunk) and chunk >= 0, "a whole number of at least 0")


def _check_parameters(config: BertConfig) -> None:
    width, tables = config.hidden_size, config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    of_heads = config.num_attention_heads * config.head_dim  # more than the width if head_size says so
    of_layers = config.num_parameter_layers * width * (4 * of_heads + 2 * config.intermediate_size)
    if (count := tables * config.embedding_width + of_layers) > MOST_PARAMETERS:
        raise UserError(
            f"hidden_size={width}, num_hidden_layers={config.num_hidden_layers} and the other sizes: {count:.0e} "
            f"parameters; expected at most {MOST_PARAMETERS:.0e}"
        )


def _check_family(config: BertConfig) -> None:
    """Raise UserError for options that a family does not have, instead of ignoring them."""
    family = config.family
    if family not in ("albert", "electra"):
        of_width = config.embedding_width == config.hidden_size
        _require(config, "embedding_size", of_width, f"None: {family} has none")
    if family != "albert":
        _require(config, "num_hidden_groups", config.num_hidden_groups is None, f"None: {family} has none")
        _require(config, "inner_group_num", config.inner_group_num == 1, f"1: {family} has no groups of layers")
    elif config.num_hidden_groups is not None:
        fits = config.num_hidden_groups <= config.num_hidden_layers
        _require(config, "num_hidden_groups", fits, f"at most num_hidden_layers={config.num_hidden_layers}")
    if family in ("albert", "distilbert"):
        _require(config, "is_decoder", not config.is_decoder, f"False: {family} has no decoder")
    decodes = config.is_decoder or not config.add_cross_attention
    _require(config, "add_cross_attention", decodes, "False unless is_decoder")
    if family == "distilbert":
        absolute = config.position_embedding_type == "absolute"
        _require(config, "position_embedding_type", absolute, "absolute: distilbert has no relative positions")
        _require(config, "layer_norm_eps", config.layer_norm_eps == 1e-12, "1e-12, which distilbert always uses")
        no_rate = config.classifier_dropout is None
        _require(config, "classifier_dropout", no_rate, "None: distilbert has seq_classif_dropout and qa_dropout")
    else:
        _require(config, "sinusoidal_pos_embds", not config.sinusoidal_pos_embds, f"False: {family} has none")
    _require(config, "max_position_embeddings", config.longest_input > 0, f"more than {config.pad_token_id + 1}")


def _check_pruned_heads(config: BertConfig) -> None:
    layers, heads = config.num_parameter_layers, config.num_attention_heads
    try:
        fits = all(
            # Heads are sorted and unique, so that equal architectures have equal configs.
            layer in range(layers) and 0 < len(gone) < heads and tuple(h for h in range(heads) if h in gone) == gone
            for layer, gone in config.pruned_heads
        )
        numbers = [layer for layer, _ in config.pruned_heads]
    except (TypeError, ValueError):
        fits, numbers = False, []
    fits = fits and isinstance(config.pruned_heads, tuple) and numbers == sorted(set(numbers))
    expected = (
        f"((layer, (head, …)), …), sorted, with layers below {layers} and at least 1 but not all of {heads} heads"
    )
    _require(config, "pruned_heads", fits, expected)


def take_python_numbers(config: Any) -> None:
    """Puts Python's numbers in the place of NumPy's, such as `ids.max() + 1`, in the fields of a frozen dataclass."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        # NumPy is not imported for this: a verb's --help needs no more than configs.
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            object.__setattr__(config, field.name, value.item())


def is_int(value: Any) -> bool:
    """Whether a value is a whole number, and not True or False, which Python counts among them."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nearest(name: str, names: dict[str, Any]) -> str:
    if re.fullmatch(r"L-\d+_H-\d+", name):
        return "the small models are L-2 … L-12 (even) by H-128, H-256, H-512, H-768"
    return did_you_mean(name, names).removeprefix("; ") or f"expected one of {', '.join(names)}"
