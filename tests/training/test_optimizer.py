"""Schedules, AdamW, LAMB and Muon: published numbers, and every variant step by step against its definition in float64."""

import dataclasses
import itertools
import math
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.moments import MomentsState
from bert_jax.training.muon import ProductType, orthogonalize
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.schedules import schedule_numbers
from bert_jax.training.sharding import path_string, state_shardings
from bert_jax.training.weight_decay import decay_mask, is_decayed, weight_decay_of
from bert_jax.tree import flatten, unflatten

PLAIN = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=0, clip_norm=0.0)


# --- schedules ---


def rates(steps, **fields) -> np.ndarray:
    schedule = make_schedule(OptimizerConfig(**fields))
    return np.array([schedule(step) for step in steps])


def test_googles_decay_line_starts_at_step_zero():
    found = rates(range(12), learning_rate=1.0, warmup_steps=3, total_steps=10)
    expected = [0, 1 / 3, 2 / 3, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0]
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_decay_from_the_end_of_warmup_is_continuous():
    found = rates(range(12), learning_rate=1.0, warmup_steps=3, total_steps=10, decay_from="warmup")
    expected = [0, 0.3333, 0.6667, 1, 0.8571, 0.7143, 0.5714, 0.4286, 0.2857, 0.1429, 0, 0]
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_first_update_has_rate_zero_and_last_update_one_step_above_the_end():
    first, at_warmup, last = rates([0, 10_000, 999_999], learning_rate=1e-4)
    assert first == 0
    np.testing.assert_allclose(at_warmup, 1e-4 * 0.99, rtol=1e-6)
    np.testing.assert_allclose(last, 1e-4 / 1_000_000, rtol=1e-6)


def test_polynomial_counts_from_one_as_nvidias_scheduler():
    steps, warmup_share, base = 7038, 0.25, 6e-3
    warmup = int(steps * warmup_share)

    def nvidia(k: int) -> float:
        progress = k / steps
        return base * k / warmup if k < warmup else base * (1 - progress) ** 0.5

    asked = [0, 1, warmup - 2, warmup - 1, warmup, 5000, steps - 1]
    fields = {"schedule": "polynomial", "power": 0.5, "first_count": 1, "total_steps": steps}
    found = rates(asked, learning_rate=base, warmup_steps=warmup, **fields)
    np.testing.assert_allclose(found, [nvidia(step + 1) for step in asked], rtol=1e-5)
    assert found[0] > 0 and found[-1] == 0


