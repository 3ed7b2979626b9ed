"""`python -m train.plan`: topologies, figures, what would fit, and what is told of machines that one does not have."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from bert_jax.errors import UserError
from tests.tiny import CONFIG, OPTIMIZER
from train import plan, pretrain
from train.planning import estimate, fit, measured, planner
from train.planning.machines import read_topology
from train.planning.picture import draw_plans
from train.planning.program import Collective, Operation, Program
from train.planning.report import print_fit, print_plans, warnings_of
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import RandomData
from train.run.config import override
from train.run.ending.stopping import EXIT_DONE

RECIPE = """from bert_jax.training.optimizer import OptimizerConfig
from tests.tiny import CONFIG
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(model=CONFIG, optimizer=OptimizerConfig(warmup_steps=2), phases=(Phase(16, 64, 900),))
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "small.py"
    path.write_text(RECIPE)
    return str(path)


def plans_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert plan.main([*words, "--json"]) == EXIT_DONE
    return json.loads(capsys.readouterr().out)["plans"]


@pytest.fixture
def compiled_memory(monkeypatch) -> list[float]:
    """What the compiler says that each of the programs needs which a plan compiles: bytes of a device."""
    seen: list[float] = []
    compile_timed = planner.compile_timed

    def kept(lowered: Any) -> Any:
        compiled, seconds = compile_timed(lowered)
        memory = compiled.memory_analysis()
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.generated_code_size_in_bytes
        seen.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes + results)
        return compiled, seconds

    monkeypatch.setattr(planner, "compile_timed", kept)
    return seen


@pytest.mark.parametrize(
    ("text", "chips", "devices"),
    [("v5e:4x4", 16, 16), ("2xv5e:16x16", 512, 512), ("v4:2x2x4", 16, 16), ("v3:4x4", 16, 32), ("h100:8", 8, 8)],
)
def test_a_topology_is_its_chips(text: str, chips: int, devices: int):
    topology = read_topology(text)
    assert (topology.chips, topology.devices) == (chips, devices)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--topology", "v5e"], r"found 'v5e'; expected KIND:SHAPE"),
        (["--topology", "v5x:4x4"], r"'v5x' is unknown; did you mean"),
        (["--topology", "v5e:4x4x4"], r"its axes are 3, of v5e 2, such as v5e:4x4"),
        (["--topology", "2xh100:8"], r"only TPUs have slices, say h100:16"),
        (["--topology"], r"--topology: expected a value"),
        ([], r"--topology: not given"),
        (["--topology", "cpu:1", "--price", "cheap"], r"--price: found 'cheap'; expected a number"),
        (["--topology", "cpu:1", "--picture", "here.jpg"], r"--picture: found here.jpg; expected a .png"),
        (["--topology", "cpu:1", "--dry-run"], r"--dry-run: a plan never trains"),
        (
            ["--topology", "cpu:1", "--fit", "--price", "2"],
            r"--fit: compares settings .* leave --price and --picture out",
        ),
        (["--topology", "cpu:1", "--fit", "--picture", "plan.png"], r"--fit: compares settings"),
        (["--topology", "cpu:7"], r"64 rows cannot be split evenly over 7 devices"),
    ],
)
@pytest.mark.eight_devices
def test_a_mistake_is_one_line(recipe: str, words: list[str], says: str):
    with pytest.raises(UserError, match=says) as error:
        plan.main([recipe, *words])
    assert "\n" not in str(error.value)


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the TPU's compiler is installed")
def test_without_the_tpus_compiler_a_line_says_what_to_install(recipe: str):
    with pytest.raises(UserError, match=r"--topology v5e:4x4: needs the TPU's compiler.*pip install -e '.\[tpu\]'"):
        plan.main([recipe, "--topology", "v5e:4x4"])


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_plan_has_memory_exchanges_a_range_and_the_cost(recipe: str, tmp_path: Path, compiled_memory, capsys):
    words = [recipe, "--topology", "cpu:8", "--topology=h100:8", "--price", "2.5", "--picture", f"{tmp_path}/plan.png"]
    on_cpus, on_gpus = plans_of(words, capsys)
    (phase,) = on_cpus["phases"]
    assert on_cpus["compiled"] and not on_gpus["compiled"]
    assert (on_cpus["devices"], on_cpus["mesh"]["data"], phase["device_rows"], phase["parts"]) == (8, 8, 8, 1)
    assert phase["fits"] and phase["memory"]["peak"] == sum(v for k, v in phase["memory"].items() if k != "peak")
    assert [phase["needed"]] == pytest.approx(compiled_memory, rel=0.05)
    assert {one["kind"] for one in phase["collectives"]} == {"all-reduce"}
    for found, rented in ((on_cpus, 1), (on_gpus, 8)):
        (phase,) = found["phases"]
        low, high = phase["step_seconds"]
        assert 0 < low < high
        assert phase["sequences_per_second"] == [pytest.approx(64 / high), pytest.approx(64 / low)]
        assert found["hours"] == [pytest.approx(900 * low / 3600), pytest.approx(900 * high / 3600)]
        assert found["cost"] == [pytest.approx(2.5 * rented * each) for each in found["hours"]]
    share = on_gpus["phases"][0]["mfu"]
    assert 0 < share[0] < share[1] < estimate.GPU_SHARES[1]
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.size[0] > 500
    (told,) = warnings_of(on_cpus)
    assert "a CPU's figures" in told
    assert "an estimate" in warnings_of(on_gpus)[0]


