"""BERT's names in Hugging Face's files (transformers, models/bert/modeling_bert.py), and the layers RoBERTa shares."""

from bert_jax.config import BertConfig
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


def layers(prefix: str) -> tuple[Name, ...]:
    """One encoder layer, with cross-attention where the config has it."""
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

BERT = Family(
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
