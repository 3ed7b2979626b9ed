"""Batches of random tokens in the shapes of real ones: for dry runs and benchmarks, where only the shapes matter."""

import numpy as np


class RandomBatches:
    """`batch(step, rows)` like `Batches`, every row full; a pure function of (seed, step, row)."""

    def __init__(
        self,
        *,
        batch_size: int,
        max_seq_length: int,
        max_predictions: int,
        vocab_size: int,
        seed: int = 0,
        next_sentence: bool = True,
    ):
        self.batch_size = batch_size
        self._length = max_seq_length
        self._predictions = max_predictions
        self._vocab_size = vocab_size
        self._seed = seed
        self._next_sentence = next_sentence

    def batch(self, step: int, rows: np.ndarray | slice | None = None) -> dict[str, np.ndarray]:
        """Arrays as in `Batches.batch`: int32 [B, L] and [B, P], float32 [B, P], int32 [B].

        Half of each row is of token type 1 where there are sentence pairs.
        """
        generator = np.random.default_rng((self._seed, step))
        size, length, predictions = self.batch_size, self._length, self._predictions
        keys = generator.random((size, length), dtype=np.float32)
        is_b_L = np.arange(length) >= (length // 2 if self._next_sentence else length)
        batch = {
            "input_ids": generator.integers(0, self._vocab_size, (size, length), np.int32),
            "token_type_ids": np.broadcast_to(is_b_L.astype(np.int32), (size, length)),
            "attention_mask": np.ones((size, length), np.int32),
            "mlm_positions": np.sort(np.argsort(keys, axis=1)[:, :predictions], axis=1).astype(np.int32),
            "mlm_labels": generator.integers(0, self._vocab_size, (size, predictions), np.int32),
            "mlm_weights": np.ones((size, predictions), np.float32),
        }
        if self._next_sentence:
            batch["next_sentence_label"] = generator.integers(0, 2, (size,), np.int32)
        return batch if rows is None else {name: array[rows] for name, array in batch.items()}
