"""`data=`: random tokens, a prepared directory, or several of them in given shares, which may differ by phase."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from bert_jax.data.pretraining.mixture import MixedBatches, Pattern, directories_in
from bert_jax.errors import UserError
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import HELD_OUT, PreparedData, RandomData


def open_data(config: PretrainConfig, evaluation_split: str = HELD_OUT) -> "DataSource":
    """Opens what `config.data` names: to train on it, or with another `evaluation_split` only to evaluate on that.

    Raises:
        UserError: it lacks a length that a phase needs, or is a mixture whose directories do not fit together; or to
            train on, it lacks the masks that a phase asks for.
    """
    if config.data is None:
        raise UserError("data: not given; say data=DIR (made by python -m train.prepare), text=GLOB, or data=random")
    is_random = config.data == "random"
    directories = {} if is_random else directories_in(config.data)
    if len(directories) > 1:
        return MixedData(config, directories, evaluation_split)
    if config.data_shares or config.data_temperature != 1:
        name = "data_shares" if config.data_shares else "data_temperature"
        what = "data=random" if is_random else "one directory"
        raise UserError(f"{name}: has no effect on {what}; say data=A,B, or leave it out")
    if is_random:
        return RandomData.standing_for(config)
    data = PreparedData(next(iter(directories)), evaluation_split)
    for phase in config.phases:
        data.check_length(config, phase.length)
        if evaluation_split == HELD_OUT:
            data.check_masks(phase)
    return data


def check_batches(config: PretrainConfig, data: "DataSource", held_out: "DataSource") -> None:
    """Makes the batches of each phase and of its evaluations, no row of them: what is wrong is told before the run.

    Args:
        config: of the run, with its model and `packed`.
        data: what it trains on.
        held_out: what it is evaluated on.

    Raises:
        UserError: the data cannot be masked as a phase or an evaluation asks, or a file that they need is damaged.
    """
    start = 0
    for phase in config.phases:
        data.batches(config, config.in_rows(phase), first_row=config.rows_before(start, phase.length))
        for _, _, part, of in parts_to_evaluate(held_out, config):
            part.evaluation_batches(of, phase)
        start += phase.steps


def prepared_in(data: "DataSource") -> list[PreparedData]:
    """The prepared directories of what `open_data` opened; [] for random tokens."""
    if isinstance(data, MixedData):
        return list(data.parts.values())
    return [data] if isinstance(data, PreparedData) else []


class MixedData:
    """Several prepared directories to train on as one; each is evaluated by itself (`parts_to_evaluate`).

    Attributes:
        parts: name -> directory. The name is the last part of its path, or the whole path if that is not unique.
        shares: for each phase, the share of its rows that comes from each part; they add up to 1.
    """

    def __init__(self, config: PretrainConfig, directories: dict[str, float | None], evaluation_split: str = HELD_OUT):
        """
        Args:
            config: its phases, data_shares and data_temperature.
            directories: as `directories_in`.
            evaluation_split: as for `PreparedData`.

        Raises:
            UserError: the directories do not fit together, or the shares do not fit them.
        """
        opened = {path: PreparedData(path, evaluation_split) for path in directories}
        short = [path.rstrip("/").rsplit("/", 1)[-1] for path in opened]
        names = short if len(set(short)) == len(short) else list(opened)
        self.parts = dict(zip(names, opened.values(), strict=True))
        self.shares = _shares(config, directories, list(opened.values()))
        first_of: dict[str, str] = {}
        for path, data in opened.items():
            if (same := first_of.setdefault(data.digest, path)) != path:
                raise UserError(f"data: {same} and {path} are the same data; name it once, with the sum of the shares")
        (name, first), *others = opened.items()
        for other, data in others:
            both, again = f"data: {name} and {other} were prepared with another", f"prepare the text of {other} with"
            if data.fingerprint != first.fingerprint:
                raise UserError(f"{both} tokenizer; {again} --vocab {name}")
            if data.objective != first.objective:
                found = f"{first.objective} and {data.objective}"
                raise UserError(f"{both} objective ({found}); {again} --objective {first.objective}")
        self.objective, self.vocab_size, self.fingerprint = first.objective, first.vocab_size, first.fingerprint
        self.tokenizer = first.tokenizer
        self.has_second = any(data.has_second for data in opened.values())
        self._config = config
        for phase, shares in zip(config.phases, self.shares, strict=True):
            if evaluation_split == HELD_OUT:
                self._sources(config, phase, shares)
            else:  # each part is evaluated by itself, with `eval_masking`
                for part in self._with_rows(shares):
                    part.check_length(config, phase.length)

    @property
    def digest(self) -> str:
        return ",".join(part.digest for part in self.parts.values())

    @property
    def rows_of_run(self) -> dict[int, np.ndarray]:
        """Length -> how many rows of the run come from each part."""
        return rows_of_parts(self._config.phases, self.shares, self._config.total_steps)

    @cached_property
    def share_of_run(self) -> np.ndarray:
        """The share of the rows of the whole run that comes from each part: float64 [K]."""
        total = np.sum(list(self.rows_of_run.values()), axis=0)
        return total / total.sum()

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """How often each id occurs in a text that has the parts in their shares of the run: float64 [V]."""
        counts = [part.unigram_counts.astype(np.float64) for part in self.parts.values()]
        total = sum(count.sum() for count in counts)
        weighted = [s * total * count / count.sum() for s, count in zip(self.share_of_run, counts, strict=True)]
        return np.sum(weighted, axis=0)

    def examples(self, length: int) -> int:
        return sum(part.examples(length) for part in self.parts.values())

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts.values())

    @property
    def passes(self) -> float:
        """How many passes over the text the examples are, on average."""
        tokens = [part.tokens for part in self.parts.values()]
        return float(np.average([part.passes for part in self.parts.values()], weights=tokens))

    def padding_share(self, length: int) -> float | None:
        return self._mean_over_rows(length, lambda part: part.padding_share(length))

    def examples_a_row(self, length: int) -> float | None:
        return self._mean_over_rows(length, lambda part: part.examples_a_row(length))

    def padding(self, config: PretrainConfig, length: int) -> float | None:
        return self._mean_over_rows(length, lambda part: part.padding(config, length))

    def _mean_over_rows(self, length: int, of: Callable[[PreparedData], float | None]) -> float | None:
        """The mean over the rows of a length in the run; None if it is unknown of a part that has some of them."""
        counts = self.rows_of_run[length]
        found = [(of(part), rows) for part, rows in zip(self.parts.values(), counts, strict=True) if rows]
        known = [value for value, _ in found if value is not None]
        return float(np.average(known, weights=[rows for _, rows in found])) if len(known) == len(found) else None

    def batches(self, config: PretrainConfig, phase: Phase, *, first_row: int = 0) -> MixedBatches:
        """The batches of a phase `in_rows`; `first_row`: as `config.rows_before` counts them at its first step.

        Each part continues where the phases before it of the same length left it, whatever their shares were.
        """
        left_out = config.rows_left_out(phase.length)
        used, offset, shares = np.zeros(len(self.parts), np.int64) + left_out, first_row - sum(left_out), self.shares[0]
        for earlier, its_shares in zip(config.phases_in_rows, self.shares, strict=True):
            if earlier.length != phase.length:
                continue
            shares = its_shares
            rows = earlier.batch * earlier.steps
            if offset < rows:
                break
            used, offset = used + Pattern(shares).before(rows), offset - rows
        sources = self._sources(config, phase, shares)
        chosen = [k for k, share in enumerate(shares) if share]
        return MixedBatches(
            sources,
            [shares[k] for k in chosen],
            batch_size=phase.batch,
            first_rows=used[chosen],
            first_row=offset,
        )

    def _with_rows(self, shares: Sequence[float]) -> list[PreparedData]:
        """The parts that have a share."""
        return [part for part, share in zip(self.parts.values(), shares, strict=True) if share]

    def _sources(self, config: PretrainConfig, phase: Phase, shares: Sequence[float]) -> list[Any]:
        """The batches of each part with a share; raises UserError if one lacks the length, or they are masked apart."""
        chosen = self._with_rows(shares)
        for part in chosen:
            part.check_length(config, phase.length)
            part.check_masks(phase)
        found: list[Any] = [part.batches(config, phase) for part in chosen]
        if config.is_packed(phase.length):
            for batches in found:
                batches.most = max(other.most for other in found)
                batches.max_predictions = max(other.max_predictions for other in found)
        for part, batches in zip(chosen, found, strict=True):
            if batches.masking != found[0].masking:
                raise UserError(
                    f"data: {chosen[0].directory.name} was prepared for {found[0].masking} and {part.directory.name} "
                    f"for {batches.masking}; say masking.max_predictions=N masking.probability=P, or prepare one again"
                )
        return found

    def facts(self, config: PretrainConfig) -> list[dict[str, Any]]:
        """Of each part: name, share of the run's rows, shares by phase, passes over its text; JSON values.

        `config`: of the run, with its `packed`: a packed row has as many examples as fit, more of a part whose are
        short.
        """
        rows = rows_of_parts(config.phases_in_rows, self.shares, config.total_steps)
        total = sum(used.sum() for used in rows.values())

        def passes(part: PreparedData, length: int) -> float:
            """Of one row over the text."""
            examples = part.examples_a_row(length) if config.is_packed(length) else 1
            return (examples or 1) / part.examples(length) * part.passes

        return [
            {
                "name": name,
                "share": float(sum(used[k] for used in rows.values()) / total),
                "shares": [float(shares[k]) for shares in self.shares],
                "text_passes": sum(int(used[k]) * passes(part, length) for length, used in rows.items() if used[k]),
            }
            for k, (name, part) in enumerate(self.parts.items())
        ]


DataSource = PreparedData | MixedData | RandomData


def head_for(data: DataSource) -> str:
    """The head to train for the data's objective: without sentence pairs a pooler would learn nothing."""
    return "mlm" if data.objective == "none" else "pretraining"


