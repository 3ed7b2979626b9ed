"""transformers loads our exports without a warning, with the same ids, logits and filled masks; and back again."""

import gzip
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)

from bert_jax.config import BertConfig
from bert_jax.data.tasks import unknown
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.load import load
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import pipeline
from bert_jax.tree import flatten, sha256_of_parameters, unflatten
from tests import tiny

pytestmark = pytest.mark.parity

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "The Quick brown fox, Résumé of a naïve Zoë; don't [MASK] it!",
    "대한민국의 수도는 [MASK]이며, 가장 큰 도시이다.",
    "北京是[MASK]国的首都。 Ünïcode ÀÉÎ ﬁ ½ 🙂",
    "word" * 25 + "s [MASK] " + "word" * 26,
    "[MASK]",
]
CASES = {  # name -> Tokenizer.from_vocabulary's options
    "cased": {"cased": True},
    "uncased": {"cased": False},
    "korean-cased": {"cased": True, "strip_accents": False},
    "korean-uncased": {"cased": False, "strip_accents": False},
}
MODELS = {
    "pretraining": BertForPreTraining,
    "mlm": BertForMaskedLM,
    "nsp": BertForNextSentencePrediction,
    "encoder": BertModel,
}


def letters_and_words() -> list[str]:
    """Pieces for TEXTS in every spelling: words as they stand and in small letters, and every letter of them."""
    texts = [*TEXTS, *(text.lower() for text in TEXTS), "resume naive zoe unicode aei"]
    words = {word for text in texts for word in text.replace("[MASK]", " ").split() if len(word) < 9}
    letters = {letter for text in texts for letter in text if not letter.isspace()}
    return [*SPECIAL, *sorted(words | letters), *sorted(f"##{letter}" for letter in letters)]


def random_model(vocab_size: int, seed: int = 0) -> tuple[BertConfig, dict]:
    config = BertConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=128,
    )  # fmt: skip
    flat = tiny.random_flat(config, seed, scale=0.3)
    for path in flat:
        if path.endswith("/scale"):
            flat[path] += 1
    return config, unflatten(flat)


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory) -> Path:
    """An export of a random model, with one of four kinds of vocabulary."""
    tokenizer = Tokenizer.from_vocabulary(letters_and_words(), **CASES[request.param])
    config, params = random_model(tokenizer.vocab_size)
    return save_pretrained(tmp_path_factory.mktemp("export") / request.param, config, params, tokenizer)


def load_theirs(model_class, folder: Path):
    model, information = model_class.from_pretrained(folder, output_loading_info=True)
    assert {name: list(keys) for name, keys in information.items() if keys} == {}
    return model.eval()


def compare_logits(folder: Path, model, inputs: dict[str, np.ndarray]) -> None:
    ours = load(folder)
    output = jax.jit(ours.model.apply)({"params": ours.params}, **inputs)
    with torch.no_grad():
        theirs = model(**{name: torch.tensor(array) for name, array in inputs.items()})
    np.testing.assert_allclose(output.prediction_logits, theirs.prediction_logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output.seq_relationship_logits, theirs.seq_relationship_logits, rtol=1e-4, atol=1e-4)


def test_an_export_loads_without_a_word_and_gives_the_same_ids_and_logits(folder, silent):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = load(folder).tokenizer
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    for theirs, mine in (
        (tokenizer(TEXTS, padding=True), ours(TEXTS, padding="longest")),
        (tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True), ours(pairs, padding="longest")),
    ):
        assert theirs.keys() == mine.keys()
        for name in mine:
            assert np.array_equal(mine[name], theirs[name]), name
    assert tokenizer.model_max_length == 128
    assert type(tokenizer).__name__.startswith("BertTokenizer")

    model = load_theirs(BertForPreTraining, folder)
    assert model.dtype == torch.float32
    assert model.cls.predictions.decoder.weight.data_ptr() == model.bert.embeddings.word_embeddings.weight.data_ptr()
    compare_logits(folder, model, ours(TEXTS, padding="longest"))


