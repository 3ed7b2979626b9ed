"""The config of a pretraining run: one frozen dataclass and its checks."""

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bert_jax.config import BertConfig, is_int
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.pretraining.mixture import directories_in
from bert_jax.data.tasks.published import GLUE
from bert_jax.errors import UserError
from bert_jax.model.start import StartConfig, check_start
from bert_jax.shown import ShownConfig
from bert_jax.training.distillation import DistillationConfig
from bert_jax.training.mesh import MeshConfig, divisors
from bert_jax.training.optimizer_config import OptimizerConfig
from train.pretraining.phases import Phase, checked, does_not_divide, in_rows, rows_used, steps_of
from train.run.config import as_given
from train.run.ending.watchdog import Budgets
from train.run.profile import check_profile

__all__ = ["Phase", "PretrainConfig", "TextConfig", "seconds_of"]

_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, repr=False)
class TextConfig(ShownConfig):
    """How `text=` becomes prepared data; the fields are the options of `python -m train.prepare`.

    format              of the files: "text", "lines" (a sentence each), "markdown", "jsonl", "wikipedia" (of
                        WikiExtractor) or "parquet"; None: by the suffix and the first bytes
    field               the field of a JSON object or a Parquet row with the text; several with commas between are a
                        paragraph each
    unwrap              join the lines of paragraphs that are wrapped at a column
    documents           "paragraphs", "chapters", "files", ... (python -m train.prepare --help); None: paragraphs,
                        chapters with unwrap, files of Markdown; a JSON object or a row is always one
    dedupe              remove "near" duplicates of documents, repeated "lines", or "near,lines"; None: nothing
    sentences           "all", or "plain": only those of 4 to 30 words, without digits, brackets and quotes, and with
                        few names
    language            code of the language whose abbreviations do not end a sentence: "en", "de", "ko" ...
    vocab               a vocabulary file, or a folder, run or hub id with one; None: that of init=, or one learnt
                        from the text
    vocab_size          number of pieces to learn from the text, with special tokens; no effect with a vocabulary
    character_coverage  share of the text that a new vocabulary's characters make up; None: 0.9999
    cased               keep upper case; None: uncased, or what `vocab` says
    strip_accents       drop accents; None: if uncased, unless 1 % of the letters are Hangul, kana, Indic or Thai; or
                        what `vocab` says
    objective           of sentence pairs: "nsp", "sop" or "none"
    rows                for objective "none": "doc-sentences", "full-sentences", "blocks" or "sentences"
    twice               for rows "sentences": share of the sentences that stand in their row twice, as A and as B
    short_seq_prob      share of the passes over a document whose pairs aim at a random shorter length, so that the
                        model sees short inputs; no effect for objective "none"
    dupe_factor         examples are made from the text this many times; None: 10; 1 for objective "none"
    held_out            share of the documents to evaluate on; None: 0.005, more of a small text, and of a text of fewer
                        than ten documents the end of each
    workers             processes that prepare the text; None: one for each available core
    """

    format: str | None = None
    field: str = "text"
    unwrap: bool = False
    documents: str | None = None
    dedupe: str | None = None
    sentences: str = "all"
    language: str = "en"
    vocab: str | None = None
    vocab_size: int = 30_000
    character_coverage: float | None = None
    cased: bool | None = None
    strip_accents: bool | None = None
    objective: str = "nsp"
    rows: str = "doc-sentences"
    twice: float = 0.0
    short_seq_prob: float = 0.1
    dupe_factor: int | None = None
    held_out: float | None = None
    workers: int | None = None


