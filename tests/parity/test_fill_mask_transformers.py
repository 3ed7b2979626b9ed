"""fill-mask of each family against transformers' pipeline on the same exported folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import FillMask
from tests import tiny
from tests.data.tokenizer.tokenizer_folders import albert_spiece, byte_level_files, write

pytestmark = pytest.mark.parity

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "held", "##s", *"helowrd,."]
FIELDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5},
    "albert": {
        "embedding_size": 6, "num_hidden_groups": 1, "hidden_act": "gelu_new", "bos_token_id": 2, "eos_token_id": 3,
        "classifier_dropout": 0.1,
    },
    "distilbert": {},
}  # fmt: skip


def tokenizer_of(family: str, folder: Path) -> Tokenizer:
    if family == "roberta":
        return Tokenizer.load(write(folder, **byte_level_files()))
    if family == "albert":
        return Tokenizer.load(write(folder, spiece__model=albert_spiece()))
    return Tokenizer.from_vocabulary(PIECES, cased=False)


@pytest.fixture(scope="module", params=FIELDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, as it is exported."""
    path = tmp_path_factory.mktemp(request.param)
    tokenizer = tokenizer_of(request.param, path / "tokenizer")
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=34, model_type=request.param, **FIELDS[request.param],
    )  # fmt: skip
    return save_pretrained(path / "model", config, tiny.random_params(config, 0, "mlm"), tokenizer, head="mlm")


def rows_of(result: list[Any]) -> list[dict[str, Any]]:
    """The dicts of a result, with one mask or several."""
    return result if isinstance(result[0], dict) else [row for mask in result for row in mask]


def test_fill_mask_is_transformers_own(folder: Path):
    predict = FillMask(folder, batch_size=4)
    mask = predict.tokenizer.mask_token
    texts = [f"hello {mask}.", f"{mask} world, hello world held hello world.", f"hello, {mask} {mask} world"]
    theirs: Any = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    for ours, expected in zip(predict(texts, top_k=4), [theirs(text, top_k=4) for text in texts], strict=True):
        for row, want in zip(rows_of(ours), rows_of(expected), strict=True):
            assert (row["token"], row["token_str"], row["sequence"]) == (
                want["token"], want["token_str"], want["sequence"],
            )  # fmt: skip
            assert row["score"] == pytest.approx(want["score"], rel=1e-4)


def test_options_are_given_once_for_all_calls_or_for_one(folder: Path):
    tokens = FillMask(folder).tokenizer.ids_to_tokens([9, 7])
    for options in ({"top_k": 2}, {"targets": tokens}, {"top_k": 1, "targets": tokens[0]}):
        predict = FillMask(folder, **options)
        theirs: Any = transformers.pipeline("fill-mask", model=str(folder), device="cpu", **options)
        text = f"hello {predict.tokenizer.mask_token}"
        for call in ({}, {"top_k": 1}):
            expected = theirs(text, **call)
            assert [row["token"] for row in predict(text, **call)] == [row["token"] for row in expected]
        assert predict(text, **options) == FillMask(folder)(text, **options)


def test_a_text_is_truncated_on_the_side_that_the_folder_says(folder: Path, tmp_path: Path):
    left = shutil.copytree(folder, tmp_path / "left")
    settings = json.loads((left / "tokenizer_config.json").read_text())
    (left / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    predict = FillMask(left)
    text = "world held hello " * 9 + predict.tokenizer.mask_token + " hello"
    theirs: Any = transformers.pipeline("fill-mask", model=str(left), device="cpu")
    options = {"top_k": 4, "tokenizer_kwargs": {"truncation": True, "max_length": 12}}
    for row, want in zip(predict(text, **options), theirs(text, **options), strict=True):
        assert (row["token"], row["sequence"]) == (want["token"], want["sequence"])
        assert row["score"] == pytest.approx(want["score"], rel=1e-4)


def test_another_familys_mask_is_one_line_that_names_this_models(folder: Path):
    predict = FillMask(folder)
    mine = predict.tokenizer.mask_token
    foreign = "<mask>" if mine == "[MASK]" else "[MASK]"
    with pytest.raises(UserError) as error:
        predict(f"hello {foreign} world")
    assert f"has no {mine}" in str(error.value) and f"not {foreign}" in str(error.value)
    assert "\n" not in str(error.value)