def test_polynomial_ends_at_the_end_learning_rate():
    found = rates(
        [4, 8, 20],
        learning_rate=1.0,
        warmup_steps=0,
        total_steps=8,
        schedule="polynomial",
        power=2,
        end_learning_rate=0.1,
    )
    np.testing.assert_allclose(found, [0.9 * 0.5**2 + 0.1, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize(("decay_from", "begins"), [("start", 0), ("warmup", 4)])
def test_a_cosine_decays_by_half_a_wave(decay_from: str, begins: int):
    fields = {"schedule": "cosine", "warmup_steps": 4, "total_steps": 20, "decay_from": decay_from}
    found = rates(range(23), learning_rate=0.5, end_learning_rate=0.1, **fields)
    t = np.arange(23)
    wave = (1 + np.cos(np.pi * np.clip((t - begins) / (20 - begins), 0, 1))) / 2
    np.testing.assert_allclose(found, np.where(t < 4, 0.5 * t / 4, 0.1 + 0.4 * wave), atol=1e-7)
    with pytest.raises(UserError, match=r"power is 2.*; expected 1 with schedule=\"cosine\""):
        OptimizerConfig(schedule="cosine", power=2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"warmup_steps": 0.1}, "warmup_steps is 0.1; expected a whole number, or a share as warmup_share"),
        ({"total_steps": None}, "total_steps is None; expected a whole number"),
        ({"learning_rate": "1e-4"}, "learning_rate is '1e-4'; expected a finite number >= 0"),
        ({"learning_rate": True}, "learning_rate is True; expected a finite number"),
        ({"clip_norm": None}, "clip_norm is None; expected a finite number >= 0, 0 for none"),
        ({"b1": None}, r"b1 is None; expected in \[0, 1\)"),
        ({"bias_correction": "false"}, "bias_correction is 'false'; expected True or False"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_field(fields, said):
    with pytest.raises(UserError, match=said):
        OptimizerConfig(**fields)


def test_numbers_of_numpy_are_numbers():
    given = OptimizerConfig(learning_rate=np.float32(0.5), total_steps=np.int64(10), bias_correction=np.bool_(True))
    same = OptimizerConfig(learning_rate=0.5, total_steps=10, bias_correction=True)
    assert (given, hash(given), repr(given)) == (same, hash(same), repr(same))


def test_product_form_has_no_jump():
    found = rates(range(11), learning_rate=1.0, warmup_steps=3, total_steps=10, warmup="product")
    np.testing.assert_allclose(found, [(1 - t / 10) * min(1, t / 3) for t in range(11)], atol=1e-7)


def test_constant_schedule_warms_up_and_stays():
    found = rates([0, 1, 4, 5, 10**7], learning_rate=0.5, warmup_steps=4, schedule="constant")
    np.testing.assert_allclose(found, [0, 0.125, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("first_count", [0, 1])
def test_a_constant_rate_counts_its_warm_up_from_where_it_is_told(first_count):
    config = OptimizerConfig(
        schedule="constant", learning_rate=2.0, warmup_steps=4, total_steps=9, first_count=first_count
    )
    expected = [2.0 * min((step + first_count) / 4, 1) for step in range(9)]
    np.testing.assert_allclose(make_schedule(config)(np.arange(9)), expected, rtol=1e-6)


@pytest.mark.parametrize(("shape", "first_count", "end"), [("1-sqrt", 0, 0.0), ("linear", 1, 0.1)])
def test_a_stable_rate_decays_at_the_end_by_its_closed_form(shape, first_count, end):
    fields = {"warmup_share": 0.05, "total_steps": 40, "decay_share": 0.25, "first_count": first_count}
    found = rates(range(45), learning_rate=0.5, schedule="stable", decay_shape=shape, end_learning_rate=end, **fields)
    t = np.arange(45, dtype=np.float64) + first_count
    p = np.clip((t - 30) / 10, 0, 1)
    expected = end + (0.5 - end) * (1 - np.sqrt(p) if shape == "1-sqrt" else 1 - p)
    np.testing.assert_allclose(found, np.where(t < 2, 0.5 * t / 2, expected), rtol=1e-6)


def test_a_longer_stable_run_has_the_same_rates_until_the_shorter_one_decays():
    short, long = (
        rates(range(90), learning_rate=1.0, schedule="stable", warmup_steps=10, total_steps=total, decay_share=0.1)
        for total in (100, 400)
    )
    np.testing.assert_array_equal(short, long)


def test_warmup_of_the_whole_run_is_finite_in_both_conventions():
    for decay_from in ("start", "warmup"):
        found = rates(range(6), learning_rate=1.0, warmup_steps=4, total_steps=4, decay_from=decay_from)
        np.testing.assert_allclose(found, [0, 0.25, 0.5, 0.75, 0, 0])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "stable"])
def test_schedule_takes_traced_steps(schedule):
    config = OptimizerConfig(warmup_steps=3, total_steps=10, schedule=schedule)
    steps = jnp.arange(12, dtype=jnp.int32)
    traced = jax.jit(jax.vmap(make_schedule(config)))(steps)
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, [make_schedule(config)(step) for step in range(12)], rtol=1e-6)


# --- what is decayed ---


@pytest.mark.parametrize("warmup_steps", [0, 4, 11])
@pytest.mark.parametrize(
    "fields",
    [
        {"decay_from": "start"},
        {"decay_from": "warmup", "end_learning_rate": 0.1},
        {"schedule": "polynomial", "power": 0.5, "warmup": "product", "first_count": 1},
        {"schedule": "constant"},
    ],
)
def test_a_late_schedule_is_one_program_for_all_rates_and_lengths(fields: dict, warmup_steps: int):
    """That of one config, with the numbers of another, gives the rates of the other."""
    config = OptimizerConfig(learning_rate=0.7, warmup_steps=warmup_steps, total_steps=11, **fields)
    another = OptimizerConfig(learning_rate=3.0, warmup_steps=2, total_steps=50, **fields)
    traced = jax.jit(jax.vmap(make_schedule(another, traced=True), in_axes=(0, None)))
    steps = np.arange(14)
    expected = [make_schedule(config)(step) for step in steps]
    np.testing.assert_allclose(traced(steps, schedule_numbers(config)), expected, rtol=1e-6, atol=1e-7)
    assert not np.allclose(traced(steps, schedule_numbers(another)), expected)
    assert traced._cache_size() == 1


def test_embeddings_and_kernels_are_decayed_and_biases_and_layer_norms_are_not():
    config = BertConfig(
        vocab_size=8,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=4,
        max_position_embeddings=4,
    )
    ids = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(lambda: BertForPreTraining(config).init(jax.random.key(0), ids))["params"]
    flat = jax.tree_util.tree_flatten_with_path(decay_mask(params))[0]
    decayed = {jax.tree_util.keystr(path, simple=True, separator="/") for path, value in flat if value}
    layer = "bert/encoder/layer_0"
    assert decayed == {
        "bert/embeddings/word_embeddings",
        "bert/embeddings/position_embeddings",
        "bert/embeddings/token_type_embeddings",
        *(f"{layer}/attention/{name}/kernel" for name in ("query", "key", "value", "output")),
        f"{layer}/feed_forward/intermediate/kernel",
        f"{layer}/feed_forward/output/kernel",
        "bert/pooler/kernel",
        "mlm_head/transform/kernel",
        "nsp_head/kernel",
    }


@pytest.mark.parametrize(
    ("path", "decayed"),
    [
        ("bert/encoder/layer_0/attention/LayerNorm/scale", False),
        ("encoder/full_layer_layer_norm/gamma", False),
        ("mlm_head/output_bias", False),
        ("bias", False),
        ("unbiased/kernel", True),
    ],
)
def test_decay_rule_on_names_of_other_families(path, decayed):
    assert is_decayed(path) is decayed


# --- published numbers ---


def run(config: OptimizerConfig, w: Any, gradients) -> list[np.ndarray]:
    tx = make_optimizer(config)
    params = {"w": jnp.asarray(w, jnp.float32)}
    state, found = tx.init(params), []
    for step, g in enumerate(gradients):
        updates, state = tx.update({"w": jnp.asarray(g, jnp.float32)}, state, params, step=step)
        params = optax.apply_updates(params, updates)
        found.append(np.asarray(params["w"]))
    return found


def test_adamw_of_google():
    found = run(PLAIN, 1.0, [0.5, -0.3, 0.2])
    np.testing.assert_allclose(found, [0.68279223, 0.60073501, 0.42815822], rtol=1e-6)


def test_adamw_of_torch():
    found = run(dataclasses.replace(PLAIN, bias_correction=True, eps=1e-8), 1.0, [0.5, -0.3, 0.2])
    np.testing.assert_allclose(found, [0.89900000, 0.87895120, 0.84332948], rtol=1e-6)


@pytest.mark.parametrize(
    ("bias_correction", "expected"),
    [
        (True, [[2.648159573, 3.644741905], [2.844055584, 3.239040439]]),
        (False, [[2.647027751, 3.645866422], [2.854481401, 3.245923973]]),
    ],
)
def test_lamb(bias_correction, expected):
    config = dataclasses.replace(PLAIN, name="lamb", bias_correction=bias_correction)
    np.testing.assert_allclose(run(config, [3.0, 4.0], [[0.1, 0.2], [-0.3, 0.1]]), expected, rtol=1e-6)


# --- step by step against the definitions ---

SHAPES = {
    "embeddings": {"word_embeddings": (7, 4), "LayerNorm": {"scale": (4,), "bias": (4,)}},
    "pooler": {"kernel": (4, 4), "bias": (4,)},
    "zero": {"kernel": (3,)},
}
PATHS = ["embeddings/word_embeddings", "embeddings/LayerNorm/scale", "embeddings/LayerNorm/bias"]
PATHS += ["pooler/kernel", "pooler/bias", "zero/kernel"]
DECAYED = {"embeddings/word_embeddings", "pooler/kernel", "zero/kernel"}
STEPS, SKIPPED = 60, 7


class Reference:
    """The optimizers in float64, one leaf at a time, written from their definitions."""

    def __init__(self, config: OptimizerConfig, params: dict[str, np.ndarray]):
        self.config, self.count = config, 0
        self.w = {path: value.astype(np.float64) for path, value in params.items()}
        self.m = {path: np.zeros_like(value) for path, value in self.w.items()}
        self.v = {path: np.zeros_like(value) for path, value in self.w.items()}

    def rate(self, t: int) -> float:
        c = self.config
        if t < c.warmup_steps:
            return c.learning_rate * t / c.warmup_steps
        return c.learning_rate * (1 - min(t, c.total_steps) / c.total_steps)

    def update(self, grads: dict[str, np.ndarray], t: int) -> None:
        c = self.config
        self.count += 1
        norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads.values()))
        shrink = 1.0 / max(norm / c.clip_norm, 1.0) if c.clip_norm else 1.0
        for path, w in self.w.items():
            self.w[path] = self.new_weight(path, w, grads[path].astype(np.float64) * shrink, self.rate(t))

    def new_weight(self, path: str, w: np.ndarray, g: np.ndarray, rate: float) -> np.ndarray:
        c, decays = self.config, path in DECAYED
        self.m[path] = m = c.b1 * self.m[path] + (1 - c.b1) * g
        self.v[path] = v = c.b2 * self.v[path] + (1 - c.b2) * g * g
        c1 = 1 - c.b1**self.count if c.bias_correction else 1.0
        c2 = 1 - c.b2**self.count if c.bias_correction else 1.0
        if c.eps_placement == "outside":
            u = (m / c1) / (np.sqrt(v / c2) + c.eps)
        elif c.eps_placement == "inside":
            u = (m / c1) / np.sqrt(v / c2 + c.eps)
        else:
            u = math.sqrt(c2) / c1 * m / (np.sqrt(v) + c.eps)
        if c.decay_applies_to == "updated":
            moved = w - rate * u
            return moved - rate * c.weight_decay * moved if decays else moved
        u = u + c.weight_decay * w * decays
        if c.name == "lamb" and (decays or c.trust_ratio_for == "all"):
            w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
            if w_norm > 0 and u_norm > 0:
                u = u * w_norm / u_norm
        return w - rate * u


