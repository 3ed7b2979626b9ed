"""How every training program starts: parse the command line, resolve the config, set up JAX."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.runtime.compilation_cache import keep_compiled_programs
from bert_jax.runtime.cpu import keep_freed_memory
from train.run.config import load_recipe, override
from train.run.stopping import EXIT_DONE, EXIT_USER_ERROR


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
    """Parses `CONFIG.py [key=value ...] [--dry-run] [--json]`; the config must be of class `kind`.

    Raises:
        UserError: a word that is not understood, or what `load_recipe` and `override` raise.
        SystemExit: no words, or --help; `usage` is printed.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(usage.strip())
        raise SystemExit(EXIT_DONE if argv else EXIT_USER_ERROR)
    path, *words = argv
    if "=" in path or path.startswith("-"):
        raise UserError(f"{path}: the first word must be a config file, such as configs/tiny.py")
    config = load_recipe(path, kind)
    run, allow_change, dry_run, as_json = None, (), False, False
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if word == "--dry-run":
            dry_run = True
        elif word == "--json":
            as_json = True
        elif not equals:
            raise UserError(f"{word}: expected key=value (or --dry-run, --json)")
        elif key == "run":
            run = value
        elif key == "allow_change":
            allow_change = tuple(name for name in value.split(",") if name)
        else:
            fields[key] = value
    config = override(config, fields)
    task = getattr(config, "task", None)
    name = "-".join(part for part in (Path(path).stem, task, time.strftime("%Y-%m-%d")) if part)
    run = run or f"runs/{name}"
    return Launch(config, run, allow_change, dry_run, as_json, frozenset(fields))


def start_jax() -> None:
    """Sets up what JAX needs before its first use: memory, the cache of compiled programs, the processes of the job.

    If the environment names other processes, this one joins them. `jax.distributed.initialize()` recognises Cloud TPU
    pods, Slurm, Open MPI and GKE; elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    import jax

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
