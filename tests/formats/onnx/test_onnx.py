"""The ONNX form: options that transformers does not have, the files, what onnxruntime makes of them, int8.

tests/parity/test_onnx_transformers.py compares every family and head with transformers.
"""

import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import HIDDEN_ACTS, BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load_config
from bert_jax.formats.onnx import save
from bert_jax.formats.onnx.activations import activation
from bert_jax.formats.onnx.graph import Graph, check_graph, write_graph
from bert_jax.formats.onnx.model import build_graph
from bert_jax.formats.onnx.save import save_onnx
from bert_jax.formats.sentence_transformers import Vectors
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.model.layers import Activation
from bert_jax.tree import flatten, unflatten
from tests import tiny

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

CONFIG = tiny.CONFIG
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "ran"]


def run(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def inputs_of(config: BertConfig, rows: int = 3, length: int = 9) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(2, config.vocab_size, (rows, length))
    mask = (np.arange(length) < np.array([[length], [4], [7]])).astype(np.int64)
    ids = np.where(mask, ids, config.pad_token_id)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": rng.integers(0, 2, ids.shape)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("encoder", {"position_embedding_type": "relative_key"}),
        ("encoder-no-pooler", {"position_embedding_type": "relative_key_query", "is_decoder": True}),
        ("mlm", {"pruned_heads": ((1, (0,)),), "head_size": 5}),
    ],
)
def test_options_that_transformers_5_lacks_are_in_the_graph(head, fields, tmp_path):
    config = CONFIG.replace(**fields)
    flat = tiny.random_flat(config, 3, head, scale=0.5)
    write_graph(tmp_path / "m.onnx", build_graph(config, flat, head), {})
    inputs = inputs_of(config)
    ours = HEADS[head](config).apply({"params": unflatten(flat)}, **inputs, return_dict=False)
    for want, found in zip(ours, run(tmp_path / "m.onnx", **inputs).values(), strict=True):
        want = np.asarray(want)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
def test_every_activation_is_that_of_the_model(tmp_path):
    x = np.concatenate([np.linspace(-12, 12, 481), [-1e-7, 0.0, 1e-7, 60.0, -60.0]]).astype(np.float32)
    parameters = {name: {"weight": np.float32([0.2])} for name in HIDDEN_ACTS}
    parameters["xielu"] = {"alpha_p": np.float32([0.3]), "alpha_n": np.float32([-0.4])}
    g = Graph()
    value = g.input("x", ["length"])
    value = g.op("Cast", value, to=onnx.TensorProto.FLOAT)
    scaled = g.op("Mul", value, 0.025)
    for name in HIDDEN_ACTS:
        g.weights |= {f"{name}/{key}": array for key, array in parameters[name].items() if name in ("prelu", "xielu")}
        g.output(name, activation(g, scaled, name, name), ["length"])
    write_graph(tmp_path / "m.onnx", g, {})
    whole = np.round(x / 0.025).astype(np.int64)
    x = whole.astype(np.float32) * np.float32(0.025)
    found = run(tmp_path / "m.onnx", x=whole)
    for name in HIDDEN_ACTS:
        used = {"params": parameters[name]} if name in ("prelu", "xielu") else {}
        want = np.asarray(Activation(name).apply(used, x))
        np.testing.assert_allclose(found[name], want, rtol=2e-5, atol=2e-6, err_msg=name)


def test_large_weights_get_a_file_of_their_own(tmp_path):
    graph = build_graph(CONFIG, tiny.random_flat(CONFIG, 1, "mlm"), "mlm")
    write_graph(tmp_path / "one.onnx", graph, {})
    write_graph(tmp_path / "two.onnx", graph, {}, largest=1000)
    assert (tmp_path / "two.onnx_data").stat().st_size > sum(a.nbytes for a in graph.weights.values())
    assert not (tmp_path / "one.onnx_data").exists()
    inputs = inputs_of(CONFIG)
    np.testing.assert_array_equal(*(run(tmp_path / f"{n}.onnx", **inputs)["logits"] for n in ("one", "two")))


