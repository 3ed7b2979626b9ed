"""Compiled programs are cached by default and found again; the user's setting comes first; damage is overwritten."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from bert_jax.runtime import compilation_cache
from bert_jax.runtime.compilation_cache import CHECKSUMS, default_folder, remove_damaged
from tests.inference.tasks.task_folders import export
from tests.root import ROOT

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
for option in sys.argv[1:]:
    name, value = option.split("=")
    jax.config.update(name, float(value) if "." in value else int(value))
from bert_jax.runtime.compilation_cache import cache_folder, keep_compiled_programs
keep_compiled_programs()
counts = {"cache_hits": 0, "cache_misses": 0}
def count(event, **_):
    name = event.rpartition("/")[2]
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
result = jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.arange(64.0).reshape(8, 8) / 64)
settings = {name: value for name, value in jax.config.values.items() if name.startswith("jax_persistent_cache_min")}
print(json.dumps({"folder": cache_folder(), "result": float(result), **counts, **settings}))
"""
PIPELINE = """
import json, sys
import jax
counts = {"cache_hits": 0, "cache_misses": 0}
def count(event, **_):
    name = event.rpartition("/")[2]
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
from bert_jax import pipeline
from bert_jax.runtime.compilation_cache import cache_folder
found = pipeline("fill-mask", sys.argv[1], cache=json.loads(sys.argv[2]))("hello [MASK]")
print(json.dumps({"folder": cache_folder(), "result": found, **counts}))
"""


def start(home: Path, *arguments: str, program: str = PROGRAM, **environment: str) -> dict[str, Any]:
    """Runs a process that compiles something, with warnings as errors; returns what it found in the cache."""
    inherited = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env=inherited | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(home)} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return json.loads(process.stdout)


@pytest.mark.slow
def test_a_second_start_compiles_nothing_and_a_damaged_entry_is_written_again(tmp_path):
    first = start(tmp_path)
    folder = Path(first["folder"])
    assert folder.parent == tmp_path / "bert_jax" / "compiled"
    entries = {path.name: path.read_bytes() for path in folder.glob("*-cache")}
    assert first["cache_misses"] == len(entries) > 0 and first["cache_hits"] == 0
    second = start(tmp_path)
    assert (second["cache_misses"], second["cache_hits"]) == (0, len(entries))

    for name, content in entries.items():
        (folder / name).write_bytes(content[: len(content) // 2])
    third, fourth = start(tmp_path), start(tmp_path)
    assert third["cache_misses"] == len(entries) and fourth["cache_misses"] == 0
    assert first["result"] == second["result"] == third["result"] == fourth["result"]


@pytest.mark.slow
def test_the_users_own_settings_win(tmp_path):
    own = start(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert own["folder"] == str(tmp_path / "own")
    none = start(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")
    assert none["folder"] is None
    seconds = start(tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000")
    assert seconds["folder"] and seconds["cache_misses"] == 0
    assert not list(tmp_path.rglob("*-cache"))
    own = {"jax_persistent_cache_min_compile_time_secs": 100.0, "jax_persistent_cache_min_entry_size_bytes": 1_000_000}
    told = start(tmp_path, *(f"{name}={value}" for name, value in own.items()))
    assert {name: told[name] for name in own} == own
    assert told["folder"] and not list(tmp_path.rglob("*-cache"))


@pytest.mark.slow
def test_a_pipeline_keeps_its_programs_where_it_is_asked_to(tmp_path):
    folder = str(export(tmp_path, "mlm"))
    without = start(tmp_path, folder, "false", program=PIPELINE)
    assert without["folder"] is None and not (tmp_path / "bert_jax").exists()
    first, second = (start(tmp_path, folder, "true", program=PIPELINE) for _ in range(2))
    assert first["folder"] == second["folder"] and Path(first["folder"]).is_relative_to(tmp_path)
    assert first["cache_misses"] > 0 and first["cache_hits"] == 0
    assert (second["cache_misses"], second["cache_hits"]) == (0, first["cache_misses"])
    assert without["result"] == first["result"] == second["result"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert start(tmp_path / "file")["folder"] is None


def test_each_jaxlib_and_each_cpu_has_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = default_folder()
    assert here == default_folder() and here.is_relative_to(tmp_path)
    monkeypatch.setattr(compilation_cache, "_cpu", lambda: "flags: sse2")
    other = default_folder()
    monkeypatch.setattr(compilation_cache, "version", lambda _: "0.0.1")
    assert len({here, other, default_folder()}) == 3
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert default_folder().parent == Path("/somebody/.cache/bert_jax/compiled")


def packed(content: bytes, kind: str) -> bytes:
    if kind == "zlib":
        return zlib.compress(content)
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_what_is_cut_short_or_has_changed_is_removed(kind, tmp_path):
    whole = packed(os.urandom(300), kind)
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}-cache").write_bytes(whole)
    (tmp_path / "b-cache").write_bytes(whole[:-5])
    (tmp_path / "c-cache").write_bytes(b"")
    remove_damaged(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-cache", CHECKSUMS, "d-cache"]
    flipped = bytearray(whole)
    flipped[150] ^= 1
    (tmp_path / "d-cache").write_bytes(flipped)
    (tmp_path / "e-cache").write_bytes(whole)
    remove_damaged(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-cache", CHECKSUMS, "e-cache"]
    assert set(json.loads((tmp_path / CHECKSUMS).read_text())) == {"a-cache", "e-cache"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_checksums_that_are_damaged_themselves_are_made_again(content, tmp_path):
    (tmp_path / "a-cache").write_bytes(zlib.compress(b"program"))
    (tmp_path / CHECKSUMS).write_bytes(content)
    remove_damaged(tmp_path)
    assert set(json.loads((tmp_path / CHECKSUMS).read_text())) == {"a-cache"}


def test_an_entry_that_another_program_deletes_meanwhile_is_no_reason_to_do_without(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / f"{name}-cache").write_bytes(zlib.compress(b"program"))
    read = Path.read_bytes

    def read_late(path: Path) -> bytes:
        if path.name == "a-cache":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    remove_damaged(tmp_path)
    assert set(json.loads((tmp_path / CHECKSUMS).read_text())) == {"b-cache"}
