"""docs/research.md: its code runs, top to bottom, and an independent calculation confirms each recipe's result."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse.linalg
import scipy.special
import scipy.stats
from jax.flatten_util import ravel_pytree
from sklearn.linear_model import LogisticRegression

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.model.encoder import Bert, EncoderLayer
from bert_jax.model.heads import BertForMaskedLM, BertForPreTraining
from bert_jax.model.task_heads import BertForSequenceClassification
from bert_jax.surgery.pruning import keep_layers
from tests import tiny
from tests.guide import blocks_of, run_blocks, text_of

GUIDE = "docs/research.md"


@pytest.fixture(scope="module")
def guide() -> SimpleNamespace:
    """Every name that the guide's blocks leave behind, each block run once."""
    blocks = blocks_of(GUIDE, "python")
    assert len(blocks) == 17
    return SimpleNamespace(**run_blocks(blocks))


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def row(tree, i: int):
    return jax.tree.map(lambda leaf: leaf[i], tree)


@pytest.mark.slow
def test_a_published_model_takes_the_place_of_the_small_one(tmp_path: Path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "text", "and", "longer", "one"]
    tokenizer = bert_jax.Tokenizer.from_vocabulary(pieces, cased=False)
    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    tree = jax.jit(BertForPreTraining(config).init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    bert_jax.save_pretrained(tmp_path / "bert", config, tree, tokenizer)
    (block,) = blocks_of(GUIDE, "py")
    names: dict = {}
    exec(block.code.replace("google-bert/bert-base-uncased", str(tmp_path / "bert")), names)
    assert names["batch"]["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert names["logits_BC"].shape == (2, 2)
    np.testing.assert_array_equal(names["params"]["bert"]["pooler"]["kernel"], tree["bert"]["pooler"]["kernel"])


@pytest.mark.slow
def test_each_seed_trains_as_if_it_were_alone(guide):
    @jax.jit
    def step(params, state, batch):
        value, gradients = jax.value_and_grad(guide.noisy_loss)(params, *batch)
        updates, state = guide.tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    for run in (0, 3):
        params = row(guide.initial_R, run)
        state = guide.tx.init(params)
        keys = jax.random.split(guide.dropout_keys_R[run], guide.S)
        for i in range(5):
            params, state, value = step(params, state, (guide.ids_SBL[i], guide.labels_SB[i], keys[i]))
            np.testing.assert_allclose(guide.losses_RS[run, i], value, rtol=1e-5)
    assert len(np.unique(guide.losses_RS[:, 0])) == 8
    neighbours = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, 0), guide.initial_R)
    _, losses_RS = guide.train(neighbours, jnp.roll(guide.dropout_keys_R, 1))
    np.testing.assert_allclose(losses_RS[:, :20], jnp.roll(guide.losses_RS, 1, 0)[:, :20], rtol=1e-4)
    assert guide.accuracies_R.max() > 0.95


@pytest.mark.slow
def test_the_importance_of_heads_is_the_slope_and_foretells_the_loss(guide):
    count, step = guide.importance_NH.size, 1e-2
    each = jnp.eye(count).reshape(count, *guide.importance_NH.shape)
    per_example = jax.jit(jax.vmap(guide.losses_without, in_axes=(None, None, 0, 0)))
    masks = jnp.concatenate([1 + step * each, 1 - step * each])
    losses_BK = np.asarray(per_example(guide.params, masks, guide.ids[:, None], guide.labels[:, None]), np.float64)
    slopes_BK = (losses_BK[:, :count] - losses_BK[:, count:]) / (2 * step)
    found = guide.importance_NH.ravel()
    np.testing.assert_allclose(found, np.abs(slopes_BK).mean(0), rtol=0.02, atol=1e-5)
    assert scipy.stats.spearmanr(found, guide.rises_NH.ravel()).statistic > 0.8


