"""Where a tokenizer puts its special tokens, read off encoded examples."""

import tokenizers

from bert_jax.data.sequence_layout import Slot
from bert_jax.errors import UserError


def layouts_of(backend: tokenizers.Tokenizer, vocab_size: int) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The layout of a single text and that of a pair.

    Raises:
        UserError: a post-processor whose rows are no such layout, or that adds ids past `vocab_size`; a vocabulary that
            no text becomes.
    """
    texts = ("a", *(backend.decode([i]) for i in range(vocab_size)))
    known = next((text for text in texts if backend.encode(text, add_special_tokens=False).ids), None)
    if known is None:
        raise UserError("its vocabulary has no piece that a text could become")
    single, pair = _layout(backend, known), _layout(backend, known, known)
    for slot in (*single, *pair):
        if slot.special_id is not None and slot.special_id >= vocab_size:
            raise UserError(f"its post-processor adds id {slot.special_id}, the last one is {vocab_size - 1}")
    return single, pair


def _layout(backend: tokenizers.Tokenizer, text: str, pair: str | None = None) -> tuple[Slot, ...]:
    encoded = backend.encode(text, pair)
    slots: list[Slot] = []
    for i, kind, special, segment in zip(
        encoded.ids, encoded.type_ids, encoded.special_tokens_mask, encoded.sequence_ids, strict=True
    ):
        slot = Slot(kind, special_id=i) if special else Slot(kind, segment=segment or 0)
        if special or slot not in slots:
            slots.append(slot)
    if [s.segment for s in slots if s.special_id is None] != list(range(1 if pair is None else 2)):
        raise UserError("its post-processor does not keep the segments of a text in order")
    return tuple(slots)
