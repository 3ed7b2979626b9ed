"""What every test shares: virtual CPU devices, a cache of compiled programs, the folder of real data, no Internet."""

import gc
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxlib

from bert_jax.runtime.compilation_cache import default_folder

# Outside the checkout, so that a fresh clone finds what another compiled. Programs that tests start read these too.
COMPILED = default_folder().parents[1] / "tests" / default_folder().name
MOST_COMPILED = 4 * 2**30
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # but for the files marked `optimized`
# What users compile with, and what takes half the time: neither of two passes, and one module of LLVM a program, not 32.
# JAX 0.12 has lost the first flag, and XLA aborts at a flag that it does not know.
SLOW_TO_COMPILE = {
    "xla_cpu_use_fusion_emitters": (True, "false"),
    "xla_cpu_enable_concurrency_optimized_scheduler": (True, "false"),
    "xla_cpu_parallel_codegen_split_count": (32, "1"),
}
FAST = " ".join(f"--{name}={fast}" for name, (_, fast) in SLOW_TO_COMPILE.items())
FLAGS = FAST if jaxlib.version.__version_info__ < (0, 11) else ""
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")  # as users may have it: no array gains axes by itself
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of tests share two cores
os.environ.setdefault("BERT_JAX_DTYPE", "float32")  # also on a CPU where pipelines take bfloat16 by themselves
os.environ.setdefault("BERT_JAX_RUNTIME", "xla")  # also where OpenVINO is installed
os.environ.setdefault("BERT_JAX_MALLOC", "0")  # a program that a test calls leaves this process's malloc alone
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test looks for a model at huggingface.co
sys.dont_write_bytecode = False  # each program that a test starts would compile all of bert_jax, half a second
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
IN_MEMORY = Path("/dev/shm")
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 2**31:  # 50 MB are needed
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))  # a run waits for the disk at each save

import hypothesis
import jax
import pytest

from tests.hub_server import HubServer, hub_server
from tests.references import LACKS, MISSING
from tests.scheduling import pytest_xdist_make_scheduler  # noqa: F401, a hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
hypothesis.settings.register_profile("untimed", deadline=None)  # no test fails because the machine is busy
hypothesis.settings.load_profile("untimed")
MOST_RESIDENT = 3 * 2**30
DEVICES = {name: getattr(jax, name) for name in ("devices", "local_devices")}
COUNTS = {"device_count": "devices", "local_device_count": "local_devices"}


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real text, vocabularies and checkpoints; without it, the tests that need it are skipped by name."""
    default = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    path = Path(os.environ.get("BERT_JAX_TEST_DATA", default)).resolve()
    if not path.is_dir():
        pytest.skip(f"real data not found at {path} (set BERT_JAX_TEST_DATA)")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty hub on the loopback, which the client uses with an empty cache."""
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
    """The next file can reuse programs of single operations, but not those of models, which add up to gigabytes."""
    yield
    if resident_bytes() > MOST_RESIDENT:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def no_pictures() -> Iterator[Callable[..., bytes]]:
    """Runs in this process draw no curves, which takes as long as the rest of a tiny one; gives what would draw them."""
    from train.run.log import curves

    draw = curves.png_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "png_of", lambda records: b"\x89PNG")
        yield draw


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, no_pictures: Callable) -> Iterator[None]:
    """Curves are drawn in a test marked `pictures`."""
    # Not with the `monkeypatch` of the test: made here, it would go after `tmp_path`, which removes the folder with `os`.
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("pictures"):
            patch.setattr("train.run.log.curves.png_of", no_pictures)
        yield


def see_devices(patch: pytest.MonkeyPatch, most: int) -> None:
    """Lets JAX name the first `most` of its eight devices."""

    def first(named: Callable[..., list]) -> Callable[..., list]:
        return lambda *args, **kwargs: named(*args, **kwargs)[:most]

    for name, named in DEVICES.items():
        patch.setattr(jax, name, first(named))
    for name, named in COUNTS.items():
        patch.setattr(jax, name, lambda backend=None, named=DEVICES[named]: len(named(backend=backend)[:most]))


@pytest.fixture(autouse=True, scope="module")
def one_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """One device, so that tests do not pay for sharding; eight in a module marked `eight_devices`."""
    with pytest.MonkeyPatch.context() as patch:
        see_devices(patch, 8 if request.node.get_closest_marker("eight_devices") else 1)
        yield


@pytest.fixture(autouse=True)
def eight_devices(request: pytest.FixtureRequest, one_device: None) -> Iterator[None]:
    """Eight devices for a test marked `eight_devices`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("eight_devices"):
            see_devices(patch, 8)
        yield


@pytest.fixture(autouse=True, scope="module")
def few_optimizations(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles a module marked `optimized` as users do: its subject is bits, bfloat16 or long computations."""
    if not request.node.get_closest_marker("optimized"):
        yield
        return
    before = jax.config.values["jax_disable_most_optimizations"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        jax.devices()  # reads XLA_FLAGS, so that modules after this one compile with them
        if FLAGS and os.environ["XLA_FLAGS"] == FLAGS:
            patch.setenv("XLA_FLAGS", "")  # of programs that a test starts; this process has read them already
            compile_as_users_do(patch)
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", False)
        yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


def compile_as_users_do(patch: pytest.MonkeyPatch) -> None:
    """Compiles with users' values of `SLOW_TO_COMPILE`, whatever this process's flags say."""
    from jax._src import compiler

    options_of = compiler.get_compile_options

    def options(*args: Any, env_options_overrides: dict[str, Any] | None = None, **others: Any) -> Any:
        overrides = {name: users for name, (users, _) in SLOW_TO_COMPILE.items()} | (env_options_overrides or {})
        return options_of(*args, env_options_overrides=overrides, **others)

    patch.setattr(compiler, "get_compile_options", options)


def pytest_collection_finish() -> None:
    """Looks for garbage a tenth as often, and not in what is imported: it would take a tenth of the tests' time."""
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the folder of compiled programs below `MOST_COMPILED` bytes: deletes the least recently used first."""
    if hasattr(session.config, "workerinput") or not COMPILED.is_dir():
        return
    found = [(max(s.st_atime, s.st_mtime), s.st_size, path) for path in COMPILED.iterdir() if (s := path.stat())]
    size = sum(size for _, size, _ in found)
    for _, bytes_, path in sorted(found):
        if size <= MOST_COMPILED:
            break
        path.unlink(missing_ok=True)
        size -= bytes_


def resident_bytes() -> float:
    """Memory of this process; infinite if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return math.inf


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips the tests marked `parity` without their references, and leaves out those marked `exhaustive`.

    Where `-m` mentions `exhaustive`, or a test is named, those stay in.
    """
    for item in items:
        if MISSING and item.get_closest_marker("parity"):
            item.add_marker(pytest.mark.skip(reason=LACKS))
    if "exhaustive" in config.option.markexpr or any("::" in argument for argument in config.args):
        return
    kept = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("exhaustive")])
    items[:] = kept


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import the files of tests/parity if parity is left out: PyTorch and transformers take 10 s to load."""
    if collection_path.name == "parity" and "not parity" in config.option.markexpr:
        return True
    return None
