"""`--vocab`: a file, a folder, a run, prepared data or a published model -> where its tokenizer lies on disk."""

from pathlib import Path

from bert_jax.data.shards import describe_file
from bert_jax.errors import UserError
from bert_jax.interop.hub import fetch
from bert_jax.interop.hub_files import TOKENIZER, has_vocabulary
from bert_jax.interop.hub_ids import is_hub_id


def find_vocabulary(vocab: str) -> Path:
    """The file or folder that a tokenizer is read from; that of a published model is downloaded if need be.

    A run directory and prepared data keep theirs in `tokenizer/`. Raises UserError where there is none.
    """
    path = Path(vocab).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        return path / "tokenizer" if "tokenizer" in names and not has_vocabulary(names) else path
    if not is_hub_id(vocab):
        raise UserError(f"--vocab {vocab}: no such file or folder")
    try:
        return fetch(vocab, parts=("tokenizer",))
    except (FileNotFoundError, UserError) as error:
        raise UserError(f"--vocab {error}") from None


def describe_vocabulary(path: Path) -> str:
    """The fingerprint of the files at `path`: of one file, or of those in a folder that a tokenizer is read from."""
    folder = path if path.is_dir() else path.parent
    files = [folder / name for name in _IN_ORDER if (folder / name).is_file()]
    if not path.is_dir():
        files = [path, *(file for file in files if file.name == "tokenizer_config.json")]
    return " ".join(f"{file.name}:{describe_file(file)['sha256'][:16]}" for file in files)


_FIRST = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_IN_ORDER = (*_FIRST, *(name for name in TOKENIZER if name not in _FIRST))
