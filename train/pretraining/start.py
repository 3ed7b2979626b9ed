"""Where a pretraining run starts: the model it trains, its first state, and the teacher it learns from.

The model is the config's, fitted to the data, or with `init=SOURCE` the source's; a resumed run keeps its saved one.
The state is initialised randomly, or comes from another run, a folder, a published model, or Google's TF1 code.
"""

import bisect
import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays, load_tokenizer
from bert_jax.formats.names.parameters import family_of, head_in, parameters_of
from bert_jax.formats.read import from_stored, is_allowed
from bert_jax.formats.source import Source, open_source
from bert_jax.formats.stored import Stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint, is_checkpoint
from bert_jax.formats.tensorflow.google import optimizer_state
from bert_jax.formats.tensorflow.names import open_google
from bert_jax.formats.training_record import read_run_config
from bert_jax.model.heads import BertForMaskedLM
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.distillation import DistillationConfig, check_teacher, distillation_on
from bert_jax.training.moments import MomentsState
from bert_jax.training.objectives import Objective, Pretraining
from bert_jax.training.sharding import fused_loss_on, state_shardings
from bert_jax.training.step import TrainState
from bert_jax.tree import flatten, unflatten
from train.pretraining.mixture import MixedData
from train.pretraining.phases import Phase, in_rows, rows_used
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import DataSource, PreparedData, head_for
from train.run.adopted import check_finite, given_to_model, overridden_model, place_on_mesh

logger = logging.getLogger(__name__)

_UNUSED = re.compile(r"\[unused\d+\]")
_WITHOUT_PAIRS = (
    "say text_options.objective=none (with text= or data=random), or run python -m train.prepare with --objective none"
)
_TWICE_NEEDS_TYPES = (
    "rows of the data have a sentence twice, which needs 2; say text_options.twice=0 (with text=), or run python -m "
    "train.prepare without --twice"
)
# What a source may lack: an encoder has no heads, a masked LM has neither pooler nor sentence-pair head.
_HEADS = ("mlm_head", "nsp_head", "bert/pooler")


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
            f"sentence pairs; found data with objective {data.objective}: {_WITHOUT_PAIRS}"
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
        mend = f"found data with objective {data.objective}: {_WITHOUT_PAIRS}"
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
    theirs = facts.get("config", {}).get("data")
    if "data" in allow_change or theirs != config.data or facts.get("data_digest", data.digest) == data.digest:
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


def first_state(
    config: PretrainConfig, target: TrainState, fresh: Callable[[], TrainState], source: Source | None
) -> TrainState:
    """The state of a run without checkpoints.

    With `init_optimizer=true` it has the source's optimizer moments and count of updates too. The step, and with it the
    schedule and the position in the data, still starts at 0, unless `init_step=true` takes the source's.

    Args:
        config: of the run.
        target: shapes and shardings of the state.
        fresh: makes a random state.
        source: the opened `init=`.
    """
    if config.init_step and not (config.init and config.init_optimizer):
        raise UserError("init_step: needs another run's optimizer state; say init=RUN init_optimizer=true too")
    if config.init_at is not None and not (config.init and config.init_optimizer and not config.init_data):
        raise UserError("init_at: takes a run's whole state; say init=RUN init_optimizer=true too, and no init_data")
    if source is None:
        return fresh()
    if not config.init_optimizer:
        state = fresh()
        return dataclasses.replace(state, params=initial_parameters(source, target.params, state.params))
    state = _with_optimizer(config, source, target, fresh)
    step = state.step if config.init_step else jnp.zeros_like(state.step)
    if int(step) >= config.total_steps:
        raise UserError(
            f"init_step: {config.init} is at step {int(step)}, and the phases end at step {config.total_steps}: "
            "nothing is left to do; give the last phase more steps"
        )
    return dataclasses.replace(
        state,
        step=step,
        skipped_total=jnp.zeros_like(step),  # separate arrays, since the training step donates each of them
        skipped_in_a_row=jnp.zeros_like(step),
        last_skipped_step=jnp.full_like(step, -1),
    )


def initial_parameters(source: Source, target: Any, fresh: Any) -> Any:
    """The parameters of a source, sharded as `target`; a head that it lacks entirely is taken from `fresh`.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; any other parameter is missing, or has another shape.
    """
    head = "pretraining" if "nsp_head" in target else "mlm"
    _, params, report = load_arrays(source.with_weights(), head=head)
    lacking = tuple(name for name in _HEADS if _lacks(name, report.loaded, report.missing))
    report.check(lacking)
    check_finite(params, source.name)
    found = flatten(params)
    if lacking:
        found |= {path: leaf for path, leaf in flatten(fresh).items() if is_allowed(path, lacking)}
        if jax.process_index() == 0:
            logger.warning("init: %s has no %s: initialised randomly", source.name, ", ".join(lacking))
    return place_on_mesh(unflatten(found), target, source.name)


