"""From the files of a vocabulary to a pipeline: one reader a kind of file."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer_byte_level import byte_level_backend, read_merges, read_vocab_json
from bert_jax.data.tokenizer_errors import rust_errors
from bert_jax.data.tokenizer_families import ALBERT, ROBERTA, XLM_ROBERTA, Family, family_of_json
from bert_jax.data.tokenizer_json import load_backend
from bert_jax.data.tokenizer_pipeline import bert_backend
from bert_jax.data.tokenizer_rules import overrule_json, set_byte_level_rules, set_unigram_rules
from bert_jax.data.tokenizer_settings import Beside
from bert_jax.data.tokenizer_spiece import camembert_pieces, read_spiece, xlm_roberta_pieces
from bert_jax.data.tokenizer_unigram import unigram_backend, without_number_commas
from bert_jax.data.tokenizer_vocab_txt import guess_cased, read_vocabulary, warn_if_unreachable
from bert_jax.errors import UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenizerParts:
    """What the files of a tokenizer say.

    backend: the pipeline; vocabulary: pieces in the order of their ids; special_tokens: role (`ROLES`) -> token, absent
    where the vocabulary has none; literal_special_tokens: whether "[MASK]" in raw text is the token; max_length: tokens
    that the model takes, None if no file says; config: tokenizer_config.json; family: None for a pipeline of no known
    one; token_types: whether the model takes token type ids, None if nothing tells; spiece: the SentencePiece file
    that it was read from.
    """

    backend: tokenizers.Tokenizer
    vocabulary: list[str]
    special_tokens: dict[str, str]
    literal_special_tokens: bool = True
    max_length: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    family: Family | None = None
    token_types: bool | None = None
    spiece: bytes | None = None


def read_vocab_txt(path: Path, family: Family, beside: Beside) -> TokenizerParts:
    """WordPiece: a piece a line."""
    settings = beside.settings
    pieces = read_vocabulary(path)
    ids = {piece: i for i, piece in enumerate(pieces)}
    special_tokens = beside.special_tokens(family, ids)
    _check_special_tokens(path, family, special_tokens, f"its {len(pieces)} pieces: not a BERT vocabulary?")
    cased = not settings.lowercases(True) if settings.says_case else guess_cased(path, pieces)
    strip_accents = settings.config.get("strip_accents") if settings.strip_accents is None else settings.strip_accents
    if not cased and strip_accents is not False:
        warn_if_unreachable(path, pieces)
    with rust_errors(str(path)):
        backend = bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=settings.config.get("tokenize_chinese_chars", True),
        )
        beside.put_added_tokens(backend, special_tokens)
    return TokenizerParts(backend, _in_id_order(backend, pieces, path), special_tokens, family=family)


def read_byte_level(path: Path, beside: Beside) -> TokenizerParts:
    """RoBERTa: a vocab.json, and the merges.txt beside it.

    Its mask token swallows the blanks on its left, as when it was trained (fairseq's `fill_mask`; transformers up to 4
    and in every tokenizer.json); transformers 5 forgets it where there is no tokenizer.json.
    """
    ids = read_vocab_json(path)
    merges = read_merges(path.parent / "merges.txt", ids)
    special_tokens = beside.special_tokens(ROBERTA, ids)
    _check_special_tokens(path, ROBERTA, special_tokens, f"its {len(ids)} tokens: not a RoBERTa vocabulary?")
    with rust_errors(str(path)):
        backend = byte_level_backend(ids, merges)
        beside.put_special_tokens(backend, special_tokens, mask_takes_space=True)
        set_byte_level_rules(backend, special_tokens, beside.settings)
    return TokenizerParts(backend, _in_id_order(backend, [], path), special_tokens, family=ROBERTA)


def read_spiece_model(path: Path, family: Family, beside: Beside) -> TokenizerParts:
    """ALBERT, XLM-R, CamemBERT: SentencePiece's file.

    Its user-defined symbols ("-", "(", ...) are pieces like any other, as for SentencePiece itself. transformers 5,
    where there is no tokenizer.json, makes tokens of them that cut words: what follows one begins with "▁".
    """
    settings, spiece = beside.settings, read_spiece(path)
    pieces, unk_id = spiece.pieces, spiece.unk_id
    if family != ALBERT:
        names = dict(family.special_tokens) | {role: entry["content"] for role, entry in beside.named.items()}
        pieces, unk_id = (xlm_roberta_pieces if family == XLM_ROBERTA else camembert_pieces)(spiece, names)
    if settings.split_number_commas:
        pieces = without_number_commas(pieces)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    special_tokens = beside.special_tokens(family, ids)
    _check_special_tokens(path, family, special_tokens, f"its {len(pieces)} pieces")
    if family == ALBERT and not settings.says_case:
        settings = replace(settings, cased=guess_cased(path, list(ids)))
    with rust_errors(str(path)):
        backend = unigram_backend(pieces, unk_id)
        beside.put_special_tokens(backend, special_tokens, mask_takes_space=True)
        set_unigram_rules(backend, family, special_tokens, settings, charsmap=spiece.charsmap)
    vocabulary = _in_id_order(backend, list(ids), path)
    return TokenizerParts(backend, vocabulary, special_tokens, family=family, spiece=spiece.data)


def read_tokenizer_json(path: Path, declared: Family | None, beside: Beside) -> TokenizerParts:
    """The library's own file, with what transformers puts above it."""
    backend = load_backend(path, split_number_commas=beside.settings.split_number_commas)
    ids = backend.get_vocab(with_added_tokens=True)
    family = family_of_json(path, type(backend.model).__name__, declared, beside.settings.config, beside.model)
    special_tokens = beside.special_tokens(family, ids)
    if family is not None:
        _check_special_tokens(path, family, special_tokens, f"its {len(ids)} tokens")
    with rust_errors(f"{path}: not a usable tokenizer file"):
        beside.put_added_tokens(backend, special_tokens)
        overrule_json(backend, family, special_tokens, beside.settings)
    text_file = beside.folder / "vocab.txt"
    wordpiece = isinstance(backend.model, models.WordPiece)
    pieces = read_vocabulary(text_file) if wordpiece and text_file.is_file() else []
    if pieces and {p: i for i, p in enumerate(pieces)} != backend.get_vocab(with_added_tokens=False):
        logger.warning(
            "%s and %s hold different vocabularies: the latter is used, as transformers does", text_file, path
        )
        pieces = []
    return TokenizerParts(backend, _in_id_order(backend, pieces, path), special_tokens, family=family)


def _check_special_tokens(path: Path, family: Family, special_tokens: Mapping[str, str], among: str) -> None:
    needed = ("unk", "cls", "sep") if family.model == "WordPiece" else ("cls", "sep")
    missing = [family.special_tokens[role] for role in needed if role not in special_tokens]
    if missing:
        raise UserError(f"{path}: no {' and no '.join(missing)} among {among}")


def _in_id_order(backend: tokenizers.Tokenizer, pieces: Sequence[str], path: Path) -> list[str]:
    """Pieces by id; an id that no token has (a piece that stands twice in vocab.txt) keeps its line's text."""
    ids = backend.get_vocab(with_added_tokens=True)
    if max(ids.values()) > 2 * len(ids) + 1000:
        raise UserError(f"{path}: {len(ids)} tokens with ids up to {max(ids.values())}: most ids are missing")
    rows = list(pieces) + [""] * (max(ids.values()) + 1 - len(pieces))
    for token, i in ids.items():
        rows[i] = token
    return rows
