"""Folders with tokenizers of every kind: tiny ones made here, and published ones from the real data."""

import gzip
import json
from pathlib import Path
from typing import Any

CORNERS = ["<s>", "<pad>", "</s>", "<unk>"]
ALPHABET = [*"abdehlortw.,!'", "Ġ"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d"]
BYTE_LEVEL = [*CORNERS, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "<mask>"]
"""A RoBERTa vocabulary in the order of its ids."""

ALBERT = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "-", "(", ")"]
ALBERT_WORDS = ["▁hello", "▁world", "▁", "h", "e", "l", "o", "w", "r", "d", ",", ".", "s", "1", "0", "▁1", "1,", "▁1,"]
FAIRSEQ_WORDS = ["▁hello", "▁world", "▁", "h", "e", "l", "o", "w", "r", "d", ",", "."]


def write(folder: Path, **files: object) -> Path:
    """Files by name (dots as two underscores); text and bytes as they are, anything else as JSON."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        data = content if isinstance(content, (str, bytes)) else json.dumps(content)
        (folder / name.replace("__", ".")).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def byte_level_files(**changes: object) -> dict[str, object]:
    """vocab.json and merges.txt of `BYTE_LEVEL`, to be written."""
    merges = "#version: 0.2\n" + "\n".join(MERGES) + "\n"
    return {"vocab__json": {piece: i for i, piece in enumerate(BYTE_LEVEL)}, "merges__txt": merges} | changes


def spiece(
    pieces: list[str], *, special: int, user_defined: int = 0, trainer: dict | None = None, **normalizer
) -> bytes:
    """A SentencePiece model: <unk> at its place, `special` control pieces, user-defined ones, then words.

    A word of n characters has the score n - 10 - its place / 997: longer ones win.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()
    for place, piece in enumerate(pieces):
        kind = 2 if piece == "<unk>" else 3 if place < special else 4 if place < special + user_defined else 1
        score = len(piece) - 10 - place / 997 if kind == 1 else 0.0
        proto.pieces.add(piece=piece, score=score, type=kind)
    settings = {"model_type": 1, "unk_id": pieces.index("<unk>") if "<unk>" in pieces else 0} | (trainer or {})
    for name, value in settings.items():
        setattr(proto.trainer_spec, name, value)
    for name, value in ({"name": "identity", "add_dummy_prefix": True} | normalizer).items():
        setattr(proto.normalizer_spec, name, value)
    return proto.SerializeToString()


def albert_spiece(**changes: Any) -> bytes:
    """ALBERT's numbering: 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK], then user-defined signs."""
    return spiece([*ALBERT, *ALBERT_WORDS], special=5, user_defined=3, **changes)


def fairseq_spiece() -> bytes:
    """SentencePiece's own numbering, as in XLM-R's and CamemBERT's models: <unk>, <s>, </s>, then words."""
    return spiece(["<unk>", "<s>", "</s>", *FAIRSEQ_WORDS], special=3)


def published_roberta(data_dir: Path, folder: Path) -> Path:
    """vocab.json and merges.txt of distilroberta-base, which are RoBERTa's."""
    for name in ("vocab.json", "merges.txt"):
        packed = data_dir / f"checkpoints/vocab/distilroberta-base-{name}.gz"
        (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def published_albert(data_dir: Path, folder: Path) -> Path:
    """A SentencePiece model of 30,000 pieces with ALBERT's numbering."""
    packed = data_dir / "checkpoints/vocab/albert-like-30k-clean.model.gz"
    (folder / "spiece.model").write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def hostile_lines(data_dir: Path) -> list[str]:
    return gzip.decompress((data_dir / "text/hostile.txt.gz").read_bytes()).decode().split("\n")
