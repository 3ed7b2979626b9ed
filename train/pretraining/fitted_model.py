"""The model that a run trains: the config's, fitted to the data, or with `init=SOURCE` the source's.

A resumed run keeps its saved one. The data must have been prepared with the source's vocabulary.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_tokenizer
from bert_jax.formats.names.parameters import family_of, parameters_of
from bert_jax.formats.source import Source, open_source
from train.pretraining.mixture import DataSource, MixedData, head_for
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData
from train.run.adopted import given_to_model, overridden_model

logger = logging.getLogger(__name__)

_UNUSED = re.compile(r"\[unused\d+\]")
WITHOUT_PAIRS = (
    "say text_options.objective=none (with text= or data=random), or run python -m train.prepare with --objective none"
)
_TWICE_NEEDS_TYPES = (
    "rows of the data have a sentence twice, which needs 2; say text_options.twice=0 (with text=), or run python -m "
    "train.prepare without --twice"
)


def open_init(config: PretrainConfig) -> Source | None:
    """Opens the source of `init=`; the weights of a published model are only downloaded once all else is checked."""
    return None if config.init is None else open_source(config.init, parts=("config", "tokenizer"))


def with_model_for(
    config: PretrainConfig,
    data: DataSource,
    given: frozenset[str],
    source: Source | None = None,
    saved: Mapping[str, Any] | None = None,
) -> PretrainConfig:
    """Returns the config with its final model: fitted to the data's vocabulary, or that of `init=`.

    Args:
        config: of the run.
        data: what it trains on.
        given: the fields that the command line sets.
        source: the opened `init=`; None in a resumed run.
        saved: the saved config of a resumed run, which keeps its model even if the source of `init=` has changed.
    """
    if source is not None:
        model = adopted_model(config, data, given, source.config)
    elif config.init is not None and saved:
        model = adopted_model(config, data, given, BertConfig.from_json(saved["model"]))
    else:
        model = fit_to_data(config, data, given)
    if data.tokenizer is not None and model.vocab_size < data.vocab_size:
        mend = f"prepare the text with --vocab {config.init}" if config.init else "leave it out"
        raise UserError(
            f"model.vocab_size: {model.vocab_size} is less than the {data.vocab_size} tokens of the data; {mend}"
        )
    return dataclasses.replace(config, model=model)


def fit_to_data(config: PretrainConfig, data: DataSource, given: frozenset[str]) -> BertConfig:
    """`config.model` with the fields that follow from the data's tokenizer, unless the command line sets them.

    RoBERTa's positions depend on `pad_token_id`, so it must be the tokenizer's; for the other families it only matters
    to programs that read the exported config.

    Raises:
        UserError: the family cannot be trained with the data's objective, or has too few positions for a phase.
    """
    follows: dict[str, Any] = {"vocab_size": data.vocab_size}
    if (tokenizer := data.tokenizer) is not None:
        if tokenizer.has_special("pad"):
            follows["pad_token_id"] = tokenizer.pad_token_id
        if config.model.family in ("roberta", "albert"):  # transformers' configs of the others lack these fields
            follows |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    model = config.model.replace(**{name: v for name, v in follows.items() if f"model.{name}" not in given})
    if data.objective != "none" and (head_for(data) not in family_of(model).heads or model.type_vocab_size < 2):
        raise UserError(
            f"model.model_type: {model.model_type} with {model.type_vocab_size} token types cannot be trained with "
            f"sentence pairs; found data with objective {data.objective}: {WITHOUT_PAIRS}"
        )
    if data.has_second and (types := model.type_vocab_size) < 2:
        raise UserError(f"model.type_vocab_size: found {types}; {_TWICE_NEEDS_TYPES}")
    longest = max(phase.length for phase in config.phases)
    if longest > model.longest_input:
        raise UserError(
            f"phases: length {longest} is more than the {model.longest_input} positions of a {model.model_type} with "
            f"model.max_position_embeddings = {model.max_position_embeddings} and pad_token_id = "
            f"{model.pad_token_id}; lower the length or raise max_position_embeddings"
        )
    return model


def adopted_model(config: PretrainConfig, data: DataSource, given: frozenset[str], theirs: BertConfig) -> BertConfig:
    """The architecture of `config.init`, with the fields that the command line sets; the config file's is ignored.

    Args:
        config: of the run.
        data: its objective decides which heads the model has.
        given: the fields that the command line sets.
        theirs: the source's architecture.

    Raises:
        UserError: the source cannot be trained with the objective; or the command line asks for parameters that the
            source lacks or has in another shape.
    """
    source, types = config.init, theirs.type_vocab_size
    if data.objective != "none":
        mend = f"found data with objective {data.objective}: {WITHOUT_PAIRS}"
        if head_for(data) not in family_of(theirs).heads:
            raise UserError(f"init: {source} ({theirs.model_type}) is trained without sentence pairs; {mend}")
        if types < 2:
            raise UserError(f"init: {source} has {types} token type, and sentence pairs need 2; {mend}")
    if data.has_second and types < 2:
        raise UserError(f"init: {source} has {types} token type; {_TWICE_NEEDS_TYPES}")
    model = overridden_model(theirs, config.model, given)
    longest = max(phase.length for phase in config.phases)
    if longest > model.longest_input:
        raise UserError(
            f"phases: length {longest} is more than the {model.longest_input} positions of {source}; lower it, as in "
            f"phases='(({model.longest_input}, {config.phases[0].batch}, {config.phases[0].steps}),)'"
        )
    have, need = (parameters_of(c, head_for(data)) for c in (theirs, model))
    for path, wanted in need.items():
        if path not in have or have[path].shape != wanted.shape:
            found = f"one of {have[path].shape}" if path in have else "none"
            raise UserError(
                f"{', '.join(f'model.{name}' for name in given_to_model(given))}: needs {path} of shape "
                f"{wanted.shape}, and {source} has {found}; leave it out to keep the architecture of init="
            )
    return model


def check_vocabulary(source: Source, data: DataSource, *, field: str = "init") -> None:
    """Raises UserError unless the data was prepared with the source's vocabulary and casing.

    New words in place of [unused] pieces are allowed, and so are the tokenizer settings that only `--recipe google`
    changes. Logs a warning if the source has no tokenizer.
    """
    ours = data.tokenizer
    if ours is None:
        return
    try:
        theirs = load_tokenizer(source)
    except UserError:  # the files do not say how they are cased (Google's do not): assume our casing
        theirs = load_tokenizer(source, cased=ours.cased)
    named = source.name
    if theirs is None:
        logger.warning("%s: %s has no tokenizer, so whether the data fits its vocabulary is unknown", field, named)
        return
    mend = f"prepare the text with --vocab {named}"
    for number, (mine, piece) in enumerate(zip(ours.vocabulary, theirs.vocabulary, strict=False)):
        if mine != piece and not _UNUSED.fullmatch(piece):
            raise UserError(f"{field}: token {number} is {mine!r} in the data and {piece!r} in {named}; {mend}")
    if (found := _casing(ours)) != (expected := _casing(theirs)):
        raise UserError(f"{field}: the data was prepared {found}, and {named} is {expected}; {mend}")


def _casing(tokenizer: Tokenizer) -> str:
    cased = "cased" if tokenizer.cased else "uncased"
    return f"{cased}, accents {'stripped' if tokenizer.strip_accents else 'kept'}"


def check_same_data(
    config: PretrainConfig, data: DataSource, facts: Mapping[str, Any], allow_change: Collection[str]
) -> None:
    """Raises UserError if the data of a resumed run was prepared anew under the same path.

    Args:
        config: of the run.
        data: what `config.data` names now.
        facts: what the newest checkpoint records: `PretrainingJob.facts`, and its step.
        allow_change: "data" in it lets the run go on with other data. Another path needs it too, in `settle_config`.
    """
    other = facts.get("config", {}).get("data") != config.data and not config.text  # made of it in the run directory
    if "data" in allow_change or other or facts.get("data_digest", data.digest) == data.digest:
        return
    parts = list(data.parts.values()) if isinstance(data, MixedData) else [data]
    sums = zip(facts["data_digest"].split(","), parts, strict=False)
    old, part = next((old, part) for old, part in sums if old != part.digest)
    name = part.directory.name if isinstance(part, PreparedData) else config.data
    what = "its text or its examples" if facts.get("data") == data.fingerprint else "its vocabulary"
    raise UserError(
        f"data: {name} was prepared anew, and {what} changed: the sum in its {MANIFEST} is {part.digest[:12]}, and the "
        f"run was trained on {old[:12]} up to step {facts['step']}; put that data back, or say allow_change=data to "
        "continue on the new data, or start another run with init="
    )
