"""The pretraining heads: published sizes, the tied decoder, masked positions, initial values."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import (
    HEADS,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
)

CONFIG = BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 200, size=(3, 10)), jnp.int32)
POSITIONS = jnp.array([[1, 7, 0], [9, 9, 2], [0, 0, 0]])


def count(model):
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32)))["params"]
    return sum(x.size for x in jax.tree.leaves(shapes))


def init(model):
    return jax.jit(model.init)(jax.random.key(0), IDS)["params"]


def run(model, params, **inputs):
    return jax.jit(lambda p, given: model.apply({"params": p}, IDS, **given))(params, inputs)


# https://huggingface.co/google-bert and https://github.com/google-research/bert: encoder with pooler, without,
# BertForPreTraining and BertForMaskedLM as transformers counts them.
PUBLISHED = {
    "tiny": (4_385_920, 4_369_408, 4_433_468, 4_416_698),
    "mini": (11_170_560, 11_104_768, 11_267_900, 11_201_594),
    "small": (28_763_648, 28_500_992, 29_058_876, 28_795_194),
    "medium": (41_373_184, 41_110_528, 41_668_412, 41_404_730),
    "base-uncased": (109_482_240, 108_891_648, 110_106_428, 109_514_298),
    "base-cased": (108_310_272, 107_719_680, 108_932_934, 108_340_804),
    "base-multilingual-cased": (177_853_440, 177_262_848, 178_566_653, 177_974_523),
    "base-multilingual-uncased": (167_356_416, 166_765_824, 168_055_961, 167_463_831),
    "base-chinese": (102_267_648, 101_677_056, 102_882_442, 102_290_312),
    "large-uncased": (335_141_888, 334_092_288, 336_226_108, 335_174_458),
    "large-cased": (333_579_264, 332_529_664, 334_661_958, 333_610_308),
}
SMALL = {
    2: (4385920, 9591040, 22458880, 38603520),
    4: (4782464, 11170560, 28763648, 52779264),
    6: (5179008, 12750080, 35068416, 66955008),
    8: (5575552, 14329600, 41373184, 81130752),
    10: (5972096, 15909120, 47677952, 95306496),
    12: (6368640, 17488640, 53982720, 109482240),
}


def some(names: Iterable[Any], *kept: Any) -> list[Any]:
    """Each name as a parameter; all but `kept` are exhaustive."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.exhaustive) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(PUBLISHED, "base-uncased", "base-chinese", "large-cased"))
def test_published_sizes_have_the_published_parameter_counts(name):
    config = BertConfig.preset(name)
    models = (Bert(config), Bert(config, add_pooler=False), BertForPreTraining(config), BertForMaskedLM(config))
    assert tuple(map(count, models)) == PUBLISHED[name]


