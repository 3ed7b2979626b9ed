"""The scripts of .ci/, which is no package, as modules."""

import importlib.util
from types import ModuleType

from tests.root import ROOT

FOLDER = ROOT / ".ci"


def ci_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
