"""Runs that cannot write: every kind of write under the run directory fails once, for a while or for good.

A run with a fault must end with exit code 0 and with the weights and metrics of a run without faults, or with 74, or
with 2 and one line before its first step. It must never hang. The same command, without the fault, then ends with those
weights and metrics. Disks are really full where this machine lets us mount one; a patch fails the other calls.
"""

import contextlib
import errno
import hashlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults.outcome import Outcome
from tests.root import ROOT

SILENCE = 300  # seconds without an answer after which a run counts as hung
STEPS = 15
RECIPE = f"""
from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig

def get_config():
    return PretrainConfig(
        model=BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2),
        phases=(Phase(16, 8, {STEPS}),),
        log_every=1, eval_every=5, eval_batches=1, save_every=3, keep=2, packing="no",
    )
"""
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EACCES", "EMFILE")
_LOST = "entries were not written"  # of `Outlet.close`
CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: "call": calls of the program fail; "disk": a small file system; "immutable": a folder that takes no new
            names; "size": files may not grow; "handles": no more files can be opened.
        where: the call, or the folder in the run directory ("." is itself).
        error: a name in `errno`, for calls.
        begins: the call, counted from 0, or the step after which it begins.
        lasts: so many calls or steps; 0: until the run ends.
        size: bytes of the file system.
    """

    kind: str
    where: str
    error: str = ""
    begins: int = 0
    lasts: int = 0
    size: int = 0

    @property
    def row(self) -> str:
        """The row of the table."""
        long = "for good" if not self.lasts else "once" if self.kind == "call" and self.lasts == 1 else "for a while"
        return {
            "call": f"`{self.where}` under the run directory fails, {long}",
            "disk": f"a full disk: {'the run directory' if self.where == '.' else f'`{self.where}/`'}",
            "immutable": f"`{self.where}/` takes no new files, {long}",
            "size": f"no file may grow beyond some bytes, {long}",
            "handles": f"no more handles, {long}",
        }[self.kind]


def faults(seed: int) -> list[Fault]:
    """All faults of a campaign, in the order in which they are tried."""
    draw = random.Random(seed)
    chosen = []
    for where in CALLS:
        most = {"open": 60, "write": 50, "fsync": 120, "replace": 16, "rename": 12, "mkdir": 16}[where]
        for lasts in (1, 1, 1, 8, 8, 0):
            chosen.append(Fault("call", where, draw.choice(ERRORS), draw.randrange(most), lasts))
    for where, sizes in (("tensorboard", (4, 8, 16)), ("checkpoints", (40, 120, 300)), (".", (150, 400, 700))):
        chosen += [Fault("disk", where, size=size << 10) for size in sizes]
    for where in ("checkpoints", "tensorboard", "."):
        for lasts in (4, 0):
            chosen.append(Fault("immutable", where, begins=draw.randrange(1, 9), lasts=lasts))
    for lasts in (4, 4, 0, 0):
        chosen.append(
            Fault("size", ".", begins=draw.randrange(0, 9), lasts=lasts, size=draw.choice((100, 3_000, 20_000)))
        )
        chosen.append(Fault("handles", ".", begins=draw.randrange(1, 9), lasts=lasts, size=draw.randrange(8)))
    draw.shuffle(chosen)
    return chosen


def cases(seed: int, folder: Path, only: int | None = None) -> Iterator[Outcome]:
    """`only`: the number of faults to try; None: all."""
    worker = Worker(folder)
    try:
        expected = worker.ask(None)
        assert expected is not None and expected["code"] == 0, expected
        for fault in faults(seed)[:only]:
            found = worker.ask(fault)
            if found is None:
                yield Outcome(fault.row, "hung", False, f"seed {seed}, {fault}")
                worker.end()
                worker = Worker(folder)
            elif "skipped" not in found:
                ended, held = judged(found, expected)
                yield Outcome(fault.row, ended, held, f"seed {seed}, {fault}: {found}")
    finally:
        worker.end()


def judged(found: dict[str, Any], expected: dict[str, Any]) -> tuple[str, bool]:
    """How a run with a fault ended, in words, and whether it kept the promise."""
    again = found["again"]
    lost = found["code"] == 0 and found.get("lost", False)  # rows that nobody has, which the run said
    wanted = ("weights", "export") if lost else ("weights", "export", "metrics")
    same = again["code"] == 0 and all(again[name] == expected[name] for name in wanted)
    if not same:
        return f"code {found['code']}, and the same command then ended differently", False
    if found["code"] == 0:
        done = found["weights"] == expected["weights"] and found["export"] == expected["export"]
        if lost:
            return "trained on, equal, and said which part of the log is lost", done
        return ("trained on, equal" if done else "trained on, different"), done
    if found["code"] == 74:
        return "74, and the same command ended equal", True
    if found["code"] == 2 and found["steps"] == 0:
        return "not started, one line; the same command ended equal", len(found["said"].splitlines()) == 1
    return f"code {found['code']}", False


class Worker:
    """A process that makes one run after the other, so that JAX starts once."""

    def __init__(self, folder: Path):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.writes", str(folder)],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "BERT_JAX_MALLOC": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, fault: Fault | None) -> dict[str, Any] | None:
        """What became of a run with this fault; None if it hung."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(None if fault is None else asdict(fault)) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=SILENCE)
        except queue.Empty:
            return None
        return json.loads(line) if line else {"code": "the process died", "steps": -1, "again": {"code": "nobody"}}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that the process did not take
                pipe.close()
        for mount in reversed(Path("/proc/mounts").read_text().split("\n")):
            if f"{os.sep}faulty-run-" in mount and os.fspath(ROOT) not in mount:
                subprocess.run(["umount", "-l", mount.split()[1]], capture_output=True)


