"""Write a folder atomically: it is written under a hidden name and renamed once it is complete."""

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
"""Every model card that we write contains this. In Google's form it is the only sign that we wrote the folder."""
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
"""The only names, apart from numbered shards, in a folder that we wrote; a folder with any other file is foreign."""


@contextmanager
def new_folder(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a draft folder to write into; rename it to `directory` when the block ends.

    `directory` is therefore never incomplete. If the block raises an exception, `directory` stays as it was. A former
    export at that place is replaced.

    Raises:
        UserError: `directory` is in a bucket, or exists and is not a former export.
    """
    if "://" in os.fspath(directory):
        raise UserError(f"{directory}: bert_jax cannot export to a bucket; name a local folder, and copy it from there")
    target = Path(directory)
    refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{target.name}.writing-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir()  # mkdtemp would make a folder that only its owner can read
        yield draft
        _rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file with the same line endings on every system."""
    path.write_bytes(text.encode())


def refuse_foreign(target: Path) -> None:
    """Raise a UserError if the place has something that is not a former export."""
    if not os.path.lexists(target):
        return
    if not target.is_dir() or target.is_symlink():
        raise UserError(f"{target}: exists and is not a folder; name another place")
    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if not _is_plain_folder(path))
    strangers = [name for name in names if name not in _NAMES and not re.fullmatch(SHARD, name)]
    if strangers or (names and not _is_ours(target)):
        what = f"holds {strangers[0]!r}" if strangers else "was not written by bert_jax"
        raise UserError(f"{target}: {what}; only a former export can be replaced: name another folder, or remove it")


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
