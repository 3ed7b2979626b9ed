"""The verbs that start the programs in `train/`, which is part of the source and not of the installed package."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from bert_jax.errors import UserError

PROGRAMS = {
    "prepare": "turn raw text into training data: a vocabulary, token shards, examples",
    "pretrain": "pretrain a model from raw text or prepared data",
    "plan": "say what a run would take on TPUs or GPUs that you do not have",
    "scale": "say how the batches of recipes are split over 1 to 4,096 chips",
    "finetune": "fine-tune a model on a task, and score it",
    "demo": "train a small model on Python's documentation, in a few minutes",
    "compare": "put the curves and scores of several runs side by side",
    "supervise": "start a training command again when it was killed or hung",
    "doctor": "say what is wrong with a run, and what to do",
}
"""Verb -> its line in the help. The verb NAME is `main(argv) -> int` of train/NAME.py."""


def checkout() -> Path | None:
    """The folder with `train/` and `configs/`: that of this package, or the current one; None without one."""
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    return next((place for place in places if (place / "train/run/ending/stopping.py").is_file()), None)


def programs() -> dict[str, str]:
    """The rows of `PROGRAMS` that the checkout has; all of them without a checkout."""
    place = checkout()
    return {name: about for name, about in PROGRAMS.items() if place is None or (place / f"train/{name}.py").is_file()}


def start(name: str, argv: Sequence[str], called: str) -> int:
    """Runs a training program in this process.

    Args:
        name: a key of `PROGRAMS`.
        argv: its words.
        called: what the user typed for it, such as "bert-jax pretrain".

    Returns:
        Its exit code.

    Raises:
        UserError: there is no checkout, it lacks this program, or packages that training needs are not installed.
    """
    place = checkout()
    if place is None:
        raise UserError(
            "training needs the source, which pip does not install: clone or unpack it, then run this in its folder "
            "after pip install -e '.[train]'"
        )
    if not (place / f"train/{name}.py").is_file():
        raise UserError(f"{place} has no train/{name}.py; its version is older than this command's")
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
    try:
        import_module("train.run.ending.signals").end_at_signals()
        main = import_module(f"train.{name}").main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("train", "bert_jax"):
            raise
        raise UserError(f"training needs the package {error.name}: pip install -e '.[train]' in {place}") from None
    stopping = import_module("train.run.ending.stopping")
    stopping.set_up_logging()
    stopping.note_start()
    return stopping.exit_code(main, list(argv), called)
