"""From the files of a vocabulary to a tokenizer's parts: one reader for each kind of file."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from bert_jax.config import is_int
from bert_jax.data.tokenizer.families import ALBERT, ROBERTA, XLM_ROBERTA, Family, family_of_json
from bert_jax.data.tokenizer.growth import refuse_growth, refuse_table
from bert_jax.data.tokenizer.ids import TokenizerParts
from bert_jax.data.tokenizer.pipelines import (
    bert_backend,
    byte_level_backend,
    first_line,
    library_errors,
    overrule_json,
    probe,
    set_byte_level_rules,
    set_unigram_rules,
    unigram_backend,
    without_number_commas,
)
from bert_jax.data.tokenizer.settings import Beside
from bert_jax.errors import UserError, quoted
from bert_jax.files import parse_json, read_file, read_object

logger = logging.getLogger(__name__)


def read_vocab_txt(path: Path, family: Family, beside: Beside) -> TokenizerParts:
    """The parts of a WordPiece tokenizer: a vocab.txt with one piece per line.

    Raises UserError if the file is no such vocabulary, or if nothing says whether it is cased (`guess_cased`).
    """
    settings = beside.settings
    pieces = read_vocabulary(path)
    ids = {piece: i for i, piece in enumerate(pieces)}
    special_tokens = beside.special_tokens(family, ids)
    _check_special_tokens(path, family, special_tokens, f"its {len(pieces)} pieces: not a BERT vocabulary?")
    cased = not settings.lowercases(True) if settings.says_case else guess_cased(path, pieces)
    strip_accents = settings.config.get("strip_accents") if settings.strip_accents is None else settings.strip_accents
    if not cased and strip_accents is not False:
        warn_if_unreachable(path, pieces)
    with library_errors(str(path)):
        backend = bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=settings.config.get("tokenize_chinese_chars", True),
        )
        beside.put_added_tokens(backend, special_tokens)
    return TokenizerParts(backend, _in_id_order(backend, pieces, path), special_tokens, family=family)


def read_vocabulary(path: Path) -> list[str]:
    """The pieces of a vocab.txt, one per line; lines end at \\n or \\r\\n only (U+0085 and U+2028 can be pieces).

    Raises UserError if the file is not UTF-8, or is empty.
    """
    data = read_file(path)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 ({error.reason}), expected one piece per line") from None
    while lines and not lines[-1].strip("\r"):
        lines.pop()
    if not lines:
        raise UserError(f"{path}: an empty vocabulary")
    return [line.removesuffix("\r") for line in lines]


def _is_marker(piece: str) -> bool:
    return piece[:1] + piece[-1:] in ("[]", "<>")


def guess_cased(path: Path, pieces: Sequence[str]) -> bool:
    """False, if no piece has a capital letter, as transformers assumes; if one has, the pieces do not tell.

    Raises:
        UserError: a piece has a capital letter.
    """
    capital = next((piece for piece in pieces if piece != piece.lower() and not _is_marker(piece)), None)
    if capital is not None:
        raise UserError(
            f"{path}: has capital letters (piece {quoted(capital)}), and no tokenizer_config.json says whether to "
            "lower-case text: say cased=True or cased=False, or write do_lower_case there"
        )
    return False


def warn_if_unreachable(path: Path, pieces: Sequence[str]) -> None:
    """Warns if over 1 % of the pieces cannot occur: uncased BERT strips accents, and so it cuts up Hangul and Hindi."""
    lost = [piece for piece in pieces if not piece.isascii() and _is_cut(piece)]
    if len(lost) > len(pieces) // 100:
        logger.warning(
            "%s: %d of %d pieces (%r is one) cannot occur, because uncased BERT strips accents; if the vocabulary was "
            "made for text with accents, pass strip_accents=False or set it in tokenizer_config.json",
            path, len(lost), len(pieces), lost[0],
        )  # fmt: skip


def _is_cut(piece: str) -> bool:
    """Whether the stripping of accents leaves something else of a piece: it has marks, or syllables of Hangul."""
    parts = unicodedata.normalize("NFD", piece)
    has_marks = any(unicodedata.category(one) == "Mn" for one in parts)
    return has_marks or (parts != piece and any("\u1100" <= one <= "\u11ff" for one in parts))


def read_byte_level(path: Path, beside: Beside) -> TokenizerParts:
    """The parts of RoBERTa's tokenizer: a vocab.json, and the merges.txt beside it.

    Its mask token swallows the spaces on its left, as in training (fairseq's `fill_mask`; transformers up to 4, and
    every tokenizer.json). Without a tokenizer.json, transformers 5 does not do this.
    """
    ids = read_vocab_json(path)
    merges = read_merges(path.parent / "merges.txt", ids)
    special_tokens = beside.special_tokens(ROBERTA, ids)
    _check_special_tokens(path, ROBERTA, special_tokens, f"its {len(ids)} tokens: not a RoBERTa vocabulary?")
    with library_errors(str(path)):
        backend = byte_level_backend(ids, merges)
        beside.put_special_tokens(backend, special_tokens)
        set_byte_level_rules(backend, special_tokens, beside.settings)
    return TokenizerParts(backend, _in_id_order(backend, [], path), special_tokens, family=ROBERTA)


def read_vocab_json(path: Path) -> dict[str, int]:
    """The id of each piece of a vocab.json; the ids are 0, 1, 2, ... without a gap.

    Raises:
        UserError: a missing file, or one that is not such a table.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; byte-level BPE needs it beside merges.txt")
    ids = read_object(path, optional=True)
    if not ids:
        raise UserError(f"{path}: an empty vocabulary")
    for piece, i in ids.items():
        if not is_int(i) or i < 0:
            raise UserError(f"{path}: token {quoted(piece)} has id {quoted(i)}, expected a number from 0 up")
    twice = next((i for i, count in Counter(ids.values()).items() if count > 1), None)
    if twice is not None:
        first, second = [piece for piece, i in ids.items() if i == twice][:2]
        raise UserError(f"{path}: id {twice} stands for two tokens, {quoted(first)} and {quoted(second)}")
    if max(ids.values()) >= len(ids):
        gap = min(set(range(len(ids))) - set(ids.values()))
        raise UserError(f"{path}: no token has id {gap}, but ids go up to {max(ids.values())}: expected no gaps")
    return ids


