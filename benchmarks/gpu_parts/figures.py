"""What the parts of benchmarks/gpu.py share: their command line, and a file that is written again after each figure."""

import argparse
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.config import ATTENTIONS
from train.run.environment import package_versions

PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")
PATHS = tuple(path for path in ATTENTIONS if path != "auto")
AT_ONCE = 4  # programs that are compiled at the same time


class Figures:
    """The rows of a part, and what they were measured with, in a JSON file.

    Attributes:
        rows: flat dicts, as they were added.
    """

    def __init__(self, path: Path, **facts: Any):
        self.path, self.rows = path, []
        self._facts = {
            "part": path.stem,
            "date": datetime.date.today().isoformat(),
            "packages": package_versions(PACKAGES),
            **facts,
        }
        self._write(whole=False)

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        self._write(whole=False)

    def finish(self) -> None:
        """A part with a finished file is not measured again."""
        self._write(whole=True)

    def _write(self, whole: bool) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self._facts | {"whole": whole, "rows": self.rows}, indent=1) + "\n")
        os.replace(new, self.path)


def is_whole(path: Path) -> bool:
    return path.exists() and json.loads(path.read_text())["whole"]


class Task(NamedTuple):
    """What a part is asked to do.

    Attributes:
        inputs: the folder of `inputs.make_inputs`.
        out: the part's JSON file, beside those of the other parts.
        tiny: small sizes, to try the code.
    """

    inputs: Path
    out: Path
    tiny: bool

    def figures(self, **facts: Any) -> Figures:
        """The part's file, with the name of the device; this starts JAX."""
        import jax

        device = jax.devices()[0]
        return Figures(self.out, device=device.device_kind, platform=device.platform, tiny=self.tiny, **facts)


def run_part(measure: Callable[[Task], None]) -> None:
    """The command line of a part: INPUTS OUT.json [--tiny]."""
    parser = argparse.ArgumentParser(description="a part of python -m benchmarks.gpu")
    parser.add_argument("inputs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    measure(Task(options.inputs, options.out, options.tiny))


def reason_of(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