def rows_of_parts(phases: Sequence[Phase], shares: Sequence[Sequence[float]], step: int) -> dict[int, np.ndarray]:
    """Length -> how many rows the first `step` steps take from each of K parts, given shares by phase: int64 [K]."""
    rows: dict[int, np.ndarray] = {}
    for phase, of_phase in zip(phases, shares, strict=True):
        done = min(step, phase.steps)
        rows[phase.length] = rows.get(phase.length, 0) + Pattern(of_phase).before(phase.batch * done)
        step -= done
    return rows


def mixture_told(facts: Sequence[dict[str, Any]]) -> str:
    """`MixedData.facts` in a line for people."""
    return "; ".join(
        f"{fact['name']} {fact['share']:.1%} of the rows"
        + (f" ({', '.join(f'{s:.1%}' for s in fact['shares'])} by phase)" if len(set(fact["shares"])) > 1 else "")
        + f", {fact['text_passes']:.3g} passes over its text"
        for fact in facts
    )


def _shares(
    config: PretrainConfig, directories: dict[str, float | None], parts: Sequence[PreparedData]
) -> list[tuple[float, ...]]:
    """The shares of each phase."""
    weights = [weight for weight in directories.values() if weight is not None]
    given = [name for name, there in (("weights in data=", weights), ("data_shares", config.data_shares)) if there]
    if len(given) > 1 or (given and config.data_temperature != 1):
        both = " and ".join([*given, "data_temperature"][:2])
        raise UserError(f"data: {both} both say the shares; leave one of the two out")
    if config.data_shares:
        rows = list(config.data_shares)
        if len(rows) != len(config.phases) or any(len(row) != len(parts) for row in rows):
            raise UserError(
                f"data_shares: found {config.data_shares}; expected a tuple of {len(parts)} shares for each of the "
                f"{len(config.phases)} phases, in the order of data="
            )
    else:
        rows = [weights or [part.tokens ** (1 / config.data_temperature) for part in parts]] * len(config.phases)
    found = []
    for row in rows:
        if not all(isinstance(share, int | float) and 0 <= share < math.inf for share in row) or not sum(row) > 0:
            raise UserError(
                f"{'data_shares' if config.data_shares else 'data'}: found the shares {tuple(row)}; "
                "expected numbers of at least 0, not all 0"
            )
        found.append(tuple(share / sum(row) for share in row))
    return found