def read_merges(path: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of a merges.txt, one pair per line, best first; all pieces are among `ids`.

    Raises:
        UserError: a missing file, a line that is not a pair, a piece that is not among `ids`.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; byte-level BPE needs it beside vocab.json")
    try:
        lines = read_file(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}), expected a pair of pieces per line") from None
    merges = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if line.startswith("#version") or (not line and number == len(lines)):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise UserError(
                f"{path}, line {number}: found {quoted(line)}, expected two pieces and a space between them"
            )
        unknown = next((piece for piece in (*pair, "".join(pair)) if piece not in ids), None)
        if unknown is not None:
            raise UserError(f"{path}, line {number}: piece {quoted(unknown)} is not in {path.with_name('vocab.json')}")
        merges.append((pair[0], pair[1]))
    return merges


def read_spiece_model(path: Path, family: Family, beside: Beside) -> TokenizerParts:
    """The parts of ALBERT's, XLM-R's or CamemBERT's tokenizer: SentencePiece's file.

    Its user-defined symbols ("-", "(", ...) are pieces like any other, as in SentencePiece itself. Without a
    tokenizer.json, transformers 5 makes them tokens that split words: the text after one begins with "▁".
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
    with library_errors(str(path)):
        backend = unigram_backend(pieces, unk_id)
        beside.put_special_tokens(backend, special_tokens)
        set_unigram_rules(backend, family, special_tokens, settings, charsmap=spiece.charsmap)
    vocabulary = _in_id_order(backend, list(ids), path)
    return TokenizerParts(backend, vocabulary, special_tokens, family=family, spiece=spiece.data)


_UNIGRAM = 1  # TrainerSpec.ModelType


@dataclass(frozen=True)
class SpieceModel:
    """The content of a SentencePiece model.

    Attributes:
        pieces: with their scores (logarithms of probabilities), in the order of the model's own ids.
        unk_id: the id of the unknown piece.
        charsmap: the table of replacements, None if it has none.
        data: the bytes of the file.
    """

    pieces: list[tuple[str, float]]
    unk_id: int
    charsmap: bytes | None
    data: bytes


def read_spiece(path: Path) -> SpieceModel:
    """The content of a SentencePiece model of type unigram.

    Raises:
        UserError: the package sentencepiece is missing (install the extra "spm"); a damaged file; a model of another
            type, or with rules that the published families do not have.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(f"{path}: reading it needs the package sentencepiece: pip install 'bert-jax[spm]'") from None
    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyrefly: ignore[missing-attribute]
    data = read_file(path)
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError; we do not depend on its module
        raise UserError(f"{path}: not a SentencePiece model, or cut short ({first_line(error)})") from None
    if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
        raise UserError(f"{path}: not a whole SentencePiece model ({len(proto.pieces)} pieces): cut short?")
    _check(path, proto)
    refuse_table(proto.normalizer_spec.precompiled_charsmap, path)
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
        raise UserError(f"{path}: a piece occurs twice, expected {count} different ones")
    rules = {
        "byte_fallback": (trainer.byte_fallback, False),
        "treat_whitespace_as_suffix": (trainer.treat_whitespace_as_suffix, False),
        "add_dummy_prefix": (normalizer.add_dummy_prefix, True),
        "remove_extra_whitespaces": (normalizer.remove_extra_whitespaces, True),
    }
    for name, (found, expected) in rules.items():
        if found != expected:
            raise UserError(f"{path}: {name} is {found}, expected {expected}, as in all published models")


