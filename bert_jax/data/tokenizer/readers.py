"""From the files of a vocabulary to a pipeline: one reader a kind of file; and a vocabulary that grows."""

import json
import logging
import os
import re
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer.families import ALBERT, ROBERTA, XLM_ROBERTA, Family, family_of_json
from bert_jax.data.tokenizer.pipelines import (
    bert_backend,
    byte_level_backend,
    overrule_json,
    probe,
    read_merges,
    read_vocab_json,
    set_byte_level_rules,
    set_unigram_rules,
    unigram_backend,
    without_number_commas,
)
from bert_jax.data.tokenizer.settings import Beside
from bert_jax.errors import UserError
from bert_jax.files import parse_json

# File descriptor 2 is the process's: one thread at a time may hold it.
_HOLDING = threading.RLock()


@contextmanager
def rust_errors(what: str) -> Iterator[None]:
    """Errors of the library, panics too (they are no `Exception`), as one `UserError` line that begins with `what`.

    A panic's own text, which Rust writes to the standard error before Python hears of it, is dropped; whatever else
    is written there meanwhile comes out afterwards.
    """
    with _standard_error_held() as held:
        try:
            yield
        except UserError:
            raise
        except BaseException as error:
            panic = type(error).__name__ == "PanicException"
            if not isinstance(error, Exception) and not panic:
                raise
            if panic and held is not None:
                held.truncate(0)
            raise UserError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


@contextmanager
def _standard_error_held() -> Iterator[IO[bytes] | None]:
    """What is written to file descriptor 2 goes to a file that is copied there at the end; None where there is no 2."""
    with _HOLDING, tempfile.TemporaryFile() as held:
        try:
            outside = os.dup(2)
        except OSError:
            yield None
            return
        os.dup2(held.fileno(), 2)
        try:
            yield held
        finally:
            os.dup2(outside, 2)
            os.close(outside)
            held.seek(0)
            if text := held.read():
                os.write(2, text)


def load_backend(path: Path, *, split_number_commas: bool) -> tokenizers.Tokenizer:
    """The pipeline of a tokenizer.json, without the padding and truncation written into it; every stage has run once.

    Raises:
        UserError: not JSON, not such a file, one that the library cannot run, one with two tokens of the same id, or
            one whose added tokens do not get the ids that it says.
    """
    text = path.read_bytes()
    declared = parse_json(text, path)
    with rust_errors(f"{path}: not a usable tokenizer file"):
        backend = tokenizers.Tokenizer.from_str(text.decode())
        backend.no_padding()
        backend.no_truncation()
        if split_number_commas and isinstance(backend.model, models.Unigram):
            model = declared["model"]
            pieces = without_number_commas([(piece, score) for piece, score in model["vocab"]])
            backend.model = models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))
        probe(backend)
    for token in declared.get("added_tokens") or []:
        found = backend.token_to_id(token["content"])
        if found != token["id"]:
            raise UserError(f"{path}: added token {token['content']!r} has id {token['id']}, expected {found}")
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        twice = next(i for i, count in Counter(ids.values()).items() if count > 1)
        first, second = [token for token, i in ids.items() if i == twice][:2]
        raise UserError(f"{path}: id {twice} stands for two tokens, {first!r} and {second!r}")
    return backend


logger = logging.getLogger(__name__)


def read_vocabulary(path: Path) -> list[str]:
    """The pieces of a vocab.txt: one a line, lines end at \\n or \\r\\n only (U+0085 and U+2028 are pieces of some)."""
    data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 ({error.reason}), expected one piece a line") from None
    while lines and not lines[-1].strip("\r"):
        lines.pop()
    if not lines:
        raise UserError(f"{path}: an empty vocabulary")
    return [line.removesuffix("\r") for line in lines]


def _is_marker(piece: str) -> bool:
    return piece[:1] + piece[-1:] in ("[]", "<>")


def guess_cased(path: Path, pieces: Sequence[str]) -> bool:
    """False where no piece has a capital, as transformers assumes; otherwise nobody can know.

    Raises:
        UserError: there is a piece with a capital.
    """
    capital = next((piece for piece in pieces if piece != piece.lower() and not _is_marker(piece)), None)
    if capital is not None:
        raise UserError(
            f"{path}: has capital letters (piece {capital!r}) and no tokenizer_config.json says whether text is to be "
            "lower-cased: say cased (--cased, cased=True) or uncased (--uncased, cased=False)"
        )
    return False


