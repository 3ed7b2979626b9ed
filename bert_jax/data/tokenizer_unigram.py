"""The pipelines of ALBERT, XLM-R and CamemBERT: a unigram language model over words that begin with "▁"."""

import base64
import json
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

SPACE = "▁"
"""The first character of a piece that begins a word (U+2581)."""

Pieces = Sequence[tuple[str, float]]
"""Pieces in the order of their ids, each with the logarithm of its probability."""


def unigram_backend(pieces: Pieces, unk_id: int) -> tokenizers.Tokenizer:
    """The model alone; special tokens and the rules below come after it."""
    return tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id=unk_id, byte_fallback=False))


def set_words(backend: tokenizers.Tokenizer, *, add_prefix_space: bool) -> None:
    """Words are cut at white space and begin with "▁" (without `add_prefix_space` they do not)."""
    scheme = "always" if add_prefix_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)]
    )
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def prefixes_words(backend: tokenizers.Tokenizer) -> bool:
    """Whether the pipeline lets words begin with "▁"."""
    return backend.pre_tokenizer is not None and backend.pre_tokenizer.pre_tokenize_str("a")[0][0] == f"{SPACE}a"


def set_albert_normalizer(
    backend: tokenizers.Tokenizer, *, lowercase: bool, keep_accents: bool, charsmap: bytes | None
) -> None:
    """Quotes, accents and case as `preprocess_text` of google-research/albert, then SentencePiece's own table."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    backend.normalizer = normalizers.Sequence(steps)


def set_fairseq_normalizer(backend: tokenizers.Tokenizer, *, charsmap: bytes | None) -> None:
    """SentencePiece's own table alone: XLM-R and CamemBERT."""
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)


def set_albert_layout(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """[CLS] a [SEP], [CLS] a [SEP] b [SEP], types 0 and then 1: BERT's."""
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    _set_layout(backend, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", cls, sep)


def set_fairseq_layout(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """<s> a </s>, <s> a </s></s> b </s>, types all 0: RoBERTa's."""
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    _set_layout(backend, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0", cls, sep)


def _set_layout(backend: tokenizers.Tokenizer, single: str, pair: str, cls: str, sep: str) -> None:
    special_tokens = [(token, backend.token_to_id(token)) for token in (cls, sep)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)


def charsmap_of(backend: tokenizers.Tokenizer) -> bytes | None:
    """SentencePiece's table of replacements in a pipeline's normaliser, None where there is none."""
    normalizer = json.loads(backend.to_str())["normalizer"] or {}
    for step in normalizer.get("normalizers", [normalizer]):
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def without_number_commas(pieces: Pieces) -> list[tuple[str, float]]:
    """Pieces such as "1," made so improbable that they never win, as transformers 4 (`AlbertConverter`) does.

    google-research/albert (`encode_pieces`) takes them apart afterwards, which mostly comes to the same: what stands
    before the comma may be cut otherwise.
    """
    lowest = min((score for piece, score in pieces if not _is_number_comma(piece)), default=0.0)
    return [(piece, lowest - 100.0 if _is_number_comma(piece) else score) for piece, score in pieces]


def _is_number_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
