"""Add tokens to a trained model: new rows in the token table and in every other array with one row per token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.tree import encoder_of, with_encoder

STARTS = ("mean", "pieces")


def set_token_rows(
    config: BertConfig, params: Mapping[str, Any], sources: Mapping[int, Sequence[int] | None]
) -> tuple[BertConfig, dict[str, Any]]:
    """Sets tokens' rows to means of other tokens' rows; ids past the end of the table extend it.

    This changes the token table, the masked-LM head's bias, and its decoder table if that is not tied.

    Args:
        config: the config of `params`.
        params: the tree of a model with a head or of the bare encoder, NumPy or JAX arrays. It is not changed.
        sources: id of the token to set -> ids of the tokens whose rows are averaged. None averages all rows of the
            present table, so that a new token is at first neither likely nor unlikely. New ids continue the table
            without a gap.

    Returns:
        The config with the new `vocab_size`, and a tree that shares its unchanged arrays with `params`.

    Raises:
        UserError: the new ids have a gap, a source is not in the table, or a token has none.
    """
    size = config.vocab_size
    new = sorted(token for token in sources if token not in range(size))
    if new != list(range(size, size + len(new))):
        raise UserError(f"new tokens have ids {new}; expected ids from {size} on, without a gap")
    for token, rows in sources.items():
        if rows is not None and len(rows) == 0:
            raise UserError(f"token {token} has no rows among its sources; expected some, or None for the mean of all")
        strange = [row for row in rows or () if row not in range(size)]
        if strange:
            raise UserError(f"token {token} has row {strange[0]} among its sources; the table has {size} rows")

    def grown(array: Any) -> np.ndarray:
        old = np.asarray(array)
        if old.shape[0] != size:
            raise UserError(f"an array with one row per token has {old.shape[0]} rows; expected vocab_size={size}")
        longer = np.concatenate([old, np.zeros((len(new), *old.shape[1:]), old.dtype)])
        for token, rows in sources.items():
            longer[token] = (old if rows is None else old[list(rows)]).mean(axis=0, dtype=np.float64)
        return longer

    encoder = encoder_of(params)
    embeddings = {**encoder["embeddings"], "word_embeddings": grown(encoder["embeddings"]["word_embeddings"])}
    tree = with_encoder(params, {**encoder, "embeddings": embeddings})
    if "mlm_head" in tree:
        tree["mlm_head"] = {
            **tree["mlm_head"],
            **{name: grown(tree["mlm_head"][name]) for name in ("bias", "decoder") if name in tree["mlm_head"]},
        }
    return config.replace(vocab_size=size + len(new)), tree


def add_words(
    config: BertConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    words: Sequence[str],
    *,
    into_unused: bool = False,
    initial: str = "mean",
) -> tuple[BertConfig, dict[str, Any], Tokenizer, dict[str, int]]:
    """Adds words as tokens to a model: to its tokenizer, config and parameters together.

    Args:
        config, params: as for `set_token_rows`.
        tokenizer: the model's tokenizer.
        words: the words to add; those that are already tokens are skipped.
        into_unused: replace [unused0], [unused1] ... (WordPiece), so that no size changes; otherwise append.
        initial: initial value of the new rows: "mean", the mean of all rows
            (https://nlp.stanford.edu/~johnhew/vocab-expansion.html), or "pieces", the mean of the rows of the pieces
            into which the old tokenizer splits the word.

    Returns:
        The new config, tree and tokenizer, and the new tokens with their ids.

    Raises:
        UserError: as for `Tokenizer.with_words` and `set_token_rows`; words are appended although the table and the
            tokenizer differ in size; `initial` is unknown.
    """
    if initial not in STARTS:
        raise UserError(f"initial={initial!r}: expected one of {', '.join(STARTS)}")
    grown, new = tokenizer.with_words(words, into_unused=into_unused)
    ids = dict(zip(new, grown.tokens_to_ids(new), strict=True))
    first = tokenizer.vocab_size
    if new and not into_unused and first != config.vocab_size:
        raise UserError(
            f"the tokenizer has {first} tokens, but the table has {config.vocab_size} rows; expected equal numbers, so "
            "that appended words get new rows"
        )
    sources = {token: None if initial == "mean" else _pieces(tokenizer, word) for word, token in ids.items()}
    config, tree = set_token_rows(config, params, sources)
    return config, tree, grown, ids


def _pieces(tokenizer: Tokenizer, word: str) -> list[int]:
    """The ids of the pieces into which `tokenizer` splits a word after a space, where most words stand."""
    return tokenizer.encode_flat([f" {word.removeprefix('##')}"])[0].tolist()