def test_a_picture_shows_that_the_compiler_refused_a_phase(tmp_path: Path):
    refused = {"fits": False, "memory": None, "needed": None, "time_by_part": None, "step_seconds": None}
    phase = {"device_rows": 8, "length": 128, "memory_limit": 16e9, **refused}
    draw_plans([{"topology": "v5e:1x1", "phases": [phase]}], tmp_path / "plan.png")
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.size[0] > 500


@pytest.mark.slow
def test_too_big_is_one_line_with_settings_that_do_fit(recipe: str, compiled_memory, capsys, monkeypatch):
    words = [recipe, "--topology", "cpu:1", "phases=((16, 128, 900),)", "model.num_hidden_layers=1"]
    (whole,) = plans_of(words, capsys)
    assert [whole["phases"][0]["needed"]] == pytest.approx(compiled_memory, rel=0.05)
    memory = whole["phases"][0]["memory"]
    room = memory["peak"] - memory["temporaries"] // 2
    monkeypatch.setattr(measured, "machine_memory", lambda: room)
    (found,) = plans_of(words, capsys)
    (phase,) = found["phases"]
    (line,) = [line for line in warnings_of(found) if "at a time need" in line]
    assert "\n" not in line and phase["fits_with"] and not phase["fits"]
    assert all(" ".join(one["words"]) in line and one["memory"] <= room for one in phase["fits_with"])
    (again,) = plans_of([*words, *phase["fits_with"][0]["words"]], capsys)
    assert again["phases"][0]["fits"] and again["phases"][0]["needed"] == phase["fits_with"][0]["memory"]


def config_of(**fields: Any) -> PretrainConfig:
    return PretrainConfig(model=CONFIG, optimizer=OPTIMIZER, phases=(Phase(16, 2048, 9),), **fields)