SCHEDULED = OptimizerConfig(learning_rate=0.05, warmup_steps=5, total_steps=STEPS + SKIPPED, eps=1e-3, weight_decay=0.1)
LAMB = dataclasses.replace(SCHEDULED, name="lamb")
VARIANTS = [
    *(
        dataclasses.replace(SCHEDULED, eps_placement=placement, bias_correction=corrected)
        for placement, corrected in itertools.product(("outside", "inside", "hat"), (False, True))
    ),
    dataclasses.replace(SCHEDULED, decay_applies_to="updated"),
    dataclasses.replace(SCHEDULED, decay_applies_to="updated", bias_correction=True, eps_placement="hat"),
    dataclasses.replace(SCHEDULED, clip_norm=0.0),
    dataclasses.replace(SCHEDULED, weight_decay=0.0, b1=0.0, bias_correction=True),
    *(
        dataclasses.replace(LAMB, bias_correction=corrected, trust_ratio_for=scope)
        for corrected, scope in itertools.product((False, True), ("decayed", "all"))
    ),
    dataclasses.replace(LAMB, clip_norm=0.0),
]


def tree_of(leaves: dict[str, np.ndarray]) -> Any:
    nested: dict = {}
    for path, leaf in leaves.items():
        node, (*modules, name) = nested, path.split("/")
        for module in modules:
            node = node.setdefault(module, {})
        node[name] = jnp.asarray(leaf)
    return nested


