"""What a run computes with: versions of packages, devices and compiler options."""

import platform
import socket
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Those that the numbers of a run depend on.
_PACKAGES = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def package_versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str | None]:
    """Package -> its version; None if it is not installed."""
    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def environment() -> dict[str, Any]:
    """Versions, devices and compiler options of this process, for environment.json."""
    import jax

    from bert_jax.runtime.compiler import compiler_options, flags

    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "backend": jax.default_backend(),
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "compiler_options": compiler_options(devices),
        "compiler_flags": flags(),
        "host": socket.gethostname(),
    }