def _lacks(head: str, loaded: tuple[str, ...], missing: tuple[str, ...]) -> bool:
    """Whether the source lacks the whole head; one that has only a part of it is damaged."""
    return any(is_allowed(path, (head,)) for path in missing) and not any(is_allowed(p, (head,)) for p in loaded)


def _with_optimizer(
    config: PretrainConfig, source: Source, target: TrainState, fresh: Callable[[], TrainState]
) -> TrainState:
    checkpoints = epath.Path(source.folder) / "checkpoints"
    if checkpoints.exists():
        earlier = read_run_config(epath.Path(source.folder) / "config.json", needs=("optimizer",))
        _check_same_moments(config, source, earlier["optimizer"])
        with Checkpoints(checkpoints) as stored:
            restored = stored.restore(target, step=config.init_at)
            begins = _decay_begins(earlier, restored.metadata.get("budget") or {})
            _check_before_decay(config, source, begins, int(restored.state.step), stored.steps())
            return restored.state
    if config.init_at is not None:
        raise UserError(f"init_at: {source.name} is not a run directory; leave init_at out")
    if is_checkpoint(source.folder):
        _check_same_moments(config, source, vars(config.optimizer) | {"name": "adamw"})
        return google_state(config, source, target, fresh())
    raise UserError(
        f"init_optimizer: {source.name} is not a run directory and has no TF1 checkpoint, so it has no optimizer state"
    )


def _check_before_decay(
    config: PretrainConfig, source: Source, begins: int | None, step: int, steps: Sequence[int]
) -> None:
    """Raises UserError if the run would go on at the peak rate of schedule=stable from where the source's had fallen.

    Args:
        config: of the run.
        source: the other run.
        begins: its steps before its decay; None: it has another schedule.
        step: of the checkpoint to go on from.
        steps: of all its checkpoints.
    """
    if not config.init_step or config.optimizer.schedule != "stable" or begins is None or step <= begins:
        return
    before = ", ".join(f"{one:,}" for one in steps if one <= begins) or "it has kept none"
    field = "init_step" if config.init_at is None else "init_at"
    raise UserError(
        f"{field}: at step {step:,} {source.name} had begun its decay, which its schedule=stable begins at step "
        f"{begins:,}; say init_at= the step of a checkpoint from before that ({before})"
    )


def _decay_begins(config: Mapping[str, Any], budget: Mapping[str, Any]) -> int | None:
    """The number of steps before the decay of a pretraining run with schedule=stable; None for other runs.

    Args:
        config: the run's, from its config.json.
        budget: what its checkpoints record of `Budget`; {} without one.
    """
    optimizer, packed = config["optimizer"], dict(config.get("packed", ()))
    if "phases" not in config or optimizer.get("schedule") != "stable":
        return None
    if budget.get("decay"):
        return budget["decay"][0]
    total = optimizer["total_steps"]
    begins = total - round(optimizer["decay_share"] * total)
    if optimizer.get("clock", "steps") == "steps":
        return begins
    phases = [in_rows(Phase(*row), packed) for row in config["phases"]]

    def tokens(steps: int) -> int:
        return sum(rows * length for length, rows in rows_used(phases, steps).items())

    return bisect.bisect_right(range(total + 1), tokens(total) * begins / total, key=tokens) - 1


_AVERAGES = ("average_half_life", "average_tail")
_KEPT = {"muon": "Muon's momentum of the layers' matrices", "schedule-free": "Schedule-Free's weights and their mean"}


def _check_same_moments(config: PretrainConfig, source: Source, earlier: Mapping[str, Any]) -> None:
    """Raises UserError if the source's optimizer, with these fields, keeps other arrays than the run's."""
    ours = vars(config.optimizer)
    kinds = [_KEPT.get(run["name"], "Adam's moments of all parameters") for run in (earlier, ours)]
    average = [any(run.get(name) is not None for name in _AVERAGES) for run in (earlier, ours)]
    if kinds[0] != kinds[1]:
        kept = f"{kinds[0]}, and optimizer.name={ours['name']} keeps others"
    elif average[0] != average[1]:
        kept = "an average of its weights, and this run none" if average[0] else "no average of its weights as this run"
    else:
        return
    raise UserError(f"init_optimizer: {source.name} has {kept}; leave init_optimizer out")


