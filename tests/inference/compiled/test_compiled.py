"""Compiled folders: the pipeline's numbers without its code, for three platforms; changed files are refused."""

import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main
from bert_jax.cli.verbs import compiled as compiled_verb
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.compiled import export as compiled_export
from bert_jax.inference.compiled import run as compiled_run
from bert_jax.inference.compiled.export import TASKS, _refuse_foreign, export_compiled
from bert_jax.inference.compiled.facts import PROGRAMS, Facts, _facts_of, program_name, read_facts, sums_of, write_facts
from bert_jax.inference.compiled.run import load_compiled, read_programs
from bert_jax.inference.tasks.fill_mask import FillMask
from bert_jax.inference.tasks.task_model import TaskModel
from tests.guide import blocks_of, run_blocks
from tests.inference.tasks.task_folders import TAGS, export
from tests.root import ROOT

HEADS = {
    "embed": "pretraining",
    "text-classification": "sequence-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "fill-mask": "mlm",
}
SHAPES = ((2, 8), (2, 16))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """task -> (the model's folder, the compiled one), made when first asked for."""
    root, done = tmp_path_factory.mktemp("compiled"), {}

    def of(task: str) -> tuple[Path, Path]:
        if task not in done:
            fields: dict[str, Any] = {"labels": TAGS} if task == "token-classification" else {}
            source = export(root / task, HEADS[task], **fields)
            options: dict[str, Any] = {"masks": 2, "top_k": 3} if task == "fill-mask" else {}
            written = export_compiled(
                source, root / f"compiled-{task}", task, lengths=(8, 16), batch_sizes=(2,), **options
            )
            done[task] = source, written
        return done[task]

    return of


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """A folder of `embed` that may be damaged."""
    return Path(shutil.copytree(made("embed")[1], tmp_path / "copy"))


def batch_of(shape: tuple[int, int], masks: int | None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random ids, some of them padding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, shape[1] + 1, shape[0])
    real = (np.arange(shape[1]) < lengths[:, None]).astype(np.int32)
    batch = {
        "input_ids": rng.integers(1, 15, shape, dtype=np.int32) * real,
        "attention_mask": real,
        "token_type_ids": rng.integers(0, 2, shape, dtype=np.int32) * real,
    }
    if masks is not None:
        batch["mlm_positions"] = rng.integers(0, lengths[:, None], (shape[0], masks)).astype(np.int32)
    return batch


def by_the_pipeline(model: TaskModel, batch: dict[str, np.ndarray], **options: Any) -> tuple[np.ndarray, ...]:
    """The results of the pipeline's own function, compiled for one device."""
    params = jax.device_put(jax.device_get(model.engine.programs.params), jax.devices()[0])
    return jax.device_get(jax.jit(lambda params, batch: model.apply(params, batch, **options))(params, batch))


def change(folder: Path, **fields: Any) -> None:
    """Changes facts and writes the right checksum."""
    write_facts(folder, replace(read_facts(folder), **fields))


def change_sums(folder: Path) -> None:
    """Writes the checksums of the files as they are now, so that they count as undamaged."""
    fields = json.loads((folder / "compiled.json").read_text())
    facts = _facts_of({name: value for name, value in fields.items() if name not in ("schema", "sha256")})
    write_facts(folder, replace(facts, files=sums_of(folder)))


