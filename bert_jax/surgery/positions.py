"""Extend the position table of a trained model, so that it accepts longer inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.tree import encoder_of, with_encoder

WAYS = ("tile", "interpolate")


def extend_positions(
    config: BertConfig, params: Mapping[str, Any], length: int, *, how: str = "tile"
) -> tuple[BertConfig, dict[str, Any]]:
    """Makes a model accept inputs of `length` positions. Afterwards, train it further on long inputs.

    Args:
        config: the config of `params`.
        params: the tree of a model with a head or of the bare encoder, NumPy or JAX arrays. It is not changed.
        length: the new maximum length of an input, greater than the old one. The new table has `length` rows; in
            RoBERTa also the rows before the first position (514 rows for 512 positions).
        how: "tile" repeats the rows from the start (https://arxiv.org/abs/2004.05150, section 5); the outputs for
            inputs of the old lengths stay the same. "interpolate" stretches the table linearly between its first and
            last row (https://arxiv.org/abs/2306.15595); the vectors of almost all positions change.

    Returns:
        The config with the larger `max_position_embeddings`, and a tree that shares its unchanged arrays with `params`.

    Raises:
        UserError: the model has no learned table of absolute positions, `length` is not greater or above the most that
            a config may have, or `how` is unknown.
    """
    now = config.longest_input
    if how not in WAYS:
        raise UserError(f"how={how!r}: expected one of {', '.join(WAYS)}")
    if length <= now:
        raise UserError(f"length={length}: the model already takes {now} positions")
    if config.position_embedding_type != "absolute" or config.sinusoidal_pos_embds:
        kind = "sinusoids" if config.sinusoidal_pos_embds else config.position_embedding_type
        raise UserError(f"positions are {kind} in this model; expected a learned table of absolute positions")
    encoder = encoder_of(params)
    table = np.asarray(encoder["embeddings"]["position_embeddings"])
    if table.shape[0] != config.max_position_embeddings:
        expected = f"expected max_position_embeddings={config.max_position_embeddings}"
        raise UserError(f"position_embeddings has {table.shape[0]} rows; {expected}")
    try:
        after = config.replace(max_position_embeddings=config.max_position_embeddings - now + length)
    except UserError as error:  # more than any model has
        raise UserError(f"length={length}: {error}") from None
    before, rows = np.split(table, [config.max_position_embeddings - now])
    longer = rows[np.arange(length) % now] if how == "tile" else _stretched(rows, length)
    embeddings = {**encoder["embeddings"], "position_embeddings": np.concatenate([before, longer])}
    return after, with_encoder(params, {**encoder, "embeddings": embeddings})


def _stretched(rows: np.ndarray, length: int) -> np.ndarray:
    where = np.linspace(0, len(rows) - 1, length)
    below = np.minimum(where.astype(int), len(rows) - 2) if len(rows) > 1 else np.zeros(length, int)
    weight = (where - below)[:, None].astype(rows.dtype)
    return rows[below] * (1 - weight) + rows[np.minimum(below + 1, len(rows) - 1)] * weight
