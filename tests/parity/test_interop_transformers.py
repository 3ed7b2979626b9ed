"""Folders between transformers and us, for every family and head: theirs loads here, ours there, without warnings."""

import functools
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.load import load
from bert_jax.formats.names.parameters import FAMILIES, architecture_of
from bert_jax.formats.read import read_model
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import flatten
from tests.data.tokenizer.tokenizer_folders import albert_spiece, byte_level_files, fairseq_spiece, write
from tests.parity.model_folders import (
    CASES,
    FORMATS,
    config_of,
    is_written,
    make_inputs,
    reference,
    their_class,
    write_folder,
)

pytestmark = pytest.mark.parity

OPTIONS = [
    ("bert", "causal-lm", {"add_cross_attention": True}),
    *((model_type, "mlm", {"tie_word_embeddings": False}) for model_type in FAMILIES),
    *((model_type, "mlm", {"hidden_act": "prelu"}) for model_type in FAMILIES),
    ("albert", "encoder", {"num_hidden_groups": 2, "inner_group_num": 2}),
    ("distilbert", "mlm", {"sinusoidal_pos_embds": True}),
]  # fmt: skip
SENTENCES = ("bert", "roberta", "xlm-roberta", "camembert", "albert", "distilbert", "electra")
ENCODERS = [case for case in CASES if case[1] in ("encoder", "encoder-no-pooler")]
READ = [(form, *case) for form in FORMATS for case in CASES if is_written(form, *case)]


@functools.cache
def their_model(model_type: str, head: str):
    return reference(config_of(model_type, head), head)


def their_load(config: BertConfig, head: str, folder: Path):
    """transformers' model of a folder, which has exactly the parameters that it needs."""
    options = {"add_pooling_layer": False} if head == "encoder-no-pooler" else {}
    model, information = their_class(architecture_of(config, head)).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **options
    )
    assert {name: list(keys) for name, keys in information.items() if keys} == {}
    assert model.dtype == torch.float32
    return model.eval()


def their_outputs(model, inputs) -> list[np.ndarray]:
    with torch.no_grad():
        outputs = model(**{name: torch.tensor(array) for name, array in inputs.items()}, use_cache=False)
    return [value.numpy() for value in outputs.to_tuple()]


