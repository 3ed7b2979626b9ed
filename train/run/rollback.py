"""What becomes of a run whose numbers are no longer finite: its useless checkpoint is removed, and it may go back.

A state is saved only if the step that made it was not skipped. It is good once a later step is not skipped either: then
the loss and the gradient of its parameters were finite. So of all checkpoints only the newest can be useless, and it is
if every step after it was skipped until the run gave up.

A rollback writes a checkpoint with the state of the last good one and the number of the step that the run had reached.
The batches between them are consumed and have changed nothing. From there the run continues as any resumed run does, so
a run that is killed on the way decides the same again.

A run that is stopped saves a step of its own. It continues from there, but does not go back to it: a run that was never
stopped does not have it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.sharding import to_host
from bert_jax.training.step import TrainState
from train.run.saving import Saves


def skipped_in_a_row(counts: Any) -> int:
    """How many of the most recent steps changed nothing; of several runs in one state, those that changed none of them.

    `counts`: int [] or [R], of the state or of a step's metrics.
    """
    return int(np.min(to_host(counts)))


class Rollbacks:
    """The rollbacks of a run, which its checkpoints record.

    Attributes:
        most: how many are allowed.
        passed_over: for each so far, the step that the run went back to, and the one at which it continued.
    """

    def __init__(self, most: int, recorded: Mapping[str, Any]):
        """`recorded`: the metadata of the checkpoint that the run starts from."""
        self.most = most
        self.passed_over = [(int(back_to), int(step)) for back_to, step in recorded.get("passed_over", ())]

    def facts(self) -> dict[str, Any]:
        """What each checkpoint records."""
        return {"passed_over": [list(steps) for steps in self.passed_over]} if self.passed_over else {}

    def just_ended(self, step: int) -> tuple[int, int] | None:
        """The last entry of `passed_over` if a run that starts at `step` continues right after it."""
        return self.passed_over[-1] if self.passed_over and self.passed_over[-1][1] == step else None

    def recover(
        self,
        checkpoints: Checkpoints,
        saves: Saves,
        target: TrainState,
        trained: int,
        step: int,
        facts: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> int | None:
        """Removes the useless checkpoint, and goes back if that is allowed; every process must call it.

        The new checkpoint keeps what the good one records of metrics.jsonl, so the rows since are dropped.

        Args:
            checkpoints, saves: of the run.
            target: shapes and shardings of the state.
            trained: the last step that changed the parameters.
            step: the last one that is passed over, where the run continues.
            facts: those of the meter; the new checkpoint records what was spent.
            say: takes lines for the log.

        Returns:
            The step that the run goes back to; None if it is to end.
        """
        saves.collect()
        useless = [saved for saved in checkpoints.steps() if saved >= trained]
        checkpoints.delete_after(trained - 1)
        for saved in useless:
            say(f"checkpoint {saved:,} is removed: no step after it had a finite loss and gradient")
        if len(self.passed_over) >= self.most:
            return None
        try:
            good = checkpoints.restore(target, extra=False)
        except FileNotFoundError:
            say("there is no good checkpoint to go back to; one that was saved at a stop does not count")
            return None
        self.passed_over.append((good.step, step))
        say(
            f"going back to step {good.step:,} (rollback {len(self.passed_over)} of {self.most}), since nothing was "
            f"finite after step {trained:,}: the batches of steps {good.step + 1:,} to {step:,} are passed over"
        )
        state = dataclasses.replace(good.state, step=jnp.full_like(good.state.step, step))
        spent = {"spent": facts["spent"]} if "spent" in facts else {}
        saves.save_last(step, state, lambda: good.metadata | spent | self.facts())
        return good.step
