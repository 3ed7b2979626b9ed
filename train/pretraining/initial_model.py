"""`init=SOURCE`: the architecture that a run takes over from it, and whether the data was prepared for it."""

import logging
import re

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.hub_files import published_as
from bert_jax.formats.load import load_config, load_tokenizer, resolve
from bert_jax.formats.names.parameters import family_of, parameters_of
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import DataSource, head_for

logger = logging.getLogger(__name__)

_UNUSED = re.compile(r"\[unused\d+\]")


def adopted_model(
    config: PretrainConfig, data: DataSource, given: frozenset[str], theirs: BertConfig | None = None
) -> BertConfig:
    """The architecture of `config.init`, whatever the config file's model is, with what the command line says of it.

    `COMPUTE_FIELDS` stay the config's: they say how to compute.

    Args:
        config: of the run.
        data: its objective decides which heads there are.
        given: the fields that were said on the command line.
        theirs: the source's architecture, where it is known already.

    Raises:
        FileNotFoundError, UserError: as `load_config`; the source has no model for the objective; or the command line
            asks for parameters that the source does not have, by number or by shape.
    """
    source = str(config.init)
    theirs = theirs or load_config(source)
    _check_objective(source, theirs, data)
    said = {name: getattr(config.model, name) for name in said_of_the_model(given)}
    model = theirs.replace(**({name: getattr(config.model, name) for name in COMPUTE_FIELDS} | said))
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
                f"{', '.join(f'model.{name}' for name in said)}: needs {path} of shape {wanted.shape}, and {source} "
                f"has {found}; leave it out, the architecture is that of init="
            )
    return model


def check_vocabulary(source: str, data: DataSource, *, field: str = "init") -> None:
    """UserError unless the data was prepared with the source's vocabulary, in its casing.

    Words of one's own in the place of [unused] pieces are all right, and so is what only Google's rules treat
    otherwise. A source without a tokenizer is warned about.
    """
    ours = data.tokenizer
    if ours is None:
        return
    theirs = _tokenizer(source, ours)
    if theirs is None:
        logger.warning("%s: %s has no tokenizer, so nothing tells whether the data was prepared for it", field, source)
        return
    mend = f"prepare the text with --vocab {source}"
    for number, (mine, piece) in enumerate(zip(ours.vocabulary, theirs.vocabulary, strict=False)):
        if mine != piece and not _UNUSED.fullmatch(piece):
            raise UserError(f"{field}: token {number} is {mine!r} in the data and {piece!r} in {source}; {mend}")
    if (told := _casing(ours)) != (expected := _casing(theirs)):
        raise UserError(f"{field}: the data was prepared {told}, and {source} is {expected}; {mend}")


def _tokenizer(source: str, ours: Tokenizer) -> Tokenizer | None:
    """The source's tokenizer; one whose files leave the casing open, as Google's do, is taken to be cased as ours."""
    try:
        return load_tokenizer(source)
    except UserError:
        return load_tokenizer(source, cased=ours.cased)


def origin(source: str) -> str | None:
    """ "ORG/NAME@COMMIT" of a published model, None for a folder: with it a run can be repeated."""
    return published_as(resolve(source, parts=("config",)))


def size_of(model: BertConfig) -> str:
    """What one calls a model by, for a line in the log."""
    return f"{model.model_type}, {model.num_hidden_layers} layers of {model.hidden_size}, {model.vocab_size:,} tokens"


def said_of_the_model(given: frozenset[str]) -> list[str]:
    """The fields of the architecture among those of the command line."""
    names = (path.removeprefix("model.") for path in sorted(given) if path.startswith("model."))
    return [name for name in names if name not in COMPUTE_FIELDS]


def _check_objective(source: str, theirs: BertConfig, data: DataSource) -> None:
    if data.objective == "none":
        return
    if head_for(data) not in family_of(theirs).heads:
        raise UserError(
            f"init: {source} ({theirs.model_type}) is trained without sentence pairs; prepare the text with "
            f"--objective none, not {data.objective}"
        )
    if theirs.type_vocab_size < 2:
        raise UserError(
            f"init: {source} knows {theirs.type_vocab_size} token type, and pairs need 2; prepare the text with "
            f"--objective none, not {data.objective}"
        )


def _casing(tokenizer: Tokenizer) -> str:
    cased = "cased" if tokenizer.cased else "uncased"
    return f"{cased}, accents {'stripped' if tokenizer.strip_accents else 'kept'}"