def google_state(config: PretrainConfig, source: Source, target: TrainState, fresh: TrainState) -> TrainState:
    """The training state in a TF1 checkpoint: `step` and the optimizer's count are its `global_step`.

    Google's optimizers have no bias correction, so their updates do not depend on the count; a config with bias
    correction divides the moments by 1 - b ** global_step, as if it had made all those steps.

    Args:
        config: of the run.
        source: the folder with the checkpoint.
        target: shapes and shardings.
        fresh: a state from which the other fields are taken.

    Raises:
        FileNotFoundError, UserError: as `Tf1Checkpoint`; there are no moments; or parameters or moments do not fit the
            model.
    """
    folder, model = source.folder, config.model
    head = head_in(flatten(target.params), model)
    with Tf1Checkpoint(folder) as stored, open_google(folder, model.model_type) as parameters:
        step, m, v = optimizer_state(stored, model.model_type)
        if step is None and (config.optimizer.bias_correction or config.init_step):
            field = "init_step" if config.init_step else "optimizer.bias_correction"
            raise UserError(f"{field}: {stored.path} has no global_step, so its number of steps is unknown")
        trees = {}
        for what, tensors in (("parameter", parameters), ("moment adam_m", m), ("moment adam_v", v)):
            tree = _complete_tree(what, tensors, model, head)
            check_finite(tree, source.name if what == "parameter" else f"{source.name}, {what},")
            trees[what] = place_on_mesh(tree, target.params, source.name)
    count = jax.device_put(np.int32(step or 0), target.step.sharding)
    moments = MomentsState(jnp.copy(count), trees["moment adam_m"], trees["moment adam_v"])
    opt_state = fresh.opt_state.copy()  # stays an OrderedDict; to JAX a dict would be another tree
    opt_state["moments"] = moments
    return dataclasses.replace(fresh, step=count, params=trees["parameter"], opt_state=opt_state)


def _complete_tree(what: str, tensors: Stored, model: BertConfig, head: str) -> dict[str, Any]:
    """Converts tensors under Hugging Face's names to our tree; raises UserError if one is missing or does not fit."""
    flat, report = from_stored(tensors, model, head)
    if report.mismatched:
        raise UserError(f"{tensors.path}, {what} of {report.mismatched[0]}")
    if report.missing:
        raise UserError(f"{tensors.path}: has no {what} of {report.missing[0]}, which this run's model needs")
    return unflatten(flat)


def objective_of(config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, *, read: bool = True) -> Objective:
    """What the run minimises: `Pretraining()`, or with `teacher=SOURCE` `Distillation`, for which it loads the teacher.

    Args:
        config: of the run.
        data: what it trains on; its vocabulary must be the teacher's.
        mesh: where the teacher is put, sharded by the same table as the student.
        read: False uses shapes in place of the teacher's parameters, which is enough to compile.

    Raises:
        FileNotFoundError, UserError: there is no such teacher, it lacks a masked-LM head, or it does not fit the model.
    """
    if config.teacher is None:
        return pretraining_of(config, mesh)
    weights = config.distillation or DistillationConfig()
    if data.objective != "none":
        raise UserError(
            f"teacher: cannot distil sentence pairs; found data with objective {data.objective}: {_WITHOUT_PAIRS}"
        )
    source = open_source(config.teacher, parts=("config", "tokenizer"))
    teacher = source.config.replace(dtype=config.model.dtype)
    check_teacher(config.model, teacher, weights, length=max(phase.length for phase in config.phases))
    check_vocabulary(source, data, field="teacher")
    if read:
        _, params, report = load_arrays(source.with_weights(), head="mlm")
        report.check()
        check_finite(params, source.name, field="teacher")
        params = jax.device_put(params, state_shardings(params, mesh))
    else:
        init, ids = BertForMaskedLM(teacher).init, jnp.zeros((1, 1), jnp.int32)
        shapes = jax.eval_shape(init, jax.random.key(0), ids)["params"]
        layouts = state_shardings(shapes, mesh)
        params = jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, layouts)
    return distillation_on(mesh, teacher, params, weights)


def pretraining_of(config: PretrainConfig, mesh: jax.sharding.Mesh) -> Pretraining:
    """Masked LM and sentence pairs: what a run without a teacher minimises, and what every run is evaluated on."""
    return Pretraining(fused_loss_on(mesh) if config.fused_loss else None)
