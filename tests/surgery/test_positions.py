"""Longer tables of positions: which rows they get, what stays equal, and what cannot be extended."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert
from bert_jax.surgery.positions import extend_positions

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=6,
)
ROBERTA = CONFIG.replace(model_type="roberta", pad_token_id=1, max_position_embeddings=8, type_vocab_size=1)
ROWS = np.arange(8, dtype=np.float32)[:, None] * np.ones(12, np.float32)


def hidden(config: BertConfig, params, ids) -> np.ndarray:
    output: Any = Bert(config).apply({"params": params}, ids)
    return output.last_hidden_state


def tree(rows: int):
    return {"embeddings": {"position_embeddings": ROWS[:rows], "word_embeddings": ROWS}, "encoder": {}}


def test_tiled_rows_begin_again():
    config, after = extend_positions(CONFIG, tree(6), 15)
    assert config == CONFIG.replace(max_position_embeddings=15)
    np.testing.assert_array_equal(after["embeddings"]["position_embeddings"][:, 0], [*range(6), *range(6), 0, 1, 2])
    assert after["embeddings"]["word_embeddings"] is ROWS


def test_interpolated_rows_lie_on_the_line_between_their_neighbours():
    rows = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
    params = {"bert": tree(6) | {"embeddings": {"position_embeddings": rows}}}
    after = extend_positions(CONFIG, params, 11, how="interpolate")[1]["bert"]["embeddings"]["position_embeddings"]
    np.testing.assert_array_equal(after[::2], rows)
    expected = np.stack([np.interp(np.linspace(0, 5, 11), np.arange(6), column) for column in rows.T], axis=1)
    np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_roberta_keeps_the_rows_before_its_first_position():
    config, after = extend_positions(ROBERTA, tree(8), 8)
    assert (config.max_position_embeddings, config.longest_input) == (10, 8)
    np.testing.assert_array_equal(after["embeddings"]["position_embeddings"][:, 0], [0, 1, *range(2, 8), 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, ROBERTA], ids=["bert", "roberta"])
def test_a_tiled_model_answers_short_inputs_as_before_and_long_ones_at_all(config):
    short = jnp.array([[5, 6, 7, 8, 9, 10]])
    params = Bert(config).init(jax.random.key(0), short)["params"]
    after, longer = extend_positions(config, params, 12)
    before = hidden(config, params, short)
    np.testing.assert_array_equal(hidden(after, longer, short), before)
    assert np.isfinite(hidden(after, longer, jnp.tile(short, 2))).all()


@pytest.mark.parametrize(
    ("changes", "length", "how", "line"),
    [
        ({}, 6, "tile", "length=6: the model already takes 6 positions"),
        ({}, 9, "stretch", "how='stretch': expected one of tile, interpolate"),
        ({}, 10**12, "tile", "length=1000000000000: max_position_embeddings=1000000000000: expected at most 16777216"),
        ({"position_embedding_type": "relative_key"}, 9, "tile", "positions are relative_key in this model"),
        (
            {"max_position_embeddings": 7},
            9,
            "tile",
            "position_embeddings has 6 rows; expected max_position_embeddings=7",
        ),
    ],
)
def test_what_cannot_be_extended_is_named(changes, length, how, line):
    with pytest.raises(UserError, match=line):
        extend_positions(CONFIG.replace(**changes), tree(6), length, how=how)
