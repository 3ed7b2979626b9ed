"""Shards of documents that a test writes down."""

from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.data.pretraining.shards import Shard, pack_flat


def pack_documents(documents: Iterable[Sequence[np.ndarray]], dtype: np.dtype) -> Shard:
    """A shard in memory of documents: lists of sentences (integer ids [length]). Empty ones are left out."""
    documents = [list(document) for document in documents]
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.concatenate(sentences) if sentences else np.empty(0, dtype)
    return pack_flat(tokens, np.array([*map(len, sentences)], int), np.array([*map(len, documents)], int), dtype)