def test_the_fastest_that_fits_is_found_without_trying_all(monkeypatch):
    """A chip that is fastest at 4,096 tokens at a time, and has no room for more than 8,192."""
    compiled = []

    def planned(steps: Any, topology: Any, phase: Phase, parts: int) -> dict[str, Any]:
        tokens = phase.batch // parts * phase.length
        compiled.append((tokens, steps.config.model.remat))
        fits, seconds = (
            tokens <= 8192,
            (1 + abs(tokens - 4096) / 4096) * (1.3 if steps.config.model.remat == "full" else 1),
        )
        # A compiler refuses some steps, and compiles others that need more than there is.
        known = fits or steps.config.model.remat == "full"
        return {"fits": fits, "needed": None, "step_seconds": [seconds, seconds] if known else None}

    monkeypatch.setattr(fit, "plan_phase", planned)
    config = config_of()
    tried = fit.fastest(config, RandomData(50, "nsp"), read_topology("cpu:1"), config.phases[0], lambda line: None)
    assert tried[0]["words"] == ["tokens_per_device=4096"]
    assert [one["fits"] for one in tried] == sorted((one["fits"] for one in tried), reverse=True)
    assert ("model.remat=full" in tried[-1]["words"]) or any("model.remat=full" in one["words"] for one in tried)
    assert len(compiled) == len(set(compiled)) < 2 * len(fit._TOKENS)


PHASES = {"phases": "((128,256,9),(512,256,1))", "model.max_position_embeddings": "512"}


@pytest.mark.parametrize("more", [{}, {"accumulation": "4"}, {"tokens_per_device": "512"}])
def test_the_settings_that_are_printed_are_accepted_and_take_that_many_rows(more: dict[str, str]):
    config = override(config_of(), PHASES | more)
    phase = Phase(128, 256, 9)
    for pieces in (1, 64, 128, 256):
        steps: Any = SimpleNamespace(config=config, mesh=SimpleNamespace(shape={"data": pieces, "fsdp": 1, "zero": 1}))
        for rows in fit.rows_of(steps, phase):
            words = fit._words(fit.Setting(config, ()), rows, 0, phase)
            said = override(config, dict(word.split("=") for word in words))
            assert said.parts_of(128, 256, pieces) == 256 // pieces // rows


def test_where_all_that_was_tried_fits_nothing_is_recomputed(monkeypatch):
    asked = []

    def planned(steps: Any, topology: Any, phase: Phase, parts: int) -> dict[str, Any]:
        asked.append(steps.config.model.remat)
        return {"fits": True, "needed": 1, "step_seconds": [1.0 / parts, 1.0 / parts]}

    monkeypatch.setattr(fit, "plan_phase", planned)
    config = config_of()
    fit.fastest(config, RandomData(50, "nsp"), read_topology("cpu:1"), config.phases[0], lambda line: None)
    assert set(asked) == {"none"}


def operation(kind: str, cycles: int, traffic: int, times: int = 1, part: str = "x", scheduled: int = 0) -> Operation:
    return Operation(kind, "f", part, times, cycles, traffic, scheduled)


def test_the_table_of_what_fits_can_be_read_and_copied_in_80_columns(capsys):
    one = {
        "needed": 1.9e9,
        "memory_limit": 16.9e9,
        "fits": True,
        "step_seconds": [0.146, 0.155],
        "mfu": [0.55, 0.67],
        "sequences_per_second": [14_618, 25_610],
        "device_rows": 64,
        "parts": 4,
        "words": ["tokens_per_device=8192", "mesh.zero=8"],
    }
    too_big = {**one, "needed": None, "fits": False, "words": ["tokens_per_device=16384", "model.remat=full"]}
    print_fit(read_topology("v5e:4x4"), Phase(128, 256, 10), [one, too_big], Console(width=80))
    table = capsys.readouterr().out
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "…" not in table
    assert all(word in table for word in (*one["words"], *too_big["words"], "14,618 to 25,610", "a chip has 16.9 GB"))


@pytest.mark.slow
def test_exchanges_of_groups_of_all_sizes_are_in_the_table(recipe: str, capsys):
    (found,) = plans_of([recipe, "--topology", "h100:8"], capsys)
    one = {"kind": "all-reduce", "in_loop": False, "asynchronous": False, "slices": 1}
    sums = [{**one, "group": group, "count": 2, "bytes": group * 1e6} for group in (8, 2)]
    found["phases"][0]["collectives"] = [*sums, {**one, "group": 4, "count": 5, "bytes": 100}]
    print_plans([found], Console(width=120))
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    }
    assert rows["all-reduce, once, waited for"] == "4 x, 10.0 MB"
    assert rows["exchanges below 1 MB a step"] == "5 x"


