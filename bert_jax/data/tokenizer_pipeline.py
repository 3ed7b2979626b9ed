"""BERT's pipeline on the `tokenizers` library: normaliser, pre-tokeniser, WordPiece, where [CLS] and [SEP] stand."""

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.tokenizer_families import ROLES


def bert_normalizer(
    *, cased: bool, strip_accents: bool | None, chinese_characters: bool = True
) -> normalizers.Normalizer:
    """BERT's cleaning, spacing of Chinese characters, accents and lower-casing (`strip_accents=None`: if uncased)."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_characters, strip_accents=strip_accents, lowercase=not cased
    )


def bert_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """BERT's split at white space and around every punctuation character."""
    return pre_tokenizers.BertPreTokenizer()


def bert_backend(
    ids: Mapping[str, int],
    special_tokens: Mapping[str, str],
    *,
    cased: bool,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
    max_word_length: int = 100,
) -> tokenizers.Tokenizer:
    """The WordPiece pipeline that transformers' `BertTokenizer` builds from the same settings."""
    model = models.WordPiece(dict(ids), unk_token=special_tokens["unk"], max_input_chars_per_word=max_word_length)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(
        cased=cased, strip_accents=strip_accents, chinese_characters=chinese_characters
    )
    backend.pre_tokenizer = bert_pre_tokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([special_tokens[role] for role in ROLES if role in special_tokens])
    set_bert_layout(backend, special_tokens)
    return backend


def set_bert_layout(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )


def probe(backend: tokenizers.Tokenizer) -> None:
    """Run every stage once: some faults of a tokenizer.json panic only when a text passes through."""
    for text in ("Ab c, 1 é가字 [MASK] \u0301", ""):
        backend.encode_batch([text, (text, text)])
        backend.decode(backend.encode(text).ids)


def is_cased(backend: tokenizers.Tokenizer) -> bool:
    """Whether capital letters survive the normaliser."""
    return backend.normalizer is None or "A" in backend.normalizer.normalize_str("A")


def strips_accents(backend: tokenizers.Tokenizer) -> bool:
    """Whether the normaliser drops accents (and cuts Hangul syllables into letters)."""
    return backend.normalizer is not None and backend.normalizer.normalize_str("\u00e9") == "e"


def is_bert(backend: tokenizers.Tokenizer) -> bool:
    """Whether text is cut up by BERT's own rules, in which a word's pieces do not depend on its neighbours."""
    return (
        isinstance(backend.model, models.WordPiece)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.normalizer, normalizers.BertNormalizer)
        and backend.normalizer.clean_text
    )


def decisive(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """All that decides which ids a text gets, as JSON; for BERT in fields that no version of the library changes."""
    added = {
        i: [t.content, t.special, t.single_word, t.lstrip, t.rstrip, t.normalized]
        for i, t in backend.get_added_tokens_decoder().items()
    }
    if not is_bert(backend):
        pipeline = json.loads(backend.to_str())
        if isinstance(backend.model, models.Unigram):
            # Scores are float32 in SentencePiece's files; the library loses the last bit of a float64 it reads back.
            pieces = pipeline["model"]["vocab"]
            pipeline["model"]["vocab"] = [[piece, float(np.float32(score))] for piece, score in pieces]
        return {"added": added} | {name: pipeline[name] for name in ("normalizer", "pre_tokenizer", "model")}
    model, normalizer = cast(models.WordPiece, backend.model), cast(normalizers.BertNormalizer, backend.normalizer)
    accents = normalizer.strip_accents
    return {
        "added": added,
        "vocabulary": backend.get_vocab(with_added_tokens=False),
        "unknown": model.unk_token,
        "continuation": model.continuing_subword_prefix,
        "max_word_length": model.max_input_chars_per_word,
        "lowercase": normalizer.lowercase,
        "strip_accents": normalizer.lowercase if accents is None else accents,
        "chinese_characters": normalizer.handle_chinese_chars,
    }
