"""What goes wrong silently between tools: a test for each trap, with transformers and sentence-transformers."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load
from bert_jax.formats.read import read_model
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.tree import flatten, sha256_of_parameters
from tests import tiny

pytestmark = pytest.mark.parity

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "The", "the", "cat", "Zoë", "zoe", "zoë", "sat", "##s", "is", "a", "w", "##w", ",", "."]
TEXTS = ["The cat sat.", "the cats, Zoë", "Zoë is a cat"]
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BIAS, DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def make_config(**fields: Any) -> BertConfig:
    sizes = {
        "vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 64,
    }  # fmt: skip
    return BertConfig(**(sizes | fields))


def make_folder(path: Path, head: str = "pretraining", cased: bool = True, **fields: Any) -> Path:
    config = make_config(**fields)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=cased, strip_accents=False if cased else None)
    return save_pretrained(path, config, tiny.random_params(config, 0, head, scale=0.3), tokenizer, head=head)


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file; None takes one away."""
    known = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in known.items() if value is not None}))


def change_weights(folder: Path, metadata: dict[str, str] | None = None, **changes: Any) -> dict[str, np.ndarray]:
    """Write the weights again with another writer, some changed."""
    tensors = load_file(folder / "model.safetensors") | changes
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    return tensors


def run_theirs(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model.eval()(**tokens)


# The tokenizer's files


def test_a_cased_vocabulary_is_lower_cased_unless_the_folder_says_otherwise(tmp_path):
    """transformers 5 rebuilds the pipeline and takes a missing do_lower_case as true."""
    folder = make_folder(tmp_path / "m")
    assert AutoTokenizer.from_pretrained(folder).tokenize("The Zoë") == ["The", "Zoë"]
    change(folder / "tokenizer_config.json", do_lower_case=None, strip_accents=None)
    assert AutoTokenizer.from_pretrained(folder).tokenize("The Zoë") == ["the", "zoe"]  # the trap itself


@pytest.mark.parametrize(("cased", "strip_accents"), [(True, False), (False, None), (False, False), (False, True)])
def test_everything_that_decides_on_ids_is_written_out(tmp_path, cased, strip_accents):
    """Class, casing, accents, Chinese characters, length and special tokens: nothing is left to defaults."""
    config = make_config()
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=cased, strip_accents=strip_accents)
    folder = save_pretrained(tmp_path / "m", config, tiny.random_params(config, 0, "mlm", scale=0.3), tokenizer)
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    roles = {f"{role}_token" for role in ("cls", "sep", "pad", "mask", "unk")}
    written = {"tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "model_max_length"}
    assert written | roles <= set(fields)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert [theirs.encode(text) for text in TEXTS] == [row.tolist() for row in (tokenizer(t)["input_ids"][0] for t in TEXTS)]  # fmt: skip


def test_texts_are_cut_at_the_model_s_length(tmp_path):
    """model_max_length is not taken from the config: without it transformers cuts nothing, and dies in the model."""
    folder = make_folder(tmp_path / "m")
    theirs, ours = AutoTokenizer.from_pretrained(folder), load(folder).tokenizer
    assert ours is not None
    assert theirs.model_max_length == 64
    long = "cat " * 200
    assert theirs(long, truncation=True)["input_ids"] == ours(long)["input_ids"][0].tolist()
    with pytest.raises(UserError, match="200 tokens"):
        ours(long, truncation="none")


def test_the_class_gives_token_types_and_special_tokens(tmp_path):
    """Without tokenizer_class and model_type it would be a class without either."""
    tokenizer = AutoTokenizer.from_pretrained(make_folder(tmp_path / "m"))
    assert type(tokenizer).__name__.startswith("BertTokenizer")
    assert tokenizer("The cat", "sat")["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert (tokenizer.mask_token, tokenizer.pad_token_id) == ("[MASK]", 0)


@pytest.mark.parametrize("absent", ["vocab.txt", "tokenizer.json", "special_tokens_map.json"])
def test_either_file_of_the_vocabulary_gives_the_same_ids(tmp_path, absent):
    """Old tools read vocab.txt, new ones tokenizer.json; we and transformers need one of them and the settings."""
    folder = make_folder(tmp_path / "m")
    expected = [AutoTokenizer.from_pretrained(folder).encode(text) for text in TEXTS]
    (folder / absent).unlink()
    ours = load(folder).tokenizer
    assert ours is not None
    assert [ours(text)["input_ids"][0].tolist() for text in TEXTS] == expected
    assert [AutoTokenizer.from_pretrained(folder).encode(text) for text in TEXTS] == expected


def test_line_ends_of_another_system_in_the_vocabulary(tmp_path):
    """CRLF and no end of the last line: both read it."""
    folder = make_folder(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_bytes("\r\n".join(PIECES).encode())
    ours = load(folder).tokenizer
    assert ours is not None
    assert [ours(text)["input_ids"][0].tolist() for text in TEXTS] == [
        AutoTokenizer.from_pretrained(folder).encode(text) for text in TEXTS
    ]


def test_words_of_more_than_100_characters_are_unknown_to_both(tmp_path):
    """Google's limit is 200 characters, transformers' 100 and cannot be told."""
    folder = make_folder(tmp_path / "m")
    theirs, ours = AutoTokenizer.from_pretrained(folder), load(folder).tokenizer
    assert ours is not None
    for length, count in ((50, 52), (101, 3)):
        ids = ours("w" * length)["input_ids"][0].tolist()
        assert len(ids) == count
        assert theirs.encode("w" * length) == ids


# config.json


def test_the_model_type_is_written_and_old_keys_are_passed_over(tmp_path, silent):
    """The family is no longer guessed from the folder's name; Google's leftovers do no harm."""
    folder = make_folder(tmp_path / "m")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    old = {"directionality": "bidi", "pooler_fc_size": 768, "gradient_checkpointing": False}
    change(folder / "config.json", **old)
    assert AutoConfig.from_pretrained(folder).hidden_size == load(folder).config.hidden_size == 16


@pytest.mark.parametrize(("field", "value"), [("layer_norm_eps", "1e-12"), ("hidden_size", "16")])
def test_numbers_are_numbers(tmp_path, field, value):
    """transformers 5 refuses text for a number, and a whole number for a float; so do we, in one line."""
    folder = make_folder(tmp_path / "m", hidden_dropout_prob=0)
    AutoConfig.from_pretrained(folder)
    change(folder / "config.json", **{field: value})
    with pytest.raises(Exception, match=field):
        AutoConfig.from_pretrained(folder)
    with pytest.raises(UserError, match=rf"config\.json: {field}='{value}'"):
        load(folder)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_half_precision_becomes_float32_and_stays_it(tmp_path, key):
    """transformers 5 computes in the type that the file says: what we write says float32 and is it."""
    folder = make_folder(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    change_weights(folder, **{name: array.astype(np.float16) for name, array in tensors.items()})
    change(folder / "config.json", **{"dtype": None} | {key: "float16"})
    assert AutoModel.from_pretrained(folder, add_pooling_layer=True).dtype == torch.float16  # the trap itself
    ours = load(folder)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ours.params)} == {"float32"}
    again = save_pretrained(tmp_path / "again", ours.config, ours.params, None)
    assert json.loads((again / "config.json").read_text())["dtype"] == "float32"
    assert transformers.BertForPreTraining.from_pretrained(again).dtype == torch.float32


def test_labels_are_named_counted_or_missing(tmp_path):
    """Names and ids both ways; a number alone will do; with neither, three classes do not fit the default of two."""
    folder = make_folder(tmp_path / "m", "sequence-classification", labels=("bad", "fair", "good"))
    fields = json.loads((folder / "config.json").read_text())
    assert fields["id2label"] == {"0": "bad", "1": "fair", "2": "good"}
    assert fields["label2id"] == {"bad": 0, "fair": 1, "good": 2}
    assert AutoConfig.from_pretrained(folder).id2label[2] == "good"
    change(folder / "config.json", id2label=None, label2id=None, num_labels=3)
    assert load(folder).config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    change(folder / "config.json", num_labels=None)
    with pytest.raises(UserError, match=r"classifier\.weight has shape \(3, 16\).*num_labels=3"):
        load(folder)
    assert load(folder, num_labels=3).report.head == "sequence-classification"
    assert load(folder, labels=["a", "b", "c"]).config.labels == ("a", "b", "c")


def test_regression_is_one_label_and_says_so(tmp_path, silent):
    """One label alone would be taken for a classifier that always says the same."""
    folder = make_folder(tmp_path / "m", "sequence-classification", labels=("score",), problem_type="regression")
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    assert load(folder).config.problem_type == "regression"


def test_gelu_is_erf_as_transformers_reads_it_and_tanh_can_be_had(tmp_path):
    """Google's later code computes tanh for the same word; the difference is about 5e-4."""
    folder = make_folder(tmp_path / "m", "encoder")
    ours = load(folder)
    ids = np.array([[2, 5, 7, 11, 3]])
    hidden = {}
    for act in ("gelu", "gelu_new"):
        config = ours.config.replace(hidden_act=act)
        theirs = AutoModel.from_pretrained(folder, hidden_act=act)
        hidden[act] = run_theirs(theirs, {"input_ids": torch.tensor(ids)}).last_hidden_state.numpy()
        output: Any = ours.model.clone(config=config).apply({"params": ours.params}, ids)
        np.testing.assert_allclose(output.last_hidden_state, hidden[act], rtol=1e-4, atol=2e-5)
    assert 1e-5 < np.abs(hidden["gelu"] - hidden["gelu_new"]).max() < 5e-3
    x = np.linspace(-6, 6, 10_001)
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    erf = x * np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    assert 4e-4 < np.abs(tanh - erf).max() < 5e-4


# Weights


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "np"}, {"format": "tf"}])
def test_the_format_in_the_metadata_is_written_and_not_needed(tmp_path, metadata):
    """transformers 4 refuses "np", which NumPy's writer puts there; ours always says "pt"."""
    folder = make_folder(tmp_path / "m")
    with safe_open(folder / "model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"
    expected = sha256_of_parameters(read_model(folder).params)
    change_weights(folder, metadata)
    assert sha256_of_parameters(read_model(folder).params) == expected


@pytest.mark.parametrize("held", [(BIAS,), (BIAS, DECODER), (DECODER, DECODER_BIAS), (BIAS, DECODER, DECODER_BIAS)])
def test_tied_tensors_are_written_once_and_read_in_every_combination(tmp_path, held):
    """The decoder is the token table and its bias has two names; files hold any of them."""
    folder = make_folder(tmp_path / "m")
    expected = sha256_of_parameters(read_model(folder).params)
    tensors = load_file(folder / "model.safetensors")
    assert not {DECODER, DECODER_BIAS} & set(tensors)
    extra = {BIAS: tensors[BIAS], DECODER: tensors[WORDS], DECODER_BIAS: tensors[BIAS]}
    tensors.pop(BIAS)
    save_file(tensors | {key: extra[key].copy() for key in held}, folder / "model.safetensors")
    read = read_model(folder)
    read.report.check()
    assert sha256_of_parameters(read.params) == expected


def test_a_decoder_that_differs_is_noticed_and_one_that_is_missing_too(tmp_path):
    """transformers stops tying without an error, or draws a decoder at random; we say what is the matter."""
    folder = make_folder(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    change_weights(folder, **{DECODER: tensors[WORDS] + np.float32(1e-3)})
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.weight: differs"):
        load(folder)
    load(folder, allow_missing=(DECODER,))
    change(folder / "config.json", tie_word_embeddings=False)
    np.testing.assert_array_equal(load(folder).params["mlm_head"]["decoder"], tensors[WORDS] + np.float32(1e-3))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="missing: mlm_head/decoder"):
        load(folder)


def test_no_folder_is_for_every_class_so_one_is_written_for_each(tmp_path, caplog):
    """More than a class wants makes transformers print a table; the class that config.json names is silent."""
    folder = make_folder(tmp_path / "m")
    transformers.logging.enable_propagation()
    _, information = transformers.BertModel.from_pretrained(folder, output_loading_info=True)
    assert "UNEXPECTED" in caplog.text
    caplog.clear()
    transformers.BertForPreTraining.from_pretrained(folder)
    loaded = load(folder)
    encoder = save_pretrained(tmp_path / "encoder", loaded.config, loaded.params, None, head="encoder")
    _, alone = AutoModel.from_pretrained(encoder, output_loading_info=True)
    transformers.logging.disable_propagation()
    assert caplog.text == ""
    assert information["unexpected_keys"]
    assert not alone["unexpected_keys"]
    assert not alone["missing_keys"]


def test_what_old_files_hold_is_read(tmp_path):
    """No prefix, gamma and beta, a buffer of positions, a pickle: all in one file."""
    folder = make_folder(tmp_path / "m")
    expected = sha256_of_parameters(read_model(folder).params)
    old: dict[str, torch.Tensor] = {}
    for key, array in load_file(folder / "model.safetensors").items():
        key = key.removeprefix("bert.")
        if "LayerNorm" in key:
            key = key.replace("weight", "gamma").replace("bias", "beta")
        old[key] = torch.from_numpy(array)
    old["embeddings.position_ids"] = torch.arange(64)[None]
    torch.save(old, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    read = read_model(folder)
    assert sha256_of_parameters(read.params) == expected
    assert not read.report.unexpected


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda a: np.repeat(a, 2, -1)[..., ::2], jnp.asarray])
def test_arrays_of_any_memory_layout_are_written_in_order(tmp_path, layout):
    """The safetensors package scrambles what is not C-contiguous, and our kernels are transposed on the way out."""
    config = make_config()
    params = tiny.random_params(config, 0, "pretraining", scale=0.3)
    given = jax.tree.map(layout, params)
    folder = save_pretrained(tmp_path / "m", config, given, None)
    stored = load_file(folder / "model.safetensors")
    kernel = flatten(params)["bert/encoder/layer_1/feed_forward/intermediate/kernel"]
    np.testing.assert_array_equal(stored["bert.encoder.layer.1.intermediate.dense.weight"], kernel.T)
    assert sha256_of_parameters(read_model(folder).params) == sha256_of_parameters(params)


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions_are_kept_although_transformers_5_drops_them(tmp_path, kind):
    """It computes with absolute ones and only lists the tables as unexpected; the card says so."""
    folder = make_folder(tmp_path / "m", position_embedding_type=kind)
    stored = load_file(folder / "model.safetensors")
    assert stored["bert.encoder.layer.0.attention.self.distance_embedding.weight"].shape == (127, 8)
    ours = load(folder)
    assert ours.config.position_embedding_type == kind
    _, information = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert len(information["unexpected_keys"]) == 2  # the trap itself
    assert "transformers 5" in (folder / "README.md").read_text()


