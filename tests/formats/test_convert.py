"""docs/formats.md: its Python runs, top to bottom; and `convert` as a function."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load, load_arrays
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.sentence_transformers import Vectors, vectors_of, write_modules
from bert_jax.formats.source import open_source
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import sha256_of_parameters, unflatten
from tests import tiny
from tests.guide import blocks_of, run_blocks

CONFIG = tiny.CONFIG.replace(vocab_size=16)


def make_folder(path: Path, head: str, config: BertConfig = CONFIG) -> Path:
    params = tiny.random_params(config, 4, head)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
    return save_pretrained(path, config, params, Tokenizer.from_vocabulary(pieces, cased=False), head=head)


@pytest.mark.slow
def test_the_guide_to_formats_runs_as_written(tmp_path, monkeypatch):
    make_folder(tmp_path / "somebodys-bert", "pretraining")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/formats.md", "python")
    assert len(blocks) == 3
    run_blocks(blocks)
    assert load("for-google").report.head == load("for-vectors").report.head == "encoder"


@pytest.mark.parametrize(("head", "kept"), [("pretraining", "encoder"), ("mlm", "encoder-no-pooler")])
def test_vectors_keep_the_pooler_where_there_is_one(tmp_path, head, kept):
    source = make_folder(tmp_path / "m", head)
    assert convert(source, tmp_path / "vectors", to="sentence-transformers").report.head == kept


VECTORS = Vectors(
    "cls+normalize",
    max_length=4,
    lower_case=True,
    include_prompt=False,
    fields={"prompts": {"query": "the "}, "default_prompt_name": "query", "truncate_dim": 3},
)


def make_vectors(path: Path) -> Path:
    """A sentence-transformers folder whose files say all that they can."""
    folder = make_folder(path, "encoder")
    write_modules(folder, VECTORS, CONFIG.hidden_size, 4)
    return folder


@pytest.mark.parametrize("to", ["hf", "sentence-transformers", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_folder_of_sentence_transformers_keeps_all_that_makes_its_vectors(tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    out = convert(make_vectors(tmp_path / "m"), tmp_path / "out", to=to)
    assert vectors_of(out.directory) == VECTORS
    assert not out.report.notes
    other = convert(tmp_path / "m", tmp_path / "other", to=to, pooling="mean")
    assert vectors_of(other.directory) == VECTORS._replace(pooling="mean")


def test_a_form_without_a_pooling_is_said_to_lose_it(tmp_path):
    out = convert(make_vectors(tmp_path / "m"), tmp_path / "google", to="tf1")
    assert out.report.notes[-1] == "the pooling cls+normalize is left out: Google's format has none"
    assert vectors_of(out.directory) is None


def test_a_form_without_a_step_is_said_to_lose_it(tmp_path):
    params = tiny.random_params(CONFIG, 4, "mlm")
    folder = save_pretrained(tmp_path / "m", CONFIG, params, None, head="mlm", step=1700)
    out = convert(folder, tmp_path / "google", to="tf1")
    assert out.report.step == 1700
    assert out.report.notes[-1] == "its step 1,700 is left out: Google's format has none"


@pytest.mark.parametrize("to", ["hf", "tf1"])
def test_layers_that_we_do_not_have_are_left_out_of_a_form_that_has_no_need_of_them(tmp_path, to):
    folder = make_vectors(tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    note = convert(folder, tmp_path / "out", to=to).report.notes[-1]
    assert note.startswith("its pooling is left out: ") and "Transformer, Pooling, Dense" in note
    with pytest.raises(UserError, match="Transformer, Pooling, Dense"):
        convert(folder, tmp_path / "vectors", to="sentence-transformers")


@pytest.mark.parametrize("name", ["roberta", "distilbert", "albert", "xlm-roberta"])
def test_the_maximum_length_has_had_several_files(tmp_path, name):
    folder = make_vectors(tmp_path / "m")
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{name}_config.json")
    assert vectors_of(folder) == VECTORS


def test_the_model_of_an_older_folder_is_in_a_folder_of_its_own(tmp_path):
    old, new = tmp_path / "old", make_vectors(tmp_path / "m")
    (old / "0_Transformer").mkdir(parents=True)
    for path in new.iterdir():
        beside = path.name in ("modules.json", "1_Pooling", "config_sentence_transformers.json")
        path.rename((old if beside else old / "0_Transformer") / path.name)
    modules = json.loads((old / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([modules[0] | {"path": "0_Transformer"}, *modules[1:]]))
    opened = open_source(old)
    assert load(opened).report.head == "encoder"
    assert vectors_of(opened.folder) == VECTORS


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "'weightedmean'"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "'mean and lasttoken'"),
        ({"pooling_mode": ["cls", "mean"]}, "'cls and mean'"),
    ],
)
def test_a_pooling_that_we_do_not_have_is_refused_by_name(tmp_path, fields, found):
    folder = make_vectors(tmp_path / "m")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=f"1_Pooling: its pooling is {found}; expected one of cls, mean, max"):
        vectors_of(folder)


@pytest.mark.parametrize("kinds", [["Router"], ["Transformer"], ["Transformer", "Normalize"], []])
def test_a_folder_of_other_layers_is_refused_by_their_names(tmp_path, kinds):
    folder = make_vectors(tmp_path / "m")
    modules = [{"path": f"{kind}", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=f"modules.json: has the layers {', '.join(kinds) or 'none'}; expected Transf"):
        vectors_of(folder)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"default_prompt_name": "ask"}, "default_prompt_name is 'ask'; expected a name in prompts"),
        ({"default_prompt_name": ["ask"]}, r"default_prompt_name is \['ask'\]; expected a name in prompts"),
        ({"prompts": {"query": 3}}, "the prompt 'query' is 3; expected a text"),
        ({"truncate_dim": "3"}, "truncate_dim is '3'; expected a whole number"),
    ],
)
def test_a_field_of_sentence_transformers_that_cannot_be_followed_is_named(tmp_path, fields, line):
    folder = make_vectors(tmp_path / "m")
    (folder / "config_sentence_transformers.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=line):
        vectors_of(folder)


@pytest.mark.parametrize("text", ['{"max_seq_length": 7, "do_lower_ca', "[7]"])
def test_damaged_settings_are_an_error_and_not_taken_for_none(tmp_path, text):
    folder = make_vectors(tmp_path / "m")
    (folder / "sentence_bert_config.json").write_text(text)
    with pytest.raises(UserError, match=r"sentence_bert_config\.json: (not JSON|expected a JSON object)"):
        vectors_of(folder)


def test_a_family_that_google_s_code_has_not_is_refused_before_anything_is_written(tmp_path):
    config = CONFIG.replace(model_type="distilbert")
    rows = parameters_of(config, "mlm").items()
    params = unflatten({name: np.zeros(row.shape, np.float32) for name, row in rows})
    source = save_pretrained(tmp_path / "m", config, params, None)
    with pytest.raises(UserError, match="Google's TensorFlow code has only bert and albert"):
        convert(source, tmp_path / "google", to="tf1")
    assert not (tmp_path / "google").exists()


def test_a_folder_can_be_converted_onto_itself(tmp_path):
    """The source is read before the former folder is replaced."""
    folder = make_folder(tmp_path / "m", "pretraining")
    before = sha256_of_parameters(load_arrays(folder).params)
    assert not convert(folder, folder, max_shard_size="1KB").report.missing
    assert sha256_of_parameters(load_arrays(folder).params) == before


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        (
            "2_Normalize/config.json",
            {"module_input_name": "token_embeddings"},
            "2_Normalize: scales 'token_embeddings' to",
        ),
        (
            "2_Normalize/config.json",
            {"module_output_name": "other"},
            "expected sentence_embedding to sentence_embedding",
        ),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 4}}}, "processing_kwargs is"),
    ],
)
def test_what_version_6_may_do_otherwise_is_refused(name, fields, line, tmp_path):
    (tmp_path / "2_Normalize").mkdir()
    write_modules(tmp_path, "mean+normalize", 8, 16)
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    (tmp_path / "2_Normalize/config.json").write_text(json.dumps(names))
    assert vectors_of(tmp_path) == Vectors("mean+normalize", 16)
    path = tmp_path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError, match=line):
        vectors_of(tmp_path)