@pytest.mark.parametrize("name", ["one.onnx", "two.onnx_data"])
def test_a_changed_byte_is_found_when_the_file_is_read_back(name, tmp_path):
    graph = build_graph(CONFIG, tiny.random_flat(CONFIG, 1, "mlm"), "mlm")
    write_graph(tmp_path / "one.onnx", graph, {})
    write_graph(tmp_path / "two.onnx", graph, {}, largest=0)
    content = bytearray((tmp_path / name).read_bytes())
    content[content.index(graph.weights["mlm_head/bias"].tobytes())] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="mlm_head/bias has other bits"):
        check_graph((tmp_path / name).with_suffix(".onnx"), graph.weights)


def test_parameters_that_do_not_fit_are_refused():
    flat = tiny.random_flat(CONFIG, 1, "mlm")
    with pytest.raises(UserError, match="the tree has no 'pooler/kernel'; head='encoder' needs"):
        build_graph(CONFIG, flat, "encoder")
    flat["mlm_head/bias"] = flat["mlm_head/bias"][:3]
    with pytest.raises(UserError, match=r"has \[3\] for 'mlm_head/bias'; head='mlm' needs \[50\]"):
        build_graph(CONFIG, flat, "mlm")


def folder_of(path: Path, head: str, config: BertConfig = CONFIG, **options) -> Path:
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    return save_pretrained(path, config, tiny.random_params(config, 4, head), tokenizer, head=head, **options)


def test_cross_attention_is_refused_before_anything_is_written(tmp_path):
    config = CONFIG.replace(is_decoder=True, add_cross_attention=True)
    source = folder_of(tmp_path / "m", "causal-lm", config)
    with pytest.raises(UserError, match="has no input for an encoder's output"):
        convert(source, tmp_path / "onnx", to="onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(("name", "extra"), [("onnx", "onnx"), ("onnxruntime", "onnx"), ("nncf", "nncf")])
def test_a_missing_package_is_named_before_anything_is_written(name, extra, tmp_path, monkeypatch):
    source = folder_of(tmp_path / "m", "mlm")
    monkeypatch.setitem(sys.modules, name, None)
    texts = ["the cat"] if name == "nncf" else []
    with pytest.raises(UserError, match=rf'needs the package {name}: pip install "bert-jax\[{extra}\]"'):
        convert(source, tmp_path / "onnx", to="onnx", int8=name != "onnx", calibration=texts)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_former_export_is_replaced_and_other_files_are_kept(tmp_path):
    source = folder_of(tmp_path / "m", "mlm")
    target = convert(source, tmp_path / "onnx", to="onnx").directory
    convert(source, target, to="onnx")
    convert(source, target)  # another form takes its place
    assert not (target / "onnx").exists()
    convert(source, target, to="onnx")
    (target / "onnx" / "mine.onnx").write_text("mine")
    with pytest.raises(UserError, match=r"holds 'onnx/mine\.onnx'"):
        convert(source, target, to="onnx")
    assert (target / "onnx" / "mine.onnx").read_text() == "mine"


def test_the_folder_has_what_optimum_writes(tmp_path):
    labels = ("no", "yes", "perhaps")
    source = folder_of(tmp_path / "m", "sequence-classification", CONFIG.replace(labels=labels))
    folder = convert(source, tmp_path / "onnx", to="onnx").directory
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"}
    assert names == {"config.json", "README.md", "onnx/model.onnx"} | tokenizer
    assert load_config(folder).labels == labels
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    batch = ["batch_size", "sequence_length"]
    inputs = {node.name: (node.type, node.shape) for node in session.get_inputs()}
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert inputs == dict.fromkeys(names, ("tensor(int64)", batch))
    assert [(node.name, node.shape) for node in session.get_outputs()] == [("logits", ["batch_size", 3])]


@pytest.mark.parametrize("head", ["encoder", "multiple-choice"])
def test_the_card_calls_the_graph_with_what_it_takes(head, tmp_path):
    config = CONFIG.replace(vocab_size=len(PIECES))
    tokenizer = Tokenizer.from_vocabulary([*PIECES], cased=False)
    folder = save_onnx(tmp_path / "onnx", config, tiny.random_params(config, 4, head), tokenizer, head=head)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code.replace("DIR/", f"{folder}/"), names)
    assert np.isfinite(names["outputs"][0]).all()
    assert names["outputs"][0].shape == ((1, 1) if head == "multiple-choice" else (1, 5, config.hidden_size))


