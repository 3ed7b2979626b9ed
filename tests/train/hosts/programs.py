"""Runs several programs one after the other in one process of a job, which joins the others once.

    python tests/train/hosts/programs.py '[["pretrain", "configs/tiny.py", "data=DIR", "run=RUN"], ...]'

Starting and joining take longer than a small run, so tests share one start. After each program a line of stdout says,
as JSON, its exit code, the line of a user's mistake, and for each split of the data the rows that this process made.
"""

import json
import sys
from collections import Counter
from importlib import import_module
from typing import Any

from bert_jax.data.pretraining.batches import Batches
from bert_jax.errors import UserError
from bert_jax.runtime import hosts
from train.pretraining.source import PreparedData

MADE: Counter[str] = Counter()


def keep_compiled_programs_of_every_process() -> None:
    """JAX only writes process 0's to its cache; on CPUs the other processes cannot use these and compile for minutes."""
    from jax._src import compiler, distributed

    write = compiler._cache_write

    def write_as_first(*args: Any) -> None:
        number, distributed.global_state.process_id = distributed.global_state.process_id, 0
        try:
            write(*args)
        finally:
            distributed.global_state.process_id = number

    compiler._cache_write = write_as_first


def count_rows() -> None:
    make = PreparedData.batches

    def batches(self: PreparedData, config: Any, phase: Any, split: str = "train", **options: Any) -> Batches:
        found = make(self, config, phase, split, **options)

        class Counted(Batches):
            def batch(self, step: int, rows: Any = None) -> Any:
                made = super().batch(step, rows)
                MADE[split] += len(made["input_ids"])
                return made

        found.__class__ = Counted
        return found

    PreparedData.batches = batches  # type: ignore[method-assign]


def run(program: str, words: list[str]) -> dict[str, Any]:
    MADE.clear()
    try:
        code, error = import_module(f"train.{program}").main(words), None
    except UserError as wrong:
        code, error = 2, str(wrong)
    return {"code": code, "error": error, "rows": dict(MADE)}


if __name__ == "__main__":
    keep_compiled_programs_of_every_process()
    count_rows()
    for name, *rest in json.loads(sys.argv[1]):
        print(json.dumps(run(name, rest)), flush=True)
    hosts.leave()