@pytest.mark.slow
def test_pruning_the_heads_that_matter_least_is_masking_them_and_costs_little(guide):
    count = guide.importance_NH.size
    order = np.asarray(guide.importance_NH.ravel()).argsort()
    masks = np.ones((count + 1, count), np.float32)
    masks[0, order[:2]] = masks[1, order[-2:]] = 0
    masks = jnp.asarray(masks.reshape(-1, *guide.importance_NH.shape))
    least, most, *_, whole = guide.losses_without(guide.params, masks, guide.ids, guide.labels)
    assert least - whole < 0.1 * (most - whole)
    masked = jax.jit(guide.model.apply)({"params": guide.params}, guide.ids, head_mask=masks[0]).logits
    np.testing.assert_allclose(guide.logits, masked, atol=1e-4)
    assert sum(len(heads) for _, heads in guide.smaller_config.pruned_heads) == 2


@pytest.mark.slow
def test_gradients_of_each_example_are_those_of_a_loop(guide):
    ids, labels = guide.ids[:32], guide.labels[:32]

    @jax.jit
    @jax.grad
    def gradient(params, weights):
        logits = guide.model.apply({"params": params}, ids).logits
        return weights @ optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    loop = np.stack([flat(gradient(guide.params, one)) for one in jnp.eye(32)])
    ours = np.stack([flat(row(guide.gradients_B, i)) for i in range(32)])
    np.testing.assert_allclose(ours, loop, atol=1e-5 * np.abs(loop).max())
    mean = flat(gradient(guide.params, jnp.full(32, 1 / 32)))
    np.testing.assert_allclose(ours.mean(0), mean, atol=1e-5 * np.abs(mean).max())
    np.testing.assert_allclose(guide.norms_B, np.linalg.norm(loop, axis=1), rtol=1e-4)
    np.testing.assert_allclose(guide.all_norms_B[:32], guide.norms_B, rtol=1e-4)
    np.testing.assert_allclose(guide.influence_BB, loop @ loop.T, atol=1e-5 * (loop @ loop.T).max())
    leaves, tree = jax.tree.flatten(guide.gradients_B)
    theirs, clipped_count = optax.per_example_global_norm_clip(leaves, 0.06)
    assert 0 < clipped_count < 32
    theirs = flat(jax.tree.unflatten(tree, theirs)) / 32
    np.testing.assert_allclose(flat(guide.clipped), theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.slow
def test_a_gradient_of_bert_base_is_as_large_as_the_guide_says():
    model = BertForSequenceClassification(BertConfig.preset("base-uncased"))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    assert f"{4 * sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e9:.2f} GB an example" in text_of(GUIDE)


@pytest.mark.slow
def test_the_probes_are_those_of_scikit_learn_layer_by_layer(guide):
    x_NBD, labels = np.asarray(guide.x_NBD, np.float64), np.asarray(guide.probe_labels)
    decay, split = 1e-2, 768
    alone = jax.jit(guide.fit_probe)
    for n, x_BD in enumerate(x_NBD):
        theirs = LogisticRegression(C=1 / (split * decay), tol=1e-10, max_iter=10_000)
        theirs.fit(x_BD[:split], labels[:split])
        kernel, bias = theirs.coef_[0], theirs.intercept_[0]
        scale = np.abs(kernel).max()
        np.testing.assert_allclose(guide.probes_N["kernel"][n], kernel, atol=0.02 * scale)
        np.testing.assert_allclose(guide.probes_N["bias"][n], bias, atol=0.02 * scale)
        assert abs(guide.found_N[n] - theirs.score(x_BD[split:], labels[split:])) <= 2 / 256
        by_itself = alone(guide.x_NBD[n, :split], guide.probe_labels[:split])
        np.testing.assert_allclose(guide.probes_N["kernel"][n], by_itself["kernel"], atol=1e-3 * scale)
    assert guide.found_N[-1] > 0.9 > guide.found_N[0]
    assert guide.found_N[-1] > guide.control_N.max() + 0.1


@pytest.mark.slow
def test_attributions_are_differences_of_the_score_and_add_up(guide):
    # By finite differences: of each token's embedding by itself, and along the way at the points of Gauss and Legendre.
    embeds, baseline, step = np.asarray(guide.embeds_LD), np.asarray(guide.baseline_LD), 1e-2
    way, length = embeds - baseline, len(embeds)
    each = np.eye(length, dtype=np.float32)[:, :, None] * step
    nodes, weights = np.polynomial.legendre.leggauss(24)
    on_the_way = [baseline + np.float32((node + 1) / 2) * way for node in nodes]
    ends = [np.stack([embeds, baseline])]
    moved = [
        np.concatenate([point + each * by, point - each * by])
        for point, by in [(embeds, embeds), *((point, way) for point in on_the_way)]
    ]
    scores = np.asarray(jax.jit(jax.vmap(guide.score))(np.concatenate(ends + moved)), np.float64)
    at_embeds, at_baseline, scores = scores[0], scores[1], scores[2:].reshape(-1, 2, length)
    slopes = (scores[:, 0] - scores[:, 1]) / (2 * step)
    integrated = (weights / 2) @ slopes[1:]
    np.testing.assert_allclose(guide.saliency_L, slopes[0], atol=1e-3)
    np.testing.assert_allclose(guide.integrated_L, integrated, atol=0.01 * np.abs(integrated).max())
    np.testing.assert_allclose(guide.integrated_L.sum(), at_embeds - at_baseline, rtol=1e-3)
    assert guide.ids[0, jnp.abs(guide.integrated_L).argmax()] in (2, 3)


@pytest.mark.slow
def test_the_hessian_of_the_classifier_is_that_of_a_softmax_regression(guide):
    ids, labels = guide.ids[:64], guide.labels[:64]
    product = jax.jit(guide.hessian_times)
    rng = np.random.default_rng(0)
    u, v = (jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), guide.params) for _ in range(2))
    one, other = (product(guide.params, direction, ids, labels) for direction in (u, v))
    np.testing.assert_allclose(flat(v) @ flat(one), flat(u) @ flat(other), rtol=1e-3)

    # H = mean of (diag p - p pᵀ) ⊗ x xᵀ, where x is what is classified, and 1 for the bias.
    pooled = jax.jit(Bert(guide.config).apply)({"params": guide.params["bert"]}, ids).pooler_output
    x = np.concatenate([np.asarray(pooled, np.float64), np.ones((64, 1))], axis=1)
    weights = {name: np.asarray(leaf, np.float64) for name, leaf in guide.params["classifier"].items()}
    p = scipy.special.softmax(x @ np.concatenate([weights["kernel"], weights["bias"][None]]), axis=1)
    direction = np.concatenate([np.asarray(u["classifier"]["kernel"]), np.asarray(u["classifier"]["bias"])[None]])
    z = x @ direction
    expected = x.T @ (p * z - p * (p * z).sum(1, keepdims=True)) / 64
    only = {**optax.tree.zeros_like(u), "classifier": u["classifier"]}
    found = product(guide.params, only, ids, labels)["classifier"]
    found = np.concatenate([found["kernel"], found["bias"][None]])
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_power_iteration_finds_the_eigenvalue_of_lanczos(guide):
    start, unflatten = ravel_pytree(guide.start)
    product = jax.jit(guide.hessian_times)

    def times(vector):
        tree = unflatten(jnp.asarray(vector.ravel(), jnp.float32))
        return flat(product(guide.params, tree, guide.ids[:64], guide.labels[:64]))

    operator = scipy.sparse.linalg.LinearOperator((start.size, start.size), matvec=times, dtype=np.float64)  # type: ignore
    (theirs,) = scipy.sparse.linalg.eigsh(operator, k=1, which="LM", v0=np.asarray(start), tol=1e-5)[0]
    np.testing.assert_allclose(guide.eigenvalue, theirs, rtol=1e-3)
    assert guide.left < 1e-2 * abs(guide.eigenvalue)


