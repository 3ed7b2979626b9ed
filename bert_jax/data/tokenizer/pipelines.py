"""Pipelines of the `tokenizers` library: WordPiece, byte-level BPE and Unigram, with the rules of each family."""

import base64
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.tokenizer.families import ALBERT, ROBERTA, ROLES, TAKEN_AS_IS, Family
from bert_jax.data.tokenizer.settings import Settings
from bert_jax.errors import LONGEST_QUOTE, UserError


@contextmanager
def library_errors(what: str) -> Generator[None]:
    """Raises the library's errors, and its panics (no `Exception`), as one `UserError` line that begins with `what`.

    Rust writes a panic to standard error itself, before Python can catch it.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none.

    Of a long line, which has what the file contains, only the beginning and the end.
    """
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return line if len(line) <= 2 * LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}...{line[-LONGEST_QUOTE:]}"


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
    """Sets BERT's and ALBERT's layout: [CLS] a [SEP], [CLS] a [SEP] b [SEP], types 0 and then 1."""
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    _set_layout(backend, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", cls, sep)


def _set_layout(backend: tokenizers.Tokenizer, single: str, pair: str, cls: str, sep: str) -> None:
    special_tokens = [(token, backend.token_to_id(token)) for token in (cls, sep)]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)


def probe(backend: tokenizers.Tokenizer) -> None:
    """Runs every stage once: some faults of a tokenizer.json panic only when a text passes through."""
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
    """Whether text is split by BERT's own rules, so that a word's pieces do not depend on its neighbours."""
    return (
        isinstance(backend.model, models.WordPiece)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.normalizer, normalizers.BertNormalizer)
        and backend.normalizer.clean_text
    )


def decisive(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Everything that decides a text's ids, as JSON; for BERT in fields that are the same in every library version."""
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


BYTE_LEVEL_SPACE = "Ġ"
"""How a byte-level piece writes the space before it: byte 0x20 as a printable character (GPT-2)."""


def byte_level_backend(ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    """A BPE model alone; the caller adds special tokens, splitting into words and layout."""
    model = models.BPE(dict(ids), list(merges), continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    return tokenizers.Tokenizer(model)


def set_byte_level(backend: tokenizers.Tokenizer, *, add_prefix_space: bool) -> None:
    """Gives a pipeline GPT-2's splitting into words and its decoder."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()


def set_roberta_layout(
    backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], *, add_prefix_space: bool, trim_offsets: bool
) -> None:
    """Sets <s> a </s>, <s> a </s></s> b </s>, types all 0; `trim_offsets` excludes the space from a word's offsets."""
    ids = backend.get_vocab()
    sep, cls = ((special_tokens[role], ids[special_tokens[role]]) for role in ("sep", "cls"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets, add_prefix_space)


def prefix_space(backend: tokenizers.Tokenizer) -> bool | None:
    """Whether the pipeline puts a space before a text; None if it is not byte-level."""
    pre_tokenizer = backend.pre_tokenizer
    return pre_tokenizer.add_prefix_space if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) else None


SPACE = "▁"
"""The first character of a piece that begins a word (U+2581)."""

Pieces = Sequence[tuple[str, float]]
"""Pieces in the order of their ids, each with the logarithm of its probability."""


def unigram_backend(pieces: Pieces, unk_id: int) -> tokenizers.Tokenizer:
    """A Unigram model alone; the caller adds special tokens and the rules below."""
    return tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id=unk_id, byte_fallback=False))


def set_words(backend: tokenizers.Tokenizer, *, add_prefix_space: bool) -> None:
    """Splits text into words at white space; with `add_prefix_space` each word begins with "▁"."""
    scheme = "always" if add_prefix_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)]
    )
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def prefixes_words(backend: tokenizers.Tokenizer) -> bool:
    """Whether the pipeline puts "▁" before words."""
    return backend.pre_tokenizer is not None and backend.pre_tokenizer.pre_tokenize_str("a")[0][0] == f"{SPACE}a"


def set_albert_normalizer(
    backend: tokenizers.Tokenizer, *, lowercase: bool, keep_accents: bool, charsmap: bytes | None
) -> None:
    """Normalises quotes, accents and case as google-research/albert `preprocess_text`, then by the model's table."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    backend.normalizer = normalizers.Sequence(steps)


def set_fairseq_normalizer(backend: tokenizers.Tokenizer, *, charsmap: bytes | None) -> None:
    """Normalises by SentencePiece's own table alone, as XLM-R and CamemBERT do."""
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)


def set_fairseq_layout(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """Sets RoBERTa's layout, <s> a </s>, <s> a </s></s> b </s>, types all 0."""
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    _set_layout(backend, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0", cls, sep)


def charsmap_of(backend: tokenizers.Tokenizer) -> bytes | None:
    """SentencePiece's table of replacements in a pipeline's normaliser, None if it has none."""
    normalizer = json.loads(backend.to_str())["normalizer"] or {}
    for step in normalizer.get("normalizers", [normalizer]):
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def without_number_commas(pieces: Pieces) -> list[tuple[str, float]]:
    """The pieces, with those such as "1," made so improbable that they are never used.

    transformers 4 does the same (`AlbertConverter`). google-research/albert (`encode_pieces`) splits such pieces
    afterwards instead, which mostly gives the same ids; only the part before the comma may be split differently.
    """
    lowest = min((score for piece, score in pieces if not _is_number_comma(piece)), default=0.0)
    return [(piece, lowest - 100.0 if _is_number_comma(piece) else score) for piece, score in pieces]


def _is_number_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def set_byte_level_rules(
    backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], settings: Settings, *, prefixed: bool = False
) -> None:
    """Gives a pipeline RoBERTa's rules; `prefixed`: whether to put a space before a text if nothing says."""
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
    """Gives a pipeline ALBERT's, XLM-R's or CamemBERT's rules.

    `lowercase` and `keep_accents` apply if neither the caller nor the files say.
    """
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
        set_bert_layout(backend, special_tokens)


def overrule_json(
    backend: tokenizers.Tokenizer, family: Family | None, special_tokens: Mapping[str, str], settings: Settings
) -> None:
    """Applies to a tokenizer.json the settings that overrule it; without a family it stays as it is."""
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
    """Sets casing and accents: the argument, else tokenizer_config.json (as in transformers), else tokenizer.json."""
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
    """Raises UserError for an argument that the finished pipeline does not follow."""
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
            raise UserError(f"{path}: {name}={getattr(settings, name)} cannot be applied: {rules} no such choice")