def test_capital_letters_and_syllables_survive_where_they_should(folder):
    """The trap: a folder that does not say do_lower_case and strip_accents is read as uncased, without a warning."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    assert fields["tokenizer_class"] == "BertTokenizer"
    roles = {f"{role}_token" for role in ("cls", "sep", "pad", "mask", "unk")}
    assert {"do_lower_case", "strip_accents", "tokenize_chinese_chars", "model_max_length", *roles} <= set(fields)
    expected = {"cased": "Zoë;", "uncased": "zoe", "korean-cased": "Zoë;", "korean-uncased": "zoë;"}[folder.name]
    assert tokenizer.decode(tokenizer("Zoë;", add_special_tokens=False)["input_ids"]).startswith(expected[:3])
    hangul = tokenizer.tokenize("대한민국의")
    assert (hangul == ["대한민국의"]) == (folder.name != "uncased")

    del fields["do_lower_case"], fields["strip_accents"]  # the same folder, fallen into the trap
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-without"))
    (copy / "tokenizer_config.json").write_text(json.dumps(fields))
    assert (AutoTokenizer.from_pretrained(copy).tokenize("대한민국의 Zoë") == tokenizer.tokenize("대한민국의 Zoë")) == (
        folder.name == "uncased"
    )


@pytest.mark.parametrize("head", MODELS)
def test_each_head_loads_silently_into_its_own_class(head, tmp_path, silent):
    tokenizer = Tokenizer.from_vocabulary(letters_and_words(), cased=True)
    config, params = random_model(tokenizer.vocab_size)
    folder = save_pretrained(tmp_path / head, config, params, tokenizer, head=head)
    model = load_theirs(MODELS[head], folder)
    ours = load(folder)
    inputs = tokenizer(TEXTS[:2], padding="longest")
    output = jax.tree.leaves(jax.jit(ours.model.apply)({"params": ours.params}, **inputs))
    with torch.no_grad():
        theirs = model(**{name: torch.tensor(array) for name, array in inputs.items()}).to_tuple()
    for mine, other in zip(output, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("folder", ["uncased", "korean-cased"], indirect=True)
def test_fill_mask_gives_the_same_tokens_and_scores(folder, tmp_path, silent, monkeypatch):
    monkeypatch.setattr(unknown, "FEWEST", 1_000)  # the model knows few words
    exported = load(folder)
    source = save_pretrained(tmp_path / "mlm", exported.config, exported.params, exported.tokenizer, head="mlm")
    theirs = transformers.pipeline("fill-mask", model=str(source), device="cpu")
    ours = pipeline("fill-mask", source)
    texts = [*TEXTS[:3], "[MASK] the [MASK]."]
    for text, mine in zip(texts, ours(texts, top_k=5), strict=True):
        other = theirs(text, top_k=5)
        if isinstance(mine[0], dict):
            mine, other = [mine], [other]
        for row, expected in zip(mine, other, strict=True):
            assert [{**found, "score": None} for found in row] == [{**found, "score": None} for found in expected]
            scores = [found["score"] for found in expected]
            np.testing.assert_allclose([found["score"] for found in row], scores, rtol=1e-4, atol=1e-7)


def test_their_folder_read_written_and_read_again_is_bitwise(tmp_path, silent):
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_vocabulary(letters_and_words(), cased=False)
    config, _ = random_model(tokenizer.vocab_size)
    fields = config.to_json() | {"initializer_range": 0.3}
    model = BertForPreTraining(transformers.BertConfig(**fields)).eval()
    model.save_pretrained(tmp_path / "theirs")
    first = load(tmp_path / "theirs")
    assert not first.report.unexpected
    tokenizer.save(tmp_path / "theirs")
    compare_logits(tmp_path / "theirs", model, tokenizer(TEXTS, padding="longest"))

    ours = save_pretrained(tmp_path / "ours", first.config, first.params, tokenizer)
    assert sha256_of_parameters(load(ours).params) == sha256_of_parameters(first.params)
    with (
        safe_open(tmp_path / "theirs" / "model.safetensors", "np") as a,
        safe_open(ours / "model.safetensors", "np") as b,
    ):
        assert set(a.keys()) == set(b.keys())
        assert b.metadata()["format"] == "pt"
        for key in a.keys():  # noqa: SIM118
            assert a.get_tensor(key).tobytes() == b.get_tensor(key).tobytes(), key


def test_their_bare_encoder_and_their_half_precision_are_read(tmp_path):
    torch.manual_seed(0)
    config, _ = random_model(40)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = BertModel(transformers.BertConfig(**config.to_json())).to(dtype)
        model.save_pretrained(tmp_path / str(dtype))
        ours = load(tmp_path / str(dtype))
        assert ours.report.head == "encoder"
        kernel = model.encoder.layer[1].intermediate.dense.weight.detach().float().numpy().T
        np.testing.assert_array_equal(flatten(ours.params)["encoder/layer_1/feed_forward/intermediate/kernel"], kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cased"),
    [("bert-base-cased", True), ("bert-base-uncased", False), ("koelectra-v1", True)],
)
def test_published_vocabularies_keep_their_ids(name, cased, data_dir, tmp_path, silent):
    with (
        gzip.open(data_dir / "checkpoints" / "vocab" / f"{name}-vocab.txt.gz") as source,
        open(tmp_path / "vocab.txt", "wb") as target,
    ):
        shutil.copyfileobj(source, target)
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt", cased=cased)
    config, params = random_model(tokenizer.vocab_size)
    folder = save_pretrained(tmp_path / "export", config, params, tokenizer)
    theirs = AutoTokenizer.from_pretrained(folder)
    with gzip.open(data_dir / "text" / "hostile.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        lines = [*TEXTS, *(line.rstrip("\n")[:2000] for line in list(file)[:300])]
    ours = load(folder).tokenizer(lines, padding="longest", truncation="longest_first", max_length=128)
    expected = theirs(lines, padding=True, truncation=True, max_length=128)
    for key, array in ours.items():
        assert np.array_equal(array, expected[key]), key
    inputs = {key: array[:8] for key, array in ours.items()}
    compare_logits(folder, load_theirs(BertForPreTraining, folder), inputs)
