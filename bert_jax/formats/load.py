"""The public `load`: a run directory, a folder or a published model -> config, parameters, tokenizer and report."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.families import ENCODER
from bert_jax.formats.names.parameters import head_in, is_encoder, parameters_of
from bert_jax.formats.read import OpenModel, ReadModel, Report, is_allowed, read_model, surplus_layers
from bert_jax.formats.source import AnySource, Source, open_source
from bert_jax.formats.tensorflow.google import Gelu
from bert_jax.shown import facts_table
from bert_jax.tree import flatten, parameter_count, unflatten

if TYPE_CHECKING:
    import flax.linen as nn
    import jax

    from bert_jax.data.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The result of `load`; unpacks to four values."""

    config: BertConfig
    params: dict[str, Any]
    tokenizer: "Tokenizer | None"
    report: Report

    @property
    def model(self) -> "nn.Module":
        """The Flax module that takes `params`."""
        from bert_jax.model.heads import HEADS

        return HEADS[self.report.head](self.config)

    def num_parameters(self) -> int:
        """How many numbers `params` hold; tied parameters count once, as in transformers."""
        return parameter_count(self.params)

    def __repr__(self) -> str:
        tokens = "no tokenizer" if self.tokenizer is None else f"tokenizer of {self.tokenizer.vocab_size:,} tokens"
        kind = f"{self.config.model_type}, {self.report.head}"
        return f"Loaded({self.report.source}: {kind}, {self.num_parameters():,} parameters, {tokens})"

    def _repr_html_(self) -> str:
        facts = {
            "model": f"{self.config.model_type}, head {self.report.head}",
            "layers": self.config.num_hidden_layers,
            "hidden size": self.config.hidden_size,
            "parameters": f"{self.num_parameters():,}",
            "step": "not recorded" if self.report.step is None else f"{self.report.step:,}",
            "tokenizer": "none" if self.tokenizer is None else repr(self.tokenizer),
        }
        fresh = {"initialised randomly": ", ".join(_tops(list(self.report.fresh)))} if self.report.fresh else {}
        return facts_table(f"Loaded: {self.report.source}", facts | fresh)


def load(
    source: AnySource,
    *,
    head: str | None = None,
    num_labels: int | None = None,
    labels: Iterable[str] | None = None,
    allow_missing: Iterable[str] = (),
    dtype: str | None = None,
    step: int | None = None,
    key: "jax.Array | None" = None,
    revision: str | None = None,
    token: str | bool | None = None,
    gelu: Gelu | None = None,
) -> Loaded:
    """Loads a model: the newest verified checkpoint of a run directory, or any BERT in any published format.

    Args:
        source: a run directory (`runs/NAME`; for a fine-tuning run, its best model once there is one), a folder
            (`runs/NAME/export`, or one of any origin), or a hub id ("google-bert/bert-base-uncased", or with
            "@REVISION" after it). A path that exists takes precedence over a hub id.
        head: the head to load: a key of `bert_jax.model.heads.HEADS`; None: the one that the source has. Parameters
            that the head does not use are ignored and listed in the report.
        num_labels: the number of a classifier's classes, if the config does not say it.
        labels: their names; None: the config's if their number matches, else LABEL_0, LABEL_1 ...
        allow_missing: names of parameters or subtrees ("nsp_head", "classifier") that may be missing or have another
            shape; they are initialised randomly, and the report and a warning say so.
        dtype: type of the operands of matrix products; None: "float32", whatever the run was trained in.
        step: of a run directory, the checkpoint to load; None: the newest, or of a fine-tuning run its best model.
        key: for parameters that are initialised randomly; None: `jax.random.key(0)`.
        revision: branch, tag or commit of a published model.
        token: for a private or gated model; None: HF_TOKEN, or the token that `hf auth login` stored.
        gelu: for a folder of Google's, whose "gelu" means two functions: "erf" or "tanh"; None: erf (ALBERT: tanh).
            The report notes the choice.

    Returns:
        Loaded(config, params, tokenizer, report): params are float32 JAX arrays on the default device, a plain nested
        dict for `model.apply({"params": params}, ...)`; the tokenizer is None if the source has none.

    Raises:
        FileNotFoundError: `source` does not exist, the run has no checkpoint yet, or neither the cache nor the hub (if
            it can be reached) has a published model of that name.
        UserError: parameters are missing or do not fit, files are damaged, or the tokenizer has more tokens than the
            model.
    """
    allowed = (allow_missing,) if isinstance(allow_missing, str) else tuple(allow_missing)
    opened = open_source(source, revision=revision, token=token).best(step)
    names = _labels(opened, num_labels, labels)
    if opened.is_run:
        config, params, report = load_arrays(opened, head=head, labels=names, step=step, gelu=gelu)
        report.check(allowed)
        flat = _on_device(flatten(params).items())
    else:
        _refuse_step(step, opened)
        with OpenModel(opened, head=head, labels=names, gelu=gelu) as model:
            model.report.check(allowed)
            flat = _on_device(model.arrays(contiguous=True))
            config, report = model.config, model.report
        if note := surplus_layers(report.unexpected, config):
            logger.warning("%s: %s", opened.config_file, note)
    config = config if dtype is None else config.replace(dtype=dtype)
    tokenizer = load_tokenizer(opened)
    if tokenizer is not None:
        tokenizer.check_vocab_size(config.vocab_size)
    fresh = [name for name in parameters_of(config, report.head) if name not in flat and is_allowed(name, allowed)]
    if fresh:
        flat |= _initialise(config, report.head, fresh, key)
        report = replace(report, fresh=tuple(fresh))
        logger.warning("%s: %s initialised randomly: %s", source, _counted(fresh), ", ".join(_tops(fresh)))
    return Loaded(config, unflatten(flat), tokenizer, report)


