"""Scores a run on BLiMP while it trains, as `python -m bert_jax evaluate-blimp` scores the same weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.evaluation.blimp import PairSet, evaluate, read_blimp
from bert_jax.formats.load import Loaded
from bert_jax.formats.read import Report
from bert_jax.inference.runtimes.choice import XLA
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.runtime.hosts import on_first_process
from train.pretraining.recipe import PretrainConfig


def read_pairs(config: PretrainConfig) -> list[PairSet]:
    """The sets that `blimp=` names, or the first `blimp_pairs` of each; [] without it.

    Raises:
        FileNotFoundError, UserError: they are not there, or are damaged.
    """
    return [] if config.blimp is None else read_blimp(Path(config.blimp), config.blimp_pairs)


class MinimalPairs:
    """BLiMP's sets and a model to score, in float32 on the devices of the first process.

    Compiled programs serve all evaluations of a run.

    Args:
        sets: what `read_pairs` returned.
        config: the model's.
        tokenizer: of the training data.
        head: the model's, with masked LM.
    """

    def __init__(self, sets: Sequence[PairSet], config: BertConfig, tokenizer: Tokenizer, head: str):
        self._sets, self._tokenizer, self._head = sets, tokenizer, head
        # A score does not depend on the machine, nor on the lengths of its rows, which a run's own kernel may refuse.
        self._config = config.replace(dtype="float32", attention="auto")
        self._likelihood: Likelihood | None = None

    def __call__(self, params: Any) -> dict[str, float]:
        """The share of the pairs that are right, as metrics: `blimp_accuracy`, and `blimp_<field>_accuracy` of each.

        Both are means over the sets. All processes must call it.

        Args:
            params: the model's parameters, on this host.

        Raises:
            UserError: a sentence is too long for the model.
        """
        return on_first_process(lambda: self._score(params))

    def _score(self, params: Any) -> dict[str, float]:
        if self._likelihood is None:
            loaded = Loaded(self._config, params, self._tokenizer, Report("this run", self._head))
            self._likelihood = Likelihood(loaded, runtime=XLA)
        else:
            self._likelihood.take_parameters(params)
        found = evaluate(self._likelihood, self._sets)
        fields = {f"blimp_{name}_accuracy": value / 100 for name, value in found["fields"].items()}
        return {"blimp_accuracy": found["accuracy"] / 100, **fields}