def shape_of(path: str) -> tuple[int, ...]:
    node: Any = SHAPES
    for name in path.split("/"):
        node = node[name]
    return node


def what_differs(config: OptimizerConfig) -> str:
    fields = dataclasses.asdict(config).items()
    return ",".join(f"{name}={value}" for name, value in fields if value != getattr(SCHEDULED, name)) or "google"


@pytest.mark.slow
@pytest.mark.parametrize("config", VARIANTS, ids=what_differs)
def test_every_variant_follows_its_definition(config):
    """Random gradients of all sizes; a few batches are skipped, so that consumed batches and updates differ."""
    rng = np.random.default_rng(3)
    start = {path: rng.normal(size=shape_of(path)).astype(np.float32) for path in PATHS}
    start["zero/kernel"] *= 0  # the trust ratio is 1 where the weights are zero
    reference, tx = Reference(config, start), make_optimizer(config)
    params = tree_of(start)
    state = tx.init(params)
    update = jax.jit(tx.update)
    for count in range(STEPS):
        step = count + (SKIPPED if count >= 20 else 0)
        scale = 10.0 ** rng.uniform(-3, 1)
        grads = {path: (rng.normal(size=shape_of(path)) * scale).astype(np.float32) for path in PATHS}
        updates, state = update(tree_of(grads), state, params, step=step)
        params = optax.apply_updates(params, updates)
        reference.update(grads, step)
        for found, expected in zip(jax.tree.leaves(params), jax.tree.leaves(tree_of(reference.w)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=f"after update {count}")


def test_variants_differ_from_one_another():
    """Otherwise the comparison above would say nothing about the fields."""
    rng = np.random.default_rng(3)
    start = {path: rng.normal(size=shape_of(path)).astype(np.float32) for path in PATHS}
    grads = [{path: rng.normal(size=shape_of(path)).astype(np.float32) for path in PATHS} for _ in range(4)]
    ends = []
    for config in VARIANTS:
        reference = Reference(config, start)
        for step, g in enumerate(grads):
            reference.update(g, step)
        ends.append(np.concatenate([w.ravel() for w in reference.w.values()]))
    same = {(i, j) for i, j in itertools.combinations(range(len(ends)), 2) if np.abs(ends[i] - ends[j]).max() < 1e-5}
    assert same == {(0, 4)}  # "hat" without bias correction is "outside"


def test_state_is_the_same_tree_whatever_the_config():
    """So that a checkpoint restores after clipping, decay or the optimizer itself were changed."""
    params = tree_of({path: np.ones(shape_of(path), np.float32) for path in PATHS})
    plain = dataclasses.replace(SCHEDULED, clip_norm=0.0, weight_decay=0.0)
    paths = [
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(make_optimizer(c).init(params))]
        for c in (SCHEDULED, plain, LAMB, VARIANTS[6])
    ]
    assert all(found == paths[0] for found in paths)
    assert len(paths[0]) == 1 + 2 * len(PATHS)


