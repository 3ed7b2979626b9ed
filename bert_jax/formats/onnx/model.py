"""The graph of a model with its head. Inputs and outputs have the names and axes that optimum gives them."""

from collections.abc import Callable, Mapping

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError, quoted
from bert_jax.formats.names.families import ENCODER
from bert_jax.formats.names.parameters import is_encoder, parameters_of
from bert_jax.formats.onnx.activations import activation
from bert_jax.formats.onnx.encoder import dense, encode, first_position, layer_norm, pool
from bert_jax.formats.onnx.graph import Graph

DECODER_KERNEL = "mlm_head/decoder_kernel"
ROWS, LENGTH, CHOICES = "batch_size", "sequence_length", "num_choices"
_PER_TOKEN = [ROWS, LENGTH]


Outputs = Callable[[Graph, BertConfig, str], None]
"""Adds a graph's outputs, given the name of the last hidden state."""


def build_graph(
    config: BertConfig,
    flat: Mapping[str, np.ndarray],
    head: str,
    *,
    own_decoder: bool = False,
    packed: bool = False,
    own_operators: bool = False,
    unpadded: bool = False,
    outputs: Outputs | None = None,
) -> Graph:
    """The graph of a model, for any number of rows and any length up to `config.longest_input`.

    Inputs are int64 [B, L], for multiple choice [B, choices, L]: input_ids, attention_mask (1 = a token), and
    token_type_ids if the model tells more than one type apart. Outputs are float32:

    - last_hidden_state [B, L, D], and pooler_output [B, D] if there is a pooler
    - logits: [B, L, V], [B, C], [B, 2] for nsp, [B, L, C], [B, L] for replaced tokens, or [B, choices]
    - start_logits, end_logits [B, L]
    - prediction_logits [B, L, V], and seq_relationship_logits (in ALBERT sop_logits) [B, 2], for pretraining

    Args:
        config: the architecture.
        flat: parameters by path; for an encoder without a head, with or without "bert/" before them.
        head: a head of the family.
        own_decoder: a masked-LM head gets a kernel of its own, [E, V], in place of the transposed token table. Only a
            product with a constant becomes int8.
        packed: several sequences share a row. In place of the mask there are sequence_ids (1, 2 ... for the sequences
            of a row, 0 for padding) and, for absolute positions, position_ids (counted from 0 in each sequence), int64
            [B, L].
        own_operators: see `Graph`.
        unpadded: attention_mask is always 1, so attention does without it.
        outputs: in place of the head's own.

    Raises:
        UserError: a parameter is missing or has a wrong shape, or what `check_expressible` raises.
    """
    check_expressible(config)
    g = Graph(own_operators)
    for path, parameter in parameters_of(config, head).items():
        array = flat.get(path, flat.get(ENCODER + path))
        if array is None or array.shape != parameter.shape:
            found = "has no" if array is None else f"has {list(array.shape)} for"
            raise UserError(f"the tree {found} {quoted(path)}; head={quoted(head)} needs {list(parameter.shape)}")
        g.weights[path] = np.asarray(array, np.float32, order="C")
    choices = [CHOICES] if head == "multiple-choice" else []
    names = ["input_ids", "sequence_ids" if packed else "attention_mask"]
    names += ["token_type_ids"] if _has_types(config) else []
    inputs = [g.input(name, [ROWS, *choices, LENGTH]) for name in names]
    absolute = config.position_embedding_type == "absolute"
    positions = g.input("position_ids", [ROWS, LENGTH]) if packed and absolute else None
    if choices:
        g.scope("choices")
        # [B, choices, L] -> [B · choices, L]
        inputs = [g.op("Reshape", x, g.op("Concat", [-1], g.op("Shape", x, start=2), axis=0)) for x in inputs]
    if own_decoder and "mlm_head/bias" in g.weights:
        g.weights[DECODER_KERNEL] = np.asarray(g.weights[_decoder(config)].T, order="C")
    ids, mask, *types = inputs
    stem = "" if is_encoder(head, config) else ENCODER
    attended = None if unpadded and not config.is_decoder else mask
    x = encode(g, config, stem, ids, attended, types[0] if types else None, packed=packed, positions=positions)
    (outputs or HEAD_OUTPUTS[head])(g, config, x)
    used = {name for _, names, *_ in g.nodes for name in names}
    g.weights = {name: array for name, array in g.weights.items() if name in used}
    return g


def is_expressible(config: BertConfig) -> bool:
    """Whether a graph of ours can have everything that the model has."""
    return not config.add_cross_attention


