"""What a run is scored on besides held-out text, found before the run begins: `blimp=`, `probe=` and `finetune=`."""

from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.evaluation.blimp import PairSet
from train.pretraining.mixture import DataSource
from train.pretraining.recipe import PretrainConfig
from train.pretraining.scoring.finetuned import FinetuneTask, read_finetuning
from train.pretraining.scoring.minimal_pairs import read_pairs
from train.pretraining.scoring.probes import ProbeTask, files_of_task, read_probe


class Scoring(NamedTuple):
    """BLiMP's sets, the task to probe and the task to fine-tune on; [] or None where the config names none."""

    pairs: list[PairSet]
    probe: ProbeTask | None
    task: FinetuneTask | None = None

    def with_tokenizer_of(self, data: DataSource, config: PretrainConfig) -> "Scoring":
        """This, and the task to fine-tune on, which is read with the tokenizer of the data.

        Raises:
            UserError: the task is damaged.
        """
        return self._replace(task=read_finetuning(config, data))


NO_SCORING = Scoring([], None)


def read_scoring(config: PretrainConfig) -> Scoring:
    """Reads what needs no tokenizer, and looks for the rest: a text may take hours to prepare before there is one.

    Raises:
        FileNotFoundError, UserError: something is not there, or is damaged; or the data is random and has no tokenizer.
    """
    for name in ("blimp", "probe", "finetune"):
        if getattr(config, name) is not None and config.data == "random":
            raise UserError(f"{name}: data=random has no tokenizer; train on text, or leave {name}= out")
    if config.finetune is not None:
        files_of_task(config.finetune)
    return Scoring(read_pairs(config), read_probe(config))
