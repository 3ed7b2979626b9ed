"""The pretraining program end to end on a small corpus: train, stop, resume bit for bit, evaluate, export, refuse."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.training_record import last_evaluation, training_record
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.tree import flatten
from tests.opened_files import opened_by
from tests.root import ROOT
from tests.run_directory import assert_equal_states, records, state_of, stopped_at
from tests.traced import traced
from train import doctor, pretrain
from train.diagnosis.evidence import Evidence
from train.pretraining import job as pretraining
from train.pretraining.fitted_model import with_model_for
from train.pretraining.mixture import check_batches, open_data
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import PreparedData
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_HOPELESS, EXIT_INTERRUPTED, EXIT_NOT_FINITE, EXIT_PREEMPTED
from train.run.stages import Stages


@pytest.fixture(scope="module")
def straight(recipe: str, data: str, tmp_path_factory) -> Path:
    """A run that was never stopped."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    assert pretrain.main([recipe, f"data={data}", f"run={run}"]) == EXIT_DONE
    return run


def test_phases_of_one_length_continue_the_data_and_those_of_another_begin_it(data: str, tmp_path: Path):
    """A batch ramp takes the same rows and masks as one phase of its length, whatever phases come between."""
    source = PreparedData(data)
    phases = (Phase(32, 8, 5), Phase(48, 8, 3), Phase(32, 16, 4))
    config = PretrainConfig(optimizer=OptimizerConfig(warmup_steps=2), phases=phases, model=BertConfig.preset("tiny"))
    config = with_model_for(config, source, frozenset())
    job = pretraining.PretrainingJob(config, RunDirectory(str(tmp_path)), source, source)
    made = [{name: np.asarray(array) for name, array in batch.items()} for batch, _ in job.batches(0)]
    assert [batch["input_ids"].shape for batch in made] == [(8, 32)] * 5 + [(8, 48)] * 3 + [(16, 32)] * 4
    for length, taken, steps in ((32, made[:5] + made[8:], 13), (48, made[5:8], 3)):
        one_phase = source.batches(config, Phase(length, 8, steps))
        for name in made[0]:
            expected = np.concatenate([one_phase.batch(step)[name] for step in range(steps)])
            np.testing.assert_array_equal(np.concatenate([batch[name] for batch in taken]), expected, err_msg=name)
    resumed = [np.asarray(batch["input_ids"]) for batch, _ in job.batches(10)]
    np.testing.assert_array_equal(resumed, [batch["input_ids"] for batch in made[10:]])


def originals(batch: dict[str, np.ndarray]) -> list[bytes]:
    """Each row of a batch as it was before masking."""
    ids = batch["input_ids"].copy()
    row, place = np.nonzero(batch["mlm_weights"])
    ids[row, batch["mlm_positions"][row, place]] = batch["mlm_labels"][row, place]
    return [a.tobytes() + b.tobytes() for a, b in zip(ids, batch["token_type_ids"], strict=True)]


