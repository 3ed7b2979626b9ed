"""Counts how often the files below a folder are opened."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_watched: list[Counter[str]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(arguments[0], str | bytes | os.PathLike):
        _watched[-1][os.fsdecode(arguments[0])] += 1


sys.addaudithook(_note)  # sees open, io.open, os.open and pathlib's; it cannot be taken away again


def opened_by(call: Callable[[], Any], folder: Path) -> Counter[str]:
    """How often `call` opens each file below a folder."""
    _watched.append(Counter())
    try:
        call()
    finally:
        found = _watched.pop()
    return Counter({path[len(f"{folder}/") :]: count for path, count in found.items() if path.startswith(f"{folder}/")})
