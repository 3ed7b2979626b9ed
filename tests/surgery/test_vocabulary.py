"""Words of a domain as tokens: their ids, the rows that they get, and words that cannot be tokens."""

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.surgery.vocabulary import add_words, set_token_rows
from tests.data.tokenizer.tokenizer_folders import albert_spiece, byte_level_files, write

PIECES = [
    *("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("co", "##vid", "fever", "is", "##s"),
]
CONFIG = BertConfig(vocab_size=12, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES, cased=False)


@pytest.fixture
def params():
    random = np.random.default_rng(0)
    return {
        "bert": {"embeddings": {"word_embeddings": random.normal(size=(12, 4)).astype(np.float32)}, "encoder": {}},
        "mlm_head": {"bias": random.normal(size=12).astype(np.float32), "transform": {}},
    }


def test_appended_words_are_pieces_whose_rows_are_the_mean(tokenizer, params):
    config, tree, grown, ids = add_words(CONFIG, params, tokenizer, ["Covid", "fever", "remdesivir"])
    assert ids == {"covid": 12, "remdesivir": 13}
    assert config == CONFIG.replace(vocab_size=14)
    assert grown.tokenize("COVID is remdesivirs covids") == ["covid", "is", "remdesivir", "##s", "covid", "##s"]
    assert tokenizer.tokenize("covid") == ["co", "##vid"]
    table, before = tree["bert"]["embeddings"]["word_embeddings"], params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(table[:12], before)
    np.testing.assert_allclose(table[12:], np.tile(before.mean(axis=0), (2, 1)), rtol=1e-6)
    np.testing.assert_allclose(tree["mlm_head"]["bias"][12:], params["mlm_head"]["bias"].mean(), rtol=1e-6)
    assert before.shape == (12, 4)


def test_unused_places_are_filled_in_order_and_no_size_changes(tokenizer, params):
    config, tree, grown, ids = add_words(
        CONFIG, params, tokenizer, ["covid", "##ase"], into_unused=True, initial="pieces"
    )
    assert ids == {"covid": 1, "##ase": 2}
    assert (config, grown.vocab_size) == (CONFIG, 12)
    before = params["bert"]["embeddings"]["word_embeddings"]
    table = tree["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_allclose(table[1], before[[7, 8]].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(table[3:], before[3:])


def test_an_unused_place_that_is_a_token_in_texts_is_not_free(params, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (tmp_path / "tokenizer_config.json").write_text('{"additional_special_tokens": ["[unused0]"]}')
    marked = Tokenizer.load(tmp_path)
    _, tree, grown, ids = add_words(CONFIG, params, marked, ["covid"], into_unused=True)
    assert ids == {"covid": 2}
    assert grown.tokenize("[unused0] covid") == ["[unused0]", "covid"]
    table, before = tree["bert"]["embeddings"]["word_embeddings"], params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(table[1], before[1])
    with pytest.raises(UserError, match=r"2 new words, but the vocabulary has 1 free \[unusedN\] places"):
        add_words(CONFIG, params, marked, ["covid", "flu"], into_unused=True)


def test_the_rules_of_the_tokenizer_come_along(params, tmp_path):
    strict = Tokenizer.from_vocabulary(
        PIECES, cased=True, max_word_length=9, literal_special_tokens=False, max_length=7
    )
    grown = strict.with_words(["Covid"])[0]
    assert grown.tokenize("Covid covid [MASK]")[:3] == ["Covid", "co", "##vid"]
    assert (grown.max_word_length, grown.literal_special_tokens, grown.max_length) == (9, False, 7)
    grown.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.vocabulary == [*PIECES, "Covid"]
    assert again.tokenize("Covid") == ["Covid"]


def test_an_untied_decoder_grows_too(params):
    params["mlm_head"]["decoder"] = np.ones((12, 4), np.float32)
    tree = set_token_rows(CONFIG.replace(tie_word_embeddings=False), params, {12: [3], 2: None})[1]
    assert tree["mlm_head"]["decoder"].shape == (13, 4)
    np.testing.assert_array_equal(tree["mlm_head"]["bias"][12], params["mlm_head"]["bias"][3])


@pytest.mark.parametrize(
    ("words", "options", "line"),
    [
        (["covid-19"], {}, "'covid-19' is not one word for this tokenizer, which splits it into: covid - 19"),
        ([" "], {}, "which splits it into: nothing"),
        (["a" * 101], {}, "turns words of more than 100 into"),
        (
            ["one", "two", "three"],
            {"into_unused": True},
            r"3 new words, but the vocabulary has 2 free \[unusedN\] places",
        ),
        (["one"], {"initial": "zero"}, "initial='zero': expected one of mean, pieces"),
    ],
)
def test_words_that_cannot_be_tokens_are_named(tokenizer, params, words, options, line):
    with pytest.raises(UserError, match=line):
        add_words(CONFIG, params, tokenizer, words, **options)


def test_a_table_longer_than_the_vocabulary_is_not_appended_to(tokenizer, params):
    with pytest.raises(UserError, match="the tokenizer has 12 tokens, but the table has 16 rows"):
        add_words(CONFIG.replace(vocab_size=16), params, tokenizer, ["one"])


def test_a_byte_level_word_starts_from_the_pieces_that_it_has_after_a_space(tmp_path):
    bpe = Tokenizer.load(write(tmp_path, **byte_level_files()))
    table = np.random.default_rng(1).normal(size=(bpe.vocab_size, 4)).astype(np.float32)
    config = CONFIG.replace(model_type="roberta", vocab_size=len(table))
    tree = {"embeddings": {"word_embeddings": table}}
    _, tree, _, ids = add_words(config, tree, bpe, ["worlda"], initial="pieces")
    pieces = bpe.tokens_to_ids(["Ġworld", "a"])
    grown = tree["embeddings"]["word_embeddings"][ids["worlda"]]
    np.testing.assert_allclose(grown, table[pieces].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "new", "files"),
    [("roberta", ["worlda"], byte_level_files()), ("albert", ["worlda", "中"], {"spiece__model": albert_spiece()})],
)
def test_a_word_that_is_one_token_after_a_space_keeps_what_it_has_learnt(model_type, new, files, tmp_path):
    settings = {"config__json": {"model_type": model_type}, "tokenizer_config__json": {"do_lower_case": True}}
    there = Tokenizer.load(write(tmp_path, **settings, **files))
    grown, found = there.with_words(["world", *new])
    assert found == new
    assert grown.tokenize("hello world") == there.tokenize("hello world")


def test_special_tokens_in_a_text_stay_text_once_byte_level_words_are_added(tmp_path):
    strict = Tokenizer.load(write(tmp_path, **byte_level_files()), literal_special_tokens=False)
    grown = strict.with_words(["worlda"])[0]
    before = strict.tokenize("hello <s> ")
    assert "<s>" not in before and grown.tokenize("hello <s> worlda") == [*before, "worlda"]


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({13: None}, r"new tokens have ids \[13\]; expected ids from 12 on, without a gap"),
        ({-1: None}, r"new tokens have ids \[-1\]; expected ids from 12 on"),
        ({12: [12]}, "token 12 has row 12 among its sources; the table has 12 rows"),
        ({12: []}, "token 12 has no rows among its sources"),
    ],
)
def test_ids_with_a_gap_and_rows_that_are_not_there_are_refused(params, sources, says):
    with pytest.raises(UserError, match=says):
        set_token_rows(CONFIG, params, sources)
