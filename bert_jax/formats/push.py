"""What `python -m bert_jax push` uploads: the files of a model, and a card that holds its scores."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.formats.card import card_of_published, model_card
from bert_jax.formats.convert import convert
from bert_jax.formats.hub import with_metadata
from bert_jax.formats.hub_files import HubId, cache_of, parse_hub_id, published_as
from bert_jax.formats.load import load_arrays
from bert_jax.formats.new_folder import CARD, CARD_MARK, write_text
from bert_jax.formats.sentence_transformers import model_folder
from bert_jax.formats.source import AnySource, Source, open_source
from bert_jax.formats.training_record import last_evaluation


class Parcel(NamedTuple):
    """A model that is ready to be uploaded.

    Attributes:
        files: name in the repository -> the file on this machine.
        card: the text of its README.md.
        head: the head that the files are for.
        step: the training step; None if it is not recorded.
    """

    files: dict[str, Path]
    card: str
    head: str
    step: int | None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self.files.values())


@contextmanager
def packed(source: AnySource, repo: str, *, step: int | None = None, license: str | None = None) -> Generator[Parcel]:
    """Yields the files to upload. They are temporary: the export of a run, and the card of any model.

    A run is exported anew. Of a folder, every file is taken that is not hidden, after its weights have been read; its
    own README.md stays, apart from the licence. A symbolic link may lead only to another of these files, or from the
    hub's cache to the content that the cache keeps for it.

    Args:
        source: a run directory (of a fine-tuning run, its best model), or a folder that transformers loads.
        repo: "ORG/NAME" or "ORG/NAME@BRANCH", where the card says that the model is.
        step: of a run directory, the checkpoint to take; None: the newest, or of a fine-tuning run its best model.
        license: the hub's name of a licence, such as "apache-2.0", for the card's metadata.

    Raises:
        FileNotFoundError, UserError: as `convert`; `repo` has no organisation; `source` is in Google's form, or in
            that of sentence-transformers before version 0.3; or a symbolic link leads elsewhere.
    """
    target = _target(repo)
    name = target.repo.split("/")[1]
    opened = open_source(source)
    with TemporaryDirectory(prefix="bert_jax-push-") as scratch:
        if opened.is_run:
            folder, report, _ = convert(opened, Path(scratch) / name, step=step)
            files = _files(folder)
            card, evaluation = (folder / CARD).read_text(encoding="utf-8"), last_evaluation(opened.folder, report.step)
        else:
            if step is not None:
                raise UserError(f"step={step}: {source} is a folder, not a run directory, and has one model")
            folder, evaluation = _checked(opened).folder, None
            files = _files(folder)  # before README.md is read, which may be a link
            config, _, report = load_arrays(opened)
            report.check()
            own = folder / CARD
            known = {"converted from": opened.published} if opened.published else None
            card = _text_of(own) if own.is_file() else model_card(config, report.head, known, name=name)
        if CARD_MARK in card:
            card = _titled(card_of_published(card, target), folder.resolve().name, name)
        card = with_metadata(card, target.repo, license=license, evaluation=evaluation)
        write_text(Path(scratch) / CARD, card)
        yield Parcel(files | {CARD: Path(scratch) / CARD}, card, report.head, report.step)


def _text_of(card: Path) -> str:
    try:
        return card.read_bytes().decode()  # with its line ends
    except UnicodeDecodeError as error:
        raise UserError(f"{card}: not UTF-8 ({error.reason} at byte {error.start})") from None


def _target(repo: str) -> HubId:
    if "/" not in repo or Path(repo).is_absolute() or repo.startswith((".", "~")):
        raise UserError(
            f"{repo!r}: expected ORG/NAME (or ORG/NAME@BRANCH), where ORG is your user name or organisation"
        )
    return parse_hub_id(repo)


def _checked(source: Source) -> Source:
    if source.kind == "google":
        raise UserError(
            f"{source}: is in the form of Google's code, which transformers cannot load; "
            f"first: python -m bert_jax convert {source} DST"
        )
    folder = source.folder.resolve()
    if model_folder(folder.parent) == folder:
        raise UserError(
            f"{source}: is a layer of a sentence-transformers folder of before version 0.3, whose pooling would stay "
            f"behind; first: python -m bert_jax convert {source} DST"
        )
    return source


def _titled(card: str, folder: str, name: str) -> str:
    """A card of ours whose heading is the model's published name where it was that of a folder on this machine."""
    return re.sub(rf"^# {re.escape(folder)}$", lambda _: f"# {name}", card, count=1, flags=re.MULTILINE)


def _files(folder: Path) -> dict[str, Path]:
    """Name in the repository -> file. Raises UserError for a link to a file that the owner does not mean to publish."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name.as_posix(): path for name, path in found.items() if not _stays(name)}
    home = folder.resolve()
    blobs = _blobs_of(home)
    for path in files.values():
        target = path.resolve()
        inside = target.is_relative_to(home) and not _stays(target.relative_to(home))
        if not inside and target.parent != blobs:
            raise UserError(
                f"{path}: a symbolic link to {target}, which is not one of the folder's files to publish; put a copy "
                "in its place, or remove the link"
            )
    return files


def _stays(name: Path) -> bool:
    """Whether a file of this name in the folder is not uploaded."""
    return any(part.startswith(".") or part == "__pycache__" for part in name.parts)


def _blobs_of(folder: Path) -> Path | None:
    """Where the hub's cache keeps the content of a model's files, to which its folders have links; None elsewhere."""
    cache, published = cache_of(folder), published_as(folder)
    if cache is None or published is None:
        return None
    return cache / folder.relative_to(cache).parts[0] / "blobs"
