"""What every test shares: eight virtual CPU devices, a cache of compiled programs, where the real data lies, no Internet."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

# Programs that tests start read these too, so that a resumed run does not compile again what the first one did.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("BERT_JAX_MALLOC", "0")  # a program that a test calls leaves this process's malloc alone
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test looks for a model at huggingface.co

import hypothesis
import jax
import pytest

from tests.hub_server import HubServer, hub_server

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
hypothesis.settings.register_profile("untimed", deadline=None)  # no test fails because the machine is busy
hypothesis.settings.load_profile("untimed")
MOST_RESIDENT = 3 * 2**30


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real text, vocabularies and checkpoints; a test that needs them is skipped by name without them."""
    default = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    path = Path(os.environ.get("BERT_JAX_TEST_DATA", default)).resolve()
    if not path.is_dir():
        pytest.skip(f"real data not found at {path} (set BERT_JAX_TEST_DATA)")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on the loopback with nothing published; the client asks there, and its cache is empty."""
    from huggingface_hub import constants

    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        files = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Programs of single operations are of use to the next file; those of models are not, and add up to gigabytes."""
    yield
    if resident_bytes() > MOST_RESIDENT:
        jax.clear_caches()


def resident_bytes() -> float:
    """Memory of this process; infinite where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return math.inf


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of `parity` alone are not even imported where it is left out: PyTorch and transformers take 10 s to load."""
    if collection_path.name == "parity" and "not parity" in config.option.markexpr:
        return True
    return None
