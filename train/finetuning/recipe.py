"""The config of a fine-tuning run: one frozen dataclass and its checks."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.config import BertConfig, is_number
from bert_jax.errors import UserError
from bert_jax.shown import ShownConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizer_config import OptimizerConfig
from train.run.ending.watchdog import Budgets
from train.run.profile import check_profile


@dataclass(frozen=True, repr=False)
class FinetuneConfig(ShownConfig):
    """A fine-tuning run. The defaults are the paper's (https://arxiv.org/abs/1810.04805, A.3), with Adam's bias
    correction, without which training on small sets is unstable (https://arxiv.org/abs/2006.05987).

    `optimizer.total_steps` and `warmup_steps` are computed from `epochs`, `batch`, `warmup` and the size of the data;
    `model` is the source's. The run evaluates and saves once per epoch unless eval_every and save_every give steps.

    task                 "classify" (your own table), "tag" (entities), "pos" (a label for each word, such as parts of
                         speech), or a published task (python -m train.finetune --help)
    data                 a folder with the task's files, under their published names or as train, dev and test
    train, dev, test     files to use in place of those of data=; dev may be a share of train ("0.1"), the same share of
                         each class
    split_seed           seed of the choice that dev=SHARE makes: the same examples whatever `seed` is
    text, pair, label    columns of a table (task=classify); pair None: single texts
    id                   task=classify: the column with the ids for the predictions; None: rows are numbered from 0
    kind                 what the label column holds: "class", "classes" (several; or columns of 0 and 1, label="a|b|c")
                         or "number"
    init                 a run directory, a folder or a hub id to start from; it must be given
    max_length           tokens per row, special tokens included
    stride               tokens between the starts of two windows of a longer text, at most a window's length; None: a
                         third of max_length, at most 128, for question answering; half a window for tags
    max_question_length  question answering: tokens of a question
    max_answer_length    question answering: tokens of the longest answer that is predicted
    document_context     task=tag, pos: fill rows with the neighbouring sentences (section 5.3)
    epochs               passes over the training examples
    batch                examples per step
    eval_batch           examples per batch of an evaluation
    warmup               share of the steps in which the learning rate rises
    accumulation         number of parts of a batch that are computed one after the other
    freeze               parts that are not trained: "embeddings"; N, also the first N layers; "all", the whole encoder;
                         None: none
    layer_decay          the learning rate of each layer is that of the layer above times this; 1: all have the same
    reinit_layers        initialise this many upper layers, and the pooler, randomly; 0: neither
    class_weights        "none", "balanced" (N / (C * count), of N examples and C classes), or a number for each class
                         ("1,2.5,1"), in the order of the labels; with several labels per example they weigh the
                         examples that have the class, and "balanced" is the ratio of those without it to those with it
    label_smoothing      share of the probability that goes to all classes alike
    null_answers         question answering: questions may have no answer, as they always may in SQuAD 2.0
    null_threshold       with null_answers: predict none if its score, a sum of two logits, exceeds the best answer's
                         by more than this
    metric               the score that selects the best model; None: the task's own
    early_stop           end the run after this many evaluations without a better score, or an equal one with a lower
                         loss; 0: never; not with seeds or learning_rates
    pad                  "few": pad a batch to one of a few lengths, chosen for the texts; "max": always to max_length
    seed                 of the head, the order of the examples and dropout
    track                also send the metrics to Weights & Biases ("wandb") or MLflow ("mlflow"); None: to neither
    profile              (first step, from 1, and how many) to record with JAX's profiler, for TensorBoard; None: none
    seeds                number of runs, with seeds from `seed` on, for each of `learning_rates`, all in one program
    learning_rates       the rates of these runs; (): optimizer.learning_rate alone
    log_every            steps between two lines of the log
    eval_every           steps between two evaluations; 0: an epoch
    save_every           steps between two checkpoints; 0: as eval_every
    keep                 checkpoints to keep, the newest ones; at least 2
    max_skipped_in_a_row  non-finite steps in a row after which the run stops with exit code 3
    max_failed_saves      failed saves in a row after which the run stops with exit code 74
    budgets               seconds after which a stage of the run counts as hanging
    """

    task: str = "classify"
    data: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    id: str | None = None
    kind: Literal["class", "classes", "number"] = "class"
    init: str | None = None
    model: BertConfig = field(default_factory=BertConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-5, warmup_steps=0, bias_correction=True)
    )
    mesh: MeshConfig = field(default_factory=MeshConfig)
    max_length: int = 128
    stride: int | None = None
    max_question_length: int = 64
    max_answer_length: int = 30
    document_context: bool = False
    epochs: float = 3.0
    batch: int = 32
    eval_batch: int = 32
    warmup: float = 0.1
    accumulation: int = 1
    pad: Literal["few", "max"] = "few"
    seed: int = 0
    split_seed: int = 0
    seeds: int = 1
    learning_rates: tuple[float, ...] = ()
    freeze: str | None = None
    layer_decay: float = 1.0
    reinit_layers: int = 0
    class_weights: str = "none"
    label_smoothing: float = 0.0
    null_answers: bool = False
    null_threshold: float = 0.0
    metric: str | None = None
    early_stop: int = 0
    log_every: int = 20
    eval_every: int = 0
    save_every: int = 0
    keep: int = 2
    track: Literal["wandb", "mlflow"] | None = None
    profile: tuple[int, ...] | None = None
    max_skipped_in_a_row: int = 20
    max_failed_saves: int = 5
    budgets: Budgets = field(default_factory=Budgets)

    def __post_init__(self):
        if self.kind not in ("class", "classes", "number"):
            raise UserError(f"kind: found {self.kind!r}; expected class, classes or number")
        for name in ("max_length", "max_question_length", "max_answer_length", "batch", "eval_batch"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _check(self.stride is None or self.stride >= 1, "stride", self.stride, "at least 1")
        check_profile(self.profile)
        if self.pad not in ("few", "max"):
            raise UserError(f"pad: found {self.pad!r}; expected few or max")
        rates = self.learning_rates
        if not isinstance(rates, tuple) or not all(is_number(rate) and rate >= 0 for rate in rates):
            raise UserError(f"learning_rates: found {rates!r}; expected numbers as in (2e-5,3e-5)")
        if len(set(rates)) < len(rates):
            raise UserError(f"learning_rates: found {rates!r}; expected rates that all differ")
        if self.is_sweep and self.early_stop:
            raise UserError("early_stop: seeds and learning_rates train all runs to the end; leave it out")
        for name in ("fsdp", "tensor", "zero"):
            if self.is_sweep and (size := getattr(self.mesh, name)) != 1:
                raise UserError(
                    f"mesh.{name}: found {size}; seeds and learning_rates keep each model whole on a device; "
                    "leave it out"
                )
        for name in ("accumulation", "log_every", "seeds", "max_failed_saves", "max_skipped_in_a_row"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("reinit_layers", "early_stop", "eval_every", "save_every", "split_seed"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _check(0 <= self.seed < 2**32, "seed", self.seed, f"0 to {2**32 - 1}")
        _check(self.epochs > 0, "epochs", self.epochs, "more than 0")
        _check(0 <= self.warmup < 1, "warmup", self.warmup, "a share, at least 0 and below 1")
        _check(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "at least 0 and below 1")
        _check(self.keep >= 2, "keep", self.keep, "at least 2, so that a damaged checkpoint has one before it")
        _check(self.batch % self.accumulation == 0, "accumulation", self.accumulation, f"a divisor of {self.batch}")

    @property
    def is_sweep(self) -> bool:
        """Whether several models are trained at once."""
        return self.seeds > 1 or bool(self.learning_rates)

    @property
    def total_steps(self) -> int:
        return self.optimizer.total_steps

    def for_examples(self, count: int) -> "FinetuneConfig":
        """The config for `count` training examples: epochs and shares become numbers of steps."""
        an_epoch = -(-count // self.batch)
        total = max(1, round(self.epochs * an_epoch))
        optimizer = dataclasses.replace(self.optimizer, total_steps=total, warmup_steps=round(self.warmup * total))
        return dataclasses.replace(
            self,
            optimizer=optimizer,
            eval_every=self.eval_every or an_epoch,
            save_every=self.save_every or self.eval_every or an_epoch,
        )


def _check(right: bool, name: str, found: object, expected: str) -> None:
    if not right:
        raise UserError(f"{name}: found {found}; expected {expected}")
