"""next-sentence: does the second text follow the first, by the head that BERT was pretrained with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.tasks.notebook import Results
from bert_jax.inference.tasks.task_model import EncodedItems, TaskModel, softmax
from bert_jax.inference.tasks.task_source import check_text, shortened

LABELS = ("is_next", "not_next")  # of the logits, as in transformers' BertForNextSentencePrediction

Pair = tuple[str, str] | Mapping[str, str]


class NextSentence(TaskModel):
    """Whether one text follows another (https://arxiv.org/abs/1810.04805, section 3.1).

    A pair that is too long for the model is cut at the end, the longer text first; a warning says how many were.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (head "pretraining" or "nsp" of a BERT).
        batch_size, dtype, cache, devices: as `TaskModel`.
    """

    task = "next-sentence"

    def __call__(
        self, text: str | Sequence[Pair], text_pair: str | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Judge pairs.

        Args:
            text: the first text of a pair; or a list of pairs, each a tuple or {"text": ..., "text_pair": ...}.
            text_pair: the second one, of a single pair.

        Returns:
            For each pair a dict: `label` ("is_next" or "not_next"), `is_next` (float, the probability).

        Raises:
            UserError: a text without a token, as the empty one; what is no pair.
        """
        if isinstance(text, str):
            if text_pair is None:
                raise UserError("one text: give the second, text_pair, too")
            return next(self.stream([(text, text_pair)]))
        if text_pair is not None:
            raise UserError("text_pair: only with one text; of many give a list of pairs")
        return Results(self.stream(list(text)))

    def encode(self, items: list[Pair], first: int, **options: Any) -> EncodedItems:
        pairs = [_both(item, f"pair {first + number + 1}") for number, item in enumerate(items)]
        texts = [text for pair in pairs for text in pair]
        for number, length in enumerate(self.tokenizer.encode_flat(texts)[1].tolist()):
            if not length:
                which = f"pair {first + number // 2 + 1}, the {('first', 'second')[number % 2]} text"
                raise UserError(f"{which} ({shortened(texts[number])}) has no token: there is nothing to judge")
        return EncodedItems(pairs, *self.encode_pairs(pairs))

    def results(self, facts: list[Any], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        rows = [softmax(logits_2) for (logits_2,) in outputs]
        return [{"label": LABELS[int(row.argmax())], "is_next": float(row[0])} for row in rows]


def _both(pair: Any, name: str) -> tuple[str, str]:
    if isinstance(pair, Mapping) and set(pair) == {"text", "text_pair"}:
        pair = (pair["text"], pair["text_pair"])
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f'{name}: expected two texts, or {{"text": ..., "text_pair": ...}}, found {pair!r:.60}')
    return check_text(pair[0], f"{name}, the first text"), check_text(pair[1], f"{name}, the second text")
