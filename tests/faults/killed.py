"""Runs training programs in forked children, which kill themselves at a named point: python -m tests.faults.killed.

Importing JAX takes seconds, so a process imports everything once and forks for each case. It reads one JSON object per
line from stdin: {"program", "words", "kill", "log", "seconds"}. It writes a line with the child's process id when that
starts, and one with its exit code when it ends (-9: killed). The child appends "start STEP" and "step STEP" to the log.

"kill" is null, or {"at": NAME, "call": n, "when": "before" | "after" | a number of seconds after the call began}.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

# Where a run can be killed: the name of a point -> the function that is called there.
POINTS = {
    "a program is compiled": "jax._src.compiler:compile_or_get_cached",
    "a step is dispatched": "train.run.log.meter:Meter.push",
    "a row of metrics is written": "train.run.log.metrics_file:MetricsFile.add",
    "rows are synced": "train.run.log.outlet:GrowingFile.sync",
    "a save starts": "bert_jax.training.checkpoint.checkpoints:Checkpoints.save",
    "a save is written": "bert_jax.training.checkpoint.checkpoints:orbax.save_async",
    "a save is hashed": "bert_jax.training.checkpoint.checkpoints:hash_and_sync",
    "a run begins to go back": "train.run.rollback:Rollbacks.recover",
    "a useless checkpoint is removed": "bert_jax.training.checkpoint.checkpoints:Checkpoints.delete_after",
    "a checkpoint is read": "bert_jax.training.checkpoint.checkpoints:Checkpoints.restore",
    "the manifest is written": "bert_jax.training.checkpoint.checkpoints:write_manifest",
    "an old checkpoint is deleted": "bert_jax.training.checkpoint.step_directory:_remove_step",
    "the rest of a deletion is swept": "bert_jax.training.checkpoint.step_directory:StepDirectory._sweep",
    "the model is evaluated": "JOB.evaluate",
    "a phase begins": "JOB:prefetched_batches",
    "the model is exported": "JOB:save_pretrained",
    "the results are written": "JOB.finish",
    "the config is settled": "train.run.directory:RunDirectory.settle_config",
    "a small file is replaced": "os:replace",
    "a folder is renamed": "os:rename",
}
_JOBS = {
    "pretrain": "train.pretraining.job:PretrainingJob",
    "finetune": "train.finetuning.job:FinetuningJob",
    "sweep": "train.finetuning.sweep:SweepJob",
    "prepare": "",
    "adding_job": "tests.adding_job:AddingJob",
}


def arm(kill: dict[str, Any], program: str) -> None:
    """Replaces the function of a point by one that kills this process on a call."""
    module, _, job = _JOBS[program].partition(":")
    place = POINTS[kill["at"]]
    if program == "sweep" and kill["at"] == "the model is exported":
        module = "train.finetuning.job"  # a sweep exports as one run does
    place = place.replace("JOB.", f"{module}:{job}.").replace("JOB:", f"{module}:")
    home, _, name = place.partition(":")
    owner: Any = importlib.import_module(home)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    function, calls, when = getattr(owner, last), iter(range(1, 1 << 30)), kill["when"]

    def killed(*args: Any, **options: Any) -> Any:
        if next(calls) != kill["call"]:
            return function(*args, **options)
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if when != "after":
            threading.Thread(target=_kill_later, args=(float(when),), daemon=True).start()
        result = function(*args, **options)
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, last, killed)


def _kill_later(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def record_progress(log: str) -> None:
    """Makes the run write where it starts and each step that it has made."""
    from train.run.log import run_log as log_module
    from train.run.log.run_log import RunLog

    file = open(log, "a", encoding="utf-8")

    def told(line: str) -> None:
        file.write(f"{line}\n")
        file.flush()

    advance, begin = RunLog.advance, log_module.open_log

    def open_log(directory: Any, **options: Any) -> Any:
        told(f"start {options['start_step']}")
        return begin(directory, **options)

    def advanced(self: RunLog, step: int) -> None:
        told(f"step {step}")
        advance(self, step)

    RunLog.advance = advanced  # type: ignore[method-assign]
    importlib.import_module("train.run.loop").open_log = open_log


def run(case: dict[str, Any]) -> int:
    from train.run.ending.stopping import exit_code

    program = case["program"]
    home = "tests" if program == "adding_job" else "train"
    module = importlib.import_module(f"{home}.{'finetune' if program == 'sweep' else program}")
    if program != "prepare":
        record_progress(case["log"])
    if case["kill"]:
        arm(case["kill"], program)
    return exit_code(module.main, case["words"])


def serve() -> None:
    for name in ("train.prepare", "train.pretrain", "train.finetune", "train.run.loop", "train.pretraining.job"):
        importlib.import_module(name)
    for name in (
        "train.finetuning.sweep",
        "matplotlib.figure",
        "train.finetuning.tasks.table",
        "tests.adding_job",
    ):
        importlib.import_module(name)
    for line in sys.stdin:
        case = json.loads(line)
        child = os.fork()
        if child == 0:
            out = os.open(f"{case['log']}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = 1
            try:
                code = run(case)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