def test_pruned_heads_are_kept_although_transformers_5_cannot_load_them(tmp_path):
    """Narrower layers: transformers 4 prunes before it loads, 5 no longer."""
    folder = make_folder(tmp_path / "m", pruned_heads=((1, (0,)),))
    stored = load_file(folder / "model.safetensors")
    assert stored["bert.encoder.layer.1.attention.self.query.weight"].shape == (8, 16)
    assert stored["bert.encoder.layer.1.attention.output.dense.weight"].shape == (16, 8)
    assert json.loads((folder / "config.json").read_text())["pruned_heads"] == {"1": [0]}
    assert load(folder).config.pruned_heads == ((1, (0,)),)
    assert "transformers 5" in (folder / "README.md").read_text()


# Programs on top


@pytest.mark.parametrize(
    ("task", "head"),
    [
        ("fill-mask", "mlm"),
        ("text-classification", "sequence-classification"),
        ("token-classification", "token-classification"),
        ("feature-extraction", "encoder"),
    ],
)
def test_pipelines_of_transformers_take_our_folders_silently(tmp_path, silent, task, head):
    """And give our numbers."""
    folder = make_folder(tmp_path / "m", head)
    predict = transformers.pipeline(task, model=str(folder), device="cpu")
    found = predict("The [MASK] sat" if head == "mlm" else "The cat sat")
    ours = load(folder)
    tokens = ours.tokenizer("The [MASK] sat" if head == "mlm" else "The cat sat")
    output: Any = jax.jit(ours.model.apply)({"params": ours.params}, **tokens)
    match head:
        case "mlm":
            scores = jax.nn.softmax(output.prediction_logits[0, 2])
            np.testing.assert_allclose([row["score"] for row in found], jnp.sort(scores)[::-1][:5], rtol=1e-4)
        case "sequence-classification":
            np.testing.assert_allclose(found[0]["score"], jax.nn.softmax(output.logits[0]).max(), rtol=1e-4)
        case "token-classification":
            scores = jax.nn.softmax(output.logits[0], -1).max(-1)[1:-1]
            np.testing.assert_allclose([row["score"] for row in found], scores, rtol=1e-4)
        case _:
            np.testing.assert_allclose(found[0], output.last_hidden_state[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean+normalize"])
def test_sentence_transformers_takes_its_folder_silently(tmp_path, silent, pooling):
    """In the old layout, which all versions read; a bare folder it fills with mean pooling and says so."""
    from sentence_transformers import SentenceTransformer

    config = make_config()
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=True)
    params = tiny.random_params(config, 0, "encoder", scale=0.3)
    folder = save_pretrained(tmp_path / "m", config, params, tokenizer, sentence_transformers=pooling)
    kinds = [module["type"] for module in json.loads((folder / "modules.json").read_text())]
    assert all(kind.startswith("sentence_transformers.models.") for kind in kinds)
    assert json.loads((folder / "sentence_bert_config.json").read_text())["do_lower_case"] is False
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    ours = load(folder)
    tokens = tokenizer(TEXTS, padding="longest")
    output: Any = jax.jit(ours.model.apply)({"params": ours.params}, **tokens)
    hidden, valid = output.last_hidden_state, tokens["attention_mask"][..., None]
    vectors = {
        "mean": (hidden * valid).sum(1) / valid.sum(1),
        "cls": hidden[:, 0],
        "max": jnp.where(valid == 1, hidden, -jnp.inf).max(1),
    }[pooling.split("+")[0]]
    if "normalize" in pooling:
        vectors = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    np.testing.assert_allclose(theirs, vectors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "cat: "}, "default_prompt_name": "query"}),
        ("config_sentence_transformers.json", {"truncate_dim": 5}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}),  # none of them: the mean
    ],
)
def test_what_a_folder_says_about_its_vectors_is_done_as_sentence_transformers_does_it(tmp_path, name, fields):
    """Before and after a conversion. Capitals, accents, a sigma and a special token within the text."""
    from sentence_transformers import SentenceTransformer

    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=True)
    params = tiny.random_params(make_config(), 0, "encoder", scale=0.3)
    folder = save_pretrained(tmp_path / "m", make_config(), params, tokenizer, sentence_transformers="mean+normalize")
    (folder / "config_sentence_transformers.json").write_text("{}")
    change(folder / name, **fields)
    texts = [*TEXTS, "THE CAT", "ΣΑΣ ZOË [SEP] [sep]", ""]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
    for source in (folder, convert(folder, tmp_path / "converted").directory):
        ours = TextEmbedding(source, runtime="xla", dtype="float32")(texts)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    again = SentenceTransformer(str(tmp_path / "converted"), device="cpu").encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(again, theirs, atol=1e-5)


