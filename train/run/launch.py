"""From a command line to a resolved config and a started JAX: what every training program shares."""

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
    """A parsed command line: the config with its overrides, and the words that are not part of a config."""

    config: Any
    run: str
    allow_change: tuple[str, ...]
    dry_run: bool
    as_json: bool
    given: frozenset[str]  # the overridden fields


def parse(argv: list[str], usage: str, kind: type) -> Launch:
    """`CONFIG.py [key=value ...] [--dry-run] [--json]` -> Launch, with a config of the kind that the program takes.

    Raises:
        UserError: whatever is wrong, in one line.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(usage.strip())
        raise SystemExit(EXIT_DONE if argv else EXIT_USER_ERROR)
    path, *words = argv
    if "=" in path or path.startswith("-"):
        raise UserError(f"{path}: the first word is the config file, as in configs/tiny.py")
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
    """Settles what must be settled before JAX is used: memory, compiled programs, the other processes of the job.

    Those are joined where the environment names some. Cloud TPU pods, Slurm, Open MPI and GKE are found by
    `jax.distributed.initialize()` itself; elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
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
