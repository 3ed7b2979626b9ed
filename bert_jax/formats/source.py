"""Which model a user means: a run directory, a folder or a published model, told apart once and passed on."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bert_jax.config import CONFIG_FILES, BertConfig
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.hub import fetch
from bert_jax.formats.hub_files import PARTS, is_hub_id, published_as
from bert_jax.formats.weights import has_weights

Kind = Literal["run", "hf", "google"]


@dataclass(frozen=True)
class Source:
    """A model on this machine, whose config file has been read.

    Attributes:
        folder: where it is; str() of a source is this path.
        kind: "run": a run directory of ours; "hf": a folder in Hugging Face's layout, with weights in any format;
            "google": one that has a config file of Google's TensorFlow code and no config.json.
        fields: what the config file holds, {} where there is none (in a folder with a tokenizer alone).
        config_file: config.json, or Google's bert_config.json or albert_config.json.
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
        """ "ORG/NAME@COMMIT" of a model in the hub's cache, None of any other."""
        return published_as(self.folder)

    @cached_property
    def config(self) -> BertConfig:
        """The architecture; `dtype` and `remat` have their defaults.

        Raises:
            FileNotFoundError: there is no config file.
            UserError: it is not that of a model that is known.
        """
        if self.config_file is None:
            names = f"no {CONFIG_FILES[0]} (nor {', '.join(CONFIG_FILES[1:])})"
            raise FileNotFoundError(f"{self.folder}: holds {names}, so it is no model")
        try:
            return BertConfig.from_json(self.fields["model"] if self.is_run else dict(self.fields))
        except UserError as error:
            raise UserError(f"{self.config_file}{', model' if self.is_run else ''}: {error}") from None

    def best(self, step: int | None = None) -> "Source":
        """Of a fine-tuning run its `export/`, the best model so far, unless a checkpoint is asked for; else itself."""
        exported = self.folder / "export"
        take = self.is_finetuning_run and step is None and (exported / CONFIG_FILES[0]).is_file()
        return open_folder(exported) if take else self


AnySource = str | os.PathLike[str] | Source
"""What the functions take that read a model: what a user says, or what `open_source` made of it."""


def open_source(
    source: AnySource,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    parts: Iterable[str] = PARTS,
) -> Source:
    """Find a model on this machine, or download a published one that is not in the cache.

    Args:
        source: a run directory, a folder, or a hub id ("google-bert/bert-base-uncased", with "@REVISION" if need be);
            what is on disk goes before. One that is open already is returned as it is.
        revision: of a published model: branch, tag or commit.
        token: for a private or gated one; None: HF_TOKEN, or what `hf auth login` stored.
        parts: what is needed of a published model, of "config", "weights", "tokenizer".

    Raises:
        FileNotFoundError: there is nothing at `source`, and no published model of that name, in the cache or where it
            can be reached.
        UserError: no hub id, no access, a damaged download; a config file that is no JSON object.
    """
    if isinstance(source, Source):
        return source
    if "://" in os.fspath(source):
        raise UserError(f"{source}: loading from a bucket is not supported; copy the run or its export here first")
    path = Path(source).expanduser()
    if not path.is_dir() and (path.exists() or not is_hub_id(source)):
        raise FileNotFoundError(f"{source}: no such folder (expected a run directory, a folder or a hub id)")
    if path.is_dir() and revision is None:
        return open_folder(path)
    return open_folder(fetch(os.fspath(source), revision=revision, token=token, parts=parts))


def open_folder(folder: str | os.PathLike[str]) -> Source:
    """As `open_source`, of a folder on this machine."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    file = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if file is None:
        return Source(folder)
    fields = read_object(file)
    if file.name != CONFIG_FILES[0]:
        return Source(folder, "google", fields, file)
    is_run = "model" in fields and "model_type" not in fields and not has_weights(folder)
    return Source(folder, "run" if is_run else "hf", fields, file)
