"""The campaign "hostile or broken input": every reader is given changed files, and must answer with a result or one line.

Each kind of input (`tests/faults/kinds.py`) has a folder of files that its readers accept, and the readers. A case
changes one of the files at random and calls the readers in a process whose memory is limited, which catches whatever is
not a `UserError` or a missing file: a traceback, a panic, a hang, too much memory, a message that is long or has lines.
A case is a pure function of the seed, the kind and its number.
"""

import importlib
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.outcome import Outcome
from tests.root import ROOT

CASES = 52_000
MEMORY = 2 << 30
"""Bytes of address space that a process of cases may take beyond what it has after its imports."""
SECONDS = 30
"""The longest that a case may take."""


def cases(seed: int, folder: Path, *, count: int = CASES, only: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """`count` cases, shared out over the kinds by their weights."""
    kinds = importlib.import_module("tests.faults.kinds").KINDS
    names = [name for name in kinds if not only or name in only]
    total = sum(kinds[name].weight for name in names)

    def of(name: str) -> list[Outcome]:
        wanted = max(1, round(count * kinds[name].weight / total))
        return list(_of_kind(name, seed, wanted, folder / name.replace(" ", "-").replace("/", "-")))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the threads wait for processes
        for found in pool.map(of, names):
            yield from found


def _of_kind(name: str, seed: int, wanted: int, folder: Path) -> Iterator[Outcome]:
    """The cases of one kind; a process that dies or hangs is replaced, and its case is broken."""
    number = -1  # the files as they are
    while number < wanted:
        shutil.rmtree(folder, ignore_errors=True)
        with _Process(name, seed, number, wanted, folder) as process:
            for found in process.lines():
                if found is None:
                    break
                number = found["number"] + 1
                yield Outcome(name, found["ended"], found["held"], f"seed {seed}, {name}, case {found['case']}")
            else:
                return
            if process.setting_up:
                raise RuntimeError(f"{name}: its files could not be made")
        number += 1
        yield Outcome(name, "hang or death", False, f"seed {seed}, {name}, case {number - 1}")


class _Process:
    """A process of cases, which writes a line of JSON for each."""

    def __init__(self, name: str, seed: int, start: int, stop: int, folder: Path):
        words = [name, str(seed), str(start), str(stop), str(folder)]
        command = [sys.executable, "-W", "ignore", "-m", "tests.faults.hostile", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        environment |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.setting_up = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def lines(self) -> Iterator[dict[str, Any] | None]:
        """What the process writes; None, and the end, if it died or wrote nothing for too long."""
        while True:
            try:
                line = self._lines.get(timeout=300 if self.setting_up else 2 * SECONDS)
            except queue.Empty:
                yield None
                return
            if line is None:
                if self._process.wait() != 0:
                    yield None
                return
            self.setting_up = False
            yield json.loads(line)

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout
        self._process.stdout.close()


class _Hang(BaseException):
    """A case took longer than `SECONDS`."""


def _hang(*_: object) -> None:
    raise _Hang


def serve(name: str, seed: int, start: int, stop: int, folder: Path) -> None:
    """Run the cases `start` to `stop` of a kind in this process; -1 is that of the files as they are."""
    from tests.faults.kinds import KINDS
    from tests.faults.mutations import change_of

    kind = KINDS[name]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    pristine, changed = folder / "pristine", folder / "changed"
    pristine.mkdir(parents=True)
    kind.make(pristine)
    shutil.copytree(pristine, changed)
    files = sorted(path.relative_to(pristine) for path in pristine.rglob("*") if path.is_file())
    files = [file for file in files if kind.changes(file.as_posix())]
    _judge(kind.read, changed)  # imports what it needs before memory is limited
    if kind.writes:
        shutil.rmtree(changed)
        shutil.copytree(pristine, changed)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    for number in range(start, stop):
        case, file = f"{number}", files[0]
        if number >= 0:
            rng = random.Random(f"{seed} {name} {number}")
            file = rng.choice(files)
            (changed / file).write_bytes(change_of(file.name)((pristine / file).read_bytes(), rng))
            kind.mend(changed, rng)
            case += f", {file}"
        ended, held = _judge(kind.read, changed)
        if number < 0 and ended != "result":
            ended, held = f"the unchanged files are refused: {ended}", False
        elif number < 0:
            ended = "accepted unchanged"
        print(json.dumps({"number": number, "ended": ended, "held": held, "case": case}), file=out, flush=True)
        if kind.writes:
            shutil.rmtree(changed)
            shutil.copytree(pristine, changed)
        else:
            shutil.copyfile(pristine / file, changed / file)


def _judge(read: Any, folder: Path) -> tuple[str, bool]:
    """How a case ended, and whether as promised."""
    from bert_jax.errors import LONGEST_MESSAGE, UserError

    signal.signal(signal.SIGALRM, _hang)
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        read(folder)
        return "result", True
    except (UserError, FileNotFoundError) as error:
        line = str(error)
        if "\n" in line or len(line) > LONGEST_MESSAGE:
            return f"a message of {len(line)} characters, {line.count(chr(10))} line ends", False
        return "one line", True
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        frame = error.__traceback__
        while frame and frame.tb_next:
            frame = frame.tb_next
        where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
        what = " ".join(str(error).split())[:100] if os.environ.get("TELL") else ""
        return f"{type(error).__name__.removeprefix('_')} at {where} {what}".strip(), False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5]))
