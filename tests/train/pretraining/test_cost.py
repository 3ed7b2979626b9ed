"""`--dry-run`: time, passes over the text, tokens, memory with advice that was tried, and disk."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from bert_jax.data.pretraining.manifest import read_manifest
from bert_jax.data.text.sources import find_sources
from bert_jax.shown import duration
from bert_jax.training.optimizer import OptimizerConfig
from tests.root import ROOT
from tests.train.pretraining.conftest import WORDS
from train import pretrain
from train.planning import fit
from train.planning.machines import read_topology
from train.preparation.options import PrepareOptions
from train.pretraining import cost, text
from train.pretraining.cost_report import _time_line, cost_lines
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig
from train.pretraining.source import PreparedData, RandomData
from train.run.config import load_recipe, override, to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE


def facts_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert pretrain.main([*words, "--dry-run", "--json"]) == EXIT_DONE
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_dry_run_says_what_a_run_costs_and_writes_nothing(recipe: str, data: str, tmp_path: Path, capsys):
    words = [recipe, f"data={data}", f"run={tmp_path / 'none'}"]
    assert pretrain.main([*words, "--dry-run"]) == EXIT_DONE
    out = capsys.readouterr().out
    for word in ("parameters", "int32 [8, 32]", "temporaries", "length 48"):
        assert word in out
    assert not (tmp_path / "none").exists()
    prepared = PreparedData(data)
    facts = facts_of(words, capsys)
    counts = {phase["length"]: prepared.examples(phase["length"]) for phase in facts["phases"]}
    assert {phase["length"]: phase["examples"] for phase in facts["phases"]} == counts
    assert [phase["epochs"] for phase in facts["phases"]] == [8 * 8 / counts[32], 4 * 8 / counts[48]]
    assert facts["text_passes"] == 2 * (8 * 8 / counts[32] + 4 * 8 / counts[48])  # --dupe-factor 2
    assert facts["positions"] == 8 * 8 * 32 + 4 * 8 * 48
    assert facts["config"]["model"]["vocab_size"] == prepared.vocab_size
    assert facts["total_steps"] == 12
    steps = sum(phase["steps"] * phase["step_seconds"] for phase in facts["phases"])
    assert facts["seconds"] > steps > 0
    assert facts["memory_before_bytes"] + facts["state_bytes"] < facts["memory_bytes"] < facts["memory_limit_bytes"]
    assert facts["fits_with"] is None
    # Checkpoints after steps 3, 6, 9 and 12, of which two are kept; while a third is written the oldest is there.
    assert facts["disk"]["checkpoints"] == 3
    assert facts["disk"]["total_bytes"] == 3 * facts["state_bytes"] + 4 * facts["parameters"]
    assert facts["disk"]["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    report = [describe_padding(prepared, length) for length in (32, 48)]
    tokens = 8 * 8 * 32 * (1 - report[0]) + 4 * 8 * 48 * (1 - report[1])
    assert f"{tokens / facts['positions']:.0%} of them tokens" in cost_lines(facts)["tokens"]


def describe_padding(data: PreparedData, length: int) -> float:
    return data.manifest["report"]["train"]["examples"][str(length)]["padding_share"]


@pytest.mark.slow
def test_what_the_compiler_refuses_for_its_memory_comes_with_settings_that_fit(
    recipe: str, tmp_path: Path, capsys, monkeypatch
):
    """As the compiler of a TPU does; that of a CPU compiles everything."""
    compile_step = cost.TimedSteps.compile

    def refuse(self: Any, phase: Phase, accumulation: int) -> Any:
        if accumulation == 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")
        return compile_step(self, phase, accumulation)

    monkeypatch.setattr(cost.TimedSteps, "compile", refuse)
    facts = facts_of([recipe, "data=random", "phases=((32,8,3),)", f"run={tmp_path / 'none'}"], capsys)
    assert facts["memory_bytes"] is None and facts["seconds"] is None
    assert [one["words"] for one in facts["fits_with"]] == [["accumulation=2"]]
    line = cost_lines(facts)["memory"]
    assert line.startswith("what the compiler refuses of ") and "is too much; accumulation=2 (" in line


@pytest.mark.slow
def test_what_does_not_fit_comes_with_settings_that_do(recipe: str, tmp_path: Path, capsys, monkeypatch):
    words = [recipe, "data=random", "phases=((32, 64, 3),)", f"run={tmp_path / 'none'}"]
    whole = facts_of(words, capsys)
    (phase,) = whole["phases"]
    room = phase["peak_bytes"] - whole["memory_before_bytes"] - phase["device_bytes_temporaries"] // 2
    monkeypatch.setattr(cost.Machine, "limit", property(lambda self: self.before + room))
    facts = facts_of(words, capsys)
    assert facts["fits_with"]
    line = cost_lines(facts)["memory"]
    assert "is too much" in line
    for setting in facts["fits_with"]:
        assert " ".join(setting["words"]) in line
        fitting = facts_of([*words, *setting["words"]], capsys)
        assert fitting["fits_with"] is None and fitting["memory_bytes"] <= fitting["memory_limit_bytes"]
    parts = int(re.findall(r"accumulation=(\d+)", line)[0])
    assert facts_of([*words, f"accumulation={parts // 2}"], capsys)["fits_with"] is not None  # the fewest that fit
    monkeypatch.setattr(cost.Machine, "limit", property(lambda self: self.before + 1))
    lines = cost_lines(facts_of(words, capsys))
    assert "no accumulation or remat fits either" in lines["memory"]
    assert "does not fit into memory" in lines["time"]


def test_the_line_of_the_time_says_which_scores_are_not_in_it(recipe: str):
    facts: dict[str, Any] = dict.fromkeys(("slow_type", "stop_after", "prepare_seconds"))
    facts |= {"seconds": 60.0, "device_kind": "TPU v5e", "phases": []}
    for words, end in [
        ({}, "and compiling"),
        ({"blimp": "sets", "probe": "cola:x"}, "of blimp= and probe= come on top"),
    ]:
        config = to_json(override(load_recipe(recipe, PretrainConfig), words))
        assert _time_line(facts | {"config": config}).endswith(end)


@pytest.mark.eight_devices
def test_several_devices_are_advised_the_layout_that_a_plan_advises(recipe: str, monkeypatch):
    monkeypatch.setattr(cost, "_fewest_parts", lambda config, *_: (1, 10**9))
    config = override(load_recipe(recipe, PretrainConfig), {"data": "random", "phases": "((32, 64, 3),)"})
    plan = cost.TimedSteps(config, RandomData(50, "nsp"))
    advised = [one["words"] for one in cost._settings_that_fit(plan, cost.Machine(), config.phases[0])]
    planned = [list(words) for _, words in fit._kinds(config, read_topology("cpu:8"))]
    assert ["mesh.zero=8"] in advised and all(words in planned for words in advised[1:])


@pytest.mark.slow
def test_text_is_prepared_for_a_dry_run_and_a_large_one_is_sampled(recipe, corpus: Path, tmp_path, capsys, monkeypatch):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, document in enumerate(corpus.read_text().split("\n\n")):
        (texts / f"{number:02}.txt").write_text(document)
    words = [recipe, f"text={texts}", f"run={tmp_path / 'none'}", "text_options.vocab_size=90"]
    words += ["phases=((32, 8, 3),)", "text_options.held_out=0", "text_options.workers=1"]
    whole = facts_of(words, capsys)
    monkeypatch.setattr(text, "SAMPLE_BYTES", 8000)
    sampled = facts_of(words, capsys)
    assert whole["sample_share"] == 1.0 and 0.05 < sampled["sample_share"] < 0.25  # eight of sixty files
    assert "estimated from" in cost_lines(sampled)["passes"] and "estimated" not in cost_lines(whole)["passes"]
    assert sampled["phases"][0]["examples"] == pytest.approx(whole["phases"][0]["examples"], rel=0.4)
    assert sampled["disk"]["data_bytes"] > whole["disk"]["data_bytes"] / 2 > 0
    assert whole["config"]["model"]["vocab_size"] == sampled["config"]["model"]["vocab_size"] == 90
    assert whole["prepare_seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_the_share_of_a_sample_counts_the_rows_that_were_read_of_a_parquet_file(tmp_path: Path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "books.parquet"
    parquet.write_table(pyarrow.table({"text": [f"{number} " * 900 for number in range(1000, 1040)]}), path)
    monkeypatch.setattr(text, "SAMPLE_BYTES", 5000)
    options = PrepareOptions(inputs=(str(path),), output=tmp_path / "data", vocab_size=90)
    share = text._write_sample(tmp_path / "sample.jsonl", options, find_sources([path]))
    assert len((tmp_path / "sample.jsonl").read_text().splitlines()) == 2
    assert share == pytest.approx(2 / 40, rel=0.01)


def test_a_sample_of_lines_is_lines(tmp_path: Path, monkeypatch):
    """Two sentences on a line are one, as in the run."""
    lines = "\n\n".join(f"The cat sat. It ran.\nA dog {word}. It flew." for word in WORDS * 4)
    (tmp_path / "a.txt").write_text(lines)
    monkeypatch.setattr(text, "SAMPLE_BYTES", len(lines) // 2)
    options = TextConfig(format="lines", vocab_size=90, held_out=0.0, workers=1, documents="blank-lines:1")
    optimizer, phases = OptimizerConfig(warmup_steps=1), ((32, 8, 3),)
    config = PretrainConfig(text=str(tmp_path / "a.txt"), text_options=options, optimizer=optimizer, phases=phases)
    (tmp_path / "sampled").mkdir()
    found = text._prepare_sample(tmp_path / "sampled", RunDirectory(str(tmp_path / "run")), config, frozenset(), None)
    report = read_manifest(found["directory"])["report"]["train"]
    assert 20 < report["documents"] < 4 * len(WORDS) and report["sentences"] == 2 * report["documents"]


def test_a_file_without_text_may_be_in_a_sample(tmp_path: Path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n")
    (tmp_path / "b.txt").write_text("Some words.\n\n" * 1000)
    monkeypatch.setattr(text, "SAMPLE_BYTES", 1000)
    options = PrepareOptions(inputs=(str(tmp_path),), output=tmp_path / "data", vocab_size=90)
    assert text._write_sample(tmp_path / "sample.jsonl", options, find_sources([tmp_path])) > 0
    assert (tmp_path / "sample.jsonl").stat().st_size >= 500


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (lambda rows, parts: 5 + 2 * rows, 5 + 2 * 64),  # an update of 5 s, and 2 s for each row
        (lambda rows, parts: 5 + 2 * rows / parts, 5 + 2 * 16),  # parts without a cost of their own
        (lambda rows, parts: 4.0 if parts == 2 else 7.0, 7.0),  # a clock that was disturbed
        (lambda rows, parts: 7.0 if parts == 1 else 99.0, 4 * 7.0),
        (lambda rows, parts: None if parts == 2 else 7.0, None),  # two parts do not fit
    ],
)
def test_a_step_in_parts_updates_once(clock: Any, expected: float | None, recipe: str, monkeypatch):
    """A batch of 64 rows in four parts; what was timed are 16 rows in one part and 32 in two."""
    words = {"data": "random", "phases": "((32, 64, 3),)", "accumulation": "4"}
    plan = cost.TimedSteps(override(load_recipe(recipe, PretrainConfig), words), RandomData(50, "nsp"))
    (phase,), timed = plan.config.phases, []
    monkeypatch.setattr(cost, "_OPERATIONS", plan.flops(phase) / 4)
    monkeypatch.setattr(plan, "compile_if_it_fits", lambda phase, parts: (phase.batch, parts))
    monkeypatch.setattr(plan, "_seconds", lambda phase, compiled, room: timed.append(compiled) or clock(*compiled))
    found = plan.timed_step(phase, "the whole step", None)
    assert timed == [(16, 1), (32, 2)]
    assert found == {"timed_rows": None if expected is None else 16, "step_seconds": expected}


@pytest.mark.slow
def test_a_long_step_is_timed_on_fewer_rows_and_scaled(data: str, recipe: str, capsys, monkeypatch):
    words = [recipe, f"data={data}", "phases=((32, 64, 3),)"]
    (phase,) = facts_of(words, capsys)["phases"]
    assert phase["timed_rows"] == 64
    monkeypatch.setattr(cost, "_OPERATIONS", phase["flops_per_step"] / 4)
    (fewer,) = facts_of(words, capsys)["phases"]
    assert fewer["timed_rows"] == 16 and fewer["step_seconds"] > 0
    assert fewer["flops_per_step"] == phase["flops_per_step"]


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (5, "5 seconds"),
        (80, "80 seconds"),
        (300, "5 minutes"),
        (7200, "2 hours"),
        (4e5, "4.6 days"),
        (4e8, "12.7 years"),
    ],
)
def test_times_are_in_the_unit_people_use(seconds: float, says: str):
    assert duration(seconds) == says


@pytest.mark.exhaustive
def test_a_run_takes_the_memory_that_was_forecast(tmp_path: Path):
    words = [sys.executable, "-m", "train.pretrain", "configs/mini.py", "data=random", "phases=((128, 64, 4),)"]
    words += ["optimizer.warmup_steps=1", "save_every=2", f"run={tmp_path / 'run'}"]
    dry = subprocess.run([*words, "--dry-run", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    measure = "import sys; from train import pretrain; pretrain.main(sys.argv[1:]); "
    measure += "print(open('/proc/self/status').read())"
    run = subprocess.run(
        [sys.executable, "-c", measure, *words[3:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # Not ru_maxrss, which starts at the size of this process.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", run.stdout, re.MULTILINE)
    assert 1024 * int(peak) == pytest.approx(json.loads(dry.stdout)["memory_bytes"], rel=0.15)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_dry_run_for_programs_is_one_json_object_and_the_tables_are_for_people(recipe: str, tmp_path: Path, capsys):
    words = ["data=random", "phases=((16, 8, 20),)", "model.vocab_size=40", f"run={tmp_path / 'none'}"]
    assert pretrain.main([recipe, *words, "--dry-run", "--json"]) == EXIT_DONE
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert "parameters" in printed.err and "length 16" in printed.err
    v, d, f, p = 40, 32, 64, 48
    embeddings = v * d + p * d + 2 * d + 2 * d
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    heads = (d * d + d) + (d * d + d + 2 * d + v) + (2 * d + 2)
    assert facts["parameters"] == embeddings + layer + heads
    assert facts["state_bytes"] // 4 // facts["parameters"] == 3  # the weights and two moments, float32
    assert facts["mesh"]["data"] == facts["devices"] == 8
    assert facts["config"]["model"]["vocab_size"] == v and facts["config"]["phases"] == [[16, 8, 20]]
    (phase,) = facts["phases"]
    assert (phase["length"], phase["batch"], phase["steps"], phase["tokens_per_step"]) == (16, 8, 20, 128)
    assert phase["inputs"]["input_ids"] == {"dtype": "int32", "shape": [8, 16]}
    assert phase["examples"] is phase["epochs"] is None
    assert phase["compile_seconds"] > 0 and phase["device_bytes_temporaries"] > 0
    assert phase["device_bytes_state_and_batch"] > facts["state_bytes"]  # every device holds the state
    assert not (tmp_path / "none").exists()
