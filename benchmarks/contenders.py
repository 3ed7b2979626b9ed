"""The contenders of benchmarks/train_step.py: the module that does the step, its environment, its malloc."""

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals.environments import ROOT, interpreter
from benchmarks.turns import Worker

# `own`: the program's own setting, for ours bert_jax/runtime/cpu.py; `kept`: the same set from outside, so that the
# process keeps freed memory; `huge`: the kernel is asked for huge pages.
_KEPT = {"mmap_max": "0", "trim_threshold": str(1 << 40), "arena_max": "1"}
MALLOC = {
    "own": {},
    "default": {},
    "huge": {"hugetlb": "1"},
    "kept": _KEPT,
    "kept+huge": _KEPT | {"hugetlb": "1"},
}


@dataclass(frozen=True)
class Contender:
    """A program that takes a workload's folder and `argument`, run with the malloc setting that is fastest for it."""

    module: str
    argument: str
    malloc: str
    environment: str | None = None

    def start(self, malloc: str, folder: Path, gpu: bool = False) -> Worker:
        """Start the program, on the CPU with this malloc or on a GPU; raises RuntimeError, with the reason, if it
        cannot run."""
        python = interpreter(self.environment)
        if not python.exists():
            raise RuntimeError(f"there is no {python}: python -m benchmarks.train_step --make-environments")
        tunables = ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC[malloc].items())
        environment = {
            "BERT_JAX_MALLOC": "1" if malloc == "own" else "0",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # torch.compile reuses nothing from earlier
        }
        if gpu:  # several processes share its memory
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        else:
            environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
            if tunables:
                environment["GLIBC_TUNABLES"] = tunables
        return Worker([str(python), "-m", self.module, str(folder), self.argument], environment)


_OURS, _TORCH = "benchmarks.train_step_ours", "benchmarks.rivals.torch_step"
_FLAX, _KERAS = "benchmarks.rivals.flax_step", "benchmarks.rivals.keras_step"
CONTENDERS = {
    "ours-bfloat16": Contender(_OURS, "bfloat16", "own"),
    "ours-float32": Contender(_OURS, "float32", "own"),
    "ours-bfloat16-3.13": Contender(_OURS, "bfloat16", "own", "3.13"),
    "torch-eager": Contender(_TORCH, "users", "default"),
    "torch-best": Contender(_TORCH, "best", "kept"),
    "torch-best-float32": Contender(_TORCH, "best-float32", "kept"),
    "torch-uncompiled": Contender(_TORCH, "uncompiled", "kept+huge"),
    "torch-uncompiled-float32": Contender(_TORCH, "uncompiled-float32", "kept+huge"),
    "flax": Contender(_FLAX, "float32", "kept", "flax"),
    "flax-bfloat16": Contender(_FLAX, "bfloat16", "kept", "flax"),
    "keras": Contender(_KERAS, "float32", "kept", "keras"),
    "keras-bfloat16": Contender(_KERAS, "mixed_bfloat16", "kept", "keras"),
    "product-bfloat16": Contender("benchmarks.product", "bfloat16", "own"),
    "product-float32": Contender("benchmarks.product", "float32", "own"),
}
