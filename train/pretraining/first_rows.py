"""`init_data=true`: a run continues in its data after the rows that another run used of it.

Each directory gives its rows in the same order in every run with the same seed, alone or in a mixture, in any shares.
So what a run used of each directory follows from its checkpoint's step, phases and shares.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.formats.source import Source
from train.pretraining.mixture import DataSource, MixedData, rows_of_parts
from train.pretraining.phases import Phase, in_rows
from train.pretraining.recipe import PretrainConfig
from train.run.config import to_json
from train.run.directory import RunDirectory

logger = logging.getLogger(__name__)


def with_first_rows(
    config: PretrainConfig, data: DataSource, source: Source | None, saved: Mapping[str, Any] | None = None
) -> PretrainConfig:
    """Returns the config with the `first_rows` that `init_data=true` asks for: the rows that the run of `init=` used.

    A directory of this run's data that the other run did not have begins at its first row. Without `init_data`, a run
    that would see the other's rows again is only warned about.

    Args:
        config: of the run.
        data: what it trains on.
        source: the opened `init=`; None in a resumed run.
        saved: the saved config of a resumed run, which keeps its `first_rows`.

    Raises:
        UserError: `init=` is not a pretraining run, its seed is another, or it has none of this run's data.
    """
    directories = len(data.digest.split(","))
    if wrong := next((entry for entry in config.first_rows if len(entry) != directories + 1), None):
        raise UserError(
            f"first_rows: found {wrong}; expected a length and {directories} numbers of rows, one for each directory "
            "of data="
        )
    if source is None:
        if config.init is None and config.init_data:
            raise UserError("init_data: continues in the data of another run; say init=RUN with it")
        kept = tuple(tuple(entry) for entry in (saved or {}).get("first_rows", ()))
        return dataclasses.replace(config, first_rows=kept) if config.init_data or config.init_step else config
    is_pretraining = source.is_run and not source.is_finetuning_run
    if not config.init_data:
        if is_pretraining and config.init_step:
            return _going_on(config, data, source)
        if is_pretraining and isinstance(_rows_to_leave_out(config, data, source), tuple):
            logger.warning(
                "init: %s was trained on this data with seed=%d, so this run sees the same rows again, in the same "
                "order; say init_data=true to continue after them, or choose another seed=",
                source.name,
                config.seed,
            )
        return config
    if not is_pretraining:
        raise UserError(f"init_data: {source.name} is not a pretraining run, so nothing says which rows it used")
    if config.init_step:
        raise UserError("init_data: init_step=true continues in the data already; leave one of the two out")
    if config.first_rows:
        raise UserError("first_rows: init_data=true finds the rows that were used; leave one of the two out")
    found = _rows_to_leave_out(config, data, source)
    if isinstance(found, str):
        raise UserError(f"init_data: {found}, so its rows cannot be continued; leave init_data out")
    theirs = RunDirectory(str(source.folder)).facts_to_resume()["config"].get("packed", ())
    others = tuple(entry for entry in theirs if entry[0] not in {phase.length for phase in config.phases})
    return dataclasses.replace(config, first_rows=found, packed=(*config.packed, *others))


def _going_on(config: PretrainConfig, data: DataSource, source: Source) -> PretrainConfig:
    """The config of a run that takes another's step, and with it its place in the data, if the rows are the same.

    With another seed, or on other data, they are not.

    Raises:
        UserError: by its phases it would be elsewhere in the data.
    """
    facts = RunDirectory(str(source.folder)).facts_to_resume()
    if not facts or facts["config"]["seed"] != config.seed or facts["data_digest"] != data.digest:
        return config
    theirs = facts["config"].get("first_rows", ())
    config = dataclasses.replace(config, first_rows=tuple(tuple(entry) for entry in theirs))
    step = facts["step"] if config.init_at is None else config.init_at
    check_same_place(config, data, {**facts, "step": step}, or_else=", or choose another seed=")
    return config


def check_same_place(config: PretrainConfig, data: DataSource, facts: Mapping[str, Any], *, or_else: str = "") -> None:
    """Raises UserError if a resumed run, by changed phases or shares, had used other rows than it has.

    Then rows would come twice in an epoch, or never. With other data no row is the same.

    Args:
        config: of the run.
        data: what it trains on.
        facts: what the newest checkpoint records: `PretrainingJob.facts`, and its step.
        or_else: another way out, for the message.
    """
    if facts.get("data_digest") != data.digest:
        return
    step, is_mixed = facts["step"], isinstance(data, MixedData)
    shares = data.shares if isinstance(data, MixedData) else [(1.0,)] * len(config.phases)
    before = rows_used_of_each(facts)
    after = rows_used_of_each({**facts, "config": to_json(config), "data_shares": shares})
    if all(after[name].get(length, 0) == rows for name, of in before.items() for length, rows in of.items()):
        return
    done, left = [], step
    for length, batch, steps, *own in facts["config"]["phases"]:
        if left > 0:
            done.append(str((length, batch, min(steps, left), *own)))
        left -= steps
    raise UserError(
        f"phases: {step:,} steps are done, and by the new phases{' and shares' * is_mixed} they had other rows of the "
        f"data, so rows would come twice or never; let phases= begin with those that are done, {', '.join(done)}"
        f"{', and data_shares= with their shares' * is_mixed}{or_else}"
    )


def _rows_to_leave_out(config: PretrainConfig, data: DataSource, source: Source) -> tuple[tuple[int, ...], ...] | str:
    """`first_rows` after the run of `init=`; or why that run's rows are not this run's."""
    facts = RunDirectory(str(source.folder)).facts_to_resume()
    if not facts:
        return f"{source.name} has no checkpoint"
    theirs = facts["config"]
    if theirs["seed"] != config.seed:
        return f"its seed is {theirs['seed']} and this run's is {config.seed}"
    for length, is_packed in _packing_of(theirs).items():
        if any(phase.length == length for phase in config.phases) and config.is_packed(length) != is_packed:
            theirs_is, ours_is = ("packed", "not packed") if is_packed else ("not packed", "packed")
            return f"its examples of {length} tokens are {theirs_is}, and this run's are {ours_is} (see packing=)"
    used = rows_used_of_each(facts)
    digests = data.digest.split(",")
    if not any(digest in used for digest in digests):
        return f"its data is {theirs['data']} and this run's is {config.data}"
    lengths = sorted({length for rows in used.values() for length in rows})
    counts = [(length, *(used.get(digest, {}).get(length, 0) for digest in digests)) for length in lengths]
    return tuple(entry for entry in counts if any(entry[1:]))


def _packing_of(config: Mapping[str, Any]) -> dict[int, bool]:
    """Length -> whether its examples share rows, for each length of which a run with this saved config used rows."""
    packed = {length for length, _ in config.get("packed", ())}
    lengths = [length for length, *_ in (*config["phases"], *config.get("first_rows", ()))]
    return {length: length in packed for length in lengths}


def rows_used_of_each(facts: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Digest of a directory -> length -> the rows that a run has used of it, with those that it left out itself.

    Args:
        facts: what a checkpoint of the run records: `PretrainingJob.facts`, and its step.
    """
    digests = facts["data_digest"].split(",")
    ratios = dict(facts["config"].get("packed", ()))
    phases = [in_rows(Phase(*phase), ratios) for phase in facts["config"]["phases"]]
    shares = facts.get("data_shares", [[1.0]] * len(phases))  # older checkpoints are of runs on one directory
    found: dict[str, dict[int, int]] = {digest: {} for digest in digests}
    counts = [*rows_of_parts(phases, shares, facts["step"]).items()]
    counts += [(length, rows) for length, *rows in facts["config"].get("first_rows", ())]
    for length, rows_K in counts:
        for digest, rows in zip(digests, rows_K, strict=True):
            found[digest][length] = found[digest].get(length, 0) + int(rows)
    return found