def warn_if_unreachable(path: Path, pieces: Sequence[str]) -> None:
    """An uncased BERT takes accents off, which cuts Hangul into letters: pieces with either can never come out."""
    lost = [
        piece
        for piece in pieces
        if not piece.isascii()
        and any(unicodedata.category(c) == "Mn" or _is_jamo(c) for c in _decomposed(piece))
        and piece != _decomposed(piece)
    ]
    if len(lost) > len(pieces) // 100:
        logger.warning(
            "%s: %d of %d pieces (%r is one) cannot occur in text whose accents are stripped, as uncased BERT does; "
            "if the vocabulary was made without, pass strip_accents=False or put it in tokenizer_config.json",
            path, len(lost), len(pieces), lost[0],
        )  # fmt: skip


def _decomposed(piece: str) -> str:
    return unicodedata.normalize("NFD", piece)


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff"


_UNIGRAM = 1  # TrainerSpec.ModelType


@dataclass(frozen=True)
class SpieceModel:
    """What a SentencePiece model says.

    pieces: with their scores (logarithms of probabilities) in the order of its own ids; unk_id: which of them stands
    for the unknown; charsmap: its table of replacements, None where it has none; data: the file.
    """

    pieces: list[tuple[str, float]]
    unk_id: int
    charsmap: bytes | None
    data: bytes


def read_spiece(path: Path) -> SpieceModel:
    """Read a SentencePiece model of type unigram.

    Raises:
        UserError: the package sentencepiece is missing (it is the extra "spm"); a damaged file; a model of another
            type, or with rules that the published families do not have.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(f"{path}: reading it needs the package sentencepiece: pip install 'bert-jax[spm]'") from None
    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    data = path.read_bytes()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError; its module is no dependency of ours
        raise UserError(f"{path}: not a SentencePiece model, or cut short ({_first_line(error)})") from None
    if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
        raise UserError(f"{path}: not a whole SentencePiece model ({len(proto.pieces)} pieces): cut short?")
    _check(path, proto)
    return SpieceModel(
        pieces=[(piece.piece, piece.score) for piece in proto.pieces],
        unk_id=proto.trainer_spec.unk_id,
        charsmap=proto.normalizer_spec.precompiled_charsmap or None,
        data=data,
    )


def _check(path: Path, proto: Any) -> None:
    trainer, normalizer, count = proto.trainer_spec, proto.normalizer_spec, len(proto.pieces)
    if trainer.model_type != _UNIGRAM:
        found = trainer.DESCRIPTOR.fields_by_name["model_type"].enum_type.values_by_number[trainer.model_type].name
        raise UserError(f"{path}: a SentencePiece model of type {found}, expected UNIGRAM, as ALBERT and XLM-R have")
    if not 0 <= trainer.unk_id < count:
        raise UserError(f"{path}: unk_id is {trainer.unk_id}, expected one of its {count} pieces")
    if len({piece.piece for piece in proto.pieces}) < count:
        raise UserError(f"{path}: a piece stands there twice, expected {count} different ones")
    rules = {
        "byte_fallback": (trainer.byte_fallback, False),
        "treat_whitespace_as_suffix": (trainer.treat_whitespace_as_suffix, False),
        "add_dummy_prefix": (normalizer.add_dummy_prefix, True),
        "remove_extra_whitespaces": (normalizer.remove_extra_whitespaces, True),
    }
    for name, (found, expected) in rules.items():
        if found != expected:
            raise UserError(f"{path}: {name} is {found}, expected {expected}, as in all published models")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def xlm_roberta_pieces(model: SpieceModel, special_tokens: dict[str, str]) -> tuple[list[tuple[str, float]], int]:
    """XLM-R's numbering, and the id of the unknown: fairseq's four first, then the model's from its fourth on."""
    first = [(special_tokens[role], 0.0) for role in ("cls", "pad", "sep", "unk")]
    return [*first, *model.pieces[3:], (special_tokens["mask"], 0.0)], 3