@pytest.mark.slow
def test_plans_of_many_topologies_can_be_read_in_80_columns(recipe: str, capsys, monkeypatch):
    monkeypatch.setattr(plan, "Console", partial(Console, width=80))
    assert plan.main([recipe, *(word for size in (1, 2, 4, 8) for word in ("--topology", f"h100:{size}"))]) == EXIT_DONE
    out = capsys.readouterr().out
    tables = out.split("the run: 900 steps")
    assert all(len(line) <= 80 for line in out.splitlines() if "an estimate" not in line)
    assert "…" not in out
    assert tables[0].count("memory: activations, gradients") > 1
    assert tables[1].count("seconds") == 4


def test_the_range_follows_its_rule():
    """v5e: 1.5e9 cycles and 819e9 bytes a second, so 546 bytes a cycle; 200e9 bytes a second over the links."""
    topology, clock, memory = read_topology("v5e:4x4"), 1.5e9, 819e9
    product, loop, copy = operation("product", 3000, 546), operation("loop", 3000, 546_000, 4), operation("copy", 0, 0)
    program = Program([product, loop, copy], [])
    step = estimate.estimate_tpu(program, topology).step
    assert step.low == pytest.approx(3000 / clock + 4 * 546_000 / memory)
    assert step.high == pytest.approx(3000 / clock + 4 * 3000 / clock)
    for scheduled in (500, 4000):  # both figures of a product count, and of a loop the schedule alone
        found = Program([product._replace(scheduled=scheduled), loop._replace(scheduled=scheduled)], [])
        low, high = estimate.estimate_tpu(found, topology).step
        busy = 4 * max(scheduled, 546_000 * clock / memory)
        assert low == pytest.approx((3000 + busy) / clock)
        assert high == pytest.approx((max(3000, scheduled) + 1.5 * busy) / clock)
    fetched = Program([product, operation("copy", 0, 546 * 10_000)], [])  # no step is shorter than its traffic
    step = estimate.estimate_tpu(fetched, topology).step
    assert step.low == step.high == pytest.approx(10_001 * 546 / memory)


def test_the_range_of_a_cpu_follows_its_rule():
    """Two devices that share the cores: products at the speed of a large one or a quarter, and all memory traffic."""
    found = estimate.estimate_cpu(Program([operation("loop", 0, 500, 3, "norm")], []), 8e9, 2, 4e9, 1e6)
    assert found.step == (pytest.approx(2), pytest.approx(8 + 2 * 2 * 3 * 500 / 1e6))
    assert found.parts["norm"] == (0, pytest.approx(2 * 2 * 3 * 500 / 1e6))


def test_exchanges_take_their_bytes_over_the_links():
    """An all-reduce in a ring sends 2 (n - 1) / n of its array, https://doi.org/10.1016/j.jpdc.2008.09.002."""
    size = 10**9
    waited = Collective("all-reduce", size, 3, True, False, 16)
    one = estimate.exchange_time([waited], read_topology("v5e:4x4"))
    assert one.low == pytest.approx(3 * 2 * 15 / 16 * size / 200e9) and one.high == pytest.approx(2 * one.low)
    two = [waited._replace(asynchronous=True, beside=("f", "g"), times=1)] * 2
    seconds = {"f": one.low / 3, "g": one.low / 6, "h": 1.0}
    low, high = estimate.exchange_time(two, read_topology("v5e:4x4"), seconds)
    assert low == pytest.approx(one.low / 6)  # both take a third, and find a half of it to run beside
    assert high == pytest.approx(2 * 2 / 3 * one.low - one.low / 2)
    gathered = estimate.exchange_time([waited._replace(kind="all-gather", times=1)], read_topology("v5e:4x4"))
    assert gathered.low == pytest.approx(15 / 16 * size / 200e9)
    alone = estimate.exchange_time([waited._replace(group=1)], read_topology("v5e:4x4"))
    assert alone == (0, 0)


