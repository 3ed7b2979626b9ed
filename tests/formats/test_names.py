"""The rename table: every parameter both ways, old spellings, kernels transposed."""

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import FAMILIES, head_in, parameters_of, table_keys, to_stored

SIZES = {"vocab_size": 11, "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 6}
CONFIG = BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=7, type_vocab_size=3)


def random_flat(head: str, config: BertConfig = CONFIG) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {path: rng.normal(size=row.shape).astype(np.float32) for path, row in parameters_of(config, head).items()}


@pytest.mark.parametrize(
    ("preset", "pretraining", "encoder"),
    [
        ("base-uncased", 110_106_428, 109_482_240),
        ("large-uncased", 336_226_108, 335_141_888),
        ("tiny", None, 4_385_920),
    ],
)
def test_the_table_holds_every_parameter_of_the_published_sizes(preset, pretraining, encoder):
    """Counts as published (SEMANTICS: C20, C21); a forgotten or doubled row changes them."""
    config = BertConfig.preset(preset)
    counts = {
        head: sum(int(np.prod(row.shape)) for row in parameters_of(config, head).values())
        for head in ("pretraining", "encoder")
    }
    assert counts["encoder"] == encoder
    if pretraining is not None:
        assert counts["pretraining"] == pretraining


def test_heads_have_their_parts():
    paths = {head: set(parameters_of(CONFIG, head)) for head in FAMILIES["bert"].heads}
    assert "bert/pooler/kernel" in paths["pretraining"]
    assert "bert/pooler/kernel" in paths["nsp"]
    assert "pooler/kernel" in paths["encoder"]
    assert not [path for path in paths["mlm"] if "pooler" in path or "nsp" in path]
    assert not [path for path in paths["nsp"] if path.startswith("mlm_head")]
    assert paths["pretraining"] == paths["mlm"] | paths["nsp"]
    assert {f"bert/{path}" for path in paths["encoder"]} < paths["pretraining"]


def test_kernels_are_transposed_and_contiguous_tables_are_not():
    flat = random_flat("pretraining")
    stored = to_stored(flat, CONFIG, "pretraining")
    up = stored["bert.encoder.layer.1.intermediate.dense.weight"]
    assert up.shape == (6, 4)
    np.testing.assert_array_equal(up, flat["bert/encoder/layer_1/feed_forward/intermediate/kernel"].T)
    np.testing.assert_array_equal(stored["cls.seq_relationship.weight"], flat["nsp_head/kernel"].T)
    words = stored["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(words, flat["bert/embeddings/word_embeddings"])
    assert all(array.flags.c_contiguous for array in stored.values())


def test_tied_tensors_are_left_out_and_the_encoder_alone_has_no_prefix():
    flat = random_flat("pretraining")
    assert not [key for key in to_stored(flat, CONFIG, "pretraining") if "decoder" in key]
    encoder = to_stored(flat, CONFIG, "encoder")
    assert "embeddings.word_embeddings.weight" in encoder
    assert not [key for key in encoder if key.startswith(("bert.", "cls."))]
    bare = {path.removeprefix("bert/"): array for path, array in flat.items() if path.startswith("bert/")}
    assert to_stored(bare, CONFIG, "encoder").keys() == encoder.keys()


def test_old_spellings_bare_keys_and_buffers():
    keys = ["embeddings.LayerNorm.gamma", "bert.pooler.dense.bias", "embeddings.position_ids", "cls.x"]
    assert table_keys(keys, FAMILIES["bert"]) == {
        "bert.embeddings.LayerNorm.weight": "embeddings.LayerNorm.gamma",
        "bert.pooler.dense.bias": "bert.pooler.dense.bias",
        "cls.x": "cls.x",
    }


def test_two_keys_for_one_parameter_are_refused():
    with pytest.raises(UserError, match="both name"):
        table_keys(["bert.embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"], FAMILIES["bert"])


@pytest.mark.parametrize("head", ["pretraining", "mlm", "nsp"])
def test_a_head_is_known_by_its_parameters(head):
    rows = parameters_of(CONFIG, head)
    assert head_in(rows, CONFIG) == head_in((row.key for row in rows.values()), CONFIG) == head
    assert head_in(parameters_of(CONFIG, "encoder"), CONFIG) == "encoder"


def test_trees_that_do_not_fit_are_refused():
    flat = random_flat("pretraining")
    with pytest.raises(UserError, match=r"embeddings/word_embeddings has shape \(11, 4\).*\(12, 4\)"):
        to_stored(flat, CONFIG.replace(vocab_size=12), "pretraining")
    with pytest.raises(UserError, match="has no 'mlm_head/transform/kernel'"):
        to_stored(random_flat("nsp"), CONFIG, "pretraining")
    with pytest.raises(UserError, match="layer_1"):
        to_stored(flat, CONFIG.replace(num_hidden_layers=1), "pretraining")
    with pytest.raises(UserError, match="head='qa': bert has pretraining, mlm"):
        to_stored(flat, CONFIG, "qa")


def test_a_layer_has_the_heads_that_were_not_pruned():
    """transformers 4, prune_linear_layer: fewer outputs of query, key and value, fewer inputs of what follows."""
    rows = parameters_of(CONFIG.replace(pruned_heads=((1, (0,)),)), "mlm")
    layer = "bert/encoder/layer_{}/attention/{}/{}"
    assert [rows[layer.format(i, "query", "kernel")].shape for i in (0, 1)] == [(4, 4), (4, 2)]
    assert [rows[layer.format(i, "value", "bias")].shape for i in (0, 1)] == [(4,), (2,)]
    assert [rows[layer.format(i, "output", "kernel")].shape for i in (0, 1)] == [(4, 4), (2, 4)]
    assert rows[layer.format(1, "output", "bias")].shape == (4,)