@pytest.mark.slow
def test_an_epoch_over_three_phases_resumes_and_four_processes_holds_every_example_once(data: str):
    source = PreparedData(data)
    count = source.examples(32)
    first, second = count // 8 // 3, count // 8 // 6
    rest = count - 8 * first - 16 * second
    phases = (Phase(32, 8, first), Phase(48, 8, 2), Phase(32, 16, second), Phase(32, 4, rest // 4))
    config = PretrainConfig(optimizer=OptimizerConfig(warmup_steps=2), phases=phases, model=BertConfig.preset("tiny"))
    seen: Counter[bytes] = Counter()
    for step in range(config.total_steps):  # nothing is kept from step to step, as if each were a resume
        start, phase = config.phase_at(step)
        batches = source.batches(config, phase, first_row=config.rows_before(start, phase.length))
        for process in range(4 if phase.length == 32 else 0):
            share = phase.batch // 4
            seen.update(originals(batches.batch(step - start, rows=slice(process * share, (process + 1) * share))))
    in_order = source.batches(config, Phase(32, count, 1), shuffle=False).batch(0)
    missing = Counter(originals(in_order)) - seen
    assert seen.total() == count - rest % 4
    assert missing.total() == rest % 4 and not seen - Counter(originals(in_order))


def test_held_out_masks_are_those_of_the_data_whatever_the_training_masks(data: str):
    source = PreparedData(data)
    optimizer = OptimizerConfig(warmup_steps=2)
    config = PretrainConfig(optimizer=optimizer, phases=(Phase(32, 8, 5),), model=BertConfig.preset("tiny"))

    def held_out(**changes) -> dict[str, np.ndarray]:
        found = source.evaluation_batches(dataclasses.replace(config, **changes), config.phases[0])
        assert found
        return found[0].batch(0)

    first = held_out()
    for changes in ({"seed": 3}, {"masking": MaskingConfig(probability=0.4)}, {"masking": MaskingConfig("roberta")}):
        for name, array in held_out(**changes).items():
            np.testing.assert_array_equal(array, first[name], err_msg=f"{name}, {changes}")
    lengths = first["attention_mask"].sum(axis=1)
    expected = [max(1, round(0.15 * length)) for length in lengths.tolist()]  # create_pretraining_data.py
    np.testing.assert_array_equal(first["mlm_weights"].sum(axis=1), expected)
    asked = held_out(eval_masking=MaskingConfig(probability=0.4))["mlm_weights"].sum(axis=1)
    np.testing.assert_array_equal(asked, [max(1, round(0.4 * length)) for length in lengths.tolist()])


def batches_of(config: PretrainConfig, data: str, length: int) -> np.ndarray:
    """The first batch of a run's first phase of this length."""
    start = next(sum(p.steps for p in config.phases[:i]) for i, p in enumerate(config.phases) if p.length == length)
    _, phase = config.phase_at(start)
    return PreparedData(data).batches(config, phase, first_row=config.rows_before(start, length)).batch(0)["input_ids"]


@pytest.mark.slow
def test_schedule_free_begins_at_the_weights_of_its_source(recipe: str, data: str, straight: Path, tmp_path: Path):
    """Its updates lead to a point between two copies of the weights, which must not be those of a random start."""
    words = [recipe, f"data={data}", f"init={straight}", f"run={tmp_path / 'run'}", "phases=((32, 8, 2),)"]
    words += ["optimizer.name=schedule-free", "optimizer.schedule=constant", "optimizer.learning_rate=0"]
    assert pretrain.main([*words, "export_at_end=no"]) == EXIT_DONE
    begun, source = state_of(tmp_path / "run"), state_of(straight)
    for path in (path for path in source if path.startswith("params/")):
        np.testing.assert_allclose(begun[path], source[path], rtol=1e-6, atol=1e-7, err_msg=path)


@pytest.mark.slow
def test_a_run_from_another_continues_in_its_data(recipe: str, data: str, straight: Path, tmp_path: Path, caplog):
    words = [
        recipe,
        f"data={data}",
        f"init={straight}",
        "phases=((32, 8, 2), (48, 8, 1))",
        "eval_every=9",
        "save_every=1",
    ]
    assert pretrain.main([*words, f"run={tmp_path / 'again'}"]) == EXIT_DONE
    assert "sees the same rows again, in the same order; say init_data=true" in caplog.text
    run = tmp_path / "next"
    caplog.clear()
    assert pretrain.main([*words, f"run={run}", "init_data=true"]) == EXIT_DONE
    assert "same rows" not in caplog.text
    saved = json.loads((run / "config.json").read_text())
    assert saved["first_rows"] == [[32, 64], [48, 32]]  # 8 steps and 4 steps of 8 rows
    before = PretrainConfig(phases=((32, 8, 20), (48, 8, 20)), optimizer=OptimizerConfig(warmup_steps=2))
    after = PretrainConfig(
        phases=((32, 8, 2), (48, 8, 1)), optimizer=OptimizerConfig(warmup_steps=2), first_rows=((32, 64), (48, 32))
    )
    for length, steps in ((32, 8), (48, 4)):
        whole = PreparedData(data).batches(before, Phase(length, 8, 20))
        np.testing.assert_array_equal(batches_of(after, data, length), whole.batch(steps)["input_ids"])
    assert pretrain.main([*words, f"run={run}", "init_data=true"]) == EXIT_DONE  # a resume keeps what is recorded
    third = tmp_path / "third"
    assert pretrain.main([words[0], words[1], f"init={run}", *words[3:], f"run={third}", "init_data=true"]) == EXIT_DONE
    assert json.loads((third / "config.json").read_text())["first_rows"] == [[32, 80], [48, 40]]
    for word, says in (
        ("seed=1", "init_data: its seed is 0 and this run's is 1"),
        ("init_optimizer=true init_step=true", "init_data: init_step=true continues in the data already"),
        (f"init={straight / 'export'}", "is not a pretraining run"),
    ):
        with pytest.raises(UserError, match=says):
            pretrain.main([*words, f"run={tmp_path / 'wrong'}", "init_data=true", *word.split()])
        assert not (tmp_path / "wrong" / "config.json").exists()


@pytest.mark.slow
def test_a_run_leaves_everything_that_was_promised(straight: Path):
    names = {path.name for path in straight.iterdir()}
    wanted = {"config.json", "environment.json", "checkpoints", "metrics.jsonl", "tensorboard", "curves.png", "run.log"}
    assert wanted | {"export", "tokenizer", "goodput.json"} <= names
    assert "compiled programs are kept in " in (straight / "run.log").read_text()
    assert [row["step"] for row in records(straight, "train")] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in records(straight, "eval")] == [6, 12]
    with Checkpoints(straight / "checkpoints") as checkpoints:
        assert checkpoints.steps() == [9, 12]
    last = records(straight, "eval")[-1]
    for name in ("mlm_loss", "mlm_perplexity", "mlm_accuracy", "unigram_loss", "nsp_accuracy", "majority_accuracy"):
        assert np.isfinite(last[name]), name
    train = records(straight, "train")[-1]
    for name in ("loss", "nsp_loss", "learning_rate", "grad_norm", "sequences_per_second", "input_wait", "eta_seconds"):
        assert np.isfinite(train[name]), name


@pytest.mark.slow
def test_three_resumes_equal_never_having_stopped(
    recipe: str, data: str, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, stages = tmp_path / "stopped", []
    go_on_with = Stages.go_on_with
    monkeypatch.setattr(Stages, "go_on_with", lambda self, name: stages.append(name) or go_on_with(self, name))
    with traced() as names:
        for stop_at in (2, 7, 9):  # inside the first phase, before its end, inside the second
            with stopped_at(stop_at):
                assert pretrain.main([recipe, f"data={data}", f"run={run}"]) == EXIT_PREEMPTED
        assert pretrain.main([recipe, f"data={data}", f"run={run}"]) == EXIT_DONE
    assert not [name for name in names if "step" in name]  # the programs are those of `straight`
    of_starts = " ".join(stages).replace("start input start", "start").split("start ")[1:]  # it looks at its first rows
    assert [names.split()[-1] for names in of_starts] == ["save"] * 3 + ["export"]  # closing counts as no lost steps
    assert_equal_states(run, straight)
    assert [row["mlm_loss"] for row in records(run, "eval")] == [row["mlm_loss"] for row in records(straight, "eval")]
    for kind in ("train", "eval"):
        assert [row["tokens"] for row in records(run, kind)] == [row["tokens"] for row in records(straight, kind)]
    rows = sorted(records(run, "train") + records(run, "eval"), key=lambda row: row["seconds"])
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    assert all(row["cpu_seconds"] > 0 for row in rows)


# Fields whose state or schedule has to survive a stop, none of which the published recipes use.
OWN_WAYS = [
    "optimizer.name=muon",
    "optimizer.b2_half_life=900",
    "optimizer.average_half_life=900",
    "optimizer.schedule=stable",
    "optimizer.decay_share=0.5",
    "optimizer.clock=tokens",
    "start.range=width",
]
SCHEDULE_FREE = ["optimizer.name=schedule-free", "optimizer.schedule=constant", "optimizer.b2_half_life=900"]


@pytest.mark.slow
@pytest.mark.parametrize("ways", [OWN_WAYS, SCHEDULE_FREE], ids=["muon", "schedule-free"])
def test_a_run_in_ways_of_our_own_resumes_to_the_bit_in_each_phase(
    ways: list[str], recipe: str, data: str, tmp_path: Path
):
    words = [recipe, f"data={data}", *ways, "export_at_end=false"]
    assert pretrain.main([*words, f"run={tmp_path / 'through'}"]) == EXIT_DONE
    for stop_at in (4, 10):
        with stopped_at(stop_at):
            assert pretrain.main([*words, f"run={tmp_path / 'stopped'}"]) == EXIT_PREEMPTED
    assert pretrain.main([*words, f"run={tmp_path / 'stopped'}"]) == EXIT_DONE
    assert_equal_states(tmp_path / "stopped", tmp_path / "through")
    assert state_of(tmp_path / "stopped")["step"] == 12


@pytest.mark.slow
def test_an_average_is_evaluated_beside_the_weights_and_exported(recipe: str, data: str, tmp_path: Path, capsys):
    run = tmp_path / "run"
    words = [recipe, f"data={data}", f"run={run}", "phases=((32, 8, 4),)", "eval_every=2"]
    assert pretrain.main([*words, "optimizer.average_tail=0.5"]) == EXIT_DONE
    first, last = records(run, "eval")
    assert first["average_mlm_loss"] == first["mlm_loss"]  # before the tail
    assert last["average_mlm_loss"] != last["mlm_loss"]
    scores = [
        {score.name: score.value for score in last_evaluation(run, 4, of_average=of_average).scores}
        for of_average in (False, True)
    ]
    assert [of["mlm_loss"] for of in scores] == [last["mlm_loss"], last["average_mlm_loss"]]
    assert "nsp_loss" not in scores[1] and not any(name.startswith("average_") for of in scores for name in of)
    assert training_record(run, 4, of_average=True) in (run / "export" / "README.md").read_text()
    with Checkpoints(run / "checkpoints") as checkpoints:
        state = checkpoints.restore_arrays(4).state
    mean = flatten(state["opt_state"]["average"]["mean"])
    exported = flatten(load(str(run / "export"), head="pretraining").params)
    assert mean.keys() == exported.keys()
    for path, array in exported.items():
        np.testing.assert_array_equal(array, mean[path], err_msg=path)
    weights = flatten(load(str(run), head="pretraining").params)
    assert any((weights[path] != exported[path]).any() for path in exported)
    assert f"convert {run} FOLDER` writes the last weights" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_hopeless_run_ends_with_its_own_code_and_goes_on_if_asked(recipe: str, data: str, tmp_path: Path, capsys):
    run = tmp_path / "stuck"
    words = [recipe, f"data={data}", f"run={run}", "optimizer.learning_rate=0"]
    assert pretrain.main([*words, "eval_every=2", "hopeless_after=1000"]) == EXIT_HOPELESS
    assert [row["step"] for row in records(run, "eval")] == [2, 4]  # of 8 rows of 32 tokens
    assert "hopeless after 1,024 tokens: the held-out loss is" in capsys.readouterr().err
    assert not (run / "export").exists()
    with Checkpoints(run / "checkpoints") as checkpoints:
        assert checkpoints.steps() == [3, 4]
        lowest = checkpoints.manifest(4).metadata["lowest_losses"]
    assert lowest == {"32": min(row["mlm_loss"] for row in records(run, "eval"))}
    assert pretrain.main([*words, "eval_every=2", "hopeless_after=none"]) == EXIT_DONE
    assert [row["step"] for row in records(run, "eval")] == [2, 4, 6, 8, 10, 12]


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(recipe, data, straight: Path, tmp_path, caplog):
    run = tmp_path / "damaged"
    with stopped_at(7):
        assert pretrain.main([recipe, f"data={data}", f"run={run}"]) == EXIT_PREEMPTED
    largest = max((run / "checkpoints" / "7").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert pretrain.main([recipe, f"data={data}", f"run={run}"]) == EXIT_DONE
    assert largest.name in caplog.text
    assert_equal_states(run, straight)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_another_mesh_resumes_with_the_same_weights(recipe: str, data: str, straight: Path, tmp_path: Path):
    run = tmp_path / "moved"
    with stopped_at(6):
        pretrain.main([recipe, f"data={data}", f"run={run}"])
    with pytest.raises(UserError, match=r"mesh\.fsdp"):
        pretrain.main([recipe, f"data={data}", f"run={run}", "mesh.fsdp=2"])
    words = [recipe, f"data={data}", f"run={run}", "mesh.fsdp=2", "mesh.tensor=2", "allow_change=mesh"]
    assert pretrain.main(words) == EXIT_DONE
    here, there = records(run, "eval")[-1], records(straight, "eval")[-1]
    assert here["mlm_loss"] == pytest.approx(there["mlm_loss"], rel=1e-5)


@pytest.mark.slow
def test_numbers_that_go_bad_stop_the_run_and_are_never_saved(recipe: str, data: str, tmp_path: Path, capsys):
    run = tmp_path / "bad"
    words = [recipe, f"data={data}", f"run={run}", "optimizer.learning_rate=1e38", "optimizer.warmup_steps=0"]
    code = pretrain.main([*words, "optimizer.clip_norm=0", "max_skipped_in_a_row=3", "save_every=100"])
    assert code == EXIT_NOT_FINITE
    assert "stopping: 3 steps in a row up to step 4 had a non-finite loss" in capsys.readouterr().err
    with Checkpoints(run / "checkpoints") as checkpoints:
        assert checkpoints.steps() == []


@pytest.mark.slow
@pytest.mark.parametrize("place", [".", "export"])
def test_a_start_from_a_source_reads_its_config_once(recipe, data, straight: Path, tmp_path, place):
    source = straight / place
    words = [f"data={data}", f"run={tmp_path / 'run'}", f"init={source}", "phases=((32, 8, 2),)", "save_every=2"]
    codes = []
    counts = opened_by(lambda: codes.append(pretrain.main([recipe, *words, "optimizer.warmup_steps=1"])), source)
    assert codes == [EXIT_DONE]
    assert counts["config.json"] == 1, counts


@pytest.mark.slow
def test_init_starts_from_another_run_with_or_without_its_moments(recipe, data, straight: Path, tmp_path, monkeypatch):
    seen = []
    first_state = pretraining.first_state

    def spy(*arguments):
        seen.append(jax.device_get(first_state(*arguments)))
        raise KeyboardInterrupt

    monkeypatch.setattr(pretraining, "first_state", spy)
    for number, word in enumerate(("init_optimizer=false", "init_optimizer=true")):
        with pytest.raises(KeyboardInterrupt):
            pretrain.main([recipe, f"data={data}", f"run={tmp_path / str(number)}", f"init={straight}", word])
    kernel = state_of(straight)["params/mlm_head/transform/kernel"]
    for fresh in seen:
        assert int(fresh.step) == 0
        np.testing.assert_array_equal(fresh.params["mlm_head"]["transform"]["kernel"], kernel)
    without, with_moments = (sum(float(np.abs(x).sum()) for x in jax.tree.leaves(s.opt_state)) for s in seen)
    assert without == 0
    assert with_moments > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, EXIT_PREEMPTED),
        pytest.param(signal.SIGINT, EXIT_INTERRUPTED, marks=pytest.mark.exhaustive),
        (signal.SIGKILL, -9),
    ],
)
def test_a_signal_saves_and_the_same_command_goes_on(recipe: str, data: str, tmp_path: Path, number, code):
    run = tmp_path / "run"
    words = [recipe, f"data={data}", f"run={run}", "phases=((32, 8, 100000),)", "log_every=1", "save_every=20"]
    command = [sys.executable, "-m", "train.pretrain", *words, "eval_every=100000"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() or len(records_so_far(run)) < 45:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode == code
    with Checkpoints(run / "checkpoints") as checkpoints:
        steps = checkpoints.steps()
        assert steps[-1] >= (20 if number == signal.SIGKILL else len(records_so_far(run)) - 1)
        assert checkpoints.verify(steps[-1]) == []


def records_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


@pytest.mark.slow
def test_the_doctor_reads_a_run_and_says_that_its_steps_were_too_few(straight: Path, data: str, capsys):
    evidence = Evidence(str(straight))
    assert evidence.step == records(straight, "train")[-1]["step"] > 0
    assert evidence.warm_up > 0 and evidence.data_paths == [Path(data)]
    assert all(row["mlm_loss"] > 0 and row["grad_norm"] > 0 for row in evidence.train)
    assert doctor.main([str(straight), "--json"]) == doctor.EXIT_FOUND
    assert [found["rule"] for found in json.loads(capsys.readouterr().out)["findings"]] == ["too short"]


@pytest.mark.slow
def test_raw_text_is_prepared_into_the_run(recipe: str, corpus: Path, tmp_path: Path, capsys):
    shutil.copy(corpus, tmp_path)
    run = tmp_path / "from-text"  # in the folder of the text: its own files are none
    words = [f"text={tmp_path}", f"run={run}", "text_options.vocab_size=90", "text_options.held_out=0.1"]
    words += ["phases=((32, 8, 3),)", "export_at_end=false", "text_options.objective=none", "text_options.rows=blocks"]
    assert pretrain.main([recipe, *words, "--json"]) == EXIT_DONE
    assert json.loads((run / "data" / "manifest.json").read_text())["settings"]["rows"] == "blocks"
    assert "nsp_accuracy" not in records(run, "eval")[-1]
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["exit_code"], told["checkpoint"], told["export"]) == (str(run), 0, 3, None)
    assert told["eval"] == records(run, "eval")[-1] and told["train"] == records(run, "train")[-1]


