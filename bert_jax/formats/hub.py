"""Published models: a hub id -> a local folder with every file that a load needs, from the cache or the network.

The only file that imports `huggingface_hub`. What is cached is used without asking the network: a branch stays at the
commit that was downloaded first, until `hf download ORG/NAME` moves it. What is downloaded is checked against the size
and the hash that the hub has for it.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.errors import UserError
from bert_jax.files import file_digest
from bert_jax.formats.hub_files import (
    LEAST_TOKENIZER,
    PARTS,
    TOKENIZER_SETTINGS,
    CachedFiles,
    HubId,
    has_vocabulary,
    parse_hub_id,
    wanted_files,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

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
    """The local folder of a published model.

    The folder holds config.json, the weights in one format (safetensors before PyTorch's before Flax's, whole or in
    shards) and whatever files its tokenizer has; it may hold more, where something else has downloaded more.

    Args:
        repo_id: "google-bert/bert-base-uncased", an old name ("bert-base-uncased"), or either with "@REVISION". A
            local folder of that name goes before, and is returned as it is.
        revision: branch, tag or commit; None: what `repo_id` says, else "main".
        token: for private and gated models; None: HF_TOKEN or what `hf auth login` stored; False: none.
        offline: ask nobody; also on with HF_HUB_OFFLINE=1.
        parts: what is needed, of "config", "weights", "tokenizer"; config.json always comes along.
        cache_dir: None: HF_HOME's (`~/.cache/huggingface/hub`).
        endpoint: None: HF_ENDPOINT, or https://huggingface.co.

    Returns:
        The folder. `published_as` tells its full name and commit.

    Raises:
        FileNotFoundError: there is no such model; or not in the cache, and the hub cannot be asked. Names the files.
        UserError: no hub id, no such revision, no access, files that are missing there or damaged, a full disk.
    """
    local = Path(repo_id).expanduser()
    if local.is_dir():
        if revision is not None:
            raise UserError(f"revision={revision!r}: {repo_id} is a folder here; only published models have revisions")
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
            raise FileNotFoundError(f"{_nowhere(source, missing, cache)}, and this is {why}")
        logger.warning("%s: offline, and nothing in %s tells whether it has %s", source, cache, ", ".join(uncertain))
        return folder
    try:
        return _Hub(source, cache, endpoint or constants.ENDPOINT, token).download(parts)
    except _Unreachable as error:
        if folder and not missing:
            logger.warning("%s: %s; the cached copy may lack %s", source, error, ", ".join(uncertain))
            return folder
        _, missing, _ = _look_up(source, parts, cache)
        raise FileNotFoundError(f"{_nowhere(source, missing, cache)}, and {error}") from None


class _Unreachable(Exception):
    """The hub did not answer; the message says how."""


def _look_up(source: HubId, parts: tuple[str, ...], cache: Path) -> tuple[Path | None, list[str], list[str]]:
    """The cached folder of the name under which most of it is cached, what is missing there, and what is uncertain."""
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

    found = try_to_load_from_cache(repo, file, cache_dir=cache, revision=revision)
    return Path(found) if isinstance(found, str) else (False if found is _CACHED_NO_EXIST else None)


def _nowhere(source: HubId, missing: list[str], cache: Path) -> str:
    if missing:
        return f"{source}: the copy in {cache} lacks {', '.join(missing[:4])}"
    return f"{source}: no such folder here, no whole copy in {cache}"


class _Hub:
    """One model at one hub."""

    def __init__(self, source: HubId, cache: Path, endpoint: str, token: str | bool | None):
        self.source, self.cache, self.endpoint, self.token = source, cache, endpoint, token

    def download(self, parts: tuple[str, ...]) -> Path:
        """Everything that `parts` need and the cache lacks, of the commit that the revision is at now."""
        commit, listed = self._listing()

        def get(name: str) -> Path:
            return self._get(name, commit, listed[name])

        wanted = wanted_files(listed, parts, str(self.source), get)
        self._check_space(commit, [listed[name] for name in wanted])
        for name in wanted:
            get(name)
        if "tokenizer" in parts:
            known = (*TOKENIZER_SETTINGS[:1], *(() if has_vocabulary(listed) else LEAST_TOKENIZER))
            self._note_absent([name for name in known if name not in listed], commit)
        # Only now does the cache get to know where the branch is: what it points to is whole.
        path = self._download_file(wanted[-1], self.source.revision)
        if path.parent.name != commit:
            raise UserError(f"{self.source}: was changed while it was downloaded; run the same command again")
        return path.parent

    def _listing(self) -> "tuple[str, dict[str, RepoSibling]]":
        """The commit, and every file of it: asked for once, instead of trying names."""
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
                raise UserError(f"{self.endpoint}: does not answer as a Hugging Face hub does") from None
        if not info.sha:
            raise UserError(f"{self.endpoint}: names no commit of {self.source}, so it is no Hugging Face hub")
        return info.sha, {file.rfilename: file for file in info.siblings or ()}

    def _get(self, name: str, commit: str, file: "RepoSibling") -> Path:
        """A file of a commit, from the cache or downloaded and checked."""
        if cached := _cached(self.source.repo, name, commit, self.cache):
            return cached
        path = self._download_file(name, commit)
        if problem := _damage(path, file):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise UserError(f"{self.source}: {name} was damaged on its way ({problem}); run the same command again")
        return path

    def _download_file(self, name: str, revision: str) -> Path:
        from huggingface_hub import hf_hub_download

        options: dict[str, Any] = {"cache_dir": self.cache, "endpoint": self.endpoint, "token": self.token}
        with self._explained(name):
            return Path(hf_hub_download(self.source.repo, name, revision=revision, **options))

    def _note_absent(self, names: list[str], commit: str) -> None:
        """Has the cache keep that the model has no such files: the client does, when it has asked for one in vain."""
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
                f"{self.source}: needs {needed / 1e6:,.0f} MB, and {self.cache} has {free / 1e6:,.0f} MB left; make "
                "room, or name another place with HF_HOME"
            )

    @contextmanager
    def _explained(self, file: str | None = None) -> Iterator[None]:
        """The client's exceptions as one line each."""
        from huggingface_hub import errors

        # Of the HTTP library that the client is built on, httpx or its successor, by release.
        from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

        repo, asked = self.source.repo, f" for {file}" if file else ""
        try:
            yield
        except errors.GatedRepoError:
            page = f"{self.endpoint}/{repo}"
            raise UserError(
                f"{self.source}: is gated: agree to its terms at {page}, and set HF_TOKEN to a token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise FileNotFoundError(
                f"{self.source}: no such folder here, and {self.endpoint} has no such model; if it is a private one, "
                "set HF_TOKEN to a token that may read it"
            ) from None
        except errors.RevisionNotFoundError:
            raise UserError(f"{repo}: has no revision {self.source.revision!r} at {self.endpoint}") from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise UserError(
                    f"{self.source}: {self.endpoint} refuses access (HTTP {status}{asked}); set HF_TOKEN to a token "
                    "that may read it"
                ) from None
            raise _Unreachable(f"{self.endpoint} answered HTTP {status}{asked}: try again later") from None
        except (HTTPError, errors.LocalEntryNotFoundError, RuntimeError) as error:
            cause = error.__cause__ or error
            line = " ".join(str(cause).split())[:200]
            raise _Unreachable(f"{self.endpoint} cannot be reached{asked} ({type(cause).__name__}: {line})") from None
        except OSError as error:
            raise UserError(f"{self.source}: {_told(error, self.cache)}{asked}") from None


def _told(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left in {cache}: make room, or name another place with HF_HOME; stopped"
    if error.errno is None:  # the client's own: a file came with another size than was announced
        return f"{' '.join(str(error).split('.')[0].split())}: run the same command again; stopped"
    return f"{error.filename or cache}: {error.strerror}; stopped"


def _damage(path: Path, file: "RepoSibling") -> str | None:
    """In which way a download is not what the hub has; None: it is, as far as the hub tells."""
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
