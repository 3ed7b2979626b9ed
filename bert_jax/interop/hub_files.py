"""Which files of a published model are needed: the config, one format of weights, the tokenizer's files."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from bert_jax.errors import UserError

CONFIG = "config.json"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "flax_model.msgpack",
    "flax_model.msgpack.index.json",
)
"""The formats that are read, the one that is taken first at the front; of an index the shards that it lists."""

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("sentencepiece.bpe.model",),
    ("spiece.model",),
)
# Settings before vocabulary: then a download that was cut short is seen, for want of a vocabulary.
TOKENIZER = (*TOKENIZER_SETTINGS, *(name for names in _VOCABULARIES for name in names))

POOLING = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""How sentence-transformers makes a vector of a text: comes along with the weights where a model has it."""

LEAST_TOKENIZER = ("tokenizer.json", "vocab.txt")
"""A model that is known to have neither is taken to have no tokenizer."""

PARTS = ("config", "weights", "tokenizer")


def shards_of(index: Path) -> list[str]:
    """The files that an index of sharded weights lists; they lie beside it.

    Raises:
        UserError: it is no such index, or names a file elsewhere.
    """
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(table.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: not an index of sharded weights ({type(error).__name__}: {error})") from None
    for shard in shards:
        if not isinstance(shard, str) or not shard or Path(shard).name != shard or "\\" in shard:
            raise UserError(f"{index}: names the shard {shard!r}; expected the name of a file beside it")
    if not shards:
        raise UserError(f"{index}: names no shards")
    return shards


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether these files are enough for a tokenizer."""
    there = set(names)
    return any(there.issuperset(vocabulary) for vocabulary in _VOCABULARIES)


def wanted_files(listed: Iterable[str], parts: Iterable[str], source: str, get: Callable[[str], Path]) -> list[str]:
    """The files to have of a published model, in the order to get them in: config.json, which stands for all, last.

    Args:
        listed: the names of all its files.
        parts: of `PARTS`.
        source: for messages.
        get: gives the local copy of a file; called for the index of sharded weights.

    Raises:
        UserError: it has no config.json, no weights of a format that is read, or no tokenizer where only that is asked
            for.
    """
    there, parts = set(listed), set(parts)
    if CONFIG not in there and parts != {"tokenizer"}:
        raise UserError(f"{source}: has no {CONFIG}, so it is no model that can be loaded")
    files = []
    if "tokenizer" in parts:
        files += [name for name in TOKENIZER if name in there]
        if parts == {"tokenizer"} and not has_vocabulary(there):
            raise UserError(f"{source}: has no tokenizer (none of {', '.join(' + '.join(v) for v in _VOCABULARIES)})")
    if "weights" in parts:
        main = next((name for name in WEIGHTS if name in there), None)
        if main is None:
            others = sorted(name for name in there if Path(name).suffix in _OTHER_WEIGHTS)
            found = ", ".join(others[:4]) or "nothing of the kind"
            raise UserError(f"{source}: has no weights that are read ({', '.join(WEIGHTS[::2])}); found {found}")
        files += [*(name for name in POOLING if name in there), main]
        if main.endswith(".index.json"):
            shards = shards_of(get(main))
            if lost := [shard for shard in shards if shard not in there]:
                raise UserError(f"{source}: {main} names {lost[0]}, which is not among its files")
            files += shards
    return files + [CONFIG] * (CONFIG in there)


_OTHER_WEIGHTS = {".h5", ".ot", ".onnx", ".bin", ".safetensors", ".msgpack", ".ckpt", ".gguf", ".index"}


class CachedFiles:
    """What a cache has of one commit of a model, and what it lacks.

    Args:
        find: the cached copy of a file; None: not cached; False: the cache knows that the model has no such file.
    """

    def __init__(self, find: Callable[[str], Path | Literal[False] | None]):
        self._find = find

    def path(self, name: str) -> Path | None:
        """The cached copy of a file."""
        return self._find(name) or None

    def missing(self, parts: Iterable[str]) -> list[str]:
        """What is not there of what `parts` need; nothing: it is whole.

        Of several formats of weights the first in order counts, whole or not, for it is the one that is read.
        """
        parts = set(parts)
        missing = [] if self.path(CONFIG) or (self._find(CONFIG) is False and parts == {"tokenizer"}) else [CONFIG]
        if "tokenizer" in parts and not has_vocabulary(filter(self.path, TOKENIZER)):
            possible = [name for name in LEAST_TOKENIZER if self._find(name) is None or parts == {"tokenizer"}]
            missing += [" or ".join(possible)] * bool(possible)
        if "weights" in parts:
            main = next(filter(self.path, WEIGHTS), None)
            if main is None:
                missing.append(WEIGHTS[0])
            elif main.endswith(".index.json") and (index := self.path(main)):
                missing += [shard for shard in shards_of(index) if not self.path(shard)]
        return missing

    def uncertain(self, parts: Iterable[str]) -> list[str]:
        """What the model may have besides, for all that the cache tells: without it a tokenizer may be another."""
        return [name for name in TOKENIZER_SETTINGS[:1] if "tokenizer" in parts and self._find(name) is None]
