"""Find the model that a user names: a run directory, a folder or a published model, resolved once into a `Source`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bert_jax.config import CONFIG_FILES, BertConfig
from bert_jax.errors import UserError, quoted
from bert_jax.files import check_sum, expand_home, no_folder, read_object
from bert_jax.formats.hub import fetch
from bert_jax.formats.hub_files import PARTS, CachedFiles, cache_of, is_hub_id, published_as
from bert_jax.formats.sentence_transformers import model_folder
from bert_jax.formats.weights import has_weights

Kind = Literal["run", "hf", "google"]


@dataclass(frozen=True)
class Source:
    """A model on this machine whose config file has been read.

    Attributes:
        folder: its path, which str() of a source returns.
        kind: "run": a run directory of ours; "hf": a folder in Hugging Face's layout, with weights in any format;
            "google": a folder with a config file of Google's TensorFlow code and no config.json.
        fields: the content of the config file; {} without one (a folder may hold only a tokenizer).
        config_file: config.json, or Google's bert_config.json or albert_config.json; None without one.
    """

    folder: Path
    kind: Kind = "hf"
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    config_file: Path | None = None

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def is_run(self) -> bool:
        return self.kind == "run"

    @property
    def is_finetuning_run(self) -> bool:
        return self.is_run and "task" in self.fields

    @property
    def published(self) -> str | None:
        """ "ORG/NAME@COMMIT" for a model in the hub's cache; None for any other."""
        return published_as(self.folder)

    @cached_property
    def config(self) -> BertConfig:
        """The architecture; `dtype` and `remat` have their defaults.

        Raises:
            FileNotFoundError: the folder has no config file.
            UserError: the config is of an unknown kind of model, or a field is invalid.
        """
        if self.config_file is None:
            names = f"no {CONFIG_FILES[0]} (nor {', '.join(CONFIG_FILES[1:])})"
            raise FileNotFoundError(f"{self.folder}: contains {names}, so it is not a model")
        model = self.fields["model"] if self.is_run else self.fields
        if not isinstance(model, Mapping):  # from_json would take a text for a path
            raise UserError(f"{self.config_file}: model is {quoted(model)}; expected an object")
        try:
            return BertConfig.from_json(dict(model))
        except UserError as error:
            raise UserError(f"{self.config_file}{', model' if self.is_run else ''}: {error}") from None

    @property
    def name(self) -> str:
        """What to call it in messages: `published`, or else the folder."""
        return self.published or str(self)

    def with_weights(self) -> "Source":
        """Itself, once its weights are on this machine: downloads those of a published model, of the same commit, into
        the cache that has its config.
        """
        if self.published is not None and CachedFiles(self._file).missing(("weights",)):
            fetch(self.published, parts=("config", "weights"), cache_dir=cache_of(self.folder))
        return self

    def _file(self, name: str) -> Path | None:
        return self.folder / name if (self.folder / name).is_file() else None

    def best(self, step: int | None = None) -> "Source":
        """The `export/` (best model so far) of a fine-tuning run without `step`, if there is one; else itself."""
        exported = self.folder / "export"
        take = self.is_finetuning_run and step is None and (exported / CONFIG_FILES[0]).is_file()
        return open_folder(exported) if take else self


AnySource = str | os.PathLike[str] | Source
"""What functions that read a model accept: a user's string or path, or the result of `open_source`."""


def open_source(
    source: AnySource,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    parts: Iterable[str] = PARTS,
) -> Source:
    """Finds a model on this machine, or downloads a published model that is not in the cache.

    Args:
        source: a run directory, a folder, or a hub id ("google-bert/bert-base-uncased", or with "@REVISION" after it);
            a path that exists takes precedence over a hub id. A `Source` is returned unchanged.
        revision: branch, tag or commit of a published model.
        token: for a private or gated model; None: HF_TOKEN, or the token that `hf auth login` stored.
        parts: which parts of a published model are needed, out of "config", "weights", "tokenizer".

    Raises:
        FileNotFoundError: `source` does not exist, and neither the cache nor the hub (if it can be reached) has a
            model of that name.
        UserError: `source` is not a hub id, access is denied, the download is damaged, or the config file is not a
            JSON object.
    """
    if isinstance(source, Source):
        return source
    if not isinstance(source, str | os.PathLike) or not os.fspath(source):  # "" would be the current folder
        found = f"{type(source).__name__} ({source!r:.40})"
        raise UserError(f"a model is named by a run directory, a folder or a hub id; found {found}")
    if "://" in os.fspath(source):
        raise UserError(f"{source}: bert_jax cannot load from a bucket; copy the run or its export here first")
    path = expand_home(source)
    if not path.is_dir() and (path.exists() or not is_hub_id(source)):
        raise FileNotFoundError(f"{source}: {no_folder(path)}; expected a run directory, a folder or a hub id")
    if path.is_dir() and revision is None:
        return open_folder(path)
    return open_folder(fetch(os.fspath(source), revision=revision, token=token, parts=parts))


def open_folder(folder: str | os.PathLike[str]) -> Source:
    """The source of a folder on this machine, as `open_source` finds it.

    Raises FileNotFoundError if there is no such folder, and UserError if its config file is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: {no_folder(folder)}")
    file = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if file is None:
        inner = model_folder(folder)
        return Source(folder) if inner is None else open_folder(inner)
    fields = read_object(file)
    if file.name != CONFIG_FILES[0]:
        return Source(folder, "google", fields, file)
    is_run = "model" in fields and "model_type" not in fields and not has_weights(folder)
    if is_run:
        check_sum(fields, file)
    return Source(folder, "run" if is_run else "hf", fields, file)
