"""How every training program starts: parse the command line, join the other processes of the job, set up JAX, hold the
run directory, and use `init=SOURCE`.

A source gives the run its architecture and parameters; the run records its origin.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
from etils import epath

from bert_jax.cli.program import error_line, in_own_words
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, did_you_mean
from bert_jax.files import check_name, check_reachable, storage_errors, write_json
from bert_jax.formats.source import Source
from bert_jax.runtime import hosts
from bert_jax.runtime.cluster import OPTIONS as HOST_OPTIONS
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from bert_jax.runtime.cpu import check_address_space, keep_freed_memory
from train.run.config import check_names, known_elsewhere, load_recipe, override, to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_HUNG, EXIT_USER_ERROR
from train.run.ending.watchdog import Watchdog
from train.run.environment import environment, package_versions
from train.run.fields import fields_of, print_fields
from train.run.goodput import Goodput
from train.run.log.track import check_tracker
from train.run.stages import Stages, take_start

log = logging.getLogger(__name__)

EMPTY = "it is empty; is a variable of the shell not set?"
_OPTIONS = ("--dry-run", "--json", "--fields", "--help")


@dataclass(frozen=True)
class Launch:
    """A parsed command line: the config with its overrides, and the options that are not part of it."""

    config: Any
    run: str
    allow_change: tuple[str, ...]
    dry_run: bool
    as_json: bool
    given: frozenset[str]  # the overridden fields
    named: bool = True  # the command line names the run; otherwise its name has the date
    hosts: Mapping[str, str] = field(default_factory=dict)  # option of `HOST_OPTIONS` -> its text


def parse(argv: list[str], usage: str, kind: type) -> Launch:
    """Parses `CONFIG.py [key=value ...] [--dry-run] [--json] [--fields]`; the config must be of class `kind`.

    Raises:
        UserError: a word that is not understood, or what `load_recipe`, `override` and `check_tracker` raise.
        SystemExit: --help or --fields, which print; or no words.
    """
    if not argv or "-h" in argv or "--help" in argv:
        print(in_own_words(usage.strip()), file=sys.stdout if argv else sys.stderr)
        raise SystemExit(EXIT_DONE if argv else EXIT_USER_ERROR)
    example = "configs/finetune.py" if kind.__name__ == "FinetuneConfig" else "configs/tiny.py"
    if argv[0] == "--fields":
        raise UserError(f"--fields: name the config whose fields to list, such as {example} --fields")
    path, *words = argv
    if not path:
        raise UserError(f"the first word must be a config file, such as {example}; {EMPTY}")
    if "=" in path or path.startswith("-"):
        raise UserError(f"{path}: the first word must be a config file, such as {example}")
    for word in (os.getcwd(), *argv):
        check_name(word)
    config = load_recipe(path, kind)
    run, allow_change, options = None, (), set()
    of_hosts: dict[str, str] = {}
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        value = os.path.expanduser(value)  # as bash does in such a word; zsh, dash and quotes leave it
        if word in _OPTIONS:
            options.add(word)
        elif key in HOST_OPTIONS and value:
            of_hosts[key] = value
        elif key in HOST_OPTIONS:
            raise UserError(f"{word}: expected {key}=VALUE" + (f"; {EMPTY}" if equals else ""))
        elif word.startswith("-"):
            near = _as_field(config, key) or did_you_mean(key, (*_OPTIONS, *HOST_OPTIONS))
            near = near or f"; expected {', '.join(_OPTIONS)} or FIELD=VALUE"
            raise UserError(f"{word!r} is not an option{near}")
        elif not equals:
            raise UserError(f"{word}: expected FIELD=VALUE; {_as_word(config, word)}")
        elif not value:
            raise UserError(f"{word}: expected {key}=VALUE; {EMPTY}")
        elif key == "run":
            run = value
        elif key == "allow_change":
            allow_change = tuple(name for name in value.split(",") if name)
        else:
            fields[key] = value
    config = override(config, fields)
    check_names(config, allow_change)
    if "--fields" in options:
        print_fields(config, as_json="--json" in options)
        raise SystemExit(EXIT_DONE)
    check_tracker(config.track)
    task = getattr(config, "task", None)
    name = "-".join(part for part in (Path(path).stem, task, time.strftime("%Y-%m-%d")) if part)
    return Launch(
        config,
        run or f"runs/{name}",
        allow_change,
        dry_run="--dry-run" in options,
        as_json="--json" in options,
        given=frozenset(fields),
        named=bool(run),
        hosts=of_hosts,
    )


def _as_field(config: Any, flag: str) -> str:
    """The end of a message on a flag: the field that it sets, here or under this name elsewhere; "" for another."""
    name = flag.lstrip("-").replace("-", "_")
    path = next((field.path for field in fields_of(config) if name in (field.path, field.path.rpartition(".")[2])), "")
    return f"; say {path}=VALUE" if path else known_elsewhere(config, name)


def _as_word(config: Any, word: str) -> str:
    """What would be right in place of a word without "="."""
    names = [field.path for field in fields_of(config)]
    if word in ("run", *names):
        return f"say {word}=VALUE"
    return "put texts with spaces in quotes" + did_you_mean(word, ["run", *names])


def start(argv: list[str], usage: str, kind: type) -> Launch:
    """`parse`, `check_address_space`, `start_jax`; the error of the first two ends the other processes of the job too.

    Raises:
        JobEnded, UserError, SystemExit: as those two; SystemExit(2) after the error of such a process.
    """
    try:
        launch = parse(argv, usage, kind)
        check_address_space()
    except UserError as error:
        options = dict(word.split("=", 1) for word in argv if word.startswith(tuple(f"{o}=" for o in HOST_OPTIONS)))
        if hosts.refuse(options, str(error), error_line):
            raise SystemExit(EXIT_USER_ERROR) from error
        raise
    return start_jax(launch)


def start_jax(launch: Launch) -> Launch:
    """Sets up what JAX needs before its first use: memory, the cache of compiled programs, the processes of the job.

    If this process is one of several (`find_place`), it joins the others. Then all compare what they are about to run.

    Returns:
        The launch; its run's name, if the command line gives none, is that of the first process.

    Raises:
        JobEnded: not all processes come in time.
        UserError: the processes differ in the command line, the prepared data, the code or the versions of packages.
    """
    keep_freed_memory()
    keep_compiled_programs()
    hosts.join(launch.hosts, error_line=error_line)
    if hosts.in_a_job():
        hosts.same_everywhere(what_runs(launch))
        # JAX's backend must start on all processes together: they tell each other their devices then, and give up after
        # two minutes. So it does not start while one waits for another's decision.
        jax.devices()
    return launch if launch.named else replace(launch, run=hosts.on_first_process(lambda: launch.run))


def what_runs(launch: Launch) -> dict[str, Any]:
    """What all processes of a job must have in common, by name, as JSON values.

    These are the config with its overrides, the options, the manifest of prepared data, the versions of packages and
    the source files of this project.
    """
    return {
        **json.loads(json.dumps(to_json(launch.config))),
        "run": launch.run if launch.named else None,
        "allow_change": list(launch.allow_change),
        "--dry-run": launch.dry_run,
        "--json": launch.as_json,
        **_manifests(launch.config),
        "package": package_versions(),
        "source": {
            str(path.relative_to(_ROOT)): _sum_of(path)
            for folder in ("bert_jax", "train")
            for path in sorted((_ROOT / folder).rglob("*.py"))
        },
    }


def _manifests(config: Any) -> dict[str, str | None]:
    """Sums of the manifests of the prepared data; a pretraining config may name several directories in a field."""
    found = {}
    for name in ("data", "eval_data") if hasattr(config, "directories") else ():
        places = config.directories(name)
        for place in places:
            check_reachable(place)
            of = f" of {place}" if len(places) > 1 else ""
            found[f"{name}/manifest.json{of}"] = _sum_of(epath.Path(place) / "manifest.json")
    return found


_ROOT = Path(__file__).parents[2]


def _sum_of(path: Any) -> str | None:
    """The first digits of a file's SHA-256; None if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        return None


