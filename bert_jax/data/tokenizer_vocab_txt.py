"""vocab.txt: one piece a line; and what the pieces alone can tell about casing and accents."""

import logging
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from bert_jax.errors import UserError

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
