"""Training over several processes is training in one: the same batches, losses, scores, weights and files."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main as bert_jax
from bert_jax.data.pretraining.manifest import read_manifest, write_manifest
from tests import test_files
from tests.conftest import see_devices
from tests.hosts import Hosts
from tests.root import ROOT
from tests.run_directory import records
from tests.train.finetuning.finetune_sources import (
    write_squad,
    write_start,
    write_tables,
    write_tagged,
)
from tests.train.hosts.programs import note_rows, run
from tests.train.pretraining.family_runs import write_text
from train.pretraining.mixture import MixedData
from train.pretraining.source import PreparedData

storage = test_files.storage  # the fixture: an emulator of a bucket

RECIPE = '''"""Fifty steps in two phases, dropout on, float32, four heads."""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    model = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=24,
        dtype="float32",
    )
    return PretrainConfig(
        model=model, optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5),
        phases=(Phase(16, 16, 30), Phase(24, 16, 20)), log_every=1, eval_every=25, eval_batches=3, save_every=25,
        packing="no",  # on how many devices a batch can be packed depends on its rows
    )
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The recipe, and text prepared for its lengths and a longer one: "data", and "more" with the same vocabulary."""
    from train.prepare import main

    folder = tmp_path_factory.mktemp("hosts")
    (folder / "recipe.py").write_text(RECIPE)
    options = ["--max-seq-length", "16,24,40", "--vocab-size", "45", "--held-out", "0.3", "--dupe-factor", "2"]
    text = str(write_text(folder / "text.txt", documents=80))
    assert main([text, "--output", str(folder / "data"), *options, "--workers", "1"]) in (0, None)
    options[2:4] = ["--vocab", str(folder / "data")]
    more = str(write_text(folder / "more.txt", documents=50, seed=1))
    assert main([more, "--output", str(folder / "more"), *options, "--workers", "1"]) in (0, None)
    return folder


def pretrain(folder: Path, name: str, *words: str) -> list[str]:
    return ["pretrain", str(folder / "recipe.py"), f"data={folder / 'data'}", f"run={folder / name}", *words]


def on_hosts(
    count: int,
    folder: Path,
    programs: list[list[str]],
    devices: int = 2,
    environment: dict[str, str] | None = None,
) -> list[list[dict[str, Any]]]:
    """The reports of `programs.py`: of each program, those of each process."""
    words = ["tests/train/hosts/programs.py", json.dumps(programs)]
    with Hosts(count, words, folder / "logs", devices=devices, environment=environment) as hosts:
        ends = hosts.wait(1800)
    assert [end.code for end in ends] == [0] * count, [end.out for end in ends]
    reports = [[json.loads(line) for line in end.out.splitlines() if line.startswith('{"code"')] for end in ends]
    return [list(of_program) for of_program in zip(*reports, strict=True)]


def here(devices: int, program: list[str]) -> dict[str, Any]:
    """Runs a program in this process, on so many devices; returns its report."""
    with pytest.MonkeyPatch.context() as patch:
        see_devices(patch, devices)
        for kind in (PreparedData, MixedData):
            patch.setattr(kind, "batches", kind.batches)  # so that the patch ends with this context
            note_rows(kind)
        report = run(program[0], program[1:])
    assert report["code"] == 0, report
    return report


def assert_equal_runs(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    """The same losses at each step, and the same held-out figures."""
    for kind, names in (("train", ("loss", "mlm_loss", "nsp_loss")), ("eval", ("mlm_loss", "nsp_loss"))):
        ours, theirs = records(one, kind), records(other, kind)
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        for name in names:
            found, expected = ([row[name] for row in rows] for rows in (ours, theirs))
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=f"{kind} {name}")
    for ours, theirs in zip(records(one, "eval"), records(other, "eval"), strict=True):
        for name in ("unigram_accuracy", "majority_accuracy"):
            assert ours[name] == theirs[name]
        assert ours["unigram_loss"] == pytest.approx(theirs["unigram_loss"], rel=1e-6)


# ---- what every `make test` runs: one start of two processes with two devices each

