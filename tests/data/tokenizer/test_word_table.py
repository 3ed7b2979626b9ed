"""Words found in bytes by arithmetic: the same words that a regular expression finds, each with its own number."""

import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.tokenizer import memo as word_table
from bert_jax.data.tokenizer.memo import LONGEST_WORD, WordTable, cut_words, word_keys


@given(st.text(st.sampled_from("ab09 \n\t.,-") | st.characters(max_codepoint=126, min_codepoint=32)))
def test_words_are_cut_where_letters_and_digits_end(text: str):
    starts, ends = cut_words(text.encode())
    words = [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert words == re.findall(r"[0-9A-Za-z]+|[^0-9A-Za-z\s]", text)


def keys_of(words: list[str]) -> np.ndarray:
    text = " ".join(words).encode()
    starts, ends = cut_words(text)
    assert len(starts) == len(words)
    return word_keys(text, starts, ends - starts)


def test_a_key_is_the_words_bytes():
    words = ["a", "b", "ab", "ba", "abcdefgh", "abcdefghi", "abcdefghij", "0123456789abcdef"]
    expected = [np.frombuffer(word.encode().ljust(LONGEST_WORD, b"\0"), "<u8") for word in words]
    np.testing.assert_array_equal(keys_of(words), np.transpose(expected))


def some_words(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    letters = np.array(list(string.ascii_lowercase))
    return sorted({"".join(rng.choice(letters, size)) for size in rng.integers(1, LONGEST_WORD + 1, count)})


@pytest.mark.slow
def test_words_are_found_under_the_numbers_they_were_given():
    words = some_words(20_000)  # several times the table's first size
    keys, numbers = keys_of(words), np.random.default_rng(1).permutation(3 * len(words))[: len(words)]
    table = WordTable()
    assert (table.find(keys) == -1).all()
    for part in np.array_split(np.arange(len(words)), 7):
        table.add(keys[:, part], numbers[part])
    found = table.find(keys)
    assert np.mean(found == numbers) == 1
    others = keys_of([word + "0" for word in words if len(word) < LONGEST_WORD])
    assert (table.find(others) == -1).all()


@pytest.mark.parametrize("probes", [0, 3])
def test_if_all_words_collide_some_are_not_kept_and_none_is_confused(probes: int, monkeypatch):
    monkeypatch.setattr(word_table, "_PROBES", probes)
    monkeypatch.setattr(WordTable, "_first_place", lambda self, keys: np.zeros(keys.shape[1], np.int64))
    keys, table = keys_of(some_words(50)), WordTable()
    numbers = np.arange(keys.shape[1])
    table.add(keys, numbers)
    found = table.find(keys)
    assert np.count_nonzero(found >= 0) == probes
    np.testing.assert_array_equal(found[found >= 0], numbers[found >= 0])
