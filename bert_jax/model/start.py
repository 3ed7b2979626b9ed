"""How the parameters of a new model are drawn: as published, or with heads that know at once where to look.

A BERT that is drawn as published first has to find out which positions are neighbours, and its loss stays on a plateau
until it has. Here the position table can be Fourier features, which the query and key kernels of chosen heads compare
at a chosen distance. Other heads can compare what is no position, and so find the same token elsewhere in the row:
that is how two sentences are compared. The architecture stays the same, and so does every parameter's shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.config import BertConfig, is_number, take_python_numbers
from bert_jax.errors import UserError
from bert_jax.shown import ShownConfig
from bert_jax.tree import encoder_of

NARROWEST = 16
"""The least size of a head that can tell a distance from its neighbours: 8 frequencies."""
_TOKEN_SHARE = 0.25  # a power of two: scaling by it is exact
_TRUNCATED = 0.8796256610342398  # deviation of a standard normal that is truncated at two deviations


@dataclass(frozen=True, repr=False)
class StartConfig(ShownConfig):
    """How a new model is drawn. The defaults are the published start.

    range         deviation of the drawn weights: "model" (model.initializer_range) or "width", 1 / sqrt(hidden size)
    positions     "random", or "fourier": sines and cosines in the first dimensions, as many as a head has
    heads         (layer, what its first head looks at, its second, ...) for each layer with such heads. A number is a
                  distance: ((0, -1, 1),) lets two heads of layer 0 look at the token before and at the token after.
                  "same" is the same token, wherever it is. Other heads stay random. Needs positions=fourier
    gain          how sharply those heads look: the factor of their query and key kernels
    output_bias   of masked LM: "zeros", or "unigram", the logarithm of each token's frequency in the training text

    Raises UserError that names the field.
    """

    range: Literal["model", "width"] = "model"
    positions: Literal["random", "fourier"] = "random"
    heads: tuple[tuple[int, *tuple[int | Literal["same"], ...]], ...] = ()
    gain: float = 1.0
    output_bias: Literal["zeros", "unigram"] = "zeros"

    def __post_init__(self):
        take_python_numbers(self)
        for field in ("range", "positions", "output_bias"):
            choices = get_args(type(self).__annotations__[field])
            if (found := getattr(self, field)) not in choices:
                raise UserError(f"start.{field}: found {found!r}; expected {' or '.join(choices)}")
        if not (is_number(self.gain) and 0 < self.gain < math.inf):
            raise UserError(f"start.gain: found {self.gain!r}; expected a number above 0")
        rows = self.heads
        if not isinstance(rows, tuple | list) or not all(map(_is_row, rows)):
            raise UserError(
                f"start.heads: found {rows!r}; expected ((layer, distance, ...), ...) such as ((0, -1, 1),), and "
                "'same' in place of a distance for the same token"
            )
        object.__setattr__(self, "heads", tuple(map(tuple, rows)))
        layers = [row[0] for row in self.heads]
        if twice := [layer for layer in layers if layers.count(layer) > 1]:
            raise UserError(f"start.heads: names layer {twice[0]} twice; give it one row with all its heads")
        if self.heads and self.positions != "fourier":
            raise UserError(
                "start.heads: heads tell positions from tokens by their sines and cosines; say start.positions=fourier"
            )

    @property
    def is_published(self) -> bool:
        return self == StartConfig()


def check_start(start: StartConfig, model: BertConfig) -> None:
    """Raises UserError, naming the field, if a model cannot start like this."""
    if start.positions == "fourier":
        why = ""
        if model.has_projection:
            why = "a model whose layers see its position table only through a projection"
        elif model.position_embedding_type != "absolute" or model.sinusoidal_pos_embds:
            why = "a model without a position table that is trained"
        elif model.head_dim < NARROWEST or model.head_dim > model.hidden_size:
            why = (
                f"heads of {model.head_dim}, and the table is as wide as a head; at least {NARROWEST} can be told apart"
            )
        if why:
            raise UserError(f"start.positions: found fourier for {why}; say start.positions=random start.heads='()'")
    for layer, *sought in start.heads:
        if not 0 <= layer < model.num_hidden_layers:
            raise UserError(
                f"start.heads: found layer {layer}; the model has layers 0 to {model.num_hidden_layers - 1}"
            )
        if len(sought) > (count := len(model.heads_of(layer))):
            raise UserError(f"start.heads: found {len(sought)} heads in layer {layer}, which has {count}")
        if "same" in sought and model.hidden_size < 2 * model.head_dim:
            raise UserError(
                f"start.heads: found 'same' in a model {model.hidden_size} wide with heads of {model.head_dim}; no "
                "place is left beside the positions, which need as many dimensions as a head has"
            )
        most = 0 if model.is_decoder else model.longest_input - 1
        distances = [found for found in sought if found != "same"]
        if wrong := [found for found in distances if not 1 - model.longest_input <= found <= most]:
            raise UserError(
                f"start.heads: found a distance of {wrong[0]} tokens; expected {1 - model.longest_input} to {most}"
            )


def draw(key: Array, model: nn.Module, start: StartConfig, counts: np.ndarray | None = None) -> Any:
    """The parameters of a new model, float32: a pure function of its arguments, the same values on every mesh.

    Args:
        key: for what is random; with the published start `model.init(key, ...)` draws the same.
        model: any, also a bare `Bert`; with a masked-LM head, if the output bias is "unigram".
        start: how to draw.
        counts: integers [V] or fewer, how often each token occurs; only for the output bias "unigram".

    Raises:
        UserError: as `check_start`; or the output bias is "unigram", and the model has no such head, or there are no
            counts, or more than V.
    """
    config: BertConfig = model.config
    check_start(start, config)
    if start.output_bias == "unigram" and counts is None:
        raise UserError("start.output_bias: found unigram, and data=random has no text to count; say zeros")
    deviation = config.initializer_range if start.range == "model" else config.hidden_size**-0.5
    drawn = model.clone(config=config.replace(initializer_range=deviation))
    params = drawn.init(key, jnp.zeros((1, 1), jnp.int32))["params"]
    params = jax.tree.map(lambda leaf: leaf, params)  # dicts of its own, to change
    encoder: Any = encoder_of(params)
    if start.positions == "fourier":
        embeddings = encoder["embeddings"]
        table = fourier_positions(config, _TRUNCATED * deviation)
        words = embeddings["word_embeddings"]
        embeddings["position_embeddings"] = jnp.asarray(table)
        embeddings["word_embeddings"] = words.at[:, : config.head_dim].multiply(_TOKEN_SHARE)
    for layer, *sought in start.heads:
        attention = encoder["encoder"][f"layer_{layer}"]["attention"]
        for name, wired in zip(("query", "key"), _query_and_key(config, sought), strict=True):
            kernel = attention[name]["kernel"]
            kernel = kernel.at[:, : wired.shape[1]].add((wired * start.gain).astype(np.float32))
            attention[name] = attention[name] | {"kernel": kernel}
    if counts is not None and start.output_bias == "unigram":
        if "mlm_head" not in params:
            raise UserError("start.output_bias: found unigram for a model without a masked-LM head; say zeros")
        if len(counts) > config.vocab_size:
            raise UserError(f"counts: found {len(counts)}; expected at most one for each of {config.vocab_size} tokens")
        whole = np.zeros(config.vocab_size, np.float64)
        whole[: len(counts)] = counts
        params["mlm_head"]["bias"] = jnp.asarray(log_frequencies(whole))
    return params


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """The logarithm of each token's share, float32 [V]; one is added to each count, so that no share is 0."""
    smoothed = counts.astype(np.float64) + 1
    return np.log(smoothed / smoothed.sum()).astype(np.float32)


