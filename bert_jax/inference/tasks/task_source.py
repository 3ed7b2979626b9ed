"""Loads the model for a task, and checks the texts and options that users pass to a pipeline."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, valid_unicode
from bert_jax.formats.load import Loaded, load, load_tokenizer
from bert_jax.formats.names.families import ENCODER
from bert_jax.formats.names.parameters import head_in, is_encoder, parameters_of
from bert_jax.formats.read import IncompleteModel, OpenModel
from bert_jax.formats.source import AnySource, Source, open_source
from bert_jax.tree import flatten, unflatten

_SHOWN = 40  # the most characters of a text in an error message


def is_cut(truncation: bool | str) -> bool:
    """Whether texts are truncated: True for True and "longest_first", False for False and "do_not_truncate".

    Raises:
        UserError: any other value.
    """
    if truncation in (True, "longest_first"):
        return True
    if truncation in (False, "do_not_truncate"):
        return False
    raise UserError(f"truncation={truncation!r}: expected True, False, 'longest_first' or 'do_not_truncate'")


def check_max_length(max_length: int | None, least: int) -> None:
    """Raises UserError if `max_length` is below `least`, the number of special tokens that each row needs."""
    if max_length is None:
        return
    check_count("max_length", max_length)
    if max_length < least:
        raise UserError(f"max_length={max_length}: expected at least {least}, the special tokens of each row")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises UserError unless `value`, the option `name`, is a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UserError(f"{name}={value!r}: expected a whole number, at least {least}")


def check_word(name: str, value: Any, known: Collection[str]) -> None:
    """Raises UserError unless `value`, the option `name`, is one of the `known` words in upper or lower case."""
    if not isinstance(value, str) or value.lower() not in known:
        raise UserError(f"{name}={value!r}: expected one of {', '.join(known)}")


def items_of(given: Any, what: str = "a text or a list of texts") -> list[Any]:
    """The items of a list, or of another iterable, that a user passes to a pipeline.

    Raises:
        UserError: it is no such thing; the message says that `what` is expected.
    """
    is_scalar = isinstance(given, np.ndarray) and given.ndim == 0
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping) or is_scalar:
        raise UserError(f"expected {what}, found {type(given).__name__} ({given!r:.40})")
    return list(given)


def check_text(text: Any, name: str) -> str:
    """Returns the text after checking it.

    Args:
        text: the user's value.
        name: its name for messages, such as "text 3".

    Raises:
        UserError: it is not a string, or cannot be encoded as UTF-8.
    """
    if not isinstance(text, str):
        raise UserError(f"{name}: expected a string, found {text!r:.60}")
    return valid_unicode(text, name)


def shortened(text: str) -> str:
    """The beginning of a text, in quotes, for messages."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


HEAD_OF = {
    "fill-mask": "mlm",
    "likelihood": "mlm",
    "next-sentence": "nsp",
    "attend": "encoder-no-pooler",
    "embed": "encoder-no-pooler",
    "embed-pooled": "encoder",
    "text-classification": "sequence-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "multiple-choice": "multiple-choice",
}
VERB_OF = {
    "fill-mask": "fill-mask",
    "text-classification": "classify",
    "token-classification": "tag",
    "question-answering": "answer",
    "multiple-choice": "choose",
}
FINE_TUNED = frozenset(VERB_OF) - {"fill-mask"}
"""Tasks whose head must have been trained for them. The others accept any model that has the parameters."""

_TASK_OF = {HEAD_OF[task]: task for task in VERB_OF} | {"pretraining": "fill-mask"}


def model_for(task: str, source: AnySource | Loaded, *, dtype: str | None = None) -> tuple[Loaded, Tokenizer]:
    """Loads a model with only the parameters that a task needs, and its tokenizer.

    A task that needs only the encoder accepts a model with any head.

    Args:
        task: a key of `HEAD_OF`.
        source: a run directory, a folder, a hub id, or what `load` returned. For a fine-tuning run with an `export/`,
            this loads that: its best model.
        dtype: as `load`.

    Raises:
        FileNotFoundError, UserError: as `load`.
        UserError: the model does not have the task's head, or has no tokenizer.
    """
    head = HEAD_OF[task]
    if isinstance(source, Loaded):
        loaded = source if dtype is None else source._replace(config=source.config.replace(dtype=dtype))
        if task in FINE_TUNED:
            _check_head(task, loaded.report.head, loaded.report.source)
    else:
        best = open_source(source).best()
        if task in FINE_TUNED:
            _check_source(task, best)
        try:
            loaded = load(best, head=head, dtype=dtype)
        except IncompleteModel as error:
            raise _lacking(task, str(best), error.missing) from None
        if task in FINE_TUNED and best.is_run:
            _check_checkpoint(task, loaded)
    where = loaded.report.source
    if loaded.tokenizer is None:
        raise UserError(f"{where}: has no tokenizer (tokenizer.json or vocab.txt), which {task} needs")
    flat = flatten(loaded.params)
    wanted = parameters_of(loaded.config, head)
    stem = ENCODER if is_encoder(head, loaded.config) and any(path.startswith(ENCODER) for path in flat) else ""
    if missing := [path for path in wanted if stem + path not in flat]:
        raise _lacking(task, where, [path for path in missing if path.removeprefix(ENCODER) not in flat])
    return loaded._replace(params=unflatten({path: flat[stem + path] for path in wanted})), loaded.tokenizer


