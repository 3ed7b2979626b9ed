"""The encoder in ONNX operators: embeddings, attention, feed-forward, pooler. The maths is that of bert_jax/model/.

The shapes of these patterns matter: onnxruntime and OpenVINO recognise attention, the mask, LayerNorm and GELU in them
and put their own kernels in place (for onnxruntime see `tests/formats/onnx/test_onnx.py`). onnxruntime finds neither
attention nor LayerNorm with its residual; with `Graph.own_operators` they are its own operators.
"""

import math

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.formats.onnx.activations import activation
from bert_jax.formats.onnx.graph import FLOAT, INT64, ONNXRUNTIME, Graph

_MASKED = float(np.finfo(np.float32).min)


def dense(g: Graph, x: str, path: str) -> str:
    """The value x · kernel + bias, over the last axis."""
    g.scope(path)
    return g.op("Add", g.op("MatMul", x, f"{path}/kernel"), f"{path}/bias")


def layer_norm(g: Graph, x: str, path: str, config: BertConfig) -> str:
    g.scope(path)
    return g.op("LayerNormalization", x, f"{path}/scale", f"{path}/bias", axis=-1, epsilon=config.layer_norm_eps)


def encode(
    g: Graph,
    config: BertConfig,
    stem: str,
    ids: str,
    mask: str | None,
    types: str | None,
    *,
    packed: bool = False,
    positions: str | None = None,
) -> str:
    """The last hidden state [B, L, D] of ids, mask (1 = a token) and token types [B, L].

    Args:
        g: the graph to add to; it has the parameters already.
        config: the architecture.
        stem: what the encoder's paths begin with: "bert/", or "" for an encoder without a head.
        ids, mask, types: names of int64 values; without `types` all token types are 0, without `mask` (a decoder needs
            it) all ids are tokens.
        packed: several sequences share a row. `mask` then has the number of the sequence of each token, 1, 2 ..., and
            each token attends to its own one.
        positions: the position of each token in its sequence, from 0, int64 [B, L]; packed rows of a model with
            absolute positions need it.
    """
    x = _embeddings(g, config, f"{stem}embeddings", ids, types, positions)
    layers = f"{stem}encoder"
    if config.has_projection:
        x = dense(g, x, f"{layers}/projection")
    added = None
    if mask is not None:
        g.scope(f"{stem}mask")
        # onnxruntime's own attention takes no mask without an axis for queries. Padding then attends to padding.
        by_sequence = packed or (g.own_operators and not config.is_decoder)
        added = _own_sequence(g, mask) if by_sequence else _mask(g, config, mask)
    distances = None
    if config.position_embedding_type != "absolute":
        g.scope(f"{stem}distances")
        distances = _distances(g, ids, config.max_position_embeddings)
    for number in config.layer_order:
        path = f"{layers}/layer_{number}"
        x = _attention(g, config, x, f"{path}/attention", len(config.heads_of(number)), added, distances)
        x = _feed_forward(g, config, x, f"{path}/feed_forward")
    return x


def pool(g: Graph, x: str, path: str) -> str:
    """The pooler, tanh(dense(the first position)): [B, L, D] -> [B, D]."""
    return g.op("Tanh", dense(g, first_position(g, x, path), path))


def first_position(g: Graph, x: str, path: str) -> str:
    """The first position: [B, L, D] -> [B, D]."""
    g.scope(path)
    return g.op("Gather", x, 0, axis=1)


def _embeddings(g: Graph, config: BertConfig, path: str, ids: str, types: str | None, positions: str | None) -> str:
    g.scope(path)
    x = g.op("Gather", f"{path}/word_embeddings", ids)
    if config.has_token_types:
        x = g.op("Add", x, g.op("Gather", f"{path}/token_type_embeddings", 0 if types is None else types))
    if config.position_embedding_type == "absolute":
        table = f"{path}/position_embeddings"
        if config.family == "roberta":
            rows = g.op("Gather", table, _roberta_positions(g, ids, config.pad_token_id, positions))
        elif positions is not None:
            rows = g.op("Gather", table, positions)
        else:
            rows = g.op("Slice", table, [0], _length(g, ids), [0])
        x = g.op("Add", x, rows)
    return layer_norm(g, x, f"{path}/LayerNorm", config)


def _length(g: Graph, ids: str) -> str:
    """L as int64 [1]."""
    return g.op("Shape", ids, start=1, end=2)


def _roberta_positions(g: Graph, ids: str, pad: int, positions: str | None) -> str:
    """pad + 1, pad + 2 … for the tokens of each sequence, and pad for padding: they depend on the ids, not on the mask.

    `positions`: of packed rows, as in `encode`.
    """
    is_token = g.op("Cast", g.op("Not", g.op("Equal", ids, pad)), to=INT64)
    count = g.op("CumSum", is_token, 1)
    if positions is not None:
        place = g.op("Range", 0, g.op("Squeeze", _length(g, ids), [0]), 1)
        begins = g.op("Sub", place, positions)
        count = g.op("Sub", count, g.op("GatherElements", g.op("Sub", count, is_token), begins, axis=1))
    return g.op("Add", g.op("Mul", count, is_token), pad)