def load_arrays(
    source: AnySource,
    *,
    head: str | None = None,
    labels: tuple[str, ...] | None = None,
    step: int | None = None,
    verify: bool = True,
    gelu: Gelu | None = None,
) -> ReadModel:
    """Loads as `load`, but NumPy arrays on the host, for callers that put them on a mesh, write them or hash them.

    The arrays have the file's memory layout: most kernels from Hugging Face's files are views on a transpose.

    Missing and mismatched parameters do not raise an error but are in the report: call `report.check()`.
    `verify=False` skips the checksum of a folder's weights; a run's checkpoints are always verified.

    Returns:
        ReadModel(config, params, report).
    """
    opened = open_source(source, parts=("config", "weights")).best(step)
    if not opened.is_run:
        _refuse_step(step, opened)
        return read_model(opened, head=head, labels=labels, verify=verify, gelu=gelu)
    if gelu is not None:
        raise UserError(f"gelu={gelu!r}: applies only to Google's files; {opened} is a run directory")
    from bert_jax.training.checkpoint.checkpoints import Checkpoints

    config = opened.config if labels is None else opened.config.replace(labels=labels)
    with Checkpoints(opened.folder / "checkpoints") as checkpoints:
        restored = checkpoints.restore_arrays(step, part="params")
    flat = {name: np.asarray(array, dtype=np.float32) for name, array in flatten(restored.state["params"]).items()}
    return _select(flat, config, head or _head_of_run(opened, flat), str(opened), restored.step)


def _head_of_run(run: Source, names: Iterable[str]) -> str:
    """The head of a run's checkpoint, which names none."""
    found, config = head_in(names, run.config), run.config
    # The parameters of multiple choice are those of a classifier with one class. Fine-tuning records a problem_type for
    # every classifier of texts, and none for choices.
    is_choice = run.is_finetuning_run and config.problem_type is None and config.num_labels == 1
    return "multiple-choice" if is_choice and found == "sequence-classification" else found


def load_config(source: AnySource) -> BertConfig:
    """The config alone, without reading any weights; `dtype` and `remat` have their defaults.

    Raises:
        FileNotFoundError, UserError: as `load`.
    """
    return open_source(source, parts=("config",)).config


