"""next-sentence: predicts whether the second text follows the first, with the head that BERT was pretrained with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.tasks.task_model import EncodedItems, Results, TaskModel, softmax
from bert_jax.inference.tasks.task_source import check_text, items_of, shortened

LABELS = ("is_next", "not_next")  # in the order of the logits, as in transformers' BertForNextSentencePrediction

Pair = tuple[str, str] | Mapping[str, str]


class NextSentence(TaskModel):
    """Predicts whether one text follows another (https://arxiv.org/abs/1810.04805, section 3.1).

    If a pair is too long for the model, the longer text is truncated at the end; a warning gives the number of such
    pairs.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned (a BERT with head "pretraining" or "nsp").
        batch_size, dtype, cache, devices, runtime: see `TaskModel`.
    """

    task = "next-sentence"

    def __call__(
        self, text: str | Sequence[Pair], text_pair: str | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Predicts for one pair or a list of pairs.

        Args:
            text: the first text of a pair; or a list of pairs, each a tuple or {"text": ..., "text_pair": ...}.
            text_pair: the second text, if `text` is the first.

        Returns:
            For each pair a dict: `label` ("is_next" or "not_next"), `score` (float, the probability of the label) and
            `is_next` (float, the probability that the second text follows).

        Raises:
            UserError: a text has no token (it is empty, for example), or an item is not a pair.
        """
        if isinstance(text, str):
            if text_pair is None:
                raise UserError("text_pair is missing: found one text, expected two")
            return next(self.stream([(text, text_pair)]))
        if text_pair is not None:
            raise UserError("text_pair: expected only with a single text; for several, pass a list of pairs")
        return Results(self.stream(items_of(text, "two texts or a list of pairs")))

    def encode(self, items: list[Pair], first: int, **options: Any) -> EncodedItems:
        pairs = [_both(item, f"pair {first + number + 1}") for number, item in enumerate(items)]
        texts = [text for pair in pairs for text in pair]
        for number, length in enumerate(self.tokenizer.encode_flat(texts)[1].tolist()):
            if not length:
                which = f"pair {first + number // 2 + 1}, the {('first', 'second')[number % 2]} text"
                raise UserError(f"{which} ({shortened(texts[number])}) has no token; expected at least one")
        return EncodedItems(pairs, *self.encode_pairs(pairs))

    def results(self, facts: list[Any], outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[Any]:
        rows = [softmax(logits_2) for (logits_2,) in outputs]
        return [{"label": LABELS[int(r.argmax())], "score": float(r.max()), "is_next": float(r[0])} for r in rows]


def _both(pair: Any, name: str) -> tuple[str, str]:
    if isinstance(pair, Mapping) and set(pair) == {"text", "text_pair"}:
        pair = (pair["text"], pair["text_pair"])
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f'{name}: expected two texts, or {{"text": ..., "text_pair": ...}}, found {pair!r:.60}')
    return check_text(pair[0], f"{name}, the first text"), check_text(pair[1], f"{name}, the second text")
