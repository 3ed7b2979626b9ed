"""The run directory: one live run at a time, one config for all of it, a log that survives a resume."""

import dataclasses
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.files import json_text, write_synced
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from tests.root import ROOT
from tests.run_directory import records
from train.finetuning.recipe import FinetuneConfig
from train.pretraining.recipe import PretrainConfig
from train.run import directory as directory_module
from train.run.config import override, to_json
from train.run.directory import RunDirectory
from train.run.log import run_log as log_module
from train.run.log.curves import curves_of
from train.run.log.run_log import RunLog


@pytest.mark.slow
def test_a_second_run_in_a_live_directory_is_refused_by_name(tmp_path: Path):
    code = f"from train.run.directory import RunDirectory; r = RunDirectory({str(tmp_path)!r}); r.acquire(); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"process {holder.pid} on host"):
            RunDirectory(str(tmp_path)).acquire()
        holder.kill()
    run = RunDirectory(str(tmp_path))
    run.acquire()  # a killed run leaves no lock behind
    run.release()


@pytest.mark.parametrize(
    ("name", "text"), [("config.json", '{"hidden_size": 8}'), ("config.json", "{"), ("report", "mine")]
)
def test_a_folder_that_no_run_wrote_is_left_as_it_is(tmp_path: Path, name: str, text: str):
    """A published model has a config.json, too."""
    (tmp_path / name).write_text(text)
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(
        UserError, match=f"no run wrote this folder, and its {name} would be overwritten; choose another"
    ):
        RunDirectory(str(tmp_path)).acquire()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: text, "vocab.txt": "a"}


def test_a_run_may_begin_in_a_folder_with_notes_and_be_copied_without_its_lock(tmp_path: Path):
    notes, copied = tmp_path / "notes", tmp_path / "copied"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    run = RunDirectory(str(notes))
    run.acquire()
    run.settle_config(PretrainConfig(), ())
    run.release()
    copied.mkdir()
    (copied / "config.json").write_bytes((notes / "config.json").read_bytes())
    run = RunDirectory(str(copied))
    run.acquire()
    run.release()


def test_links_in_a_run_directory_are_not_followed_and_leftovers_are_removed(tmp_path: Path):
    """A stranger's directory may have a link in place of a file that the run writes."""
    mine, folder = tmp_path / "mine.txt", tmp_path / "run"
    folder.mkdir()
    mine.write_text("mine")
    run = RunDirectory(str(folder))
    (folder / ".lock").symlink_to(mine)
    with pytest.raises(UserError, match=r"\.lock: is a symbolic link"):
        run.acquire()
    (folder / ".lock").unlink()
    (folder / ".config.json.01234567.tmp").symlink_to(mine)
    (folder / ".config.json.89abcdef.tmp").write_text("{")
    run.settle_config(PretrainConfig(), ())
    run.acquire()
    run.release()
    assert mine.read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "config.json"]


