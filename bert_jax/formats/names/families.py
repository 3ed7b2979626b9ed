"""The names of each family's parameters in Hugging Face's files: BERT, RoBERTa, ALBERT, DistilBERT, ELECTRA.

A table consists of rows, parts (groups of rows) and heads (groups of parts); first come the parts that families share.

RoBERTa has BERT's layers; its sequence classifier has a dense layer of its own in place of the pooler. ALBERT's
embeddings have a width of their own, and a projection takes them to the hidden size; its encoder applies a few stored
layers repeatedly; its sentence pair head predicts the order (SOP) and is our `nsp_head`. DistilBERT has no token types
and no pooler; its sequence classifier has a dense layer instead. ELECTRA has no pooler either; its embeddings may
have a width of their own, its generator is our masked LM, and its discriminator has a head that finds replaced tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bert_jax.config import XIELU_BETA, XIELU_EPS, BertConfig


class Name(NamedTuple):
    """One row: our path, their key, and the shape of our array. `{layer}` and the like stand for a layer's numbers.

    Attributes:
        path: the path in our tree; "" for a constant, which their files store and our tree does not have.
        key: the key in their files.
        shape: a number or a letter for each axis. V, P, T: rows of the tables; E, D, F: widths; K: size of a head;
            A: total width of the layer's heads; C: labels; R: relative distances.
        transposed: whether their array is [out, in], as the weight of a linear layer is in torch.
        when: whether a model of the given config has the row; None: every model has it.
        also: a second key that their code requires but does not use; we write it, and read it only if `key` is absent.
        constant: the value of a constant.
    """

    path: str
    key: str
    shape: tuple[str | int, ...]
    transposed: bool = False
    when: Callable[[BertConfig], bool] | None = None
    also: str = ""
    constant: float | None = None


class Head(NamedTuple):
    """The name of transformers' class without the family's word at its start, and the parts of the table it has."""

    suffix: str
    parts: tuple[str, ...]


class Tied(NamedTuple):
    """Two keys of the same array: the key of the copy, the key of the original, the part that uses the copy."""

    copy: str
    original: str
    part: str


@dataclass(frozen=True)
class FamilyNames:
    """Everything that differs between families in Hugging Face's files.

    Attributes:
        name: the value of `BertConfig.family`.
        prefix: the prefix of the encoder's keys, with the dot.
        bare: first components of the encoder's keys in files that were written without the prefix.
        parts: name of a part, which `heads` and `tied` use -> its rows.
        heads: our name of a head -> class and parts. If a file fits several heads equally well, the first is chosen.
        tied: arrays that have two keys if `tie_word_embeddings`; the copy is not written.
        layer_numbers: (i of our subtree `layer_i`, config) -> the numbers to fill into its keys.
    """

    name: str
    prefix: str
    bare: tuple[str, ...]
    parts: Mapping[str, tuple[Name, ...]]
    heads: Mapping[str, Head]
    tied: tuple[Tied, ...] = ()
    layer_numbers: Callable[[int, BertConfig], dict[str, int]] = lambda layer, _: {"layer": layer}


ENCODER = "bert/"
"""Prefix of the encoder's paths in our tree, for every family."""


def dense(path: str, key: str, fan_in: str, fan_out: str | int) -> tuple[Name, Name]:
    """The weight and bias of a linear layer."""
    return (
        Name(f"{path}/kernel", f"{key}.weight", (fan_in, fan_out), transposed=True),
        Name(f"{path}/bias", f"{key}.bias", (fan_out,)),
    )


def layer_norm(path: str, key: str, width: str = "D") -> tuple[Name, Name]:
    """The gain and bias of a LayerNorm."""
    return Name(f"{path}/scale", f"{key}.weight", (width,)), Name(f"{path}/bias", f"{key}.bias", (width,))


def embeddings(prefix: str, *, token_types: bool = True) -> tuple[Name, ...]:
    """The embedding tables, of width E, and the LayerNorm over their sum."""
    ours, theirs = f"{ENCODER}embeddings", f"{prefix}embeddings"
    tables = {"word": "V", "position": "P"} | ({"token_type": "T"} if token_types else {})
    rows = [Name(f"{ours}/{t}_embeddings", f"{theirs}.{t}_embeddings.weight", (n, "E")) for t, n in tables.items()]
    return (*rows, *layer_norm(f"{ours}/LayerNorm", f"{theirs}.LayerNorm", "E"))


