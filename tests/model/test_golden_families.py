"""Golden values of RoBERTa, ALBERT and DistilBERT: those of transformers for weights that follow from their names.

An independent NumPy model agrees to six decimals.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.model.embeddings import packed_inputs, positions_of, sinusoids
from bert_jax.model.heads import BertForMaskedLM, BertForPreTraining
from tests.model.golden import IDS, MASK, TYPES, golden_params

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
# hidden state of the first token of row 0, and of the third of row 1; logits of one place.
ROBERTA = {
    "last": [[-1.896243, -0.525279, -0.067151, 0.401730], [-1.815447, -0.475579, -0.022247, 0.463908]],
    "logits": ((1, 1), [-0.014310, -0.271736, -0.123949, -0.448760]),
}
ALBERT = {
    "last": [[-0.047398, -0.407199, 0.317804, -1.599886], [0.006548, -0.298992, 0.217704, -1.834093]],
    "logits": ((0, 1), [-0.005983, 0.342024, -0.075626, -0.664722]),
}
DISTILBERT = {
    "last": [[0.304137, 1.509386, -0.094455, 0.910387], [0.219555, 1.216628, 0.232320, 1.035259]],
    "logits": ((0, 1), [-0.339216, -0.214761, -0.256681, -0.422597]),
}


def check(model, golden, ids, mask, types):
    params = golden_params(model)

    @jax.jit
    def outputs(params):
        bert = model.bind({"params": params}).bert(ids, mask, types)
        return bert, model.apply({"params": params}, ids, mask, types)

    bert, output = outputs(params)
    for place, expected in zip(((0, 0), (1, 2)), golden["last"], strict=True):
        np.testing.assert_allclose(bert.last_hidden_state[place][:4], expected, atol=3e-6)
    place, expected = golden["logits"]
    np.testing.assert_allclose(output.prediction_logits[place][:4], expected, atol=2e-6)
    return bert, output


@pytest.mark.slow
def test_roberta_with_padding_gives_the_golden_values():
    config = BertConfig(
        **SIZES,
        model_type="roberta",
        max_position_embeddings=9,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    )
    ids = jnp.array([[0, 5, 9, 4, 2], [0, 6, 2, 1, 1]])
    check(BertForMaskedLM(config), ROBERTA, ids, (ids != 1).astype(jnp.int32), None)


@pytest.mark.slow
def test_albert_with_shared_layers_gives_the_golden_values():
    config = BertConfig(
        **SIZES, model_type="albert", embedding_size=4, max_position_embeddings=7, hidden_act="gelu_new"
    )
    bert, output = check(BertForPreTraining(config), ALBERT, IDS, MASK, TYPES)
    np.testing.assert_allclose(bert.pooler_output[1, :4], [-0.195201, 0.667682, -0.585437, 0.695090], atol=2e-6)
    sop = [[0.091283, 0.183777], [0.099792, 0.171103]]
    np.testing.assert_allclose(output.seq_relationship_logits, sop, atol=2e-6)


@pytest.mark.slow
def test_distilbert_gives_the_golden_values_and_reads_no_types():
    config = BertConfig(**SIZES, model_type="distilbert", max_position_embeddings=7)
    check(BertForMaskedLM(config), DISTILBERT, IDS, MASK, TYPES)


@pytest.mark.parametrize(
    ("ids", "positions"),
    [
        ([0, 5, 1, 6, 2, 1, 1], [2, 3, 1, 4, 5, 1, 1]),
        ([1, 1, 0, 5, 6, 2], [1, 1, 2, 3, 4, 5]),
        ([1, 1], [1, 1]),
    ],
)
def test_roberta_counts_its_tokens_from_two_and_stands_still_on_padding(ids, positions):
    assert positions_of(jnp.array([ids]), 1).tolist() == [positions]


@pytest.mark.parametrize("pad", [0, 1])
def test_a_sequence_of_a_packed_row_has_the_positions_that_it_has_alone(pad):
    sequences = [[0, 1, 5, 2], [0, 2], [0, 6, 1, 1, 2], [1]]
    lengths = [len(sequence) for sequence in sequences]
    ids = jnp.array([[*(token for sequence in sequences for token in sequence), pad, pad]])
    numbers = jnp.array([[*np.repeat([1, 2, 3, 4], lengths), 0, 0]])
    counted = jnp.array([[*(place for length in lengths for place in range(length)), 0, 0]])
    config = BertConfig(**SIZES, model_type="roberta", pad_token_id=pad)
    found = packed_inputs(config, ids, numbers, counted)
    alone = [positions_of(jnp.array([sequence]), pad)[0].tolist() for sequence in sequences]
    assert found["position_ids"][0, :-2].tolist() == [place for places in alone for place in places]
    assert (found["sequence_ids"] == numbers).all()


def test_the_table_of_sinusoids_is_the_papers():
    table = sinusoids(5, 6)
    for position in range(5):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            np.testing.assert_allclose(table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-7)