@dataclass(frozen=True, repr=False)
class PretrainConfig(ShownConfig):
    """A pretraining run. `phases` gives lengths, batch sizes and steps; one schedule spans them all.

    `optimizer.total_steps` is always the sum of the phases' steps; `model.vocab_size` is that of the data's tokenizer
    unless it is given. Every number of steps counts optimizer steps (consumed batches).

    phases                (length, batch, steps) of each part of the run, such as ((128, 256, 9000), (512, 64, 1000));
                          after these it may have a mask share, a corruption, a factor of the learning rate and a
                          dropout rate, such as (128, 256, 9000, 0.3, (1, 0, 0), 0.5, 0.1): see Phase
    tokens_per_device     the most positions (rows x length) that a device computes at a time: a batch with more of them
                          for each device is computed in parts; None: no limit
    accumulation          the number of parts, the same in all phases; None: the fewest that tokens_per_device allows
    packing               whether several examples share a row: "yes", "no", or "auto": where more than a tenth of the
                          positions would be padding. A batch then has fewer rows, and as many examples on average
    packed                (length, examples of a row on average) of each length whose examples share rows; a run counts
                          them when it starts, so that this is for plans without data and for data=random
    fused_loss            never hold all masked-LM logits at once; no effect on TPUs, with mesh.tensor > 1 or a teacher
    seed                  of the parameters, the data and dropout
    data                  a prepared directory, several with shares ("wiki:0.7,books:0.3"), or "random"; None: what
                          text= names, prepared
    data_temperature      if data= has no shares: each is tokens^(1/temperature); above 1 the small ones get more
    data_shares           shares of several by phase: a tuple for each phase, in the order of data=; (): those of data=
    text                  files, folders and globs with commas between them, prepared into the run directory first;
                          only without data=
    eval_data             another prepared directory, whose training examples are evaluated on, not the part that it
                          holds out itself: none of its text may be in `data`; None: the held-out part of `data`
    init                  a run directory, a folder or a hub id to start from, with its architecture; None: a new model,
                          drawn as `start` says
    init_optimizer        take its optimizer's moments too, of a run directory or a TF1 checkpoint
    init_step             with init_optimizer: continue at its step, not at 0
    init_at               with init_optimizer: the step of the run's checkpoint to take; None: its newest
    init_data             init= is a run on the same data: begin after the rows that it used
    first_rows            (length, rows to leave out at the start) of each length, with one number of rows for each
                          directory of data=; init_data=true sets it
    teacher               a run directory, a folder or a hub id to distil from, in addition to masked LM
    log_every             steps between two lines of the log
    eval_every            steps between two evaluations
    eval_batches          batches of an evaluation, each of the phase's size; fewer if the held-out text has no more
    save_every            steps between two checkpoints
    keep                  checkpoints to keep, the newest ones, beside those that a stop wrote; at least 2
    max_skipped_in_a_row  non-finite steps in a row after which the run stops with exit code 3; see rollbacks
    max_failed_saves      failed saves in a row after which the run stops with exit code 74
    budgets               seconds after which a stage of the run counts as hanging
    blimp                 score the model on BLiMP: its folder or archive; None: do not
    blimp_every           steps between two scorings, a multiple of eval_every; None: once, at the end
    blimp_pairs           the pairs of each set to score, from its beginning; None: all
    stop_after            the time after which the run is to be done, "90s", "50m" or "1.5h", with
                          optimizer.schedule=stable and a number as optimizer.warmup_steps: the decay begins in time for
                          it, and the steps of the phases are the most. It counts "seconds" of metrics.jsonl: the
                          training over all starts, with compiling, evaluations, saves and export, without preparing
                          text and starting the program; None: the run has the steps of the phases
    probe                 TASK:FOLDER of a GLUE task with classes, such as "sst2:glue/SST-2": fit logistic regression to
                          the frozen model's vectors of its training file, and score it on the dev file; None: do not
    probe_every           steps between two probes, a multiple of eval_every; None: once, at the end
    probe_examples        training examples of a probe, from the beginning of the file; None: all
    finetune              TASK:FOLDER of a GLUE task: fine-tune a copy of the model on its training file, and score it
                          on the dev file; None: do not
    finetune_every        steps between two fine-tunings, a multiple of eval_every; None: once, at the end
    finetune_examples     training examples of a fine-tuning, from the beginning of the file; None: all
    finetune_epochs       passes of a fine-tuning over its training examples
    finetune_rate         peak learning rate of a fine-tuning
    hopeless_after        end the run with exit code 5 at an evaluation after so many tokens if its loss is that of the
                          token frequencies, or 1 nat above the run's lowest; None: never
    rollbacks             how often a run whose steps stay non-finite goes back to its last good checkpoint and passes
                          over the batches since, instead of ending with exit code 3; 0: never
    export_at_end         write the model to export/ at the end, for transformers and the verbs
    track                 also send the metrics to Weights & Biases ("wandb") or MLflow ("mlflow"); None: to neither
    profile               (first step, from 1, and how many) to record with JAX's profiler, for TensorBoard; None: none
    """

    model: BertConfig = field(default_factory=BertConfig)
    start: StartConfig = field(default_factory=StartConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    phases: tuple[Phase, ...] = (Phase(128, 256, 900_000), Phase(512, 256, 100_000))
    masking: MaskingConfig | None = None  # None: as the data was prepared
    eval_masking: MaskingConfig | None = None  # of held-out text; None: 15 % of the tokens, in the paper's way
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tokens_per_device: int | None = None
    accumulation: int | None = None
    packing: Literal["auto", "yes", "no"] = "auto"
    packed: tuple[tuple[int, float], ...] = ()
    fused_loss: bool = True
    seed: int = 0

    data: str | None = None
    data_temperature: float = 1.0
    data_shares: tuple[tuple[float, ...], ...] = ()
    text: str | None = None
    text_options: TextConfig = field(default_factory=TextConfig)
    eval_data: str | None = None
    init: str | None = None
    init_optimizer: bool = False
    init_step: bool = False
    init_at: int | None = None
    init_data: bool = False
    first_rows: tuple[tuple[int, ...], ...] = ()
    teacher: str | None = None
    distillation: DistillationConfig | None = None  # the weights of the losses with a teacher; None: DistilBERT's

    log_every: int = 50
    eval_every: int = 1_000
    eval_batches: int = 50
    save_every: int = 1_000
    keep: int = 3
    max_skipped_in_a_row: int = 20
    max_failed_saves: int = 5
    blimp: str | None = None
    blimp_every: int | None = None
    blimp_pairs: int | None = None
    stop_after: str | None = None
    probe: str | None = None
    probe_every: int | None = None
    probe_examples: int | None = None
    finetune: str | None = None
    finetune_every: int | None = None
    finetune_examples: int | None = None
    finetune_epochs: float = 3.0
    finetune_rate: float = 1e-4
    hopeless_after: int | None = None
    budgets: Budgets = field(default_factory=Budgets)
    rollbacks: int = 0
    export_at_end: bool = True
    track: Literal["wandb", "mlflow"] | None = None
    profile: tuple[int, ...] | None = None

    def __post_init__(self):
        total = steps_of(self.phases)
        phases = tuple(checked(Phase(*phase), self.masking) for phase in self.phases)
        if not phases or not all(isinstance(value, int) and value >= 1 for phase in phases for value in phase[:3]):
            each = "each needs (length, batch, steps), whole numbers of at least 1"
            raise UserError(f"phases: found {self.phases}; {each}")
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "optimizer", dataclasses.replace(self.optimizer, total_steps=total))
        longest = max(phase.length for phase in phases)
        if self.init is None and longest > self.model.longest_input:  # with init= the model is the source's
            raise UserError(
                f"phases: length {longest} is more than model.max_position_embeddings = "
                f"{self.model.max_position_embeddings} allows; lower the length or raise max_position_embeddings"
            )
        if self.tokens_per_device is not None and self.tokens_per_device < longest:
            raise UserError(
                f"tokens_per_device: found {self.tokens_per_device}; at least {longest}, the length of one row"
            )
        self._check_start()
        if self.distillation is not None and self.teacher is None:
            raise UserError("distillation: has no effect without a teacher; say teacher=SOURCE or leave it out")
        if not 0 < self.data_temperature < math.inf:
            raise UserError(f"data_temperature: found {self.data_temperature}; expected a number above 0")
        if self.keep < 2:
            raise UserError(f"keep: found {self.keep}; at least 2, so that a damaged checkpoint has one before it")
        for name in (
            "log_every",
            "eval_every",
            "eval_batches",
            "save_every",
            "max_skipped_in_a_row",
            "max_failed_saves",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: found {getattr(self, name)}; at least 1")
        self._check_scores()
        check_profile(self.profile)
        if self.hopeless_after is not None and self.hopeless_after < 1:
            raise UserError(f"hopeless_after: found {self.hopeless_after}; expected at least 1 token, or none")
        if self.stop_after is not None:
            seconds_of(self.stop_after)
            needed = {}
            if self.optimizer.schedule != "stable":
                needed["schedule"] = "stable"
            if self.optimizer.warmup_steps is None:
                needed["warmup_steps"] = "100"
            if needed:
                found = " ".join(f"optimizer.{name}={str(getattr(self.optimizer, name)).lower()}" for name in needed)
                right = " ".join(f"optimizer.{name}={word}" for name, word in needed.items())
                raise UserError(f"stop_after: the steps of the run follow from its time; found {found}; say {right}")
            tail, decay = self.optimizer.average_tail, self.optimizer.decay_share
            if tail is not None and tail > decay:
                raise UserError(
                    f"stop_after: where the last {tail:.0%} of a run begin is not known before its decay does, in the "
                    f"last {decay:.0%}; say optimizer.average_tail={decay:g} or less"
                )
        if isinstance(self.seed, int) and not 0 <= self.seed < 2**32:
            raise UserError(f"seed: found {self.seed}; expected 0 to {2**32 - 1}")
        if self.rollbacks < 0:
            raise UserError(f"rollbacks: found {self.rollbacks}; at least 0")
        packed = tuple((int(length), float(examples)) for length, examples in self.packed)
        object.__setattr__(self, "packed", packed)
        if any(not 1 <= examples < math.inf for _, examples in packed):
            raise UserError(f"packed: found {packed}; expected (length, examples of a row), at least 1")
        if self.accumulation is not None:
            if self.accumulation < 1:
                raise UserError(f"accumulation: found {self.accumulation}; at least 1")
            for phase, in_rows in zip(phases, self.phases_in_rows, strict=True):
                if in_rows.batch % self.accumulation:
                    of = f" ({in_rows.batch} rows)" if in_rows != phase else ""
                    raise UserError(
                        f"accumulation: found {self.accumulation}; expected a divisor of the batch in "
                        f"{tuple(as_given(phase))}{of}"
                    )

    def _check_scores(self) -> None:
        """Checks the fields of BLiMP, of the probe and of the fine-tuning."""
        classes = {name for name, of in GLUE.items() if of.labels}
        for name, tasks in (("probe", classes), ("finetune", set(GLUE))):
            task, _, folder = (found := getattr(self, name) or "").partition(":")
            if found and (task not in tasks or not folder):
                known = ", ".join(sorted(tasks))
                raise UserError(f"{name}: found {found!r}; expected TASK:FOLDER, TASK one of {known}")
        for name in ("blimp_every", "probe_every", "finetune_every"):
            if (every := getattr(self, name)) is not None and (every < 1 or every % self.eval_every):
                raise UserError(f"{name}: found {every}; expected a multiple of eval_every={self.eval_every}, or none")
        for name in ("blimp_pairs", "probe_examples", "finetune_examples"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise UserError(f"{name}: found {count}; expected at least 1, or none")
        for name in ("finetune_epochs", "finetune_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name}: found {getattr(self, name)}; expected a number above 0")

    def _check_start(self) -> None:
        if self.init_step and not (self.init and self.init_optimizer):
            raise UserError("init_step: needs another run's optimizer state; say init=RUN init_optimizer=true too")
        if self.init_at is not None and not (self.init and self.init_optimizer and not self.init_data):
            whole = "say init=RUN init_optimizer=true too, and no init_data"
            raise UserError(f"init_at: takes a run's whole state; {whole}")
        for entry in self.first_rows:
            if len(entry) < 2 or entry[0] < 1 or min(entry) < 0:
                right = "a length and, for each directory of data=, how many rows to leave out, such as (128, 640)"
                raise UserError(f"first_rows: found {entry}; expected {right}")
        if self.init is None:
            check_start(self.start, self.model)
        elif not self.start.is_published:
            published = StartConfig()
            fields = [one.name for one in dataclasses.fields(published)]
            changed = [name for name in fields if getattr(self.start, name) != getattr(published, name)]
            back = shlex.join(f"start.{name}={getattr(published, name)}" for name in changed)
            raise UserError(
                f"start.{changed[0]}: says how a new model is drawn, and init={self.init} has one; leave init= out, or "
                f"say {back}"
            )

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> tuple[int, Phase]:
        """The first step of the phase that batch number `step` belongs to, and the phase."""
        start = 0
        for phase in self.phases:
            if step < start + phase.steps:
                return start, phase
            start += phase.steps
        raise ValueError(f"step {step} lies beyond the run's {start} steps")

    def directories(self, name: str) -> list[str]:
        """The prepared directories that the field `name` ("data" or "eval_data") names; [] for None and "random"."""
        text = getattr(self, name)
        return [] if text in (None, "random") else list(directories_in(text))

    def in_rows(self, phase: Phase) -> Phase:
        """The phase with the number of rows of its batches in place of that of their examples."""
        return in_rows(phase, dict(self.packed))

    def examples_of(self, phase: Phase) -> float:
        """The mean number of examples of a batch: `phase.batch`, in packed rows as near as `rows_for` gets."""
        return self.in_rows(phase).batch * dict(self.packed).get(phase.length, 1)

    @property
    def phases_in_rows(self) -> tuple[Phase, ...]:
        return tuple(self.in_rows(phase) for phase in self.phases)

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """(steps, positions of a batch) of each phase."""
        return tuple((phase.steps, phase.batch * phase.length) for phase in self.phases_in_rows)

    def dropout_at(self, step: int) -> float | None:
        """Of the phase that batch number `step` belongs to, if it has one of its own."""
        return self.phase_at(step)[1].dropout

    @property
    def rates(self) -> tuple[tuple[int, float], ...]:
        """(steps, factor of the learning rate) of each phase; () if all are 1."""
        if all(phase.rate == 1 for phase in self.phases):
            return ()
        return tuple((phase.steps, phase.rate) for phase in self.phases)

    def tokens_before(self, step: int) -> int:
        """Positions of the first `step` batches."""
        return sum(rows * length for length, rows in rows_used(self.phases_in_rows, step=step).items())

    @property
    def seconds_at_most(self) -> float:
        """Of the training; infinite without `stop_after`."""
        return math.inf if self.stop_after is None else seconds_of(self.stop_after)

    def gives_up_at(self, step: int) -> bool:
        """Whether an evaluation after `step` steps, which are not all, may end the run as hopeless."""
        after = self.hopeless_after
        return after is not None and step < self.total_steps and self.tokens_before(step) >= after

    def is_packed(self, length: int) -> bool:
        """Whether training examples of a length share rows."""
        return length in dict(self.packed)

    def rows_before(self, step: int, length: int) -> int:
        """Where batch number `step` is in the data: rows of `length` used so far, by this run and those before it."""
        return sum(self.rows_left_out(length)) + rows_used(self.phases_in_rows, step).get(length, 0)

    def rows_left_out(self, length: int) -> tuple[int, ...]:
        """How many rows of a length are left out at the start of each directory; (0,) if none are in any."""
        return next((tuple(rows) for found, *rows in self.first_rows if found == length), (0,))

    def parts_of(self, length: int, batch: int, pieces: int) -> int:
        """The number of parts in which a batch is computed, one after the other, on `pieces` devices with rows of it.

        The fewest with which no device computes more than `tokens_per_device` positions at a time, or `accumulation`.

        Args:
            length, batch: of a phase, `in_rows`.
            pieces: the mesh's data x fsdp x zero (`sharding.batch_pieces`).

        Raises:
            UserError: the batch, or a device's part of it, cannot be split evenly; it names what can.
        """
        if batch % pieces:
            raise UserError(does_not_divide(batch, pieces, self.mesh, dict(self.packed).get(length, 1)))
        rows = batch // pieces
        parts = divisors(rows)
        if self.accumulation is not None:
            if self.accumulation not in parts:
                raise UserError(
                    f"accumulation: found {self.accumulation}; each of {pieces:,} devices has {rows} rows of a batch "
                    f"of {batch:,}; expected one of {', '.join(map(str, parts))}, or leave it out"
                )
            return self.accumulation
        most = rows if self.tokens_per_device is None else max(1, self.tokens_per_device // length)
        return next(number for number in parts if rows // number <= most)

    def implied(self, changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The fields that change with others: the optimizer's steps with phases, and the start with `init=`.

        A source has a start of its own, as it has a model of its own: the config file's is not used.
        """
        found: dict[str, dict[str, Any]] = {}
        if "phases" in changes and is_int(steps := steps_of(changes["phases"])):  # else the phases are refused
            found["optimizer"] = {"total_steps": steps}
        if changes.get("init") is not None:
            found["start"] = dataclasses.asdict(StartConfig())
        return found


def seconds_of(text: str) -> float:
    """The seconds that "90s", "50m" or "1.5h" says; raises UserError for another text."""
    match = re.fullmatch(r"(\d+\.?\d*)([smh])", text)
    if match is None or not float(match[1]):
        raise UserError(f"stop_after: found {text!r}; expected a time such as 90s, 50m or 1.5h, or none")
    return float(match[1]) * _UNITS[match[2]]