def check_expressible(config: BertConfig) -> None:
    """Raises a UserError for what a graph of ours cannot have."""
    if not is_expressible(config):
        raise UserError(
            "add_cross_attention=True: the ONNX form has no input for an encoder's output; expected a model without it"
        )


def _has_types(config: BertConfig) -> bool:
    """RoBERTa's table of types has one row in every published model, and other programs give it no types."""
    return config.has_token_types and not (config.family == "roberta" and config.type_vocab_size == 1)


def _encoder(g: Graph, config: BertConfig, x: str) -> None:
    g.output("last_hidden_state", x, [*_PER_TOKEN, config.hidden_size])


def _pooled_encoder(g: Graph, config: BertConfig, x: str) -> None:
    _encoder(g, config, x)
    if config.has_pooler:
        g.output("pooler_output", pool(g, x, "pooler"), [ROWS, config.hidden_size])


def vocabulary(g: Graph, config: BertConfig, x: str) -> str:
    """The scores of all tokens, [..., D] -> [..., V]."""
    x = dense(g, x, "mlm_head/transform")
    x = layer_norm(g, activation(g, x, config.mlm_act, "mlm_head/activation"), "mlm_head/LayerNorm", config)
    g.scope("mlm_head")
    own = DECODER_KERNEL in g.weights
    kernel = DECODER_KERNEL if own else g.op("Transpose", _decoder(config), perm=[1, 0])
    return g.op("Add", g.op("MatMul", x, kernel), "mlm_head/bias")


def _decoder(config: BertConfig) -> str:
    return f"{ENCODER}embeddings/word_embeddings" if config.tie_word_embeddings else "mlm_head/decoder"


def _masked_lm(g: Graph, config: BertConfig, x: str) -> None:
    g.output("logits", vocabulary(g, config, x), [*_PER_TOKEN, config.vocab_size])


def _pretraining(g: Graph, config: BertConfig, x: str) -> None:
    g.output("prediction_logits", vocabulary(g, config, x), [*_PER_TOKEN, config.vocab_size])
    name = "sop_logits" if config.family == "albert" else "seq_relationship_logits"
    g.output(name, dense(g, pool(g, x, f"{ENCODER}pooler"), "nsp_head"), [ROWS, 2])


def _next_sentence(g: Graph, config: BertConfig, x: str) -> None:
    g.output("logits", dense(g, pool(g, x, f"{ENCODER}pooler"), "nsp_head"), [ROWS, 2])


def _summary(g: Graph, config: BertConfig, x: str) -> str:
    """The vectors [B, D] that a classifier takes."""
    if "pre_classifier/kernel" not in g.weights:
        return pool(g, x, f"{ENCODER}pooler")
    x = dense(g, first_position(g, x, "pre_classifier"), "pre_classifier")
    return activation(g, x, config.pre_classifier_act, "")


def _sequence(g: Graph, config: BertConfig, x: str) -> None:
    g.output("logits", dense(g, _summary(g, config, x), "classifier"), [ROWS, config.num_labels])


def _choice(g: Graph, config: BertConfig, x: str) -> None:
    scores = dense(g, _summary(g, config, x), "classifier")  # [B · choices, 1]
    shape = g.op("Concat", [-1], g.op("Shape", "input_ids", start=1, end=2), axis=0)
    g.output("logits", g.op("Reshape", scores, shape), [ROWS, CHOICES])


def _tokens(g: Graph, config: BertConfig, x: str) -> None:
    g.output("logits", dense(g, x, "classifier"), [*_PER_TOKEN, config.num_labels])


def _detection(g: Graph, config: BertConfig, x: str) -> None:
    x = activation(g, dense(g, x, "detector/transform"), config.hidden_act, "detector/activation")
    g.output("logits", g.op("Squeeze", dense(g, x, "detector/output"), [2]), _PER_TOKEN)


def _answer(g: Graph, config: BertConfig, x: str) -> None:
    scores = dense(g, x, "qa_head")
    for number, name in enumerate(("start_logits", "end_logits")):
        g.output(name, g.op("Gather", scores, number, axis=2), _PER_TOKEN)


HEAD_OUTPUTS: dict[str, Outputs] = {
    "pretraining": _pretraining,
    "mlm": _masked_lm,
    "nsp": _next_sentence,
    "encoder": _pooled_encoder,
    "encoder-no-pooler": _encoder,
    "sequence-classification": _sequence,
    "token-classification": _tokens,
    "question-answering": _answer,
    "multiple-choice": _choice,
    "causal-lm": _masked_lm,
    "replaced-token-detection": _detection,
}
