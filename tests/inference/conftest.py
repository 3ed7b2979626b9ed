"""Pipelines on one device: eight in a process of two cores cost compiling and prove nothing more."""

from collections.abc import Iterator

import jax
import pytest

# Their engines run on all eight, as an engine does that is not told where.
ON_ALL_DEVICES = ("test_text_classification", "test_engine")


@pytest.fixture(autouse=True, scope="module")
def one_device(request: pytest.FixtureRequest) -> Iterator[None]:
    everywhere = request.module.__name__.split(".")[-1] in ON_ALL_DEVICES
    with jax.default_device(None if everywhere else jax.devices()[0]):
        yield
