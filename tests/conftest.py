"""What every test shares: eight virtual CPU devices, and where the real data lies."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real text, vocabularies and checkpoints; a test that needs them is skipped by name without them."""
    default = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    path = Path(os.environ.get("BERT_JAX_TEST_DATA", default)).resolve()
    if not path.is_dir():
        pytest.skip(f"real data not found at {path} (set BERT_JAX_TEST_DATA)")
    return path
