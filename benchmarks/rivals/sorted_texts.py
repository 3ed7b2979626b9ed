"""Texts as onnxruntime and OpenVINO take them fastest: sorted by length, so many tokens at a time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers

TOKENS = 1024  # of a call


def batches(texts: Sequence[str], tokenizer: Any) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The numbers of the texts of a call, and its inputs; the longest texts come first."""
    ids = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
    order = np.argsort([-len(row) for row in ids], kind="stable")
    begin = 0
    while begin < len(order):
        length = len(ids[order[begin]])
        rows = order[begin : begin + max(1, TOKENS // length)]
        begin += len(rows)
        padded = np.zeros((len(rows), length), np.int64)
        for place, row in enumerate(rows):
            padded[place, : len(ids[row])] = ids[row]
        inputs = {"input_ids": padded, "attention_mask": (padded > 0).astype(np.int64)}
        yield rows, inputs | {"token_type_ids": np.zeros_like(padded)}


def pool(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over the tokens, scaled to length one."""
    vectors = np.einsum("bl,bld->bd", mask.astype(np.float32), hidden) / mask.sum(1, keepdims=True)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def encoder(folder: Path, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Callable[[Sequence[str]], np.ndarray]:
    """Texts -> vectors, with `run` from the inputs of a call to its last hidden state."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(texts: Sequence[str]) -> np.ndarray:
        parts = [(rows, pool(run(inputs), inputs["attention_mask"])) for rows, inputs in batches(texts, tokenizer)]
        found = np.empty((len(texts), parts[0][1].shape[1]), np.float32)
        for rows, vectors in parts:
            found[rows] = vectors
        return found

    return encode
