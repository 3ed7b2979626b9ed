"""Probes a run while it trains: logistic regression on frozen vectors of a classification task (arXiv:1610.01644)."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tasks.labelled_text import LabelledText, find_labels, label_ids
from bert_jax.data.tasks.published import GLUE, find_split, read_glue
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.linear_probe import fit_probe
from bert_jax.evaluation.score import glue_scores
from bert_jax.files import no_folder
from bert_jax.formats.load import Loaded
from bert_jax.formats.read import Report
from bert_jax.inference.runtimes.choice import XLA
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.task_model import EncodedItems
from bert_jax.runtime.hosts import on_first_process
from train.pretraining.recipe import PretrainConfig


class ProbeTask(NamedTuple):
    """A task's name in `GLUE`, and its examples with classes."""

    name: str
    train: list[LabelledText]
    dev: list[LabelledText]


def files_of_task(text: str) -> tuple[str, Path, Path]:
    """The name of the task that a field TASK:FOLDER of a config names, its training and its (first) dev file.

    Raises:
        FileNotFoundError: they are not there.
    """
    name, _, folder = text.partition(":")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder}: {no_folder(folder)}")
    train, dev = (find_split(Path(folder), split) for split in ("train", GLUE[name].dev[0]))
    return name, train, dev


def read_probe(config: PretrainConfig) -> ProbeTask | None:
    """The task that `probe=` names, with the first `probe_examples` of its training file; None without it.

    Raises:
        FileNotFoundError, UserError: it is not there, is damaged, or has no classes.
    """
    if config.probe is None:
        return None
    name, train_file, dev_file = files_of_task(config.probe)
    train = list(islice(read_glue(name, train_file), config.probe_examples))
    dev = list(read_glue(name, dev_file))
    if not dev:
        raise UserError(f"{dev_file}: has no examples; expected those of {name}")
    try:
        find_labels(train)
    except UserError as error:
        raise UserError(f"{train_file}: {error}") from None
    return ProbeTask(name, train, dev)


class Probe:
    """A task and a model to take vectors of, in float32 on the devices of the first process.

    A vector is the mean of the last layer's states over a text's tokens. Compiled programs serve all evaluations of a
    run.

    Args:
        task: what `read_probe` returned.
        config: the model's.
        tokenizer: of the training data.
    """

    def __init__(self, task: ProbeTask, config: BertConfig, tokenizer: Tokenizer):
        self._task, self._tokenizer = task, tokenizer
        # A score does not depend on the machine, nor on the lengths of its rows, which a run's own kernel may refuse.
        self._config = config.replace(dtype="float32", attention="auto")
        self._vectors: _Vectors | None = None

    def __call__(self, params: Any) -> dict[str, float]:
        """GLUE's scores of the dev file as metrics, such as `probe_sst2_accuracy`. All processes must call it.

        Args:
            params: the model's parameters, on this host.
        """
        return on_first_process(lambda: self._score(params["bert"]))

    def _score(self, encoder: Any) -> dict[str, float]:
        if self._vectors is None:
            loaded = Loaded(self._config, encoder, self._tokenizer, Report("this run", "encoder"))
            self._vectors = _Vectors(loaded, pooling="mean", runtime=XLA)
        else:
            self._vectors.take_parameters(encoder)
        name, train, dev = self._task
        names = GLUE[name].labels
        targets = label_ids(train, names, name)
        probe = fit_probe(self._vectors(train), targets, len(names))
        found = glue_scores(name, label_ids(dev, names, name), probe.classes(self._vectors(dev)))
        return {f"probe_{name}_{metric}": float(value) for metric, value in found.items()}


class _Vectors(TextEmbedding):
    """Vectors of examples, which have one text or two."""

    def __call__(self, texts: Sequence[Any]) -> np.ndarray:
        return np.stack(list(self.stream(texts)))

    def encode(self, items: list[Any], first: int, **options: Any) -> EncodedItems:
        return EncodedItems(items, *self.encode_pairs([(item.text, item.pair) for item in items]))