GRADIENTS = 1.36e9  # bytes of BERT-large's


@pytest.mark.parametrize(
    ("topology", "kind", "size", "group", "slices", "links", "network"),
    [
        # mesh.zero=8, mesh.fsdp=256 and mesh.zero=8: what a device has of the sums is added up over data.
        ("2xv5e:2x4", "all-reduce", GRADIENTS / 8, 2, 2, 0, GRADIENTS / 8),
        ("2xv5e:16x16", "all-reduce", GRADIENTS / 256, 2, 2, 0, GRADIENTS / 256),
        ("2xv5e:16x16", "all-reduce", GRADIENTS / 8, 64, 2, 2 * 31 / 32 * GRADIENTS / 8, GRADIENTS / 8 / 32),
        ("2xv5e:16x16", "all-reduce", GRADIENTS, 512, 2, 2 * 255 / 256 * GRADIENTS, GRADIENTS / 256),
        ("4xv5e:4x4", "all-reduce", GRADIENTS, 64, 4, 2 * 15 / 16 * GRADIENTS, 2 * 3 / 4 * GRADIENTS / 16),
        ("2xv5e:4x4", "reduce-scatter", GRADIENTS, 32, 2, 15 / 16 * GRADIENTS, 1 / 2 * GRADIENTS / 16),
        ("4xv5e:4x4", "all-gather", GRADIENTS, 64, 4, 15 / 16 * GRADIENTS, 3 / 4 * GRADIENTS / 16),
        ("2xv5e:4x4", "collective-permute", GRADIENTS, 2, 2, 0, GRADIENTS),
        ("2xv5e:4x4", "all-reduce", GRADIENTS, 16, 1, 2 * 15 / 16 * GRADIENTS, 0),
    ],
)
def test_an_exchange_between_slices_goes_over_their_network_whatever_its_group(
    topology: str, kind: str, size: float, group: int, slices: int, links: float, network: float
):
    """Bytes that a chip sends, by hand; a v5e sends 200e9 a second over its links and 3.1e9 to other slices.

    Within a slice all chips first sum what they have, each an equal share of it; then each sends its share over the
    network, and last all gather the shares. A device alone in its slice sends all that it has.
    """
    found = estimate.exchange_time(
        [Collective(kind, round(size), 1, False, False, group, (), slices)], read_topology(topology)
    )
    assert found.low == pytest.approx(links / 200e9 + network / 3.1e9) and found.high == pytest.approx(2 * found.low)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_plan_knows_which_exchanges_leave_a_slice(recipe: str, capsys, monkeypatch):
    """By hand: with zero=4 a device sums its quarter of each split gradient with the device of the other slice."""
    monkeypatch.setattr(planner, "_slices_of", lambda mesh: [0] * 4 + [1] * 4)
    (found,) = plans_of([recipe, "--topology", "cpu:8", "mesh.zero=4"], capsys)
    groups = {one["group"]: one["slices"] for one in found["phases"][0]["collectives"]}
    assert groups == {2: 2, 4: 1, 8: 2}


needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler (libtpu) is not installed")


@needs_libtpu
@pytest.mark.exhaustive
@pytest.mark.parametrize("topology", ["v5e:2x2", "v4:2x2x1", "2xv5e:2x2"])
def test_the_plan_for_a_tpu_is_what_its_compiler_says(recipe: str, topology: str, compiled_memory, capsys):
    (found,) = plans_of([recipe, "--topology", topology, "model.dtype=bfloat16"], capsys)
    (phase,) = found["phases"]
    assert [phase["needed"]] == pytest.approx(compiled_memory, rel=0.05)
    assert phase["memory"]["parameters"] == 4 * found["parameters"]
    sums = [one for one in phase["collectives"] if one["kind"] == "all-reduce"]
    assert sum(one["bytes"] for one in sums) == pytest.approx(4 * found["parameters"], rel=0.05)  # each gradient once
    assert 0 < phase["mfu"][0] < phase["mfu"][1] < 1


