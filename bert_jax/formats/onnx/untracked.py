"""Intel's packages without their telemetry."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

_TELEMETRY = "openvino_telemetry"


@contextmanager
def untracked() -> Generator[None]:
    """Lets openvino and nncf be imported within it without telling Google Analytics.

    By itself OpenVINO's import forks this process for that, and nncf sends an event for each model, unless the user has
    opted out; without the package openvino_telemetry they do neither.
    """
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == _TELEMETRY}
    for name in before:
        del sys.modules[name]
    sys.modules[_TELEMETRY] = None  # pyrefly: ignore[unsupported-operation]: the documented way to refuse an import
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]
        sys.modules |= before
