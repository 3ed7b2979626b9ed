"""Which files a task is read from: its own names in a folder, or those that the command line gives."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.labels import split
from bert_jax.errors import UserError
from train.finetune_recipe import FinetuneConfig
from train.task_data import find_file, given_file, share_of


class FileNames(NamedTuple):
    """What a task's files are called, without suffix, in the order in which they are looked for.

    `more`: what is learnt from besides the first of `train`, where it is there.
    """

    train: tuple[str, ...] = ("train",)
    dev: tuple[tuple[str, ...], ...] = (("dev", "validation", "val"),)
    test: tuple[tuple[str, ...], ...] = (("test",),)
    more: tuple[str, ...] = ()


class TaskFiles(NamedTuple):
    """Paths by role; `dev` and `test` with the name that their figures are called by; `more` as in `FileNames`."""

    train: Path
    dev: tuple[tuple[str, Path], ...]
    test: tuple[tuple[str, Path], ...]
    more: tuple[Path, ...] = ()


def task_files(config: FinetuneConfig, names: FileNames) -> TaskFiles:
    """The files of a run: train=, dev=, test= before what is in data=.

    Raises:
        UserError: there is nothing to learn from, or nothing to evaluate on.
    """

    def looked_for(field: str, groups: Sequence[Sequence[str]]) -> tuple[tuple[str, Path], ...]:
        value = getattr(config, field)
        if value is not None:
            return () if share_of(value) is not None else ((field, given_file(field, value)),)
        if config.data is None:
            return ()
        found = ((group[0], find_file(config.data, group)) for group in groups)
        return tuple((name if len(groups) > 1 else field, path) for name, path in found if path is not None)

    train = looked_for("train", [names.train])
    if not train:
        where = f"{config.data} holds no {names.train[0]}.tsv (.csv, .jsonl ...)" if config.data else "not given"
        raise UserError(f"train: {where}; say train=FILE, or data=DIR of a folder that has it")
    dev = looked_for("dev", names.dev)
    if not dev and share_of(config.dev) is None:
        where = f"{config.data} holds no {names.dev[0][0]} file" if config.data else "not given"
        raise UserError(f"dev: {where}; say dev=FILE, or dev=0.1 to hold out a tenth of train")
    beside_it = [find_file(config.data, [name]) for name in names.more] if config.data and config.train is None else []
    more = tuple(path for path in beside_it if path is not None and path != train[0][1])
    return TaskFiles(train[0][1], dev, looked_for("test", names.test), more)


def beside(data: str | None, folder: str, names: Sequence[str]) -> Path | None:
    """A file that data= holds, or a folder called `folder` next to it; None if neither does or there is no data=."""
    if data is None:
        return None
    if own := find_file(data, names):
        return own
    neighbour = os.path.normpath(os.path.join(data, os.pardir, folder))  # of a symbolic link: beside the link
    return find_file(neighbour, names) if os.path.isdir(neighbour) else None


def with_held_out(
    config: FinetuneConfig, train: list[Any], group_of: Callable[[Any], object], *, rare_together: bool = False
) -> tuple[list[Any], list[Any]]:
    """train without what `dev=SHARE` holds out of it, and that; all of it and nothing where dev is no share.

    Args:
        config: of the run.
        train: examples.
        group_of: an example's class: of each the same share is held out, and never all of it.
        rare_together: classes of which the share is less than one example count as one: numbers, of which no two may be
            the same, and sets of labels.
    """
    share = share_of(config.dev)
    if share is None:
        return train, []
    groups = [group_of(example) for example in train]
    if rare_together:
        counts = Counter(groups)
        groups = [group if share * counts[group] >= 1 else "rare" for group in groups]
    kept, held = split(groups, share, config.split_seed)
    return [train[number] for number in kept], [train[number] for number in held]
