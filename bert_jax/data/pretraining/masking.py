"""Which positions of a row are masked, and what replaces their tokens: a pure function of keys, for many rows at once.

Three published ways to choose the positions (`MaskingConfig.strategy`):

    count      BERT: a fixed share of a row's length, which counts [CLS] and [SEP]; these are never chosen
               (create_pretraining_data.py). Optionally whole words, and ALBERT's n-grams of them
    bernoulli  transformers' DataCollatorForLanguageModeling: each non-special token independently
    roberta    fairseq's MaskTokensDataset: a share of the length, randomly rounded; special tokens may be chosen too

A chosen token becomes [MASK] in 80 % of the cases, becomes a random token in 10 %, and stays as it is in 10 %, or in
other shares (`MaskingConfig.corruption`). Each token has its own draw, also within a whole word.

Every draw is a hash of the row's key and a position (`counter_hash`), so a row's masks depend on nothing else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bert_jax.config import take_python_numbers
from bert_jax.data.pretraining.counter_hash import below, bits32, derive
from bert_jax.errors import UserError
from bert_jax.field_types import wrong_types
from bert_jax.shown import ShownConfig

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer

Strategy = Literal["count", "bernoulli", "roberta"]

# Each decision derives its own key from the row's key with one of these words, so that no two decisions share bits.
_SELECT, _NUMBER, _ACTION, _REPLACEMENT, _NGRAM = range(5)

_NEVER = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, repr=False)
class MaskingConfig(ShownConfig):
    """How tokens are chosen for the masked-language-model objective.

    Attributes:
        strategy: "count" (BERT), "bernoulli" or "roberta": how the tokens are drawn (docs/batches.md, "Masks"). If no
            field of a run's `masking` is set, the masks are as the data was prepared.
        probability: share of a row's tokens to predict, above 0 and below 1. Strategies "count" and "roberta" count the
            special tokens of a row, "bernoulli" does not.
        max_predictions: P, the most predictions a row can have. None: as many as the data was prepared for; with
            another share or strategy "bernoulli", as many as that needs (`default_max_predictions`).
        whole_word: choose whole words; a continuing piece ("##...", for RoBERTa one without "Ġ") belongs to the word
            before it. Strategy "count" only.
        ngram: choose n-grams of up to this many tokens (words, with `whole_word`); 1: single ones. Strategy "count"
            only.
        corruption: shares of the chosen tokens that become [MASK], that become a random token, and that stay; they add
            up to 1.

    Raises:
        UserError: a value of another type, one out of range, or whole words or n-grams with another strategy than
            "count".
    """

    strategy: Strategy = "count"
    probability: float = 0.15
    max_predictions: int | None = None
    whole_word: bool = False
    ngram: int = 1
    corruption: tuple[float, float, float] = (0.8, 0.1, 0.1)

    def __post_init__(self) -> None:
        take_python_numbers(self)
        object.__setattr__(self, "corruption", checked_corruption(self.corruption, "masking.corruption"))
        for field, found, expected in wrong_types(self):
            raise UserError(f"masking.{field}: found {found!r}; expected {expected}")
        if not 0 < self.probability < 1:
            raise UserError(
                f"masking.probability: found {self.probability}; expected a share above 0 and below 1, such as 0.15"
            )
        if self.max_predictions is not None and self.max_predictions < 1:
            raise UserError(f"masking.max_predictions: found {self.max_predictions}; expected at least 1, or none")
        if self.ngram < 1:
            raise UserError(f"masking.ngram: found {self.ngram}; expected at least 1")
        if self.strategy != "count" and (self.whole_word or self.ngram > 1):
            raise UserError(f"masking.strategy: found {self.strategy!r}; expected count with whole words or n-grams")

    @classmethod
    def as_prepared(cls, settings: Mapping[str, Any]) -> "MaskingConfig":
        """The masks that data was prepared for; `settings`: those of its manifest."""
        return cls(probability=settings["masked_lm_prob"], whole_word=settings["whole_word_masking"])

    def changed(self, share: float | None, corruption: Sequence[float] | None) -> "MaskingConfig":
        """The masks of a phase that has its own share of tokens to predict, or its own corruption; None: as here.

        Another share has as many predictions a row as it needs.
        """
        new = self if share in (None, self.probability) else replace(self, probability=share, max_predictions=None)
        return new if corruption is None else replace(new, corruption=corruption)


def checked_corruption(shares: Any, field: str) -> tuple[float, float, float]:
    """The three shares as a tuple; raises UserError, naming the field, unless they add up to 1."""
    try:
        masked, random, kept = (float(share) for share in shares)
    except (TypeError, ValueError):
        masked = random = kept = math.nan
    if not min(masked, random, kept) >= 0 or not math.isclose(masked + random + kept, 1, abs_tol=1e-6):
        raise UserError(
            f"{field}: found {shares}; expected the shares of [MASK], random tokens and kept ones, which add up to 1, "
            "such as (0.8, 0.1, 0.1)"
        )
    return masked, random, kept


@dataclass(frozen=True)
class MaskingVocabulary:
    """What masking needs to know about a vocabulary.

    Attributes:
        size: V.
        cls_id, sep_id, mask_id: ids of [CLS], [SEP] and [MASK], whatever they are called (<s>, </s>, <mask>).
        special_ids: ids of all special tokens ([PAD], [UNK], [CLS], [SEP], [MASK]): never chosen by "bernoulli",
            never a random replacement in "roberta".
        is_continuation_V: bool [V], the pieces that continue a word (`Tokenizer.is_continuation`).
        pad_id: id of [PAD], 0 if the vocabulary has none.
    """

    size: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    is_continuation_V: np.ndarray
    pad_id: int = 0

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "MaskingVocabulary":
        """What masking needs to know about the vocabulary of a tokenizer."""
        return cls(
            size=tokenizer.vocab_size,
            cls_id=tokenizer.cls_token_id,
            sep_id=tokenizer.sep_token_id,
            mask_id=tokenizer.mask_token_id,
            special_ids=tuple(sorted(tokenizer.all_special_ids)),
            is_continuation_V=np.asarray(tokenizer.is_continuation, bool),
            pad_id=tokenizer.pad_token_id if tokenizer.has_special("pad") else 0,
        )

    @cached_property
    def is_special_V(self) -> np.ndarray:
        is_special_V = np.zeros(self.size, bool)
        is_special_V[list(self.special_ids)] = True
        return is_special_V

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        return np.flatnonzero(~self.is_special_V).astype(np.int32)


class MaskedInputs(NamedTuple):
    """Rows with their masks: input_ids int32 [B, L]; positions (ascending) and labels int32 [B, P], padded with 0;
    weights float32 [B, P], 1 for a prediction and 0 for padding."""

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def row_keys(seed: int, epochs_B: np.ndarray, examples_B: np.ndarray) -> np.ndarray:
    """The key of each row's masks, uint64 [B]: a hash of the data seed, the epoch and the example's number."""
    return derive(seed, epochs_B, examples_B)


def mask_rows(
    input_ids_BL: np.ndarray,
    lengths_B: np.ndarray,
    keys_B: np.ndarray,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
    *,
    separated_documents: bool = False,
) -> MaskedInputs:
    """Chooses the tokens to predict, and replaces them.

    If "bernoulli" or "roberta" choose more than `max_predictions` positions, a uniformly random subset of that size is
    kept: those with the smallest hashes. `default_max_predictions` makes this rare.

    Args:
        input_ids_BL: int32, rows padded at the end.
        lengths_B: tokens of each row, special ones included.
        keys_B: uint64, see `row_keys`.
        config: with `max_predictions` set.
        vocabulary: see `MaskingVocabulary`.
        separated_documents: a [SEP] inside a row stands between two documents, so no word goes on after it.

    Returns:
        The masked rows; `input_ids_BL` does not change.

    Raises:
        ValueError: `config.max_predictions` is None.
    """
    if config.max_predictions is None:
        raise ValueError("mask_rows needs max_predictions")
    positions_BP, chosen_BP = _choose(input_ids_BL, lengths_B, keys_B, config, vocabulary, separated_documents)
    rows_B1 = np.arange(len(input_ids_BL))[:, None]
    labels_BP = input_ids_BL[rows_B1, positions_BP] * chosen_BP
    inputs_BP = _replacements(labels_BP, positions_BP, keys_B, config, vocabulary)
    return MaskedInputs(
        input_ids=put_masks(input_ids_BL, positions_BP, inputs_BP, chosen_BP),
        positions=positions_BP,
        labels=labels_BP,
        weights=chosen_BP.astype(np.float32),
    )


def put_masks(
    input_ids_BL: np.ndarray, positions_BP: np.ndarray, inputs_BP: np.ndarray, chosen_BP: np.ndarray
) -> np.ndarray:
    """A copy of the rows with `inputs_BP` written at `positions_BP` where `chosen_BP`."""
    B, L = input_ids_BL.shape
    masked = input_ids_BL.flatten()
    places_BP = positions_BP + np.arange(0, B * L, L)[:, None]
    masked[places_BP[chosen_BP]] = inputs_BP[chosen_BP]
    return masked.reshape(B, L)


def default_max_predictions(config: MaskingConfig, max_seq_length: int, *, deviations: float = 4) -> int:
    """A P that drops few choices: the most that "count" and "roberta" choose; mean + 4 deviations of "bernoulli"."""
    mean = config.probability * max_seq_length
    if config.strategy != "bernoulli":
        return max(1, math.ceil(mean))
    return min(max_seq_length, math.ceil(mean + deviations * math.sqrt(mean * (1 - config.probability))))


@lru_cache(maxsize=16)
def count_table(probability: float, max_predictions: int, max_seq_length: int) -> np.ndarray:
    """How many tokens "count" masks in a row of each length, int32 [max_seq_length + 1].

    min(max_predictions, max(1, round(length * probability))); the length includes special tokens, and halves round to
    even, as in create_pretraining_data.py under Python 3.
    """
    numbers = [min(max_predictions, max(1, round(n * probability))) for n in range(max_seq_length + 1)]
    return np.array(numbers, np.int32)


def _choose(
    input_ids_BL: np.ndarray,
    lengths_B: np.ndarray,
    keys_B: np.ndarray,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
    separated_documents: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions in ascending order, int32 [B, P], and which of them count, bool [B, P]; the others are 0."""
    P, L = config.max_predictions, input_ids_BL.shape[1]
    assert P is not None
    columns_L = np.arange(L, dtype=np.int32)
    candidates_BL = columns_L < lengths_B[:, None].astype(np.int32)
    if config.strategy == "count":
        candidates_BL &= (input_ids_BL != vocabulary.cls_id) & (input_ids_BL != vocabulary.sep_id)
    elif config.strategy == "bernoulli":
        candidates_BL &= ~vocabulary.is_special_V[input_ids_BL]
    bits_BL = bits32(derive(keys_B, _SELECT)[:, None], columns_L)

    if config.whole_word or config.ngram > 1:
        continues_BL = vocabulary.is_continuation_V[input_ids_BL] & config.whole_word
        if separated_documents:
            continues_BL[:, 1:] &= input_ids_BL[:, :-1] != vocabulary.sep_id
        counts_B = count_table(config.probability, P, L)[lengths_B]
        ngram_keys_B = derive(keys_B, _NGRAM)
        chosen_BL = choose_words(
            candidates_BL, continues_BL, bits_BL, counts_B, ngram=config.ngram, ngram_keys_B=ngram_keys_B
        )
        # Sorting by position puts the chosen ones first; there are at most P.
        return _ascending(np.where(chosen_BL, columns_L.astype(np.uint32), _NEVER), P)

    position_bits = L.bit_length()
    low = np.uint32((1 << position_bits) - 1)
    # The position in the low bits makes keys unique (no ties to break) and can be read back without an argsort. No
    # position has all L.bit_length() bits set, so no key is _NEVER.
    keys_BL = (bits_BL & ~low) | columns_L.astype(np.uint32)
    np.putmask(keys_BL, ~candidates_BL, _NEVER)
    if P < L:
        keys_BL.partition(P - 1, axis=1)
    keys_BP = keys_BL[:, :P].copy()
    keys_BP.sort(axis=1)
    if config.strategy == "bernoulli":
        chosen_BP = (keys_BP >> np.uint32(position_bits)) < round(config.probability * 2 ** (32 - position_bits))
    else:
        chosen_BP = np.arange(keys_BP.shape[1]) < _numbers(lengths_B, keys_B, config, L)[:, None]
    chosen_BP &= keys_BP != _NEVER
    return _ascending(np.where(chosen_BP, keys_BP & low, _NEVER), P)


