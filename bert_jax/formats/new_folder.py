"""Write a folder atomically: it is written under a hidden name and renamed once it is complete."""

import contextlib
import ctypes
import fcntl
import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.files import check_name, is_of_macos, is_remote, sync
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
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/model_quantized.onnx",
    CARD,
}
"""The only names, apart from numbered shards, in a folder that we wrote; a folder with any other file is foreign."""


@contextmanager
def new_folder(directory: str | os.PathLike[str], refuse: Callable[[Path], None] | None = None) -> Generator[Path]:
    """Yields a draft folder to write into; renames it to `directory` when the block ends.

    `directory` is therefore never incomplete. If the block raises an exception, `directory` stays as it was. A former
    export at that place is replaced in one step, where the system can exchange two folders (Linux can). What killed
    programs left of earlier attempts is removed.

    Args:
        directory: the folder.
        refuse: called with it before and after the block; raises UserError if it must not be replaced. None:
            `refuse_foreign`.

    Raises:
        UserError: `directory` is in a bucket, its name is not UTF-8, or what `refuse` raises.
    """
    refuse = refuse or refuse_foreign
    refuse_bucket(directory)
    target = Path(directory)
    check_name(target)
    refuse(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{target}: cannot be created, because {error.filename} is not a folder") from None
    remove_leftovers(target)
    draft = target.parent / f".{target.name}.writing-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir()  # mkdtemp would make a folder that only its owner can read
        with _locked(draft, if_possible=True):
            yield draft
            refuse(target)
            _rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_bucket(directory: str | os.PathLike[str]) -> None:
    """Raises a UserError if a folder to write is in a bucket; a `Path` does not tell, since it joins slashes."""
    if is_remote(directory):
        raise UserError(f"{directory}: bert_jax cannot export to a bucket; name a local folder, and copy it from there")


def write_text(path: Path, text: str) -> None:
    """Writes a text file with the same line endings on every system."""
    path.write_bytes(text.encode())


def refuse_foreign(target: Path) -> None:
    """Raises a UserError if the place has something that is not a former export, or no name that a folder can get."""
    if target.name in ("", ".."):
        raise UserError(f"{target}: expected the name of a folder to write, such as {target / 'model'}")
    if not os.path.lexists(target):
        return
    if target.is_symlink():
        raise UserError(f"{target}: is a link; name the folder itself, or another place")
    if not target.is_dir():
        raise UserError(f"{target}: exists and is not a folder; name another place")
    files = (path for path in target.rglob("*") if not _is_plain_folder(path) and not is_of_macos(path.name))
    names = sorted(path.relative_to(target).as_posix() for path in files)
    strangers = [name for name in names if name not in _NAMES and not re.fullmatch(SHARD, name)]
    if strangers or (names and not _is_ours(target)):
        what = f"holds {strangers[0]!r}" if strangers else "was not written by bert_jax"
        raise UserError(f"{target}: {what}; only a former export can be replaced: name another folder, or remove it")


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_ours(target: Path) -> bool:
    weights = [path for path in target.iterdir() if path.suffix == ".safetensors" and not is_of_macos(path.name)]
    if weights:
        return all(written_by_us(path) for path in weights)
    card = target / CARD
    return card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")


def remove_leftovers(target: Path) -> None:
    """Removes the drafts of exports to `target` that were killed; one that is still being written stays.

    A file system that cannot exchange two folders needs a moment without `target` to replace it; if the program was
    killed in it, this gives the former export its name again.
    """
    for path in target.parent.glob(f".{glob.escape(target.name)}.*-????????"):
        kind = path.name.removeprefix(f".{target.name}.").split("-")[0]
        if kind not in ("writing", "former") or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError), _locked(path):
            if kind == "former" and not os.path.lexists(target):
                path.rename(target)
            else:
                shutil.rmtree(path)


@contextmanager
def _locked(folder: Path, *, if_possible: bool = False) -> Generator[None]:
    """Keeps `remove_leftovers` of another program away from the folder; raises OSError if that has it.

    Where the file system has no locks this raises OSError too, unless `if_possible`: `remove_leftovers` removes nothing
    there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not if_possible or isinstance(error, BlockingIOError):
                raise
        yield
    finally:
        os.close(descriptor)


def _rename(draft: Path, target: Path) -> None:
    for path in (*draft.rglob("*"), draft):
        sync(path)
    if not os.path.lexists(target):
        draft.rename(target)
    elif not _exchange(draft, target):
        former = draft.with_name(draft.name.replace(".writing-", ".former-"))
        target.rename(former)
        draft.rename(target)
        shutil.rmtree(former)
    sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step; False if the system cannot, and then nothing has changed."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    return rename(here, os.fsencode(one.absolute()), here, os.fsencode(other.absolute()), exchange) == 0
