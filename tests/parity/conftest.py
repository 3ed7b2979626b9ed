"""Skips this folder's files by name if the references are not installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]


class WithoutReferences(pytest.Module):
    """A file that pytest does not import, since its imports would fail."""

    def collect(self):
        lacks = " and ".join(MISSING)
        pytest.skip(f"{self.path.name}: the extra `parity` brings {lacks}, not installed here", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return WithoutReferences.from_parent(parent, path=module_path) if MISSING else None
