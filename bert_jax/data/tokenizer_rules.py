"""The rules of a family on a pipeline, as transformers 5 rebuilds it: what the caller or the files say decides."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers

from bert_jax.data.tokenizer_byte_level import prefix_space, set_byte_level, set_roberta_layout
from bert_jax.data.tokenizer_families import ALBERT, ROBERTA, TAKEN_AS_IS, Family
from bert_jax.data.tokenizer_pipeline import is_cased, set_bert_layout, strips_accents
from bert_jax.data.tokenizer_settings import Settings
from bert_jax.data.tokenizer_unigram import (
    charsmap_of,
    set_albert_layout,
    set_albert_normalizer,
    set_fairseq_layout,
    set_fairseq_normalizer,
    set_words,
)
from bert_jax.errors import UserError


def set_byte_level_rules(
    backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], settings: Settings, *, prefixed: bool = False
) -> None:
    """RoBERTa's; `prefixed`: whether a space is put before a text where neither the caller nor the files say."""
    add_prefix_space = settings.prefixes_space(prefixed)
    trim_offsets = settings.config.get("trim_offsets", True)
    set_byte_level(backend, add_prefix_space=add_prefix_space)
    set_roberta_layout(backend, special_tokens, add_prefix_space=add_prefix_space, trim_offsets=trim_offsets)


def set_unigram_rules(
    backend: tokenizers.Tokenizer,
    family: Family,
    special_tokens: Mapping[str, str],
    settings: Settings,
    *,
    charsmap: bytes | None,
    lowercase: bool = True,
    keep_accents: bool = False,
) -> None:
    """ALBERT's, XLM-R's or CamemBERT's; `lowercase`, `keep_accents`: where neither the caller nor the files say."""
    set_words(backend, add_prefix_space=settings.prefixes_space(True))
    if family != ALBERT:
        set_fairseq_normalizer(backend, charsmap=charsmap)
        set_fairseq_layout(backend, special_tokens)
        return
    set_albert_normalizer(
        backend,
        lowercase=settings.lowercases(lowercase),
        keep_accents=settings.keeps_accents(keep_accents),
        charsmap=charsmap,
    )
    if backend.post_processor is None:
        set_albert_layout(backend, special_tokens)


def overrule_json(
    backend: tokenizers.Tokenizer, family: Family | None, special_tokens: Mapping[str, str], settings: Settings
) -> None:
    """Put on a tokenizer.json what stands above it; without a family it stays as it is."""
    if isinstance(backend.model, models.WordPiece):
        _overrule_bert(backend, settings)
        if backend.post_processor is None:
            set_bert_layout(backend, special_tokens)
    elif family == ROBERTA:
        set_byte_level_rules(backend, special_tokens, settings, prefixed=prefix_space(backend) or False)
    elif family is not None:
        set_unigram_rules(
            backend,
            family,
            special_tokens,
            settings,
            charsmap=charsmap_of(backend),
            lowercase=not is_cased(backend),
            keep_accents=not strips_accents(backend),
        )


def _overrule_bert(backend: tokenizers.Tokenizer, settings: Settings) -> None:
    """Casing and accents: the argument, else tokenizer_config.json (transformers rebuilds so), else tokenizer.json."""
    normalizer, config = backend.normalizer, settings.config
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    rebuilt = "do_lower_case" in config and config.get("tokenizer_class") not in TAKEN_AS_IS
    if rebuilt:
        normalizer.lowercase = settings.lowercases(True)
        normalizer.strip_accents = config.get("strip_accents")
        normalizer.handle_chinese_chars = config.get("tokenize_chinese_chars", True)
    elif settings.cased is not None:
        normalizer.lowercase = not settings.cased
    if settings.strip_accents is not None:
        normalizer.strip_accents = settings.strip_accents
    backend.normalizer = normalizer


def refuse_unheeded(backend: tokenizers.Tokenizer, family: Family | None, path: Path, settings: Settings) -> None:
    """Raise UserError for an argument that the finished pipeline does not follow: it has no place for it."""
    wordpiece = isinstance(backend.model, models.WordPiece)
    wrong = {
        "cased": settings.cased is not None and settings.cased != is_cased(backend),
        "strip_accents": settings.strip_accents is not None and settings.strip_accents != strips_accents(backend),
        "max_word_length": settings.max_word_length is not None and not wordpiece,
        "add_prefix_space": settings.add_prefix_space is not None and (wordpiece or family is None),
        "split_number_commas": settings.split_number_commas and family != ALBERT,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            rules = f"the rules of {family.tokenizer_class} have" if family else "its pipeline has"
            raise UserError(f"{path}: {name}={getattr(settings, name)} cannot be put on it: {rules} no such choice")