def test_a_model_of_vectors_keeps_its_pooling(tmp_path):
    source = folder_of(tmp_path / "m", "encoder", sentence_transformers="cls+normalize")
    folder = convert(source, tmp_path / "onnx", to="onnx").directory
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    assert set(run(folder / "onnx" / "model.onnx", **inputs_of(CONFIG))) == {"last_hidden_state"}


def test_the_step_is_recorded(tmp_path):
    params = tiny.random_params(CONFIG, 4, "mlm")
    save_onnx(tmp_path / "onnx", CONFIG, params, None, head="mlm", step=700)
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "onnx" / "model.onnx"))
    assert session.get_modelmeta().custom_metadata_map == {"bert_jax.step": "700"}


@pytest.mark.parametrize(("act", "kernel"), [("gelu", "BiasGelu"), ("gelu_new", "FastGelu")])
def test_onnxruntime_puts_its_kernels_in_place(act, kernel, tmp_path):
    """Fused GELU with its bias, and scores with their scale; LayerNorm is a node of its own, in ours and in theirs."""
    flat = tiny.random_flat(CONFIG, 1, "encoder-no-pooler")
    graph = build_graph(CONFIG.replace(hidden_act=act), flat, "encoder-no-pooler")
    write_graph(tmp_path / "m.onnx", graph, {})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options)
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "fused.onnx").graph.node)
    layers = CONFIG.num_hidden_layers
    assert kinds[kernel] == kinds["FusedMatMul"] == layers
    assert kinds["LayerNormalization"] == 2 * layers + 1


def test_a_graph_for_onnxruntime_alone_names_its_operators():
    flat = flatten(tiny.random_params(CONFIG, 4, "encoder"))
    kinds = Counter(
        (kind, attributes.get("domain", ""))
        for kind, _, _, _, attributes in build_graph(CONFIG, flat, "encoder", own_operators=True).nodes
    )
    layers = CONFIG.num_hidden_layers
    assert kinds["Attention", "com.microsoft"] == layers and kinds["Softmax", ""] == 0
    assert kinds["SkipLayerNormalization", "com.microsoft"] == 2 * layers and kinds["LayerNormalization", ""] == 1


def test_attention_over_rows_without_padding_takes_no_mask():
    flat = flatten(tiny.random_params(CONFIG, 4, "encoder"))
    graphs = [build_graph(CONFIG, flat, "encoder", own_operators=True, unpadded=unpadded) for unpadded in (False, True)]
    taken = [{len(inputs) for kind, inputs, *_ in graph.nodes if kind == "Attention"} for graph in graphs]
    assert taken == [{6}, {3}]
    users = [{kind for kind, inputs, *_ in graph.nodes if "attention_mask" in inputs} for graph in graphs]
    assert users[0] and not users[1] and "attention_mask" in graphs[1].inputs


def test_int8_holds_kernels_and_tables_and_stays_near_float32(tmp_path):
    config = CONFIG.replace(vocab_size=40)
    params = tiny.random_params(config, 4, "mlm", scale=0.1)
    folder = save_onnx(tmp_path / "onnx", config, params, None, head="mlm", int8=True)
    graph = onnx.load(folder / "onnx" / "model_quantized.onnx").graph
    kinds = {array.name: array.data_type for array in graph.initializer if len(array.dims) == 2}
    whole = [name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT]
    assert whole == ["bert/embeddings/position_embeddings"]  # it is sliced; no operator slices int8 and scales it
    count = sum(name.endswith("kernel") for name in flatten(params))
    assert Counter(node.op_type for node in graph.node)["MatMulInteger"] == count + 1  # and the vocabulary's
    inputs = inputs_of(config)
    found = [run(folder / "onnx" / name, **inputs)["logits"] for name in ("model.onnx", "model_quantized.onnx")]
    assert 0 < np.abs(found[1] - found[0]).max() < 0.1 * np.abs(found[0]).max()


