"""Messages: one line of bounded length, whatever a file holds."""

import random

import pytest

from bert_jax.errors import LONGEST_MESSAGE, LONGEST_QUOTE, UserError, quoted, some_of

HOSTILE = (
    "a\nb", "a\r\x1b[31mb", "\u2028", "\u202e", "\ud800", "x" * 10**6, "\n" * 10**6, 10**400, float("nan"), None,
    {"a" * 500: ["\n" * 90] * 90}, [[[[[["x" * 99] * 99] * 9] * 9]]], ("a",), b"\xff" * 999,
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_quote_is_short_and_has_no_control_characters(value):
    text = quoted(value)
    assert len(text) <= LONGEST_QUOTE
    assert text.isprintable()


def test_a_short_value_is_quoted_as_python_writes_it():
    for value in ("it's", 3, 2.5, None, True, ["a", 1], {"a": (1, 2)}):
        assert quoted(value) == repr(value)


def test_a_cut_is_shown():
    assert "..." in quoted("x" * 81)
    assert some_of(range(9)) == "0, 1, 2, 3, 4, 5, ..."
    assert some_of([]) == "none"


def test_nesting_beyond_pythons_own_limit_is_quoted():
    value: list = []
    for _ in range(100_000):
        value = [value]
    assert len(quoted(value)) <= LONGEST_QUOTE


def test_a_message_is_one_line_whatever_it_was_made_of():
    rng = random.Random(0)
    parts = [str(value)[:5000] for value in HOSTILE if not isinstance(value, int)]
    for _ in range(2000):
        message = "".join(rng.choice(parts)[: rng.randrange(5000)] for _ in range(rng.randrange(4)))
        line = str(UserError(message))
        assert len(line) <= LONGEST_MESSAGE < 1001
        assert len(line.splitlines()) <= 1
        line.encode()


def test_a_plain_message_is_unchanged():
    message = "/tmp/한국어/a b.txt, line 3: found 'x', expected “y” … or z"
    assert str(UserError(message)) == message