def refused(capsys, folder: Path, *words: str) -> None:
    """`run-compiled` says why in one line and exits with 2."""
    capsys.readouterr()
    assert main(["run-compiled", str(folder), str(Path(__file__))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.slow
@pytest.mark.parametrize("task", HEADS)
def test_outputs_are_the_pipeline_s_bit_for_bit(made, task):
    source, written = made(task)
    compiled, model = load_compiled(written), TASKS[task](source)
    assert compiled.shapes == SHAPES
    fill = task == "fill-mask"
    for shape in SHAPES if task == "embed" else SHAPES[:1]:
        batch = batch_of(shape, 2 if fill else None)
        found = compiled(batch)
        expected = by_the_pipeline(model, batch, **({"top_k": 3} if fill else {}))
        assert list(found) == [spec.name for spec in compiled.facts.outputs]
        for name, array in zip(found, expected, strict=True):
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_programs_stay_in_the_process_that_loaded_them(made, monkeypatch):
    compiled = load_compiled(made("embed")[1])
    for leave in (pickle.dumps, deepcopy):
        with pytest.raises(TypeError, match="call load_compiled in each process"):
            leave(compiled)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (compiled.compile_all, lambda: compiled.run([[2, 3]]), lambda: load_compiled(compiled.folder)):
        with pytest.raises(RuntimeError, match=r"before os\.fork, and would hang in this process"):
            use()


@pytest.mark.slow
def test_rows_of_any_length_are_padded_and_what_was_padded_is_cut_off(made):
    source, written = made("token-classification")
    compiled, model = load_compiled(written), TASKS["token-classification"](source)
    rows = [[2, 5, 3], [2, 5, 6, 7, 8, 9, 10, 11, 12, 3], [2, 6, 3], [2, 3], {"input_ids": np.array([2, 8, 9, 3])}]
    found = compiled.run(rows)
    for row, result in zip(rows, found, strict=True):
        ids = np.array([row["input_ids"] if isinstance(row, dict) else row], np.int32)
        batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        np.testing.assert_allclose(result["logits"], by_the_pipeline(model, batch)[0][0], atol=2e-6)
    assert [result["logits"].shape for result in found] == [(n, len(TAGS)) for n in (3, 10, 3, 2, 4)]
    assert compiled.run([]) == []


@pytest.mark.slow
def test_masks_are_found_in_rows_of_the_folder_s_own_tokenizer_and_filled_as_by_the_pipeline(tmp_path):
    """RoBERTa's, which pads with 1 and says <mask>."""
    source = export(tmp_path, "mlm", "roberta")
    written = export_compiled(source, tmp_path / "c", "fill-mask", lengths=[32], batch_sizes=[1], masks=2, top_k=4)
    tokenizer, predict = Tokenizer.load(written), FillMask(source)
    assert tokenizer.fingerprint == read_facts(written).tokenizer == predict.tokenizer.fingerprint
    texts = ["hello <mask> world", "<mask> and <mask>"]
    found = load_compiled(written).run([tokenizer([text])["input_ids"][0] for text in texts])
    for one, expected in zip(found, predict(texts, top_k=4), strict=True):
        masks = [expected] if isinstance(expected[0], dict) else expected
        assert one["token_ids"].tolist() == [[row["token"] for row in mask] for mask in masks]
        np.testing.assert_allclose(one["probabilities"], [[row["score"] for row in mask] for mask in masks], rtol=1e-5)


@pytest.mark.parametrize("task", ["embed", *(pytest.param(task, marks=pytest.mark.slow) for task in list(HEADS)[1:])])
def test_one_program_is_lowered_for_three_platforms(made, task):
    """With operations of StableHLO alone: a custom call would need a library of the platform, and its promise."""
    _, written = made(task)
    programs = read_programs(written, read_facts(written))
    assert list(programs) == list(SHAPES)
    for program in programs.values():
        assert tuple(program.platforms) == read_facts(written).platforms == ("cpu", "cuda", "tpu")
        assert program.nr_devices == 1
        assert "custom_call" not in program.mlir_module()


@pytest.mark.slow
def test_programs_do_not_tell_where_or_by_whom_they_were_made(made, tmp_path):
    source, written = made("embed")

    def again() -> Path:
        return export_compiled(source, tmp_path / "again", "embed", lengths=(8, 16), batch_sizes=(2,))

    assert (again() / "programs.zip").read_bytes() == (written / "programs.zip").read_bytes()
    with zipfile.ZipFile(written / "programs.zip") as file:
        for name in file.namelist():
            assert not re.search(rb"\.py\b|" + re.escape(os.fsencode(ROOT)), file.read(name))
    assert jax.config.values["jax_include_full_tracebacks_in_locations"]


ALONE = """
import json, re, sys
sys.modules["flax"] = sys.modules["bert_jax"] = None  # an import of either fails
code = re.search(r"^```python\\n(.*?)^```", open("README.md").read(), re.DOTALL | re.MULTILINE)[1]
names = {}
exec(code.replace("print(run(weights, batch))", ""), names)
given = dict(np.load(sys.argv[1])) if (np := names["np"]) else None
found = {"alone": names["run"](names["weights"], given)["embeddings"]}
del sys.modules["flax"], sys.modules["bert_jax"]
from bert_jax.inference.compiled.run import load_compiled
found["loaded"] = load_compiled(".")(given)["embeddings"]
assert not [name for name in sys.modules if name.startswith(("flax", "bert_jax.model", "optax", "orbax"))]
np.savez(sys.argv[2], **found)
"""


@pytest.mark.slow
def test_another_process_gives_the_same_numbers_without_flax_and_the_model_s_code(made, tmp_path):
    """And without any of bert_jax, by the lines in the folder's README and safetensors' own reader."""
    _, written = made("embed")
    batch = batch_of(SHAPES[0], None)
    np.savez(tmp_path / "in.npz", **batch)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, cwd=written, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    expected = load_compiled(written)(batch)["embeddings"]
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["alone"], expected)
        np.testing.assert_array_equal(found["loaded"], expected)


def test_a_changed_byte_in_any_file_is_refused(copy, capsys):
    names = sorted(path.name for path in copy.iterdir())
    assert {"compiled.json", "programs.zip", "weights.safetensors", "tokenizer.json", "README.md"} <= set(names)
    for name in names:
        path = copy / name
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            refused(capsys, copy, name)
        path.unlink()
        refused(capsys, copy, name)
        path.write_bytes(whole)
    load_compiled(copy)


def test_another_platform_is_refused(made, copy, tmp_path, capsys):
    change(copy, platforms=("cuda", "tpu"))
    refused(capsys, copy, "for cuda, tpu, but JAX runs on cpu here")
    for_tpu = export_compiled(
        made("embed")[0], tmp_path / "tpu", "embed", lengths=[8], batch_sizes=[1], platforms=["tpu"]
    )
    refused(capsys, for_tpu, "for tpu, but JAX runs on cpu here")
    change(for_tpu, platforms=("cpu",))
    refused(capsys, for_tpu, "1x8.jaxexport has platforms ('tpu',)")


def test_another_version_is_refused(copy, capsys):
    newest = jax_export.maximum_supported_calling_convention_version
    oldest = jax_export.minimum_supported_calling_convention_version
    change(copy, calling_convention_version=newest + 1)
    refused(capsys, copy, f"calling convention {newest + 1}", "install a newer jax")
    change(copy, calling_convention_version=oldest - 1)
    refused(capsys, copy, f"calling convention {oldest - 1}", "export again")
    fields = json.loads((copy / "compiled.json").read_text())
    for schema in (2, None):
        (copy / "compiled.json").write_text(json.dumps(fields | {"schema": schema}))
        refused(capsys, copy, f"schema {schema}")
    for other in ("[]", "{", "[" * 100_000, '{"schema": 1}'):
        (copy / "compiled.json").write_text(other)
        refused(capsys, copy, "compiled.json")


def test_a_program_of_something_else_is_refused(copy):
    other = jax_export.export(jax.jit(lambda x: x))(np.zeros(2, np.float32)).serialize()
    program = read_programs(copy, read_facts(copy))[2, 8]
    unread = replace(program, mlir_module_serialized=program.mlir_module_serialized[:100]).serialize()
    for blob in (bytes(other), b"no program", bytes(unread)):
        with zipfile.ZipFile(copy / "programs.zip", "w") as file:
            for name in ("2x8.jaxexport", "2x16.jaxexport"):
                file.writestr(name, blob)
        change_sums(copy)
        with pytest.raises(UserError, match=r"2x8\.jaxexport cannot be read \(made with jax"):
            load_compiled(copy)
    (copy / "programs.zip").write_bytes(b"no zip")
    change_sums(copy)
    with pytest.raises(UserError, match=r"programs\.zip: does not have the programs"):
        load_compiled(copy)


def test_weights_that_the_programs_do_not_take_are_refused(copy):
    path = copy / "weights.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    for other in (weights | {name: weights[name][:1]}, {k: v for k, v in weights.items() if k != name}):
        save_file(other, path)
        change_sums(copy)
        with pytest.raises(UserError, match=f"{name} does not match the programs"):
            load_compiled(copy)


def test_facts_that_are_not_the_programs_are_refused(copy, capsys):
    """With a right checksum over wrong facts."""
    facts = read_facts(copy)
    (embeddings,) = facts.outputs
    change(copy, outputs=(embeddings._replace(axes=("rows", 9)),))
    refused(capsys, copy, "2x8.jaxexport", "outputs")
    change(copy, outputs=facts.outputs, inputs=facts.inputs[:2])
    refused(capsys, copy, "2x8.jaxexport", "inputs")
    change(copy, inputs=facts.inputs, shapes=((4, 8),))
    refused(capsys, copy, "4x8.jaxexport")
    change(copy, shapes=facts.shapes, files=facts.files | {"../other": "0"})
    refused(capsys, copy, "compiled.json")
    change_sum = json.loads((copy / "compiled.json").read_text())
    (copy / "compiled.json").write_text(json.dumps(change_sum | {"labels": ["a"]}))
    refused(capsys, copy, "compiled.json", "its sha256 does not match")
    refused(capsys, copy / "none", "no such folder")
    refused(capsys, ROOT / "docs", "expected a folder of export-compiled")


@pytest.mark.slow
def test_batches_that_do_not_fit_are_refused_before_anything_is_compiled(made):
    compiled = load_compiled(made("fill-mask")[1])
    batch = batch_of((2, 8), 2)
    ids = batch["input_ids"]
    for wrong, why in (
        (batch | {"input_ids": ids[:1]}, r"input_ids has shape \[1, 8\]; there are programs for \[2, 8\], \[2, 16\]"),
        (batch | {"attention_mask": ids[:, :4]}, r"attention_mask has shape \[2, 4\]; expected \[2, 8\]"),
        (batch | {"input_ids": ids.astype(np.int64)}, "input_ids is of int64; expected a NumPy array of int32"),
        (batch | {"token_type_ids": ids.tolist()}, "token_type_ids is list"),
        (batch | {"input_ids": ids + 50}, r"input_ids: \d+ is out of range; expected 0 to 20"),
        (batch | {"mlm_positions": batch["mlm_positions"] - 9}, "mlm_positions: -9 is out of range; expected 0 to 7"),
        (batch | {"mlm_positions": batch["mlm_positions"] + 8}, r"mlm_positions: \d+ is out of range; expected 0 to 7"),
        ({"input_ids": ids}, "batch has input_ids; expected input_ids, attention_mask, token_type_ids, mlm_positions"),
    ):
        with pytest.raises(UserError, match=why):
            compiled(wrong)
    for row, why in (
        ([], "row 2 has 0 tokens; the programs take 1 to 16"),
        ([4] * 17, "row 2 has 17 tokens"),
        ([2, 3], "row 2 has 0 masks; the programs take 1 to 2"),
        ([4, 4, 4], "row 2 has 3 masks"),
        ([4, 2**32], "row 2, input_ids: 4294967296 is out of range"),
        ([4, 0.5], "row 2, input_ids: expected a list of whole numbers"),
        (
            {"input_ids": [4, 5], "token_type_ids": [0]},
            "row 2: token_type_ids has 1 numbers; expected 2, as in input_ids",
        ),
        ({"input_ids": [4, 5], "mlm_positions": [2]}, "row 2, mlm_positions: 2 is out of range; expected 0 to 1"),
        ({"input_ids": [4, 5], "position_ids": [0, 1]}, "row 2: has 'position_ids'"),
    ):
        with pytest.raises(UserError, match=why):
            compiled.run([[4], row])
    assert not compiled._compiled


def test_existing_files_are_never_overwritten(made, tmp_path):
    source, _ = made("embed")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    former = shutil.copytree(source, tmp_path / "former")  # an export of ours, which `export` would replace
    before = {path: path.read_bytes() for path in former.iterdir()}
    for name in ("file", "empty", "link", "former"):
        with pytest.raises(UserError, match=f"{name}: already exists"):
            export_compiled(source, tmp_path / name, "embed", lengths=[8], batch_sizes=[1])
    assert {path: path.read_bytes() for path in former.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "former", "link"]


def test_an_export_is_replaced_only_if_nothing_in_it_has_changed(made, tmp_path):
    source, written = made("embed")
    options = {"task": "embed", "lengths": [8], "batch_sizes": [1], "overwrite": True}
    changed = shutil.copytree(written, tmp_path / "changed")
    (changed / "README.md").write_text("mine")
    for folder, line in (
        (changed, r"README\.md: damaged or changed, .*; only an unchanged export is replaced"),
        (source, "already exists and is no folder of export-compiled"),
    ):
        with pytest.raises(UserError, match=line):
            export_compiled(source, folder, **options)
    assert (changed / "README.md").read_text() == "mine"
    shutil.copy(written / "README.md", changed)
    (changed / ".DS_Store").touch()  # of the Finder of macOS
    _refuse_foreign(changed)
    (changed / "more.txt").touch()
    with pytest.raises(UserError, match=r"more\.txt: is not of that export; only an unchanged export is replaced"):
        export_compiled(source, changed, **options)


def test_invalid_arguments_are_reported_and_write_nothing(made, tmp_path):
    source, _ = made("embed")
    for options, why in (
        ({"task": "multiple-choice"}, "task 'multiple-choice': expected one of embed"),
        ({"lengths": [35]}, "lengths: 35; expected 2 to 34 tokens"),
        ({"lengths": []}, "at least one of each"),
        ({"batch_sizes": [0]}, "batch_sizes: 0; expected at least 1"),
        ({"platforms": ["gpu"]}, "platforms=gpu: expected some of cpu, cuda, rocm, tpu"),
        ({"platforms": []}, "expected some of"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"task": "fill-mask", "pooling": "cls"}, "pooling='cls': expected only with task embed"),
        ({"masks": 3}, "masks=3: expected only with task fill-mask, found task embed"),
        ({"top_k": 8}, "top_k=8: expected only with task fill-mask, found task embed"),
        ({"task": "text-classification"}, "needs 'sequence-classification'"),
        ({"task": "fill-mask", "top_k": 0}, "top_k=0"),
    ):
        with pytest.raises(UserError, match=why):
            export_compiled(source, tmp_path / "new", **{"task": "embed"} | options)
    assert not list(tmp_path.iterdir())


