"""The heads for pretraining, one class per head for all families, and `HEADS`, the table of all heads by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax
from jax.typing import DTypeLike

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.decoder import KeyValueCache
from bert_jax.model.encoder import Bert, gather_positions, identity, tuple_on_request
from bert_jax.model.layers import Activation, Dense, LayerNorm, dropout, product, weight_init
from bert_jax.model.task_heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForReplacedTokenDetection,
    BertForSequenceClassification,
    BertForTokenClassification,
    classifier_rate,
    dropout_key,
    only_in,
)


@struct.dataclass
class Undecoded:
    """Masked-LM logits before the product with the vocabulary: logits = x · tableᵀ + bias.

    Attributes:
        x: [..., E], the vectors that the head computes.
        table: float32 [V, E], the token table, or the decoder's own table.
        bias: float32 [V].
        dtype: type of the product's operands.
    """

    x: Array
    table: Array
    bias: Array
    dtype: DTypeLike = struct.field(pytree_node=False, default=jnp.float32)

    def logits(self) -> Array:
        """The logits, float32 [..., V]."""
        axes = "BL"[: self.x.ndim - 1]
        with jax.named_scope("decoder"):
            logits = product(f"{axes}E,VE->{axes}V", self.x, self.table, self.dtype, jnp.float32)
            return logits + lax.broadcast_to_rank(self.bias, logits.ndim)


@struct.dataclass
class PreTrainingOutput:
    """The output of the pretraining models; None for a head that the model does not have.

    Attributes:
        prediction_logits: float32 [B, P, V] at `mlm_positions`, or [B, L, V] without them.
        undecoded: with `decode=False`, the operands of these logits; `prediction_logits` is None then.
        seq_relationship_logits: float32 [B, 2], with `pooled_positions` [B, K, 2]; index 0 means "B follows A", in
            ALBERT "A and B are in order".
        hidden_states, attentions: as in `BertOutput`.
    """

    prediction_logits: Array | None = None
    seq_relationship_logits: Array | None = None
    hidden_states: tuple[Array, ...] | None = None
    attentions: tuple[Array, ...] | None = None
    undecoded: Undecoded | None = None

    @property
    def logits(self) -> Array:
        """The logits of a model with one head, under transformers' name; UserError if the model has two heads."""
        there = [x for x in (self.prediction_logits, self.seq_relationship_logits) if x is not None]
        if len(there) != 1:
            raise UserError("logits: this model has two heads; take prediction_logits or seq_relationship_logits")
        return there[0]


@struct.dataclass
class CausalLMOutput:
    """The output of `BertLMHeadModel`.

    Attributes:
        logits: float32 [B, L, V], or [B, P, V] at `positions`; the logits at a position predict the next token.
        hidden_states, attentions, cross_attentions, cache: as in `BertOutput`.
    """

    logits: Array
    hidden_states: tuple[Array, ...] | None = None
    attentions: tuple[Array, ...] | None = None
    cross_attentions: tuple[Array, ...] | None = None
    cache: KeyValueCache | None = None


class MaskedLMHead(nn.Module):
    """Dense, activation, LayerNorm, then a product with the token table (tied) plus a bias of its own. No dropout.

    The activation is `hidden_act`; in RoBERTa and ELECTRA it is always the exact gelu.

    Parameters: transform (dense D -> E), LayerNorm, bias float32 [V]; without `tie_word_embeddings` also decoder
    float32 [V, E], which replaces the token table in the product.
    """

    config: BertConfig

    @nn.compact
    def __call__(self, x_BLD: Array, word_embeddings_VE: Array, mlm_positions: Array | None = None) -> Undecoded:
        """[B, L, D] -> `Undecoded` with vectors [B, P, E] at `mlm_positions` [B, P], or [B, L, E] without them."""
        config = self.config
        if mlm_positions is not None:
            x_BLD = gather_positions(x_BLD, mlm_positions)
        x_BLE = Dense(config, config.embedding_width, name="transform")(x_BLD)
        x_BLE = Activation(config.mlm_act, name="activation")(x_BLE)
        x_BLE = LayerNorm(config, name="LayerNorm")(x_BLE)
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,), jnp.float32)
        table_VE = word_embeddings_VE
        if not config.tie_word_embeddings:
            table_VE = self.param("decoder", weight_init(config), (config.vocab_size, config.embedding_width))
        return Undecoded(x_BLE, table_VE, bias, config.dtype)


class NextSentenceHead(Dense):
    """Pooled [B, D] -> float32 logits [B, 2], or [B, K, D] -> [B, K, 2] for K sequences a row.

    Index 0 means "B follows A", in ALBERT "A and B are in order".
    """

    features: int = 2
    out_dtype: DTypeLike | None = jnp.float32


