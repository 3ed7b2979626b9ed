"""The references of the tests marked `parity`, which are gigabytes and may be missing."""

from importlib.util import find_spec

MISSING = " and ".join(name for name in ("torch", "transformers") if find_spec(name) is None)
LACKS = f"the extra `parity` brings {MISSING}, not installed here"