def activation(path: str, key: str) -> tuple[Name, ...]:
    """The parameters of the activations that have any, and the constants that transformers stores with them."""
    return (
        Name(f"{path}/weight", f"{key}.weight", (1,), when=lambda config: config.hidden_act == "prelu"),
        Name(f"{path}/alpha_p", f"{key}.alpha_p", (1,), when=_xielu),
        Name(f"{path}/alpha_n", f"{key}.alpha_n", (1,), when=_xielu),
        Name("", f"{key}.beta", (), when=_xielu, constant=XIELU_BETA),
        Name("", f"{key}.eps", (), when=_xielu, constant=XIELU_EPS),
    )


def vocabulary_bias(key: str, tied_key: str) -> tuple[Name, Name]:
    """The bias over the vocabulary: under `tied_key` if the decoder is tied, else under `key` (and `tied_key` too)."""
    return (
        Name("mlm_head/bias", tied_key, ("V",), when=lambda config: config.tie_word_embeddings),
        Name("mlm_head/bias", key, ("V",), when=untied, also=tied_key),
    )


def distances(path: str, key: str) -> Name:
    """The table of relative distances, for models that have one (transformers 4 does, 5 does not)."""
    return Name(path, key, ("R", "K"), when=lambda config: config.position_embedding_type != "absolute")


def untied(config: BertConfig) -> bool:
    """Whether the decoder is a parameter of its own and not the table of word embeddings."""
    return not config.tie_word_embeddings


def _xielu(config: BertConfig) -> bool:
    return config.hidden_act == "xielu"


def layers(prefix: str) -> tuple[Name, ...]:
    """The rows of one encoder layer, with those of cross-attention for configs that have it."""
    ours, theirs = f"{ENCODER}encoder/layer_{{layer}}", f"{prefix}encoder.layer.{{layer}}"
    crossing = _attention(f"{ours}/cross_attention", f"{theirs}.crossattention", "D")
    return (
        *_attention(f"{ours}/attention", f"{theirs}.attention"),
        distances(f"{ours}/attention/distance_embedding", f"{theirs}.attention.self.distance_embedding.weight"),
        *(row._replace(when=_crosses) for row in crossing),
        *dense(f"{ours}/feed_forward/intermediate", f"{theirs}.intermediate.dense", "D", "F"),
        *activation(f"{ours}/feed_forward/activation", f"{theirs}.intermediate.intermediate_act_fn"),
        *dense(f"{ours}/feed_forward/output", f"{theirs}.output.dense", "F", "D"),
        *layer_norm(f"{ours}/feed_forward/LayerNorm", f"{theirs}.output.LayerNorm"),
    )


def _attention(ours: str, theirs: str, width: str = "A") -> tuple[Name, ...]:
    return (
        *dense(f"{ours}/query", f"{theirs}.self.query", "D", width),
        *dense(f"{ours}/key", f"{theirs}.self.key", "D", width),
        *dense(f"{ours}/value", f"{theirs}.self.value", "D", width),
        *dense(f"{ours}/output", f"{theirs}.output.dense", width, "D"),
        *layer_norm(f"{ours}/LayerNorm", f"{theirs}.output.LayerNorm"),
    )


def _crosses(config: BertConfig) -> bool:
    return config.add_cross_attention


ENCODER_PARTS = ("embeddings", "layers")
POOLED = (*ENCODER_PARTS, "pooler")

