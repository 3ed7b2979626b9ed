"""The command line: results on stdout, messages on stderr, exit codes, one line per error."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.cells import cell_len

import bert_jax
from bert_jax.__main__ import main
from bert_jax.cli import streaming as serve
from bert_jax.cli.verbs import ALIASES, FILES, info
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.load import load, load_config
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.safetensors import write_tensors
from bert_jax.formats.sentence_transformers import Vectors, vectors_of, write_modules
from bert_jax.formats.tensorflow.google import write_google
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import sha256_of_parameters, unflatten
from tests import tiny
from tests.formats.torch import torch_files
from tests.guide import blocks_of, run_blocks
from tests.root import ROOT
from tests.run_directory import write_run

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "고양이", "a", "##s", "."]
CONFIG = tiny.CONFIG.replace(vocab_size=12, num_hidden_layers=3, max_position_embeddings=16)


@pytest.fixture(scope="module")
def params() -> dict:
    return tiny.random_params(CONFIG, 5)


@pytest.fixture(scope="module")
def run(tmp_path_factory, params) -> Path:
    config = {
        "model": CONFIG.to_json() | {"dtype": "bfloat16"},
        "phases": [[128, 8, 30]],
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "data": "/secret/path",
    }
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False, strip_accents=False)
    directory = write_run(tmp_path_factory.mktemp("runs") / "tiny", config, params, tokenizer, steps=(20, 30))
    rows = [{"kind": "train", "step": 30, "loss": 9.0}, {"kind": "eval", "step": 20, "mlm_loss": 4.5}]
    rows.append({"kind": "eval", "step": 99, "mlm_loss": 0.125})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "ev')
    return directory


@pytest.fixture(scope="module")
def export(run, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("out") / "export"
    assert main(["export", str(run), str(target)]) == 0
    return target


def output(capsys, *argv: str) -> str:
    """stdout of a command that must succeed."""
    capsys.readouterr()
    assert main(argv) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_export_writes_a_folder_and_says_where(run, tmp_path, capsys, params):
    target = tmp_path / "x"
    assert main(["export", str(run), str(target)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{target}\n"
    assert "step 30" in err
    assert sorted(path.name for path in target.iterdir()) == sorted(
        ["README.md", "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
         "tokenizer_config.json", "vocab.txt"]
    )  # fmt: skip
    assert sha256_of_parameters(load(target).params) == sha256_of_parameters(params)


def test_the_card_tells_the_training_and_no_paths(export):
    card = (export / "README.md").read_text()
    assert "| step | 30 |" in card
    assert "128, 8, 30" in card
    assert "0.001" in card
    assert "at step 20" in card  # the evaluation of step 99 came after
    assert "| masked-LM loss, nats | 4.5 | | |" in card
    assert "secret" not in card


def test_an_earlier_step_and_another_head_can_be_exported(run, tmp_path, params):
    assert main(["export", str(run), str(tmp_path / "x"), "--step", "20", "--head", "encoder"]) == 0
    loaded = load(tmp_path / "x")
    assert loaded.report.head == "encoder"
    assert loaded.report.step == 20
    np.testing.assert_array_equal(loaded.params["pooler"]["bias"], params["bert"]["pooler"]["bias"] + np.float32(1))


def test_convert_there_and_back_is_the_same_model(export, tmp_path, capsys):
    for to, name in (("tf1", "google"), ("hf", "again")):
        source = export if to == "tf1" else tmp_path / "google"
        assert main(["convert", str(source), str(tmp_path / name), "--to", to]) == 0
    told = [json.loads(output(capsys, "info", str(source), "--json")) for source in (export, tmp_path / "again")]
    assert told[0]["sha256"] == told[1]["sha256"]
    assert told[0]["tokenizer"] == told[1]["tokenizer"]
    assert (tmp_path / "google" / "bert_model.ckpt.index").is_file()
    assert (tmp_path / "google" / "vocab.txt").read_bytes() == (export / "vocab.txt").read_bytes()


def test_convert_to_vectors_takes_the_encoder_alone(run, tmp_path, capsys):
    target = tmp_path / "vectors"
    argv = ["convert", str(run), str(target), "--to", "sentence-transformers", "--pooling", "cls+normalize"]
    assert main(argv) == 0
    assert "head encoder" in capsys.readouterr().err
    assert load(target).report.head == "encoder"
    assert main(["convert", str(target), str(tmp_path / "again"), "--to", "sentence-transformers"]) == 0
    for folder in (target, tmp_path / "again"):
        found = vectors_of(folder)
        assert found and found.pooling == "cls+normalize"


@pytest.mark.slow
def test_convert_draws_a_classifier_if_asked(export, tmp_path, capsys):
    argv = ["convert", str(export), str(tmp_path / "x"), "--head", "sequence-classification", "--num-labels", "3"]
    assert main(argv) == 2
    assert "--allow-missing classifier" in capsys.readouterr().err
    assert main([*argv, "--allow-missing", "classifier"]) == 0
    assert "mlm_head" not in str(load(tmp_path / "x").params.keys())
    assert load(tmp_path / "x").config.num_labels == 3
    assert "left out, because head sequence-classification does not have them: cls." in capsys.readouterr().err


def test_convert_cuts_large_weights(export, tmp_path):
    assert main(["convert", str(export), str(tmp_path / "x"), "--max-shard-size", "1KB"]) == 0
    assert len(list((tmp_path / "x").glob("model-*.safetensors"))) > 2


def test_a_fine_tuning_run_is_one_without_its_checkpoints_too(run, export, tmp_path, capsys):
    config = json.loads((run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"task": "classify", "model": config["model"]}))
    shutil.copytree(export, tmp_path / "export")
    found = json.loads(output(capsys, "info", str(tmp_path), "--json"))
    assert (found["kind"], found["step"], found["steps"]) == ("run", 30, [])


def test_info_is_the_same_for_a_run_and_its_export(run, export, capsys, params):
    ours, theirs = (json.loads(output(capsys, "info", str(source), "--json")) for source in (run, export))
    for name in ("config", "step", "parameters", "sha256", "verified", "tree", "head"):
        assert ours[name] == theirs[name], name
    assert ours["sha256"] == sha256_of_parameters(params)
    assert ours["verified"] is True
    assert ours["step"] == 30
    assert ours["steps"] == [20, 30]
    assert (ours["kind"], theirs["kind"]) == ("run", "folder")
    assert ours["tree"]["bert/encoder/layer_2/feed_forward/intermediate/kernel"] == [16, 24]
    assert ours["parameters"] == sum(int(np.prod(shape)) for shape in ours["tree"].values())
    assert ours["tokenizer"]["tokens"] == 12
    other = json.loads(output(capsys, "info", str(run), "--json", "--step", "20"))
    assert other["sha256"] != ours["sha256"]


def test_info_verifies_the_best_model_of_a_fine_tuning_run(export, tmp_path: Path, capsys):
    shutil.copytree(export, tmp_path / "export")
    (tmp_path / "config.json").write_text('{"task": "classify", "model": {}}')
    (tmp_path / "checkpoints").mkdir()
    weights = tmp_path / "export" / "model.safetensors"
    for expected in (True, False):
        assert main(["info", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["verified"] is expected
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        weights.write_bytes(content)


def test_info_folds_layers_that_are_alike_unless_asked(run, capsys):
    folded = output(capsys, "info", str(run))
    assert "bert/encoder/layer_{0-2}/attention/query/kernel" in folded
    assert "layer_1" not in folded
    assert "30 (the run has 20, 30)" in folded
    assert "verified    yes" in folded
    full = output(capsys, "info", str(run), "--layers")
    assert full.count("attention/query/kernel") == 3


@pytest.mark.slow
def test_info_says_where_the_time_of_a_run_went(run, tmp_path: Path, capsys):
    assert json.loads(output(capsys, "info", str(run), "--json"))["goodput"] is None
    copy = shutil.copytree(run, tmp_path / "run")
    seconds = {"wall": 10_000.0, "start": 400.0, "productive": 9_000.0, "save": 500.0, "lost": 100.0, "export": 0.0}
    (copy / "goodput.json").write_text(
        json.dumps(seconds | {"starts": 2, "stopped": 600.0, "written": 1e9, "saved": {}})
    )
    told = output(capsys, "info", str(copy))
    line = "time        90.0% of 2.8 hours productive; save 5.0%, start 4.0%, lost 1.0%; 2 starts, stopped for 10 minutes between\n"
    assert line in told
    for damaged in (b"\xff", b"[]", b'{"wall": NaN, "productive": 1, "starts": 1, "stopped": 0}', b'{"wall": 0}'):
        (copy / "goodput.json").write_bytes(damaged)
        assert json.loads(output(capsys, "info", str(copy), "--json"))["goodput"] is None


@pytest.mark.parametrize("family", ["roberta", "albert", "distilbert"])
def test_info_says_the_size_in_the_same_words_for_every_family(family: str, tmp_path: Path, capsys):
    config = CONFIG.replace(model_type=family, num_hidden_groups=1 if family == "albert" else None)
    rows = parameters_of(config, "mlm")
    save_pretrained(tmp_path / "m", config, unflatten({p: np.ones(r.shape, np.float32) for p, r in rows.items()}), None)
    told = output(capsys, "info", str(tmp_path / "m"))
    assert f"mlm: {family}, 3 layers, hidden size 16, 2 heads, feed-forward 24, 12 tokens, 16 positions" in told


def test_info_says_how_a_folder_makes_vectors(export, tmp_path, capsys):
    assert json.loads(output(capsys, "info", str(export), "--json"))["vectors"] is None
    folder = shutil.copytree(export, tmp_path / "export")
    fields = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    write_modules(folder, Vectors("mean+normalize", fields=fields), 16, 12)
    told = "mean+normalize; of at most 12 tokens; compared by dot; prompt query: 'query: '; before each text by itself"
    assert f"vectors     {told}: 'query: '\n" in output(capsys, "info", str(folder))
    found = json.loads(output(capsys, "info", str(folder), "--json"))["vectors"]
    assert (found["pooling"], found["max_length"], found["similarity"]) == ("mean+normalize", 12, "dot")
    assert (found["lower_case"], found["include_prompt"]) == (False, True)
    other = shutil.copytree(export, tmp_path / "other")
    write_modules(other, Vectors("mean", lower_case=True, include_prompt=False), 16, 12)
    told = "mean; of at most 12 tokens; of texts in lower case; compared by cosine; a prompt's tokens are left out"
    assert f"vectors     {told} of the pooling\n" in output(capsys, "info", str(other))
    found = json.loads(output(capsys, "info", str(other), "--json"))["vectors"]
    assert (found["lower_case"], found["include_prompt"]) == (True, False)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "has the layers Transformer, Pooling, Dense; expected" in output(capsys, "info", str(folder))


@pytest.mark.parametrize("form", ["safetensors", "torch", "tf1"])
def test_info_names_the_first_parameter_that_is_not_finite(export, tmp_path, capsys, form: str):
    from safetensors.numpy import load_file, save_file

    assert "finite      yes" in output(capsys, "info", str(export))
    folder = shutil.copytree(export, tmp_path / "export")
    tensors = load_file(folder / "model.safetensors")
    for name in ("bert.encoder.layer.0.output.dense.bias", "bert.encoder.layer.1.output.dense.bias"):
        tensors[name][3] = -np.inf
    (folder / "model.safetensors").unlink()
    if form == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    elif form == "torch":
        torch_files.save(folder / "pytorch_model.bin", tensors)
    else:
        (folder / "config.json").unlink()
        write_google(folder, load_config(export), tensors)
    named = "bert/encoder/layer_0/feed_forward/output/bias"
    assert f"finite      NO: {named} has a NaN or an infinity" in output(capsys, "info", str(folder))
    assert json.loads(output(capsys, "info", str(folder), "--json"))["not_finite"] == named


def test_info_names_what_is_damaged(run, export, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    largest = max((copy / "checkpoints" / "30").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    found = json.loads(output(capsys, "info", str(copy), "--json"))
    assert found["step"] == 20
    assert largest.name in found["damaged"]["30"][0]
    assert "step 30 is DAMAGED" in output(capsys, "info", str(copy))

    folder = shutil.copytree(export, tmp_path / "export")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-2] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert json.loads(output(capsys, "info", str(folder), "--json"))["verified"] is False
    assert "verified    NO" in output(capsys, "info", str(folder))
    assert main(["fill-mask", str(folder), "the [MASK]"]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_fill_mask_on_a_run_and_on_its_export(run, export, capsys):
    texts = ["The [MASK] sat.", "[MASK] 고양이 [MASK]"]
    ours, theirs = (
        output(capsys, "fill-mask", str(source), *texts, "--top-k", "3", "--json") for source in (run, export)
    )
    assert ours == theirs
    first, second = (json.loads(line) for line in ours.splitlines())
    assert [set(row) for row in first] == [{"score", "token", "token_str", "sequence"}] * 3
    assert [len(mask) for mask in second] == [3, 3]
    people = output(capsys, "fill-mask", str(run), *texts, "--top-k", "2")
    assert people.count("\n  0.") + people.count("\n  1.") == 6
    assert "[MASK] 2 of 2" in people
    tables = re.findall(r"(?m)(?:^  [01]\..*\n)+", people)
    assert len(tables) == 3
    for rows, mask in zip(tables, (first, *second), strict=True):
        begins = [line.removesuffix(row["sequence"]) for line, row in zip(rows.splitlines(), mask, strict=False)]
        assert len({cell_len(begin) for begin in begins}) == 1
    assert first[0]["sequence"] in people


@pytest.mark.slow
def test_fill_mask_reads_one_text_a_line_from_stdin(export, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the [MASK]\n\na [MASK] sat\n" * 2)))
    monkeypatch.setattr(serve, "CHUNK", 3)
    assert main(["fill-mask", str(export), "--json", "--top-k", "1"]) == 2
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [isinstance(row, dict) for row in rows] == [False, True, False] * 2
    assert [rows[i]["error"].split(":")[0] for i in (1, 4)] == [f"text {n} ('') has no [MASK]" for n in (2, 5)]
    assert rows[0] == rows[3]
    assert err == "python -m bert_jax fill-mask: error: 2 of 6 texts could not be answered\n"


@pytest.mark.slow
def test_fill_mask_answers_the_texts_beside_one_that_has_no_mask(export, capsys):
    assert main(["fill-mask", str(export), "the [MASK]", "no mask", "--top-k", "1"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("the [MASK]\n  ") and out.count("\n  ") == 1
    assert "text 2 ('no mask') has no [MASK]" in err.splitlines()[0]
    assert err.splitlines()[1:] == ["python -m bert_jax fill-mask: error: 1 of 2 texts could not be answered"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fill-mask", "{export}", "no mask here"], "has no [MASK]"),
        (["fill-mask", "{export}", "the [MASK]" + " a" * 20], "shorten it"),
        (["fill-mask", "{export}", "the [MASK]", "--top-k", "0"], "--top-k 0"),
        (["fill-mask", "nowhere", "the [MASK]"], "nowhere: no such local folder"),
        (["info", "{export}", "--step", "3"], "has no steps"),
        (["info", "{tmp}"], "config.json"),
        (["export", "{run}", "{tmp}"], "{tmp}: holds 'mine.txt'"),
        (["export", "{run}", "{tmp}/x", "--step", "7"], "no step 7; there are 20; 30"),
        (["convert", "{run}", "{tmp}/x", "--head", "qa"], "--head qa: bert has pretraining"),
        (["convert", "{run}", "{tmp}/x", "--max-shard-size", "many"], "--max-shard-size many"),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "tf1", "--pooling", "mean"],
            "--pooling mean: Google's format has none",
        ),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "sentence-transformers", "--head", "mlm"],
            "--head mlm: sentence-transformers has encoders only; expected encoder or",
        ),
        (["convert", "{run}", "{tmp}/x", "--num-labels", "0"], "--num-labels 0: expected a whole number of at least 1"),
        (
            ["convert", "{run}", "{tmp}/x", "--num-labels", "3"],
            "--num-labels 3: the head pretraining has no classes; say --head sequence-classification",
        ),
        (
            ["convert", "{run}", "{tmp}/mine.txt/x"],
            "{tmp}/mine.txt/x: cannot be created, because {tmp}/mine.txt is not a folder",
        ),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "onnx", "--max-shard-size", "1GB"],
            "--max-shard-size 1GB: --to onnx writes the weights in one file; leave it out",
        ),
        (["convert", "{run}", "{tmp}/x", "--to", "tf1", "--max-shard-size", "1GB"], "--to tf1 writes the weights in"),
        (["convert", "{run}", "{tmp}/x", "--int8"], "--to hf stores float32; expected --to onnx"),
        (["convert", "{run}", "{tmp}/x", "--to", "onnx", "--score", "stsb=x"], "measure what int8 costs; add --int8"),
        (["convert", "{run}", "{tmp}/x", "--to", "onnx", "--calibrate", "a.txt"], "the ranges of int8; add --int8"),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "onnx", "--int8", "--calibrate", "{tmp}/no"],
            "{tmp}/no: no such file",
        ),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "onnx", "--int8", "--score", "stsb"],
            "--score stsb: expected TASK=FILE",
        ),
        (["convert", "{run}", "{tmp}/x", "--to", "onnx", "--int8", "--texts", "{tmp}/no"], "{tmp}/no: no such file"),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "onnx", "--int8", "--score", "rye=x"],
            "--score rye=x: 'rye' is not a task of GLUE; expected cola,",
        ),
        (
            ["convert", "{run}", "{tmp}/x", "--to", "onnx", "--int8", "--score", "stsb={tmp}/mine.txt"],
            "{tmp}/mine.txt: has no rows; expected the labelled examples of stsb",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(argv, message, run, export, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    places = {"export": export, "run": run, "tmp": tmp_path}
    capsys.readouterr()
    assert main([word.format(**places) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message.format(**places) in err
    assert err.startswith(f"python -m bert_jax {argv[0]}: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["translate"], ["info"], ["info", "x", "--steps"], ["info", "x", "--step", "a"]])
def test_wrong_arguments_are_one_line_and_exit_code_2(argv, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--help" in err


def test_results_are_utf8_whatever_the_locale_says(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setitem(info.VERBS, "info", info.VERBS["info"]._replace(run=lambda _: serve.write("日本 é")))
    assert main(["info", "my-bert"]) == 0
    assert stdout.buffer.getvalue() == "日本 é\n".encode()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_ctrl_c_is_130_and_a_closed_pipe_is_quiet(monkeypatch, capsys, export):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setitem(info.VERBS, "info", info.VERBS["info"]._replace(run=interrupt))
    assert main(["info", str(export)]) == 130
    assert capsys.readouterr().err == "interrupted\n"

    code = f"import sys; from bert_jax.__main__ import main; sys.exit(main(['info', {str(export)!r}, '--layers']))"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert result.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "closed", "code", "said"),
    [
        ("info {export} --layers", ">&-", 141, ""),
        ("--version", ">&-", 141, ""),
        ("embed {export} hello --output {out}", ">&-", 0, "wrote "),
        ("embed {export} -", "<&-", 2, "python -m bert_jax embed: error: no texts: give a text"),
    ],
)
def test_a_stream_that_the_caller_closed_is_one_without_a_reader(verb, closed, code, said, export, tmp_path):
    command = f"{sys.executable} -m bert_jax {verb.format(export=export, out=tmp_path / 'v.npy')} {closed}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr if said else not result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_help_has_examples_and_loads_nothing_heavy():
    for verb in (*FILES, *ALIASES):
        code = f"""
