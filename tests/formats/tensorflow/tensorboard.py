"""Parts of tensorboardX without its `__init__`, which loads PyTorch where it is installed: five seconds."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def part(name: str) -> Any:
    """The module `tensorboardX.<name>`."""
    if "tensorboardX" in sys.modules:
        return importlib.import_module(f"tensorboardX.{name}")
    spec = importlib.util.find_spec("tensorboardX")
    assert spec is not None and spec.submodule_search_locations is not None
    package = ModuleType("tensorboardX")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["tensorboardX"] = package
    try:
        return importlib.import_module(f"tensorboardX.{name}")
    finally:
        # Whoever imports the package gets the whole of it.
        for loaded in [one for one in sys.modules if one == "tensorboardX" or one.startswith("tensorboardX.")]:
            del sys.modules[loaded]