def test_texts_to_calibrate_on_need_int8_and_a_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", object())
    params = tiny.random_params(CONFIG, 4, "mlm", scale=0.1)
    with pytest.raises(UserError, match="calibration: texts need the model's tokenizer, which it lacks"):
        save_onnx(tmp_path / "onnx", CONFIG, params, None, head="mlm", int8=True, calibration=["the cat"])
    with pytest.raises(UserError, match="calibration: finds the ranges of int8; say int8=True"):
        save_onnx(tmp_path / "onnx", CONFIG, params, None, head="mlm", calibration=["the cat"])
    assert list(tmp_path.iterdir()) == []


def test_calibration_sees_texts_with_the_default_prompt_as_the_model_will(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", object())
    seen = []
    monkeypatch.setattr(save, "quantize_calibrated", lambda path, graph, inputs: seen.extend(inputs))
    config = CONFIG.replace(vocab_size=len(PIECES))
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    vectors = Vectors("mean", fields={"prompts": {"query": "cat the "}, "default_prompt_name": "query"})
    params = tiny.random_params(config, 4, "encoder", scale=0.1)
    options = {"head": "encoder", "sentence_transformers": vectors, "int8": True, "calibration": ["the"]}
    save_onnx(tmp_path / "onnx", config, params, tokenizer, **options)
    assert [call["input_ids"].tolist() for call in seen] == [tokenizer(["cat the the"])["input_ids"].tolist()]


def test_calibration_of_a_graph_with_types_by_a_tokenizer_without_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", object())
    seen = []
    monkeypatch.setattr(save, "quantize_calibrated", lambda path, graph, inputs: seen.extend(inputs))
    config = CONFIG.replace(vocab_size=len(PIECES))
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False).without_token_types()
    params = tiny.random_params(config, 4, "mlm", scale=0.1)
    save_onnx(tmp_path / "onnx", config, params, tokenizer, head="mlm", int8=True, calibration=["the cat"])
    assert seen[0].keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert seen[0]["token_type_ids"].tolist() == [[0, 0, 0, 0]]
    assert {array.dtype for array in seen[0].values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("head", "name"), [("mlm", "logits"), ("multiple-choice", "logits")])
def test_calibrated_int8_has_its_ranges_in_the_file_and_stays_near_float32(head, name, tmp_path):
    if find_spec("nncf") is None:  # importing it here would fork for its telemetry
        pytest.skip("the extra `nncf` is not installed")
    config = CONFIG.replace(vocab_size=len(PIECES), hidden_size=32, intermediate_size=64)
    params = tiny.random_params(config, 4, head, scale=0.3)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    texts = [" ".join(np.random.default_rng(n).choice(PIECES[5:], 1 + n % 7)) for n in range(20)]
    folder = save_onnx(tmp_path / "onnx", config, params, tokenizer, head=head, int8=True, calibration=texts)
    kinds = Counter(node.op_type for node in onnx.load(folder / "onnx" / "model_quantized.onnx").graph.node)
    assert kinds["DynamicQuantizeLinear"] == kinds["MatMulInteger"] == 0
    assert kinds["QuantizeLinear"] > config.num_hidden_layers * 4
    inputs = inputs_of(config)
    if head == "multiple-choice":
        inputs = {key: array[None] for key, array in inputs.items()}
    found = [run(folder / "onnx" / file, **inputs)[name] for file in ("model.onnx", "model_quantized.onnx")]
    assert 0 < np.abs(found[1] - found[0]).max() < 0.1 * np.abs(found[0]).max()
