"""attend: computes the attention weights of all heads for a text, as arrays, a PNG or an interactive HTML page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import writable
from bert_jax.formats.load import Loaded
from bert_jax.inference.attention.pictures import draw_grid, page_of
from bert_jax.inference.engine.batching import length_buckets
from bert_jax.inference.engine.engine import why_not_finite
from bert_jax.inference.tasks.task_source import (
    HEAD_OF,
    check_text,
    items_of,
    literal_tokenizer,
    longest_row,
    model_for,
    opened,
    shortened,
)
from bert_jax.model.heads import HEADS

_TASK = "attend"
_FRAME_HEIGHT = 760  # pixels of a page in a notebook


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """A model's attention weights for one text or a pair of texts. A notebook shows them as the page of `to_html`.

    Attributes:
        tokens: L pieces as the vocabulary spells them, special tokens included.
        attentions: float32 [N, H, L, L]: for each layer and head, how much the token of each row (query) attends to
            that of each column (key). Each row sums to 1; for a pruned head all weights are 0.
        segments: int32 [L], 0 for the first text and its special tokens, 1 for the second text and its own, even if the
            model has no token types.
        special: bool [L], true for [CLS], [SEP] and other special tokens.
        has_head: bool [N, H], false for pruned heads.
        text, text_pair: the texts; `text_pair` is None for one text.
        model: where the model was read from.
        shown: L pieces made legible by `readable`; they differ from `tokens` only for byte-level vocabularies.
    """

    tokens: list[str]
    attentions: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    has_head: np.ndarray
    text: str
    text_pair: str | None
    model: str
    shown: list[str]

    def __repr__(self) -> str:
        layers, heads, length, _ = self.attentions.shape
        return f"AttentionMaps({layers} layers, {heads} heads, {length} tokens)"

    def save_png(self, path: str | os.PathLike[str]) -> Path:
        """Draws all heads as a grid of heat maps, one row per layer; needs matplotlib, from the extra `train`."""
        return draw_grid(self, writable(path))

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page of `to_html` to a file."""
        path = writable(path)
        path.write_text(self.to_html(), encoding="utf-8")
        return path

    def save_npz(self, path: str | os.PathLike[str]) -> Path:
        """Writes tokens, attentions, segments, special and has_head for `numpy.load`, without pickle."""
        path = writable(path)
        with path.open("wb") as file:  # given a path, NumPy would append .npz
            np.savez(
                file,
                tokens=np.array(self.tokens, dtype=np.str_),
                attentions=self.attentions,
                segments=self.segments,
                special=self.special,
                has_head=self.has_head,
            )
        return path

    def to_html(self) -> str:
        """One self-contained page to browse layers and heads; it makes no request (see `pictures.page_of`)."""
        return page_of(self)

    def _repr_html_(self) -> str:
        page = escape(self.to_html())
        style = f"width:100%;height:{_FRAME_HEIGHT}px;border:0"
        return f'<iframe title="attention" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