def test_a_bucket_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="gs://bucket/x: bert_jax cannot export to a bucket; name a local folder"):
        export_compiled("no model", "gs://bucket/x", "embed")
    assert main(["export-compiled", "no model", "gs://bucket/x", "--task", "embed"]) == 2
    assert "gs://bucket/x: bert_jax cannot export to a bucket" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_programs_are_no_longer_than_the_rows_of_a_fine_tuning_run(task, tmp_path):
    run = tmp_path / "run"
    export(run, HEADS[task], labels=TAGS).rename(run / "export")
    name = {"text-classification": "classify", "token-classification": "ner"}[task]
    (run / "config.json").write_text(json.dumps({"task": name, "model": {}, "max_length": 16}))
    assert compiled_export._shapes(TASKS[task](run, runtime="xla"), None, [1]) == ((1, 16),)
    for source, line in ((run, "17; expected 2 to 16 tokens, the limits of the fine-tuning run"),
                         (run / "export", "35; expected 2 to 34 tokens, the limits of the model")):  # fmt: skip
        with pytest.raises(UserError, match=line):
            export_compiled(source, tmp_path / "new", task, lengths=[int(line[:2])])
    assert not (tmp_path / "new").exists()


def products_of(folder: Path) -> Counter[str]:
    """How many products of a folder's only program have which result type."""
    (program,) = read_programs(folder, read_facts(folder)).values()
    return Counter(re.findall(r"dot_general.*-> tensor<[0-9x]*x(\w+)>", program.mlir_module()))


