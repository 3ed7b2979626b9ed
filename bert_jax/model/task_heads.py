"""Heads for fine-tuning, one class per task, for all families: classifiers of sequences, tokens, choices; answer spans.

The layers between the encoder and the last dense layer are those of transformers for each family
(`models/*/modeling_*.py`).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert, BertOutput, check_are_arrays, identity, tuple_on_request
from bert_jax.model.layers import Activation, Dense, DropoutKey, activate, dropout


@struct.dataclass
class ClassifierOutput:
    """The output of the classifiers.

    Attributes:
        logits: float32; [B, C] for sequences, [B, L, C] for tokens, [B, L] for replaced tokens, [B, choices] for
            choices.
        hidden_states, attentions: as in `BertOutput`; for choices they have B · choices rows.
    """

    logits: Array
    hidden_states: tuple[Array, ...] | None = None
    attentions: tuple[Array, ...] | None = None


@struct.dataclass
class QuestionAnsweringOutput:
    """The output of `BertForQuestionAnswering`.

    Attributes:
        start_logits, end_logits: float32 [B, L].
        hidden_states, attentions: as in `BertOutput`.
    """

    start_logits: Array
    end_logits: Array
    hidden_states: tuple[Array, ...] | None = None
    attentions: tuple[Array, ...] | None = None


class BertForSequenceClassification(nn.Module):
    """`num_labels` scores for a sequence (for regression: values). Takes `Bert`'s arguments.

    BERT and ALBERT classify the pooled vector, after dropout. The others have a dense layer `pre_classifier` instead of
    the pooler: dropout, dense, tanh, dropout in RoBERTa; the same with GELU in ELECTRA; dense, ReLU, dropout in
    DistilBERT.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        config = self.config
        self.bert = Bert(config, self.constrain, add_pooler=config.family != "roberta")
        self.pre_classifier = None
        if config.family == "roberta" or not config.has_pooler:
            self.pre_classifier = Dense(config, config.hidden_size)
        self.classifier = Dense(config, config.num_labels, out_dtype=jnp.float32)

    @tuple_on_request
    def __call__(self, *inputs: Array, deterministic: bool = True, **options: Any) -> ClassifierOutput:
        output: Any = self.bert(*inputs, deterministic=deterministic, **options)
        rate = self.config.seq_classif_dropout if self.config.family == "distilbert" else classifier_rate(self.config)
        twice = self.config.family in ("roberta", "electra")
        x_BD = _summary(self.config, output, self.pre_classifier, rate, dropout_key(self, deterministic), twice)
        return ClassifierOutput(self.classifier(x_BD), output.hidden_states, output.attentions)


class BertForMultipleChoice(nn.Module):
    """One score for each choice. Takes `Bert`'s arguments with an axis of choices after B: ids [B, choices, L].

    It scores the pooled vector, after dropout; instead of the pooler DistilBERT has dense, ReLU, dropout, and ELECTRA
    dense, GELU, dropout.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        config = self.config
        self.bert = Bert(config, self.constrain)
        self.pre_classifier = None if config.has_pooler else Dense(config, config.hidden_size)
        self.classifier = Dense(config, 1, out_dtype=jnp.float32)

    @tuple_on_request
    def __call__(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        head_mask: Array | None = None,
        inputs_embeds: Array | None = None,
        *,
        deterministic: bool = True,
        **options: Any,
    ) -> ClassifierOutput:
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        check_are_arrays(arrays | {"position_ids": position_ids, "inputs_embeds": inputs_embeds})
        if self.is_initializing() and input_ids is not None and input_ids.ndim == 2:
            input_ids = input_ids[:, None]  # so that ids [B, L] initialise every head, this one too
        choices = _number_of_choices(input_ids, inputs_embeds)
        ids, mask, types, positions, embeds = (
            _rows_of_choices(array)
            for array in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
        output: Any = self.bert(ids, mask, types, positions, head_mask, embeds, deterministic=deterministic, **options)
        rate = self.config.hidden_dropout_prob if self.config.family == "roberta" else classifier_rate(self.config)
        rate = rate if self.config.has_pooler else self.config.seq_classif_dropout
        x_RD = _summary(self.config, output, self.pre_classifier, rate, dropout_key(self, deterministic))
        logits = self.classifier(x_RD).reshape(-1, choices)
        return ClassifierOutput(logits, output.hidden_states, output.attentions)


class BertForTokenClassification(nn.Module):
    """`num_labels` scores for each position, after dropout; no pooler. Takes `Bert`'s arguments."""

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        self.bert = Bert(self.config, self.constrain, add_pooler=False)
        self.classifier = Dense(self.config, self.config.num_labels, out_dtype=jnp.float32)

    @tuple_on_request
    def __call__(self, *inputs: Array, deterministic: bool = True, **options: Any) -> ClassifierOutput:
        output: Any = self.bert(*inputs, deterministic=deterministic, **options)
        key = dropout_key(self, deterministic)
        x_BLD = dropout(output.last_hidden_state, classifier_rate(self.config), key)
        return ClassifierOutput(self.classifier(x_BLD), output.hidden_states, output.attentions)


