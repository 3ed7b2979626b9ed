"""`init=SOURCE`: its parameters laid out on the run's mesh, and heads that it does not have drawn anew, out loud."""

import logging
from typing import Any

import jax

from bert_jax.formats.hub_files import published_as
from bert_jax.formats.load import load_arrays, resolve
from bert_jax.formats.read import is_allowed
from bert_jax.tree import flatten, unflatten
from train.pretraining.placing import place
from train.pretraining.recipe import PretrainConfig

logger = logging.getLogger(__name__)

# What a source may lack: an encoder has no heads, a masked LM neither pooler nor sentence-pair head.
_HEADS = ("mlm_head", "nsp_head", "bert/pooler")


def initial_parameters(config: PretrainConfig, target: Any, fresh: Any) -> Any:
    """The parameters of `config.init`, laid out as `target`; those of heads that it lacks as a whole are `fresh`'s.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; anything else is missing, or has another shape.
    """
    source = str(config.init)
    folder = resolve(source, parts=("config", "weights"))
    head = "pretraining" if "nsp_head" in target else "mlm"
    _, params, report = load_arrays(folder, head=head)
    lacking = tuple(name for name in _HEADS if _lacks(name, report.loaded, report.missing))
    report.check(lacking)
    named = published_as(folder) or source
    found = flatten(params)
    if lacking:
        found |= {path: leaf for path, leaf in flatten(fresh).items() if is_allowed(path, lacking)}
        if jax.process_index() == 0:
            logger.warning("init: %s has no %s: drawn anew, not trained", named, ", ".join(lacking))
    return place(unflatten(found), target, named)


def _lacks(head: str, loaded: tuple[str, ...], missing: tuple[str, ...]) -> bool:
    """Whether all of it is missing: a head of which a part is there is damaged."""
    return any(is_allowed(path, (head,)) for path in missing) and not any(is_allowed(p, (head,)) for p in loaded)
