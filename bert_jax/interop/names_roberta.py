"""RoBERTa's names in Hugging Face's files (transformers, models/roberta/modeling_roberta.py); XLM-R and CamemBERT too.

The layers are BERT's. The classifier of a whole sequence has a dense layer of its own and no pooler.
"""

from bert_jax.interop.names_bert import ENCODER_PARTS, POOLED, layers
from bert_jax.interop.names_table import (
    Family,
    Head,
    Name,
    Tied,
    dense,
    embeddings,
    layer_norm,
    untied,
    vocabulary_bias,
)

ROBERTA = Family(
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
