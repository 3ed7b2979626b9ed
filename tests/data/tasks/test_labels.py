"""Classes found, numbered and held out in equal shares."""

import unicodedata
from collections import Counter
from functools import partial

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from bert_jax.data.tasks.labelled_text import LabelledText, find_labels, label_ids, split
from bert_jax.errors import UserError

nfd = partial(unicodedata.normalize, "NFD")


def examples(*labels) -> list[LabelledText]:
    return [LabelledText(str(i), "x", None, label, i + 2) for i, label in enumerate(labels)]


def test_classes_are_sorted_as_words_or_as_numbers():
    assert find_labels(examples("b", "a", "b")) == ("a", "b")
    assert find_labels(examples("10", "9", "0")) == ("0", "9", "10")
    assert find_labels(examples(("x", "y"), (), ("z",))) == ("x", "y", "z")


def test_names_of_the_same_number_have_the_same_order_in_every_process():
    """The order of a set of strings depends on PYTHONHASHSEED."""
    pairs = [(f"0{number}", str(number)) for number in range(1, 50)]
    assert find_labels(examples(*(name for pair in pairs for name in reversed(pair)))) == sum(pairs, ())


def test_ids_and_several_labels():
    np.testing.assert_array_equal(label_ids(examples("b", "a"), ("a", "b"), "f"), [1, 0])
    several = label_ids(examples(("b", "a"), ()), ("a", "b"), "f")
    np.testing.assert_array_equal(several, [[1, 1], [0, 0]])
    assert several.dtype == np.float32


def test_what_cannot_be_learnt_is_one_line():
    with pytest.raises(UserError, match=r"3 examples and only 'a' as a label; expected at least two classes"):
        find_labels(examples("a", "a", "a"))
    with pytest.raises(UserError, match="line 3: has no label"):
        find_labels(examples("a", None))
    with pytest.raises(UserError, match=r"dev.csv, line 3: the label 'c' is not in the training data \('a', 'b'\)"):
        label_ids(examples("a", "c"), ("a", "b"), "dev.csv")


def test_a_class_in_two_forms_of_unicode_is_refused():
    """é of two characters, as macOS writes file names, and é of one look the same; so do Korean syllables."""
    short = ("긍정", "café")
    for label, other in zip(short, map(nfd, short), strict=True):
        assert label != other
        with pytest.raises(UserError, match=f"the label '{label}' is there in two of Unicode's forms; .* uconv -x nfc"):
            find_labels(examples("a", label, other))
        with pytest.raises(UserError, match=r"dev.csv, line 2: the label .* one that looks like it is in another of"):
            label_ids(examples(other), ("a", label), "dev.csv")
        assert find_labels(examples("a", other)) == ("a", other)


def test_every_class_is_held_out_by_the_same_share():
    groups = ["a"] * 900 + ["b"] * 90 + ["c"] * 10
    kept, held = split(groups, 0.1, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(1000))
    counts = Counter(groups[i] for i in held)
    _, theirs = train_test_split(groups, test_size=0.1, stratify=groups, random_state=0)
    assert counts == Counter(theirs) == {"a": 90, "b": 9, "c": 1}
    assert (split(groups, 0.1, seed=0)[1] == held).all()
    assert (split(groups, 0.1, seed=1)[1] != held).any()


def test_a_class_of_one_is_learnt_from():
    kept, _ = split(["a"] * 10 + ["b"], 0.5, seed=0)
    assert 10 in kept


def test_a_share_that_holds_nothing_out_is_refused():
    with pytest.raises(UserError, match="none of 4 examples would be held out; raise it"):
        split(["a", "b", "c", "c"], 0.1, seed=0)
    once = r"dev=0.9: each of the 4 labels occurs once, .*; if they are numbers say kind=number, else give a dev file"
    with pytest.raises(UserError, match=once):  # whatever the share
        split(["a", "b", "c", "d"], 0.9, seed=0)
    with pytest.raises(UserError, match=r"dev=1\.5: expected a share"):
        split(["a", "b"], 1.5, seed=0)