@pytest.mark.slow
def test_other_data_is_evaluated_as_a_whole_and_missing_held_out_data_is_reported(
    recipe, corpus: Path, data: str, tmp_path, capfd
):
    from train.prepare import main as prepare

    other = tmp_path / "other"
    words = ["--output", str(other), "--vocab", f"{data}/tokenizer", "--max-seq-length", "32", "--held-out", "0"]
    assert prepare([str(corpus), *words, "--dupe-factor", "1", "--workers", "1"]) in (0, None)
    short = ["phases=((32, 8, 2),)", "eval_batches=100000", "export_at_end=false"]
    assert pretrain.main([recipe, f"data={data}", f"eval_data={other}", f"run={tmp_path / 'a'}", *short]) == EXIT_DONE
    assert records(tmp_path / "a", "eval")
    assert pretrain.main([recipe, f"data={other}", f"run={tmp_path / 'b'}", *short]) == EXIT_DONE
    assert records(tmp_path / "b", "eval") == []
    assert "no held-out documents" in capfd.readouterr().err
    moved = tmp_path / "moved"
    shutil.copytree(other, moved)
    for of_training, to_score in ((data, data), (str(other), moved), (f"{data},{other}", moved)):
        words = [recipe, f"data={of_training}", f"eval_data={to_score}", f"run={tmp_path / 'same'}", *short]
        for more in ([], ["--dry-run"]):
            with pytest.raises(
                UserError, match=rf"eval_data: {to_score} is the data of data={of_training.split(',')[-1]} "
            ):
                pretrain.main([*words, *more])
    assert not (tmp_path / "same").exists()
    third = tmp_path / "third"
    words = ["--output", str(third), "--vocab-size", "60", "--max-seq-length", "32", "--workers", "1"]
    assert prepare([str(corpus), *words]) in (0, None)
    with pytest.raises(UserError, match="another vocabulary"):
        pretrain.main([recipe, f"data={data}", f"eval_data={third}", f"run={tmp_path / 'c'}", *short])


