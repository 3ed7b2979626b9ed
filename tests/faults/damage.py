"""Damages the files that runs leave behind, one at a time, and reads them as a program would.

Each case ends in one of these: the file is refused by name in one line; it is repaired, or passed over, with a line that says
so; or the result is that of the undamaged file. A result that silently differs, a traceback or a hang breaks the promise.
"""

import contextlib
import hashlib
import logging
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.faults.outcome import Outcome

SECONDS = 60
Read = Callable[[Path], tuple[Any, str]]
"""Reads a folder; returns what a program would use of it, and the lines that it said."""


class Subject(NamedTuple):
    """Files of one kind.

    folder: undamaged; it is copied for each case.
    files: in it, that are damaged.
    read: see `Read`.
    cases: how many.
    older: another result that is right, if a line says that the newest is damaged.
    """

    name: str
    folder: Path
    files: list[str]
    read: Read
    cases: int
    older: Any = None


def flipped(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes()) or bytearray(1)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    replace(path, content)


def zeroed(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(max(len(content), 1))
    length = min(rng.choice((1, 16, 512)), len(content) - start)
    replace(path, content[:start] + bytes(length) + content[start + length :])


def garbled(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(max(len(content), 1))
    replace(path, content[:start] + rng.randbytes(16) + content[start + 16 :])


def truncated(rng: random.Random, path: Path) -> None:
    content = path.read_bytes()
    replace(path, content[: rng.randrange(max(len(content), 1))])


def emptied(rng: random.Random, path: Path) -> None:
    replace(path, b"")


def appended(rng: random.Random, path: Path) -> None:
    replace(path, path.read_bytes() + rng.choice((b"\xff", b"\n[1,2]\n", b"\0" * 64, rng.randbytes(9))))


def doubled(rng: random.Random, path: Path) -> None:
    replace(path, 2 * path.read_bytes())


def deleted(rng: random.Random, path: Path) -> None:
    path.unlink()


def swapped(rng: random.Random, path: Path) -> None:
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path]
    foreign = rng.choice(others).read_bytes() if others else b"dear diary\n"
    replace(path, foreign)


def foreign(rng: random.Random, path: Path) -> None:
    replace(path, rng.choice((b"dear diary\n", b"{}", b"[]", b"\x93NUMPY\x01\x00", b"null\n", b"\xef\xbb\xbf{}")))


def a_pipe(rng: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_device(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(rng.choice(("/dev/zero", "/dev/full")))


def a_socket(rng: random.Random, path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may have at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def a_dead_link(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


CHANGES: dict[Callable[[random.Random, Path], None], int] = {
    flipped: 10,
    zeroed: 4,
    garbled: 4,
    truncated: 4,
    emptied: 1,
    appended: 3,
    doubled: 1,
    deleted: 2,
    swapped: 2,
    foreign: 2,
    a_pipe: 2,
    a_folder: 1,
    a_device: 1,
    a_socket: 1,
    a_dead_link: 1,
}
"""Each change, and how often it is chosen."""


def replace(path: Path, content: bytes | bytearray) -> None:
    """Writes a new file: the old one is linked to from elsewhere."""
    path.unlink()
    path.write_bytes(bytes(content))


def copied(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, copy_function=os.link)


class Hang(BaseException):
    """A read did not end."""


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """The warnings that programs print."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                lines.append(record.getMessage())

    kept = Kept()
    logging.getLogger().addHandler(kept)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(kept)


def _stop(*_: object) -> None:
    raise Hang


def outcome(subject: Subject, good: Any, seed: str, folder: Path) -> Outcome:
    """Damages one file in a copy of the subject's folder and reads it."""
    from bert_jax.errors import UserError

    rng = random.Random(seed)
    name = rng.choice(subject.files)
    change = rng.choices([*CHANGES], [*CHANGES.values()])[0]
    copy = folder / "case"
    shutil.rmtree(copy, ignore_errors=True)
    copied(subject.folder, copy)
    change(rng, copy / name)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        with said() as lines:
            found, line = subject.read(copy)
        told = [line, *lines] if line else lines
        equal = found == good
        if told:
            named = any(Path(name).name in each for each in told)
            right = subject.older is None or found == subject.older
            ended, held = "repaired or passed over, with a line", equal or (named and right)
        else:
            ended, held = ("harmless, equal", True) if equal else ("silently different", False)
    except (UserError, OSError) as error:
        ended, held = "refused by name", "\n" not in str(error) and str(copy) in str(error)
        ended = ended if held else f"refused without a name: {error}"
    except Hang:
        ended, held = "hung", False
    except Exception as error:
        ended, held = f"traceback: {type(error).__name__}", False
    finally:
        signal.alarm(0)
    return Outcome(subject.name, ended, held, f"{seed}: {name} {change.__name__}")


def _sum(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def prepared_data(folder: Path, kind: str, options: list[str], cases: int) -> Subject:
    """Prepared data, read as training does: an epoch, packed and not, the counts of tokens, a text in tokens."""
    from bert_jax.data.pretraining import shards
    from bert_jax.data.pretraining.batches import Batches
    from bert_jax.data.pretraining.directory import PreparedDirectory, open_directory
    from bert_jax.data.pretraining.packed_batches import PackedBatches
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests.faults.kills import write_inputs
    from train.prepare import main

    write_inputs(folder)
    data = folder / kind
    shards.BLOCK_BYTES = 4096  # so that small files have several blocks
    words = [str(folder / "text.txt"), "--output", str(data), "--vocab-size", "90", "--max-seq-length", "32"]
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        assert main([*words, *options, "--workers", "1"]) == 0

    def read(place: Path) -> tuple[Any, str]:
        source = open_directory(place)
        kinds = [kind(source, batch_size=32, max_seq_length=32) for kind in (Batches, PackedBatches)]
        made = [array for one in kinds for step in range(one.steps_per_epoch) for array in one.batch(step).values()]
        tokens = Tokenizer.load(source.path / "tokenizer").encode("the cat sat under a house")
        return _sum(*made, np.load(source.path / "unigram_counts.npy"), tokens), ""

    files = [name for name, _ in PreparedDirectory(data).files() if not name.startswith("held-out")]
    return Subject(f"prepared data ({kind}), as training reads it", data, [*files, "manifest.json"], read, cases)


def checkpoints(folder: Path, cases: int) -> Subject:
    """Two checkpoints, of which the newest is damaged."""
    from bert_jax.training.checkpoint.checkpoints import Checkpoints

    states = [
        {"params": {"a": np.arange(5000, dtype=np.float32) + n, "b": np.full((3, 7), n, np.int32)}} for n in (1, 2)
    ]
    with Checkpoints(folder / "checkpoints") as saved:
        for step, state in enumerate(states, 1):
            saved.save(step, state, {"step": step})
            saved.wait()

    def read(place: Path) -> tuple[Any, str]:
        with Checkpoints(place) as found:
            restored = found.restore_arrays()
        params = restored.state["params"]
        return [restored.step, restored.metadata["step"], _sum(params["a"], params["b"])], ""

    home = folder / "checkpoints"
    files = [str(path.relative_to(home)) for path in sorted((home / "2").rglob("*")) if path.is_file()]
    older = [1, 1, _sum(states[0]["params"]["a"], states[0]["params"]["b"])]
    return Subject("checkpoints", home, files, read, cases, older)


def export_and_compiled(folder: Path, cases: int) -> list[Subject]:
    """The weights of an export, and a compiled artefact."""
    from bert_jax.formats.load import load_arrays
    from bert_jax.inference.compiled.export import export_compiled
    from bert_jax.inference.compiled.facts import read_facts
    from bert_jax.tree import flatten
    from tests.inference.tasks.task_folders import export

    model = Path(export(folder / "export", "pretraining"))
    compiled = Path(export_compiled(model, folder / "compiled", "embed", lengths=(8,), batch_sizes=(2,)))

    def read_export(place: Path) -> tuple[Any, str]:
        _, params, _ = load_arrays(place, head="pretraining")
        return _sum(*(array for _, array in sorted(flatten(params).items()))), ""

    def read_compiled(place: Path) -> tuple[Any, str]:
        facts = read_facts(place)
        return [facts.files, _sum(*(np.frombuffer((place / name).read_bytes(), np.uint8) for name in facts.files))], ""

    files = sorted(path.name for path in compiled.iterdir())
    return [
        Subject("weights of an export", model, ["model.safetensors"], read_export, cases),
        Subject("compiled artefacts", compiled, files, read_compiled, cases),
    ]


def files_of_a_run(folder: Path, cases: int) -> list[Subject]:
    """metrics.jsonl, run.log, config.json and goodput.json, as a resumed run reads them."""
    from etils import epath

    from bert_jax.files import json_text
    from bert_jax.training.checkpoint.checkpoints import Checkpoints
    from train.pretraining.recipe import PretrainConfig
    from train.run.config import override, to_json
    from train.run.directory import RunDirectory
    from train.run.goodput import Goodput
    from train.run.log.metrics_file import MetricsFile
    from train.run.log.run_log import RunLog
    from train.run.stages import Stages

    run = folder / "run"
    run.mkdir()
    rows = [{"kind": kind, "step": step, "loss": 9 / step} for step in range(2, 80, 2) for kind in ("train", "eval")]
    metrics = MetricsFile(epath.Path(run / "metrics.jsonl"), lambda line: None, step=0, written=None)
    for row in rows:
        metrics.add(row)
    written = metrics.written()
    metrics.close()
    (run / "run.log").write_text("".join(f"2026-01-01 00:00:00 train step {step}\n" for step in range(40)))
    config = override(PretrainConfig(), {"seed": "7"})
    RunDirectory(str(run)).settle_config(config, ())

    started = Goodput(epath.Path(run / "goodput.json"), Stages(lambda: 60.0, began=0.0), clock=lambda: 1e9)
    started.saved(78)
    started.write()
    with Checkpoints(run / "checkpoints") as saved:
        import json

        saved.save(78, {"a": np.ones(2)}, {"config": json.loads(json_text(to_json(config)))})

    def read_metrics(place: Path) -> tuple[Any, str]:
        lines: list[str] = []
        found = MetricsFile(epath.Path(place / "metrics.jsonl"), lines.append, step=78, written=written)
        found.close()
        return found.rows, " ".join([*lines, found.problem or ""]).strip()

    def read_log(place: Path) -> tuple[Any, str]:
        path = place / "run.log"
        before = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        with (
            open(os.devnull, "w") as stream,
            RunLog(epath.Path(place), start_step=78, total_steps=80, stream=stream) as log,
        ):
            log.say("resuming")
        after = path.read_bytes()
        return after.startswith(before) and after.endswith(b" resuming\n"), ""

    def read_config(place: Path) -> tuple[Any, str]:
        found = RunDirectory(str(place))
        found.config_to_resume()
        found.settle_config(config, ())
        saved = found.saved_config()
        return saved, ""

    def read_goodput(place: Path) -> tuple[Any, str]:
        found = Goodput(epath.Path(place / "goodput.json"), Stages(lambda: 0.0), clock=lambda: 1e9)
        found.begin_at(78)
        return found.seconds(), ""

    return [
        Subject("metrics.jsonl of a resumed run", run, ["metrics.jsonl"], read_metrics, cases),
        Subject("run.log of a resumed run", run, ["run.log"], read_log, cases // 2),
        Subject("config.json of a resumed run", run, ["config.json"], read_config, cases),
        Subject("goodput.json of a resumed run", run, ["goodput.json"], read_goodput, cases),
    ]


def cases(seed: int, folder: Path, share: float = 1.0) -> Iterator[Outcome]:
    """`share`: of the cases."""
    folder = folder.resolve()
    of = lambda count: max(1, round(count * share))  # noqa: E731
    subjects = [
        prepared_data(folder, "nsp", ["--objective", "nsp"], of(150)),
        prepared_data(folder, "blocks", ["--objective", "none", "--rows", "blocks"], of(80)),
        prepared_data(folder, "google", ["--recipe", "google"], of(80)),
        checkpoints(folder, of(150)),
        *export_and_compiled(folder, of(60)),
        *files_of_a_run(folder, of(80)),
    ]
    for subject in subjects:
        good, line = subject.read(subject.folder)
        assert not line
        for number in range(subject.cases):
            yield outcome(subject, good, f"{seed}/{subject.name}/{number}", folder)