# In the worker --------------------------------------------------------------------------------------------------------


class Calls:
    """While active, calls of one kind whose path is under `folder` fail: those numbered begins … begins + lasts - 1."""

    def __init__(self, fault: Fault, folder: Path):
        self._fault, self._folder, self._count = fault, os.fspath(folder), 0

    def __enter__(self) -> None:
        import builtins
        import io

        places = {"open": ((os, "open"), (builtins, "open"), (io, "open"))}
        self._patched = [(m, n, getattr(m, n)) for m, n in places.get(self._fault.where, ((os, self._fault.where),))]
        for module, name, real in self._patched:
            setattr(module, name, self._wrapped(real))

    def __exit__(self, *_) -> None:
        for module, name, real in self._patched:
            setattr(module, name, real)

    def _wrapped(self, real):
        def call(path, *arguments, **options):
            if self._concerns(path, arguments, options):
                number = self._count
                self._count += 1
                if number >= self._fault.begins and (
                    not self._fault.lasts or number < self._fault.begins + self._fault.lasts
                ):
                    code = getattr(errno, self._fault.error)
                    raise OSError(code, os.strerror(code))
            return real(path, *arguments, **options)

        return call

    def _concerns(self, path, arguments, options) -> bool:
        if isinstance(path, int):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{path}")
        if not str(path).startswith(self._folder):
            return False
        if self._fault.where != "open":
            return True
        how = options.get("mode", arguments[0] if arguments else "r")
        return how & (os.O_WRONLY | os.O_RDWR) != 0 if isinstance(how, int) else how[:1] in "wax"


def conditions(fault: Fault, run: Path) -> tuple[Any, Any]:
    """Functions that begin and end a fault of the machine."""
    import resource

    place = run / fault.where
    if fault.kind == "immutable":
        return (
            lambda: subprocess.run(["chattr", "+i", place], check=True, capture_output=True),
            lambda: subprocess.run(["chattr", "-i", place], check=True, capture_output=True),
        )
    kind = resource.RLIMIT_FSIZE if fault.kind == "size" else resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)

    def begin() -> None:
        opened = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(kind, (fault.size if fault.kind == "size" else opened + fault.size, hard))

    return begin, lambda: resource.setrlimit(kind, (soft, hard))


