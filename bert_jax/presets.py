"""The configs of published models: name -> the fields that differ from `BertConfig()`.

Sources: transformers' `models/{bert,roberta,xlm_roberta,camembert,albert,distilbert,electra}/configuration_*.py`, and
Google's bert_config.json and albert_config.json.
"""

from typing import Any


def _bert(layers: int, hidden: int, vocab: int) -> dict[str, Any]:
    # In every published BERT a head has size 64 and the feed-forward size is 4 D.
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


def _roberta(model_type: str, layers: int, hidden: int, vocab: int) -> dict[str, Any]:
    # As in the published files; the defaults of transformers' class are BERT's.
    return _bert(layers, hidden, vocab) | {
        "model_type": model_type,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _albert(layers: int, hidden: int, heads: int, dropout: float) -> dict[str, Any]:
    return {
        "model_type": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_hidden_groups": 1,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }


def _distilbert(vocab: int) -> dict[str, Any]:
    return _bert(6, 768, vocab) | {"model_type": "distilbert"}


def _electra(layers: int, hidden: int, heads: int, embedding: int) -> dict[str, Any]:
    return _bert(layers, hidden, 30522) | {
        "model_type": "electra",
        "embedding_size": embedding,
        "num_attention_heads": heads,
        "seq_classif_dropout": 0.1,
    }


_ALBERT_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "xlarge": (24, 2048, 16), "xxlarge": (12, 4096, 64)}

PRESETS: dict[str, dict[str, Any]] = (
    {
        "tiny": _bert(2, 128, 30522),
        "mini": _bert(4, 256, 30522),
        "small": _bert(4, 512, 30522),
        "medium": _bert(8, 512, 30522),
        "base-uncased": _bert(12, 768, 30522),
        "base-cased": _bert(12, 768, 28996),
        "base-multilingual-cased": _bert(12, 768, 119547),
        "base-multilingual-uncased": _bert(12, 768, 105879),
        "base-chinese": _bert(12, 768, 21128),
        "large-uncased": _bert(24, 1024, 30522),
        "large-cased": _bert(24, 1024, 28996),
    }
    | {f"L-{n}_H-{d}": _bert(n, d, 30522) for n in (2, 4, 6, 8, 10, 12) for d in (128, 256, 512, 768)}
    | {
        "roberta-base": _roberta("roberta", 12, 768, 50265),
        "roberta-large": _roberta("roberta", 24, 1024, 50265),
        "distilroberta-base": _roberta("roberta", 6, 768, 50265),
        "xlm-roberta-base": _roberta("xlm-roberta", 12, 768, 250002),
        "xlm-roberta-large": _roberta("xlm-roberta", 24, 1024, 250002),
    }
    # Version 2 was trained without dropout, and so was the xxlarge model of version 1.
    | {
        f"albert-{name}-v{release}": _albert(*size, dropout=0.1 if release == 1 and name != "xxlarge" else 0.0)
        for release in (1, 2)
        for name, size in _ALBERT_SIZES.items()
    }
    | {
        "distilbert-base-uncased": _distilbert(30522),
        "distilbert-base-cased": _distilbert(28996),
        "distilbert-base-multilingual-cased": _distilbert(119547),
        "electra-small": _electra(12, 256, 4, embedding=128),
        "electra-base": _electra(12, 768, 12, embedding=768),
        "electra-large": _electra(24, 1024, 16, embedding=1024),
    }
)