@pytest.mark.slow
def test_forward_mode_alone_is_refused_in_bfloat16(guide):
    narrow = BertForSequenceClassification(guide.config.replace(dtype="bfloat16"))

    def loss(params):
        return narrow.apply({"params": params}, guide.ids).logits.sum()

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jit(lambda params: jax.jvp(loss, (params,), (params,))).lower(guide.params)


@pytest.mark.slow
def test_the_lens_at_a_layer_is_the_model_that_ends_there(guide):
    np.testing.assert_allclose(guide.lens_NBPV[-1], guide.logits_BPV, atol=1e-5)
    config, params = keep_layers(guide.config, guide.lm_params, [0])
    logits = jax.jit(BertForMaskedLM(config).apply)({"params": params}, guide.ids[:4]).logits
    positions = np.array([[3], [1], [5], [2]])
    np.testing.assert_allclose(guide.lens_NBPV[1], np.take_along_axis(logits, positions[..., None], 1), atol=1e-5)
    assert np.abs(guide.lens_NBPV[1] - guide.lens_NBPV[2]).max() > 1e-3


@pytest.mark.slow
def test_two_thin_matrices_learn_and_their_gradients_follow_the_chain_rule(guide):
    begin = guide.beginning["lora"]
    assert sorted(begin) == [
        f"bert/encoder/layer_{i}/attention/{name}/kernel" for i in range(2) for name in ("query", "value")
    ]
    np.testing.assert_array_equal(flat(guide.merged(guide.params, begin)), flat(guide.params))
    assert guide.lora_losses_S[0] > 1 and guide.lora_losses_S[-20:].mean() < 0.2
    same = jax.tree.map(lambda a, b: bool((a == b).all()), guide.adapted, guide.params)
    moved = {path for path, equal in flat_paths(same).items() if not equal}
    assert moved == {*begin, "classifier/kernel", "classifier/bias"}

    batch = guide.ids_SBL[0], 1 - guide.labels_SB[0]
    whole = flat_paths(jax.jit(jax.grad(guide.loss))(guide.adapted, *batch))
    found = jax.jit(jax.grad(guide.lora_loss))(guide.trained, guide.params, *batch)["lora"]
    for path, pair in guide.trained["lora"].items():
        scale = 1e-5 * np.abs(whole[path]).max() * max(np.abs(leaf).max() for leaf in pair.values()) * 16
        np.testing.assert_allclose(found[path]["a"], whole[path] @ pair["b"].T, atol=scale)
        np.testing.assert_allclose(found[path]["b"], pair["a"].T @ whole[path], atol=scale)


