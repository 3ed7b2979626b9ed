"""Names of published models: what counts as a hub id, its revision, and the old names of models that have moved."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import UserError

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
