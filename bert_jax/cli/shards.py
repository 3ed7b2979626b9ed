"""--shard: a process of several answers one part of the texts, and the last one to finish joins the parts' files.

Part I of N of OUTPUT.npy is OUTPUT-0000I-of-0000N.npy; a .json file beside it says what it was made of. Parts are whole
chunks of a verb's texts, so that a text meets the same neighbours, and gets the same bits, as in a single process. The
processes do not talk to each other: who finds all parts complete joins them, so none waits, and a part whose process
was stopped is made by the same command again.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.cli.streaming import CHUNK, Unanswered, answered_by, new_file, results_to, say, serve
from bert_jax.cli.texts import is_text
from bert_jax.errors import UserError, quoted
from bert_jax.files import check_name, read_object, sync, temporary_beside, write_json
from bert_jax.runtime.cluster import number_and_count

_SIZE, _UNANSWERED = "bytes", "unanswered"  # the facts of a part that the others need not share


class Share(NamedTuple):
    """Part `number` (from 1) of `count`."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, total: int, chunk: int) -> range:
        """The numbers of its texts, from 0, of `total`: whole chunks, as many as in any other part or one more."""
        chunks = -(-total // chunk)
        first, stop = ((self.number - end) * chunks // self.count * chunk for end in (1, 0))
        return range(min(first, total), min(stop, total))

    def path(self, output: str | os.PathLike[str]) -> Path:
        """The file of this part: "vectors-00002-of-00004.npy" of "vectors.npy"."""
        whole = Path(output)
        return whole.with_name(f"{whole.stem}-{self.number:05}-of-{self.count:05}{whole.suffix}")


def add_shard(parser: argparse.ArgumentParser) -> None:
    """Adds --shard as `arguments.shard`; `own_shard` completes it."""
    what = "answer only part I of N, counted from 1; the last part to be complete joins them all (docs/inference.md)"
    parser.add_argument("--shard", type=_parsed, metavar="I/N", help=what)


def _parsed(text: str) -> Share:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected I/N, such as 2/4 for the second of four parts")
    shard = Share(int(found[1]), int(found[2]))
    if not 1 <= shard.number <= shard.count:
        last = max(shard.count, 1)
        raise argparse.ArgumentTypeError(f"found {text}; parts count from 1: expected 1/{last} to {last}/{last}")
    return shard


def own_shard(given: Share | None, output: str | None, texts: Iterable[str]) -> Share | None:
    """The part that this process answers; None: all texts.

    Args:
        given: --shard. Without it, the part is that of this process in its job: as variables of JAX, Slurm or Open MPI
            say, or on a TPU slice of several hosts as the TPU says.
        output: --output, if given.
        texts: the arguments that are texts or files.

    Raises:
        UserError: a part of stdin is asked for; or this is one of several processes and they have no file to write to.
    """
    shard = given or _of_job(output)
    if shard is None or shard.count == 1:
        return None
    if "-" in texts:
        raise UserError(f"--shard {shard}: name the input file (stdin has no parts)")
    if output is None and given is None:
        raise UserError(
            f"--output: not given; this is process {shard.number} of {shard.count} of a job, which share the texts and "
            "write one file; to answer all texts here say --shard 1/1"
        )
    return shard


def _of_job(output: str | None) -> Share | None:
    if told := number_and_count():
        return Share(told[0] + 1, told[1])
    if output is None:
        return None
    import jax  # not at the top: --help is instant

    return Share(jax.process_index() + 1, jax.process_count())


def count_of(items: Iterable[Any]) -> int:
    """The number of items."""
    return sum(1 for _ in items)


class PartFile:
    """The file of a shard, and the joining of all of them.

    Args:
        output: the file that all parts become.
        shard: which of them this is.
        total: the number of all texts.
        made_of: JSON values that must be the same for all parts, such as the model's fingerprint.
        overwrite: whether files that exist are replaced.

    Attributes:
        path: of the part.
        is_done: whether it is complete, and made of the same.
        unanswered: of a part that is done, what `complete` was given.

    Raises:
        UserError: `output` exists, or the part exists and is made of something else, and `overwrite` is False.
    """

    def __init__(self, output: str, shard: Share, *, total: int, made_of: Mapping[str, Any], overwrite: bool):
        self._output, self._shard = new_file(output, overwrite=overwrite), shard
        self.path = shard.path(self._output)
        self._facts = {"total": total, **made_of}
        found = self._found(shard)
        self.unanswered: str | None = _of_part(found)[_UNANSWERED] if found else None
        self.is_done = found == self._facts
        if not self.is_done:
            new_file(self.path, overwrite=overwrite)
            # Before there are new facts, which would make the old part complete if the program were killed.
            self.path.unlink(missing_ok=True)
            _facts_of(self.path).unlink(missing_ok=True)

    def complete(self, size: int, unanswered: str | None = None) -> None:
        """Writes the facts; the caller then gives the file its name, which makes the part complete.

        Args:
            size: the bytes of the file.
            unanswered: says which texts have no result; None: all have one.
        """
        facts = {**self._facts, _SIZE: size} | ({_UNANSWERED: unanswered} if unanswered else {})
        write_json(_facts_of(self.path), facts)

    def join(self, head: Callable[[int], bytes] | None = None, header: int = 0) -> None:
        """Joins all parts if all are complete, and removes them; otherwise says which are missing.

        Args:
            head: makes the first bytes of the whole file, given the number of texts.
            header: bytes at the beginning of each part that are left out.

        Raises:
            UserError: the parts were not made of the same, or one has another size than when it was written.
        """
        parts = [Share(number, self._shard.count) for number in range(1, self._shard.count + 1)]
        found = {part: self._found(part) for part in parts}
        if found[self._shard] is None:  # another process that finished at the same moment has joined and removed them
            return
        if missing := [str(part) for part in parts if found[part] is None]:
            some = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
            say(f"wrote {self.path}; parts of {self._output} that are not yet complete: {some}")
            return
        sizes = {}
        for part, facts in found.items():
            assert facts is not None
            sizes[part] = _of_part(facts)[_SIZE]
            for name in {**self._facts, **facts}:
                if facts.get(name) != self._facts.get(name):
                    same = f" with the same --{name}" if name in ("runtime", "dtype") else ""
                    raise UserError(
                        f"{part.path(self._output)}: was made with {name}={quoted(facts.get(name))}, and {self.path} "
                        f"with {quoted(self._facts.get(name))}; remove one of them and make it again{same}"
                    )
        whole = temporary_beside(self._output)
        try:
            with whole.open("wb") as file:
                file.write(head(self._facts["total"]) if head else b"")
                for part in parts:
                    begin = file.tell()
                    with part.path(self._output).open("rb") as one:
                        one.seek(header)
                        shutil.copyfileobj(one, file, 16 << 20)
                    if (copied := header + file.tell() - begin) != sizes[part]:
                        raise UserError(
                            f"{part.path(self._output)}: has {copied} bytes, and had {quoted(sizes[part])} when it was "
                            "written; copy it again with its .json file, or remove both and make it again"
                        )
                file.flush()
                os.fsync(file.fileno())
            os.replace(whole, self._output)
        except FileNotFoundError:
            whole.unlink(missing_ok=True)
            if self._output.exists():  # another process has joined and removed them meanwhile
                return
            raise
        except BaseException:
            whole.unlink(missing_ok=True)
            raise
        sync(self._output.absolute().parent)
        for part in parts:
            part.path(self._output).unlink(missing_ok=True)
            _facts_of(part.path(self._output)).unlink(missing_ok=True)
        say(f"joined {self._shard.count} parts: {self._output}, {self._facts['total']:,} texts")

    def _found(self, part: Share) -> dict[str, Any] | None:
        """What a part was made of; None if it is not complete."""
        path = part.path(self._output)
        return (read_object(_facts_of(path), optional=True) or None) if path.exists() else None


def _of_part(facts: dict[str, Any]) -> dict[str, Any]:
    """Takes what is of one part alone out of its facts, and returns that."""
    return {name: facts.pop(name, None) for name in (_SIZE, _UNANSWERED)}


def _facts_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def computed_by(predict: Any) -> dict[str, str]:
    """The runtime of a pipeline and its type, on which the last bits of the results depend."""
    programs = predict.engine.programs
    return {"runtime": programs.name, "dtype": programs.dtype}


def described(words: Iterable[str]) -> list[Any]:
    """The texts and files of a command line, as the facts of a part have them: the same for copies on other hosts.

    Raises:
        UserError: the name of a file is not UTF-8.
    """
    return [word if is_text(word) else _file(Path(word)) for word in words]


def _file(path: Path) -> dict[str, Any]:
    check_name(path.name)
    return {"file": path.name, "bytes": path.stat().st_size}


def serve_shard(
    arguments: argparse.Namespace,
    predict: Any,
    texts: Iterable[Any],
    again: Callable[[], Iterable[Any]],
    show: Callable[[Any, Any], str],
    options: dict[str, Any],
) -> None:
    """Serves the results of a pipeline for all texts, or for those of `arguments.shard`, into its part of --output.

    Args:
        arguments: source, texts, shard, output, overwrite, json, dtype, and those of the verb itself.
        predict: the pipeline, a `TaskModel`.
        texts: the texts.
        again: reads them again, to count them.
        show: as for `serve`.
        options: of the pipeline's `answered`.

    Raises:
        Unanswered: as `serve`, after joining.
        UserError: as `PartFile`.
    """
    shard: Share | None = arguments.shard
    if shard is None:
        serve(answered_by(predict, texts, **options), show, as_json=arguments.json)
        return
    total = count_of(again())
    rows = shard.of(total, CHUNK)

    def serve_rows() -> None:
        own = islice(texts, rows.start, rows.stop)
        results = answered_by(predict, own, first=rows.start, **options)
        serve(results, show, as_json=arguments.json, is_part=True)

    if arguments.output is None:
        serve_rows()
        return
    others = ("source", "texts", "output", "overwrite", "shard", "batch_size")
    made_of = {name: value for name, value in vars(arguments).items() if name not in others}
    if "max_length" in predict.settled:  # that of a run, where none is given
        made_of["max_length"] = predict.settled["max_length"]
    made_of |= {"model": predict.fingerprint, **computed_by(predict), "texts": described(arguments.texts)}
    part = PartFile(arguments.output, shard, total=total, made_of=made_of, overwrite=arguments.overwrite)
    unanswered = part.unanswered
    if part.is_done:
        say(f"{part.path} is complete already")
    else:
        with results_to(str(part.path), overwrite=True):
            try:
                serve_rows()
            except Unanswered as error:
                unanswered = str(error)
            sys.stdout.flush()
            part.complete(os.fstat(sys.stdout.fileno()).st_size, unanswered)
    part.join()
    if unanswered:
        raise Unanswered(unanswered)