def _mask(g: Graph, config: BertConfig, mask: str) -> str:
    """[B, L] -> what is added to the scores: [B, 1, 1, L], or [B, 1, L, L] in a decoder; 0 = attend."""
    keys = g.op("Unsqueeze", g.op("Unsqueeze", mask, [1]), [2])
    if config.is_decoder:
        # The query at l attends to the keys 0 … l.
        place = g.op("Range", 0, g.op("Squeeze", _length(g, mask), [0]), 1)
        earlier = g.op("GreaterOrEqual", g.op("Unsqueeze", place, [1]), place)
        keys = g.op("Mul", keys, g.op("Cast", earlier, to=INT64))
    return g.op("Mul", g.op("Sub", 1.0, g.op("Cast", keys, to=FLOAT)), _MASKED)


def _own_sequence(g: Graph, sequences: str) -> str:
    """The number of each token's sequence [B, L] -> what is added to the scores, [B, 1, L, L]; 0 = attend."""
    same = g.op("Equal", g.op("Unsqueeze", sequences, [1, 3]), g.op("Unsqueeze", sequences, [1, 2]))
    return g.op("Where", same, 0.0, _MASKED)


def _distances(g: Graph, ids: str, longest: int) -> str:
    """The row of the distance table for each query and key: l - m + P - 1, int64 [L, L]."""
    place = g.op("Range", 0, g.op("Squeeze", _length(g, ids), [0]), 1)
    return g.op("Add", g.op("Sub", g.op("Unsqueeze", place, [1]), place), longest - 1)


def _attention(
    g: Graph, config: BertConfig, x: str, path: str, heads: int, mask: str | None, distances: str | None
) -> str:
    if g.own_operators and distances is None:
        return _residual(g, config, x, _own_attention(g, x, path, heads, mask), path)
    size = config.head_dim
    split = np.array([0, 0, heads, size])  # 0 keeps an axis: rows and length stay free
    query, key, value = (g.op("Reshape", dense(g, x, f"{path}/{name}"), split) for name in ("query", "key", "value"))
    g.scope(path)
    queries, keys = g.op("Transpose", query, perm=[0, 2, 1, 3]), g.op("Transpose", key, perm=[0, 2, 3, 1])
    scores = g.op("MatMul", queries, keys)
    if distances is not None:
        rows = g.op("Gather", f"{path}/distance_embedding", distances)
        scores = g.op("Add", scores, g.op("Einsum", query, rows, equation="blhk,lmk->bhlm"))
        if config.position_embedding_type == "relative_key_query":
            scores = g.op("Add", scores, g.op("Einsum", key, rows, equation="bmhk,lmk->bhlm"))
    scores = g.op("Div", scores, math.sqrt(size))
    if mask is not None:
        scores = g.op("Add", scores, mask)
    probabilities = g.op("Softmax", scores, axis=-1)
    context = g.op("MatMul", probabilities, g.op("Transpose", value, perm=[0, 2, 1, 3]))
    joined = g.op("Reshape", g.op("Transpose", context, perm=[0, 2, 1, 3]), np.array([0, 0, heads * size]))
    return _residual(g, config, x, joined, path)


def _own_attention(g: Graph, x: str, path: str, heads: int, mask: str | None) -> str:
    """Attention up to its output's product, as one operator of onnxruntime: "Attention", with `mask` as its bias."""
    for name in ("kernel", "bias"):
        parts = [g.weights[f"{path}/{part}/{name}"] for part in ("query", "key", "value")]
        g.weights[f"{path}/query_key_value/{name}"] = np.concatenate(parts, axis=-1)
    g.scope(path)
    kernel, bias = f"{path}/query_key_value/kernel", f"{path}/query_key_value/bias"
    width = g.weights[f"{path}/query/bias"].size
    operands = [x, kernel, bias] if mask is None else [x, kernel, bias, "", "", mask]
    return g.op("Attention", *operands, num_heads=heads, qkv_hidden_sizes=[width] * 3, domain=ONNXRUNTIME)


def _feed_forward(g: Graph, config: BertConfig, x: str, path: str) -> str:
    y = dense(g, x, f"{path}/intermediate")
    y = activation(g, y, config.hidden_act, f"{path}/activation")
    return _residual(g, config, x, y, path)


def _residual(g: Graph, config: BertConfig, x: str, y: str, path: str) -> str:
    """The end of a block: LayerNorm of x + the output's product with y."""
    if not g.own_operators:
        y = dense(g, y, f"{path}/output")
        g.scope(path)
        return layer_norm(g, g.op("Add", y, x), f"{path}/LayerNorm", config)
    g.scope(path)
    y, parameters = g.op("MatMul", y, f"{path}/output/kernel"), ("LayerNorm/scale", "LayerNorm/bias", "output/bias")
    given = [f"{path}/{name}" for name in parameters]
    return g.op("SkipLayerNormalization", y, x, *given, epsilon=config.layer_norm_eps, domain=ONNXRUNTIME)
