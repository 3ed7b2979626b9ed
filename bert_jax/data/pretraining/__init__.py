"""From sentences to pretraining batches: shards, examples, masks, rows, `batch(step)`.

Everything is a pure function of the seed and a position.
"""