class Attend:
    """Computes the attention weights of all layers and heads, for any model with an encoder.

    The model is compiled once for each length bucket that occurs (powers of two from 16, and the model's longest
    input); `compilations` is the number of compilations. The results have no padding. Texts are computed one by one,
    because the results are large: 151 MB for 512 tokens and BERT-base.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned, with any head.
        dtype: "float32" or "bfloat16", the type of the matrix products' operands.
    """

    def __init__(self, source: "str | os.PathLike[str] | Loaded", *, dtype: str | None = None):
        found = opened(source)
        loaded, tokenizer = model_for(_TASK, found, dtype=dtype)
        self.tokenizer = literal_tokenizer(tokenizer, found)
        self.config = loaded.config
        self.source = loaded.report.source
        self.longest = longest_row(self.config, self.tokenizer)
        self._params = loaded.params
        self._compiled: list[int] = []
        # Not a method: with one the parameters would stay in memory when the last reference to this object has gone.
        self._weights = jax.jit(partial(_weights, HEADS[HEAD_OF[_TASK]](self.config), self._compiled))

    @property
    def compilations(self) -> int:
        """The number of compiled programs."""
        return len(self._compiled)

    def __repr__(self) -> str:
        return f"Attend({self.source}: {self.config.model_type}, texts of up to {self.longest:,} tokens)"

    def __call__(self, text: str | Sequence[str], text_pair: str | Sequence[str] | None = None) -> Any:
        """Computes the attention weights for texts.

        Args:
            text: a text, or a list of them.
            text_pair: the second text of each pair: one for a text, a list of equal length for a list.

        Returns:
            `AttentionMaps` for a text, a list of them for a list.

        Raises:
            UserError: a text is not a string or is too long for the model (nothing is truncated), the lists have
                different lengths, or the weights are not finite.
        """
        single = isinstance(text, str)
        texts = _texts_of(text, "text")
        pairs = _pairs_of(text_pair, len(texts), single)
        both = list(zip(texts, pairs, strict=True))
        rows = [self._encode(first, second, number) for number, (first, second) in enumerate(both)]
        results = [self._attend(row, first, second) for row, (first, second) in zip(rows, both, strict=True)]
        return results[0] if single else results

    def _attend(self, row: "_TokenRow", text: str, pair: str | None) -> AttentionMaps:
        length = len(row.ids)
        bucket = next(bucket for bucket in length_buckets(self.longest) if length <= bucket)
        inputs = np.zeros((3, 1, bucket), np.int32)  # ids, attention mask, types
        inputs[0] = self.tokenizer.pad_token_id if self.tokenizer.has_special("pad") else 0
        inputs[:, 0, :length] = row.ids, np.ones(length), row.types
        layers = jax.device_get(self._weights(self._params, *inputs))
        if not all(np.isfinite(layer).all() for layer in layers):
            raise UserError(why_not_finite(self._params))
        maps, has_head = self._unpadded([layer[0] for layer in layers], length)
        tokens = self.tokenizer.ids_to_tokens(row.ids)
        return AttentionMaps(
            tokens=tokens,
            attentions=maps,
            segments=row.segments,
            special=row.special,
            has_head=has_head,
            text=text,
            text_pair=pair,
            model=self.source,
            shown=readable(tokens, self.tokenizer.vocabulary),
        )

    def _encode(self, text: str, pair: str | None, number: int) -> "_TokenRow":
        ids, lengths = self.tokenizer.encode_flat([text] if pair is None else [text, pair])
        added = self.tokenizer.special_tokens_added(pair=pair is not None)
        if (total := int(lengths.sum()) + added) > self.longest:
            name = f"{'text' if pair is None else 'pair'} {number + 1} ({shortened(text)})"
            raise UserError(f"{name} has {total} tokens; the model takes at most {self.longest}: shorten it")
        return _row(self.tokenizer, np.split(ids, np.cumsum(lengths)[:-1]))

    def _unpadded(self, layers: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights [N, H, L, L] with every head at its own index, and bool [N, H], true if a head exists."""
        config = self.config
        maps = np.zeros((len(layers), config.num_attention_heads, length, length), np.float32)
        has_head = np.zeros(maps.shape[:2], bool)
        for depth, (weights, i) in enumerate(zip(layers, config.layer_order, strict=True)):
            heads = list(config.heads_of(i))
            maps[depth, heads] = weights[:, :length, :length]
            has_head[depth, heads] = True
        return maps, has_head


def _weights(
    model: nn.Module, compiled: list[int], params: Any, ids: jax.Array, attention_mask: jax.Array, types: jax.Array
) -> tuple[jax.Array, ...]:
    """Returns N arrays [B, H, L, L], with fewer heads where some are pruned; adds L to `compiled`."""
    compiled.append(ids.shape[1])  # runs only when JAX traces, once per shape
    output: Any = model.apply({"params": params}, ids, attention_mask, types, output_attentions=True)
    return output.attentions


def readable(tokens: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    """Makes the pieces of a byte-level vocabulary (RoBERTa's) legible; returns those of other vocabularies unchanged.

    Pieces become the text that they encode. A leading space becomes "▁", as in SentencePiece, and bytes that are not a
    complete character become escapes such as `\\xe4`.

    Args:
        tokens: pieces of the vocabulary.
        vocabulary: all its pieces; it is byte-level if it has the character of every byte.
    """
    if not _BYTE_OF.keys() <= set(vocabulary):
        return list(tokens)
    return [_decoded(token) if all(c in _BYTE_OF for c in token) else token for token in tokens]


def _decoded(token: str) -> str:
    text = bytes(_BYTE_OF[c] for c in token).decode("utf-8", "backslashreplace")
    return "▁" + text[1:] if text.startswith(" ") else text


def _byte_characters() -> dict[str, int]:
    """The character of each byte in GPT-2's vocabulary: the byte itself if printable, else characters from 256 up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_characters()


class _TokenRow(NamedTuple):
    """A row of tokens: int32 [L] each, except `special`, bool [L]."""

    ids: np.ndarray
    types: np.ndarray
    segments: np.ndarray
    special: np.ndarray


def _row(tokenizer: Tokenizer, segments: list[np.ndarray]) -> _TokenRow:
    """Arranges the tokens of a text or a pair in the tokenizer's layout.

    A special token belongs to the text before it, or to the first text. A special token written in the text itself
    ("a [SEP] b") counts as special if it is one that the layout adds.
    """
    slots = tokenizer.layouts[len(segments) - 1]
    added = [slot.special_id for slot in slots if slot.special_id is not None]
    ids, types, numbers, special = [], [], [], []
    current = 0
    for slot in slots:
        if slot.special_id is None:
            current = slot.segment
        some = segments[current] if slot.special_id is None else np.array([slot.special_id], np.int32)
        ids.append(some)
        types.append(np.full(len(some), slot.token_type, np.int32))
        numbers.append(np.full(len(some), current, np.int32))
        special.append(np.isin(some, added))
    return _TokenRow(*map(np.concatenate, (ids, types, numbers, special)))


def _pairs_of(text_pair: str | Sequence[str] | None, count: int, single: bool) -> list[str | None]:
    if text_pair is None:
        return [None] * count
    if single != isinstance(text_pair, str) or not isinstance(text_pair, str | Sequence):
        raise UserError("text_pair: expected a string if text is a string, else a list")
    pairs = _texts_of(text_pair, "text_pair")
    if len(pairs) != count:
        raise UserError(f"text_pair has {len(pairs)} texts; expected {count}, one for each text")
    return list(pairs)


def _texts_of(given: Any, name: str) -> list[str]:
    texts = [given] if isinstance(given, str) else items_of(given)
    return [check_text(text, f"{name} {number}") for number, text in enumerate(texts, 1)]
