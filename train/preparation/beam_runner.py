"""Runs the stages of preparing text as Apache Beam pipelines: one pipeline for each stage, one element for each job."""

# Beam is not in the environment that is checked: it does not take the newest protobuf.

import contextlib
import io
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.workers import resolve
from bert_jax.errors import UserError
from bert_jax.files import write_whole
from train.preparation.job_files import from_bytes, to_bytes


class BeamPipelines:
    """`with BeamPipelines(flags, folder) as runner: runner.map("package.module:function", jobs)`.

    A pipeline returns nothing, so every job writes its result to `folder`, which this program and all workers must see.

    flags: Beam's pipeline options, such as ["--runner=FlinkRunner", "--flink_master=host:8081"]; []: DirectRunner.

    Raises UserError if Apache Beam is missing, or refuses the flags.
    """

    def __init__(self, flags: Sequence[str], folder: Path):
        try:
            import apache_beam  # noqa: F401
        except ImportError:
            raise UserError(
                "--runner beam: needs the package apache-beam: pip install 'bert-jax[train,beam]'"
            ) from None
        self._options = _options_of(flags)
        self._folder = folder
        self._stages = 0

    def __enter__(self) -> "BeamPipelines":
        shutil.rmtree(self._folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def map(self, function: str, jobs: Iterable[Any]) -> Iterator[Any]:
        """Runs a pipeline over all jobs, and then yields `function(job)` for each, in the order of the jobs.

        Jobs and results are JSON (`job_files`). Beam runs a job again if a worker dies, or runs it twice, which is
        harmless: the functions write whole files, and the same ones every time.

        Raises:
            UserError, OSError: raised by the function; the other jobs are done nevertheless.
            UserError: the results are not in the folder.
        """
        import apache_beam as beam

        folder = self._folder / f"{self._stages:02d}"
        self._stages += 1
        elements = [(number, to_bytes(job)) for number, job in enumerate(jobs)]
        if not elements:
            return
        folder.mkdir(parents=True)
        print(f"Beam: {function.partition(':')[2]}, {len(elements)} jobs", file=sys.stderr)
        with beam.Pipeline(options=self._options) as pipeline:
            # Without the reshuffle all jobs may be one bundle, which one worker runs.
            spread = pipeline | "jobs" >> beam.Create(elements) | "spread" >> beam.Reshuffle()
            spread | function.partition(":")[2] >> beam.Map(run_job, function, str(folder))
        for number, _ in elements:
            yield _result(_file(folder, number))


def _options_of(flags: Sequence[str]) -> Any:
    """Beam's `PipelineOptions`; UserError for a flag or a runner that Beam does not have."""
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.runner import create_runner

    logging.getLogger("apache_beam").setLevel(logging.ERROR)  # it warns of what these pipelines do not use
    printed = io.StringIO()
    try:
        options = PipelineOptions([*flags, "--no_save_main_session"])  # the workers import the functions
        with contextlib.redirect_stderr(printed):  # argparse prints two hundred options
            known = options.get_all_options()
            unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
        create_runner(options.view_as(StandardOptions).runner or "DirectRunner")
    except SystemExit:
        why = printed.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise UserError(f"--runner beam: {why}, in the options after --: {' '.join(flags)}") from None
    except ValueError as error:
        raise UserError(f"--runner beam: {str(error).splitlines()[0]}") from None
    if unknown:
        raise UserError(f"--runner beam: Beam has no option --{min(unknown)}, which is among those after --")
    return options


def run_job(element: tuple[int, bytes], function: str, folder: str) -> None:
    """Runs in a worker: one job, whose result goes to its file below the folder."""
    number, job = element
    try:
        answer = True, resolve(function)(from_bytes(job, "a job"))
    except (UserError, OSError) as error:
        answer = False, error
    write_whole(_file(Path(folder), number), to_bytes(answer))


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:07d}.json"


def _result(file: Path) -> Any:
    try:
        good, result = from_bytes(file.read_bytes(), file)
    except FileNotFoundError:
        raise UserError(
            f"--runner beam: the result of a worker is not in {file.parent}: --output has to be a folder that this "
            "machine and all workers see under the same path"
        ) from None
    file.unlink()
    if good:
        return result
    raise result
