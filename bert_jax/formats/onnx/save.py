"""Write a folder with a model in ONNX, its config and its tokenizer, placed where other programs look for them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.layout import graph_inputs
from bert_jax.errors import UserError
from bert_jax.formats.card import model_card
from bert_jax.formats.names.parameters import head_in
from bert_jax.formats.new_folder import CARD, new_folder, write_text
from bert_jax.formats.onnx.graph import Graph, import_onnx, write_graph
from bert_jax.formats.onnx.int8 import import_nncf, import_onnxruntime, quantize, quantize_calibrated
from bert_jax.formats.onnx.model import build_graph, check_expressible
from bert_jax.formats.safetensors import STEP
from bert_jax.formats.sentence_transformers import Vectors, vectors_as, write_modules
from bert_jax.formats.write import as_written, check_pools, check_values, config_json, longest_text, save_tokenizer
from bert_jax.tree import as_numpy

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer

MODEL, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
"""Where sentence-transformers and transformers.js look; optimum finds them there too."""


def save_onnx(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Mapping[str, Any],
    tokenizer: "Tokenizer | None",
    *,
    head: str | None = None,
    step: int | None = None,
    card: Mapping[str, Any] | str | None = None,
    sentence_transformers: Vectors | str | None = None,
    int8: bool = False,
    calibration: Sequence[str] = (),
) -> Path:
    """Writes onnx/model.onnx, config.json, the tokenizer's files and a model card.

    The graph takes any number of rows and any length (`build_graph` has its inputs and outputs); it is read back, and
    every parameter compared bit by bit. Otherwise as `save_pretrained`: `directory` is never incomplete, and only a
    former export is replaced.

    Args:
        directory, config, params, tokenizer, head, step, card: as in `save_pretrained`.
        sentence_transformers: as in `save_pretrained`, for `SentenceTransformer(directory, backend="onnx")`. The graph
            has no pooler then, because nothing reads it.
        int8: also write onnx/model_quantized.onnx, with 8-bit products: the range of the activations is found in each
            call, which suits onnxruntime.
        calibration: with int8, texts on which the ranges are found once, which suits OpenVINO (`quantize_calibrated`);
            some hundreds.

    Returns:
        The directory.

    Raises:
        UserError: as `save_pretrained`; or `onnx`, for int8 also `onnxruntime`, is not installed, or `nncf` for a
            calibration; a calibration without int8 or without a tokenizer; a model with cross-attention.
    """
    import_onnx()
    if int8:
        import_onnxruntime()
    if calibration:
        if not int8:
            raise UserError("calibration: finds the ranges of int8; say int8=True")
        import_nncf()
        if tokenizer is None:
            raise UserError("calibration: texts need the model's tokenizer, which it lacks; leave them out")
    flat = as_numpy(params)
    head = head_in(flat, config) if head is None else head
    config = as_written(config, head)
    vectors = vectors_as(sentence_transformers)
    if vectors is not None:
        check_pools(config, head, vectors)
        head = "encoder-no-pooler"
    check_values(flat, config, tokenizer)
    check_expressible(config)
    metadata = {} if step is None else {STEP: str(step)}
    with new_folder(directory) as folder:
        (folder / MODEL).parent.mkdir()
        write_graph(folder / MODEL, build_graph(config, flat, head), metadata)
        if int8:
            graph = build_graph(config, flat, head, own_decoder=True)
            if calibration:
                assert tokenizer is not None
                reader = tokenizer.lower_cased() if vectors and vectors.lower_case else tokenizer
                prompt = vectors.prompt if vectors and vectors.include_prompt else ""
                texts = [prompt + text for text in calibration]
                inputs = _calls(graph, texts, reader, longest_text(config, tokenizer), head)
                quantize_calibrated(folder / QUANTIZED, graph, inputs)
            else:
                quantize(folder / QUANTIZED, graph)
        write_text(folder / "config.json", json.dumps(_config(config, head), indent=2) + "\n")
        if tokenizer is not None:
            save_tokenizer(tokenizer, folder, config)
        if vectors is not None:
            write_modules(folder, vectors, config.hidden_size, longest_text(config, tokenizer))
        name = Path(directory).resolve().name
        write_text(folder / CARD, model_card(config, head, card, name=name, form="onnx"))
    return Path(directory)


def _calls(
    graph: Graph, texts: Sequence[str], tokenizer: "Tokenizer", longest: int, head: str
) -> list[dict[str, np.ndarray]]:
    """The inputs of a call for each text."""
    calls = []
    for text in texts:
        row = tokenizer([text], padding="longest", max_length=longest)
        calls.append(graph_inputs(row, graph.inputs))
        if head == "multiple-choice":
            calls[-1] = {name: array[:, None] for name, array in calls[-1].items()}
    return calls


def _config(config: BertConfig, head: str) -> dict[str, Any]:
    """config.json, with the labels of a classifier even where transformers would supply the same: others do not."""
    fields = config_json(config, head)
    if head in ("sequence-classification", "token-classification"):
        fields["id2label"] = {str(i): label for i, label in enumerate(config.labels)}
        fields["label2id"] = {label: i for i, label in enumerate(config.labels)}
    return fields
