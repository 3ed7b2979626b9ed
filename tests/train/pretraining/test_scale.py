"""Recipes on any number of devices: each keeps its batch, no device computes too much at a time, or a line says why not."""

import json
import math
import re
import shutil
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.training.mesh import MeshConfig, make_mesh, mesh_sizes
from bert_jax.training.optimizer import OptimizerConfig
from tests.root import ROOT
from tests.run_directory import records
from train import pretrain, scale
from train.pretraining import job as pretraining
from train.pretraining.fitted_model import with_model_for
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.scoring.held_out import HeldOutBatches
from train.pretraining.source import PreparedData, RandomData
from train.run.config import load_recipe
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE

PUBLISHED = {
    "albert_base", "bert_base", "bert_base_lamb", "bert_base_lamb_512", "bert_large", "distilbert_base", "roberta_base",
}  # fmt: skip
DEVICES = (1, 8, 16, 256, 4096)


def config_of(*phases: Phase, **fields) -> PretrainConfig:
    return PretrainConfig(phases=phases, optimizer=OptimizerConfig(warmup_steps=1), **fields)


def test_the_guides_table_is_what_the_program_prints(capsys):
    assert scale.main([]) == EXIT_DONE
    printed = capsys.readouterr().out
    assert printed in (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    assert len(set(printed.splitlines())) == len(printed.splitlines())
    assert {f"{name}.py" for name in PUBLISHED} <= {line.split(" | ")[0][2:] for line in printed.splitlines()}


def test_fields_may_stand_before_or_after_the_devices(capsys):
    words = ["configs/tiny.py", "mesh.fsdp=2"]
    assert scale.main([*words, "--devices", "8"]) == EXIT_DONE
    before = capsys.readouterr().out
    assert scale.main([words[0], "--devices", "8", words[1]]) == EXIT_DONE
    assert capsys.readouterr().out == before


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_recipe_keeps_its_batch_on_every_number_of_devices(name: str):
    config = load_recipe(f"configs/{name}.py", PretrainConfig)
    assert config.tokens_per_device is not None and config.accumulation is None
    head, _, *lines = [line[2:-2].split(" | ") for line in scale.table_of({name: config}, DEVICES)]
    assert head[-5:] == ["1", "8", "16", "256", "4,096"]
    for (length, batch, *_), line in zip(config.phases, lines, strict=True):
        for devices, cell in zip(DEVICES, line[-5:], strict=True):
            if cell.startswith("at most "):
                fits = int(cell[8:].replace(",", ""))
                assert (
                    batch % devices and batch % fits == 0 and not any(batch % n == 0 for n in range(fits + 1, devices))
                )
                continue
            rows, parts = (int(number.replace(",", "")) for number in cell.split(" x "))
            assert rows * parts * devices == batch
            assert rows * length <= config.tokens_per_device
            fewer = [n for n in range(1, parts) if batch // devices % n == 0]
            assert all(batch // devices // n * length > config.tokens_per_device for n in fewer)


def test_the_learning_recipe_is_that_of_the_papers_whatever_the_machine():
    batches = {name: load_recipe(f"configs/{name}.py", PretrainConfig).phases for name in PUBLISHED}
    assert [phase.batch for phase in batches["bert_base"]] == [256, 256]  # https://arxiv.org/abs/1810.04805, A.2
    assert batches["bert_base_lamb"][0].batch == 65_536 and batches["bert_base_lamb_512"][0].batch == 32_768
    assert batches["roberta_base"][0].batch == 8_192  # https://arxiv.org/abs/1907.11692, section 4
    assert batches["albert_base"][0].batch == 4_096  # https://arxiv.org/abs/1909.11942, section 4.1


@pytest.mark.parametrize(
    ("batch", "pieces", "fields", "says"),
    [
        (256, 4096, {}, r"a batch of 256 rows .* over 4,096 devices .* 256 devices, or a batch of 4,096 .*lamb"),
        (256, 48, {}, r"a batch of 256 rows .* over 48 devices .* 32 devices, or a batch of 240 or 288$"),
        (256, 64, {"accumulation": 8}, r"accumulation: found 8; each of 64 devices has 4 rows .* one of 1, 2, 4, or"),
    ],
)
def test_a_batch_that_does_not_fit_is_one_line_with_the_nearest_that_do(batch, pieces, fields, says):
    with pytest.raises(UserError, match=says) as error:
        config_of(Phase(128, batch, 9), **fields).parts_of(128, batch, pieces)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("batch", "pieces", "mesh", "says"),
    [
        # 24 has the divisors 1, 2, 3, 4, 6, 8, 12 and 24, of which none is a multiple of 16.
        (24, 16, {"fsdp": 16}, r"16 devices .*; no number of devices fits this mesh; change .*, or take a batch of 16 or 32$"),
        (24, 16, {"fsdp": 4}, r"nearest that fit: 12 devices, or a batch of 16 or 32$"),
        (40, 32, {"fsdp": 2, "zero": 2}, r"nearest that fit: 20 devices, or a batch of 32 or 64$"),
        (40, 32, {"data": 4, "zero": -1}, r"nearest that fit: 20 devices"),
        (24, 16, {"data": 2, "fsdp": 8}, r"no number of devices fits this mesh"),
        (24, 16, {"tensor": 4}, r"over 16 groups of 4 devices .* nearest that fit: 12 groups of 4 devices, or"),
    ],
)  # fmt: skip
def test_the_number_of_devices_that_is_advised_is_one_that_the_mesh_takes(batch, pieces, mesh, says):
    config = config_of(Phase(128, batch, 9), mesh=MeshConfig(**mesh))
    with pytest.raises(UserError, match=says) as error:
        config.parts_of(128, batch, pieces)
    assert "\n" not in str(error.value)
    for number in re.findall(r"nearest that fit: (\d+)", str(error.value)):
        sizes = mesh_sizes(config.mesh, int(number) * config.mesh.tensor)
        assert batch % math.prod(sizes[:3]) == 0


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        (["mesh.fsdp=4"], ["-", "32 x 1", "16 x 1", "1 x 1", "at most 256"]),
        (["mesh.fsdp=6", "--devices", "6,8,48"], None),  # no multiple of 6 divides 256
        (["mesh.fsdp=4", "phases=((128,24,20000),)", "--devices", "4,16,18"], ["6 x 1", "at most 12", "-"]),
        (["mesh.fsdp=16", "phases=((128,24,20000),)", "--devices", "16"], None),
    ],
)
def test_a_number_of_devices_that_the_mesh_cannot_have_costs_one_cell(
    words: list[str], cells: list[str] | None, capsys
):
    """The table is refused only where it would be empty."""
    words = ["configs/bert_base.py", *words]
    if cells is None:
        with pytest.raises(UserError, match="no number of devices fits this mesh"):
            scale.main(words)
        return
    assert scale.main(words) == EXIT_DONE
    line = capsys.readouterr().out.splitlines()[2]
    assert line[2:-2].split(" | ")[4:] == cells


