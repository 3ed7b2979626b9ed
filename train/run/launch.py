"""How every training program starts: parse the command line, set up JAX, hold the run directory, and use `init=SOURCE`.

A source gives the run its architecture and parameters; the run records its origin.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bert_jax.cli.program import in_own_words
from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, did_you_mean
from bert_jax.files import write_json
from bert_jax.formats.source import Source
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from bert_jax.runtime.cpu import keep_freed_memory
from train.run.config import load_recipe, override
from train.run.directory import RunDirectory, environment
from train.run.fields import fields_of, print_fields
from train.run.stopping import EXIT_DONE, EXIT_USER_ERROR
from train.run.track import check_tracker

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


def parse(argv: list[str], usage: str, kind: type) -> Launch:
    """Parses `CONFIG.py [key=value ...] [--dry-run] [--json] [--fields]`; the config must be of class `kind`.

    Raises:
        UserError: a word that is not understood, or what `load_recipe`, `override` and `check_tracker` raise.
        SystemExit: --help or --fields, which print; or no words.
    """
    if not argv or "-h" in argv or "--help" in argv:
        print(in_own_words(usage.strip()), file=sys.stdout if argv else sys.stderr)
        raise SystemExit(EXIT_DONE if argv else EXIT_USER_ERROR)
    if argv[0] == "--fields":
        raise UserError("--fields: name the config whose fields to list, such as configs/tiny.py --fields")
    path, *words = argv
    if "=" in path or path.startswith("-"):
        raise UserError(f"{path}: the first word must be a config file, such as configs/tiny.py")
    config = load_recipe(path, kind)
    run, allow_change, options = None, (), set()
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word in _OPTIONS:
            options.add(word)
        elif word.startswith("-"):
            near = did_you_mean(word, _OPTIONS) or f"; expected {', '.join(_OPTIONS)} or FIELD=VALUE"
            raise UserError(f"{word!r} is not an option{near}")
        elif not equals:
            raise UserError(f"{word}: expected FIELD=VALUE; {_as_word(config, word)}")
        elif key == "run":
            run = value
        elif key == "allow_change":
            allow_change = tuple(name for name in value.split(",") if name)
        else:
            fields[key] = value
    config = override(config, fields)
    if "--fields" in options:
        print_fields(config, as_json="--json" in options)
        raise SystemExit(EXIT_DONE)
    check_tracker(config.track)
    task = getattr(config, "task", None)
    name = "-".join(part for part in (Path(path).stem, task, time.strftime("%Y-%m-%d")) if part)
    run = run or f"runs/{name}"
    return Launch(config, run, allow_change, "--dry-run" in options, "--json" in options, frozenset(fields))


def _as_word(config: Any, word: str) -> str:
    """What would be right in place of a word without "="."""
    names = [field.path for field in fields_of(config)]
    if word in ("run", *names):
        return f"say {word}=VALUE"
    return "put texts with spaces in quotes" + did_you_mean(word, ["run", *names])


def start_jax() -> None:
    """Sets up what JAX needs before its first use: memory, the cache of compiled programs, the processes of the job.

    If the environment names other processes, this one joins them. `jax.distributed.initialize()` recognises Cloud TPU
    pods, Slurm, Open MPI and GKE; elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    keep_freed_memory()
    keep_compiled_programs()
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    counts = (os.environ.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "JAX_NUM_PROCESSES"))
    if len(hosts) > 1 or os.environ.get("JAX_COORDINATOR_ADDRESS") or any(count not in ("", "1") for count in counts):
        explicit = {}
        if os.environ.get("JAX_NUM_PROCESSES"):
            explicit = {
                "coordinator_address": os.environ.get("JAX_COORDINATOR_ADDRESS"),
                "num_processes": int(os.environ["JAX_NUM_PROCESSES"]),
                "process_id": int(os.environ.get("JAX_PROCESS_ID", "0")),
            }
        jax.distributed.initialize(**explicit, heartbeat_timeout_seconds=60, shutdown_timeout_seconds=60)


def in_run_directory(launch: Launch, work: Callable[[RunDirectory, Launch], int]) -> int:
    """Locks the run directory while `work` trains in it; returns the exit code, and prints the summary for --json.

    A start that fails because of the user's mistake, before its first step, leaves nothing behind.
    """
    run = RunDirectory(launch.run)
    if jax.process_index() == 0:
        run.acquire()
    try:
        code = work(run, launch)
        if launch.as_json and jax.process_index() == 0:
            print(json.dumps(run.summary(code)))
        return code
    except (UserError, FileNotFoundError):
        if jax.process_index() == 0:
            run.discard_failed_start()
        raise
    finally:
        run.release()


def record_start(
    run: RunDirectory, launch: Launch, config: Any, tokenizer: Tokenizer | None, source: Source | None
) -> None:
    """Writes config.json, environment.json and tokenizer/ of a run, on process 0.

    environment.json has the "ORG/NAME@COMMIT" of a published model, so that the run can be repeated.

    Args:
        run, launch, config, tokenizer: of the run.
        source: the opened `init=`; None for a resumed run, which keeps its entry in environment.json.

    Raises:
        UserError: the config differs from the run's own in a field that `allow_change` does not name.
    """
    if jax.process_index() != 0:
        return
    run.settle_config(config, launch.allow_change)
    facts = environment()
    if config.init is not None:
        facts["init"] = run.saved_environment().get("init") if source is None else source.published
    write_json(run.path / "environment.json", facts)
    if tokenizer is not None:
        run.write_folder(run.tokenizer, tokenizer.save)


def given_to_model(given: frozenset[str]) -> list[str]:
    """The architecture fields that the command line sets; not `COMPUTE_FIELDS`, which only say how to compute."""
    names = (path.removeprefix("model.") for path in sorted(given) if path.startswith("model."))
    return [name for name in names if name not in COMPUTE_FIELDS]


def overridden_model(theirs: BertConfig, own: BertConfig, given: frozenset[str]) -> BertConfig:
    """The source's architecture with the fields that the command line sets; the `COMPUTE_FIELDS` are the run's own."""
    return theirs.replace(**{name: getattr(own, name) for name in (*COMPUTE_FIELDS, *given_to_model(given))})


def place_on_mesh(params: Any, target: Any, source: str) -> Any:
    """Puts parameters from the host on the devices, sharded as `target`.

    Raises:
        UserError: naming the first parameter that is missing or has another shape.
    """
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def one(path, want):
        name = jax.tree_util.keystr(path)
        leaf = found.get(name)
        if leaf is None:
            raise UserError(f"init: {source} has no parameter {name}, which this run's model needs")
        if leaf.shape != want.shape:
            raise UserError(f"init: {source} has {name} of shape {leaf.shape}; this run's model needs {want.shape}")
        return jax.device_put(leaf, want.sharding)

    return jax.tree_util.tree_map_with_path(one, target)