def load_tokenizer(
    source: AnySource, *, revision: str | None = None, token: str | bool | None = None, **options: Any
) -> "Tokenizer | None":
    """The tokenizer of a source as in `load`; None if it has none. `options` are those of `Tokenizer.load`.

    Raises:
        FileNotFoundError, UserError: as `load`.
    """
    from bert_jax.data.tokenizer.tokenizer import Tokenizer

    opened = open_source(source, revision=revision, token=token, parts=("config", "tokenizer"))
    folder, model = opened.folder, opened.fields if opened.kind == "hf" else {}
    if opened.is_run:
        folder = folder / "tokenizer"
        options.setdefault("max_length", opened.config.longest_input)
    if not Tokenizer.is_in(folder):
        return None
    tokenizer = Tokenizer.load(folder, model=model, **options)
    # What Hugging Face's config.json says was read above; a run's tokenizer was saved before its model was known.
    one_type = opened.kind != "hf" and not opened.config.tells_token_types
    return tokenizer.without_token_types() if one_type else tokenizer


def _refuse_step(step: int | None, source: Source) -> None:
    if step is not None:
        raise UserError(f"step={step}: {source} is not a run directory, so it has no steps")


def _labels(source: Source, num_labels: int | None, labels: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names of the classes, if the caller gives names or a number; else None."""
    if isinstance(labels, str):
        raise UserError(f"labels={labels!r}: expected a list of names")
    names = None if labels is None else tuple(labels)
    if num_labels is not None and (not isinstance(num_labels, int | np.integer) or num_labels < 1):
        raise UserError(f"num_labels={num_labels!r}: expected a whole number of at least 1")
    if num_labels is None or (names is not None and len(names) == num_labels):
        return names
    if names is not None:
        raise UserError(f"num_labels={num_labels}, but labels names {len(names)}")
    known = source.config.labels
    return known if len(known) == num_labels else tuple(f"LABEL_{number}" for number in range(num_labels))


def _on_device(arrays: Iterable[tuple[str, np.ndarray]]) -> "dict[str, jax.Array]":
    """Moves each array to the default device as it is read, so that the host never holds a second copy of the model."""
    import jax

    return {path: jax.device_put(array) for path, array in arrays}


def _select(flat: Mapping[str, np.ndarray], config: BertConfig, head: str, source: str, step: int) -> ReadModel:
    """Selects one head's parameters from a checkpoint's tree, and makes the report."""
    stem = ENCODER if is_encoder(head, config) and any(path.startswith(ENCODER) for path in flat) else ""
    wanted = parameters_of(config, head)
    there = {path: flat[stem + path] for path in wanted if stem + path in flat}
    wrong = {
        path: f"{path}: has shape {array.shape}; the config needs {wanted[path].shape}"
        for path, array in there.items()
        if array.shape != wanted[path].shape
    }
    report = Report(
        source=source,
        head=head,
        step=step,
        verified=True,
        loaded=tuple(path for path in there if path not in wrong),
        missing=tuple(path for path in wanted if path not in there),
        unexpected=tuple(sorted(set(flat) - {stem + path for path in wanted})),
        mismatched=tuple(wrong.values()),
    )
    return ReadModel(config, unflatten({path: there[path] for path in report.loaded}), report)


def _initialise(config: BertConfig, head: str, paths: list[str], key: "jax.Array | None") -> dict[str, Any]:
    """Initialises the parameters at `paths` as `model.init` does, without computing the others."""
    import jax
    import jax.numpy as jnp

    from bert_jax.model.heads import HEADS

    model = HEADS[head](config)

    @jax.jit
    def draw(key):
        drawn = flatten(model.init(key, jnp.zeros((1, 1), jnp.int32))["params"])
        return {path: drawn[path] for path in paths}

    return draw(jax.random.key(0) if key is None else key)


def _tops(paths: list[str]) -> list[str]:
    return list(dict.fromkeys(path.rsplit("/", 1)[0] for path in paths))


def _counted(paths: list[str]) -> str:
    return "1 parameter is" if len(paths) == 1 else f"{len(paths)} parameters are"
