"""Trees, paths and the one sum over all parameters."""

import hashlib

import jax.numpy as jnp
import numpy as np

from bert_jax.tree import flatten, parameter_count, sha256_of_parameters, unflatten


def test_paths_and_nesting_are_inverse():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert flatten(tree) == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert unflatten(flatten(tree)) == tree


def test_sum_is_what_its_docstring_says():
    tree = {"b": np.array([1.0, 2.0], np.float32), "a": {"x": np.array([[3.0]], np.float32)}}
    stream = b"a/x\0float32\x001,1\0" + np.float32(3).tobytes() + b"b\0float32\x002\0" + np.float32([1, 2]).tobytes()
    assert sha256_of_parameters(tree) == hashlib.sha256(stream).hexdigest()


def test_sum_depends_on_values_names_and_shapes_and_on_nothing_else():
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    same = [
        {"k": base, "l": base},
        {"l": jnp.asarray(base), "k": np.asfortranarray(base)},
        {"k": base.astype(">f4"), "l": base.T.copy().T},
    ]
    assert len({sha256_of_parameters(tree) for tree in same}) == 1
    changed = base.copy()
    changed[1, 2] = np.nextafter(np.float32(5), np.float32(6))
    others = [
        {"k": base, "l": changed},
        {"k": changed, "l": base},
        {"k": base, "m": base},
        {"k": base, "l": base.reshape(3, 2)},
        {"k": base, "l": base.astype(np.float16)},
        {"k": base},
    ]
    assert len({sha256_of_parameters(tree) for tree in [*others, same[0]]}) == len(others) + 1


def test_count_needs_shapes_only():
    assert parameter_count({"a": jnp.zeros((2, 3)), "b": {"c": np.zeros(4)}, "d": np.float32(1)}) == 11