def in_run_directory(launch: Launch, work: Callable[[RunDirectory, Launch, Goodput], int]) -> int:
    """Locks the run directory while `work` trains in it; returns the exit code, and prints the summary for --json.

    The watchdog runs meanwhile, and the run's goodput is counted.

    A start that fails because of the user's mistake, before its first step, leaves nothing behind. In a job of several
    processes the first one does all this.
    """
    run = RunDirectory(launch.run)

    def discard(code: int, line: str) -> None:
        if code == EXIT_USER_ERROR and hosts.is_first():
            run.discard_failed_start()

    hosts.on_first_process(run.acquire)
    stages = Stages(began=take_start())
    goodput = Goodput(run.path / "goodput.json" if hosts.is_first() else None, stages)
    log_file = None if run.is_remote or not hosts.is_first() else run.path / "run.log"
    withdraw = [hosts.before_ending(discard), hosts.before_ending(lambda code, line: goodput.write())]
    try:
        with Watchdog(stages, launch.config.budgets, _end_hung, log_file), goodput:
            code = work(run, launch, goodput)
        if launch.as_json and hosts.is_first():
            _print_summary(run, code)
        return code
    except (UserError, FileNotFoundError):
        if hosts.is_first():
            run.discard_failed_start()
        raise
    finally:
        for act in withdraw:
            act()
        run.release()


def _print_summary(run: RunDirectory, code: int) -> None:
    """Prints the summary for --json. If that fails, a code that is not 0 says more of the run than the failure does."""
    try:
        print(json.dumps(run.summary(code)))
    except BrokenPipeError:  # the reader has left
        pass
    except (UserError, *storage_errors()) as error:
        if code == EXIT_DONE:
            raise
        log.warning("--json: the summary of the run cannot be printed: %s", error)


def _end_hung(why: str) -> None:
    hosts.end_at_once(EXIT_HUNG, error_line(why))


def record_start(
    run: RunDirectory,
    launch: Launch,
    config: Any,
    tokenizer: Tokenizer | None,
    source: Source | None,
    teacher: Source | None = None,
) -> None:
    """Writes config.json, environment.json and tokenizer/ of a run, on the first process.

    environment.json has the "ORG/NAME@COMMIT" of published models, so that the run can be repeated.

    Args:
        run, launch, config, tokenizer: of the run.
        source: the opened `init=`; None for a resumed run, which keeps its entry in environment.json.
        teacher: the opened `teacher=`; None without one.

    Raises:
        UserError: the config differs from the run's own in a field that `allow_change` does not name, or between the
            processes of the job.
    """
    commits = {
        f"commit of {field}": None if opened is None else opened.published
        for field, opened in (("init", source), ("teacher", teacher))
    }
    hosts.same_everywhere(json.loads(json.dumps(to_json(config))) | commits)
    hosts.on_first_process(lambda: run.settle_config(config, launch.allow_change))
    if not hosts.is_first():
        return
    facts = environment()
    if config.init is not None:
        facts["init"] = run.saved_environment().get("init") if source is None else source.published
    if teacher is not None:
        facts["teacher"] = teacher.published
    # A resume writes nothing that it finds as it should be, so that a full disk does not stop it.
    if facts != run.saved_environment():
        write_json(run.path / "environment.json", facts)
    if tokenizer is not None and not run.has_tokenizer(tokenizer):
        run.write_folder(run.tokenizer, tokenizer.save)
