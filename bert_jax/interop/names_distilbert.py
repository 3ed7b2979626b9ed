"""DistilBERT's names in Hugging Face's files (transformers, models/distilbert/modeling_distilbert.py).

No token types and no pooler; a classifier of a whole sequence has a dense layer before it instead.
"""

from bert_jax.interop.names_bert import ENCODER_PARTS
from bert_jax.interop.names_table import (
    ENCODER,
    Family,
    Head,
    Name,
    Tied,
    activation,
    dense,
    embeddings,
    layer_norm,
    untied,
)

_OURS, _THEIRS = f"{ENCODER}encoder/layer_{{layer}}", "distilbert.transformer.layer.{layer}"

DISTILBERT = Family(
    name="distilbert",
    classes={"distilbert": "DistilBert"},
    prefix="distilbert.",
    bare=("embeddings", "transformer"),
    parts={
        "embeddings": embeddings("distilbert.", token_types=False),
        "layers": (
            *dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.q_lin", "D", "A"),
            *dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.k_lin", "D", "A"),
            *dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.v_lin", "D", "A"),
            *dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.out_lin", "A", "D"),
            *layer_norm(f"{_OURS}/attention/LayerNorm", f"{_THEIRS}.sa_layer_norm"),
            *dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.ffn.lin1", "D", "F"),
            *activation(f"{_OURS}/feed_forward/activation", f"{_THEIRS}.ffn.activation"),
            *dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.ffn.lin2", "F", "D"),
            *layer_norm(f"{_OURS}/feed_forward/LayerNorm", f"{_THEIRS}.output_layer_norm"),
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