def flat_paths(tree) -> dict:
    return {guide_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def guide_path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


@pytest.mark.slow
def test_a_patched_state_is_what_the_layers_above_it_read(guide):
    ids, other = guide.ids[:64], guide.opposite[:64]
    apply = jax.jit(lambda ids: guide.model.apply({"params": guide.params}, ids, output_hidden_states=True))
    own, theirs = apply(ids), apply(other)
    states = own.hidden_states[1].at[:, 3].set(theirs.hidden_states[1][:, 3])
    above = guide.params["bert"]["encoder"]["layer_1"]
    first = EncoderLayer(guide.config).apply({"params": above}, states).hidden_state[:, 0]
    pooler, classifier = guide.params["bert"]["pooler"], guide.params["classifier"]
    pooled = np.tanh(first @ pooler["kernel"] + pooler["bias"][None])
    np.testing.assert_allclose(
        guide.effects_NLBC[0, 3], pooled @ classifier["kernel"] + classifier["bias"][None], atol=1e-5
    )
    np.testing.assert_allclose(guide.effects_NLBC[1, 0], theirs.logits, atol=1e-5)
    np.testing.assert_allclose(guide.effects_NLBC[1, 1:], jnp.broadcast_to(own.logits, (7, 64, 2)), atol=1e-5)


@pytest.mark.slow
def test_alibi_takes_the_place_of_relative_positions_in_the_first_layer(guide):
    embeddings, layer = (guide.alibi_params["bert"][name] for name in ("embeddings", "encoder"))
    attention = layer["layer_0"]["attention"]
    assert "distance_embedding" not in attention
    ids = np.tile(guide.ids[:4], 2)
    x = np.asarray(embeddings["word_embeddings"], np.float64)[ids] + np.asarray(embeddings["token_type_embeddings"][0])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + guide.config.layer_norm_eps)
    query, key = ((x @ np.asarray(attention[n]["kernel"], np.float64)).reshape(4, 16, 4, 4) for n in ("query", "key"))
    scores = np.einsum("BLHK,BMHK->BHLM", query, key) / 2
    distances = np.abs(np.arange(16)[:, None] - np.arange(16))
    expected = scipy.special.softmax(scores - np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * distances, -1)
    np.testing.assert_allclose(guide.alibi_output.attentions[0], expected, atol=1e-5)