def attempt(words: list[str], fault: Fault | None, run: Path) -> dict[str, Any]:
    """One start of the program; returns its exit code, its error line and the number of steps."""
    import io

    from train.pretrain import main
    from train.run import loop
    from train.run.ending.stopping import exit_code

    steps, said = 0, io.StringIO()
    begin, end = (None, None) if fault is None or fault.kind in ("call", "disk") else conditions(fault, run)
    due = loop.Saves.due

    def count(self, step: int) -> bool:
        nonlocal steps
        steps += 1
        if fault and begin and steps == fault.begins + 1:
            begin()
        if fault and end and fault.lasts and steps == fault.begins + 1 + fault.lasts:
            end()
        return due(self, step)

    loop.Saves.due = count
    broken = Calls(fault, run) if fault and fault.kind == "call" else contextlib.nullcontext()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), broken:
            code: Any = exit_code(main, words)
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    finally:
        loop.Saves.due = due
        if end:
            end()
    errors = [line for line in said.getvalue().splitlines() if "error:" in line]
    return {"code": code, "said": "\n".join(errors), "steps": steps, "lost": _LOST in said.getvalue()}


def result(run: Path) -> dict[str, Any]:
    """The sums of the newest checkpoint's arrays and of the export, and the rows of metrics without times."""
    from bert_jax.training.checkpoint.checkpoints import Checkpoints
    from tests.run_directory import records, untimed

    found: dict[str, Any] = {"weights": None, "export": None, "metrics": None}
    with contextlib.suppress(Exception), Checkpoints(run / "checkpoints") as checkpoints:
        tree = checkpoints.manifest(checkpoints.steps()[-1])
        import jax

        arrays = jax.tree.leaves(checkpoints.restore_arrays().state)
        found["weights"] = [tree.step, hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()]
    with contextlib.suppress(OSError):
        found["export"] = hashlib.sha256((run / "export" / "model.safetensors").read_bytes()).hexdigest()
        found["metrics"] = untimed(records(run))
    return found


def trial(fault: Fault | None, folder: Path, number: int) -> dict[str, Any]:
    """A run with the fault, and the same command again without it."""
    run = folder / f"faulty-run-{number}"
    words = [str(folder / "recipe.py"), f"data={folder / 'data'}", f"run={run}"]
    place = run / fault.where if fault else run
    mounted = fault is not None and fault.kind == "disk"
    if fault and fault.kind != "call":
        place.mkdir(parents=True)
    try:
        if fault and fault.kind == "immutable":
            begin, end = conditions(fault, run)
            try:
                begin(), end()
            except (subprocess.CalledProcessError, FileNotFoundError):
                return {"skipped": "chattr does not work here"}
        if (
            mounted
            and subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={fault.size}", "tmpfs", place], capture_output=True
            ).returncode
        ):
            mounted = False
            return {"skipped": "this machine mounts nothing"}
        found = attempt(words, fault, run) | result(run)
        if fault is None:
            return found
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        return found | {"again": attempt(words, None, run) | result(run)}
    finally:
        if mounted:
            subprocess.run(["umount", place], check=True)
        shutil.rmtree(run, ignore_errors=True)


def serve(folder: Path) -> None:
    """Makes a run for each line of stdin and prints what became of it."""
    from tests.faults.kills import WORDS
    from train import prepare
    from train.run import saving
    from train.run.log import outlet

    saving.PAUSE = saving.LAST_PAUSE = outlet._LONGEST_PAUSE = 0.01  # seconds, where a user's run takes minutes
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not (folder / "recipe.py").exists():
        draw = random.Random(0)
        lines = [" ".join(draw.choices(WORDS, k=draw.randrange(4, 9))) + "." + "\n" * (i % 7 == 6) for i in range(400)]
        (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
        options = ["--vocab-size", "90", "--max-seq-length", "16", "--held-out", "0.1", "--workers", "1"]
        prepare.main([str(folder / "corpus.txt"), "--output", str(folder / "data"), *options])
        (folder / "recipe.py").write_text(RECIPE)
    for number, line in enumerate(sys.stdin):
        told = json.loads(line)
        fault = None if told is None else Fault(**told)
        print(json.dumps(trial(fault, folder, number)), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
