"""Examples of a task as a model reads them: tokens end to end in memory, padded only when a batch is made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.sequence_layout import within
from bert_jax.data.tasks.length_batches import Batch
from bert_jax.data.tasks.multiple_choice import Choices
from bert_jax.data.tokenizer import Tokenizer

IGNORED = -100  # the label of a position that is not learnt: padding, and what no label is given to
_AT_ONCE = 256  # texts, which are padded to the longest of them


@dataclass(frozen=True)
class Encoded:
    """N examples, each of one row of tokens, or of `choices` rows.

    Attributes:
        tokens: name -> int32 [T], the rows end to end: input_ids, token_type_ids and what else there is for each token.
        pads: name -> what it is padded with.
        row_lengths: int64 [N] or [N · choices].
        targets: name -> array [N, ...]: what is learnt of an example as a whole.
        choices: how many rows an example has; None: one, and batches have no axis for it.
    """

    tokens: Mapping[str, np.ndarray]
    pads: Mapping[str, int]
    row_lengths: np.ndarray
    targets: Mapping[str, np.ndarray]
    choices: int | None = None

    def __len__(self) -> int:
        return len(self.row_lengths) // (self.choices or 1)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N], tokens of an example: of its longest row."""
        return self.row_lengths.reshape(len(self), self.choices or 1).max(axis=1)

    def batch(self, plan: Batch) -> dict[str, np.ndarray]:
        """What a step takes.

        Returns:
            `tokens` and attention_mask, int32 [B, L] or [B, choices, L]; `targets` [B, ...]; weights float32 [B], 0 for
            a row that is only there for the shape.
        """
        width = self.choices or 1
        numbers = (plan.examples[:, None] * width + np.arange(width)).ravel()
        lengths = self.row_lengths[numbers]
        row, column = within(lengths)
        source = (np.cumsum(self.row_lengths) - self.row_lengths)[numbers][row] + column
        shape = (len(plan.examples), *([width] if self.choices else []), plan.length)
        found = {}
        for name, values in self.tokens.items():
            padded = np.full((len(numbers), plan.length), self.pads[name], np.int32)
            padded[row, column] = values[source]
            found[name] = padded.reshape(shape)
        mask = np.arange(plan.length) < lengths[:, None]
        return found | {
            "attention_mask": mask.astype(np.int32).reshape(shape),
            **{name: values[plan.examples] for name, values in self.targets.items()},
            "weights": plan.counts.astype(np.float32),
        }


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    max_length: int,
    targets: Mapping[str, np.ndarray],
    choices: int | None = None,
) -> Encoded:
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP], cut to `max_length` tokens, the longer of a pair first.

    Args:
        tokenizer: the model's.
        texts, pairs: as many of both; with `choices` that many for each example, one after the other.
        max_length: tokens of a row, special tokens included.
        targets: what is learnt of each example.
        choices: how many rows an example has; None: one.
    """
    ids, types, lengths = [], [], []
    for begin in range(0, len(texts), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        rows = tokenizer(texts[some], None if pairs is None else pairs[some], padding="longest", max_length=max_length)
        real = rows["attention_mask"].astype(bool)
        ids.append(rows["input_ids"][real])
        types.append(rows["token_type_ids"][real] if "token_type_ids" in rows else np.zeros(real.sum(), np.int32))
        lengths.append(real.sum(axis=1))
    return Encoded(
        {"input_ids": _joined(ids), "token_type_ids": _joined(types)},
        {"input_ids": tokenizer.pad_token_id, "token_type_ids": 0},
        np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
        targets,
        choices,
    )


def interleaved(parts: Sequence[tuple[np.ndarray, Encoded]]) -> Encoded:
    """Several as one: `parts` are (numbers int64 [N] of the rows in the whole, their rows), without targets."""
    numbers = np.concatenate([numbers for numbers, _ in parts])
    lengths = np.zeros(len(numbers), np.int64)
    lengths[numbers] = np.concatenate([rows.row_lengths for _, rows in parts])
    begins = np.cumsum(lengths) - lengths
    tokens = {name: np.zeros(int(lengths.sum()), np.int32) for name in parts[0][1].tokens}
    for own, rows in parts:
        row, column = within(rows.row_lengths)
        for name, values in rows.tokens.items():
            tokens[name][begins[own][row] + column] = values
    return Encoded(tokens, parts[0][1].pads, lengths, {})


def encode_choices(tokenizer: Tokenizer, questions: Sequence[Choices], *, max_length: int) -> Encoded:
    """A row for each choice: [CLS] A [SEP] B [SEP] (https://arxiv.org/abs/1810.04805, section 4.4).

    Where a question has fewer choices than another, rows of its first fill it up, and `is_choice` is false there.

    Returns:
        targets: is_choice bool [N, choices]; labels int32 [N], where all questions have one.
    """
    most = max((len(question.first) for question in questions), default=1)
    first, second = [], []
    for question in questions:
        missing = most - len(question.first)
        first += [*question.first, *question.first[:1] * missing]
        second += [*question.second, *question.second[:1] * missing]
    counts = np.array([len(question.first) for question in questions])
    targets: dict[str, np.ndarray] = {"is_choice": np.arange(most) < counts[:, None]}
    if all(question.label is not None for question in questions):
        targets["labels"] = np.array([question.label for question in questions], np.int32)
    return encode_texts(tokenizer, first, second, max_length=max_length, targets=targets, choices=most)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
