"""What process 0 decides for all processes of a job: one that looks at the disk, so that none disagree about it."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.training.step_directory import SaveError

# What process 0 raises every process raises: its type decides how a program goes on.
_SHARED_ERRORS = (UserError, FileNotFoundError, SaveError, ValueError, RuntimeError)


def on_first_process(decide: Callable[[], Any]) -> Any:
    """What `decide` gives on process 0 (a step's number, or None), on every process; or what it raises there."""
    if jax.process_count() == 1:
        return decide()
    number, failure = 0, None
    if jax.process_index() == 0:
        try:
            number = decide() or 0
        except Exception as error:
            failure = error
            kinds = (index for index, kind in enumerate(_SHARED_ERRORS) if isinstance(error, kind))
            number = -1 - next(kinds, len(_SHARED_ERRORS) - 1)
    number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
    if failure is not None:
        raise failure
    if number < 0:
        raise _SHARED_ERRORS[-1 - number]("process 0 could not go on; its log says why")
    return number
