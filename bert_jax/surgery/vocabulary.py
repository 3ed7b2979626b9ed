"""New tokens for a trained model: rows of the token table, and of everything that has one for each token."""

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
    """Give tokens rows that are means of other tokens' rows; ids past the table make it longer.

    The rows are those of the token table, of the masked-LM head's bias, and of its own table where it is not tied.

    Args:
        config: of `params`.
        params: a head's tree or the encoder's own, of NumPy or JAX arrays. It is left as it is.
        sources: id -> the tokens whose rows are averaged; None: all that are in the table now, so that a new token
            starts where it is neither likely nor unlikely. New ids follow the last one without a gap.

    Returns:
        The config with `vocab_size` grown, and a tree that shares with `params` what did not change.

    Raises:
        UserError: a gap in the new ids, or a source that is not in the table.
    """
    size = config.vocab_size
    new = sorted(token for token in sources if token >= size)
    if new != list(range(size, size + len(new))) or any(token < 0 for token in sources):
        raise UserError(f"new tokens have ids {new}; expected to go on from {size} without a gap")
    for token, rows in sources.items():
        strange = [row for row in rows or () if row not in range(size)]
        if strange:
            raise UserError(f"the row of token {token} is to be made of row {strange[0]}; the table has {size}")

    def grown(array: Any) -> np.ndarray:
        old = np.asarray(array)
        if old.shape[0] != size:
            raise UserError(f"an array with a row for each token has {old.shape[0]} rows; the config says {size}")
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
    """Teach a model words of its domain as tokens: tokenizer, config and rows together.

    Args:
        config, params: as for `set_token_rows`.
        tokenizer: the model's.
        words: those that are tokens already are passed over.
        into_unused: put them in the places of [unused0], [unused1] ... (WordPiece), so that no size changes; else they
            are appended.
        initial: what the new rows start as: "mean", the mean of all rows
            (https://nlp.stanford.edu/~johnhew/vocab-expansion.html), or "pieces", the mean of the rows of the pieces
            that the word was cut into before.

    Returns:
        config, tree, tokenizer, and the new tokens with their ids.

    Raises:
        UserError: as `Tokenizer.with_words` and `set_token_rows`; a table with more rows than the tokenizer has tokens,
            where words are appended; another `initial`.
    """
    if initial not in STARTS:
        raise UserError(f"initial={initial!r}: expected one of {', '.join(STARTS)}")
    grown, new = tokenizer.with_words(words, into_unused=into_unused)
    ids = dict(zip(new, grown.tokens_to_ids(new), strict=True))
    first = tokenizer.vocab_size
    if new and not into_unused and first != config.vocab_size:
        raise UserError(
            f"the tokenizer has {first} tokens, the table {config.vocab_size} rows: appended words would get rows that "
            "are there already"
        )
    sources = {token: None if initial == "mean" else _pieces(tokenizer, word) for word, token in ids.items()}
    config, tree = set_token_rows(config, params, sources)
    return config, tree, grown, ids


def _pieces(tokenizer: Tokenizer, word: str) -> list[int]:
    """The ids that stood for a word before it was a token, as it is cut after a blank."""
    text = word.removeprefix("##") if word.startswith("##") else word
    return tokenizer.encode_flat([text])[0].tolist()