import sys
from bert_jax.__main__ import main
try:
    main([{verb!r}, "--help"])
except SystemExit as stop:
    assert stop.code == 0
heavy = {{"jax", "numpy", "flax", "tokenizers", "safetensors"}} & set(sys.modules)
assert not heavy, heavy
"""
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert f"python -m bert_jax {verb}" in result.stdout.split("examples:")[1]


@pytest.mark.slow
@pytest.mark.parity
def test_the_guide_runs_as_written(run, tmp_path, monkeypatch):
    for reference in ("torch", "transformers"):
        pytest.importorskip(reference)
    blocks = blocks_of("docs/export.md")
    assert len(blocks) >= 7
    shutil.copytree(run, tmp_path / "runs" / "demo")
    (tmp_path / "sentences.txt").write_text("A cat sat.\nIt was late, and the light was low.\n")
    monkeypatch.chdir(tmp_path)
    names = run_blocks(blocks)
    assert names["again"].report.fresh
    assert {"my-bert", "my-encoder", "my-copy", "my-onnx"} <= set(os.listdir(tmp_path))


def test_the_version_is_that_of_the_project_and_names_what_it_runs_on(capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert main(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"bert-jax {project['version']} (jax {jax.__version__}, flax ")
    assert bert_jax.__version__ == project["version"]


def test_help_names_the_program_as_it_was_called(capsys, monkeypatch):
    for called, shown in (
        ("/usr/bin/bert-jax", "usage: bert-jax "),
        ("bert_jax/__main__.py", "usage: python -m bert_jax "),
    ):
        monkeypatch.setattr("sys.argv", [called])
        assert main(["--help"]) == 0
        assert capsys.readouterr().out.startswith(shown)


def test_a_full_disk_is_one_line_and_exit_code_2(export, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "new/model.safetensors")

    monkeypatch.setattr("bert_jax.formats.write.write_weights", full)
    assert main(["convert", str(export), str(export.parent / "new")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "No space left on device" in err


def test_info_on_a_file_of_unknown_tensors_says_what_is_missing(export, tmp_path, capsys):
    folder = Path(shutil.copytree(export, tmp_path / "strange"))
    write_tensors(folder / "model.safetensors", {"other\x1b[2J.weight": np.zeros((2, 2), np.float32)})
    out = output(capsys, "info", str(folder))
    assert "\nmissing     bert/embeddings/word_embeddings, " in out and r"other\x1b[2J.weight" in out