DATA = ["mesh.data=4", "accumulation=2"]
OTHER_MESH = ["mesh.data=2", "mesh.fsdp=2", "accumulation=2", "allow_change=mesh"]
MIXED = ["data_shares=((3, 1), (1, 2))", "tokens_per_device=48"]
FORECAST = ["configs/tiny.py", "model.num_hidden_layers=1", "phases=((16, 16, 10),)", "optimizer.warmup_steps=2"]
PACKED = ["packing=yes", "phases=((40,20,25),)", "model.max_position_embeddings=40"]  # 16 rows have 20 examples
CLASSIFY = ["epochs=2", "eval_every=8", "log_every=1", "model.dtype=float32"]


def finetune(folder: Path, name: str, *words: str, files: Sequence[str] = ("train", "dev", "test")) -> list[str]:
    own = [f"{file}={folder / file}.csv" for file in files]
    return ["finetune", str(folder / "recipe.py"), f"init={folder / 'model'}", f"run={folder / name}", *own, *words]


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """A model, its recipe, and the files of tasks."""
    folder = tmp_path_factory.mktemp("tables")
    write_start(folder)
    write_tables(folder)
    return folder


@pytest.fixture(scope="module")
def one(folder: Path, tables: Path) -> dict[str, dict[str, Any]]:
    """The runs of one process, with four devices, of packed rows with one, of the mixture with two; "… resumed" have step 25 alone."""
    reports = {
        "one": here(4, pretrain(folder, "one", *DATA)),
        "packed": here(1, pretrain(folder, "one packed", "accumulation=2", *PACKED)),
        "classify": here(4, finetune(tables, "one", *CLASSIFY)),
        "mixed": here(2, pretrain(folder, "one mixed", f"data={folder / 'data'},{folder / 'more'}", *MIXED)),
    }
    for name in ("one", "one mixed"):
        shutil.copytree(folder / name, folder / f"{name} resumed")
        shutil.rmtree(folder / f"{name} resumed/checkpoints/50")
    return reports