# As transformers counts them: the encoder without pooler, with one, and the masked LM; of ALBERT also ForPreTraining.
ROBERTA = {
    "roberta-base": (124_055_040, 124_645_632, 124_697_433),
    "roberta-large": (354_310_144, 355_359_744, 355_412_057),
    "distilroberta-base": (81_527_808, 82_118_400, 82_170_201),
    "xlm-roberta-base": (277_453_056, 278_043_648, 278_295_186),
    "xlm-roberta-large": (558_840_832, 559_890_432, 560_142_482),
}
ALBERT = {
    "albert-base-v1": (11_092_992, 11_683_584, 11_221_680, 11_813_810),
    "albert-base-v2": (11_092_992, 11_683_584, 11_221_680, 11_813_810),
    "albert-large-v2": (16_634_368, 17_683_968, 16_795_824, 17_847_474),
    "albert-xlarge-v2": (54_528_512, 58_724_864, 54_821_040, 59_021_490),
    "albert-xxlarge-v2": (205_814_272, 222_595_584, 206_368_944, 223_158_450),
}
# The encoder, the masked LM, and a classifier of two labels.
DISTILBERT = {
    "distilbert-base-uncased": (66_362_880, 66_985_530, 66_955_010),
    "distilbert-base-cased": (65_190_912, 65_812_036, 65_783_042),
    "distilbert-base-multilingual-cased": (134_734_080, 135_445_755, 135_326_210),
}
# The encoder, the masked LM and the discriminator.
ELECTRA = {
    "electra-small": (13_483_008, 13_546_682, 13_549_057),
    "electra-base": (108_891_648, 109_514_298, 109_483_009),
    "electra-large": (334_092_288, 335_174_458, 335_142_913),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    some(
        ROBERTA | ALBERT | DISTILBERT | ELECTRA,
        "distilroberta-base",
        "albert-base-v2",
        "albert-xxlarge-v2",
        "distilbert-base-cased",
        "electra-small",
        "electra-base",
    ),
)
def test_published_sizes_of_the_other_families_have_the_published_parameter_counts(name):
    heads = ("encoder-no-pooler", "encoder", "mlm", "pretraining")
    if name in DISTILBERT:
        heads = ("encoder", "mlm", "sequence-classification")
    if name in ELECTRA:
        heads = ("encoder", "mlm", "replaced-token-detection")
    expected = (ROBERTA | ALBERT | DISTILBERT | ELECTRA)[name]
    assert tuple(count(HEADS[head](BertConfig.preset(name))) for head in heads[: len(expected)]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("layers", some(SMALL, 2, 4))
def test_the_24_small_models_have_the_published_parameter_counts(layers):
    sizes = (128, 256, 512, 768)
    assert tuple(count(Bert(BertConfig.preset(f"L-{layers}_H-{d}"))) for d in sizes) == SMALL[layers]


def test_the_tree_is_the_one_that_is_written_down():
    params = jax.eval_shape(lambda: BertForPreTraining(CONFIG).init(jax.random.key(0), IDS))["params"]
    dense = {"kernel", "bias"}
    assert set(params) == {"bert", "mlm_head", "nsp_head"}
    assert set(params["bert"]) == {"embeddings", "encoder", "pooler"}
    layer = params["bert"]["encoder"]["layer_0"]
    assert set(layer["attention"]) == {"query", "key", "value", "output", "LayerNorm"}
    assert set(layer["feed_forward"]) == {"intermediate", "output", "LayerNorm"}
    assert set(params["mlm_head"]) == {"transform", "LayerNorm", "bias"}
    assert set(params["nsp_head"]) == set(params["bert"]["pooler"]) == set(layer["attention"]["query"]) == dense
    assert layer["feed_forward"]["intermediate"]["kernel"].shape == (32, 48)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_initial_values_are_google_s():
    params = init(BertForPreTraining(CONFIG.replace(hidden_size=256)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name, values = path[-1].key, np.asarray(leaf)
        if name in ("bias", "scale"):
            assert (values == (name == "scale")).all()
        elif values.size > 10_000:
            # A normal of 0.02 cut at two deviations: 0.8796 of the spread is left, and nothing beyond.
            np.testing.assert_allclose(values.std(), 0.02 * 0.8796, rtol=0.02)
            assert 0.0395 < np.abs(values).max() <= 0.04
    assert np.abs(params["bert"]["embeddings"]["word_embeddings"][0]).max() > 0


@pytest.mark.slow
def test_logits_at_masked_positions_are_those_of_all_positions_gathered():
    model = BertForPreTraining(CONFIG)
    params = init(model)
    everywhere = run(model, params)
    chosen = run(model, params, mlm_positions=POSITIONS)
    assert everywhere.prediction_logits.shape == (3, 10, 200)
    assert chosen.prediction_logits.dtype == jnp.float32
    expected = np.take_along_axis(np.asarray(everywhere.prediction_logits), np.asarray(POSITIONS)[..., None], 1)
    np.testing.assert_allclose(chosen.prediction_logits, expected, atol=1e-6)
    np.testing.assert_array_equal(chosen.seq_relationship_logits, everywhere.seq_relationship_logits)


@pytest.mark.slow
def test_the_decoder_is_the_token_table():
    model = BertForMaskedLM(CONFIG)
    params = init(model)
    # Token 150 is not in the input, so that its row acts through the decoder alone.
    ids = jnp.where(IDS == 150, 0, IDS)

    @jax.jit
    def logits(table):
        tree = params | {
            "bert": params["bert"] | {"embeddings": params["bert"]["embeddings"] | {"word_embeddings": table}}
        }
        return model.apply({"params": tree}, ids).prediction_logits

    table = params["bert"]["embeddings"]["word_embeddings"]
    change = np.asarray(logits(table.at[150].multiply(2.0)) - logits(table))
    np.testing.assert_allclose(change[..., 150], logits(table)[..., 150], atol=1e-6)
    assert (np.delete(change, 150, axis=-1) == 0).all()


@pytest.mark.slow
def test_heads_alone_equal_the_pretraining_model():
    full = BertForPreTraining(CONFIG)
    params = init(full)
    output = run(full, params)
    bert_alone = {name: tree for name, tree in params["bert"].items() if name != "pooler"}
    mlm = run(BertForMaskedLM(CONFIG), {"bert": bert_alone, "mlm_head": params["mlm_head"]})
    nsp = run(BertForNextSentencePrediction(CONFIG), {"bert": params["bert"], "nsp_head": params["nsp_head"]})
    np.testing.assert_array_equal(mlm.prediction_logits, output.prediction_logits)
    np.testing.assert_array_equal(nsp.seq_relationship_logits, output.seq_relationship_logits)
    assert mlm.seq_relationship_logits is None
    assert nsp.prediction_logits is None
    assert mlm.logits is mlm.prediction_logits
    assert nsp.logits is nsp.seq_relationship_logits
    with pytest.raises(UserError, match="two heads"):
        _ = output.logits


@pytest.mark.slow
def test_every_head_is_in_the_table():
    assert set(HEADS) == {
        "pretraining", "mlm", "nsp", "encoder", "encoder-no-pooler", "sequence-classification",
        "token-classification", "question-answering", "multiple-choice", "causal-lm",
        "replaced-token-detection",
    }  # fmt: skip
    for name, head in HEADS.items():
        family = "electra" if name == "replaced-token-detection" else "bert"
        config = CONFIG.replace(is_decoder=name == "causal-lm", model_type=family)
        jax.eval_shape(lambda head=head, config=config: head(config).init(jax.random.key(0), IDS))


@pytest.mark.parametrize(
    ("model_type", "head"),
    [("roberta", "pretraining"), ("distilbert", "pretraining"), ("albert", "nsp"), ("albert", "causal-lm")],
)
def test_a_head_that_a_family_has_not_is_refused(model_type, head):
    with pytest.raises(UserError, match=f"{head}.*{model_type}"):
        jax.eval_shape(lambda: HEADS[head](CONFIG.replace(model_type=model_type)).init(jax.random.key(0), IDS))


def test_a_causal_model_that_sees_the_future_is_refused():
    with pytest.raises(UserError, match="is_decoder=False"):
        jax.eval_shape(lambda: HEADS["causal-lm"](CONFIG).init(jax.random.key(0), IDS))


@pytest.mark.parametrize("shape", [(3, 10), (3, 2, 5, 1)])
def test_choices_need_an_axis_of_their_own(shape):
    model = HEADS["multiple-choice"](CONFIG)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))
    with pytest.raises(UserError, match=r"input_ids .*expected \[B, choices, L\]"):
        jax.eval_shape(lambda p: model.apply(p, jnp.zeros(shape, jnp.int32)), params)


@pytest.mark.slow
def test_choices_are_rows_of_the_encoder():
    model = HEADS["multiple-choice"](CONFIG)
    params = init(model)
    ids, mask = IDS.reshape(1, 3, 10), (jnp.arange(10)[None] < jnp.array([[10], [7], [4]])).astype(jnp.int32)
    together = jax.jit(model.apply)({"params": params}, ids, mask[None], position_ids=jnp.arange(10)[None])
    assert together.logits.shape == (1, 3)
    pooled = run(Bert(CONFIG), params["bert"], attention_mask=mask).pooler_output
    expected = pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"][None]
    np.testing.assert_allclose(together.logits[0], expected[:, 0], atol=1e-6)


@pytest.mark.slow
def test_an_untied_decoder_is_a_table_of_its_own():
    model = BertForMaskedLM(CONFIG.replace(tie_word_embeddings=False))
    params = init(model)
    assert params["mlm_head"]["decoder"].shape == (200, 32)
    doubled = params | {"mlm_head": params["mlm_head"] | {"decoder": 2 * params["mlm_head"]["decoder"]}}
    once, twice = run(model, params).prediction_logits, run(model, doubled).prediction_logits
    np.testing.assert_allclose(twice, 2 * once, atol=1e-6)


def test_masked_positions_of_another_batch_are_refused():
    with pytest.raises(UserError, match=r"\(2, 3\).*\(3, 10, 32\)"):
        jax.eval_shape(lambda: BertForMaskedLM(CONFIG).init(jax.random.key(0), IDS, mlm_positions=POSITIONS[:2]))


@pytest.mark.parametrize("head", ["encoder", "mlm", "pretraining", "question-answering"])
def test_a_tuple_on_request_holds_the_fields_that_are_there_in_their_order(head):
    model = HEADS[head](CONFIG)
    options = {"output_hidden_states": True, "output_attentions": True}
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))
    output = jax.eval_shape(lambda tree: model.apply(tree, IDS, **options), shapes)
    found = jax.eval_shape(lambda tree: model.apply(tree, IDS, **options, return_dict=False), shapes)
    assert isinstance(found, tuple)
    assert found == tuple(value for value in vars(output).values() if value is not None)
    assert found[-2:] == (output.hidden_states, output.attentions)