BERT = FamilyNames(
    name="bert",
    prefix="bert.",
    bare=("embeddings", "encoder", "pooler"),
    parts={
        "embeddings": embeddings("bert."),
        "layers": layers("bert."),
        "pooler": dense("bert/pooler", "bert.pooler.dense", "D", "D"),
        "mlm_head": (
            *dense("mlm_head/transform", "cls.predictions.transform.dense", "D", "E"),
            *activation("mlm_head/activation", "cls.predictions.transform.transform_act_fn"),
            *layer_norm("mlm_head/LayerNorm", "cls.predictions.transform.LayerNorm", "E"),
            *vocabulary_bias("cls.predictions.decoder.bias", "cls.predictions.bias"),
            Name("mlm_head/decoder", "cls.predictions.decoder.weight", ("V", "E"), when=untied),
        ),
        "nsp_head": dense("nsp_head", "cls.seq_relationship", "D", 2),
        "classifier": dense("classifier", "classifier", "D", "C"),
        "choice": dense("classifier", "classifier", "D", 1),
        "qa_head": dense("qa_head", "qa_outputs", "D", 2),
    },
    heads={
        "pretraining": Head("ForPreTraining", (*POOLED, "mlm_head", "nsp_head")),
        "mlm": Head("ForMaskedLM", (*ENCODER_PARTS, "mlm_head")),
        "nsp": Head("ForNextSentencePrediction", (*POOLED, "nsp_head")),
        "encoder": Head("Model", POOLED),
        "encoder-no-pooler": Head("Model", ENCODER_PARTS),
        "sequence-classification": Head("ForSequenceClassification", (*POOLED, "classifier")),
        "token-classification": Head("ForTokenClassification", (*ENCODER_PARTS, "classifier")),
        "question-answering": Head("ForQuestionAnswering", (*ENCODER_PARTS, "qa_head")),
        "multiple-choice": Head("ForMultipleChoice", (*POOLED, "choice")),
        "causal-lm": Head("LMHeadModel", (*ENCODER_PARTS, "mlm_head")),
    },
    tied=(
        Tied("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", "mlm_head"),
        Tied("cls.predictions.decoder.bias", "cls.predictions.bias", "mlm_head"),
    ),
)


ROBERTA = FamilyNames(
    name="roberta",
    prefix="roberta.",
    bare=("embeddings", "encoder", "pooler"),
    parts={
        "embeddings": embeddings("roberta."),
        "layers": layers("roberta."),
        "pooler": dense("bert/pooler", "roberta.pooler.dense", "D", "D"),
        "mlm_head": (  # its activation is always gelu, which has no parameters
            *dense("mlm_head/transform", "lm_head.dense", "D", "E"),
            *layer_norm("mlm_head/LayerNorm", "lm_head.layer_norm", "E"),
            *vocabulary_bias("lm_head.decoder.bias", "lm_head.bias"),
            Name("mlm_head/decoder", "lm_head.decoder.weight", ("V", "E"), when=untied),
        ),
        "two_layers": (
            *dense("pre_classifier", "classifier.dense", "D", "D"),
            *dense("classifier", "classifier.out_proj", "D", "C"),
        ),
        "classifier": dense("classifier", "classifier", "D", "C"),
        "choice": dense("classifier", "classifier", "D", 1),
        "qa_head": dense("qa_head", "qa_outputs", "D", 2),
    },
    heads={
        "mlm": Head("ForMaskedLM", (*ENCODER_PARTS, "mlm_head")),
        "encoder": Head("Model", POOLED),
        "encoder-no-pooler": Head("Model", ENCODER_PARTS),
        "sequence-classification": Head("ForSequenceClassification", (*ENCODER_PARTS, "two_layers")),
        "token-classification": Head("ForTokenClassification", (*ENCODER_PARTS, "classifier")),
        "question-answering": Head("ForQuestionAnswering", (*ENCODER_PARTS, "qa_head")),
        "multiple-choice": Head("ForMultipleChoice", (*POOLED, "choice")),
        "causal-lm": Head("ForCausalLM", (*ENCODER_PARTS, "mlm_head")),
    },
    tied=(
        Tied("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight", "mlm_head"),
        Tied("lm_head.decoder.bias", "lm_head.bias", "mlm_head"),
    ),
)


_ALBERT = f"{ENCODER}encoder/layer_{{layer}}"
_HF_ALBERT = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"


def _layer_numbers(layer: int, config: BertConfig) -> dict[str, int]:
    group, inner = divmod(layer, config.inner_group_num)
    return {"layer": layer, "group": group, "inner": inner}


