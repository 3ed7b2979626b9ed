"""What a run minimises, on its mesh: masked LM and sentence pairs, or with `teacher=` the distance from a teacher."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays
from bert_jax.formats.read import IncompleteModel, ReadModel
from bert_jax.formats.source import Source, open_source
from bert_jax.model.heads import BertForMaskedLM
from bert_jax.runtime.hosts import same_everywhere
from bert_jax.training.distillation import DistillationConfig, check_teacher, distillation_on
from bert_jax.training.objectives import Objective, Pretraining
from bert_jax.training.sharding import fused_loss_on, state_shardings
from bert_jax.tree import sha256_of_parameters
from train.pretraining.fitted_model import WITHOUT_PAIRS, check_vocabulary
from train.pretraining.mixture import DataSource
from train.pretraining.recipe import PretrainConfig
from train.run.adopted import check_finite


def objective_of(config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, *, read: bool = True) -> Objective:
    """What the run minimises: the first of the two results of `objective_and_digest`."""
    return objective_and_digest(config, data, mesh, read=read)[0]


def objective_and_digest(
    config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, *, read: bool = True
) -> tuple[Objective, str | None]:
    """What the run minimises: `Pretraining()`, or with `teacher=SOURCE` `Distillation`, for which it loads the teacher.

    Beside it the sum of the teacher's parameters, `sha256_of_parameters`, which takes a BERT-base a second; None
    without a teacher, and of shapes. All processes of a job must call it.

    Args:
        config: of the run.
        data: what it trains on; its vocabulary must be the teacher's.
        mesh: where the teacher is put, sharded by the same table as the student.
        read: False uses shapes in place of the teacher's parameters, which is enough to compile.

    Raises:
        FileNotFoundError, UserError: there is no such teacher, it lacks a masked-LM head, or it does not fit the model.
        UserError: the processes of the job have different teachers.
    """
    if config.teacher is None:
        return pretraining_of(config, mesh), None
    weights = config.distillation or DistillationConfig()
    if data.objective != "none":
        raise UserError(
            f"teacher: cannot distil sentence pairs; found data with objective {data.objective}: {WITHOUT_PAIRS}"
        )
    source = open_teacher(config.teacher)
    teacher = source.config.replace(dtype=config.model.dtype)
    check_teacher(config.model, teacher, weights, length=max(phase.length for phase in config.phases))
    check_vocabulary(source, data, field="teacher")
    if read:
        params = read_teacher(source).params
        check_finite(params, source.name, field="teacher")
        digest = sha256_of_parameters(params)
        same_everywhere({"sum of the teacher's parameters": digest[:12]})  # before each puts its part on the mesh
        params = jax.device_put(params, state_shardings(params, mesh))
    else:
        digest = None
        init, ids = BertForMaskedLM(teacher).init, jnp.zeros((1, 1), jnp.int32)
        shapes = jax.eval_shape(init, jax.random.key(0), ids)["params"]
        layouts = state_shardings(shapes, mesh)
        params = jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, layouts)
    return distillation_on(mesh, teacher, params, weights), digest


def check_same_teacher(
    config: PretrainConfig, digest: str | None, facts: Mapping[str, Any], allow_change: Collection[str]
) -> None:
    """Raises UserError if the teacher of a resumed run has other parameters now, under the same name.

    Args:
        config: of the run.
        digest: of its teacher, as `objective_and_digest` returns it.
        facts: what the newest checkpoint records: `PretrainingJob.facts`, and its step. Without a sum of the teacher,
            as older ones are, any teacher is accepted.
        allow_change: "teacher" in it lets the run go on with this one. Another name needs it too, in `settle_config`.
    """
    other = facts.get("config", {}).get("teacher") != config.teacher
    if digest is None or other or "teacher" in allow_change or facts.get("teacher_digest", digest) == digest:
        return
    raise UserError(
        f"teacher: {config.teacher} has changed since this run reached step {facts['step']:,} (the sum of its "
        f"parameters was {facts['teacher_digest'][:12]} and is {digest[:12]}); put it back, or say "
        "allow_change=teacher to continue with this one"
    )


def open_teacher(named: str) -> Source:
    """Opens the source of `teacher=` and reads its architecture; downloads no weights of a published model.

    Raises:
        FileNotFoundError, UserError: as `open_source`, behind "teacher: ".
    """
    with _about_teacher():
        source = open_source(named, parts=("config", "tokenizer"))
        _ = source.config  # a folder without one is no model
        return source


def read_teacher(source: Source) -> ReadModel:
    """The teacher with its masked-LM head; its parameters are float32 NumPy arrays, all of them.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`, behind "teacher: ".
        UserError: it lacks the masked-LM head or other parameters.
    """
    with _about_teacher():
        read = load_arrays(source.with_weights(), head="mlm")
        try:
            read.report.check()
        except IncompleteModel as error:
            if not read.report.loaded and read.report.unexpected:  # the report says what they are called instead
                raise
            more = f" and {len(error.missing) - 3} more" if len(error.missing) > 3 else ""
            of_head = all(path.startswith("mlm_head/") for path in error.missing)
            lacks = "has no masked-LM head" if of_head else "is not whole"
            raise UserError(
                f"{source.name} {lacks} (missing: {', '.join(error.missing[:3])}{more}); expected a model with head "
                "mlm or pretraining"
            ) from error
    return read


@contextmanager
def _about_teacher() -> Generator[None]:
    """Puts "teacher: ", the field of the config, before the errors of a source."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"teacher: {error}") from error
    except UserError as error:
        raise UserError(f"teacher: {error}") from error


def pretraining_of(config: PretrainConfig, mesh: jax.sharding.Mesh) -> Pretraining:
    """Masked LM and sentence pairs: what a run without a teacher minimises, and what every run is evaluated on."""
    return Pretraining(fused_loss_on(mesh) if config.fused_loss else None)
