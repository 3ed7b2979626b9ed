"""Flax's names of the four families become torch's, and kernels turn to [out, in]."""

from pathlib import Path

import flax.serialization
import flax.traverse_util
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.flax import FlaxMsgpack, hf_names
from bert_jax.formats.stored import InMemory, Renamed

# Paths as the modules of modeling_flax_*.py (transformers 4) spell them, and what torch calls the same.
BERT = {
    "bert/embeddings/word_embeddings/embedding": "bert.embeddings.word_embeddings.weight",
    "bert/embeddings/token_type_embeddings/embedding": "bert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/LayerNorm/scale": "bert.embeddings.LayerNorm.weight",
    "bert/embeddings/LayerNorm/bias": "bert.embeddings.LayerNorm.bias",
    "bert/encoder/layer/11/attention/self/query/kernel": "bert.encoder.layer.11.attention.self.query.weight",
    "bert/encoder/layer/11/attention/output/dense/bias": "bert.encoder.layer.11.attention.output.dense.bias",
    "bert/encoder/layer/11/attention/output/LayerNorm/scale": "bert.encoder.layer.11.attention.output.LayerNorm.weight",
    "bert/encoder/layer/11/crossattention/self/key/kernel": "bert.encoder.layer.11.crossattention.self.key.weight",
    "bert/encoder/layer/11/intermediate/dense/kernel": "bert.encoder.layer.11.intermediate.dense.weight",
    "bert/pooler/dense/kernel": "bert.pooler.dense.weight",
    "cls/predictions/transform/dense/kernel": "cls.predictions.transform.dense.weight",
    "cls/predictions/transform/LayerNorm/scale": "cls.predictions.transform.LayerNorm.weight",
    "cls/predictions/bias": "cls.predictions.bias",
    "cls/predictions/decoder/kernel": "cls.predictions.decoder.weight",
    "cls/seq_relationship/kernel": "cls.seq_relationship.weight",
    "classifier/kernel": "classifier.weight",
    "qa_outputs/bias": "qa_outputs.bias",
}
ROBERTA = {
    "roberta/embeddings/position_embeddings/embedding": "roberta.embeddings.position_embeddings.weight",
    "roberta/encoder/layer/0/output/dense/kernel": "roberta.encoder.layer.0.output.dense.weight",
    "lm_head/dense/kernel": "lm_head.dense.weight",
    "lm_head/layer_norm/scale": "lm_head.layer_norm.weight",
    "lm_head/bias": "lm_head.bias",
    "classifier/dense/kernel": "classifier.dense.weight",
    "classifier/out_proj/bias": "classifier.out_proj.bias",
}
_GROUP, _TORCH_GROUP = "albert/encoder/albert_layer_groups/0/albert_layers/0", "albert.encoder.albert_layer_groups.0.albert_layers.0"  # fmt: skip
ALBERT = {
    "albert/encoder/embedding_hidden_mapping_in/kernel": "albert.encoder.embedding_hidden_mapping_in.weight",
    f"{_GROUP}/attention/query/kernel": f"{_TORCH_GROUP}.attention.query.weight",
    f"{_GROUP}/attention/LayerNorm/scale": f"{_TORCH_GROUP}.attention.LayerNorm.weight",
    f"{_GROUP}/ffn_output/bias": f"{_TORCH_GROUP}.ffn_output.bias",
    f"{_GROUP}/full_layer_layer_norm/scale": f"{_TORCH_GROUP}.full_layer_layer_norm.weight",
    "albert/pooler/kernel": "albert.pooler.weight",
    "predictions/LayerNorm/bias": "predictions.LayerNorm.bias",
    "predictions/bias": "predictions.bias",
    "sop_classifier/classifier/kernel": "sop_classifier.classifier.weight",
}
DISTILBERT = {
    "distilbert/embeddings/LayerNorm/scale": "distilbert.embeddings.LayerNorm.weight",
    "distilbert/transformer/layer/5/attention/q_lin/kernel": "distilbert.transformer.layer.5.attention.q_lin.weight",
    "distilbert/transformer/layer/5/sa_layer_norm/scale": "distilbert.transformer.layer.5.sa_layer_norm.weight",
    "distilbert/transformer/layer/5/ffn/lin1/bias": "distilbert.transformer.layer.5.ffn.lin1.bias",
    "vocab_transform/kernel": "vocab_transform.weight",
    "vocab_layer_norm/bias": "vocab_layer_norm.bias",
    "vocab_projector/bias": "vocab_projector.bias",
    "pre_classifier/kernel": "pre_classifier.weight",
}
FAMILIES = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA, "albert": ALBERT, "distilbert": DISTILBERT}


