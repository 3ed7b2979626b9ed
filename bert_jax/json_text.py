"""JSON that every reader takes: what is no number (a correlation of equal predictions) is null."""

import json
import math
from typing import Any


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON, with null for NaN and the infinities, for which JSON has no word (RFC 8259, section 6)."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