@pytest.mark.slow
def test_models_add_as_vectors_and_dropout_draws_models(guide):
    a, b = flat(guide.untrained), flat(guide.params)
    np.testing.assert_allclose(flat(guide.halfway), (a + b) / 2, atol=1e-6)
    np.testing.assert_allclose(flat(guide.negated), 2 * a - b, atol=1e-6)
    np.testing.assert_allclose(guide.draws_RBC.sum(-1), 1, rtol=1e-5)
    options = {"deterministic": False, "rngs": {"dropout": jax.random.split(jax.random.key(8), 64)[5]}}
    logits = guide.model.apply({"params": guide.params}, guide.ids[:64], **options).logits
    np.testing.assert_allclose(guide.draws_RBC[5], jax.nn.softmax(logits), atol=1e-5)
    assert guide.draws_RBC.std(0).mean() > 1e-3


@pytest.mark.slow
def test_gradients_on_a_mesh_are_those_of_one_device(guide):
    here = flat(jax.jit(jax.grad(guide.loss))(guide.params, guide.ids, guide.labels))
    np.testing.assert_allclose(flat(guide.placed_gradients), here, atol=1e-5 * np.abs(here).max())


@pytest.mark.slow
@pytest.mark.eight_devices
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_divided_by_hand_have_the_dropout_and_gradients_of_one_device(dtype: str):
    block = blocks_of(GUIDE, "python")[-1]
    assert "numbered_rows" in block.code
    model = BertForSequenceClassification(tiny.CONFIG.replace(num_hidden_layers=1, dtype=dtype))
    rng = np.random.default_rng(0)
    ids, labels = jnp.asarray(rng.integers(0, 50, (16, 8))), jnp.asarray(rng.integers(0, 2, 16))
    params = model.init(jax.random.key(0), ids)["params"]

    def noisy_loss(params, ids_BL, labels_B, key):
        logits = model.apply({"params": params}, ids_BL, deterministic=False, rngs={"dropout": key}).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels_B).mean()

    given = {"jax": jax, "jnp": jnp, "noisy_loss": noisy_loss, "params": params, "ids": ids, "labels": labels}
    names: dict = dict(given)
    exec(block.code, names)
    assert names["by_rows"].size == 8
    value, gradients = jax.jit(jax.value_and_grad(noisy_loss))(params, ids, labels, jax.random.key(9))
    near = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(names["divided_loss"], value, rtol=near)
    expected = flat(gradients)
    np.testing.assert_allclose(flat(names["divided_gradients"]), expected, atol=near * np.abs(expected).max())


@pytest.mark.slow
def test_on_one_device_the_divided_loss_is_the_whole_one(guide):
    value, gradients = jax.jit(jax.value_and_grad(guide.noisy_loss))(
        guide.params, guide.ids, guide.labels, jax.random.key(9)
    )
    np.testing.assert_allclose(guide.divided_loss, value, rtol=1e-5)
    scale = np.abs(flat(gradients)).max()
    np.testing.assert_allclose(flat(guide.divided_gradients), flat(gradients), atol=1e-5 * scale)