def xlm_roberta_pieces(model: SpieceModel, special_tokens: dict[str, str]) -> tuple[list[tuple[str, float]], int]:
    """The pieces in XLM-R's order (fairseq's four, the model's from its fourth on, the mask), and the unknown's id."""
    first = [(special_tokens[role], 0.0) for role in ("cls", "pad", "sep", "unk")]
    return [*first, *model.pieces[3:], (special_tokens["mask"], 0.0)], 3


def camembert_pieces(model: SpieceModel, special_tokens: dict[str, str]) -> tuple[list[tuple[str, float]], int]:
    """The pieces in CamemBERT's order (its five, the model's from its second on, the mask), and the unknown's id."""
    first = [("<s>NOTUSED", 0.0), (special_tokens["pad"], 0.0), ("</s>NOTUSED", 0.0), (special_tokens["unk"], 0.0)]
    return [*first, ("<unk>NOTUSED", -100.0), *model.pieces[1:], (special_tokens["mask"], 0.0)], 3


def read_tokenizer_json(path: Path, declared: Family | None, beside: Beside) -> TokenizerParts:
    """The parts of a tokenizer.json, with the settings by which transformers overrules it."""
    backend = load_backend(path, split_number_commas=beside.settings.split_number_commas)
    ids = backend.get_vocab(with_added_tokens=True)
    family = family_of_json(path, type(backend.model).__name__, declared, beside.settings.config, beside.model)
    special_tokens = beside.special_tokens(family, ids)
    if family is not None:
        _check_special_tokens(path, family, special_tokens, f"its {len(ids)} tokens")
    with library_errors(f"{path}: not a usable tokenizer file"):
        beside.put_added_tokens(backend, special_tokens)
        overrule_json(backend, family, special_tokens, beside.settings)
    text_file = beside.folder / "vocab.txt"
    wordpiece = isinstance(backend.model, models.WordPiece)
    pieces = read_vocabulary(text_file) if wordpiece and text_file.is_file() else []
    if pieces and {p: i for i, p in enumerate(pieces)} != backend.get_vocab(with_added_tokens=False):
        logger.warning("%s and %s hold different vocabularies: using the latter, as transformers does", text_file, path)
        pieces = []
    vocabulary, spiece = _in_id_order(backend, pieces, path), _spiece_beside(path, family, backend)
    return TokenizerParts(backend, vocabulary, special_tokens, family=family, spiece=spiece)


def _spiece_beside(path: Path, family: Family | None, backend: tokenizers.Tokenizer) -> bytes | None:
    """The bytes of ALBERT's spiece.model beside a tokenizer.json, if both hold the same pieces; Google's code reads it.

    None too where the package sentencepiece is missing or the file is damaged, since the tokenizer can do without.
    """
    file = path.with_name(ALBERT.files[0])
    if family != ALBERT or not file.is_file():
        return None
    try:
        spiece = read_spiece(file)
    except UserError:
        return None
    if {piece: i for i, (piece, _) in enumerate(spiece.pieces)} == backend.get_vocab(with_added_tokens=False):
        return spiece.data
    logger.warning("%s and %s hold different vocabularies: using the latter, as transformers does", file, path)
    return None


def load_backend(path: Path, *, split_number_commas: bool) -> tokenizers.Tokenizer:
    """The pipeline of a tokenizer.json, without its padding and truncation; every stage is tried once.

    Raises:
        UserError: not JSON, not a tokenizer, a stage that the library cannot run or that makes texts much longer, two
            tokens with the same id, or added tokens that do not get the ids that the file gives.
    """
    text = read_file(path)
    declared = parse_json(text, path)
    with library_errors(f"{path}: not a usable tokenizer file"):
        refuse_growth(declared, path)  # before a text passes: added tokens are normalised as the library reads them
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
            raise UserError(f"{path}: added token {quoted(token['content'])} has id {token['id']}, expected {found}")
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        twice = next(i for i, count in Counter(ids.values()).items() if count > 1)
        first, second = [token for token, i in ids.items() if i == twice][:2]
        raise UserError(f"{path}: id {twice} stands for two tokens, {quoted(first)} and {quoted(second)}")
    return backend


def _check_special_tokens(path: Path, family: Family, special_tokens: Mapping[str, str], among: str) -> None:
    needed = ("unk", "cls", "sep") if family.model == "WordPiece" else ("cls", "sep")
    missing = [family.special_tokens[role] for role in needed if role not in special_tokens]
    if missing:
        raise UserError(f"{path}: no {' and no '.join(missing)} among {among}")


def _in_id_order(backend: tokenizers.Tokenizer, pieces: Sequence[str], path: Path) -> list[str]:
    """Pieces by id; an id without a token (of a piece that vocab.txt has twice) keeps the text of its line."""
    ids = backend.get_vocab(with_added_tokens=True)
    if max(ids.values()) > 2 * len(ids) + 1000:
        raise UserError(f"{path}: {len(ids)} tokens with ids up to {max(ids.values())}: most ids are missing")
    rows = list(pieces) + [""] * (max(ids.values()) + 1 - len(pieces))
    for token, i in ids.items():
        rows[i] = token
    return rows