def parts_to_evaluate(data: Any, config: PretrainConfig) -> list[tuple[str, float, Any, PretrainConfig]]:
    """(name, share of the run, data, config) of everything whose held-out part is evaluated by itself.

    The parts of a mixture divide `eval_batches` between them. Other data is one part with the name "".
    """
    if not isinstance(data, MixedData):
        return [("", 1.0, data, config)]
    each = dataclasses.replace(config, eval_batches=-(-config.eval_batches // len(data.parts)))
    return [(n, float(s), p, each) for (n, p), s in zip(data.parts.items(), data.share_of_run, strict=True)]


def mixed_scores(scores: Sequence[tuple[str, float, dict[str, float]]]) -> dict[str, float]:
    """The scores of a mixture, given (name, share, scores) of its parts; parts without scores are left out.

    They are the means of the parts' scores, weighted by share, then the masked-LM loss of each part: mlm_loss_NAME.
    Parts that the run takes no rows from count alike if no others have scores.
    """
    found = [(name, share, one) for name, share, one in scores if one]
    if len(scores) < 2 or not found:
        return found[0][2] if found else {}
    if not any(share for _, share, _ in found):
        found = [(name, 1.0, one) for name, _, one in found]
    total = sum(share for _, share, _ in found)
    mixed = {key: sum(share / total * one[key] for _, share, one in found) for key in found[0][2]}
    mixed["mlm_perplexity"] = math.exp(min(mixed["mlm_loss"], 80.0))
    return mixed | {f"mlm_loss_{name}": one["mlm_loss"] for name, _, one in found}