def fourier_positions(config: BertConfig, deviation: float) -> np.ndarray:
    """The position table, float32 [max_position_embeddings, E]: (sin, cos) pairs in the first K dimensions, then zeros.

    The mean square of a pair is deviation², as of a drawn table. Row `first` is the position of the first token, which
    in RoBERTa's table comes after the row of padding; rotations compare differences, so the shift does not matter.
    """
    rows, first = config.max_position_embeddings, config.max_position_embeddings - config.longest_input
    pairs = config.head_dim // 2
    angles = (np.arange(rows) - first)[:, None] * _frequencies(config)
    table = np.zeros((rows, config.embedding_width))
    table[:, : 2 * pairs] = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(rows, 2 * pairs)
    return (math.sqrt(2) * deviation * table).astype(np.float32)


def rotation(config: BertConfig, distance: int) -> np.ndarray:
    """The matrix [K, K] that turns the features of position t, a row, into those of position t + distance."""
    angles, size = _frequencies(config) * distance, config.head_dim
    sines = np.arange(0, 2 * len(angles), 2)
    found = np.zeros((size, size))
    found[sines, sines] = found[sines + 1, sines + 1] = np.cos(angles)
    found[sines + 1, sines], found[sines, sines + 1] = np.sin(angles), -np.sin(angles)
    return found


def _query_and_key(config: BertConfig, sought: Sequence[int | Literal["same"]]) -> tuple[np.ndarray, np.ndarray]:
    """What the query and key kernels of a layer's first heads begin with, [H, len(sought) * K] each.

    A head for "same" reads K dimensions without positions in both, so that a token fits itself and its equals; the
    next one of the layer reads the K dimensions after these.
    """
    size, same = config.head_dim, 0
    query, key = np.zeros((2, config.hidden_size, len(sought), size))
    for head, found in enumerate(sought):
        if found == "same":
            first = size * (1 + same % (config.hidden_size // size - 1))
            query[first : first + size, head] = key[first : first + size, head] = np.eye(size)
            same += 1
        else:
            query[:size, head], key[:size, head] = rotation(config, found), rotation(config, 0)
    return query.reshape(config.hidden_size, -1), key.reshape(config.hidden_size, -1)


def _is_row(row: object) -> bool:
    """Whether it is (layer, distance or "same", ...)."""
    if not isinstance(row, tuple | list) or len(row) < 2 or type(row[0]) is not int:
        return False
    return all(type(found) is int or found == "same" for found in row[1:])


def _frequencies(config: BertConfig) -> np.ndarray:
    """Radians a token, [K / 2]: in equal ratios from pi, a wave of 2 tokens, to a wave longer than any input."""
    pairs = config.head_dim // 2
    return math.pi * (config.max_position_embeddings / math.pi) ** (-np.arange(pairs) / pairs)
