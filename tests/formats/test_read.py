"""Reading a Hugging Face folder: every common spelling of its files, and a complete report."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.names.parameters import parameters_of, to_stored
from bert_jax.formats.read import OpenModel, read_model
from bert_jax.formats.source import open_folder
from bert_jax.tree import flatten
from tests import tiny

CONFIG = tiny.CONFIG
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.fixture
def flat() -> dict[str, np.ndarray]:
    return tiny.random_flat(CONFIG, 1)


@pytest.fixture
def tensors(flat) -> dict[str, np.ndarray]:
    return to_stored(flat, CONFIG, "pretraining")


def folder(path: Path, tensors: dict[str, np.ndarray], **fields) -> Path:
    path.mkdir(exist_ok=True)
    save_file({key: np.asarray(array, order="C") for key, array in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG.to_json() | fields))
    return path


def assert_same(params, flat):
    read = flatten(params)
    assert read.keys() == flat.keys()
    for path, array in flat.items():
        assert read[path].dtype == np.float32
        np.testing.assert_array_equal(read[path], array, err_msg=path)


def test_arrays_lie_as_in_the_file_or_contiguous_on_request(tmp_path, flat, tensors):
    model = folder(tmp_path / "m", tensors)
    with OpenModel(open_folder(model)) as opened:
        views, turned = dict(opened.arrays()), dict(opened.arrays(contiguous=True))
    for path, array in flat.items():
        kernel = path.endswith("/kernel")
        assert (views[path].T if kernel else views[path]).flags.c_contiguous, path
        assert turned[path].flags.c_contiguous and turned[path].ctypes.data % 64 == 0, path
        np.testing.assert_array_equal(turned[path], array, err_msg=path)


def in_a_process(code: str, *words: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_file_cut_short_after_it_was_opened_does_not_end_the_process(tmp_path, tensors, contiguous):
    model = folder(tmp_path / "m", tensors)
    found = in_a_process(
        f"""
import os, sys
from bert_jax.formats.read import OpenModel
from bert_jax.formats.source import open_folder
from bert_jax.errors import UserError

with OpenModel(open_folder(sys.argv[1])) as model:
    os.truncate(sys.argv[1] + "/model.safetensors", 5000)
    try:
        dict(model.arrays(contiguous={contiguous}))
    except UserError as error:
        print(error)
""",
        model,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == f"{model}/model.safetensors: the file became shorter while it was being read\n"


def test_what_was_read_stays_while_its_file_is_overwritten_and_cut_short(tmp_path, tensors):
    model = folder(tmp_path / "m", tensors)
    found = in_a_process(
        """
import sys
from pathlib import Path
from bert_jax.formats.read import read_model
from bert_jax.tree import sha256_of_parameters

params, weights = read_model(sys.argv[1]).params, Path(sys.argv[1], "model.safetensors")
before = sha256_of_parameters(params)
with open(weights, "r+b") as file:
    file.write(bytes(weights.stat().st_size))
assert sha256_of_parameters(params) == before
with open(weights, "wb"):
    pass
assert sha256_of_parameters(params) == before
""",
        model,
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("contiguous", [False, True])
def test_reading_takes_the_memory_of_the_arrays_and_little_more(tmp_path, contiguous):
    config = CONFIG.replace(vocab_size=20_000, hidden_size=512, num_attention_heads=8, intermediate_size=4096)
    model = folder(tmp_path / "m", to_stored(tiny.random_flat(config, 1), config, "pretraining"), **config.to_json())
    found = in_a_process(
        f"""
import re, sys
from pathlib import Path
from bert_jax.formats.read import OpenModel
from bert_jax.formats.source import open_folder

def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

with OpenModel(open_folder(sys.argv[1])) as model:
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    arrays = dict(model.arrays(contiguous={contiguous}))
    print(resident("VmHWM") - before)
