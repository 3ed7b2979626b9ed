"""How a new model is drawn: the published start bit for bit, heads that look where they are told, the same on a mesh."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import HEADS
from bert_jax.model.start import StartConfig, check_start, draw
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.step import init_state
from tests import tiny

CONFIG = BertConfig(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
WIRED = StartConfig(range="width", positions="fourier", heads=((0, -1, 2),), output_bias="unigram")
COUNTS = np.arange(90)
KEY = jax.random.key(5)


@pytest.mark.slow
def test_the_published_start_is_the_models_own_to_the_bit():
    model = HEADS["pretraining"](CONFIG)
    own = jax.jit(model.init)(KEY, np.zeros((1, 1), np.int32))["params"]
    drawn = jax.jit(partial(draw, model=model, start=StartConfig()))(KEY)
    jax.tree.map(np.testing.assert_array_equal, drawn, own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "fields"),
    [("bert", {}), ("roberta", {"pad_token_id": 1, "max_position_embeddings": 66}), ("distilbert", {})],
)
def test_a_head_looks_most_at_the_token_at_its_distance(model_type: str, fields: dict[str, Any]):
    config = CONFIG.replace(model_type=model_type, **fields)
    model = HEADS["mlm"](config)
    ids = np.random.default_rng(0).integers(5, 96, (8, 40))

    @jax.jit
    def attention(key: jax.Array) -> Any:
        params = draw(key, model, StartConfig(positions="fourier", heads=((0, -1, 2),)))
        return model.apply({"params": params}, ids, output_attentions=True).attentions[0]

    mean_HLM = np.asarray(attention(KEY)).mean(axis=0)
    inner = np.arange(3, 37)
    for head, distance in ((0, -1), (1, 2)):
        np.testing.assert_array_equal(mean_HLM[head].argmax(axis=-1)[inner], inner + distance)


@pytest.mark.slow
def test_a_head_looks_at_the_same_token_wherever_it_is():
    """Every token is in the row twice; random heads give the two 0.05 of their attention, these five times as much."""
    config = CONFIG.replace(hidden_size=128, num_attention_heads=4)
    model = HEADS["mlm"](config)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(np.tile(rng.permutation(np.arange(5, 96))[:20], 2)) for _ in range(8)])

    @jax.jit
    def attention(key: jax.Array) -> Any:
        params = draw(
            key, model, StartConfig(range="width", positions="fourier", heads=((0, "same", "same", -1, "same"),))
        )
        return model.apply({"params": params}, ids, output_attentions=True).attentions

    wired, plain = (np.asarray(layer) for layer in attention(KEY))
    equal_BLM = ids[:, :, None] == ids[:, None, :]
    elsewhere_BLM = equal_BLM & ~np.eye(40, dtype=bool)
    for head in (0, 1, 3):
        assert (wired[:, head] * equal_BLM).sum(-1).mean() > 0.25
        assert (wired[:, head] * elsewhere_BLM).sum(-1).mean() > 0.125
    assert (wired[:, 2] * equal_BLM).sum(-1).mean() < 0.1, "a head with a distance"
    assert (plain * equal_BLM[:, None]).sum(-1).mean() < 0.1, "layer 1"


@pytest.mark.slow
def test_heads_for_the_same_token_read_other_dimensions_each_as_long_as_there_are_some():
    """Heads of 16 in a model 64 wide: positions have the first of four places, and the fourth head begins again."""
    config = CONFIG.replace(hidden_size=64, num_attention_heads=4)
    fourier = StartConfig(positions="fourier")
    same = StartConfig(positions="fourier", heads=((0, "same", "same", "same", "same"),))
    drawn = [jax.jit(partial(draw, model=HEADS["mlm"](config), start=start))(KEY) for start in (fourier, same)]
    for name in ("query", "key"):
        plain, wired = (tree["bert"]["encoder"]["layer_0"]["attention"][name]["kernel"] for tree in drawn)
        expected = np.zeros((64, 4, 16))
        for head, place in enumerate((1, 2, 3, 1)):
            expected[16 * place : 16 * (place + 1), head] = np.eye(16)
        np.testing.assert_allclose(wired - plain, expected.reshape(64, 64), atol=1e-6)


@pytest.mark.slow
def test_other_heads_layers_and_tables_are_as_random_as_ever():
    model = HEADS["pretraining"](CONFIG)
    plain = jax.jit(partial(draw, model=model, start=StartConfig()))(KEY)
    wired = jax.jit(partial(draw, model=model, start=StartConfig(positions="fourier", heads=((1, -1),))))(KEY)
    changed = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(wired), strict=True)
        if not np.array_equal(a, b)
    }
    attention = "bert/encoder/layer_1/attention"
    tables = {"bert/embeddings/position_embeddings", "bert/embeddings/word_embeddings"}
    assert changed == tables | {f"{attention}/query/kernel", f"{attention}/key/kernel"}
    for name in ("query", "key"):
        a, b = (tree["bert"]["encoder"]["layer_1"]["attention"][name]["kernel"] for tree in (plain, wired))
        np.testing.assert_array_equal(a[:, 32:], b[:, 32:], err_msg="the second head")
        np.testing.assert_array_equal(a[32:], b[32:], err_msg="dimensions without positions")


@pytest.mark.slow
def test_weights_by_width_are_those_of_that_initializer_range():
    by_width = jax.jit(partial(draw, model=HEADS["mlm"](CONFIG), start=StartConfig(range="width")))(KEY)
    by_hand = HEADS["mlm"](CONFIG.replace(initializer_range=0.125))  # 1 / sqrt(64)
    expected = jax.jit(by_hand.init)(KEY, np.zeros((1, 1), np.int32))["params"]
    jax.tree.map(np.testing.assert_array_equal, by_width, expected)


@pytest.mark.slow
def test_the_output_bias_makes_a_model_that_sees_nothing_predict_the_frequencies():
    params = jax.jit(partial(draw, model=HEADS["mlm"](CONFIG), start=WIRED, counts=COUNTS))(KEY)
    shares = np.append(COUNTS, np.zeros(6)) + 1
    np.testing.assert_allclose(jax.nn.softmax(params["mlm_head"]["bias"]), shares / shares.sum(), rtol=1e-5)
    with pytest.raises(UserError, match=r"start\.output_bias: found unigram"):
        draw(KEY, HEADS["mlm"](CONFIG), WIRED)


@pytest.mark.slow
@pytest.mark.eight_devices
def test_it_is_the_same_to_the_bit_on_a_mesh():
    model, tx = HEADS["mlm"](CONFIG), make_optimizer(tiny.OPTIMIZER)
    born = partial(init_state, KEY, model, tx, draw=partial(draw, start=WIRED, counts=COUNTS))
    alone = born()
    found = born(mesh=make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    assert len(found.params["bert"]["embeddings"]["word_embeddings"].addressable_shards) == 8
    jax.tree.map(np.testing.assert_array_equal, found, alone)


@pytest.mark.parametrize(
    ("fields", "model", "words"),
    [
        ({"heads": ((0, -1),)}, {}, ("start.heads", "say start.positions=fourier")),
        ({"heads": (0, -1)}, {}, ("start.heads", "expected ((layer, distance, ...), ...)")),
        ({"heads": ((0, -1), (0, 1)), "positions": "fourier"}, {}, ("start.heads", "layer 0 twice")),
        ({"gain": 0.0}, {}, ("start.gain", "above 0")),
        ({"range": "wide"}, {}, ("start.range", "model or width")),
        ({"heads": ((2, -1),), "positions": "fourier"}, {}, ("layer 2", "layers 0 to 1")),
        ({"heads": ((0, -1, 1, 2),), "positions": "fourier"}, {}, ("3 heads in layer 0", "has 2")),
        ({"heads": ((0, "other"),), "positions": "fourier"}, {}, ("'other'", "'same' in place of a distance")),
        ({"heads": (("same", -1),), "positions": "fourier"}, {}, ("start.heads", "expected ((layer, distance")),
        ({"heads": ((0, "same"),), "positions": "fourier"}, {"num_attention_heads": 1}, ("'same'", "no place")),
        ({"heads": ((0, 64),), "positions": "fourier"}, {}, ("64 tokens", "-63 to 63")),
        ({"heads": ((0, 1),), "positions": "fourier"}, {"is_decoder": True}, ("1 tokens", "-63 to 0")),
        ({"positions": "fourier"}, {"num_attention_heads": 8}, ("heads of 8", "16")),
        ({"positions": "fourier"}, {"model_type": "albert"}, ("projection", "say start.positions=random")),
        ({"positions": "fourier"}, {"model_type": "electra", "embedding_size": 8}, ("projection",)),
        ({"positions": "fourier"}, {"position_embedding_type": "relative_key"}, ("without a position table",)),
        ({"positions": "fourier"}, {"model_type": "distilbert", "sinusoidal_pos_embds": True}, ("without a position",)),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(fields: dict[str, Any], model: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        check_start(StartConfig(**fields), CONFIG.replace(**model))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.slow
def test_a_bare_encoder_is_drawn_as_one_under_a_head():
    start = StartConfig(positions="fourier", heads=((0, -1, 2),))
    bare, under = Bert(CONFIG), HEADS["mlm"](CONFIG)
    params = jax.jit(partial(draw, model=bare, start=start))(KEY)
    of_head = jax.jit(partial(draw, model=under, start=start))(KEY)["bert"]
    np.testing.assert_array_equal(*(p["embeddings"]["position_embeddings"] for p in (params, of_head)))
    published = jax.jit(bare.init)(KEY, np.zeros((1, 1), np.int32))["params"]
    for layer, changed in (("layer_0", True), ("layer_1", False)):
        kernels = (p["encoder"][layer]["attention"]["query"]["kernel"] for p in (params, published))
        assert (not np.array_equal(*kernels)) == changed


def test_frequencies_of_another_vocabulary_or_without_a_head_are_refused():
    start = StartConfig(output_bias="unigram")
    for model, counts, said in (
        (HEADS["mlm"](CONFIG), np.ones(97), "counts: found 97; expected at most one for each of 96 tokens"),
        (Bert(CONFIG), COUNTS, "start.output_bias: found unigram for a model without a masked-LM head; say zeros"),
    ):
        with pytest.raises(UserError, match=said):
            jax.eval_shape(partial(draw, model=model, start=start, counts=counts), KEY)
