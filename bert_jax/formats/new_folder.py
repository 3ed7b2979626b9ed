"""Folders that are whole or not there: made beside their place under a hidden name, and renamed when all is well."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.files import sync
from bert_jax.formats.safetensors import written_by_us
from bert_jax.formats.weights import SAFETENSORS, SHARD

CARD = "README.md"
CARD_MARK = "written by bert_jax"
"""What every card of ours says; of a folder in Google's form nothing else tells that it is ours."""
CHECKPOINT = "bert_model.ckpt"

_NAMES = {
    "config.json",
    "bert_config.json",
    "albert_config.json",
    SAFETENSORS,
    f"{SAFETENSORS}.index.json",
    f"{CHECKPOINT}.index",
    f"{CHECKPOINT}.data-00000-of-00001",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    CARD,
}
"""All that a folder of ours may hold, and numbered shards; with anything else in it, it is somebody's."""


@contextmanager
def new_folder(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into, which takes the name `directory` at the end: at no moment is half a folder there.

    An exception in the block leaves what was there before. A former folder of ours is replaced.

    Raises:
        UserError: the name is that of a bucket, or something else is in the way.
    """
    if "://" in os.fspath(directory):
        raise UserError(f"{directory}: exports are written to a local folder; copy it from there")
    target = Path(directory)
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{target.name}.writing-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir()  # not mkdtemp: its folders are closed to everybody else
        yield draft
        _rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, with the same line ends on every system."""
    path.write_bytes(text.encode())


def _refuse_foreign(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir() or target.is_symlink():
        raise UserError(f"{target}: is in the way and is no folder; name another place")
    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if not _is_plain_folder(path))
    strangers = [name for name in names if name not in _NAMES and not re.fullmatch(SHARD, name)]
    if strangers or (names and not _is_ours(target)):
        what = f"holds {strangers[0]!r}" if strangers else "was not written by bert_jax"
        raise UserError(f"{target}: {what}; only a former export is replaced, so name another folder or remove it")


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_ours(target: Path) -> bool:
    weights = [path for path in target.iterdir() if path.suffix == ".safetensors"]
    if weights:
        return all(written_by_us(path) for path in weights)
    card = target / CARD
    return card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")


def _rename(draft: Path, target: Path) -> None:
    for path in (*draft.rglob("*"), draft):
        sync(path)
    if target.is_dir():
        former = draft.with_name(draft.name.replace(".writing-", ".former-"))
        target.rename(former)
        draft.rename(target)
        shutil.rmtree(former)
    else:
        draft.rename(target)
    sync(target.parent)
