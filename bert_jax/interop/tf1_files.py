"""Which files of a folder are a TensorFlow checkpoint: `X.index` and `X.data-00000-of-00001`, X being its prefix."""

import os
import re
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.interop.leveldb_table import MAGIC

INDEX = ".index"
_DATA = re.compile(r"\.data-\d{5}-of-\d{5}$")
_LATEST = "checkpoint"
_LATEST_PATH = re.compile(r'^model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_MOST_SHOWN = 5


def is_checkpoint(source: str | os.PathLike[str]) -> bool:
    """Whether there is an .index at that prefix, in that folder or in its variables/ (a TF-hub module)."""
    path = Path(source)
    return bool(_prefixes(path)) or _index(_bare(path)).is_file()


def find_prefix(source: str | os.PathLike[str]) -> Path:
    """The prefix X of the one checkpoint that `source` names.

    Args:
        source: the prefix itself, one of its files, or a folder. In a folder with several, its file `checkpoint`
            says which is the latest.

    Raises:
        FileNotFoundError: there is no checkpoint.
        UserError: there are several, or one of TensorFlow's old one-file format.
    """
    path = Path(source)
    if not path.is_dir():
        return _existing_prefix(_bare(path))
    found = _prefixes(path)
    latest = _latest(path)
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(prefix.name for prefix in found[:_MOST_SHOWN]) + (" …" if len(found) > _MOST_SHOWN else "")
        raise UserError(f"{path}: holds {len(found)} checkpoints, {names}: name one of them, as in {found[0]}")
    for file in sorted(path.iterdir()):
        if _is_table(file):
            raise UserError(_old_format(file))
    alone = [file for file in sorted(path.iterdir()) if _DATA.search(file.name)]
    if alone:
        raise FileNotFoundError(f"{alone[0]}: its {_bare(alone[0]).name}{INDEX} is not there; copy that file too")
    raise FileNotFoundError(f"{path}: holds no TensorFlow checkpoint (no file *{INDEX})")


def _prefixes(folder: Path) -> list[Path]:
    for place in (folder, folder / "variables"):
        if found := sorted(_bare(file) for file in place.glob(f"?*{INDEX}") if file.is_file()):
            return found
    return []


def _bare(path: Path) -> Path:
    """The path without the ending that one of the checkpoint's files has."""
    name = _DATA.sub("", path.name.removesuffix(INDEX))
    return path.with_name(name) if name else path


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + INDEX)


def _existing_prefix(prefix: Path) -> Path:
    if _index(prefix).is_file():
        return prefix
    if _is_table(prefix):
        raise UserError(_old_format(prefix))
    raise FileNotFoundError(f"{_index(prefix)}: no such file")


def _latest(folder: Path) -> Path | None:
    """The prefix that the file `checkpoint` names, by its last component: the folder may have been moved."""
    try:
        with open(folder / _LATEST, "rb") as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return None
    found = _LATEST_PATH.search(text)
    return folder / Path(found[1].replace("\\\\", "\\")).name if found else None


def _is_table(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size < len(MAGIC):
        return False
    with open(path, "rb") as file:
        file.seek(-len(MAGIC), os.SEEK_END)
        return file.read() == MAGIC


def _old_format(path: Path) -> str:
    return (
        f"{path}: a checkpoint of TensorFlow's V1 format (one file, before 2017), which is not read; save it again "
        "with tf.train.Saver(write_version=tf.train.SaverDef.V2)"
    )