def test_another_config_is_refused_unless_the_fields_are_named(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    first = PretrainConfig()
    changed = override(first, {"optimizer.learning_rate": "3e-4", "seed": "7"})
    run.settle_config(first, ())
    run.settle_config(first, ())
    for allowed in ((), ("seed",), ("optimizer.learn",)):
        with pytest.raises(UserError, match=r"optimizer\.learning_rate: 0\.0001 became 0\.0003"):
            run.settle_config(changed, allowed)
    assert run.saved_config()["seed"] == 0
    with pytest.raises(UserError, match=r"say allow_change=seed,optimizer\.learning_rate to continue"):
        run.settle_config(changed, ("seed",))
    run.settle_config(changed, ("seed", "optimizer"))
    assert run.saved_config()["seed"] == 7
    run.settle_config(override(changed, {"phases": "((128,256,7000),)"}), ("phases",))  # and their sum, total_steps
    assert run.saved_config()["optimizer"]["total_steps"] == 7000


def test_the_data_that_a_run_made_of_its_text_moves_with_it(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    before = PretrainConfig(text=("books/*.txt",), data="runs/old/data")
    run.settle_config(before, ())
    run.settle_config(dataclasses.replace(before, data="runs/new/data"), ())
    for other in ({"text": ("poems/*.txt",)}, {"text": None, "data": "runs/new/data"}):
        with pytest.raises(UserError, match="was started with another config"):
            run.settle_config(dataclasses.replace(before, **other), ())


def test_the_files_of_fine_tuning_do_not_move_with_its_run(tmp_path: Path):
    """There `text` is the name of a column, which stays the same."""
    run = RunDirectory(str(tmp_path))
    run.settle_config(FinetuneConfig(data="mails"), ())
    with pytest.raises(UserError, match=r"data: 'mails' became 'letters'\); say allow_change=data to continue"):
        run.settle_config(FinetuneConfig(data="letters"), ())
    run.settle_config(FinetuneConfig(data="letters"), ("data",))


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", "rte"), ("kind", "number"), ("metric", "macro_f1"), ("model.problem_type", "regression")],
)
def test_what_the_scores_of_a_run_are_is_refused_whatever_is_allowed(tmp_path: Path, field: str, value: str):
    """Another task has other scores; by another metric another model than that in export/ may be the best."""
    run, config = RunDirectory(str(tmp_path)), FinetuneConfig()
    run.settle_config(config, ())
    other = override(config, {field: value})
    with pytest.raises(UserError, match=rf"say allow_change={field} to continue"):
        run.settle_config(other, ())
    before = run.config.read_bytes()
    (run.checkpoints / "3").mkdir(parents=True)
    for allowed in ((), (field,)):
        with pytest.raises(
            UserError, match=rf"hold another state \({re.escape(field)}: .* became '{value}'\); choose another run="
        ):
            run.settle_config(other, allowed)
    assert run.config.read_bytes() == before


def test_a_model_that_no_checkpoint_fits_is_refused_whatever_is_allowed(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    first, wider = PretrainConfig(), override(PretrainConfig(), {"model.hidden_size": "24", "seed": "7"})
    run.settle_config(wider, ())
    run.settle_config(first, ("model", "seed"))  # nothing is saved yet
    (run.checkpoints / "3").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"hold another state \(model\.hidden_size: 768 became 24\); choose another run="
    ):
        run.settle_config(wider, ("model", "seed"))
    assert (run.saved_config() or {})["model"]["hidden_size"] == 768


def test_a_number_of_runs_that_no_checkpoint_fits_is_refused_whatever_is_allowed(tmp_path: Path):
    run, config = RunDirectory(str(tmp_path)), FinetuneConfig(seeds=2)
    run.settle_config(config, ())
    (run.checkpoints / "3").mkdir(parents=True)
    for change in ({"seeds": "3"}, {"learning_rates": "(1e-5,2e-5)"}):
        with pytest.raises(UserError, match=r"\((seeds|learning_rates): .* became .*\); choose another run="):
            run.settle_config(override(config, change), ("seeds", "learning_rates"))
    assert (run.saved_config() or {})["seeds"] == 2


def test_an_optimizer_that_no_checkpoint_fits_is_refused_whatever_is_allowed(tmp_path: Path):
    run, config = RunDirectory(str(tmp_path)), PretrainConfig()
    run.settle_config(config, ())
    (run.checkpoints / "3").mkdir(parents=True)
    for change in ({"name": "muon"}, {"average_tail": "0.2"}, {"average_half_life": "1000"}):
        ((field, value),) = change.items()
        with pytest.raises(
            UserError, match=rf"hold another state \(optimizer\.{field}: .* became .*\); choose another"
        ):
            run.settle_config(override(config, {f"optimizer.{field}": value}), ("optimizer",))
    assert (run.saved_config() or {})["optimizer"] == to_json(config)["optimizer"]
    run.settle_config(override(config, {"optimizer.name": "lamb"}), ("optimizer",))


def test_an_activation_that_no_checkpoint_fits_is_refused_whatever_is_allowed(tmp_path: Path):
    run, config = RunDirectory(str(tmp_path)), PretrainConfig()
    run.settle_config(config, ())
    (run.checkpoints / "3").mkdir(parents=True)
    with pytest.raises(UserError, match=r"hold another state \(model\.hidden_act: 'gelu' became 'prelu'\)"):
        run.settle_config(override(config, {"model.hidden_act": "prelu"}), ("model.hidden_act",))
    assert (run.saved_config() or {})["model"]["hidden_act"] == "gelu"
    run.settle_config(override(config, {"model.hidden_act": "relu"}), ("model.hidden_act",))


def test_a_run_may_go_on_where_attention_is_computed_otherwise(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    run.settle_config(override(PretrainConfig(), {"model.attention": "kernel"}), ())
    run.settle_config(PretrainConfig(), ())
    with pytest.raises(UserError, match=r"model\.remat"):
        run.settle_config(override(PretrainConfig(), {"model.remat": "full"}), ())


def test_a_run_from_before_a_field_existed_resumes_with_its_default(tmp_path: Path):
    run = RunDirectory(str(tmp_path))
    run.settle_config(PretrainConfig(), ())
    older = run.saved_config()
    assert older is not None
    del older["model"]["model_type"], older["model"]["labels"], older["keep"], older["checksum"]
    (tmp_path / "config.json").write_text(json.dumps(older))
    with pytest.raises(UserError, match=r"model\.labels"):
        run.settle_config(override(PretrainConfig(), {"model.labels": "('a', 'b')"}), ())
    run.settle_config(PretrainConfig(), ())
    assert run.saved_config()["model"]["model_type"] == "bert"


def test_a_damaged_config_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"seed": ')
    with pytest.raises(UserError, match=r"config\.json: not JSON"):
        RunDirectory(str(tmp_path)).settle_config(PretrainConfig(), ())


@pytest.mark.slow
@pytest.mark.pictures
def test_a_resumed_log_forgets_the_steps_that_happen_again(tmp_path: Path):
    with RunLog(tmp_path, start_step=0, total_steps=10) as log:
        for step in (2, 4, 6):
            log.record("train", step, {"loss": 1.0 * step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed in the middle of a line
    with RunLog(tmp_path, start_step=4, total_steps=10) as log:
        log.record("train", 6, {"loss": float("nan")})
        log.record("eval", 6, {"mlm_loss": 2.0})
    rows = records(tmp_path)
    assert [(row["kind"], row["step"]) for row in rows] == [("train", 2), ("train", 4), ("train", 6), ("eval", 6)]
    assert rows[2]["loss"] is None
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.slow
def test_drawing_the_curves_takes_a_small_share_of_the_time_and_closing_draws_the_last(tmp_path: Path, monkeypatch):
    now, drawn = 100.0, []

    def draw(records: list, path: object) -> None:
        nonlocal now
        now += 2.0
        drawn.append(len(records))

    monkeypatch.setattr(log_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(log_module, "draw_curves", draw)
    with RunLog(tmp_path, start_step=0, total_steps=1000) as log:
        for step in range(1, 101):
            now += 1.0
            log.record("train", step, {"loss": 1.0})
            log.draw()
    assert drawn == [10, 50, 90, 100]


def test_the_summary_skips_a_line_that_a_killed_run_left_unfinished(tmp_path: Path):
    rows = '{"kind": "train", "step": 2}\n{"kind": "eval", "step": 2}\n{"kind": "train", "step": 4}\n'
    (tmp_path / "metrics.jsonl").write_text(rows + '{"kind": "ev')
    summary = RunDirectory(str(tmp_path)).summary(75)
    assert (summary["train"]["step"], summary["eval"]["step"]) == (4, 2)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "ev\n' + rows)
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1: not JSON"):
        RunDirectory(str(tmp_path)).summary(75)


@pytest.mark.slow
def test_baselines_are_drawn_over_the_whole_picture_with_one_evaluation_too():
    rows: list[dict] = [{"kind": "train", "step": step, "mlm_loss": 9.0} for step in (10, 20, 30)]
    rows.append({"kind": "eval", "step": 20, "mlm_loss": 8.0, "unigram_loss": 7.0, "unigram_accuracy": 0.05})
    loss, accuracy, *_ = curves_of(rows).axes
    drawn = {line.get_label(): line.get_xydata() for axes in (loss, accuracy) for line in axes.lines}
    assert np.asarray(drawn["unigram baseline"]).tolist() == [[0, 7], [20, 7], [30, 7]]
    assert np.asarray(drawn["most frequent token"])[:, 0].tolist() == [0, 20, 30]
    assert "majority class" not in drawn


@pytest.mark.slow
def test_gradient_norms_are_labelled_in_plain_numbers():
    rows = [{"kind": "train", "step": step, "mlm_loss": 3.0, "grad_norm": 1.4 + step} for step in (0, 1, 2)]
    norm = curves_of(rows).axes[3]
    norm.figure.draw_without_rendering()
    labels = [text.get_text() for text in (*norm.get_yticklabels(), *norm.get_yticklabels(minor=True))]
    assert {"2", "3"} <= set(labels) and not any("10^" in label for label in labels)


def test_the_scores_of_probes_have_colours_of_their_own_and_may_be_negative():
    names = (
        "mlm_accuracy",
        "nsp_accuracy",
        "blimp_accuracy",
        "probe_cola_matthews_correlation",
        "finetune_sts-b_pearson",
    )
    train = [{"kind": "train", "step": step, "mlm_loss": 7.0} for step in (1, 2)]
    scores = dict.fromkeys(names, 0.5) | {names[3]: -0.1, "finetune_sts-b_mean_squared_error": 9.0}
    accuracy = curves_of([*train, {"kind": "eval", "step": 2, **scores}]).axes[1]
    assert len(accuracy.lines) == len({line.get_color() for line in accuracy.lines}) == len(names)
    assert accuracy.get_ylim() == (-0.1, 1)


def test_the_curves_of_many_runs_have_the_losses_of_each_rate_and_the_best_score_beside_the_baseline():
    rows: list[dict] = []
    for step in (10, 20, 30):
        rows.append({"kind": "train", "step": step, "loss_at_0.1": 0.7, "loss_at_0.2": 0.9})
        scores = {
            "accuracy_best": 0.5 + step / 100,
            "accuracy_at_0.1": 0.5,
            "baseline_accuracy": 0.4,
            "best": step < 30,
        }
        rows.append({"kind": "eval", "step": step} | scores)
    loss, score, rate, norm = curves_of(rows).axes
    drawn = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in (*loss.lines, *score.lines)}
    assert drawn["training at 0.2"] == [[10, 0.9], [20, 0.9], [30, 0.9]]
    assert drawn["accuracy best"] == [[10, 0.6], [20, 0.7], [30, 0.8]]
    assert drawn["accuracy, baseline"] == [[0, 0.4], [10, 0.4], [20, 0.4], [30, 0.4], [30, 0.4]]
    assert drawn["the best model, step 20"][0][0] == 20
    assert not rate.get_visible() and not norm.get_visible()  # which many runs do not log


def test_a_fine_tuning_that_stops_before_its_first_evaluation_has_its_curves():
    rows = [{"kind": "train", "step": step, "loss": 0.7, "accuracy": 0.5} for step in (20, 40)]
    loss, score, *_ = curves_of(rows).axes
    assert [line.get_label() for line in loss.lines] == ["training"]
    assert not score.get_visible()


CHANGES = {
    "a flipped digit": (lambda text: text.replace('"seed": 7', '"seed": 5'), r"its content .* \(checksum differs\)"),
    "a renamed checksum": (
        lambda text: text.replace('"checksum"', '"checksun"'),
        "started with another config .checksun",
    ),
    "a stray byte": (lambda text: text[:40] + "\xff" + text[41:], "not JSON .*byte 0xff in position 40"),
    "truncated": (lambda text: text[:-30], "not JSON .Unterminated string"),
    "a list": (lambda text: "[1, 2]", "expected a JSON object, found list"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_config_is_refused_by_name(tmp_path: Path, kind: str):
    run, config = RunDirectory(str(tmp_path)), override(PretrainConfig(), {"seed": "7"})
    run.settle_config(config, ())
    good = run.config.read_text()
    change, says = CHANGES[kind]
    run.config.write_bytes(change(good).encode("latin-1"))
    assert run.config.read_bytes() != good.encode()
    with pytest.raises(UserError, match=rf"config\.json: .*{says}"):
        run.settle_config(config, ())
    run.config.write_text(good)
    run.settle_config(config, ())


def test_a_lost_config_is_that_of_the_newest_checkpoint_again(tmp_path: Path, caplog):
    run, config = RunDirectory(str(tmp_path)), override(PretrainConfig(), {"seed": "7"})
    run.settle_config(config, ())
    good = run.config.read_text()
    with Checkpoints(run.checkpoints) as checkpoints:
        checkpoints.save(3, {"a": np.ones(2)}, {"config": json.loads(json_text(to_json(config)))})
    run.config.unlink()
    run.config_to_resume()
    assert run.config.read_text() == good
    assert "config.json was missing; it is that of the checkpoint of step 3 again" in caplog.text
    run.config.unlink()
    manifest = tmp_path / "checkpoints/3/manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 7', '"seed": 5'))
    with pytest.raises(UserError, match=r"config\.json: is missing, though the run has checkpoints"):
        run.config_to_resume()


@pytest.mark.parametrize(
    "name", [".lock", "config.json", "tokenizer/vocab.txt", "checkpoints/80", "export", "tensorboard"]
)
def test_a_run_directory_with_a_link_in_it_is_refused_and_nothing_is_written_through_it(tmp_path: Path, name: str):
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.mkdir()
    (mine / "notes").write_text("precious")
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(mine / "notes" if "." in name else mine)
    with pytest.raises(UserError, match=rf"{name}: is a symbolic link, and a run writes to no place outside"):
        RunDirectory(str(run)).acquire()
    assert [path.read_text() for path in mine.iterdir()] == ["precious"]


def test_a_run_directory_may_be_a_link_itself_and_wandb_may_have_links(tmp_path: Path):
    real = tmp_path / "big-disk"
    (real / "wandb").mkdir(parents=True)
    (real / "wandb" / "latest-run").symlink_to(tmp_path)
    (tmp_path / "run").symlink_to(real)
    run = RunDirectory(str(tmp_path / "run"))
    run.acquire()
    run.release()


def test_a_link_in_place_of_a_temporary_file_is_not_followed(tmp_path: Path):
    (tmp_path / "notes").write_text("precious")
    (tmp_path / "config.json").symlink_to(tmp_path / "notes")
    write_synced(tmp_path / "config.json", b"{}")
    assert (tmp_path / "notes").read_text() == "precious"
    assert (tmp_path / "config.json").read_bytes() == b"{}"


def test_a_start_removes_what_a_killed_export_left(tmp_path: Path):
    (tmp_path / ".export.writing-01234567").mkdir()
    (tmp_path / ".export.writing-01234567" / "config.json").write_text("{")
    run = RunDirectory(str(tmp_path))
    run.acquire()
    run.release()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_resume_writes_no_config_that_is_there_already(tmp_path: Path, monkeypatch):
    run = RunDirectory(str(tmp_path))
    run.settle_config(PretrainConfig(), ())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory_module, "write_json", full)
    run.settle_config(PretrainConfig(), ())
    with pytest.raises(OSError, match="No space"):
        run.settle_config(override(PretrainConfig(), {"track": "wandb"}), ())


def test_a_failed_start_keeps_the_data_that_it_began(tmp_path: Path):
    run = RunDirectory(str(tmp_path / "runs" / "a"))
    run.acquire()
    (run.data / "parts" / "u").mkdir(parents=True)
    run.discard_failed_start()
    run.release()
    assert (tmp_path / "runs" / "a" / "data" / "parts" / "u").exists()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"\.lock: cannot be locked \(No locks available\); choose a run="):
        RunDirectory(str(tmp_path)).acquire()


def test_a_run_on_a_bucket_is_said_to_be_copied_before_its_model_is_read(tmp_path: Path):
    assert RunDirectory(str(tmp_path)).told_as_source() == (str(tmp_path), "")
    source, end = RunDirectory("gs://bucket/run").told_as_source()
    assert source == "COPY" and end.startswith(" (COPY: gs://bucket/run, copied to a disk;")