@pytest.mark.slow
def test_bfloat16_is_what_each_platform_takes_it_for(made, tmp_path, monkeypatch):
    """In one program for a CPU and accelerators, on a CPU the pipeline's bits."""
    source, written = made("embed")
    options: dict[str, Any] = {"lengths": [8], "batch_sizes": [2], "dtype": "bfloat16"}
    for_all = export_compiled(source, tmp_path / "all", "embed", **options)
    for_cpu = export_compiled(source, tmp_path / "cpu", "embed", platforms=["cpu"], **options)
    for_tpu = export_compiled(source, tmp_path / "tpu", "embed", platforms=["tpu"], **options)
    assert set(products_of(for_cpu)) == {"f32"} and products_of(for_tpu)["bf16"] > products_of(for_tpu)["f32"]
    both, found = products_of(for_cpu) + products_of(for_tpu), products_of(for_all)  # jax has each for each platform
    assert found["bf16"] * both["f32"] == found["f32"] * both["bf16"] > 0
    batch = batch_of((2, 8), None)
    (expected,) = by_the_pipeline(TASKS["embed"](source, dtype="bfloat16"), batch)
    wide = load_compiled(written)(batch)["embeddings"]
    for folder in (for_cpu, for_all):
        found = load_compiled(folder)(batch)["embeddings"]
        np.testing.assert_array_equal(found, expected)
        assert (found != wide).any()
    monkeypatch.setattr(compiled_export, "platform_dtype", lambda dtype, platform: dtype)
    as_on_tpu = export_compiled(source, tmp_path / "as-on-tpu", "embed", platforms=["cpu"], **options)
    assert products_of(as_on_tpu) == products_of(for_tpu)
    found = load_compiled(as_on_tpu)(batch)["embeddings"]
    assert (found != expected).any()
    cosines = (found * wide).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wide, axis=1)
    assert (cosines > 0.999).all()