@needs_libtpu
@pytest.mark.exhaustive
def test_the_fastest_rows_and_layout_for_a_tpu_are_found(recipe: str, capsys):
    """Two layers on four chips: each of the settings is compiled, and the first of them is the best that fits."""
    words = [recipe, "--topology", "v5e:2x2", "phases=((16, 1024, 900),)", "model.dtype=bfloat16", "--fit"]
    assert plan.main([*words, "--json"]) == EXIT_DONE
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)["fits"]
    tried = found["tried"]
    assert found["topology"] == "v5e:2x2" and len(tried) >= 2 and all(one["fits"] for one in tried)
    middles = [sum(one["step_seconds"]) for one in tried]
    assert middles == sorted(middles)
    for one in tried:
        assert one["words"] == [f"tokens_per_device={one['device_rows'] * 16}"]
        assert one["device_rows"] * one["parts"] == 256 and one["needed"] < one["memory_limit"]
        assert one["words"][0] in printed.err
    (again,) = plans_of([*words[:-1], *tried[0]["words"]], capsys)
    assert again["phases"][0]["step_seconds"] == pytest.approx(tried[0]["step_seconds"], rel=0.01)


def dry_run_of(recipe: str, folder: Path, topology: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    words = [recipe, "data=random", f"run={folder}/run", "--dry-run", f"--topology={topology}", "--json"]
    assert pretrain.main(words) == EXIT_DONE
    printed = capsys.readouterr()
    assert not (folder / "run").exists()
    assert "a step of 64 x 16" in printed.err and "the run: 900 steps" in printed.err
    assert "unknown for random data" in printed.err and "checkpoints of" in printed.err
    return json.loads(printed.out)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_a_dry_run_for_a_topology_is_its_plan_with_text_and_disk(recipe: str, tmp_path: Path, compiled_memory, capsys):
    facts = dry_run_of(recipe, tmp_path, "cpu:2", capsys)
    (found,) = facts["plans"]
    (phase,) = found["phases"]
    assert (found["devices"], phase["device_rows"]) == (2, 32)
    assert [phase["needed"]] == pytest.approx(compiled_memory, rel=0.05)
    assert facts["positions"] == 900 * 64 * 16 and facts["disk"]["checkpoint_bytes"] == found["state_bytes"]


@needs_libtpu
@pytest.mark.exhaustive
def test_a_dry_run_for_a_tpu_is_its_plan(recipe: str, tmp_path: Path, compiled_memory, capsys):
    facts = dry_run_of(recipe, tmp_path, "v5e:1x1", capsys)
    (found,) = facts["plans"]
    (phase,) = found["phases"]
    assert [phase["needed"]] == pytest.approx(compiled_memory, rel=0.05)
    assert 0 < phase["mfu"][0] < phase["mfu"][1] < 1 and phase["collectives"] == []


@needs_libtpu
@pytest.mark.exhaustive
def test_a_slice_that_no_tpu_has_is_one_line(recipe: str):
    with pytest.raises(UserError, match=r"--topology v5e:3x3: the TPU's compiler knows no such slice: 'INVALID"):
        plan.main([recipe, "--topology", "v5e:3x3"])


@needs_libtpu
@pytest.mark.exhaustive
@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x2"])
def test_a_tpu_computes_attention_in_a_kernel_for_each_pass(recipe: str, topology: str, capsys):
    words = [recipe, "--topology", topology, "model.dtype=bfloat16", "phases=((128, 32, 900),)"]
    words += ["model.head_size=64", "model.max_position_embeddings=128"]
    kernels, plain = (plans_of([*words, f"model.attention={name}"], capsys)[0]["phases"][0] for name in ("auto", "xla"))
    assert kernels["kernels"] == 2 * CONFIG.num_hidden_layers and plain["kernels"] == 0
