"""A run moves between numbers of processes and meshes: the same batches in the same order, and bitwise weights."""

import json
import shutil
from pathlib import Path

import pytest

from bert_jax.__main__ import main as bert_jax
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from tests.train.hosts import test_equal
from tests.train.hosts.test_equal import assert_equal_runs, here, on_hosts, pretrain

folder = test_equal.folder  # the fixture

SAVES = ["save_every=5", "keep=20", "eval_every=10"]
STAGES = [
    (2, 2, ["mesh.data=1", "mesh.fsdp=2", "mesh.tensor=2"]),
    (4, 2, ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]),
    (1, 1, ["mesh.data=1"]),
]
"""The number of processes, the devices of each, the words."""


def back_to(run: Path, step: int) -> None:
    for path in (run / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)


@pytest.mark.exhaustive
def test_a_run_moves_from_one_process_to_two_to_four_and_back(folder: Path, tmp_path: Path):
    here(2, pretrain(folder, "unmoved", "mesh.data=2", *SAVES))
    run = folder / "moved"
    shutil.copytree(folder / "unmoved", run)
    for stop, (count, devices, mesh) in zip((10, 25, 35), STAGES, strict=True):
        back_to(run, stop)
        program = pretrain(folder, "moved", *mesh, *SAVES, "allow_change=mesh")
        if count == 1:
            here(devices, program)
        else:
            (reports,) = on_hosts(count, folder, [program], devices=devices)
            assert [report["code"] for report in reports] == [0] * count
        assert_equal_runs(run, folder / "unmoved", tolerance=1e-4)

        # Restored by one process, the last checkpoint is, bit for bit, what all of them gathered for the export.
        target = tmp_path / f"by {count}"
        assert bert_jax(["export", str(run), str(target)]) == 0
        assert (target / "model.safetensors").read_bytes() == (run / "export/model.safetensors").read_bytes()
        files = json.loads((run / "checkpoints/50/manifest.json").read_text())["files"]
        writers = {name.split("/")[1] for name in files if name.startswith("state/ocdbt.process_")}
        assert writers == {f"ocdbt.process_{number}" for number in range(count)}
        with Checkpoints(run / "checkpoints") as checkpoints:
            assert checkpoints.verify(50) == []