def arrays_of(paths) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {path: (2, 3) if path.endswith(("kernel", "embedding")) else (3,) for path in paths}
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}


def write(path: Path, flat: dict[str, np.ndarray]) -> Path:
    path.write_bytes(flax.serialization.to_bytes(flax.traverse_util.unflatten_dict(flat, sep="/")))
    return path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("known", [True, False], ids=["model type given", "not given"])
def test_paths_become_torchs_names_and_kernels_are_turned(tmp_path, family, known):
    flat = arrays_of(FAMILIES[family])
    with FlaxMsgpack(write(tmp_path / "x.msgpack", flat)) as file:
        renamed = Renamed(file, hf_names(file, family if known else None))
        assert set(renamed) == set(FAMILIES[family].values())
        for path, key in FAMILIES[family].items():
            expected = flat[path].T if path.endswith("kernel") else flat[path]
            assert renamed.shape(key) == expected.shape
            np.testing.assert_array_equal(renamed[key], expected)


def test_an_encoder_alone_keeps_its_names_without_the_prefix():
    paths = {path.removeprefix("bert/"): key.removeprefix("bert.") for path, key in BERT.items() if "bert" in path}
    assert set(hf_names(InMemory(arrays_of(paths)), "bert")) == set(paths.values())


def test_params_above_everything_are_taken_away():
    assert set(hf_names(InMemory(arrays_of(f"params/{path}" for path in BERT)), "bert")) == set(BERT.values())


def test_safetensors_of_flax_have_points_for_slashes():
    arrays = arrays_of(BERT)
    stored = InMemory({path.replace("/", "."): array for path, array in arrays.items()})
    renamed = Renamed(stored, hf_names(stored, "bert", separator="."))
    assert set(renamed) == set(BERT.values())
    np.testing.assert_array_equal(renamed["classifier.weight"], arrays["classifier/kernel"].T)


def test_spellings_before_transformers_4_6_are_understood():
    old = {
        "bert/embeddings/word_embeddings/weight": "bert.embeddings.word_embeddings.weight",
        "bert/embeddings/LayerNorm/gamma": "bert.embeddings.LayerNorm.weight",
        "bert/embeddings/LayerNorm/beta": "bert.embeddings.LayerNorm.bias",
        "cls/predictions/decoder/bias": "cls.predictions.bias",
    }
    names = hf_names(InMemory(arrays_of(old)), "bert")
    assert {native.name: key for key, native in names.items()} == old
    both = ["bert/pooler/dense/bias", "cls/predictions/decoder/bias", "cls/predictions/bias"]
    assert "cls.predictions.decoder.bias" in hf_names(InMemory(arrays_of(both)), "bert")


def test_other_models_are_one_clear_line():
    t5 = InMemory(arrays_of(["shared/embedding", "decoder/block/0/layer/0/SelfAttention/q/kernel"]))
    with pytest.raises(
        UserError, match="its arrays are below shared, decoder; a bert has bert, embeddings, encoder, pooler"
    ):
        hf_names(t5, "bert")
    with pytest.raises(UserError, match="its arrays are below shared, decoder; no BERT has such names"):
        hf_names(t5)
    with pytest.raises(UserError, match="model_type is 't5'; expected one of bert"):
        hf_names(t5, "t5")
    with pytest.raises(UserError, match="its arrays are below roberta"):
        hf_names(InMemory(arrays_of(["roberta/embeddings/LayerNorm/bias"])), "bert")


def test_a_kernel_that_is_no_matrix_is_left_as_it_is():
    stored = InMemory({"bert/pooler/dense/kernel": np.zeros((2, 3, 4), np.float32)})
    assert Renamed(stored, hf_names(stored, "bert")).shape("bert.pooler.dense.weight") == (2, 3, 4)


def test_two_names_of_one_array_are_refused():
    twice = InMemory(arrays_of(["bert/embeddings/LayerNorm/scale", "bert/embeddings/LayerNorm/gamma"]))
    with pytest.raises(UserError, match=r"LayerNorm/scale and .*LayerNorm/gamma both mean torch's bert\.embeddings"):
        hf_names(twice, "bert")
