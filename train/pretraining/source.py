"""Where a pretraining run's batches come from: a prepared directory, or random tokens for trying a config out."""

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.arrays import load_array
from bert_jax.data.pretraining.batches import Batches, RandomBatches
from bert_jax.data.pretraining.by_length import counts_by_length
from bert_jax.data.pretraining.directory import open_directory
from bert_jax.data.pretraining.manifest import manifest_checksum, size_of
from bert_jax.data.pretraining.masking import MaskingConfig, default_max_predictions
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.data.pretraining.packing import Packing
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.run.config import as_given

HELD_OUT = "held-out"


class PreparedData:
    """A directory made by `python -m train.prepare`, on a disk or in a bucket.

    `evaluation_split` is the part of it to evaluate on. The folder `path` has the manifest, the tokenizer and the
    counts of tokens. `has_second`: rows have a sentence B, with or without a label.
    """

    def __init__(self, directory: str, evaluation_split: str = HELD_OUT):
        self.directory = open_directory(directory)
        self.path, self.manifest = self.directory.path, self.directory.manifest
        self.evaluation_split = evaluation_split
        self._packings: dict[int, Packing | None] = {}
        self.objective: str = self.manifest["objective"]
        self.vocab_size: int = self.manifest["tokenizer"]["vocab_size"]
        self.fingerprint: str = self.manifest["tokenizer"]["fingerprint"]
        self.has_second: bool = self.objective != "none" or "twice" in self.manifest["settings"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path / "tokenizer")

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        return load_array(self.path / "unigram_counts.npy")

    @property
    def lengths(self) -> list[int]:
        return sorted(int(length) for length in self.manifest["splits"]["train"]["examples"])

    def examples(self, length: int, split: str = "train") -> int:
        return self.manifest["splits"][split]["examples"].get(str(length), {}).get("total", 0)

    def check_length(self, config: PretrainConfig, length: int) -> None:
        """Raises UserError if there are no examples of a length that a phase needs."""
        if self.examples(length) == 0:
            have = ", ".join(map(str, self.lengths))
            lengths = ",".join(str(length) for length in sorted({phase.length for phase in config.phases}))
            mend = (
                "choose another run=" if config.text else f"run python -m train.prepare with --max-seq-length {lengths}"
            )
            raise UserError(
                f"{self.directory.name}: has no examples of length {length}, which a phase needs; it has {have}; "
                f"{mend}, or change phases"
            )

    @property
    def digest(self) -> str:
        """A sum of the manifest, on which the sums of all files depend: equal for equal data."""
        return self.manifest.get("checksum") or manifest_checksum(self.manifest)

    @property
    def tokens(self) -> int:
        """Tokens of the text to train on."""
        return self.manifest["splits"]["train"]["shards"]["total"]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return size_of(self.manifest)

    @property
    def passes(self) -> float:
        """How many passes over the text its examples are."""
        return self.manifest["settings"]["dupe_factor"]

    def padding_share(self, length: int) -> float | None:
        """The share of the positions of the training examples that is padding; None for data without a report."""
        report = self.manifest.get("report", {}).get("train", {})
        return report.get("examples", {}).get(str(length), {}).get("padding_share")

    def packing(self, length: int) -> Packing | None:
        """How the training examples of a length share rows; None if the data lacks their order by length."""
        if length not in self._packings:
            counts = counts_by_length(self.directory, length)
            self._packings[length] = None if counts is None else Packing(counts, length)
        return self._packings[length]

    def examples_a_row(self, length: int) -> float | None:
        """The mean number of examples in a packed row; None as `packing`."""
        found = self.packing(length)
        return None if found is None else found.examples_a_row

    def padding(self, config: PretrainConfig, length: int) -> float | None:
        """The share of the positions that is padding in the rows that the run makes of the training examples."""
        found = self.packing(length) if config.is_packed(length) else None
        return self.padding_share(length) if found is None else found.padding_share

    def batches(
        self,
        config: PretrainConfig,
        phase: Phase,
        split: str = "train",
        *,
        shuffle: bool = True,
        first_row: int = 0,
    ) -> Batches | PackedBatches:
        """The batches of a phase `in_rows`; `first_row`: how many rows earlier phases of the same length used.

        Examples in the order of the index (not `shuffle`) have a row each.
        """
        masking = config.masking if phase.masks_as_usual else phase.masking(config.masking or self._prepared_masking)
        if shuffle and config.is_packed(phase.length):
            return PackedBatches(
                self.directory,
                batch_size=phase.batch,
                max_seq_length=phase.length,
                masking=masking,
                seed=config.seed,
                first_row=first_row,
            )
        return Batches(
            self.directory,
            split=split,
            batch_size=phase.batch,
            max_seq_length=phase.length,
            masking=masking,
            seed=config.seed,
            shuffle=shuffle,
            first_row=first_row,
        )

    @property
    def _prepared_masking(self) -> MaskingConfig:
        return MaskingConfig.as_prepared(self.manifest["settings"])

    def masks_told(self, config: PretrainConfig) -> str:
        """What the log says of masks other than the data was prepared for; "" if `masking` does not change these."""
        masking, prepared = config.masking, self._prepared_masking
        if masking is None or (masking.probability, masking.whole_word) == (prepared.probability, prepared.whole_word):
            return ""
        return (
            f"masks: {masking}, in place of {prepared} for which {self.directory.name} was prepared: a field of "
            "masking= replaces them all"
        )

    def check_masks(self, phase: Phase) -> None:
        """Raises UserError if the masks of the data are static, and the phase asks for its own."""
        if not phase.masks_as_usual and self.manifest["recipe"] == "google":
            raise UserError(
                f"phases: {tuple(as_given(phase))} has masks of its own, and those of {self.directory.name} are "
                "static; leave them out, or run python -m train.prepare with --recipe default"
            )

    def evaluation_batches(self, config: PretrainConfig, phase: Phase) -> tuple[Batches | PackedBatches, int] | None:
        """Batches in the order of the index, and how many to evaluate; None if nothing was held out.

        Their masks depend on the data and `eval_masking` alone, so that runs with other seeds or training masks have
        the same ones. Static masks stay as they were prepared.
        """
        examples = self.examples(phase.length, self.evaluation_split)
        if examples == 0:
            return None
        masking = config.eval_masking or (None if self.manifest["recipe"] == "google" else MaskingConfig())
        of_data = replace(config, masking=masking, phases=tuple(map(_unmasked, config.phases)), seed=0)
        batches = self.batches(of_data, _unmasked(phase), self.evaluation_split, shuffle=False)
        return batches, min(config.eval_batches, -(-examples // phase.batch))


class RandomData:
    """`data=random`: the shapes of real batches without any text."""

    tokenizer = None
    unigram_counts = None
    passes = None
    fingerprint = digest = "random"

    def __init__(self, vocab_size: int, objective: str, *, twice: bool = False):
        self.vocab_size = vocab_size
        self.objective = objective
        self.has_second = twice or objective != "none"

    @classmethod
    def standing_for(cls, config: PretrainConfig) -> "RandomData":
        """Random tokens in place of the text that `text_options` prepares: as many pieces, the same kinds of rows."""
        options, size = config.text_options, config.model.vocab_size
        if size == BertConfig.vocab_size and options.vocab is None and config.init is None:
            size = options.vocab_size
        return cls(size, options.objective, twice=options.twice > 0)

    def examples(self, length: int) -> int:
        return 0

    def padding_share(self, length: int) -> None:
        return None

    def padding(self, config: PretrainConfig, length: int) -> None:
        return None

    def evaluation_batches(self, config: PretrainConfig, phase: Phase) -> tuple[RandomBatches, int]:
        unmasked = tuple(map(_unmasked, config.phases))
        of_data = replace(config, masking=config.eval_masking, phases=unmasked, packed=(), accumulation=None)
        return self.batches(of_data, _unmasked(phase)), config.eval_batches

    def batches(self, config: PretrainConfig, phase: Phase, *, first_row: int = 0) -> RandomBatches:
        masking = phase.masking(config.masking or MaskingConfig())
        examples_a_row = dict(config.packed).get(phase.length)
        return RandomBatches(
            batch_size=phase.batch,
            max_seq_length=phase.length,
            max_predictions=masking.max_predictions or default_max_predictions(masking, phase.length),
            vocab_size=config.model.vocab_size,
            seed=config.seed + first_row,
            next_sentence=self.objective != "none",
            sequences=None if examples_a_row is None else min(math.ceil(examples_a_row), phase.length),
        )


def _unmasked(phase: Phase) -> Phase:
    """The phase without masks of its own, for held-out text."""
    return phase._replace(mask=None, corruption=None)