def test_update_without_step_says_what_is_missing():
    tx = make_optimizer(PLAIN)
    params = {"w": jnp.ones(2)}
    with pytest.raises(TypeError, match="step="):
        tx.update(params, tx.init(params), params)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "adam"}, "optimizer.name is 'adam'; expected one of adamw, lamb, muon, schedule-free"),
        ({"decay_from": "end"}, "optimizer.decay_from is 'end'; expected one of start, warmup"),
        ({"learning_rate": -1.0}, "optimizer.learning_rate is -1.0; expected a finite number >= 0"),
        ({"b2": 1.0}, r"optimizer.b2 is 1.0; expected in \[0, 1\)"),
        ({"warmup_share": 1.5}, "optimizer.warmup_share is 1.5; expected from 0 to 1"),
        (
            {"schedule": "stable", "warmup_share": 0.9, "decay_share": 0.2},
            "optimizer.decay_share is 0.2; expected at most what the warm-up leaves of the run",
        ),
        ({"warmup_steps": 11, "total_steps": 10}, "optimizer.warmup_steps is 11; expected from 0 to total_steps=10"),
        ({"total_steps": 2**31}, "optimizer.total_steps is 2147483648; expected from 1 to 2147483647"),
        (
            {"schedule": "constant", "warmup_steps": 2**31},
            "optimizer.warmup_steps is 2147483648; expected from 0 to 2147483647, or none",
        ),
        ({"power": 2.0}, "optimizer.power is 2.0; expected 1 with schedule"),
        ({"name": "lamb", "decay_applies_to": "updated"}, "optimizer.decay_applies_to"),
    ],
)
def test_config_names_the_field_that_is_wrong(fields, message):
    with pytest.raises(UserError, match=message):
        OptimizerConfig(**fields)


# --- Muon, and moments by tokens ---

LAYER = "bert/encoder/layer_0/feed_forward"
MATRICES = [f"{LAYER}/intermediate/kernel", f"{LAYER}/output/kernel"]
OF_MUON = {MATRICES[0]: (6, 10), MATRICES[1]: (10, 6), "bert/embeddings/word_embeddings": (7, 6)}
MUON = OptimizerConfig(
    name="muon", learning_rate=0.02, warmup_steps=2, total_steps=8, bias_correction=True, eps=1e-8, weight_decay=0.1
)


def drawn(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in OF_MUON.items()})


