"""WordPiece in Python gives what the `tokenizers` library's model gives."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from bert_jax.data.tokenizer.words import WordPieces

_PIECES = [*"abc", *(f"@{c}" for c in "ab"), "ab", "abc", "@ba", "@cab", "bca", "@@a", "[UNK]"]


@given(st.text(st.sampled_from("abc@x"), min_size=1, max_size=12), st.sampled_from([3, 10]))
def test_words_are_split_by_longest_match_first(word: str, longest: int):
    ids = {piece: i for i, piece in enumerate(_PIECES)}
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest, continuing_subword_prefix="@")
    pieces = WordPieces(ids, unknown=ids["[UNK]"], max_word_length=longest, prefix="@")
    assert pieces(word) == [token.id for token in model.tokenize(word)]
