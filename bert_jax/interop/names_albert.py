"""ALBERT's names in Hugging Face's files (transformers, models/albert/modeling_albert.py).

Embeddings of their own width are projected once; a few layers are stored and applied again and again. Its sentence
pair head tells the order (SOP) and is our `nsp_head`.
"""

from bert_jax.config import BertConfig
from bert_jax.interop.names_bert import ENCODER_PARTS, POOLED
from bert_jax.interop.names_table import (
    ENCODER,
    Family,
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

_OURS = f"{ENCODER}encoder/layer_{{layer}}"
_THEIRS = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"


def _layer_numbers(layer: int, config: BertConfig) -> dict[str, int]:
    group, inner = divmod(layer, config.inner_group_num)
    return {"layer": layer, "group": group, "inner": inner}


ALBERT = Family(
    name="albert",
    classes={"albert": "Albert"},
    prefix="albert.",
    bare=("embeddings", "encoder", "pooler"),
    layer_numbers=_layer_numbers,
    parts={
        "embeddings": embeddings("albert."),
        "projection": dense(f"{ENCODER}encoder/projection", "albert.encoder.embedding_hidden_mapping_in", "E", "D"),
        "layers": (
            *dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.query", "D", "A"),
            *dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.key", "D", "A"),
            *dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.value", "D", "A"),
            *dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.dense", "A", "D"),
            *layer_norm(f"{_OURS}/attention/LayerNorm", f"{_THEIRS}.attention.LayerNorm"),
            distances(f"{_OURS}/attention/distance_embedding", f"{_THEIRS}.attention.distance_embedding.weight"),
            *dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.ffn", "D", "F"),
            *activation(f"{_OURS}/feed_forward/activation", f"{_THEIRS}.activation"),
            *dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.ffn_output", "F", "D"),
            *layer_norm(f"{_OURS}/feed_forward/LayerNorm", f"{_THEIRS}.full_layer_layer_norm"),
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
