"""Runs several programs one after the other in one process of a job, which joins the others once.

    python tests/train/hosts/programs.py '[["pretrain", "configs/tiny.py", "data=DIR", "run=RUN"], ...]'

Starting and joining take longer than a small run, so tests share one start. After each program a line of stdout says,
as JSON, its exit code, the line of a user's mistake, and of each row of the data that this process made which one it is
and a sum of its content, and how often it prepared text.
"""

import faulthandler
import json
import sys
import zlib
from importlib import import_module
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.runtime import hosts
from train.pretraining import text
from train.pretraining.mixture import MixedData
from train.pretraining.source import PreparedData
from train.run.log import curves

SECONDS = 300
"""How long a process that has ended a program waits for the others; then it ends, which ends them too."""
MADE: dict[str, dict[str, int]] = {}
"""Split -> "length, first row, step, row of the batch" -> CRC-32 of the row's arrays."""
PREPARED: list[Any] = []


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


def note_rows(kind: type) -> None:
    make = kind.batches

    def batches(self: Any, config: Any, phase: Any, *split: str, first_row: int = 0, **options: Any) -> Any:
        found = make(self, config, phase, *split, first_row=first_row, **options)
        make_batch = found.batch

        def batch(step: int, rows: Any = None) -> Any:
            made, noted = make_batch(step, rows), MADE.setdefault(split[0] if split else "train", {})
            numbers = np.arange(phase.batch) if rows is None else np.arange(phase.batch)[rows]
            for at, number in enumerate(numbers.tolist()):
                sum_ = zlib.crc32(b"".join(made[name][at].tobytes() for name in sorted(made)))
                noted[f"{phase.length}, {first_row}, {step}, {number}"] = sum_
            return made

        found.batch = batch
        return found

    kind.batches = batches


def note_preparations() -> None:
    prepare = text.prepare

    def noted(options: Any) -> Any:
        PREPARED.append(options.output)
        return prepare(options)

    text.prepare = noted


def run(program: str, words: list[str]) -> dict[str, Any]:
    MADE.clear()
    PREPARED.clear()
    try:
        code, error = import_module(f"train.{program}").main(words), None
    except UserError as wrong:
        code, error = 2, str(wrong)
    return {"code": code, "error": error, "made": dict(MADE), "prepared": len(PREPARED)}


if __name__ == "__main__":
    keep_compiled_programs_of_every_process()
    for of_data in (PreparedData, MixedData):
        note_rows(of_data)
    note_preparations()
    curves.png_of = lambda records: b"\x89PNG"  # the other processes would wait for the first one's drawings
    for name, *rest in json.loads(sys.argv[1]):
        report = run(name, rest)
        print(json.dumps(report), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        hosts.same_everywhere({"exit code": report["code"]})
        faulthandler.cancel_dump_traceback_later()
    hosts.leave()