class Detector(nn.Module):
    """Dense, activation, dense: [B, L, D] -> float32 [B, L] (https://arxiv.org/abs/2003.10555, section 2)."""

    config: BertConfig

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        x_BLD = Dense(self.config, self.config.hidden_size, name="transform")(x_BLD)
        x_BLD = Activation(self.config.hidden_act, name="activation")(x_BLD)
        return Dense(self.config, 1, out_dtype=jnp.float32, name="output")(x_BLD)[..., 0]


class BertForReplacedTokenDetection(nn.Module):
    """A score for each position, positive where a token was replaced; only ELECTRA has it. Takes `Bert`'s arguments."""

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        only_in(self.config, "replaced-token-detection", "electra")
        self.bert = Bert(self.config, self.constrain)
        self.detector = Detector(self.config)

    @tuple_on_request
    def __call__(self, *inputs: Array, **options: Any) -> ClassifierOutput:
        output: Any = self.bert(*inputs, **options)
        return ClassifierOutput(self.detector(output.last_hidden_state), output.hidden_states, output.attentions)


class BertForQuestionAnswering(nn.Module):
    """Scores for the first and the last token of the answer. Takes `Bert`'s arguments.

    It has no pooler. Only DistilBERT applies dropout before it (`qa_dropout`).
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        self.bert = Bert(self.config, self.constrain, add_pooler=False)
        self.qa_head = Dense(self.config, 2, out_dtype=jnp.float32)

    @tuple_on_request
    def __call__(self, *inputs: Array, deterministic: bool = True, **options: Any) -> QuestionAnsweringOutput:
        output: Any = self.bert(*inputs, deterministic=deterministic, **options)
        x_BLD = output.last_hidden_state
        if self.config.family == "distilbert":
            x_BLD = dropout(x_BLD, self.config.qa_dropout, dropout_key(self, deterministic))
        logits = self.qa_head(x_BLD)
        return QuestionAnsweringOutput(logits[..., 0], logits[..., 1], output.hidden_states, output.attentions)


def only_in(config: BertConfig, head: str, *families: str) -> None:
    """Raises UserError unless the config is of a family that has the head."""
    if config.family not in families:
        raise UserError(f"head={head!r}: {config.model_type} has no such head; expected family {' or '.join(families)}")


def classifier_rate(config: BertConfig) -> float:
    """The dropout rate before a classifier."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


def dropout_key(module: nn.Module, deterministic: bool) -> DropoutKey | None:
    """The key for `layers.dropout` in a head. It differs from the encoder's key, so the sites start at 0 again."""
    return None if deterministic else DropoutKey.of(module.make_rng("dropout"))


def _summary(
    config: BertConfig,
    output: BertOutput,
    pre_classifier: Dense | None,
    rate: float,
    key: DropoutKey | None,
    twice: bool = False,
) -> Array:
    """The vectors [B, D] that the classifier takes, one per sequence; `twice`: dropout before `pre_classifier` too."""
    if pre_classifier is None:
        assert output.pooler_output is not None
        return dropout(output.pooler_output, rate, key)
    first_BD = output.last_hidden_state[:, 0]
    if twice:
        first_BD = dropout(first_BD, rate, key)
    return dropout(activate(pre_classifier(first_BD), config.pre_classifier_act), rate, key, site=int(twice))


def _number_of_choices(input_ids: Array | None, inputs_embeds: Array | None) -> int:
    for name, array, axes in (("input_ids", input_ids, 3), ("inputs_embeds", inputs_embeds, 4)):
        if array is not None:
            if array.ndim != axes:
                expected = "[B, choices, L, E]" if axes == 4 else "[B, choices, L]"
                raise UserError(f"{name} has shape {array.shape}; expected {expected}")
            return array.shape[1]
    raise UserError("expected exactly one of input_ids and inputs_embeds")


def _rows_of_choices(array: Array | None) -> Array | None:
    """[B, choices, …] -> [B · choices, …]; position ids [1, L], which serve all rows, stay as they are."""
    if array is None or array.ndim < 3:
        return array
    return array.reshape(-1, *array.shape[2:])
