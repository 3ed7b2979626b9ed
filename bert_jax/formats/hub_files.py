"""Published models before anything is fetched: what a hub id is, and which of its files a load needs."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from bert_jax.errors import UserError
from bert_jax.files import read_json

DEFAULT_REVISION = "main"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?:{_PART}/)?{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]*")
_SNAPSHOT = re.compile(r"models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")

# Models that were published without an organisation and are kept under one since 2024; the hub redirects the old names,
# a cache does not.
_MOVED = {
    "google-bert": """
        bert-base-uncased bert-base-cased bert-large-uncased bert-large-cased bert-base-chinese
        bert-base-multilingual-uncased bert-base-multilingual-cased bert-base-cased-finetuned-mrpc
        bert-base-german-cased bert-base-german-dbmdz-cased bert-base-german-dbmdz-uncased
        bert-large-uncased-whole-word-masking bert-large-cased-whole-word-masking
        bert-large-uncased-whole-word-masking-finetuned-squad bert-large-cased-whole-word-masking-finetuned-squad""",
    "FacebookAI": """
        roberta-base roberta-large roberta-large-mnli xlm-roberta-base xlm-roberta-large
        xlm-roberta-large-finetuned-conll02-dutch xlm-roberta-large-finetuned-conll02-spanish
        xlm-roberta-large-finetuned-conll03-english xlm-roberta-large-finetuned-conll03-german""",
    "distilbert": """
        distilbert-base-uncased distilbert-base-cased distilbert-base-german-cased distilbert-base-multilingual-cased
        distilbert-base-uncased-distilled-squad distilbert-base-cased-distilled-squad
        distilbert-base-uncased-finetuned-sst-2-english distilroberta-base""",
    "albert": """
        albert-base-v1 albert-large-v1 albert-xlarge-v1 albert-xxlarge-v1
        albert-base-v2 albert-large-v2 albert-xlarge-v2 albert-xxlarge-v2""",
    "almanach": "camembert-base",
}
_FULL_NAME = {name: f"{org}/{name}" for org, names in _MOVED.items() for name in names.split()}
_OLD_NAME = {full: name for name, full in _FULL_NAME.items()}


class HubId(NamedTuple):
    """A published model: its full name, and a branch, tag or commit of it."""

    repo: str
    revision: str = DEFAULT_REVISION

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a cache may have it under, the present one first."""
        return (self.repo, _OLD_NAME[self.repo]) if self.repo in _OLD_NAME else (self.repo,)

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def is_hub_id(text: str | os.PathLike[str]) -> bool:
    """Whether it has the form NAME, ORG/NAME or either with @REVISION; a path with as many parts has it too."""
    if not isinstance(text, str):
        return False
    repo, _, revision = text.partition("@")
    return (
        len(repo) <= 96
        and _REPO.fullmatch(repo) is not None
        and not any(wrong in repo for wrong in ("--", ".."))
        and not repo.endswith(".git")
        and ("@" not in text or _is_revision(revision))
    )


def parse_hub_id(text: str, revision: str | None = None) -> HubId:
    """`text` as a hub id, an old name turned into the present one.

    Args:
        text: "google-bert/bert-base-uncased", "bert-base-uncased", "org/name@revision".
        revision: branch, tag or commit; None: the one in `text`, else "main".

    Raises:
        UserError: it is none, or names two revisions.
    """
    if not is_hub_id(text):
        raise UserError(f"{text!r} is neither a folder nor a hub id (expected NAME, ORG/NAME or ORG/NAME@REVISION)")
    repo, _, inside = text.partition("@")
    if revision is not None and inside and revision != inside:
        raise UserError(f"{text!r} names the revision {inside!r}, revision= another one, {revision!r}: say one of them")
    wanted = revision or inside or DEFAULT_REVISION
    if not _is_revision(wanted):
        raise UserError(f"revision {wanted!r} of {repo}: expected a branch, a tag or a commit")
    return HubId(_FULL_NAME.get(repo, repo), wanted)


def published_as(folder: str | os.PathLike[str]) -> str | None:
    """ "ORG/NAME@COMMIT" of a folder in the hub's cache, None for any other: what is to be recorded of a source."""
    found = _SNAPSHOT.search(Path(folder).absolute().as_posix())
    return f"{found['repo'].replace('--', '/')}@{found['commit']}" if found else None


def _is_revision(text: str) -> bool:
    return len(text) <= 200 and _REVISION.fullmatch(text) is not None and ".." not in text


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
        table = read_json(index)["weight_map"]
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
