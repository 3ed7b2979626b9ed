"""Whole words and n-grams of them, chosen greedily up to a number of tokens: many rows at once."""

import numpy as np

from bert_jax.data.counter_hash import bits32


def choose_words(
    candidates_BL: np.ndarray,
    continues_BL: np.ndarray,
    bits_BL: np.ndarray,
    counts_B: np.ndarray,
    *,
    ngram: int,
    ngram_keys_B: np.ndarray,
) -> np.ndarray:
    """Walk each row's words in random order and take those that still fit.

    A word is a candidate and the continuations that follow it; one that is not a candidate ([SEP]) does not end a
    word, so a continuation after it joins the word before, as in Google's create_pretraining_data.py. Only a
    continuation before any word starts one. A word that would exceed the row's number is passed over.

    With `ngram` > 1 each word in the walk starts an n-gram of n words, P(n) proportional to 1/n; it is shortened
    until it fits, and passed over if it does not or if it touches a word already taken (ALBERT).

    Args:
        candidates_BL: bool, the positions that may be chosen.
        continues_BL: bool, the positions whose token continues a word; all False makes every token a word.
        bits_BL: uint32, random bits of each position, which order the walk.
        counts_B: integers, how many tokens a row may have chosen.
        ngram: longest n-gram, in words.
        ngram_keys_B: uint64, keys of the draws of n.

    Returns:
        bool [B, L], the chosen positions.
    """
    B = len(candidates_BL)
    starts_BL = candidates_BL & ~continues_BL
    has_any_B = candidates_BL.any(axis=1)
    first_B = candidates_BL.argmax(axis=1)
    starts_BL[has_any_B, first_B[has_any_B]] = True
    word_BL = np.cumsum(starts_BL, axis=1, dtype=np.int32) - 1

    # Columns past a row's last word stand for words of no tokens, so n-grams need no bounds check.
    G = int(word_BL[:, -1].max(initial=-1)) + 1
    width = G + ngram + 1
    rows_B = np.arange(B)
    cell_BL = word_BL + (rows_B * width).astype(np.int32)[:, None]
    sizes_BG = np.bincount(cell_BL[candidates_BL], minlength=B * width).reshape(B, width)
    tokens_before_BG = np.zeros((B, width + 1), np.int32)
    np.cumsum(sizes_BG, axis=1, out=tokens_before_BG[:, 1:])

    order_GB = _walk_order(word_BL, starts_BL, bits_BL, G)
    drawn_BG = _draw_lengths(ngram_keys_B, G, ngram)
    taken_BG = np.zeros((B, width), bool)
    left_B = counts_B.astype(np.int32)
    for word_B in order_GB:
        if not left_B.any():
            break
        before_B = tokens_before_BG[rows_B, word_B]
        n_B = drawn_BG[rows_B, word_B]
        size_B = tokens_before_BG[rows_B, word_B + n_B] - before_B
        for _ in range(ngram - 1):
            n_B = n_B - ((size_B > left_B) & (n_B > 1))
            size_B = tokens_before_BG[rows_B, word_B + n_B] - before_B
        takes_B = size_B <= left_B
        if ngram > 1:
            for j in range(ngram):
                takes_B &= ~(taken_BG[rows_B, word_B + j] & (n_B > j))
        for j in range(ngram):
            taken_BG[rows_B, word_B + j] |= takes_B & (n_B > j)
        left_B -= size_B * takes_B
    return taken_BG.ravel()[cell_BL] & candidates_BL


def _walk_order(word_BL: np.ndarray, starts_BL: np.ndarray, bits_BL: np.ndarray, G: int) -> np.ndarray:
    """Word numbers in the order of their random bits, int64 [G, B]; rows with fewer words end in G (no word)."""
    low = np.uint32((1 << (G + 1).bit_length()) - 1)
    # The word's number in the low bits makes keys unique, so that no sorting algorithm has a tie to break its way.
    keys_BL = np.where(starts_BL, (bits_BL & ~low) | word_BL.astype(np.uint32), np.uint32(0xFFFFFFFF))
    keys_BL.sort(axis=1)
    keys_GB = keys_BL.T[:G]
    return np.where(keys_GB == np.uint32(0xFFFFFFFF), G, (keys_GB & low).astype(np.int64))


def _draw_lengths(keys_B: np.ndarray, G: int, ngram: int) -> np.ndarray:
    """How many words the n-gram at each word has, int32 [B, G + 1] in 1 .. ngram."""
    lengths_BG = np.ones((len(keys_B), G + 1), np.int32)
    if ngram > 1:
        shares = 1 / np.arange(1, ngram + 1)
        bits_BG = bits32(keys_B[:, None], np.arange(G + 1))
        for threshold in np.cumsum(shares / shares.sum())[:-1]:
            lengths_BG += bits_BG >= np.uint32(threshold * 2**32)
    return lengths_BG