ALBERT = FamilyNames(
    name="albert",
    prefix="albert.",
    bare=("embeddings", "encoder", "pooler"),
    layer_numbers=_layer_numbers,
    parts={
        "embeddings": embeddings("albert."),
        "projection": dense(f"{ENCODER}encoder/projection", "albert.encoder.embedding_hidden_mapping_in", "E", "D"),
        "layers": (
            *dense(f"{_ALBERT}/attention/query", f"{_HF_ALBERT}.attention.query", "D", "A"),
            *dense(f"{_ALBERT}/attention/key", f"{_HF_ALBERT}.attention.key", "D", "A"),
            *dense(f"{_ALBERT}/attention/value", f"{_HF_ALBERT}.attention.value", "D", "A"),
            *dense(f"{_ALBERT}/attention/output", f"{_HF_ALBERT}.attention.dense", "A", "D"),
            *layer_norm(f"{_ALBERT}/attention/LayerNorm", f"{_HF_ALBERT}.attention.LayerNorm"),
            distances(f"{_ALBERT}/attention/distance_embedding", f"{_HF_ALBERT}.attention.distance_embedding.weight"),
            *dense(f"{_ALBERT}/feed_forward/intermediate", f"{_HF_ALBERT}.ffn", "D", "F"),
            *activation(f"{_ALBERT}/feed_forward/activation", f"{_HF_ALBERT}.activation"),
            *dense(f"{_ALBERT}/feed_forward/output", f"{_HF_ALBERT}.ffn_output", "F", "D"),
            *layer_norm(f"{_ALBERT}/feed_forward/LayerNorm", f"{_HF_ALBERT}.full_layer_layer_norm"),
        ),
        "pooler": dense("bert/pooler", "albert.pooler", "D", "D"),
        "mlm_head": (
            *dense("mlm_head/transform", "predictions.dense", "D", "E"),
            *activation("mlm_head/activation", "predictions.activation"),
            *layer_norm("mlm_head/LayerNorm", "predictions.LayerNorm", "E"),
            *vocabulary_bias("predictions.decoder.bias", "predictions.bias"),
            Name("mlm_head/decoder", "predictions.decoder.weight", ("V", "E"), when=untied),
        ),
        "nsp_head": dense("nsp_head", "sop_classifier.classifier", "D", 2),
        "classifier": dense("classifier", "classifier", "D", "C"),
        "choice": dense("classifier", "classifier", "D", 1),
        "qa_head": dense("qa_head", "qa_outputs", "D", 2),
    },
    heads={
        "pretraining": Head("ForPreTraining", (*POOLED, "projection", "mlm_head", "nsp_head")),
        "mlm": Head("ForMaskedLM", (*ENCODER_PARTS, "projection", "mlm_head")),
        "encoder": Head("Model", (*POOLED, "projection")),
        "encoder-no-pooler": Head("Model", (*ENCODER_PARTS, "projection")),
        "sequence-classification": Head("ForSequenceClassification", (*POOLED, "projection", "classifier")),
        "token-classification": Head("ForTokenClassification", (*ENCODER_PARTS, "projection", "classifier")),
        "question-answering": Head("ForQuestionAnswering", (*ENCODER_PARTS, "projection", "qa_head")),
        "multiple-choice": Head("ForMultipleChoice", (*POOLED, "projection", "choice")),
    },
    tied=(
        Tied("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight", "mlm_head"),
        Tied("predictions.decoder.bias", "predictions.bias", "mlm_head"),
    ),
)


_DISTIL, _HF_DISTIL = f"{ENCODER}encoder/layer_{{layer}}", "distilbert.transformer.layer.{layer}"

