"""benchmarks/gpu.py without a GPU: all its parts run on a CPU, with the packages that it may count on and no others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu_parts.figures import PATHS
from bert_jax.data.pretraining.packed_batches import PackedBatches
from tests.data.pretraining.test_batches import L, prepare
from tests.root import ROOT
from tests.unpacking import unpacked

MISSING = ("sentencex", "tensorboardX", "sentence_transformers", "onnxruntime", "shtab", "zstandard", "google_crc32c")
BLOCKER = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {MISSING} else find(name, path, target)
PathFinder.find_spec = find_spec
"""


def run(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(path), str(ROOT)])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path):
    result = run(str(tmp_path / "out"), path=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("JAX sees no GPU here, but cpu cpu: nothing was measured")
    assert not (tmp_path / "out").exists()


def test_packed_rows_count_the_products_of_their_examples_alone(tmp_path):
    """So that packing gains in the figures what it gains in real tokens, and nothing else."""
    from benchmarks.gpu_parts.inputs import model_config
    from benchmarks.gpu_parts.steps import examples_of, speeds

    packed = PackedBatches(prepare(tmp_path / "data"), batch_size=64, max_seq_length=L).batch(0)
    alone = unpacked(packed)
    assert packed["sequence_ids"].max() > 1
    for found, expected in zip(examples_of(packed), examples_of(alone), strict=True):
        np.testing.assert_array_equal(np.sort(found), np.sort(expected))
    assert examples_of(packed)[0].sum() == (packed["sequence_ids"] > 0).sum()
    assert examples_of(packed)[1].sum() == packed["mlm_weights"].sum()
    config = model_config(tiny=True)
    found, expected = (speeds(config, batch, 1.0, 1e9) for batch in (packed, alone))
    assert found.pop("padding") < expected.pop("padding")
    assert found == expected


@pytest.mark.exhaustive
def test_every_part_runs_and_a_second_call_measures_only_what_is_missing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    for missing in MISSING:
        blocked = [sys.executable, "-c", f"import {missing}"]
        assert subprocess.run(
            blocked, env=os.environ | {"PYTHONPATH": str(tmp_path)}, stderr=subprocess.DEVNULL
        ).returncode
    out = tmp_path / "out"
    result = run(str(out), "--tiny", "--minutes", "60", path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip().endswith("This was a CPU: the parts run, and the figures of a GPU wait for one.")
    parts = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert parts.keys() == {"ceiling", "parity", "base-128", "large-512", "inference", "muon", "compiled"}
    for name, part in parts.items():
        assert part["whole"] and part["rows"] and part["tiny"] and part["platform"] == "cpu", name
        assert not [row for row in part["rows"] if "failed" in row], name
    assert all(row["holds"] for row in parts["parity"]["rows"] if "refused" not in row)
    for part in ("parity", "base-128", "large-512"):
        rows = [row for row in parts[part]["rows"] if "attention" in row]
        assert {row["attention"] for row in rows} >= set(PATHS)
        assert {row["attention"] for row in rows if "refused" in row} <= set(PATHS) - {"xla"}
    assert all(row["equal_to_the_pipeline"] for row in parts["compiled"]["rows"])
    assert all(row["distance"] < (0.01 if row["products"] == "bfloat16" else 1e-4) for row in parts["muon"]["rows"])
    assert all(row["cosine"] > 0.999 for row in parts["inference"]["rows"])
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.json") if path.stem != "ceiling"}
    (out / "ceiling.json").unlink()
    again = run(str(out), "--tiny", path=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (out / "ceiling.json").exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}
