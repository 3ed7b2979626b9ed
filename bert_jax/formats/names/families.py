"""The names of each family's parameters in Hugging Face's files: BERT, RoBERTa, ALBERT, DistilBERT.

RoBERTa has BERT's layers; its sequence classifier has a dense layer of its own in place of the pooler. ALBERT's
embeddings have a width of their own, and a projection takes them to the hidden size; its encoder applies a few stored
layers repeatedly; its sentence pair head predicts the order (SOP) and is our `nsp_head`. DistilBERT has no token types
and no pooler; its sequence classifier has a dense layer instead.
"""

from bert_jax.config import BertConfig
from bert_jax.formats.names.table import (
    ENCODER,
    FamilyNames,
    Head,
    Name,
    Tied,
    activation,
    dense,
    distances,
    embeddings,
    layer_norm,
    untied,
    vocabulary_bias,
)


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
    classes={"bert": "Bert"},
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
    classes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
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
    classes={"albert": "Albert"},
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
    classes={"distilbert": "DistilBert"},
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
