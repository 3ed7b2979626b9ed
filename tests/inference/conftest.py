"""Pipelines on one device: eight in a process of two cores cost compiling and prove nothing more."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest

from bert_jax.inference.programs import Programs

# Their engines run on all eight, as an engine does that is not told where.
ON_ALL_DEVICES = ("test_text_classification", "test_engine")


@pytest.fixture(autouse=True, scope="module")
def one_device(request: pytest.FixtureRequest) -> Iterator[None]:
    original = Programs.__init__

    def on_one(self: Programs, function: Any, params: Any, devices: Any = None) -> None:
        original(self, function, params, jax.devices()[:1] if devices is None else devices)

    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.split(".")[-1] not in ON_ALL_DEVICES:
            patch.setattr(Programs, "__init__", on_one)
        yield
