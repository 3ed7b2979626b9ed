"""The optimizer's part of a Google checkpoint: Adam's two moments of every variable, and how many steps were made.

    with Tf1Checkpoint("my_pretraining_output") as stored:
        step, m, v = optimizer_state(stored)          # m["bert.pooler.dense.weight"]: float32, torch's layout

`AdamWeightDecayOptimizer` (google-research/bert, optimization.py) and `LAMBOptimizer` (google-research/albert) keep
both as `<variable>/adam_m` and `<variable>/adam_v`, without bias correction, and count in `global_step`. The models
that Google publishes have none of this; a folder that run_pretraining.py or run_classifier.py trained in does.
"""

from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.interop.stored import Native, Renamed, Stored
from bert_jax.interop.tf1_names import hf_names, model_type_of


class OptimizerState(NamedTuple):
    """`global_step` (None where the checkpoint has none), first and second moments under Hugging Face's names."""

    step: int | None
    m: Renamed
    v: Renamed


def optimizer_state(stored: Stored, model_type: str | None = None) -> OptimizerState:
    """The state of Google's optimizers.

    Args:
        stored: a `Tf1Checkpoint`, under Google's names; it stays open while the moments are read.
        model_type: as for `tf1_names.open_google`.

    Raises:
        UserError: it holds no such moments, or a step that cannot be.
    """
    names = hf_names(stored, model_type or model_type_of(stored))
    m, v = (
        Renamed(
            stored,
            {
                key: Native(f"{name}/{slot}", swapped)
                for key, (name, swapped) in names.items()
                if f"{name}/{slot}" in stored
            },
        )
        for slot in ("adam_m", "adam_v")
    )
    if not m or not v:
        raise UserError(
            f"{stored.path}: holds no moments of Google's optimizers (no variable …/adam_m), as the models that Google "
            "publishes; start without them"
        )
    return OptimizerState(_step(stored), m, v)


def _step(stored: Stored) -> int | None:
    if "global_step" not in stored:
        return None
    if stored.shape("global_step") or stored.dtype("global_step") not in ("int64", "int32"):
        kind = f"{stored.dtype('global_step')} of shape {stored.shape('global_step')}"
        raise UserError(f"{stored.path}: global_step is {kind}, not one integer")
    step = int(stored["global_step"])
    if not 0 <= step < 1 << 31:
        raise UserError(f"{stored.path}: global_step is {step}; expected a number of steps")
    return step
