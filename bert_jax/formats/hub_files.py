"""Hub ids, and which files of a published model a load needs; nothing here uses the network."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from bert_jax.data.tokenizer.families import SETTINGS_FILES
from bert_jax.errors import UserError
from bert_jax.formats.sentence_transformers import FIELDS, MODULES, POOLING, SETTINGS
from bert_jax.formats.weights import WEIGHTS, shards_of

DEFAULT_REVISION = "main"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?:{_PART}/)?{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][\w./+-]*")
_SNAPSHOT = re.compile(r"models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")

# Models that were published without an organisation and have one since 2024. The hub redirects the old names; a cache
# does not.
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
    """A published model: its full name, and a branch, tag or commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a cache may have for the model, the current one first."""
        return (self.repo, _OLD_NAME[self.repo]) if self.repo in _OLD_NAME else (self.repo,)

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def is_hub_id(text: str | os.PathLike[str]) -> bool:
    """Whether `text` has the form NAME, ORG/NAME or either with @REVISION; a relative path may have that form too."""
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
    """Parses a hub id, and replaces an old name by the current one.

    Args:
        text: "google-bert/bert-base-uncased", "bert-base-uncased", "org/name@revision".
        revision: branch, tag or commit; None: the one in `text`, else "main".

    Raises:
        UserError: `text` is not a hub id, the revision is invalid, or `text` and `revision` name different ones.
    """
    if not is_hub_id(text):
        raise UserError(f"{text!r} is neither a folder nor a hub id (expected NAME, ORG/NAME or ORG/NAME@REVISION)")
    repo, _, inside = text.partition("@")
    if revision is not None and inside and revision != inside:
        raise UserError(f"{text!r} names the revision {inside!r}, but revision={revision!r}: give only one of them")
    wanted = revision or inside or DEFAULT_REVISION
    if not _is_revision(wanted):
        raise UserError(f"revision {wanted!r} of {repo}: expected a branch, a tag or a commit")
    return HubId(_FULL_NAME.get(repo, repo), wanted)


def published_as(folder: str | os.PathLike[str]) -> str | None:
    """ "ORG/NAME@COMMIT" for a folder in the hub's cache, to record where a model came from; None for any other."""
    found = _SNAPSHOT.search(Path(folder).absolute().as_posix())
    return f"{found['repo'].replace('--', '/')}@{found['commit']}" if found else None


def cache_of(folder: str | os.PathLike[str]) -> Path | None:
    """The cache that has this folder; None for a folder that `published_as` does not know."""
    above = Path(folder).absolute().parents
    return next((path.parent for path in above if path.name.startswith("models--")), None)


def _is_revision(text: str) -> bool:
    return len(text) <= 200 and _REVISION.fullmatch(text) is not None and ".." not in text


CONFIG = "config.json"

_VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("sentencepiece.bpe.model",),
    ("spiece.model",),
)
# Settings come before the vocabulary, so that an interrupted download is noticed by its missing vocabulary.
TOKENIZER = (*SETTINGS_FILES, *(name for names in _VOCABULARIES for name in names))

# modules.json comes last: where it is cached, a load looks for the others and does not ask the hub for them.
VECTORS = (*SETTINGS, FIELDS, POOLING, MODULES)
"""The files of sentence-transformers that `vectors_of` reads; they are fetched with the weights if there are any."""

LEAST_TOKENIZER = ("tokenizer.json", "vocab.txt")
"""If the cache records that a model has neither file, the model counts as one without a tokenizer."""

PARTS = ("config", "weights", "tokenizer")


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether these files are enough for a tokenizer."""
    there = set(names)
    return any(there.issuperset(vocabulary) for vocabulary in _VOCABULARIES)


def wanted_files(listed: Iterable[str], parts: Iterable[str], source: str, get: Callable[[str], Path]) -> list[str]:
    """The files to download, in order: config.json is last, because its presence means that the copy is complete.

    Args:
        listed: the names of all files of the published model.
        parts: some of `PARTS`.
        source: the model, for messages.
        get: downloads a file and returns its path; called for the index of sharded weights.

    Raises:
        UserError: the model has no config.json, or no weights in a format that bert_jax reads; or `parts` is only the
            tokenizer and the model has none.
    """
    there, parts = set(listed), set(parts)
    if CONFIG not in there and parts != {"tokenizer"}:
        raise UserError(f"{source}: has no {CONFIG}, so it is not a model that can be loaded")
    files = []
    if "tokenizer" in parts:
        files += [name for name in TOKENIZER if name in there]
        if parts == {"tokenizer"} and not has_vocabulary(there):
            raise UserError(f"{source}: has no tokenizer (none of {', '.join(' + '.join(v) for v in _VOCABULARIES)})")
    if "weights" in parts:
        main = next((name for name in WEIGHTS if name in there), None)
        if main is None:
            others = sorted(name for name in there if Path(name).suffix in _OTHER_WEIGHTS)
            found = ", ".join(others[:4]) or "no weights at all"
            raise UserError(f"{source}: expected weights in one of {', '.join(WEIGHTS[::2])}; found {found}")
        files += [*(name for name in VECTORS if name in there), main]
        if main.endswith(".index.json"):
            shards = shards_of(get(main))
            if lost := [shard for shard in shards if shard not in there]:
                raise UserError(f"{source}: {main} names {lost[0]}, which the model does not have")
            files += shards
    return files + [CONFIG] * (CONFIG in there)


_OTHER_WEIGHTS = {".h5", ".ot", ".onnx", ".bin", ".safetensors", ".msgpack", ".ckpt", ".gguf", ".index"}

# By folder; those of the graphs are optimum's.
_WEIGHTS_IN = {"": _OTHER_WEIGHTS, "onnx": {".onnx", ".onnx_data"}, "openvino": {".xml", ".bin"}}


def is_read_by_a_load(name: str) -> bool:
    """Whether some library that loads a published model reads the file of this name: config, weights, tokenizer."""
    folder, suffix = name.rpartition("/")[0], Path(name).suffix
    return suffix in _WEIGHTS_IN.get(folder, ()) or name in (CONFIG, *WEIGHTS, *TOKENIZER, *VECTORS)


class CachedFiles:
    """The files that a cache has of one commit of a model, and those that it lacks.

    Args:
        find: returns the cached copy of a file; None if it is not cached; False if the cache records that the model
            has no such file.
    """

    def __init__(self, find: Callable[[str], Path | Literal[False] | None]):
        self._find = find

    def path(self, name: str) -> Path | None:
        """The cached copy of a file; None if there is none."""
        return self._find(name) or None

    def missing(self, parts: Iterable[str]) -> list[str]:
        """The files that `parts` need and the cache lacks; empty if the copy is complete.

        If several formats of weights are cached, the one preferred by `WEIGHTS` counts, complete or not, because that
        is the one that a load reads.
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
        """Settings that the model may have for all that the cache records: of its tokenizer, and of its vectors."""
        parts = set(parts)
        asked = SETTINGS_FILES[:1] if "tokenizer" in parts else ()
        if "weights" in parts:
            # transformers fills a cache without asking for modules.json, which says how texts become vectors.
            asked += (FIELDS,) if self.path(MODULES) else (MODULES,)
        return [name for name in asked if self._find(name) is None]