def prepared(corpus: Path, folder: Path, data: str, *options: str) -> str:
    """The corpus prepared with the vocabulary of `data`."""
    from train.prepare import main as prepare

    words = f"--output {folder} --vocab {data} --max-seq-length 32,48 --dupe-factor 1 --workers 1".split()
    assert prepare([str(corpus), *words, *options]) in (0, None)
    return str(folder)


def test_data_to_evaluate_on_has_the_objective_and_the_rows_that_the_run_can_score(
    recipe: str, corpus: Path, data: str, tmp_path: Path
):
    without = prepared(corpus, tmp_path / "without", data, "--objective", "none")
    twice = ["--objective", "none", "--rows", "sentences", "--twice", "0.5"]
    doubled = prepared(corpus, tmp_path / "doubled", data, *twice)
    for trained, scored, says in (
        (without, data, r"the objective nsp, and .*without with none; .* with --objective none$"),
        (data, without, r"the objective none, and .*data with nsp; .* with --objective nsp$"),
        (without, doubled, r"a sentence twice, .* 2 token types, and this one has 1; .* without --twice$"),
    ):
        words = [recipe, f"data={trained}", f"eval_data={scored}", f"run={tmp_path / 'run'}"]
        words += ["model.type_vocab_size=1"] * (scored == doubled)
        for more in ([], ["--dry-run"]):
            with pytest.raises(UserError, match=rf"^eval_data: .*{scored} .*{says}"):
                pretrain.main([*words, *more])
    assert not (tmp_path / "run").exists()