def assert_same_outputs(folder: Path, model, config: BertConfig, head: str) -> None:
    loaded = load(folder)
    assert loaded.report.head == head
    assert not loaded.report.missing + loaded.report.mismatched + loaded.report.unexpected
    inputs = make_inputs(config, head)
    ours = jax.jit(partial(loaded.model.apply, return_dict=False))({"params": loaded.params}, **inputs)
    for mine, theirs in zip(ours, their_outputs(model, inputs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_we_load_what_transformers_writes_and_compute_the_same(model_type, head, tmp_path):
    model = their_model(model_type, head)
    folder = write_folder("model.safetensors", model, tmp_path / "m")
    assert_same_outputs(folder, model, config_of(model_type, head), head)
    assert load(folder).num_parameters() == model.num_parameters()


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_transformers_loads_what_we_write_without_a_word(model_type, head, tmp_path, silent):
    theirs = their_model(model_type, head)
    config, params, report = read_model(write_folder("model.safetensors", theirs, tmp_path / "theirs"))
    ours = save_pretrained(tmp_path / "ours", config, params, None, head=report.head)
    again = their_load(config, head, ours)
    inputs = make_inputs(config, head)
    for mine, other in zip(their_outputs(again, inputs), their_outputs(theirs, inputs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6)
    a, b = load_file(tmp_path / "theirs" / "model.safetensors"), load_file(ours / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(a[key].tobytes() == b[key].tobytes() for key in a)


@pytest.mark.parametrize(("model_type", "head", "fields"), OPTIONS)
def test_options_go_there_and_back(model_type, head, fields, tmp_path, silent):
    config = config_of(model_type, head, **fields)
    theirs = reference(config, head)
    folder = write_folder("model.safetensors", theirs, tmp_path / "theirs")
    read = read_model(folder)
    ours = save_pretrained(tmp_path / "ours", read.config, read.params, None, head=head)
    a, b = load_file(folder / "model.safetensors"), load_file(ours / "model.safetensors")
    assert a.keys() == b.keys()
    bias = {key for key in a if key.endswith("bias") and not config.tie_word_embeddings}
    for key in a.keys() - bias:
        assert a[key].tobytes() == b[key].tobytes(), key
    model = their_load(config, head, ours)
    if not config.add_cross_attention:
        assert_same_outputs(folder, theirs, config, head)
        inputs = make_inputs(config, head)
        for mine, other in zip(their_outputs(model, inputs), their_outputs(theirs, inputs), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_the_family_s_prefix_may_be_there_or_not(model_type, head, tmp_path):
    config = config_of(model_type, head)
    prefix = FAMILIES[config.family].prefix
    folder = write_folder("model.safetensors", their_model(model_type, head), tmp_path / "m")
    expected = read_model(folder)
    tensors = load_file(folder / "model.safetensors")
    if head.startswith("encoder"):
        other = {prefix + key: array for key, array in tensors.items()}
    else:
        other = {key.removeprefix(prefix): array for key, array in tensors.items()}
    assert other.keys() != tensors.keys()
    save_file(other, folder / "model.safetensors")
    assert_same_model(read_model(folder), expected)


@pytest.mark.parametrize(("form", "model_type", "head"), READ)
def test_each_format_is_the_same_model(form, model_type, head, tmp_path):
    model = their_model(model_type, head)
    expected = read_model(write_folder("model.safetensors", model, tmp_path / "plain"))
    # Google's config knows neither classes nor the class.
    said = {"head": head, "labels": expected.config.labels} if form == "bert_model.ckpt" else {}
    assert_same_model(read_model(write_folder(form, model, tmp_path / "m"), **said), expected)


def assert_same_model(found, expected) -> None:
    found.report.check()
    assert not found.report.unexpected
    assert found.report.head == expected.report.head
    ours, theirs = flatten(found.params), flatten(expected.params)
    assert ours.keys() == theirs.keys()
    for path, array in theirs.items():
        assert ours[path].tobytes() == array.tobytes(), path


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_what_we_write_in_shards_is_read_here_and_there(model_type, head, tmp_path, silent):
    model = their_model(model_type, head)
    expected = read_model(write_folder("model.safetensors", model, tmp_path / "theirs"))
    config = expected.config
    ours = save_pretrained(tmp_path / "ours", config, expected.params, None, head=head, max_shard_size="8KB")
    assert len(list(ours.glob("model-*.safetensors"))) > 2
    found = read_model(ours)
    assert found.report.verified is True
    assert_same_model(found, expected)
    state = their_load(config, head, ours).state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


def tokenizer_of(model_type: str, folder: Path) -> Tokenizer:
    match model_type:
        case "bert" | "distilbert" | "electra":
            pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "Hello", "##s", ",", ".", "w"]
            write(folder, vocab__txt="\n".join(pieces) + "\n", tokenizer_config__json={"do_lower_case": False})
        case "roberta":
            write(folder, **byte_level_files())
        case "albert":
            write(folder, spiece__model=albert_spiece())
        case _:
            write(folder, sentencepiece__bpe__model=fairseq_spiece())
    write(folder, config__json={"model_type": model_type})
    return Tokenizer.load(folder)


@pytest.mark.parametrize("model_type", SENTENCES)
def test_the_tokenizer_of_a_folder_gives_transformers_the_same_ids(model_type, tmp_path, silent):
    tokenizer = tokenizer_of(model_type, tmp_path / "tokenizer")
    config = config_of(model_type, "mlm").replace(vocab_size=tokenizer.vocab_size + 3)
    model = read_model(write_folder("model.safetensors", reference(config, "mlm"), tmp_path / "theirs"))
    ours = save_pretrained(tmp_path / "ours", config, model.params, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(ours)
    texts = ["hello world.", "Hello, worlds", "hello " * 30]
    options = {"truncation": True, "padding": True}
    expected, found = theirs(texts, **options), load(ours).tokenizer(texts, padding="longest")
    assert theirs.model_max_length == config.longest_input
    assert expected["input_ids"] == found["input_ids"].tolist()
    assert expected["attention_mask"] == found["attention_mask"].tolist()


@pytest.mark.parametrize(("model_type", "head"), ENCODERS)
def test_sentence_transformers_takes_the_encoder_of_each_family(model_type, head, tmp_path, request):
    from sentence_transformers import SentenceTransformer

    if head == "encoder":
        request.getfixturevalue("silent")  # without a pooler a report says that it is missing
    tokenizer = tokenizer_of(model_type, tmp_path / "tokenizer")
    config = config_of(model_type, head).replace(vocab_size=tokenizer.vocab_size)
    model = read_model(write_folder("model.safetensors", reference(config, head), tmp_path / "theirs"))
    ours = save_pretrained(tmp_path / "ours", config, model.params, tokenizer, sentence_transformers="mean")
    texts = ["hello world.", "Hello, worlds", "hello " * 30]
    vectors = SentenceTransformer(str(ours), device="cpu").encode(texts, show_progress_bar=False)
    loaded = load(ours)
    tokens = tokenizer(texts, padding="longest", max_length=config.longest_input)
    output = jax.jit(loaded.model.apply)({"params": loaded.params}, **tokens)
    weights = tokens["attention_mask"][..., None]
    mean = (output.last_hidden_state * weights).sum(1) / weights.sum(1)
    np.testing.assert_allclose(vectors, mean, rtol=1e-4, atol=1e-5)