class BertForPreTraining(nn.Module):
    """Masked LM and next sentence prediction; in ALBERT sentence order prediction, with dropout before that head.

    Takes `Bert`'s arguments, `mlm_positions` (see `MaskedLMHead`), and `decode`: False returns `undecoded` instead of
    `prediction_logits`. The other families were trained without sentence pairs: their pretraining model is
    `BertForMaskedLM`.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        only_in(self.config, "pretraining", "bert", "albert")
        self.bert = Bert(self.config, self.constrain)
        self.mlm_head = MaskedLMHead(self.config)
        self.nsp_head = NextSentenceHead(self.config)

    @tuple_on_request
    def __call__(
        self,
        *inputs: Array,
        mlm_positions: Array | None = None,
        decode: bool = True,
        deterministic: bool = True,
        **options: Any,
    ) -> PreTrainingOutput:
        output: Any = self.bert(*inputs, deterministic=deterministic, **options)
        undecoded = self.mlm_head(output.last_hidden_state, self.bert.embeddings.word_embeddings, mlm_positions)
        pooled_BD = output.pooler_output
        if self.config.family == "albert":
            pooled_BD = dropout(pooled_BD, classifier_rate(self.config), dropout_key(self, deterministic))
        return PreTrainingOutput(
            prediction_logits=undecoded.logits() if decode else None,
            undecoded=None if decode else undecoded,
            seq_relationship_logits=self.nsp_head(pooled_BD),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class BertForMaskedLM(nn.Module):
    """Masked LM alone, without a pooler. Takes the arguments of `BertForPreTraining`."""

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        self.bert = Bert(self.config, self.constrain, add_pooler=False)
        self.mlm_head = MaskedLMHead(self.config)

    @tuple_on_request
    def __call__(
        self, *inputs: Array, mlm_positions: Array | None = None, decode: bool = True, **options: Any
    ) -> PreTrainingOutput:
        output: Any = self.bert(*inputs, **options)
        undecoded = self.mlm_head(output.last_hidden_state, self.bert.embeddings.word_embeddings, mlm_positions)
        return PreTrainingOutput(
            prediction_logits=undecoded.logits() if decode else None,
            undecoded=None if decode else undecoded,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class BertForNextSentencePrediction(nn.Module):
    """Next sentence prediction alone; only BERT has it. Takes `Bert`'s arguments."""

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        only_in(self.config, "nsp", "bert")
        self.bert = Bert(self.config, self.constrain)
        self.nsp_head = NextSentenceHead(self.config)

    @tuple_on_request
    def __call__(self, *inputs: Array, **options: Any) -> PreTrainingOutput:
        output: Any = self.bert(*inputs, **options)
        return PreTrainingOutput(
            seq_relationship_logits=self.nsp_head(output.pooler_output),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


class BertLMHeadModel(nn.Module):
    """Causal LM: the masked-LM head on a decoder (`is_decoder`), no pooler.

    Takes `Bert`'s arguments, and `positions`, integer [B, P]: the positions whose logits it computes; None means all.
    Text generation needs only the last position.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    def setup(self):
        only_in(self.config, "causal-lm", "bert", "roberta", "electra")
        if not self.config.is_decoder:
            raise UserError("is_decoder=False: a causal LM would see the tokens that it predicts; expected True")
        self.bert = Bert(self.config, self.constrain, add_pooler=False)
        self.mlm_head = MaskedLMHead(self.config)

    @tuple_on_request
    def __call__(self, *inputs: Array, positions: Array | None = None, **options: Any) -> CausalLMOutput:
        output: Any = self.bert(*inputs, **options)
        undecoded = self.mlm_head(output.last_hidden_state, self.bert.embeddings.word_embeddings, positions)
        return CausalLMOutput(
            logits=undecoded.logits(),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            cross_attentions=output.cross_attentions,
            cache=output.cache,
        )


HEADS: dict[str, Callable[[BertConfig], nn.Module]] = {
    "pretraining": BertForPreTraining,
    "mlm": BertForMaskedLM,
    "nsp": BertForNextSentencePrediction,
    "encoder": Bert,
    "encoder-no-pooler": partial(Bert, add_pooler=False),
    "sequence-classification": BertForSequenceClassification,
    "token-classification": BertForTokenClassification,
    "question-answering": BertForQuestionAnswering,
    "multiple-choice": BertForMultipleChoice,
    "causal-lm": BertLMHeadModel,
    "replaced-token-detection": BertForReplacedTokenDetection,
}
