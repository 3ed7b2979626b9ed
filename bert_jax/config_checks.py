"""What a `BertConfig` may be: the values of each field, and which of them a family does not have."""

from typing import TYPE_CHECKING, Any, TypeGuard

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.config import BertConfig

# Every activation that transformers names in ACT2FN; the functions live in model/layers.py and those with parameters
# in model/activations.py, which a test holds to this list.
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
    "prelu",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
    "xielu",
)
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "full", "dots")

# Model types of Hugging Face -> the family whose computation they name.
FAMILY_OF = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "albert": "albert",
    "distilbert": "distilbert",
}
POSITION_EMBEDDING_TYPES = ("absolute", "relative_key", "relative_key_query")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "inner_group_num",
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
    "remat": REMAT_POLICIES,
    "model_type": tuple(FAMILY_OF),
    "position_embedding_type": POSITION_EMBEDDING_TYPES,
    "problem_type": (*PROBLEM_TYPES, None),
}
_MAYBE_COUNTS = {"bos_token_id": 0, "eos_token_id": 0, "embedding_size": 1, "num_hidden_groups": 1}
_FLAGS = ("is_decoder", "add_cross_attention", "tie_word_embeddings", "sinusoidal_pos_embds")


def check(config: "BertConfig") -> None:
    """Raises UserError with the first field of a wrong type, a value that cannot be, or no place in its family."""
    _check_numbers(config)
    for name, allowed in _CHOICES.items():
        _require(config, name, getattr(config, name) in allowed, f"one of {', '.join(map(str, allowed))}")
    for name in _FLAGS:
        _require(config, name, isinstance(getattr(config, name), bool), "true or false")
    is_token = _is_int(config.pad_token_id) and 0 <= config.pad_token_id < config.vocab_size
    _require(config, "pad_token_id", is_token, f"a token id below vocab_size={config.vocab_size}")
    heads = config.num_attention_heads
    _require(config, "hidden_size", config.hidden_size % heads == 0, f"a multiple of num_attention_heads={heads}")
    are_names = isinstance(config.labels, tuple) and all(isinstance(label, str) for label in config.labels)
    _require(config, "labels", bool(are_names and config.labels), "a tuple of at least one name")
    one_class = config.problem_type == "single_label_classification" and config.num_labels == 1
    _require(config, "problem_type", not one_class, "regression or multi_label_classification for a single label")
    _check_family(config)
    _check_pruned_heads(config)


def _require(config: "BertConfig", name: str, ok: bool, expected: str) -> None:
    if not ok:
        raise UserError(f"{name}={getattr(config, name)!r}: expected {expected}")


def _check_numbers(config: "BertConfig") -> None:
    for name in _SIZES:
        value = getattr(config, name)
        _require(config, name, _is_int(value) and value > 0, "a positive integer")
    for name in _RATES:
        value = getattr(config, name)
        absent = value is None and name == "classifier_dropout"
        _require(config, name, absent or (_is_number(value) and 0 <= value < 1), "a probability in [0, 1)")
    for name in ("initializer_range", "layer_norm_eps"):
        value = getattr(config, name)
        _require(config, name, _is_number(value) and value > 0, "a positive number")
    for name, least in _MAYBE_COUNTS.items():
        value = getattr(config, name)
        ok = value is None or (_is_int(value) and value >= least)
        _require(config, name, ok, f"a whole number of at least {least}, or None")
    chunk = config.chunk_size_feed_forward
    _require(config, "chunk_size_feed_forward", _is_int(chunk) and chunk >= 0, "a whole number of at least 0")


def _check_family(config: "BertConfig") -> None:
    """What a family does not have is refused rather than left undone."""
    family = config.family
    if family != "albert":
        of_width = config.embedding_width == config.hidden_size
        _require(config, "embedding_size", of_width, f"None: {family} has none")
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
        _require(config, "layer_norm_eps", config.layer_norm_eps == 1e-12, "1e-12: distilbert has no other")
        no_rate = config.classifier_dropout is None
        _require(config, "classifier_dropout", no_rate, "None: distilbert has seq_classif_dropout and qa_dropout")
    else:
        _require(config, "sinusoidal_pos_embds", not config.sinusoidal_pos_embds, f"False: {family} has none")
    _require(config, "max_position_embeddings", config.longest_input > 0, f"more than {config.pad_token_id + 1}")


def _check_pruned_heads(config: "BertConfig") -> None:
    layers, heads = config.num_parameter_layers, config.num_attention_heads
    try:
        fits = all(
            # In order and once each, so that equal architectures are equal configs.
            layer in range(layers) and 0 < len(gone) < heads and tuple(h for h in range(heads) if h in gone) == gone
            for layer, gone in config.pruned_heads
        )
        numbers = [layer for layer, _ in config.pruned_heads]
    except (TypeError, ValueError):
        fits, numbers = False, []
    fits = fits and isinstance(config.pruned_heads, tuple) and numbers == sorted(set(numbers))
    expected = f"((layer, (head, …)), …) in order, of layers below {layers}, with some but not all of {heads} heads"
    _require(config, "pruned_heads", fits, expected)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
