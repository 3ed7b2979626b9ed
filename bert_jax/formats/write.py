"""Write a folder that transformers, and everything built on it, loads without a word; read it back before it counts."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.card import model_card
from bert_jax.formats.names.parameters import architecture_of, head_in, is_encoder, to_stored
from bert_jax.formats.names.table import ENCODER
from bert_jax.formats.new_folder import CARD, new_folder, write_text
from bert_jax.formats.read import read_arrays, select
from bert_jax.formats.safetensors import STEP
from bert_jax.formats.sentence_transformers import check_pooling, write_modules
from bert_jax.formats.tensorflow.google import google_config, write_google
from bert_jax.formats.weights import open_weights, shard_bytes, write_weights
from bert_jax.tree import as_numpy

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer


def save_pretrained(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Mapping[str, Any],
    tokenizer: "Tokenizer | None",
    *,
    head: str | None = None,
    step: int | None = None,
    card: Mapping[str, Any] | str | None = None,
    max_shard_size: int | str = "5GB",
    sentence_transformers: str | None = None,
    tf1: bool = False,
) -> Path:
    """Write config.json, model.safetensors, the tokenizer's files and a model card, in Hugging Face's layout.

    No folder loads silently into every class, so one is written for one head, and `architectures` names its class.
    Everything is written beside `directory` under a hidden name, read back and compared bit by bit, and renamed: a
    folder of the final name is whole. A former export at that place is replaced, any other folder refused.

    Args:
        directory: where to; its parent is made if need be.
        config: the architecture.
        params: our tree, NumPy or JAX arrays; stored as float32. It may hold more than `head` needs.
        tokenizer: saved beside the weights; None leaves its files out.
        head: one that the family has, as "pretraining", "mlm", "encoder", "sequence-classification"; None: by what is
            in `params` ("multiple-choice" has to be named, it has the parameters of "sequence-classification").
        step: the training step of these parameters, kept in the weights' metadata; `info` tells it.
        card: facts for README.md (a mapping becomes a table), or the text that goes under its title.
        max_shard_size: bytes, or "500MB"; larger weights are cut into files of this size at most, with an index.
        sentence_transformers: how vectors of a text are made, "mean", "cls" or "max", with "+normalize" of length one:
            writes what sentence-transformers wants too. For an encoder alone.
        tf1: write Google's form instead: bert_config.json, bert_model.ckpt.* and vocab.txt, for BERT and ALBERT.

    Returns:
        The directory.

    Raises:
        UserError: a foreign folder is in the way, parameters are missing, of a wrong shape or not finite, the
            vocabulary is larger than the model's, an option that the form asked for cannot say, or what was read back
            is not what was written.
    """
    flat = as_numpy(params)
    if head is None:
        head = head_in(flat, config)
    config = _as_written(config, head)
    most = shard_bytes(max_shard_size)
    _check_form(config, head, sentence_transformers, tf1)
    _check_values(flat, config, tokenizer)
    tensors = to_stored(flat, config, head)
    with new_folder(directory) as folder:
        if tf1:
            write_google(folder, config, tensors)
        else:
            write_weights(folder, tensors, {} if step is None else {STEP: str(step)}, most)
            write_text(folder / "config.json", json.dumps(config_json(config, head), indent=2) + "\n")
            if BertConfig.from_json(folder / "config.json").to_json() != config.to_json():
                raise UserError(f"{folder / 'config.json'}: reads back as another config")
        if tokenizer is not None:
            _save_tokenizer(tokenizer, folder, config)
        if sentence_transformers is not None:
            write_modules(folder, sentence_transformers, config.hidden_size, _longest(config, tokenizer))
        name = Path(directory).resolve().name
        form = "tf1" if tf1 else "sentence-transformers" if sentence_transformers else "hf"
        write_text(folder / CARD, model_card(config, head, card, name=name, form=form))
        _compare(folder, config, head, flat, tensors)
    return Path(directory)


def config_json(config: BertConfig, head: str) -> dict[str, Any]:
    """What goes into config.json: transformers checks types strictly, and loads in the dtype that it names."""
    fields = config.to_json()
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool) and name.endswith(_FLOATS):
            fields[name] = float(value)
    return {"architectures": [architecture_of(config, head)], **fields, "dtype": "float32"}


_FLOATS = ("dropout", "dropout_prob", "probs_dropout_prob", "initializer_range", "layer_norm_eps")
_TWO_OUTPUTS = ("question-answering", "pretraining")


def _as_written(config: BertConfig, head: str) -> BertConfig:
    """Without labels where transformers would take their number for that of other outputs, which are two."""
    return config.replace(labels=BertConfig().labels, problem_type=None) if head in _TWO_OUTPUTS else config


def _check_form(config: BertConfig, head: str, pooling: str | None, tf1: bool) -> None:
    if tf1:
        if pooling is not None:
            raise UserError("tf1 and sentence_transformers: a folder has one form; write two")
        google_config(config)
    if pooling is not None:
        check_pooling(pooling)
        if not is_encoder(head, config):
            raise UserError(f"sentence_transformers: takes an encoder alone, and head is {head!r}; give head='encoder'")


def _check_values(flat: Mapping[str, np.ndarray], config: BertConfig, tokenizer: "Tokenizer | None") -> None:
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model's table {config.vocab_size} rows: "
            "ids past its end would have no embedding"
        )
    for path, array in flat.items():
        if not np.isfinite(array).all():
            raise UserError(f"{path} holds values that are not finite; such weights are not written")


def _compare(
    folder: Path, config: BertConfig, head: str, flat: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> None:
    """Out and in again must be the same bits: in the file, and in our tree."""
    with open_weights(folder, config.model_type) as written:
        if len(written) != len(tensors) or written.verify() is False:
            raise UserError(f"{written.path}: what was read back is not what was written; is the disk sound?")
        sources, report = select(written, config, head)
        report.check()
        for path, array in read_arrays(written, sources):
            original = flat.get(path, flat.get(ENCODER + path))
            if original is None or not _same_bits(array, np.asarray(original, dtype=np.float32)):
                raise UserError(f"{written.path}: {path} reads back with other bits than were written")


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def _longest(config: BertConfig, tokenizer: "Tokenizer | None") -> int:
    return min(config.longest_input, (tokenizer and tokenizer.max_length) or config.longest_input)


def _save_tokenizer(tokenizer: "Tokenizer", folder: Path, config: BertConfig) -> None:
    """The tokenizer's own files, as whoever loads the folder expects them.

    With the model's length (absent, transformers takes it for unlimited), and with "[MASK]" in a text meaning the
    token, also where the training text was prepared by Google's rules, which split it.
    """
    tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    fields = read_object(path)
    limit = config.longest_input
    fields["model_max_length"] = min(int(fields.get("model_max_length") or limit), limit)
    fields["split_special_tokens"] = False
    write_text(path, json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