def camembert_pieces(model: SpieceModel, special_tokens: dict[str, str]) -> tuple[list[tuple[str, float]], int]:
    """CamemBERT's numbering, and the id of the unknown: five of its own first, then the model's from its second on."""
    first = [("<s>NOTUSED", 0.0), (special_tokens["pad"], 0.0), ("</s>NOTUSED", 0.0), (special_tokens["unk"], 0.0)]
    return [*first, ("<unk>NOTUSED", -100.0), *model.pieces[1:], (special_tokens["mask"], 0.0)], 3


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


_UNUSED = re.compile(r"\[unused\d+\]")


def add_words(parts: TokenizerParts, words: Sequence[str], *, into_unused: bool) -> tuple[TokenizerParts, list[str]]:
    """The tokenizer with `words` as tokens, and the pieces that are new (as they stand in the vocabulary).

    In WordPiece a word becomes a piece, as the text's own words do: lower-cased where they are, longer words may begin
    with it, and a word written "##…" is a piece within words. Elsewhere it becomes an added token, found as a whole
    word; the blank before it stays a token of its own.

    Raises:
        UserError: a word that the tokenizer would cut before it looks for pieces, or too few unused places.
    """
    wordpiece = isinstance(parts.backend.model, models.WordPiece)
    new = list(dict.fromkeys(_piece(parts, word) for word in words))
    there = parts.backend.get_vocab(with_added_tokens=True)
    new = [piece for piece in new if piece not in there]
    unused = [piece for piece in parts.vocabulary if _UNUSED.fullmatch(piece)] if wordpiece else []
    if into_unused and len(unused) < len(new):
        raise UserError(
            f"{len(new)} new words, but the vocabulary has {len(unused)} [unusedN] places: "
            "take fewer words, or append them"
        )
    if not new:
        return parts, new
    if not wordpiece:
        backend = tokenizers.Tokenizer.from_str(parts.backend.to_str())
        backend.add_tokens([tokenizers.AddedToken(word, single_word=True) for word in new])
        return replace(parts, backend=backend, vocabulary=[*parts.vocabulary, *new]), new
    vocabulary = list(parts.vocabulary)
    for piece, place in zip(new, unused, strict=False):
        if into_unused:
            vocabulary[vocabulary.index(place)] = piece
    if not into_unused:
        vocabulary += new
    return replace(parts, backend=_with_pieces(parts.backend, vocabulary), vocabulary=vocabulary), new


def _piece(parts: TokenizerParts, word: str) -> str:
    """What the tokenizer makes of a word before it looks for pieces; a UserError where that is not one word."""
    if not isinstance(parts.backend.model, models.WordPiece):
        if not word or word != word.strip():
            raise UserError(f"{word!r} is no word: it is empty, or begins or ends with a blank")
        return word
    within = word.startswith("##") and len(word) > 2
    text = word[2:] if within else word
    with rust_errors(repr(word)):
        if parts.backend.normalizer is not None:
            text = parts.backend.normalizer.normalize_str(text)
        assert parts.backend.pre_tokenizer is not None
        cut = [piece for piece, _ in parts.backend.pre_tokenizer.pre_tokenize_str(text)]
    if len(cut) != 1:
        found = " ".join(cut) or "nothing"
        raise UserError(f"{word!r} is not one word for this tokenizer, which makes of it: {found}")
    limit = parts.backend.model.max_input_chars_per_word
    if len(cut[0]) > limit:
        raise UserError(
            f"{word!r} has {len(cut[0])} characters; words of more than {limit} are [UNK] to this tokenizer"
        )
    return f"##{cut[0]}" if within else cut[0]


def _with_pieces(backend: tokenizers.Tokenizer, vocabulary: Sequence[str]) -> tokenizers.Tokenizer:
    """The same pipeline with another WordPiece vocabulary; tokens beyond the pieces must not be there."""
    pipeline = json.loads(backend.to_str())
    pipeline["model"]["vocab"] = {piece: i for i, piece in enumerate(vocabulary)}
    with rust_errors("the new vocabulary"):
        grown = tokenizers.Tokenizer.from_str(json.dumps(pipeline))
    grown.encode_special_tokens = backend.encode_special_tokens
    return grown
