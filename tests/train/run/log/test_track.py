"""`track=`: metrics reach Weights & Biases and MLflow through their own clients, and a failure of theirs ends nothing."""

import json
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from bert_jax.errors import UserError
from tests.run_directory import records
from train.pretraining.recipe import PretrainConfig
from train.run.config import override
from train.run.directory import RunDirectory
from train.run.launch import parse
from train.run.log import track
from train.run.log.meter import Spent
from train.run.log.run_log import RunLog

CONFIG = {"seed": 3, "optimizer": {"learning_rate": 1e-4}}


def run_twice(run: Path, service: str) -> None:
    """A run of four steps that is killed after the second and resumed at the first."""
    run.mkdir(exist_ok=True)
    for start, steps in ((0, (1, 2)), (1, (2, 3, 4))):
        options = {"start_step": start, "total_steps": 4, "spent": lambda step: Spent(64 * step, 1.0, 1.0)}
        with RunLog(epath.Path(run), track=service, config=CONFIG, **options) as log:
            for step in steps:
                log.record("train", step, {"loss": 10.0 - step, "grad_norm": float("nan")})
            log.record("eval", steps[-1], {"loss": 20.0 - step, "mlm_loss_gs://b/wiki+1": 5.0})


def id_of(run: Path, service: str) -> str:
    return json.loads((run / "track.json").read_text())[service]


def stored(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: seven bytes, then LevelDB's log (https://github.com/google/leveldb, log_format.md)."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb_has_one_run_with_all_the_metrics(tmp_path: Path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        run_twice(tmp_path, "wandb")
        wandb.teardown()  # waits for its own process: the end of a run may not be in the file yet
        from wandb.proto.wandb_internal_pb2 import Record
    said = (tmp_path / "run.log").read_text()
    assert f"track: wandb has this run as {id_of(tmp_path, 'wandb')} (offline; wandb sync sends it)" in said
    parts = sorted((tmp_path / "wandb").glob(f"offline-run-*-{id_of(tmp_path, 'wandb')}/*.wandb"))
    assert len(parts) == 2 and wandb.run is None
    rows: list[dict[str, Any]] = []
    configs = []
    for part in parts:
        for data in stored(part):
            record = Record.FromString(data)
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                rows.append({name: value for name, value in row.items() if not name.startswith("_")})
            configs += [item.key for item in record.run.config.update]
    assert "seed" in configs
    trained = [(row["step"], row["train/loss"], row["tokens"]) for row in rows if "train/loss" in row]
    assert trained == [(1, 9, 64), (2, 8, 128), (2, 8, 128), (3, 7, 192), (4, 6, 256)]
    assert [(row["step"], row["eval/loss"]) for row in rows if "eval/loss" in row] == [(2, 18), (4, 16)]
    assert not any("train/grad_norm" in row for row in rows)


@pytest.mark.slow
def test_mlflow_has_one_run_with_all_the_metrics(tmp_path: Path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_twice(tmp_path / "books", "mlflow")
        client = mlflow.MlflowClient()
        (experiment,) = [one for one in client.search_experiments() if one.name == "bert_jax"]
        (found,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(found.info.run_id, "train/loss")
        held_out = client.get_metric_history(found.info.run_id, "eval/loss")
    assert found.info.run_id == id_of(tmp_path / "books", "mlflow") and found.info.status == "FINISHED"
    assert found.info.run_name == "books"
    assert found.data.params == {"seed": "3", "optimizer.learning_rate": "0.0001"}
    assert sorted({(one.step, one.value) for one in history}) == [(1, 9), (2, 8), (3, 7), (4, 6)]
    assert sorted((one.step, one.value) for one in held_out) == [(2, 18), (4, 16)]
    assert found.data.metrics["eval/mlm_loss_gs___b_wiki_1"] == 5
    assert found.data.metrics["tokens"] == 256 and "train/grad_norm" not in found.data.metrics


class Broken:
    """A service that cannot be reached at first, and fails at its second record."""

    id, place = "broken", "nowhere"
    starts, sent, closed = 0, [], []

    def __init__(self, run: epath.Path, config: Mapping[str, Any], id: str | None):
        Broken.starts += 1
        if Broken.starts == 1:
            raise TimeoutError
        self._calls = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._calls += 1
        if self._calls == 2:
            raise ConnectionError("the network\nis gone")
        self.sent.append((step, *values))

    def close(self, *, failed: bool) -> None:
        self.closed.append(failed)


def test_a_service_that_fails_is_reported_once_and_gets_the_records_later(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(track.SERVICES, "wandb", Broken)
    run_twice(tmp_path, "wandb")
    said = (tmp_path / "run.log").read_text()
    failed = "track: wandb failed, and training goes on without it for now:"
    assert said.count(f"{failed} TimeoutError\n") == said.count(f"{failed} the network is gone\n") == 1
    assert [step for step, *names in Broken.sent if "train/loss" in names] == [1, 2, 3, 4]
    assert [step for step, *names in Broken.sent if "eval/loss" in names] == [4]
    assert "eval/mlm_loss_gs___b_wiki_1" in next(names for _, *names in Broken.sent if "eval/loss" in names)
    assert "track: wandb: 2 entries were not written" in said  # the network came back too late for the first start
    assert Broken.closed == [False, False]
    assert [row["step"] for row in records(tmp_path, "train")] == [1, 2, 3, 4]


def test_a_package_that_is_not_installed_is_one_line_before_anything_is_written(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    for name in track.SERVICES:
        with pytest.raises(UserError, match=rf"track: {name} is not installed; pip install 'bert-jax\[{name}\]'"):
            parse(["configs/tiny.py", f"track={name}", f"run={tmp_path / 'run'}"], "", PretrainConfig)
    with pytest.raises(UserError, match="track: found 'tensorboard'; expected wandb or mlflow"):
        parse(["configs/tiny.py", "track=tensorboard"], "", PretrainConfig)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_be_tracked_from_then_on(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    run.settle_config(PretrainConfig(), ())
    run.settle_config(override(PretrainConfig(), {"track": "wandb"}), ())
    saved = run.saved_config()
    assert saved is not None and saved["track"] == "wandb"