def test_data_to_evaluate_on_needs_no_masks_of_the_phases(corpus: Path, data: str, tmp_path: Path):
    """Its masks are those of `eval_masking`, whatever training has, and its parts are evaluated one by one."""
    static = prepared(corpus, tmp_path / "static", data, "--recipe", "google")
    other = prepared(corpus, tmp_path / "other", data, "--masked-lm-prob", "0.3", "--held-out", "0")
    phases = (Phase(32, 8, 5, mask=0.3, corruption=(1, 0, 0)), Phase(48, 8, 5))
    optimizer, model = OptimizerConfig(warmup_steps=2), BertConfig.preset("tiny")
    for eval_data in (static, f"{prepared(corpus, tmp_path / 'usual', data)},{other}"):
        config = PretrainConfig(optimizer=optimizer, phases=phases, model=model, data=data, eval_data=eval_data)
        held_out = pretrain.open_held_out(config)
        assert held_out
        check_batches(config, PreparedData(data), held_out)
        with pytest.raises(UserError, match=r"are static|was prepared for"):
            open_data(dataclasses.replace(config, data=eval_data))
    config = dataclasses.replace(config, phases=(Phase(40, 8, 5),))
    with pytest.raises(UserError, match=r"has no examples of length 40"):
        pretrain.open_held_out(config)


