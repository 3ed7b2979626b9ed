"""Applies each mutant to a copy of the working tree and runs the tests that must notice: python -m tests.mutants.run.

First all of these tests run once on the code as it is: a test that fails anyway notices nothing.
"""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import PACKAGES, Mutant
from tests.mutants.table import MUTANTS
from tests.root import ROOT

AT_ONCE = 2
LIMIT_SECONDS = 180  # a mutant's tests take some seconds; whatever takes this long will never end
OUTCOMES = ("noticed", "survived", "hung", "unfit")
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant.

    Attributes:
        mutant: its row.
        result: "noticed" (a test failed), "survived" (all passed), "hung" (the limit on time ended them), or "unfit"
            (pytest ran no test: the changed file cannot be imported, or all tests are skipped for lack of their data).
        by: the test, or the file of tests, that failed; else the last line that pytest printed.
        seconds: of its tests.
    """

    mutant: Mutant
    result: str
    by: str
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """0 if all mutants were noticed, 1 if not, 2 where the table or the unchanged code is at fault."""
    arguments = _parser().parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if _matches(mutant, arguments.only)]
    if problems := [problem for mutant in chosen for problem in mutant.problems(ROOT)]:
        print(*problems, sep="\n", file=sys.stderr)
        return 2
    if not chosen:
        print(f"--only {arguments.only!r}: no such mutant", file=sys.stderr)
        return 2
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.package:<11} {mutant.file}: {mutant.breaks}")
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy_of_the_tree(Path(folder) / f"copy-{number}") for number in range(AT_ONCE)]
        _check_import(copies[0])
        if not arguments.no_baseline and not _pass_unchanged(chosen, copies[0]):
            return 2
        outcomes = _try_all(chosen, copies, arguments.limit)
    report = _report(outcomes, time.monotonic() - begin)
    path = Path(arguments.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_as_json(outcomes) if path.suffix == ".json" else report, encoding="utf-8")
    print(f"\n{report}\nwritten to {path}")
    return int(any(outcome.result != "noticed" for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="mutants whose package, file, code or words this is found in")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument("--output", default="runs/mutants.md", metavar="FILE", help="the report, .md or .json")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="S", help="seconds for one mutant")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests on the code as it is")
    return parser


def _matches(mutant: Mutant, pattern: str | None) -> bool:
    words = (mutant.package, mutant.file, mutant.old, mutant.new, mutant.breaks)
    return pattern is None or re.search(pattern, "\n".join(words)) is not None


def _copy_of_the_tree(folder: Path) -> Path:
    """Copies the files that git tracks or would track, as they are now, so no __pycache__."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def _environment(copy: Path) -> dict[str, str]:
    data = os.environ.get("BERT_JAX_TEST_DATA", str(ROOT.parent / "shared" / "data"))
    # Without byte code: Python would use the old one for a changed file of the same size and second.
    return os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "BERT_JAX_TEST_DATA": data}


def _check_import(copy: Path) -> None:
    command = [sys.executable, "-c", "import bert_jax; print(bert_jax.__file__)"]
    found = subprocess.run(command, cwd=copy, env=_environment(copy), check=True, capture_output=True, text=True)
    if not Path(found.stdout.strip()).is_relative_to(copy):
        raise SystemExit(f"bert_jax comes from {found.stdout.strip()}; expected the copy {copy}")


def _pass_unchanged(mutants: Sequence[Mutant], copy: Path) -> bool:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    begin = time.monotonic()
    print(f"{len(mutants)} mutants; first their {len(tests)} tests on the code as it is", flush=True)
    command = [*PYTEST, "--numprocesses", str(AT_ONCE), "--dist", "loadfile", *tests]
    done = subprocess.run(command, cwd=copy, env=_environment(copy), capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-5000:], done.stderr[-2000:], "these fail without any mutant", sep="\n", file=sys.stderr)
        return False
    print(f"{done.stdout.strip().splitlines()[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
    return True


def _try_all(mutants: Sequence[Mutant], copies: Sequence[Path], limit: float) -> list[Outcome]:
    """The outcomes in the order of the mutants; as many at once as there are copies."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(mutants)):
        waiting.put(number)
    found: dict[int, Outcome] = {}

    def work(copy: Path) -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            found[number] = outcome = try_mutant(mutants[number], copy, limit)
            line = (
                f"[{len(found):>3}/{len(mutants)}] {outcome.seconds:5.1f} s {outcome.result:<8} {outcome.mutant.file}"
            )
            print(f"{line}: {outcome.mutant.breaks}  <- {outcome.by}", flush=True)

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:  # the tests under way are in sessions of their own: they end, and no others begin
        while not waiting.empty():
            waiting.get_nowait()
        for thread in threads:
            thread.join()
        raise
    return [found[number] for number in range(len(mutants))]


def try_mutant(mutant: Mutant, copy: Path, limit: float) -> Outcome:
    """Changes the copy, runs the tests, and changes it back. `limit`: seconds."""
    path = copy / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(before), encoding="utf-8")
    begin = time.monotonic()
    process = subprocess.Popen(
        [*PYTEST, "-x", *mutant.tests],
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        result = {0: "survived", 1: "noticed"}.get(process.returncode, "unfit")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the programs that its tests have started
        output, _ = process.communicate()
        result = "hung"
    finally:
        path.write_text(before, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    last = (output.strip().splitlines() or [""])[-1]
    if result == "survived" and " passed" not in last:  # all were skipped: their data or a package is not there
        result = "unfit"
    by = failed[1] if failed else last
    return Outcome(mutant, result, by, time.monotonic() - begin)


def _report(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Markdown: a table of counts by package, what was not noticed, and what noticed the others."""
    lines = ["# Mutants", "", f"{len(outcomes)} mutants in {seconds:.0f} s.", ""]
    lines += [f"| package | {' | '.join(OUTCOMES)} |", f"|---|{'---:|' * len(OUTCOMES)}"]
    for package in (*PACKAGES, "all"):
        counts = Counter(outcome.result for outcome in outcomes if package in (outcome.mutant.package, "all"))
        lines.append(f"| {package} | {' | '.join(str(counts[result]) for result in OUTCOMES)} |")
    for result in ("survived", "hung", "unfit", "noticed"):
        rows = [outcome for outcome in outcomes if outcome.result == result]
        lines += ["", f"## {result}", ""] if rows else []
        lines += [f"- `{row.mutant.file}`: {row.mutant.breaks} ({row.by}, {row.seconds:.1f} s)" for row in rows]
    return "\n".join(lines) + "\n"


def _as_json(outcomes: Sequence[Outcome]) -> str:
    rows = [
        {"package": o.mutant.package, "file": o.mutant.file, "old": o.mutant.old, "new": o.mutant.new}
        | {"breaks": o.mutant.breaks, "result": o.result, "by": o.by, "seconds": round(o.seconds, 1)}
        for o in outcomes
    ]
    return json.dumps(rows, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
