"""Golden values of RoBERTa, ALBERT and DistilBERT: those of transformers for weights that follow from their names.

The rule and the config are those of test_golden.py; an independent NumPy model agrees to six decimals.
"""

import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.model.embeddings import packed_inputs, positions_of, sinusoids
from bert_jax.model.heads import BertForMaskedLM, BertForPreTraining

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
ENCODER = (
    (r"layer_(\d+)/", r"layer/\1/"),
    (r"attention/(query|key|value)/", r"attention/self/\1/"),
    (r"attention/output/", "attention/output/dense/"),
    (r"attention/LayerNorm", "attention/output/LayerNorm"),
    (r"feed_forward/(intermediate|output)/", r"\1/dense/"),
    (r"feed_forward/LayerNorm", "output/LayerNorm"),
)
LEAVES = ((r"(_embeddings)$", r"\1/weight"), (r"/(kernel|scale)$", "/weight"))
RENAMES = {
    "roberta": (
        *ENCODER,
        ("^bert/", "roberta/"),
        ("^mlm_head/transform/", "lm_head/dense/"),
        ("^mlm_head/LayerNorm/", "lm_head/layer_norm/"),
        ("^mlm_head/", "lm_head/"),
        *LEAVES,
    ),
    "albert": (
        ("^bert/", "albert/"),
        ("/projection/", "/embedding_hidden_mapping_in/"),
        (r"/layer_(\d+)/", r"/albert_layer_groups/\1/albert_layers/0/"),
        ("attention/output/", "attention/dense/"),
        ("feed_forward/intermediate/", "ffn/"),
        ("feed_forward/output/", "ffn_output/"),
        ("feed_forward/LayerNorm/", "full_layer_layer_norm/"),
        ("^mlm_head/transform/", "predictions/dense/"),
        ("^mlm_head/", "predictions/"),
        ("^nsp_head/", "sop_classifier/classifier/"),
        *LEAVES,
    ),
    "distilbert": (
        ("^bert/", "distilbert/"),
        (r"/encoder/layer_(\d+)/", r"/transformer/layer/\1/"),
        ("attention/(q|k|v)(uery|ey|alue)/", r"attention/\1_lin/"),
        ("attention/output/", "attention/out_lin/"),
        ("attention/LayerNorm/", "sa_layer_norm/"),
        ("feed_forward/intermediate/", "ffn/lin1/"),
        ("feed_forward/output/", "ffn/lin2/"),
        ("feed_forward/LayerNorm/", "output_layer_norm/"),
        ("^mlm_head/transform/", "vocab_transform/"),
        ("^mlm_head/LayerNorm/", "vocab_layer_norm/"),
        ("^mlm_head/", "vocab_projector/"),
        *LEAVES,
    ),
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
IDS = jnp.array([[2, 5, 9, 4, 1], [3, 6, 10, 0, 0]])
MASK = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
TYPES = jnp.array([[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]])


def golden_params(model):
    def leaf(path, shape):
        key = "/".join(part.key for part in path)
        for pattern, replacement in RENAMES[model.config.family]:
            key = re.sub(pattern, replacement, key)
        key = key.replace("/", ".")
        is_kernel = path[-1].key == "kernel"
        n = np.arange(np.prod(shape.shape))
        values = 0.3 * np.sin(0.37 * n + (zlib.crc32(key.encode()) % 1000) / 100) + key.endswith("orm.weight")
        values = values.reshape(shape.shape[::-1] if is_kernel else shape.shape)
        return jnp.asarray(values.T if is_kernel else values, jnp.float32)

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))["params"]
    return jax.tree_util.tree_map_with_path(leaf, shapes)


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