def test_what_a_later_phase_or_an_earlier_evaluation_cannot_do_is_told_at_the_start(
    recipe: str, corpus: Path, data: str, tmp_path: Path
):
    static = prepared(corpus, tmp_path / "static", data, "--recipe", "google")
    for words, says in (
        ([f"data={static}", "masking.max_predictions=5"], "masks are static"),
        ([f"data={data}", "phases=((48, 8, 2), (32, 8, 2))", "masking.max_predictions=40"], "a row has 32 tokens at"),
        (["data=random", "phases=((48, 8, 2), (32, 8, 2))", "masking.max_predictions=40"], "a row has 32 tokens at"),
        ([f"data={data}", "eval_masking.max_predictions=40"], "a row has 32 tokens at most"),
    ):
        for more in ([], ["--dry-run"]):
            with pytest.raises(UserError, match=says):
                pretrain.main([recipe, f"run={tmp_path / 'run'}", *words, *more])
    assert not (tmp_path / "run").exists()


def test_the_result_of_a_run_is_printed_as_json(tmp_path: Path):
    nothing = {"checkpoint": None, "train": None, "eval": None, "export": None}
    assert RunDirectory(str(tmp_path)).summary(75) == {"run": str(tmp_path), "exit_code": 75, **nothing}
    rows = [{"kind": "train", "step": 1}, {"kind": "eval", "step": 1}, {"kind": "train", "step": 2, "loss": 3.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text("{}")
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(2, {"step": np.zeros(())}, {})
    found = RunDirectory(str(tmp_path)).summary(0)
    assert (found["checkpoint"], found["train"], found["eval"]) == (2, rows[2], rows[1])
    assert found["export"] == str(tmp_path / "export")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "data: not given"),
        (["data=/nowhere"], "/nowhere"),
        (["data=DATA", "text=notes.txt"], "text: data=DATA names the training data already; leave one of the two out"),
        (["data=DATA", "run=DATA/manifest.json/a"], "manifest.json is a file, not a folder; choose another run="),
        (["phases=((40, 8, 3),)", "data=DATA"], "--max-seq-length"),
        (["model.vocab_size=50", "data=DATA"], "model.vocab_size: 50"),
        (["mesh.tensor=3", "data=DATA"], "3"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(recipe: str, data: str, tmp_path: Path, words, says):
    words = [word.replace("DATA", data) for word in words]
    with pytest.raises(UserError) as error:
        pretrain.main([recipe, f"run={tmp_path / 'runs' / 'a'}", *words])
    assert says.replace("DATA", data) in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_start_that_fails_leaves_nothing_and_the_corrected_one_starts_fresh(recipe, data, tmp_path: Path, capsys):
    lines = [
        json.dumps({"text": f"It sat. The {word} ran.", "body": f"A {word} flew. It sat."}) for word in "abcdefghij"
    ]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join([*lines, "not JSON"]))
    run = tmp_path / "runs" / "a"
    words = [recipe, f"text={texts}", f"run={run}", "text_options.vocab_size=60", "phases=((32, 2, 3),)"]
    with pytest.raises(UserError, match=r"texts\.jsonl, line 11: not JSON"):
        pretrain.main(words)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]
    texts.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"eval_data: data=random has no vocabulary, which .* would need; leave it out"):
        pretrain.main([recipe, "data=random", f"eval_data={data}", f"run={run}", "phases=((32, 2, 3),)"])
    with pytest.raises(UserError, match="another vocabulary"):  # found after the text is prepared, which is kept
        pretrain.main([*words, f"eval_data={data}"])
    with pytest.raises(
        UserError, match=r"made with other options: .*field 'text' .now 'body'.*choose another directory"
    ):
        pretrain.main([*words, "text_options.field=body"])
    assert pretrain.main(words) == EXIT_DONE
    capsys.readouterr()
    assert pretrain.main(words) == EXIT_DONE
    assert f"finished: all 3 steps are done; to train on, start another run with init={run}" in capsys.readouterr().err
    for changed in (f"text={tmp_path}/*.jsonl", "text_options.vocab_size=70"):
        name = changed.partition("=")[0]
        with pytest.raises(UserError, match=rf"{name}: has changed, and the data in .* was prepared before; say again"):
            pretrain.main([*words, changed, f"allow_change={name}"])
    assert pretrain.main([*words[:2], f"init={run}", f"run={run}2", "phases=((32, 2, 3),)"]) == EXIT_DONE
    assert "begins anew" not in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints")
    (run / "export" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"export: holds 'notes\.txt'; only a former export can be replaced"):
        pretrain.main(words)
    assert not (run / "checkpoints").exists()  # found before the first step
    (run / "export" / "notes.txt").unlink()
    assert pretrain.main(words) == EXIT_DONE
    assert f"{run / 'export'} is there, and no checkpoint: training begins anew" in capsys.readouterr().err


def test_a_failed_start_removes_only_what_it_made(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    old, new, prepared, trained, saved = (
        RunDirectory(str(path)) for path in (mine, mine / "a" / "b", mine / "c", mine / "d", mine / "e")
    )
    for run in (old, new, prepared, trained, saved):
        run.acquire()
    prepared.data.mkdir()
    (prepared.data / "manifest.json").write_text("{}")
    (saved.checkpoints / "10").mkdir(parents=True)
    (trained.path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    for run in (old, new, prepared, trained, saved):
        run.discard_failed_start()
        run.release()
    assert sorted(path.name for path in mine.iterdir()) == [".lock", "c", "d", "e"]


@pytest.mark.slow
def test_the_program_ends_with_code_2_and_no_traceback(recipe: str, tmp_path: Path):
    command = [sys.executable, "-m", "train.pretrain", recipe, f"run={tmp_path / 'r'}", "optimizer.larning_rate=1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "optimizer.learning_rate" in result.stderr