def opened(source: AnySource | Loaded) -> Source | Loaded:
    """Resolves a user's source, once; returns what `load` returned as it is."""
    return source if isinstance(source, Loaded) else open_source(source)


def settings_of_run(source: Source | Loaded) -> Mapping[str, Any]:
    """The config of a fine-tuning run; {} for any other source."""
    return source.fields if isinstance(source, Source) and source.is_finetuning_run else {}


def literal_tokenizer(tokenizer: Tokenizer, source: Source | Loaded) -> Tokenizer:
    """The source's tokenizer, changed so that "[MASK]" and other special tokens in a text become those tokens.

    A run prepared by Google's rules splits them like any other text, but here users mark masks with them. If `source`
    is what `load` returned, its tokenizer is returned unchanged.
    """
    if tokenizer.literal_special_tokens or isinstance(source, Loaded):
        return tokenizer
    literal = load_tokenizer(source.best(), literal_special_tokens=True)
    assert literal is not None
    return literal


def longest_row(config: BertConfig, tokenizer: Tokenizer) -> int:
    """The number of tokens of the longest row that both the model and its tokenizer accept."""
    return min(tokenizer.max_length or config.longest_input, config.longest_input)


def untrained_parts(task: str, loaded: Loaded) -> tuple[str, ...]:
    """The parts of a fine-tuned task's head that no training has changed: ("classifier",), or () if it looks trained.

    These are parts that `load` initialised randomly, and a classifier whose biases are all 0, as all programs
    initialise them: the first step of training changes every one. (The gradient of question answering's and multiple
    choice's biases is 0, so nothing is known of theirs.)
    """
    if task not in FINE_TUNED:
        return ()
    head = {path: leaf for path, leaf in flatten(loaded.params).items() if not path.startswith(ENCODER)}
    fresh = [path for path in loaded.report.fresh if path in head]
    biases = [path for path in head if path.endswith("bias")]
    if task in _HAS_TRAINED_BIASES and biases and not any(np.any(np.asarray(head[path])) for path in biases):
        fresh += biases
    return tuple(dict.fromkeys(path.split("/", 1)[0] for path in fresh))


_HAS_TRAINED_BIASES = ("text-classification", "token-classification")


def _check_source(task: str, source: Source) -> None:
    """Checks the head that the files name; parameters do not tell, since all kinds of classifier name them alike."""
    if source.is_run:
        if not source.is_finetuning_run:
            raise UserError(f"{source}: a pretraining run; {_named(task)} needs a fine-tuned model")
        return
    with OpenModel(source) as model:
        found = model.report.head
    says = source.fields.get("architectures")
    _check_head(task, found if says else _perhaps_choices(found, task), str(source))


def _check_checkpoint(task: str, loaded: Loaded) -> None:
    """Checks the head of a run's checkpoint, which does not name it, by the parameters in it."""
    report = loaded.report
    found = head_in({*report.loaded, *report.unexpected}, loaded.config)
    _check_head(task, _perhaps_choices(found, task), report.source)


def _perhaps_choices(found: str, task: str) -> str:
    """The head that parameters alone suggest; for multiple choice they are the same as for sequence classification."""
    return HEAD_OF[task] if (found, task) == ("sequence-classification", "multiple-choice") else found


def _check_head(task: str, found: str, where: str) -> None:
    if found == HEAD_OF[task]:
        return
    other = f"which is for {_named(_TASK_OF[found])}" if found in _TASK_OF else "which is for no pipeline"
    raise UserError(f"{where}: the model has the head {found!r}, {other}; {_named(task)} needs {HEAD_OF[task]!r}")


def _lacking(task: str, where: str, missing: Sequence[str]) -> UserError:
    parts = ", ".join(dict.fromkeys(path.removeprefix(ENCODER).split("/", 1)[0] for path in missing))
    return UserError(f"{where}: the model has no {parts} ({len(missing)} parameters), which {_named(task)} needs")


def _named(task: str) -> str:
    verb = VERB_OF.get(task, task)
    return task if verb == task else f"{task} (verb {verb})"