@pytest.mark.slow
def test_muon_is_optaxs_own_for_matrices_and_adamw_for_the_rest():
    config = dataclasses.replace(MUON, clip_norm=0.0, b2=0.9)  # of 1 - 0.999 Optax loses digits
    tx, rate = make_optimizer(config), make_schedule(config)
    fields: dict[str, Any] = {"weight_decay": 0.1, "eps": 1e-8}
    theirs = [
        optax.contrib.muon(rate, beta=0.95, consistent_rms=0.2, **fields),
        optax.adamw(rate, b1=0.9, b2=0.9, **fields),
    ]
    params = drawn(0)
    expected, states, state = [params, params], [one.init(params) for one in theirs], tx.init(params)
    for step in range(6):
        gradients = drawn(step + 1)
        updates, state = tx.update(gradients, state, params, step=step)
        params = optax.apply_updates(params, updates)
        for number, one in enumerate(theirs):
            updates, states[number] = one.update(gradients, states[number], expected[number])
            expected[number] = optax.apply_updates(expected[number], updates)
        ours, muon, adamw = (flatten(tree) for tree in (params, *expected))
        for path in OF_MUON:
            np.testing.assert_allclose(ours[path], (muon if path in MATRICES else adamw)[path], rtol=1e-6, atol=1e-7)


def test_muon_updates_a_bare_encoder_as_one_under_a_head():
    encoder = drawn(0)["bert"] | {"pooler": {"kernel": np.ones((2, 3), np.float32)}}
    tx = make_optimizer(MUON)
    under, bare = ((tx.update(p, tx.init(p), p, step=2)[0]) for p in ({"bert": encoder}, encoder))
    jax.tree.map(np.testing.assert_array_equal, under["bert"], bare)
    kept: Any = tx.init(encoder)
    assert len(jax.tree.leaves(kept["matrices"].inner_state.mu)) == 3


def test_muon_without_a_matrix_is_refused():
    with pytest.raises(UserError, match="found no matrix for it; expected the tree of a Bert"):
        make_optimizer(MUON).init({"model": {"kernel": jnp.ones((2, 2))}})


def test_muon_keeps_no_second_moment_of_matrices():
    state = make_optimizer(MUON).init(drawn(0))
    kept = [path_string(path) for path, leaf in jax.tree_util.tree_leaves_with_path(state) if leaf.ndim == 2]
    embeddings, inside = "bert/embeddings/word_embeddings", "matrices/inner_state/mu"
    moments = [f"moments/inner_state/{name}/{embeddings}" for name in ("mu", "nu")]
    assert sorted(kept) == sorted([*moments, *(f"{inside}/{path}" for path in MATRICES)])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(48, 48), (24, 96), (96, 24)], ids=str)
def test_muon_with_bfloat16_operands_is_nearer_to_the_definition_than_with_bfloat16_throughout(shape: tuple[int, int]):
    """The author's code computes in bfloat16 throughout; the definition is written out in float64."""
    matrix = np.random.default_rng(0).normal(size=shape)
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        x = 3.4445 * x + (-4.7750 * x @ x.T + 2.0315 * (x @ x.T) @ (x @ x.T)) @ x
    theirs, rounded_matrix = optax.contrib.scale_by_muon(beta=0.0, nesterov=False), jnp.asarray(matrix, jnp.bfloat16)
    throughout = theirs.update(rounded_matrix, theirs.init(rounded_matrix))[0]
    assert throughout.dtype == jnp.bfloat16
    full, rounded = (orthogonalize(jnp.asarray(matrix, jnp.float32), products) for products in get_args(ProductType))
    np.testing.assert_allclose(full, x, rtol=1e-4, atol=1e-5)
    distances = [np.linalg.norm(np.asarray(found, np.float64) - x) for found in (full, rounded, throughout)]
    assert distances[0] < distances[1] < distances[2]


@pytest.mark.slow
@pytest.mark.eight_devices
@pytest.mark.parametrize("mesh", [MeshConfig(data=2, fsdp=2, zero=2), MeshConfig(data=2, fsdp=2, tensor=2)], ids=str)
def test_muon_of_pieces_is_muon_of_whole_matrices(mesh: MeshConfig):
    tx = make_optimizer(dataclasses.replace(MUON, warmup_steps=0))
    shapes = {path: (16, 24) if path in MATRICES else (8, 16) for path in OF_MUON}
    rng = np.random.default_rng(0)
    params, gradients = (
        unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}) for _ in range(2)
    )
    update = jax.jit(lambda gradients, state, params: tx.update(gradients, state, params, step=0)[0])
    expected = update(gradients, tx.init(params), params)
    on = make_mesh(mesh)
    split = [jax.device_put(tree, state_shardings(tree, on)) for tree in (gradients, tx.init(params), params)]
    assert len({str(shard.index) for shard in flatten(split[0])[MATRICES[0]].addressable_shards}) == 4
    for path, found in flatten(update(*split)).items():
        np.testing.assert_allclose(found, flatten(expected)[path], rtol=1e-5, atol=1e-7, err_msg=path)


