"""RoBERTa's byte-level BPE: vocab.json and merges.txt, checked, and the pipeline on the `tokenizers` library."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.data.tokenizer_settings import read_json
from bert_jax.errors import UserError

SPACE = "Ġ"
"""How a byte-level piece shows that a space stands before it: byte 0x20 as a printable character (GPT-2)."""


def read_vocab_json(path: Path) -> dict[str, int]:
    """Piece -> id of a vocab.json; the ids are 0, 1, 2, ... without a gap.

    Raises:
        UserError: not such a file.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; byte-level BPE needs it beside merges.txt")
    ids = read_json(path)
    if not ids:
        raise UserError(f"{path}: an empty vocabulary")
    for piece, i in ids.items():
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise UserError(f"{path}: token {piece!r} has id {i!r}, expected a number from 0 up")
    twice = next((i for i, count in Counter(ids.values()).items() if count > 1), None)
    if twice is not None:
        first, second = [piece for piece, i in ids.items() if i == twice][:2]
        raise UserError(f"{path}: id {twice} stands for two tokens, {first!r} and {second!r}")
    if max(ids.values()) >= len(ids):
        gap = min(set(range(len(ids))) - set(ids.values()))
        raise UserError(f"{path}: no token has id {gap}, but ids go up to {max(ids.values())}: expected no gaps")
    return ids


def read_merges(path: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges of a merges.txt, a pair a line, best first; all pieces are among `ids`.

    Raises:
        UserError: no such file, or not such a file.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing; byte-level BPE needs it beside vocab.json")
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}), expected a pair of pieces a line") from None
    merges = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if line.startswith("#version") or (not line and number == len(lines)):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise UserError(f"{path}, line {number}: found {line[:80]!r}, expected two pieces and a space between them")
        unknown = next((piece for piece in (*pair, "".join(pair)) if piece not in ids), None)
        if unknown is not None:
            raise UserError(f"{path}, line {number}: piece {unknown!r} is not in {path.with_name('vocab.json')}")
        merges.append((pair[0], pair[1]))
    return merges


def byte_level_backend(ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    """The model alone; special tokens, split into words and layout come after it."""
    model = models.BPE(dict(ids), list(merges), continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    return tokenizers.Tokenizer(model)


def set_byte_level(backend: tokenizers.Tokenizer, *, add_prefix_space: bool) -> None:
    """Put GPT-2's split into words and the way back on a pipeline."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()


def set_roberta_layout(
    backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], *, add_prefix_space: bool, trim_offsets: bool
) -> None:
    """<s> a </s>, <s> a </s></s> b </s>, types all 0; `trim_offsets` leaves the blank out of a word's offsets."""
    ids = backend.get_vocab()
    sep, cls = ((special_tokens[role], ids[special_tokens[role]]) for role in ("sep", "cls"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets, add_prefix_space)


def prefix_space(backend: tokenizers.Tokenizer) -> bool | None:
    """Whether a space is put before a text; None where the pipeline is not byte-level."""
    pre_tokenizer = backend.pre_tokenizer
    return pre_tokenizer.add_prefix_space if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) else None