@pytest.mark.slow
def test_the_verbs(made, tmp_path, capsys):
    source, _ = made("embed")
    written = tmp_path / "c"
    given = ["--task", "embed", "--lengths", "8,16", "--batch-sizes", "2", "--pooling", "cls"]
    assert main(["export-compiled", str(source), str(written), *given, "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["shapes"] == [[2, 8], [2, 16]]
    assert told["files"] == {path.name: path.stat().st_size for path in written.iterdir()}
    assert "program 2 of 2" in err
    assert main(["export-compiled", str(source), str(written), *given]) == 2
    assert "already exists" in capsys.readouterr().err

    (tmp_path / "texts.txt").write_bytes(b"hello world\n\xff\nhello\theld\n" + b"hello " * 40 + b"\n" + b"hello " * 14)
    assert main(["run-compiled", str(written), str(tmp_path / "texts.txt")]) == 2
    out, err = capsys.readouterr()
    lines = out.split("\n")
    vectors = [json.loads(lines[number])["embeddings"] for number in (0, 2, 3)]
    tokenizer = Tokenizer.load(source)
    model = TASKS["embed"](source, pooling="cls")
    for vector, texts in zip(vectors, (("hello world",), ("hello", "held"), ("hello " * 40,)), strict=True):
        (expected,) = by_the_pipeline(model, {**tokenizer(*texts, max_length=16)})
        np.testing.assert_allclose(vector, expected[0], atol=1e-6)
    assert lines[1] == ""
    assert "UTF-8" in err
    assert "1 of 5 texts are longer than 16 tokens and were truncated" in err  # the last one has 16


@pytest.mark.slow
def test_the_guide_runs_as_written(made, tmp_path, monkeypatch, capsys):
    for task, name in (("embed", "my-encoder"), ("text-classification", "runs/reviews")):
        shutil.copytree(made(task)[0], tmp_path / name)
    (tmp_path / "texts.txt").write_text("hello world\nheld\n")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/compiled.md")
    assert len(blocks) == 5
    run_blocks(blocks)
    assert "error" not in capsys.readouterr().err


@pytest.mark.slow
def test_programs_that_inflate_beyond_their_bound_are_refused(copy, monkeypatch):
    monkeypatch.setattr(compiled_run, "LARGEST_PROGRAMS", 1000)
    with pytest.raises(UserError, match=r"programs\.zip: [\d,]+ bytes of programs; at most 0 MB are read"):
        read_programs(copy, read_facts(copy))


def zip_of_one(folder: Path, method: int, content: bytes, declared: int) -> Facts:
    """Writes a folder's programs.zip whose directory declares another size, with the checksum of that many bytes."""
    with zipfile.ZipFile(folder / PROGRAMS, "w", method) as file:
        file.writestr(program_name(1, 8), content)
    octets = bytearray((folder / PROGRAMS).read_bytes())
    directory = octets.index(b"PK\1\2")
    struct.pack_into("<I", octets, directory + 16, zlib.crc32(content[:declared]))
    struct.pack_into("<I", octets, directory + 24, declared)
    (folder / PROGRAMS).write_bytes(octets)
    return SimpleNamespace(shapes=((1, 8),), jax=jax.__version__)  # type: ignore[return-value]


def test_a_program_is_unpacked_no_further_than_it_says(tmp_path):
    facts = zip_of_one(tmp_path, zipfile.ZIP_DEFLATED, bytes(64 << 20), declared=100)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"programs\.zip: 1x8\.jaxexport cannot be read"):
        read_programs(tmp_path, facts)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 << 20


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_program_that_zipfile_would_unpack_without_bound_is_refused(tmp_path, method):
    facts = zip_of_one(tmp_path, method, bytes(100), declared=100)
    with pytest.raises(UserError, match=r"programs\.zip: .*1x8\.jaxexport is compressed, and not with deflate"):
        read_programs(tmp_path, facts)


def test_an_error_names_the_text_and_not_its_row_alone(monkeypatch):
    class Picky:
        def run(self, rows):
            for number, row in enumerate(rows, 1):
                if len(row["input_ids"]) > 3:
                    raise UserError(f"row {number} has 0 masks; the programs take 1 to 1")
            return rows

    monkeypatch.setattr(compiled_verb, "_AT_ONCE", 2)
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], cased=False)
    found = list(compiled_verb._outputs(Picky(), tokenizer, ["a", "b", UserError("not UTF-8"), "a b"]))  # type: ignore[arg-type]
    assert [str(one) for one in found if isinstance(one, UserError)] == [
        "not UTF-8",
        "text 4 has 0 masks; the programs take 1 to 1",
    ]