def test_prompts_are_those_of_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    params = tiny.random_params(make_config(), 0, "encoder", scale=0.3)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=True)
    folder = save_pretrained(tmp_path / "m", make_config(), params, tokenizer, sentence_transformers="mean+normalize")
    fields = {"prompts": {"query": "cat: ", "passage": "the "}, "default_prompt_name": "passage"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(fields))
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), TextEmbedding(folder, runtime="xla", dtype="float32")
    for said, prompt in (
        ({}, None),
        ({"prompt_name": "query"}, ours.prompts["query"]),
        ({"prompt_name": "document"}, ours.prompts["document"]),
        ({"prompt": "sat the "}, "sat the "),
        ({"prompt": ""}, ""),
    ):
        want = theirs.encode(TEXTS, show_progress_bar=False, **said)
        np.testing.assert_allclose(ours(TEXTS, prompt=prompt), want, atol=1e-5, err_msg=str(said))


def test_a_cross_encoder_is_a_classifier_of_one_label(tmp_path, silent):
    """sentence-transformers takes such a folder as it is."""
    from sentence_transformers import CrossEncoder

    folder = make_folder(tmp_path / "m", "sequence-classification", labels=("score",))
    theirs = CrossEncoder(str(folder), device="cpu").predict([("The cat", "sat")], show_progress_bar=False)
    ours = load(folder)
    output: Any = ours.model.apply({"params": ours.params}, **ours.tokenizer([("The cat", "sat")]))
    np.testing.assert_allclose(theirs, jax.nn.sigmoid(output.logits[:, 0]), rtol=1e-4)


def test_a_copy_of_our_folder_is_ours_too(tmp_path):
    """Nothing in a folder depends on where it was written."""
    folder = make_folder(tmp_path / "m")
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert sha256_of_parameters(load(copy).params) == sha256_of_parameters(load(folder).params)
