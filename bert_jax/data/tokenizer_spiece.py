"""SentencePiece's own file (spiece.model, sentencepiece.bpe.model): pieces, scores, table of replacements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError

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