def test_parts_said_outright_or_not_at_all_are_not_derived():
    phase = Phase(128, 64, 9)
    assert config_of(phase).parts_of(128, 64, 1) == 1
    assert config_of(phase, tokens_per_device=1024).parts_of(128, 64, 1) == 8
    assert config_of(phase, tokens_per_device=1024, accumulation=4).parts_of(128, 64, 1) == 4
    with pytest.raises(UserError, match="tokens_per_device: found 100; at least 128, the length of one row"):
        config_of(phase, tokens_per_device=100)


def test_the_program_takes_fields_and_numbers_of_devices(capsys):
    scale.main(["configs/bert_large.py", "tokens_per_device=2048", "mesh.tensor=4", "--devices", "4,48"])
    _, _, short, long = capsys.readouterr().out.splitlines()
    assert short.endswith("| 2,048 | 16 x 16 | at most 32 |") and long.endswith("| 2,048 | 4 x 64 | at most 32 |")
    for words, says in ((["--devices", "8,"], "found '8,'"), (["configs/finetune.py"], "FinetuneConfig")):
        with pytest.raises(UserError, match=says):
            scale.main(words)


def test_a_run_may_go_on_with_other_parts(tmp_path: Path):
    run, phase = RunDirectory(str(tmp_path)), Phase(128, 64, 9)
    run.settle_config(config_of(phase), ())
    older = run.saved_config()
    assert older is not None
    del older["tokens_per_device"], older["checksum"]
    (tmp_path / "config.json").write_text(json.dumps(older | {"accumulation": 1}))  # of a version that had no other
    for fields in ({}, {"accumulation": 4}, {"tokens_per_device": 256}):
        run.settle_config(config_of(phase, **fields), ())
    with pytest.raises(UserError, match="phases"):
        run.settle_config(config_of(Phase(128, 32, 9)), ())


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "random"])
def test_rows_of_a_batch_are_made_without_the_batch(prepared: bool, data: str):
    source = PreparedData(data) if prepared else RandomData(90, "nsp")
    phase = Phase(32, 1 << 20, 1)
    batches = source.batches(config_of(phase), phase)
    tracemalloc.start()
    made = batches.batch(0, np.arange(1 << 19, (1 << 19) + 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made["input_ids"].shape == (8, 32)
    assert peak < 2 * 8 * phase.batch  # a number or two for each row, not its tokens: 32 x 4 bytes and more


def test_what_is_evaluated_does_not_depend_on_the_parts(data: str):
    held_out = PreparedData(data)
    seen = []
    for parts in (1, 2, 8):
        config = config_of(Phase(32, 16, 9), accumulation=parts, eval_batches=2)
        batches = HeldOutBatches(config, held_out, make_mesh(), config.phases[0])
        rows = [np.asarray(batches._on_mesh.batch(number)["input_ids"]) for number in range(len(batches))]
        assert all(len(part) == 16 // parts for part in rows)
        real = np.concatenate(rows)
        seen.append(real[(real != held_out.tokenizer.pad_token_id).any(1)])
    assert len(seen[0]) == min(2 * 16, held_out.examples(32, "held-out"))
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])


@pytest.mark.eight_devices
def test_each_phase_has_its_own_parts(data: str, tmp_path: Path):
    source = PreparedData(data)
    config = config_of(Phase(32, 32, 4), Phase(48, 16, 2), model=BertConfig.preset("tiny"), tokens_per_device=64)
    config = with_model_for(config, source, frozenset())
    job = pretraining.PretrainingJob(config, RunDirectory(str(tmp_path)), source, source)
    assert [job.parts_of({"input_ids": np.zeros((phase.batch, phase.length))}) for phase in config.phases] == [2, 2]
    assert [config.parts_of(phase.length, phase.batch, 1) for phase in config.phases] == [16, 16]


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_run_goes_on_with_fewer_devices_in_more_parts(recipe: str, data: str, tmp_path: Path, monkeypatch):
    """With dropout on: neither the devices nor the parts change what a row draws, so losses are equal to rounding."""
    words = [recipe, f"data={data}", "phases=((32, 32, 5),)", "tokens_per_device=64", "log_every=1", "eval_every=9"]
    words += ["export_at_end=false"]
    eight, two = tmp_path / "eight", tmp_path / "two"
    assert pretrain.main([*words, f"run={eight}"]) == EXIT_DONE
    shutil.copytree(eight, two)
    shutil.rmtree(two / "checkpoints" / "5")
    monkeypatch.setattr(pretraining, "make_mesh", lambda config: make_mesh(config, jax.devices()[:2]))
    assert pretrain.main([*words, f"run={two}"]) == EXIT_DONE
    for kind, count in (("train", 5), ("eval", 1)):
        here, there = records(two, kind), records(eight, kind)
        assert len(here) == len(there) == count
        for one, other in zip(here, there, strict=True):
            assert one["mlm_loss"] == pytest.approx(other["mlm_loss"], rel=1e-5)
    log = (two / "run.log").read_text()
    assert "a step has 32 rows of 32, 2 on a device at a time in 2 parts" in log  # eight devices
    assert "a step has 32 rows of 32, 2 on a device at a time in 8 parts" in log  # two
