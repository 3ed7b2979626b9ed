"""[UNK] among the tokens of texts: how many there are, and when they are too many."""

from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tokenizer.tokenizer import Tokenizer

MOST = 0.05
"""The share of the tokens above which the vocabulary does not fit the texts."""
FEWEST = 5
"""So many [UNK] are needed to say so: a short text may have an emoji or two."""


class Unknown(NamedTuple):
    """How many tokens are [UNK], and how many tokens there are, special ones included."""

    count: int = 0
    of: int = 0

    @classmethod
    def among(cls, rows: Encoded, tokenizer: Tokenizer) -> "Unknown":
        ids = rows.tokens.get("input_ids", np.zeros(0, np.int32))
        return cls(int(np.count_nonzero(ids == tokenizer.unk_token_id)), ids.size)

    def __add__(self, other: Any) -> "Unknown":
        return Unknown(self.count + other.count, self.of + other.of)

    def warning(self, source: object) -> str | None:
        """A warning that the vocabulary of `source` does not fit; None if it does."""
        if self.count < FEWEST or self.count <= MOST * self.of:
            return None
        return (
            f"{self.count / self.of:.0%} of the {self.of:,} tokens are [UNK]: the vocabulary of {source} does not fit "
            "these texts (their language, casing, or Unicode form, if they are from macOS: uconv -x nfc FILE)"
        )
