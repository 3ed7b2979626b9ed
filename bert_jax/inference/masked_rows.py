"""Texts as rows in each of which one token is asked for and hidden, one after the other."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import Batch


class Hidden(NamedTuple):
    """What is hidden in the rows of a text, one row each.

    Attributes:
        ids: int32 [L] of the text, special tokens among them.
        positions: int32 [n], the token that is asked for.
        ends: int32 [n]: hidden is from the position up to there.
    """

    ids: np.ndarray
    positions: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MaskedRows(Encoded):
    """R rows. A row is made when its batch is: n rows of a text of n tokens take n places in memory, not n².

    Attributes:
        tokens: of the texts, each once, end to end; `row_lengths` int64 [R] is of the rows.
        targets: mlm_positions int32 [R, 1], and labels int32 [R, 1], the ids that stood there.
        begins: int64 [R], where in `tokens` the text of a row begins.
        ends: int32 [R], where in a row the hidden tokens end.
        mask_id: what hides them.
    """

    begins: np.ndarray
    ends: np.ndarray
    mask_id: int

    def batch(self, plan: Batch) -> dict[str, np.ndarray]:
        numbers = plan.examples
        column_L = np.arange(plan.length)
        real_BL = column_L < self.row_lengths[numbers, None]
        source_BL = np.where(real_BL, self.begins[numbers, None] + column_L, 0)
        found = {
            name: np.where(real_BL, values[source_BL], self.pads[name]).astype(np.int32)
            for name, values in self.tokens.items()
        }
        hidden_BL = (column_L >= self.targets["mlm_positions"][numbers]) & (column_L < self.ends[numbers, None])
        found["input_ids"][hidden_BL] = self.mask_id
        return found | {
            "attention_mask": real_BL.astype(np.int32),
            **{name: values[numbers] for name, values in self.targets.items()},
            "weights": plan.counts.astype(np.float32),
        }


def masked_rows(texts: list[Hidden], *, pad_id: int, mask_id: int) -> MaskedRows:
    """The rows of several texts, in their order, and of a text in that of its positions."""
    counts = np.array([len(text.positions) for text in texts], np.int64)
    lengths = np.array([len(text.ids) for text in texts], np.int64)
    ids = _joined([text.ids for text in texts])
    begins = np.repeat(np.cumsum(lengths) - lengths, counts)
    positions = _joined([text.positions for text in texts])
    return MaskedRows(
        {"input_ids": ids, "token_type_ids": np.zeros_like(ids)},
        {"input_ids": pad_id, "token_type_ids": 0},
        np.repeat(lengths, counts),
        {"mlm_positions": positions[:, None], "labels": ids[begins + positions][:, None]},
        begins=begins,
        ends=_joined([text.ends for text in texts]),
        mask_id=mask_id,
    )


def ends_of_words(word_ids: np.ndarray) -> np.ndarray:
    """int32 [L]: for each token where the word that it is in ends; words are runs of one number, [L]."""
    last = np.flatnonzero(np.append(word_ids[1:] != word_ids[:-1], True)) if len(word_ids) else word_ids
    return (last[np.searchsorted(last, np.arange(len(word_ids)))] + 1).astype(np.int32)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int32)