def second_moments(config: OptimizerConfig, batches: list[tuple[int, int]], gradients: list[float]) -> np.ndarray:
    tx, params = make_optimizer(config, batches=batches), {"w": jnp.zeros(())}
    state, found = tx.init(params), []
    for step, gradient in enumerate(gradients):
        _, state = tx.update({"w": jnp.float32(gradient)}, state, params, step=step)
        found.append(float(state["moments"].nu["w"]))
    return np.array(found)


@pytest.mark.slow
def test_a_second_moment_halves_after_as_many_tokens_whatever_the_batch():
    config = dataclasses.replace(PLAIN, b2_half_life=1200)
    for batches in ([(99, 100)], [(99, 300)], [(5, 100), (2, 300), (99, 200)]):
        sizes = [tokens for steps, tokens in batches for _ in range(steps)]
        steps = int(np.searchsorted(np.cumsum(sizes[1:]), 1200)) + 1
        found = second_moments(config, batches, [1.0] + [0.0] * steps)
        assert sum(sizes[1 : steps + 1]) in (1200, 1300)
        np.testing.assert_allclose(found[-1] / found[0], 0.5 ** (sum(sizes[1 : steps + 1]) / 1200), rtol=1e-5)


def test_updates_with_a_half_life_follow_their_definition():
    """Two sizes of batches, with bias correction, in float64; one size is a fixed b2."""
    config = dataclasses.replace(PLAIN, b2_half_life=500, bias_correction=True, weight_decay=0.0)
    gradients = np.random.default_rng(0).normal(size=12)
    tx, params = make_optimizer(config, batches=[(4, 50), (8, 200)]), {"w": jnp.zeros(())}
    state, m, v, product = tx.init(params), 0.0, 0.0, 1.0
    for step, gradient in enumerate(gradients):
        updates, state = tx.update({"w": jnp.float32(gradient)}, state, params, step=step)
        b2 = 0.5 ** ((50 if step < 4 else 200) / 500)
        m, v, product = 0.9 * m + 0.1 * gradient, b2 * v + (1 - b2) * gradient**2, product * b2
        expected = -0.1 * (m / (1 - 0.9 ** (step + 1))) / (math.sqrt(v / (1 - product)) + 1e-6)
        np.testing.assert_allclose(updates["w"], expected, rtol=1e-5)
    of_tokens = second_moments(dataclasses.replace(config, b2_half_life=100), [(9, 50)], list(gradients))
    fixed = second_moments(dataclasses.replace(PLAIN, b2=0.5**0.5), [], list(gradients))
    np.testing.assert_allclose(of_tokens, fixed, rtol=1e-6)


def test_a_half_life_follows_the_step_where_the_moments_are_those_of_an_earlier_run():
    """A thousand updates before; the first step of this run has batches of 50 tokens all the same."""
    tx = make_optimizer(dataclasses.replace(PLAIN, b2_half_life=500), batches=[(4, 50), (8, 200)])
    params = {"w": jnp.zeros(())}
    state = tx.init(params)
    moments = MomentsState(jnp.int32(1000), state["moments"].mu, {"w": jnp.ones(())})
    for step, tokens in ((0, 50), (3, 50), (4, 200)):
        _, after = tx.update({"w": jnp.zeros(())}, state | {"moments": moments}, params, step=step)
        np.testing.assert_allclose(after["moments"].nu["w"], 0.5 ** (tokens / 500), rtol=1e-6)