@pytest.fixture(scope="module")
def pod(folder: Path, tables: Path, one: dict, storage: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What two processes with two devices each report of each program; half of the mixture is in a bucket."""
    copy = "from bert_jax.files import copy_folder as c; import sys; c(*sys.argv[1:])"
    upload = [sys.executable, "-c", copy, str(folder / "more"), "gs://a-bucket/more"]
    subprocess.run(upload, env=storage, cwd=ROOT, check=True)
    shutil.copytree(folder / "one mixed", folder / "anew")
    write_manifest(folder / "more", read_manifest(folder / "more") | {"seed": 1})  # as of a preparation with this seed
    mixture = [f"data={folder / 'data'},gs://a-bucket/more", *MIXED]
    programs = {
        "pod": pretrain(folder, "pod", *DATA),
        "resumed": pretrain(folder, "one resumed", *OTHER_MESH),
        "packed": pretrain(folder, "pod packed", *DATA, *PACKED),
        "mixed": pretrain(folder, "pod mixed", *mixture),
        "mixed resumed": pretrain(folder, "one mixed resumed", *mixture, "allow_change=data"),
        "forecast": ["pretrain", *FORECAST, f"text={folder / 'text.txt'}", f"run={folder / 'forecast'}", "--dry-run"],
        "anew": pretrain(folder, "anew", f"data={folder / 'data'},{folder / 'more'}", *MIXED),
        "classify": finetune(tables, "pod", *CLASSIFY),
        "three": finetune(tables, "three", "seeds=3", files=("train", "dev")),
    }
    reports = on_hosts(2, folder, list(programs.values()), environment=storage)
    return dict(zip(programs, reports, strict=True))


@pytest.mark.slow
def test_fifty_steps_in_two_phases_are_those_of_one_process(folder: Path, pod):
    assert [report["code"] for report in pod["pod"]] == [0, 0]
    assert len(records(folder / "pod", "train")) == 50
    assert_equal_runs(folder / "pod", folder / "one")
    assert len(list((folder / "pod").glob("*.jsonl"))) == 1


@pytest.mark.slow
def test_each_process_makes_the_rows_of_its_devices_only(pod):
    """Half of 50 batches of 16 rows, and of two evaluations of three such batches."""
    for report in pod["pod"]:
        made = {split: len(rows) for split, rows in report["made"].items()}
        assert made == {"train": 50 * 16 // 2, "held-out": 2 * 3 * 16 // 2}


@pytest.mark.slow
@pytest.mark.parametrize(("of_pod", "of_one"), [("pod", "one"), ("packed", "packed"), ("mixed", "mixed")])
def test_the_processes_make_the_rows_that_one_makes(pod, one, of_pod, of_one):
    """The same examples with the same masks at the same places of the same batches, each of them once."""
    steps = 25 if of_one == "packed" else 50
    first, second = (report["made"]["train"] for report in pod[of_pod])
    assert not first.keys() & second.keys()
    assert first | second == one[of_one]["made"]["train"]
    assert len(first) == len(second) == steps * 16 // 2


@pytest.mark.slow
def test_packed_rows_train_as_in_one_process(folder: Path, pod):
    """Two processes with two devices each, in two parts, beside one device: what shares a row stays together."""
    assert [report["code"] for report in pod["packed"]] == [0, 0]
    assert_equal_runs(folder / "pod packed", folder / "one packed")
    assert len(records(folder / "pod packed", "train")) == 25
    ((length, examples_a_row),) = json.loads((folder / "pod packed/config.json").read_text())["packed"]
    assert length == 40 and examples_a_row > 1.2, "the test needs rows with several examples"
    shares = [[row["padding_share"] for row in records(folder / f"{side} packed", "train")] for side in ("pod", "one")]
    assert shares[0] == pytest.approx(shares[1], abs=1e-7)  # one less a mean, in float32


@pytest.mark.slow
def test_a_mixture_from_disk_and_bucket_trains_as_from_disk_and_in_other_parts(folder: Path, pod, one):
    """Four devices compute each batch in two parts, the two of one process in four: `tokens_per_device` says so."""
    for name, tolerance in (("pod mixed", 1e-5), ("one mixed resumed", 1e-4)):
        assert_equal_runs(folder / name, folder / "one mixed", tolerance)
        rows = records(folder / name, "eval")
        assert all({"mlm_loss_data", "mlm_loss_more"} < row.keys() for row in rows) and len(rows) == 2
        assert_close_parts(rows, records(folder / "one mixed", "eval"))
    log = {name: (folder / name / "run.log").read_text() for name in ("one mixed", "pod mixed", "one mixed resumed")}
    assert "a step has 16 rows of 24, 2 on a device at a time in 4 parts" in log["one mixed"]
    assert "a step has 16 rows of 24, 2 on a device at a time in 2 parts" in log["pod mixed"]
    assert "resuming at step 25" in log["one mixed resumed"]
    whole = one["mixed"]["made"]["train"]
    resumed = [report["made"]["train"] for report in pod["mixed resumed"]]
    assert (resumed[0] | resumed[1]).items() <= whole.items()
    assert len(resumed[0]) == len(resumed[1]) == 25 * 16 // 2


@pytest.mark.slow
def test_the_first_process_prepares_the_sample_of_a_dry_run_for_all(folder: Path, pod):
    assert [(report["code"], report["prepared"]) for report in pod["forecast"]] == [(0, 1), (0, 0)]
    assert not (folder / "forecast").exists() and not list(folder.glob(".dry-run-*"))


@pytest.mark.slow
def test_all_processes_refuse_to_go_on_with_data_prepared_anew(folder: Path, pod):
    first, second = pod["anew"]
    assert first == second
    assert first["code"] == 2
    assert first["error"].startswith(
        f"data: {folder / 'more'} was prepared anew, and its text or its examples changed: "
    )


def assert_close_parts(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for name in ("mlm_loss_data", "mlm_loss_more"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], abs=1e-4)


@pytest.mark.slow
def test_a_run_goes_on_with_more_processes_and_another_mesh(folder: Path, pod):
    assert [report["code"] for report in pod["resumed"]] == [0, 0]
    assert_equal_runs(folder / "one resumed", folder / "one", tolerance=1e-4)
    record = json.loads((folder / "one resumed/checkpoints/50/manifest.json").read_text())
    assert {f"state/ocdbt.process_{number}/manifest.ocdbt" for number in (0, 1)} < set(record["files"])


@pytest.mark.slow
def test_the_export_of_two_processes_is_that_of_one_from_the_same_checkpoint(folder: Path, pod, tmp_path):
    for name in ("pod", "one resumed"):
        assert bert_jax(["export", str(folder / name), str(tmp_path / name)]) == 0
        exported = (folder / name / "export/model.safetensors").read_bytes()
        assert exported == (tmp_path / name / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_fine_tuning_gives_the_scores_and_predictions_of_one_process(tables: Path, pod):
    assert [report["code"] for report in pod["classify"]] == [0, 0]
    assert_same_task(tables / "pod", tables / "one")


@pytest.mark.slow
def test_runs_that_cannot_be_shared_out_are_refused_before_anything_is_written(tables: Path, pod):
    for report in pod["three"]:
        assert report["code"] == 2
        assert report["error"].startswith("seeds, learning_rates: 3 runs cannot be split over 2 processes; expected")
    assert not (tables / "three").exists()


def assert_same_task(ours: Path, theirs: Path) -> None:
    """The same losses and scores at each step, the same predictions with the same probabilities, one file of each."""
    for kind in ("train", "eval"):
        for a, b in zip(records(ours, kind), records(theirs, kind), strict=True):
            timed = (
                "seconds",
                "cpu_seconds",
                "input_wait",
                "eta_seconds",
                "sequences_per_second",
                "tokens_per_second",
                "real_tokens_per_second",
            )
            a, b = ({name: value for name, value in row.items() if name not in timed} for row in (a, b))
            assert a == pytest.approx(b, abs=1e-5)
    names = sorted(path.name for path in (theirs / "predictions").iterdir())
    assert sorted(path.name for path in (ours / "predictions").iterdir()) == names
    for name in names:
        a, b = ((run / "predictions" / name).read_text().splitlines() for run in (ours, theirs))
        if name.endswith(".jsonl"):
            for mine, other in zip(map(json.loads, a), map(json.loads, b), strict=True):
                numbers = {name for name, value in other.items() if isinstance(value, float | dict | list)}
                assert {k: v for k, v in mine.items() if k not in numbers} == {
                    k: v for k, v in other.items() if k not in numbers
                }
                for number in numbers:
                    assert np.allclose(_floats(mine[number]), _floats(other[number]), atol=1e-5)
        elif name.endswith((".csv", ".tsv")):
            assert a == b


def _floats(value: Any) -> list[float]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [float(one) for one in values if isinstance(one, int | float)]


# ---- every layout, task and start

MESHES = {
    "data 4": (2, ["mesh.data=4"]),
    "fsdp 4": (2, ["mesh.data=1", "mesh.fsdp=4"]),
    "tensor 4": (2, ["mesh.data=1", "mesh.tensor=4"]),
    "data 2, fsdp 2": (2, ["mesh.data=2", "mesh.fsdp=2"]),
    "fsdp 2, tensor 2": (2, ["mesh.data=1", "mesh.fsdp=2", "mesh.tensor=2"]),
    "data 8": (4, ["mesh.data=8", "accumulation=2"]),
    "fsdp 2, tensor 4": (4, ["mesh.data=1", "mesh.fsdp=2", "mesh.tensor=4"]),
    "data 2, fsdp 2, tensor 2": (4, ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]),
}
"""The number of processes, each with two devices; the words."""


@pytest.fixture(scope="module")
def meshes(folder: Path) -> dict[str, list[dict[str, Any]]]:
    reports = {}
    for count in (2, 4):
        names = [name for name, (processes, _) in MESHES.items() if processes == count]
        programs = [pretrain(folder, f"pod {name}", *MESHES[name][1]) for name in names]
        reports |= dict(zip(names, on_hosts(count, folder, programs), strict=True))
    return reports


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_over_processes_trains_as_one_process(folder: Path, meshes, name: str):
    count, words = MESHES[name]
    assert [report["code"] for report in meshes[name]] == [0] * count
    here(2 * count, pretrain(folder, f"one {name}", *words))
    assert_equal_runs(folder / f"pod {name}", folder / f"one {name}")
    alone = [word for word in words if word.startswith("accumulation")]
    here(1, pretrain(folder, f"alone {name}", *alone))
    assert_equal_runs(folder / f"pod {name}", folder / f"alone {name}")


@pytest.mark.exhaustive
def test_other_starts_and_tasks_over_processes_are_those_of_one_process(folder: Path, tables: Path):
    """init=, a teacher, many runs at once, tags, answers."""
    write_squad(tables / "train.json", 24, 1)
    write_squad(tables / "dev.json", 9, 2)
    write_tagged(tables / "train.tags", 48, 1)
    write_tagged(tables / "dev.tags", 15, 2)
    here(4, pretrain(folder, "teacher", "mesh.data=4", "phases=((16,16,6),)", "save_every=6"))
    some = ["mesh.data=2", "mesh.fsdp=2", "phases=((24,16,50),)"]
    starts = {
        "init": [*some, f"init={folder / 'teacher'}"],
        "moments": [*some, f"init={folder / 'teacher'}", "init_optimizer=true"],
    }
    of_files = ["log_every=4", "model.dtype=float32", "epochs=2", "eval_every=4"]
    tasks = {
        "tag": [
            "task=tag",
            f"train={tables / 'train.tags'}",
            f"dev={tables / 'dev.tags'}",
            "mesh.fsdp=2",
            "mesh.data=2",
        ],
        "answer": ["task=squad1", f"train={tables / 'train.json'}", f"dev={tables / 'dev.json'}"],
        "many": [f"train={tables / 'train.csv'}", f"dev={tables / 'dev.csv'}", "seeds=2", "learning_rates=(1e-2,1e-3)"],
    }

    def programs(side: str) -> list[list[str]]:
        return [
            *(pretrain(folder, f"{side} {name}", *words) for name, words in starts.items()),
            *(finetune(tables, f"{side} {name}", *words, *of_files, files=()) for name, words in tasks.items()),
        ]

    reports = on_hosts(2, folder, programs("pod"))
    assert [report["code"] for of_program in reports for report in of_program] == [0] * 2 * len(reports), reports
    for program in programs("one"):
        here(4, program)
    for name in starts:
        assert_equal_runs(folder / f"pod {name}", folder / f"one {name}")
    for name in tasks:
        assert_same_task(tables / f"pod {name}", tables / f"one {name}")
    for file in ("sweep.md", "runs.png"):
        assert (tables / "pod many" / file).exists()
    ours, theirs = (json.loads((tables / f"{side} many/sweep.json").read_text()) for side in ("pod", "one"))
    for mine, other in zip(ours["runs"], theirs["runs"], strict=True):
        assert mine == pytest.approx(other, abs=1e-5) if not isinstance(mine["curve"], list) else True
        assert mine["curve"] == pytest.approx(other["curve"], abs=1e-5)
        assert mine["failed"] == other["failed"]


@pytest.mark.exhaustive
def test_distillation_over_processes_is_that_of_one_process(tmp_path: Path):
    """A teacher distils masked words alone, so the text is prepared without pairs."""
    from train.prepare import main

    (tmp_path / "recipe.py").write_text(RECIPE)
    options = ["--max-seq-length", "16", "--vocab-size", "45", "--held-out", "0.3", "--objective", "none"]
    text = str(write_text(tmp_path / "text.txt", documents=80))
    assert main([text, "--output", str(tmp_path / "data"), *options, "--workers", "1"]) in (0, None)
    phases = "phases=((16,16,50),)"
    here(4, pretrain(tmp_path, "teacher", "mesh.data=4", phases))
    words = [phases, f"teacher={tmp_path / 'teacher'}", "mesh.data=2", "mesh.fsdp=2"]
    ((*reports,),) = on_hosts(2, tmp_path, [pretrain(tmp_path, "pod", *words)])
    assert [report["code"] for report in reports] == [0, 0]
    here(4, pretrain(tmp_path, "one", *words))
    ours, theirs = ([row["loss"] for row in records(tmp_path / side, "train")] for side in ("pod", "one"))
    assert len(ours) == 50
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