""",
        model,
    )
    size = (model / "model.safetensors").stat().st_size
    assert found.returncode == 0, found.stderr
    assert 0.9 * size < int(found.stdout) < size + (8 << 20)


def test_todays_layout(tmp_path, flat, tensors):
    config, params, report = read_model(folder(tmp_path / "m", tensors, architectures=["BertForPreTraining"]))
    assert config == CONFIG
    assert_same(params, flat)
    assert report.head == "pretraining"
    assert set(report.loaded) == set(flat)
    assert not report.missing + report.unexpected + report.mismatched
    report.check()


def test_the_layout_of_old_dumps(tmp_path, flat, tensors):
    """gamma/beta, no prefix on the encoder, a buffer, both copies of what is tied (C24)."""
    old = {}
    for key, array in tensors.items():
        key = key.removeprefix("bert.")
        if "LayerNorm" in key:
            key = key.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[key] = array
    old["embeddings.position_ids"] = np.arange(7)[None]
    old[DECODER] = tensors[WORDS]
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    _, params, report = read_model(folder(tmp_path / "m", old))
    assert_same(params, flat)
    assert report.head == "pretraining"
    assert not report.unexpected + report.mismatched


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_become_float32(tmp_path, flat, tensors, dtype):
    def stored(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype) * dtype(1 + 1e-9)  # which float64 alone can tell from 1

    other = {key: stored(array) for key, array in tensors.items()}
    _, params, _ = read_model(folder(tmp_path / "m", other, dtype=np.dtype(dtype).name))
    assert_same(params, {path: stored(array).astype(np.float32) for path, array in flat.items()})


def test_layers_that_the_config_does_not_count_are_told_of(tmp_path, tensors, caplog):
    source = folder(tmp_path / "m", tensors, num_hidden_layers=1)
    line = (
        f"{source / 'config.json'}: num_hidden_layers is 1, but the weights have 2 layers; those after the first 1 are "
        "not used"
    )
    assert read_model(source).report.notes == (line,)
    load(source)
    assert [record.getMessage() for record in caplog.records] == [line]
    caplog.clear()
    load(folder(tmp_path / "m", tensors))
    assert not caplog.records


def test_a_decoder_that_differs_from_the_embeddings_is_noticed(tmp_path, tensors):
    other = tensors[WORDS].copy()
    other[3, 2] += 1e-3
    source = folder(tmp_path / "m", tensors | {DECODER: other})
    report = read_model(source).report
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.weight: differs"):
        report.check()
    report.check(allow_missing=(DECODER,))
    encoder = read_model(source, head="nsp").report
    encoder.check()
    assert DECODER in encoder.unexpected


def test_parts_of_a_model(tmp_path, flat, tensors):
    source = folder(tmp_path / "m", tensors, architectures=["BertForPreTraining"])
    mlm = read_model(source, head="mlm")
    assert_same(mlm.params, {path: flat[path] for path in parameters_of(CONFIG, "mlm")})
    assert set(mlm.report.unexpected) == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
    }  # fmt: skip
    encoder = read_model(source, head="encoder").params
    assert_same(encoder, {path.removeprefix("bert/"): a for path, a in flat.items() if path.startswith("bert/")})


def test_the_class_named_in_the_config_decides_which_head_is_read(tmp_path, tensors):
    source = folder(tmp_path / "m", tensors, architectures=["BertForMaskedLM"])
    assert read_model(source).report.head == "mlm"


def test_what_is_missing_is_an_error_unless_allowed(tmp_path, tensors):
    without = {key: array for key, array in tensors.items() if not key.startswith("cls.seq")}
    report = read_model(folder(tmp_path / "m", without), head="pretraining").report
    assert report.missing == ("nsp_head/kernel", "nsp_head/bias")
    with pytest.raises(UserError, match=r"missing: nsp_head/kernel.*allow_missing.*'nsp_head'"):
        report.check()
    report.check(allow_missing=("nsp_head",))
    with pytest.raises(UserError, match="nsp_head/bias"):
        report.check(allow_missing=("nsp_head/kernel",))
    with pytest.raises(UserError, match="nsp_head/kernel"):
        report.check(allow_missing=("nsp",))


def test_names_with_a_prefix_of_another_program_are_told_of(tmp_path, tensors):
    prefixed = {f"model.{key}": array for key, array in tensors.items()}
    report = read_model(folder(tmp_path / "m", prefixed, architectures=["BertForPreTraining"])).report
    with pytest.raises(
        UserError, match=r"none .* is there; found \d+ others, 'model\.bert.* expected transformers' names"
    ):
        report.check()


def test_shapes_and_dtypes_that_do_not_fit_are_named(tmp_path, tensors):
    wrong = tensors | {WORDS: tensors[WORDS][:-1], "bert.pooler.dense.bias": np.zeros(4, np.int32)}
    report = read_model(folder(tmp_path / "m", wrong)).report
    assert len(report.mismatched) == 2
    assert "(49, 16)" in report.mismatched[0]
    assert "(50, 16)" in report.mismatched[0]
    assert "int32" in report.mismatched[1]
    with pytest.raises(UserError, match="1 more"):
        report.check()


def test_a_bias_without_an_axis_is_a_wrong_shape(tmp_path):
    head = "sequence-classification"
    tensors = to_stored(tiny.random_flat(CONFIG, 1, head), CONFIG, head)
    source = folder(tmp_path / "m", tensors | {"classifier.bias": np.zeros((), np.float32)})
    assert read_model(source).report.mismatched == (
        "classifier/bias: classifier.bias has shape (); config and head need (2,)",
    )


def test_numbers_of_thousands_of_digits_in_names_and_metadata_are_none(tmp_path, tensors):
    from bert_jax.formats.safetensors import STEP, write_tensors

    digits = "9" * 5000  # int() takes 4300
    source = folder(tmp_path / "m", tensors)
    strange = {f"bert.encoder.layer.{digits}.x": np.zeros(1, np.float32)}
    write_tensors(source / "model.safetensors", tensors | strange, {STEP: digits})
    report = read_model(source).report
    assert (report.step, report.notes, report.unexpected) == (None, (), tuple(strange))


def test_two_keys_for_one_parameter_are_an_error_that_names_the_file(tmp_path, tensors):
    bare = {WORDS.removeprefix("bert."): tensors[WORDS]}
    source = folder(tmp_path / "m", tensors | bare)
    for head in (None, "mlm"):
        with pytest.raises(UserError, match=r"model\.safetensors: the keys 'bert\.emb.* both name the parameter"):
            read_model(source, head=head)


def test_damage_to_a_file_of_ours_is_an_error(tmp_path, tensors):
    from bert_jax.formats.safetensors import write_tensors

    source = folder(tmp_path / "m", tensors)
    assert read_model(source).report.verified is None
    write_tensors(source / "model.safetensors", tensors)
    assert read_model(source).report.verified is True
    content = bytearray((source / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (source / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_model(source)


def test_mistakes_are_one_clear_line(tmp_path, tensors):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_model(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_model(tmp_path / "empty")
    bad = folder(tmp_path / "json", tensors)
    (bad / "config.json").write_text('{"model_type": "bert",')
    with pytest.raises(UserError, match=r"config\.json: not JSON"):
        read_model(bad)
    with pytest.raises(UserError, match="model_type='gpt2' is not supported"):
        read_model(folder(tmp_path / "gpt", tensors, model_type="gpt2"))
    with pytest.raises(UserError, match="hidden_size='4'"):
        read_model(folder(tmp_path / "types", tensors, hidden_size="4"))
    keras = folder(tmp_path / "keras", tensors)
    (keras / "model.safetensors").rename(keras / "tf_model.h5")
    with pytest.raises(
        FileNotFoundError,
        match=r"contains no weights \(model\.safetensors, .*; bert_jax does not read files named tf_model\.h5",
    ):
        read_model(keras)


def test_reading_and_writing_load_no_jax():
    code = "import sys, bert_jax.formats.read, bert_jax.formats.write; assert 'jax' not in sys.modules, 'jax'"
    subprocess.run([sys.executable, "-c", code], check=True)