def test_the_decay_of_a_late_step_of_a_long_run_has_all_its_digits():
    steps = 10_000_000
    config = dataclasses.replace(PLAIN, clock="tokens", total_steps=steps, weight_decay=0.01, learning_rate=1.0)
    rate = weight_decay_of(config, [(steps // 2, 100), (steps // 2, 200)])
    assert callable(rate)
    for step, share in ((0, 2 / 3), (steps // 2 - 1, 2 / 3), (steps // 2, 4 / 3), (steps - 1, 4 / 3)):
        np.testing.assert_allclose(rate(jnp.int32(step)), 0.01 * share, rtol=1e-6)


RAMP = [(8, 50), (4, 100), (2, 200)]
SIZES = np.repeat([50, 100, 200], [8, 4, 2])


@pytest.mark.parametrize("first_count", [0, 1])
@pytest.mark.parametrize("shape", ["linear", "stable", "constant"])
def test_a_schedule_by_tokens_has_its_warm_up_and_decay_at_the_same_tokens(shape: str, first_count: int):
    """The rate at a token is that of a run of equal batches there; NumPy's interpolation in float64."""
    fields = {"total_steps": 14, "learning_rate": 1.0, "schedule": shape, "first_count": first_count}
    config = OptimizerConfig(**fields, warmup_steps=3, decay_from="warmup", decay_share=0.5, decay_shape="linear")
    by_tokens = make_schedule(dataclasses.replace(config, clock="tokens"), batches=RAMP)
    points = np.arange(-first_count, 14 - first_count, 1e-3)
    of_equal = make_schedule(config)(points)
    tokens = np.append(0, np.cumsum(SIZES))[first_count:14] / SIZES.sum() * 14
    expected = np.interp(tokens - first_count, points, of_equal)
    found = [by_tokens(step) for step in range(14 - first_count)]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert not np.allclose(found, [make_schedule(config)(step) for step in range(14 - first_count)], atol=0.05)
    same = make_schedule(dataclasses.replace(config, clock="tokens"), batches=[(14, 50)])
    np.testing.assert_allclose(
        [same(step) for step in range(16)], [make_schedule(config)(step) for step in range(16)], atol=1e-6
    )


def test_a_decay_that_begins_late_begins_there_by_tokens_too():
    config = OptimizerConfig(
        total_steps=14, learning_rate=1.0, schedule="stable", warmup_steps=0, decay_shape="linear", clock="tokens"
    )
    rate = make_schedule(config, batches=RAMP)
    found = [rate(step, np.array([8, 14], np.int32)) for step in range(15)]
    np.testing.assert_allclose(found, [1.0] * 9 + [7 / 8, 6 / 8, 5 / 8, 4 / 8, 2 / 8, 0], atol=1e-5)


@pytest.mark.parametrize("applies_to", ["old", "updated"])
def test_weights_halve_after_as_many_tokens_whatever_the_batch(applies_to: str):
    config = dataclasses.replace(
        PLAIN, clock="tokens", total_steps=14, weight_decay=0.5, decay_applies_to=applies_to, eps=1.0
    )
    tx, params = make_optimizer(config, batches=RAMP), {"w": jnp.ones(())}
    state, expected = tx.init(params), 1.0
    for step, tokens in enumerate(SIZES):
        updates, state = tx.update({"w": jnp.zeros(())}, state, params, step=step)
        params = optax.apply_updates(params, updates)
        expected *= 1 - 0.1 * 0.5 * 14 * tokens / SIZES.sum()
        np.testing.assert_allclose(params["w"], expected, rtol=1e-5)


def test_a_clock_of_tokens_needs_batches_of_tokens():
    for make in (make_optimizer, make_schedule):
        with pytest.raises(UserError, match=r"optimizer\.clock is 'tokens'; expected steps: only pretraining counts"):
            make(dataclasses.replace(PLAIN, clock="tokens"))
    with pytest.raises(UserError, match=r"optimizer\.clock is 'tokens'; expected steps"):
        make_schedule(dataclasses.replace(PLAIN, clock="tokens"), batches=RAMP, traced=True)


def test_a_traced_schedule_has_no_tail_to_average_over():
    with pytest.raises(UserError, match=r"optimizer\.average_tail is 0\.2; expected none"):
        make_optimizer(dataclasses.replace(PLAIN, average_tail=0.2), batches=RAMP, traced=True)


def test_a_half_life_needs_batches_of_tokens():
    with pytest.raises(UserError, match=r"optimizer\.b2_half_life is 5; expected none: only pretraining counts tokens"):
        make_optimizer(dataclasses.replace(PLAIN, b2_half_life=5))
    with pytest.raises(UserError, match=r"optimizer\.b2_half_life is 0; expected a number of tokens above 0"):
        dataclasses.replace(PLAIN, b2_half_life=0)