def _numbers(lengths_B: np.ndarray, keys_B: np.ndarray, config: MaskingConfig, L: int) -> np.ndarray:
    """How many positions to choose in each row, integers [B]."""
    if config.strategy == "count":
        assert config.max_predictions is not None
        return count_table(config.probability, config.max_predictions, L)[lengths_B]
    uniform_B = bits32(derive(keys_B, _NUMBER), np.zeros(1, np.uint32)) * 2.0**-32
    return (config.probability * lengths_B + uniform_B).astype(np.int32)


def _ascending(positions: np.ndarray, P: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's positions below _NEVER, sorted and padded with 0 to P; and which of the P are real."""
    positions.sort(axis=1)
    kept_BP = positions[:, :P]
    if kept_BP.shape[1] < P:
        kept_BP = np.pad(kept_BP, ((0, 0), (0, P - kept_BP.shape[1])), constant_values=_NEVER)
    chosen_BP = kept_BP != _NEVER
    return np.where(chosen_BP, kept_BP, 0).astype(np.int32), chosen_BP


def _replacements(
    labels_BP: np.ndarray,
    positions_BP: np.ndarray,
    keys_B: np.ndarray,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
) -> np.ndarray:
    """The input ids at the chosen positions, int32 [B, P]: [MASK], the token itself or a random one."""
    masked, random, _ = config.corruption
    action_BP = bits32(derive(keys_B, _ACTION)[:, None], positions_BP)
    random_bits_BP = bits32(derive(keys_B, _REPLACEMENT)[:, None], positions_BP)
    if config.strategy == "roberta":
        random_BP = vocabulary.ordinary_ids[below(random_bits_BP, len(vocabulary.ordinary_ids))]
    else:
        random_BP = below(random_bits_BP, vocabulary.size).astype(np.int32)
    kept_or_random_BP = np.where(action_BP < int((1 - random) * 2**32), labels_BP, random_BP)
    return np.where(action_BP < int(masked * 2**32), np.int32(vocabulary.mask_id), kept_or_random_BP)


def choose_words(
    candidates_BL: np.ndarray,
    continues_BL: np.ndarray,
    bits_BL: np.ndarray,
    counts_B: np.ndarray,
    *,
    ngram: int,
    ngram_keys_B: np.ndarray,
) -> np.ndarray:
    """Walks each row's words in random order and takes those that still fit.

    A word is a candidate and the continuations that follow it. A token that is not a candidate ([SEP]) does not end a
    word, so a continuation after it joins the word before it, as in Google's create_pretraining_data.py. A continuation
    before any word starts a word. A word that would exceed the row's number of tokens is skipped.

    With `ngram` > 1 each word in the walk starts an n-gram of n words, P(n) proportional to 1/n (ALBERT). The n-gram is
    shortened until it fits, and skipped if it still does not fit or contains a word already taken.

    Args:
        candidates_BL: bool, the positions that may be chosen.
        continues_BL: bool, the positions whose token continues a word; all False makes every token a word.
        bits_BL: uint32, random bits of each position; words are walked in the order of their first token's bits.
        counts_B: integers, how many tokens may be chosen in each row.
        ngram: longest n-gram, in words.
        ngram_keys_B: uint64, keys for drawing n.

    Returns:
        bool [B, L], the chosen positions.
    """
    B = len(candidates_BL)
    starts_BL = candidates_BL & ~continues_BL
    has_any_B = candidates_BL.any(axis=1)
    first_B = candidates_BL.argmax(axis=1)
    starts_BL[has_any_B, first_B[has_any_B]] = True
    word_BL = np.cumsum(starts_BL, axis=1, dtype=np.int32) - 1

    # Columns past a row's last word are words without tokens, so n-grams need no bounds check.
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
    """Word numbers in the order of their random bits, int64 [G, B]; rows with fewer words are padded with G."""
    low = np.uint32((1 << (G + 1).bit_length()) - 1)
    # The word's number in the low bits makes keys unique, so the order does not depend on how a sort breaks ties.
    keys_BL = np.where(starts_BL, (bits_BL & ~low) | word_BL.astype(np.uint32), _NEVER)
    keys_BL.sort(axis=1)
    keys_GB = keys_BL.T[:G]
    return np.where(keys_GB == _NEVER, G, (keys_GB & low).astype(np.int64))


def _draw_lengths(keys_B: np.ndarray, G: int, ngram: int) -> np.ndarray:
    """The length in words of the n-gram that starts at each word, int32 [B, G + 1] in 1 .. ngram."""
    lengths_BG = np.ones((len(keys_B), G + 1), np.int32)
    if ngram > 1:
        shares = 1 / np.arange(1, ngram + 1)
        bits_BG = bits32(keys_B[:, None], np.arange(G + 1))
        for threshold in np.cumsum(shares / shares.sum())[:-1]:
            lengths_BG += bits_BG >= np.uint32(threshold * 2**32)
    return lengths_BG
