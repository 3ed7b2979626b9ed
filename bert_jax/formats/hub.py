"""Published models: a hub id -> a local folder with every file that a load needs; and the upload of such a folder.

This is the only file that imports `huggingface_hub`. Cached files are used without a request to the hub: a branch stays
at the commit that was downloaded first, until `hf download ORG/NAME` moves it. Every downloaded file is checked against
the size and hash that the hub lists.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bert_jax.data.tokenizer.families import SETTINGS_FILES
from bert_jax.errors import UserError, quoted
from bert_jax.files import expand_home, file_digest, near_path
from bert_jax.formats.hub_files import (
    DEFAULT_REVISION,
    LEAST_TOKENIZER,
    PARTS,
    CachedFiles,
    HubId,
    has_vocabulary,
    is_read_by_a_load,
    parse_hub_id,
    wanted_files,
)
from bert_jax.formats.sentence_transformers import FIELDS, MODULES

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

    from bert_jax.formats.training_record import Evaluation

logger = logging.getLogger(__name__)


def fetch(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    offline: bool = False,
    parts: Iterable[str] = PARTS,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
) -> Path:
    """The local folder of a published model, after a download of the files that the cache lacks.

    A complete copy that may lack only settings (of the tokenizer, of vectors) is used with a warning where the hub
    cannot be asked for them, or refuses.

    The folder holds config.json, the weights in one format (preferring safetensors, then PyTorch's, then Flax's; one
    file or shards) and all files of its tokenizer. It may hold more files that another program has downloaded.

    Args:
        repo_id: "google-bert/bert-base-uncased", an old name ("bert-base-uncased"), or either with "@REVISION". If a
            local folder has this name, it is returned.
        revision: branch, tag or commit; None: that in `repo_id`, else "main".
        token: for private and gated models; None: HF_TOKEN, or the token that `hf auth login` stored; False: none.
        offline: use only the cache; HF_HUB_OFFLINE=1 does the same.
        parts: which parts are needed, out of "config", "weights", "tokenizer"; config.json is always included.
        cache_dir: None: that of HF_HOME (`~/.cache/huggingface/hub`).
        endpoint: URL of the hub; None: HF_ENDPOINT, or https://huggingface.co.

    Returns:
        The folder. `published_as` gives its full name and commit.

    Raises:
        FileNotFoundError: the hub has no such model; or the cache lacks files (which the message names) and the hub
            cannot be reached.
        UserError: `repo_id` is not a hub id, the revision does not exist, access is denied, files are missing on the
            hub or damaged, or the disk is full.
    """
    local = expand_home(repo_id)
    if local.is_dir():
        if revision is not None:
            raise UserError(f"revision={revision!r}: {repo_id} is a local folder; only published models have revisions")
        return local
    if local.exists():
        raise UserError(f"{repo_id}: is a file; expected a folder or a hub id")
    source, parts = parse_hub_id(repo_id, revision), tuple(parts)
    from huggingface_hub import constants

    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    folder, missing, uncertain = _look_up(source, parts, cache)
    if folder and not missing and not uncertain:
        return folder
    if offline or constants.HF_HUB_OFFLINE:
        if folder is None or missing:
            why = "offline (offline=True)" if offline else "offline (HF_HUB_OFFLINE)"
            raise FileNotFoundError(f"{_nowhere(source, missing, cache)}, and bert_jax is {why}")
        logger.warning("%s: offline; the copy in %s may lack %s", source, cache, ", ".join(uncertain))
        return folder
    try:
        return _Hub(source, cache, endpoint or constants.ENDPOINT, token).download(parts)
    except (_Unreachable, _Refused, _Unknown) as error:
        if folder and not missing:
            told = f"{source}: {error}" if isinstance(error, _Unreachable) else error
            logger.warning("%s; the cached copy may lack %s", told, ", ".join(uncertain))
            return folder
        if not isinstance(error, _Unreachable):
            raise
        _, missing, _ = _look_up(source, parts, cache)
        raise FileNotFoundError(f"{_nowhere(source, missing, cache)}, and {error}") from None


class _Unreachable(Exception):
    """The hub could not be reached, or answered with an error; the message says which."""


class _Refused(UserError):
    """The hub has the model and not for this token, or not in this revision."""


class _Unknown(FileNotFoundError):
    """The hub has no such model, or none for this token."""


def _look_up(source: HubId, parts: tuple[str, ...], cache: Path) -> tuple[Path | None, list[str], list[str]]:
    """The most complete folder that the cache has under all names of the model, what it lacks, what it may lack."""
    best: tuple[Path | None, list[str], list[str]] = (None, [], [])
    for name in source.names:
        files = CachedFiles(lambda file, name=name: _cached(name, file, source.revision, cache))
        folder = next((path.parent for file in _ANCHORS if (path := files.path(file))), None)
        if folder is not None:
            missing = files.missing(parts)
            if best[0] is None or len(missing) < len(best[1]):
                best = (folder, missing, files.uncertain(parts))
    return best


_ANCHORS = ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt")


def _cached(repo: str, file: str, revision: str, cache: Path) -> Path | Literal[False] | None:
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    if _unchecked(repo, file, cache).exists():
        return None
    try:
        found = try_to_load_from_cache(repo, file, cache_dir=cache, revision=revision)
    except (ValueError, OSError) as error:
        raise UserError(f"{cache}: its entry of {repo} is damaged ({quoted(str(error))}); delete it") from None
    return Path(found) if isinstance(found, str) else (False if found is _CACHED_NO_EXIST else None)


def _unchecked(repo: str, file: str, cache: Path) -> Path:
    """A mark that is there until a download of this file was checked, for the client shows it in the cache before that.

    A kill between the two would leave a file that nothing checks.
    """
    return cache / f"models--{repo.replace('/', '--')}" / ".unchecked" / file.replace("/", "--")


def _nowhere(source: HubId, missing: list[str], cache: Path) -> str:
    if missing:
        return f"{source}: the copy in {cache} lacks {', '.join(missing[:4])}"
    return f"{source}: no such local folder{near_path(source.repo)}, and no complete copy in {cache}"


class _Hub:
    """Downloads one model from one hub."""

    def __init__(self, source: HubId, cache: Path, endpoint: str, token: str | bool | None):
        self.source, self.cache, self.endpoint, self.token = source, cache, endpoint, token
        self.shown = _without_password(endpoint)

    def download(self, parts: tuple[str, ...]) -> Path:
        """Downloads the files that `parts` need and the cache lacks, at the commit that the revision is at now."""
        commit, listed = self._listing()

        def get(name: str) -> Path:
            return self._get(name, commit, listed[name])

        wanted = wanted_files(listed, parts, str(self.source), get)
        self._check_space(commit, [listed[name] for name in wanted])
        for name in wanted:
            get(name)
        known: tuple[str, ...] = ()
        if "weights" in parts:
            known += (FIELDS,) if MODULES in listed else (MODULES,)
        if "tokenizer" in parts:
            known += (*SETTINGS_FILES[:1], *(() if has_vocabulary(listed) else LEAST_TOKENIZER))
        self._note_absent([name for name in known if name not in listed], commit)
        # Only this download updates the branch in the cache, so the branch always points to a complete commit.
        path = self._download_file(wanted[-1], self.source.revision)
        if path.parent.name != commit:
            raise UserError(f"{self.source}: the hub's copy changed during the download; run the same command again")
        return path.parent

    def _listing(self) -> "tuple[str, dict[str, RepoSibling]]":
        """The commit and all its files, found with one request instead of one per possible name."""
        from huggingface_hub import HfApi, constants

        api = HfApi(endpoint=self.endpoint, token=self.token)
        with self._explained():
            try:
                info = api.model_info(
                    self.source.repo,
                    revision=self.source.revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_ETAG_TIMEOUT,
                )
            except (ValueError, TypeError, KeyError):
                raise UserError(f"{self.shown}: its answer is not that of a Hugging Face hub") from None
        if not info.sha:
            raise UserError(f"{self.shown}: gives no commit for {self.source}, so it is not a Hugging Face hub")
        return info.sha, {file.rfilename: file for file in info.siblings or ()}

    def _get(self, name: str, commit: str, file: "RepoSibling") -> Path:
        """The path of a commit's file, from the cache or downloaded and checked."""
        if cached := _cached(self.source.repo, name, commit, self.cache):
            return cached
        mark = _unchecked(self.source.repo, name, self.cache)
        with self._explained(name):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        path = self._download_file(name, commit)
        if problem := _damage(path, file):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise UserError(f"{self.source}: the download of {name} is damaged ({problem}); run the same command again")
        mark.unlink(missing_ok=True)
        return path

    def _download_file(self, name: str, revision: str) -> Path:
        from huggingface_hub import hf_hub_download

        options: dict[str, Any] = {"cache_dir": self.cache, "endpoint": self.endpoint, "token": self.token}
        with self._explained(name):
            return Path(hf_hub_download(self.source.repo, name, revision=revision, **options))

    def _note_absent(self, names: list[str], commit: str) -> None:
        """Makes the cache record that the model lacks these files: the client does so when a request for one fails."""
        for name in names:
            if _cached(self.source.repo, name, commit, self.cache) is None:
                with suppress(UserError, FileNotFoundError, _Unreachable):
                    self._download_file(name, commit)

    def _check_space(self, commit: str, files: "list[RepoSibling]") -> None:
        new = [file for file in files if not _cached(self.source.repo, file.rfilename, commit, self.cache)]
        needed = sum(file.size or 0 for file in new)
        there = next(folder for folder in (self.cache, *self.cache.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise UserError(
                f"{self.source}: needs {needed / 1e6:,.0f} MB, and {self.cache} has {free / 1e6:,.0f} MB free; free "
                "some space, or set HF_HOME to another folder"
            )

    @contextmanager
    def _explained(self, file: str | None = None) -> Generator[None]:
        """Turns the client's exceptions into one-line errors."""
        from huggingface_hub import errors

        # The exception of the client's HTTP library, which is httpx or its successor, depending on the release.
        from huggingface_hub.errors import HTTPError

        repo, asked = self.source.repo, f" for {file}" if file else ""
        try:
            yield
        except errors.GatedRepoError:
            page = f"{self.shown}/{repo}"
            raise _Refused(
                f"{self.source}: is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise _Unknown(
                f"{self.source}: no such local folder{near_path(repo)}, and {self.shown} has no such model; if the "
                "model is private, set HF_TOKEN to a token that may read it"
            ) from None
        except errors.RevisionNotFoundError:
            raise _Refused(f"{repo}: has no revision {self.source.revision!r} at {self.shown}") from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise _Refused(
                    f"{self.source}: {self.shown} refuses access (HTTP {status}{asked}); set HF_TOKEN to a token "
                    "that may read it"
                ) from None
            raise _Unreachable(f"{self.shown} answered HTTP {status}{asked}: try again later") from None
        except (HTTPError, errors.LocalEntryNotFoundError, RuntimeError) as error:
            cause = error.__cause__ or error
            line = _without_password(" ".join(str(cause).split()))[:200]
            raise _Unreachable(f"{self.shown} cannot be reached{asked} ({type(cause).__name__}: {line})") from None
        except OSError as error:
            raise UserError(f"{self.source}: the download stopped{asked}: {_told(error, self.cache)}") from None


def _told(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left in {cache}: free some space, or set HF_HOME to another folder"
    if error.errno is None:  # the client raises this when a file's size differs from the announced one
        return f"{' '.join(str(error).split('.')[0].split())}; run the same command again"
    return f"{error.filename or cache}: {error.strerror}"


def _damage(path: Path, file: "RepoSibling") -> str | None:
    """How a download differs from the size and hash that the hub lists for it; None if it does not differ."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size:,} bytes, expected {file.size:,}"
    if file.lfs is not None:
        expected, found = file.lfs.sha256, file_digest(path)[0]
    elif file.blob_id is not None:
        expected, found = file.blob_id, file_digest(path, hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False))[0]
    else:
        return None
    return None if found == expected else f"hash {found[:12]}, expected {expected[:12]}"


def _without_password(text: str) -> str:
    """The text without the user and password of the addresses in it, as HF_ENDPOINT may have them (http://U:P@HOST)."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)


class Pushed(NamedTuple):
    """What an upload did: the model's full name and branch, the new commit and its page, whether the repository is new,
    and the files of the former model that it deleted.
    """

    repo: str
    branch: str
    commit: str
    url: str
    created: bool
    deleted: tuple[str, ...]


def upload(
    files: Mapping[str, Path],
    repo_id: str,
    *,
    message: str,
    private: bool = False,
    overwrite: bool = False,
) -> Pushed:
    """Uploads a model in one commit, to a new repository if there is none, and compares it with `files`.

    The token is HF_TOKEN, or the one that `hf auth login` stored; the hub is that of HF_ENDPOINT.

    Args:
        files: name in the repository -> the file on this machine.
        repo_id: "ORG/NAME", or "ORG/NAME@BRANCH"; a branch that does not exist is created from main, whose model it
            does not keep.
        message: of the commit.
        private: create the repository as a private one.
        overwrite: replace the model of a repository that has files already. Those of its files that a load would read
            and that `files` lacks are deleted; all others stay. The hub keeps the earlier commits.

    Raises:
        UserError: there is no token, the hub refuses it or cannot be reached, the repository has files and `overwrite`
            is false, it is public and `private` is true, or what the hub lists afterwards differs from `files`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
    from huggingface_hub.errors import HTTPError

    target, token, shown = parse_hub_id(repo_id), get_token(), _without_password(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{target}: cannot be pushed offline; unset HF_HUB_OFFLINE")
    if token is None:
        raise UserError(f"no token for {shown}: run `hf auth login`, or set HF_TOKEN to a token that may write")
    api = HfApi(endpoint=constants.ENDPOINT, token=token)
    with _push_explained(target, shown):
        info, has_branch = _found(api, target, private)
        there = [file.rfilename for file in info.siblings or ()] if info else []
        there = [name for name in there if name != ".gitattributes"]
        if there and has_branch and not overwrite:
            raise UserError(
                f"{target}: already has {len(there)} files ({', '.join(there[:3])}{' ...' if len(there) > 3 else ''}); "
                "overwrite=True replaces the model in a new commit, or choose another name"
            )
        created = info is None
        if info is None:
            api.create_repo(target.repo, private=private or None, exist_ok=True)
            info = api.model_info(target.repo)
        if not has_branch and target.revision != DEFAULT_REVISION:
            api.create_branch(target.repo, branch=target.revision, revision=info.sha)
        stale = tuple(name for name in there if name not in files and is_read_by_a_load(name))
        commit = api.create_commit(
            target.repo,
            [
                *(CommitOperationAdd(name, path) for name, path in files.items()),
                *(CommitOperationDelete(name) for name in stale),
            ],
            commit_message=message,
            revision=target.revision,
            parent_commit=info.sha,
        )
    try:
        listed = api.model_info(target.repo, revision=commit.oid, files_metadata=True).siblings or ()
    except (HTTPError, RuntimeError, OSError) as error:
        line = _without_password(" ".join(str(error).split()))[:200]
        raise UserError(
            f"{target}: the files were written (commit {commit.oid}), but {shown} did not list them, so they were "
            f"not compared ({type(error).__name__}: {line}); look at {shown}/{target.repo}"
        ) from None
    found = {file.rfilename: file for file in listed}
    for name, path in files.items():
        problem = _damage(path, found[name]) if name in found else "it is missing"
        if problem:
            advice = "push again with overwrite=True"
            raise UserError(f"{target}: {name} on the hub differs from {path} ({problem}); {advice}")
    return Pushed(target.repo, target.revision, commit.oid, f"{shown}/{target.repo}", created, stale)


def _found(api: "HfApi", target: HubId, private: bool) -> "tuple[ModelInfo | None, bool]":
    """The state of the branch to push to, or of main where there is none yet, and whether there is; None without a
    repository.
    """
    from huggingface_hub import errors

    try:
        main = api.model_info(target.repo)
    except errors.RepositoryNotFoundError:
        return None, False
    if private and not main.private:
        advice = "make it private in its settings, or drop private=True"
        raise UserError(f"{target.repo}: exists and is public; {advice}")
    try:
        return api.model_info(target.repo, revision=target.revision), True
    except errors.RevisionNotFoundError:
        return main, False


@contextmanager
def _push_explained(target: HubId, shown: str) -> Generator[None]:
    """Turns the client's exceptions during an upload into one-line errors."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except UserError:
        raise
    except errors.HfHubHTTPError as error:
        status, said = error.response.status_code, error.server_message or ""
        if status in (401, 403):
            raise UserError(
                f"{target}: {shown} refuses the token (HTTP {status}): it needs write access to "
                f"{target.repo.split('/')[0]}; make one at {shown}/settings/tokens, then `hf auth login`"
            ) from None
        if status in (409, 412):
            raise UserError(f"{target}: changed during the push (HTTP {status}); push again") from None
        raise UserError(f"{target}: {shown} answered HTTP {status} {' '.join(said.split())[:200]}".rstrip()) from None
    except ValueError as error:  # the hub's opinion of the card's metadata
        raise UserError(f"{target}: {shown}: {_without_password(' '.join(str(error).split()))[:300]}") from None
    except (HTTPError, RuntimeError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(error, OSError) and error.filename:
            raise UserError(f"{error.filename}: {error.strerror}; no file on {shown} was changed") from None
        line = _without_password(" ".join(str(cause).split()))[:200]
        raise UserError(f"{shown} cannot be reached ({type(cause).__name__}: {line}); no file was changed") from None


def with_metadata(card: str, repo: str, *, license: str | None, evaluation: "Evaluation | None") -> str:
    """A model card with a licence and the scores in its metadata, where the hub's pages and search read them.

    Args:
        card: the text of README.md; other fields of its metadata stay.
        repo: "ORG/NAME"
        license: one of the hub's names, such as "apache-2.0"; None: as in `card`.
        evaluation: the scores on held-out text; None: as in `card`.

    Raises:
        UserError: the card's metadata cannot be read, so it could not be kept.
    """
    if license is None and evaluation is None:
        return card  # the client would write its metadata anew, without comments and what it does not understand
    from huggingface_hub import EvalResult, ModelCard

    try:
        found = ModelCard(card)
    except Exception as error:  # the client's own, and those of its reader of YAML
        why = " ".join(str(error).split()).partition(". Pass ")[0][:200]  # what follows is advice to programs
        raise UserError(f"README.md: its metadata cannot be read ({why}); mend it, or add the licence there") from None
    fields: Any = found.data
    if license is not None:
        fields.license = license
    if evaluation is not None:
        fields.model_name = repo.split("/")[1]
        fields.eval_results = [
            EvalResult(
                task_type=fields.get("pipeline_tag") or "fill-mask",
                dataset_type="held-out",
                dataset_name="text held out from the training data",
                metric_type=score.name,
                metric_name=score.label,
                metric_value=float(f"{score.value:.4g}"),
            )
            for score in evaluation.scores
        ]
    return str(found)
