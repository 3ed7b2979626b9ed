"""Where words begin, seen from the pieces: what whole-word masking needs."""

import string
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer_byte_level import SPACE as BYTE_LEVEL_SPACE
from bert_jax.data.tokenizer_families import ALBERT, Family
from bert_jax.data.tokenizer_unigram import SPACE

_PUNCTUATION = frozenset(string.punctuation + "€£")
_ENGLISH = frozenset(string.ascii_letters) | _PUNCTUATION


def continuations(pieces: Sequence[str], backend: tokenizers.Tokenizer, family: Family | None) -> np.ndarray:
    """bool [V]: pieces that go on the word before them.

    WordPiece: "##...". Byte-level BPE and XLM-R's unigrams: those that do not begin with a space ("Ġ", "▁"), as
    fairseq's `is_beginning_of_word`. ALBERT: of those only what is English letters and punctuation and more than one
    sign of punctuation, so that a text without spaces is not one word (`_is_start_piece_sp` of google-research/albert).
    """
    if isinstance(backend.model, models.WordPiece):
        return np.array([piece.startswith("##") and len(piece) > 2 for piece in pieces])
    if family == ALBERT:
        return np.array([_continues_in_albert(piece) for piece in pieces])
    return np.array([bool(piece) and piece[0] not in (SPACE, BYTE_LEVEL_SPACE) for piece in pieces])


def _continues_in_albert(piece: str) -> bool:
    return not (not piece or piece[0] in (SPACE, "<") or piece in _PUNCTUATION or not _ENGLISH.issuperset(piece))
