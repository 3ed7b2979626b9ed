"""What every test shares: eight virtual CPU devices, a cache of compiled programs, and where the real data lies."""

import os
from pathlib import Path

# Programs that tests start read these too, so that a resumed run does not compile again what the first one did.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

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