DISTILBERT = FamilyNames(
    name="distilbert",
    prefix="distilbert.",
    bare=("embeddings", "transformer"),
    parts={
        "embeddings": embeddings("distilbert.", token_types=False),
        "layers": (
            *dense(f"{_DISTIL}/attention/query", f"{_HF_DISTIL}.attention.q_lin", "D", "A"),
            *dense(f"{_DISTIL}/attention/key", f"{_HF_DISTIL}.attention.k_lin", "D", "A"),
            *dense(f"{_DISTIL}/attention/value", f"{_HF_DISTIL}.attention.v_lin", "D", "A"),
            *dense(f"{_DISTIL}/attention/output", f"{_HF_DISTIL}.attention.out_lin", "A", "D"),
            *layer_norm(f"{_DISTIL}/attention/LayerNorm", f"{_HF_DISTIL}.sa_layer_norm"),
            *dense(f"{_DISTIL}/feed_forward/intermediate", f"{_HF_DISTIL}.ffn.lin1", "D", "F"),
            *activation(f"{_DISTIL}/feed_forward/activation", f"{_HF_DISTIL}.ffn.activation"),
            *dense(f"{_DISTIL}/feed_forward/output", f"{_HF_DISTIL}.ffn.lin2", "F", "D"),
            *layer_norm(f"{_DISTIL}/feed_forward/LayerNorm", f"{_HF_DISTIL}.output_layer_norm"),
        ),
        "mlm_head": (
            *dense("mlm_head/transform", "vocab_transform", "D", "E"),
            *activation("mlm_head/activation", "activation"),
            *layer_norm("mlm_head/LayerNorm", "vocab_layer_norm", "E"),
            Name("mlm_head/bias", "vocab_projector.bias", ("V",)),
            Name("mlm_head/decoder", "vocab_projector.weight", ("V", "E"), when=untied),
        ),
        "pre_classifier": dense("pre_classifier", "pre_classifier", "D", "D"),
        "classifier": dense("classifier", "classifier", "D", "C"),
        "choice": dense("classifier", "classifier", "D", 1),
        "qa_head": dense("qa_head", "qa_outputs", "D", 2),
    },
    heads={
        "mlm": Head("ForMaskedLM", (*ENCODER_PARTS, "mlm_head")),
        "encoder": Head("Model", ENCODER_PARTS),
        "encoder-no-pooler": Head("Model", ENCODER_PARTS),
        "sequence-classification": Head("ForSequenceClassification", (*ENCODER_PARTS, "pre_classifier", "classifier")),
        "token-classification": Head("ForTokenClassification", (*ENCODER_PARTS, "classifier")),
        "question-answering": Head("ForQuestionAnswering", (*ENCODER_PARTS, "qa_head")),
        "multiple-choice": Head("ForMultipleChoice", (*ENCODER_PARTS, "pre_classifier", "choice")),
    },
    tied=(Tied("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight", "mlm_head"),),
)


ELECTRA = FamilyNames(
    name="electra",
    prefix="electra.",
    bare=("embeddings", "embeddings_project", "encoder"),
    parts={
        "embeddings": (
            *embeddings("electra."),
            *(
                row._replace(when=lambda config: config.has_projection)
                for row in dense(f"{ENCODER}encoder/projection", "electra.embeddings_project", "E", "D")
            ),
        ),
        "layers": layers("electra."),
        "mlm_head": (  # its activation is always gelu, which has no parameters
            *dense("mlm_head/transform", "generator_predictions.dense", "D", "E"),
            *layer_norm("mlm_head/LayerNorm", "generator_predictions.LayerNorm", "E"),
            Name("mlm_head/bias", "generator_lm_head.bias", ("V",)),
            Name("mlm_head/decoder", "generator_lm_head.weight", ("V", "E"), when=untied),
        ),
        "detector": (
            *dense("detector/transform", "discriminator_predictions.dense", "D", "D"),
            *activation("detector/activation", "discriminator_predictions.activation"),
            *dense("detector/output", "discriminator_predictions.dense_prediction", "D", 1),
        ),
        "pre_classifier": dense("pre_classifier", "classifier.dense", "D", "D"),
        "out_proj": dense("classifier", "classifier.out_proj", "D", "C"),
        "classifier": dense("classifier", "classifier", "D", "C"),
        "qa_head": dense("qa_head", "qa_outputs", "D", 2),
        "summary": dense("pre_classifier", "sequence_summary.summary", "D", "D"),
        "choice": dense("classifier", "classifier", "D", 1),
    },
    heads={
        "replaced-token-detection": Head("ForPreTraining", (*ENCODER_PARTS, "detector")),
        "mlm": Head("ForMaskedLM", (*ENCODER_PARTS, "mlm_head")),
        "encoder": Head("Model", ENCODER_PARTS),
        "encoder-no-pooler": Head("Model", ENCODER_PARTS),
        "sequence-classification": Head("ForSequenceClassification", (*ENCODER_PARTS, "pre_classifier", "out_proj")),
        "token-classification": Head("ForTokenClassification", (*ENCODER_PARTS, "classifier")),
        "question-answering": Head("ForQuestionAnswering", (*ENCODER_PARTS, "qa_head")),
        "multiple-choice": Head("ForMultipleChoice", (*ENCODER_PARTS, "summary", "choice")),
        "causal-lm": Head("ForCausalLM", (*ENCODER_PARTS, "mlm_head")),
    },
    tied=(Tied("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight", "mlm_head"),),
)
