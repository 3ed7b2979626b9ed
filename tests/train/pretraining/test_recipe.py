"""The config of a run: overrides with the fields' own types, errors that say what would be right, JSON."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.model.start import StartConfig
from bert_jax.training.optimizer import OptimizerConfig
from tests.root import ROOT
from train import prepare
from train.finetuning.recipe import FinetuneConfig
from train.pretraining.mixture import open_data
from train.pretraining.recipe import Phase, PretrainConfig, TextConfig
from train.pretraining.text import prepare_options
from train.run.config import differing_fields, load_recipe, override, to_json
from train.run.directory import RunDirectory
from train.run.launch import parse

SHORT = OptimizerConfig(warmup_steps=5)


@pytest.mark.parametrize(
    ("path", "text", "read"),
    [
        ("optimizer.learning_rate", "2e-4", lambda c: c.optimizer.learning_rate == 2e-4),
        ("model.num_hidden_layers", "6", lambda c: c.model.num_hidden_layers == 6),
        ("model.dtype", "bfloat16", lambda c: c.model.dtype == "bfloat16"),
        ("init_optimizer", "true", lambda c: c.init_optimizer is True),
        ("export_at_end", "false", lambda c: c.export_at_end is False),
        ("eval_every", "1_000", lambda c: c.eval_every == 1000),
        ("data", "none", lambda c: c.data is None),
        ("data", "somewhere", lambda c: c.data == "somewhere"),
        ("masking.whole_word", "true", lambda c: c.masking.whole_word is True),
        ("masking.strategy", "roberta", lambda c: c.masking.strategy == "roberta"),
        ("model.classifier_dropout", "0.2", lambda c: c.model.classifier_dropout == 0.2),
        ("stop_after", "none", lambda c: c.stop_after is None),
        ("hopeless_after", "9007199254740993", lambda c: c.hopeless_after == 2**53 + 1),
        ("hopeless_after", "1e6", lambda c: c.hopeless_after == 1_000_000),
        ("packed", "((128, 2.5),)", lambda c: c.packed == ((128, 2.5),)),
    ],
)
def test_an_override_reads_the_value_as_the_fields_own_type(path, text, read):
    assert read(override(PretrainConfig(), {path: text}))


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("optimizer.learnign_rate", "1", ("is not a field", "optimizer.learning_rate")),
        ("optimizer.lr", "1", ("is not a field", "did you mean optimizer.learning_rate")),
        ("learning_rate", "1", ("is not a field", "optimizer.learning_rate")),
        ("max_steps", "9", ("is not a field", "did you mean phases, each of which is (LENGTH, BATCH, STEPS)?")),
        ("mlm_probability", "0.2", ("is not a field", "did you mean masking.probability?")),
        ("output_dir", "a", ("is not a field", "did you mean run?")),
        ("xyzzy", "1", ("is not a field", "python -m train.pretrain CONFIG.py --fields lists them")),
        ("model.num_attention_heads", "5", ("model.hidden_size=768: expected a multiple of num_attention_heads=5",)),
        ("optimizer.b1", "7", ("optimizer.b1",)),
        ("optimizer.learning_rate", "fast", ("optimizer.learning_rate", "'fast'", "number")),
        ("eval_every", "2.5", ("eval_every", "'2.5'", "whole number")),
        ("eval_every", "9" * 400, ("eval_every", "whole number")),
        ("eval_every", "9" * 5000, ("eval_every", "whole number")),
        ("init_optimizer", "maybe", ("init_optimizer", "'maybe'", "true or false")),
        ("masking.strategy", "robrta", ("masking.strategy", "'robrta'", "roberta")),
        ("phases", "128", ("phases",)),
        ("phases", "((128, 0, 9),)", ("phases", "at least 1")),
        ("phases", "((128, 8, 9.0),)", ("phases", "whole numbers of at least 1")),
        ("phases", "((1024, 8, 9),)", ("phases", "max_position_embeddings")),
        ("accumulation", "3", ("accumulation", "expected a divisor of the batch")),
        ("keep", "1", ("keep", "at least 2")),
        ("model", "tiny", ("model", "one by one")),
        ("packed", "5", ("packed: found 5; expected tuple[tuple[int, float], ...]",)),
        ("packed", "(1, 2)", ("packed: found (1, 2); expected",)),
        ("data_shares", "0.5", ("data_shares: found 0.5; expected tuple[tuple[float, ...], ...]",)),
        ("first_rows", "((),)", ("first_rows: found (); expected a length and, for each directory",)),
        ("first_rows", "((128,-5),)", ("first_rows: found (128, -5); expected a length and, for each directory",)),
        ("first_rows", "(5,)", ("first_rows: found (5,); expected tuple[tuple[int, ...], ...]",)),
        ("seed", "-5", ("seed: found -5; expected 0 to 4294967295",)),
        ("seed", "99999999999999999999", ("seed: found 99999999999999999999; expected 0 to 4294967295",)),
    ],
)
def test_a_wrong_override_says_what_would_be_right(path, text, words):
    with pytest.raises(UserError) as error:
        override(PretrainConfig(optimizer=SHORT), {path: text})
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_model_that_exists_is_not_drawn_anew():
    wired = {"start.range": "width", "start.positions": "fourier", "start.heads": "((0, -1),)"}
    config = override(PretrainConfig(optimizer=SHORT), wired)
    assert override(config, {"init": "other"}).start == StartConfig()  # what a config file says gives way, as its model
    with pytest.raises(
        UserError, match=r"start\.range: .* init=other .* start\.range=model start\.positions=random"
    ) as error:
        override(config, wired | {"init": "other"})
    words = dict(word.split("=", 1) for word in shlex.split(str(error.value).partition("or say ")[2]))
    assert override(config, words | {"init": "other"}).start == StartConfig()


def test_the_schedule_spans_all_phases():
    config = PretrainConfig(optimizer=SHORT, phases=(Phase(128, 8, 90), Phase(512, 8, 10)))
    assert config.optimizer.total_steps == config.total_steps == 100
    assert config.phase_at(0) == (0, config.phases[0])
    assert config.phase_at(89) == (0, config.phases[0])
    assert config.phase_at(90) == (90, config.phases[1])
    with pytest.raises(ValueError, match="beyond"):
        config.phase_at(100)


@pytest.mark.parametrize("order", [1, -1])
def test_overrides_are_checked_together_whatever_their_order(order):
    words = [("phases", "((64, 8, 10), (128, 4, 5))"), ("optimizer.warmup_steps", "3")]
    config = override(PretrainConfig(), dict(words[::order]))
    assert config.phases == (Phase(64, 8, 10), Phase(128, 4, 5))
    assert (config.optimizer.total_steps, config.optimizer.warmup_steps) == (15, 3)


def test_the_default_warm_up_is_a_share_of_any_run():
    assert PretrainConfig().optimizer.warm_up == 10_000  # Google's, of its million steps
    assert override(PretrainConfig(), {"phases": "((64, 8, 10),)"}).optimizer.warm_up == 0
    shares = {"phases": "((64, 8, 200), (128, 8, 50))", "optimizer.warmup_share": "0.1"}
    config = override(PretrainConfig(), shares)
    assert config.optimizer.warm_up == config.optimizer.settled().warmup_steps == 25
    with pytest.raises(UserError, match=r"warmup_share is 0.1; expected .* warmup_steps=none") as error:
        override(PretrainConfig(optimizer=SHORT), shares)
    assert "\n" not in str(error.value)
    assert override(PretrainConfig(optimizer=SHORT), shares | {"optimizer.warmup_steps": "none"}) == config
    assert override(config, {"optimizer.warmup_steps": "30"}).optimizer.warm_up == 30  # in place of the recipe's share
    with pytest.raises(UserError, match=r"warmup_share is 0.1; expected no share with warmup_steps=30"):
        override(config, {"optimizer.warmup_steps": "30", "optimizer.warmup_share": "0.1"})


def test_json_holds_every_field_and_tells_configs_apart():
    one = PretrainConfig()
    other = override(one, {"optimizer.learning_rate": "3e-4", "seed": "7"})
    assert json.loads(json.dumps(to_json(one))) == to_json(one)
    assert set(to_json(one)) == {f.name for f in dataclasses.fields(PretrainConfig)}
    assert differing_fields(to_json(one), to_json(other)) == ["optimizer.learning_rate", "seed"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_every_recipe_loads_and_says_its_command_hardware_and_score(path: Path):
    kind = FinetuneConfig if path.stem.startswith("finetune") else PretrainConfig
    assert isinstance(load_recipe(str(path), kind), kind)
    for word in ("Command:", "Hardware:", "Time:", "Expected:"):
        assert word in path.read_text(), word


# Learning rate, batch, epochs, warm-up, length: https://arxiv.org/abs/1810.04805, sections 4 and 5.3, appendix A.3, and
# google-research/bert's run_classifier.py and run_squad.py; RoBERTa's of https://arxiv.org/abs/1907.11692, table 10.
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("finetune", (3e-5, 32, 3, 0.1, 128)),
        ("finetune_squad", (5e-5, 32, 3, 0.1, 384)),
        ("finetune_swag", (2e-5, 16, 3, 0.1, 128)),
        ("finetune_ner", (5e-5, 32, 4, 0.1, 256)),
        ("finetune_roberta", (2e-5, 16, 10, 0.06, 512)),
    ],
)
def test_the_recipes_of_fine_tuning_have_the_published_numbers(name: str, numbers: tuple):
    config = load_recipe(f"configs/{name}.py", FinetuneConfig)
    adam = config.optimizer
    assert (adam.learning_rate, config.batch, config.epochs, config.warmup, config.max_length) == numbers
    assert adam.bias_correction and (adam.schedule, adam.end_learning_rate) == ("linear", 0.0)
    own = (0.9, 0.98, 1e-6, 0.1, 0.0) if name == "finetune_roberta" else (0.9, 0.999, 1e-6, 0.01, 1.0)
    assert (adam.b1, adam.b2, adam.eps, adam.weight_decay, adam.clip_norm) == own
    steps = config.for_examples(1000).optimizer
    assert steps.total_steps == -(-1000 // config.batch) * config.epochs
    assert steps.warmup_steps == round(config.warmup * steps.total_steps)


def test_random_tokens_have_the_pieces_that_the_text_would():
    for path, text, size in (
        ("vocab_size", "8000", 8000),
        ("vocab", "google-bert/bert-base-uncased", 30_522),
        ("objective", "none", 30_000),
    ):
        config = override(PretrainConfig(data="random"), {f"text_options.{path}": text})
        assert open_data(config).vocab_size == size
        assert open_data(override(config, {"model.vocab_size": "50"})).vocab_size == 50


def test_every_option_of_the_text_reaches_the_preparation(tmp_path):
    """Also one that the config gets later: a field that nothing reads would be ignored in silence."""
    values = {
        "format": "jsonl", "field": "body", "unwrap": "true", "documents": "files", "dedupe": "near",
        "sentences": "plain", "language": "de", "vocab_size": "90", "character_coverage": "0.9", "cased": "true",
        "strip_accents": "true", "objective": "none", "rows": "sentences", "twice": "0.5", "short_seq_prob": "0.2",
        "dupe_factor": "3", "held_out": "0.2", "workers": "1",
    }  # fmt: skip
    assert {*values, "vocab"} == {field.name for field in dataclasses.fields(TextConfig)}
    config = override(PretrainConfig(text="a.txt"), {f"text_options.{name}": value for name, value in values.items()})
    options = prepare_options(config, run := RunDirectory(str(tmp_path)))
    assert all(getattr(options, name) == getattr(config.text_options, name) for name in values)
    assert prepare_options(override(PretrainConfig(), {"text_options.vocab": "old"}), run).vocab == "old"


def test_only_a_file_that_is_named_is_text_within_the_run(tmp_path):
    run = RunDirectory(str(tmp_path / "run"))
    for text, exclude in (
        (tmp_path, tmp_path / "run"),
        (f"{tmp_path}/run/own.jsonl", None),
        (f"{tmp_path}/run/*.txt", None),
    ):
        assert prepare_options(PretrainConfig(text=str(text)), run).exclude == exclude


def test_the_line_of_a_config_file_is_named_whatever_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(_CONFIG.format("log_every='4'"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"mine\.py, line 3: raised TypeError"):
        load_recipe("mine.py", PretrainConfig)


def test_a_missing_recipe_lists_those_there_are():
    with pytest.raises(UserError, match=r"bert_base\.py"):
        load_recipe("configs/nothing.py", PretrainConfig)


def test_the_command_line_is_a_config_and_words():
    launch = parse(
        ["configs/demo.py", "run=runs/x", "seed=3", "allow_change=seed,mesh", "--dry-run"], "", PretrainConfig
    )
    assert (launch.run, launch.allow_change, launch.dry_run) == ("runs/x", ("seed", "mesh"), True)
    assert (launch.as_json, parse(["configs/demo.py", "--json"], "", PretrainConfig).as_json) == (False, True)
    assert (launch.config.seed, launch.given) == (3, {"seed"})


def test_a_tilde_at_the_beginning_of_a_value_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/somebody")
    launch = parse(["configs/demo.py", "run=~/runs/x", "data=~/data"], "", PretrainConfig)
    assert (launch.run, launch.config.data) == ("/somebody/runs/x", "/somebody/data")
    assert prepare.parser().parse_args(["--output=~/data"]).output == Path("/somebody/data")


@pytest.mark.parametrize(
    "argv",
    [
        ["seed=3"],
        ["configs/demo.py", "seed"],
        ["configs/demo.py", "--fast"],
        ["configs/demo.py", "allow_change=sed"],
        ["configs/demo.py", "allow_change=seed,optimizer.learn"],
    ],
)
def test_a_malformed_command_line_is_one_line(argv):
    with pytest.raises(UserError) as error:
        parse(argv, "", PretrainConfig)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["nan", "1e999", "-inf", "1_0e400"])
def test_a_number_that_is_not_finite_is_refused(text):
    for field in ("seed", "optimizer.learning_rate"):
        with pytest.raises(UserError, match=rf"{field}: found '{text}'; expected a "):
            override(PretrainConfig(), {field: text})


def test_a_config_file_of_another_kind_is_one_line(tmp_path):
    (tmp_path / "tiny.txt").write_text("def get_config(): ...")
    with pytest.raises(UserError, match=r"tiny\.txt: a config file is Python, so its name ends in \.py"):
        load_recipe(str(tmp_path / "tiny.txt"), PretrainConfig)


_CONFIG = "from train.pretraining.recipe import PretrainConfig\ndef get_config():\n    return PretrainConfig({})\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def get_config(:\n", ", line 1: is not Python: 'invalid syntax'"),
        ('x = 1\n"""a docstring without an end' + "x" * 100_000, "is not Python: 'unterminated triple-quoted string"),
        ("x = " + "(" * 100_000, "is not Python: 'too many nested parentheses'"),
        ("\0", "null bytes"),
        ("get_config = 3\n", r"has no get_config\(\)"),
        ("import nowhere_at_all\n", ", line 1: raised ModuleNotFoundError"),
        ("def get_config():\n    x = 1\n    return {}['\\n' * 9999]\n", ", line 3: raised KeyError"),
        ("def get_config():\n    return get_config()\n", ", line 2: raised RecursionError"),
        ("raise SystemExit\n", ", line 1: raised SystemExit"),
        ("def get_config():\n    return None\n", "is a NoneType; this program takes a PretrainConfig"),
        (_CONFIG.format("sead=3"), ", line 3: raised TypeError.*sead"),
        (_CONFIG.format("phases=5"), "phases: found 5; expected "),
        (_CONFIG.format("seed='3'"), "seed: found '3'; expected int"),
        (_CONFIG.format("seed=True"), "seed: found True; expected int"),
        (_CONFIG.format("text=['a.txt']"), r"text: found \['a.txt'\]; expected str"),
        (_CONFIG.format("model=None"), "raised AttributeError"),
        (_CONFIG.format("data_temperature='x' * 100_000"), "raised TypeError"),
        (_CONFIG.format("keep=1"), "keep: found 1; at least 2"),
        ("from bert_jax.training.optimizer import OptimizerConfig\n" + _CONFIG.format(
            "optimizer=OptimizerConfig(name='sgd')"), "sgd"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) > 60 else value,
)  # fmt: skip
def test_a_broken_config_file_is_one_line_that_says_where(tmp_path, text, says):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        load_recipe(str(path), PretrainConfig)
    assert "\n" not in str(error.value) and len(str(error.value)) < len(str(path)) + 300
