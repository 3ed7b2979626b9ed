"""Dropout from a counter hash: its rate, its independence, and that a device makes its own bits only."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.model.layers import DropoutKey, dropout, dropout_bits, keep_from, key_words

WORDS = key_words(jax.random.key(7))


def bits(shape, words=WORDS, site=0):
    return np.asarray(jax.jit(dropout_bits, static_argnums=(1, 2))(words, site, shape))


@pytest.mark.slow
def test_the_rate_is_kept_and_the_rest_scaled_up():
    x = jnp.ones((64, 128, 128))
    for rate in (0.1, 0.5, 0.9):
        y = np.asarray(dropout(x, rate, DropoutKey(WORDS, 3)))
        deviation = np.sqrt(rate * (1 - rate) / x.size)
        assert abs((y == 0).mean() - rate) < 5 * deviation
        np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)
    assert dropout(x, 0.0, DropoutKey(WORDS, 3)) is x
    assert dropout(x, 0.1, None) is x


def test_a_rate_just_below_one_fits_the_bits():
    assert int(keep_from(0.0)) == 0
    assert int(keep_from(0.5)) == 2**31
    assert int(keep_from(1 - 1e-11)) == 2**32 - 1


@pytest.mark.slow
def test_bfloat16_is_scaled_in_float32():
    x = jnp.linspace(1, 2, 4096).astype(jnp.bfloat16)[None]
    y = dropout(x, 0.1, DropoutKey(WORDS, 0))
    assert y.dtype == jnp.bfloat16
    kept = np.asarray(y != 0)
    np.testing.assert_array_equal(y[kept], (x.astype(jnp.float32) / np.float32(0.9)).astype(jnp.bfloat16)[kept])


@pytest.mark.slow
def test_the_gradient_passes_where_the_value_did():
    x = jnp.ones((4, 8, 16))
    y, pull = jax.vjp(lambda x: dropout(x, 0.3, DropoutKey(WORDS, 1)), x)
    np.testing.assert_array_equal(pull(jnp.ones_like(x))[0], y)


def test_the_upper_bytes_are_uniform_along_every_axis():
    # Sparse counters are where a weak hash shows: few rows, sites and keys, small numbers.
    raw_keys = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0)]
    words = [key_words(jnp.array(key, jnp.uint32)) for key in raw_keys]
    streams = np.stack([bits((8, 64, 64), key, site) for key in words for site in range(4)])
    for shift in (24, 16):
        for values in (streams, streams[:, 0], streams[..., 0], streams[..., 0, :]):
            count = np.bincount((values.ravel() >> shift) & 255, minlength=256)
            expected = values.size / 256
            chi_square = ((count - expected) ** 2 / expected).sum()
            assert abs(chi_square - 255) < 6 * np.sqrt(2 * 255)


@pytest.mark.slow
def test_rows_sites_and_keys_draw_independent_masks():
    shape = (6, 4096)
    keys = [WORDS, key_words(jax.random.key(8)), key_words(jax.random.fold_in(jax.random.key(7), 1))]
    masks = np.concatenate([bits(shape, key, site) for key in keys for site in (0, 1, 2, 37)])
    signs = np.where(masks >= 2**31, 1.0, -1.0)
    correlation = signs @ signs.T / shape[1]
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(shape[1])


@pytest.mark.slow
def test_masks_of_two_steps_are_not_shifts_of_one_another():
    # Look in every stream for the first two words of every other. With a state of 32 bits about nine of these
    # 36,672 pairs of streams would overlap, at an unknown shift.
    length, steps, sites = 2**20, 48, (0, 1, 2, 37)
    keys = jax.vmap(lambda step: key_words(jax.random.fold_in(jax.random.key(0), step)))(np.arange(steps))
    streams = [(words, site) for words in keys for site in sites]
    heads = np.stack([bits((1, 2), words, site)[0] for words, site in streams])
    seen = np.zeros(2**16, bool)
    seen[heads[:, 0] >> 16] = True
    follows = {int(first): int(second) for first, second in heads}
    overlaps = 0
    for words, site in streams:
        stream = bits((1, length), words, site)[0]
        for start in np.flatnonzero(seen[stream >> 16]):
            second = follows.get(int(stream[start]))
            overlaps += second in (stream[start ^ 1], stream[min(start + 1, length - 1)])
    # Each stream finds its own beginning.
    assert overlaps == len(streams)


def test_rows_differ_far_beyond_two_to_the_sixteen():
    rows = bits((2**17 + 3, 2)).astype(np.uint64)
    assert len(np.unique(rows[:, 0] << np.uint64(32) | rows[:, 1])) == len(rows)


def test_a_row_depends_on_its_number_only_and_on_every_word_of_the_key():
    np.testing.assert_array_equal(bits((3, 5, 7)), bits((9, 5, 7))[:3])
    for raw_key in ((0, 8), (1, 7), (7, 0)):
        other = bits((2, 64, 64), key_words(jnp.array(raw_key, jnp.uint32)))
        agree = (other >= 2**31) == (bits((2, 64, 64)) >= 2**31)
        assert abs(agree.mean() - 0.5) < 0.04


@pytest.mark.parametrize(("short", "long"), [((2, 3, 16, 16), (2, 3, 32, 32)), ((2, 16, 8), (2, 64, 8))])
def test_padding_changes_no_bit(short, long):
    np.testing.assert_array_equal(bits(long)[tuple(slice(size) for size in short)], bits(short))


@pytest.mark.slow
def test_typed_raw_and_rbg_keys_are_taken():
    np.testing.assert_array_equal(key_words(jax.random.key(3)), key_words(jax.random.PRNGKey(3)))
    y = dropout(jnp.ones((8, 512)), 0.5, DropoutKey(key_words(jax.random.key(3, impl="rbg"))))
    assert 0.4 < (np.asarray(y) == 0).mean() < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((16, 32, 64), PartitionSpec("data")),
        ((16, 32, 64), PartitionSpec("data", None, "tensor")),
        ((16, 4, 32, 32), PartitionSpec("data", "tensor")),
        ((16, 32, 64), PartitionSpec(None, None, ("data", "tensor"))),
    ],
)
@pytest.mark.eight_devices
def test_bits_do_not_depend_on_the_mesh_and_a_device_makes_only_its_own(shape, spec):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, spec)
    x = jnp.ones(shape)
    whole = dropout(x, 0.5, DropoutKey(WORDS, 2))
    step = jax.jit(lambda x, words: dropout(jnp.sin(x) + 1, 0.5, DropoutKey(words, 2)), out_shardings=sharding)
    program = step.lower(jax.device_put(x, sharding), WORDS).compile()
    shared_out = program(jax.device_put(x, sharding), WORDS)
    np.testing.assert_array_equal(np.asarray(shared_out) == 0, np.asarray(whole) == 0)
    sizes = [np.prod([int(n) for n in dims.split(",")]) for dims in re.findall(r"u32\[([\d,]+)\]", program.as_text())]
    assert max(sizes) == np.prod(sharding.shard_shape(shape))
