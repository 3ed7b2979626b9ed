"""Write a folder that transformers loads without warnings, and read it back to check it before it gets its name."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config import BertConfig, is_int
from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.formats.card import model_card
from bert_jax.formats.names.families import ENCODER
from bert_jax.formats.names.parameters import architecture_of, head_in, is_encoder, to_stored
from bert_jax.formats.new_folder import CARD, new_folder, write_text
from bert_jax.formats.read import read_arrays, select
from bert_jax.formats.safetensors import STEP
from bert_jax.formats.sentence_transformers import Vectors, check_pooling, vectors_as, write_modules
from bert_jax.formats.tensorflow.google import google_config, write_google
from bert_jax.formats.weights import open_weights, shard_bytes, write_weights
from bert_jax.tree import as_numpy, first_not_finite

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer


logger = logging.getLogger(__name__)


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
    sentence_transformers: Vectors | str | None = None,
    tf1: bool = False,
) -> Path:
    """Writes config.json, model.safetensors, the tokenizer's files and a model card, in Hugging Face's layout.

    The folder is written for one head, because no folder loads into every class of transformers without warnings;
    `architectures` in config.json names the head's class. The files are written to a hidden folder beside `directory`,
    read back and compared bit by bit; then the folder is renamed. So `directory` is never incomplete. A former export
    at that place is replaced; any other existing folder is an error.

    Args:
        directory: the folder to write; its parent is created if it does not exist.
        config: the architecture.
        params: our tree of NumPy or JAX arrays; stored as float32. It may hold more than `head` needs.
        tokenizer: its files are written beside the weights; None: no tokenizer files.
        head: a head of the family, such as "pretraining", "mlm", "encoder", "sequence-classification"; None: the head
            whose parameters `params` has. ("multiple-choice" must be named: it has the same parameters as
            "sequence-classification".)
        step: the training step of these parameters, written to the weights' metadata; the verb `info` prints it. Not
            for tf1, which has no place for it.
        card: how the model was trained, for README.md: facts, which become a table, or Markdown, which is copied.
        max_shard_size: in bytes, or a text such as "500MB"; larger weights are split into files of at most this size,
            with an index.
        sentence_transformers: how to pool tokens into a text's vector: "mean", "cls", "max" or
            "mean_sqrt_len_tokens", with "+normalize" after it for vectors of length one; or what `vectors_of` returned.
            Also writes the files that sentence-transformers needs. Needs an encoder without a head.
        tf1: write Google's form instead: bert_config.json, bert_model.ckpt.* and vocab.txt, for BERT and ALBERT.

    Returns:
        The directory.

    Raises:
        UserError: an argument of another kind; `directory` exists and is not a former export; parameters are missing,
            have a wrong shape or are not finite; the tokenizer has more tokens than the model; the chosen form cannot
            express an option; or the files read back differ from what was written.
    """
    if not isinstance(config, BertConfig):
        raise UserError(f"config is a {type(config).__name__}; expected a BertConfig, before params")
    if isinstance(tokenizer, str | os.PathLike):
        raise UserError(f"tokenizer={str(tokenizer)!r}: expected a Tokenizer (Tokenizer.load reads one), or None")
    flat = as_numpy(params)
    if head is None:
        head = head_in(flat, config)
    config = as_written(config, head)
    most = shard_bytes(max_shard_size)
    vectors = vectors_as(sentence_transformers)
    _check_form(config, head, vectors, tf1, step)
    check_values(flat, config, tokenizer)
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        logger.warning("head_size=%d: transformers has no such option and cannot load this folder", config.head_dim)
    tensors = to_stored(flat, config, head)
    with new_folder(directory) as folder:
        if tf1:
            write_google(folder, config, tensors)
        else:
            write_weights(folder, tensors, {} if step is None else {STEP: str(step)}, most)
            write_text(folder / "config.json", json.dumps(config_json(config, head), indent=2) + "\n")
            if BertConfig.from_json(folder / "config.json").to_json() != config.to_json():
                raise UserError(f"{folder / 'config.json'}: the config read back differs from the one written")
        if tokenizer is not None:
            save_tokenizer(tokenizer, folder, config)
            if tf1 and not any((folder / name).is_file() for name in ("vocab.txt", "spiece.model")):
                missing = "put the vocabulary's spiece.model beside it"
                logger.warning("%s: Google's code cannot read its tokenizer.json; %s", directory, missing)
        if vectors is not None:
            write_modules(folder, vectors, config.hidden_size, longest_text(config, tokenizer))
        name = Path(directory).resolve().name
        form = "tf1" if tf1 else "sentence-transformers" if vectors else "hf"
        write_text(folder / CARD, model_card(config, head, card, name=name, form=form))
        _compare(folder, config, head, flat, tensors)
    return Path(directory)


def config_json(config: BertConfig, head: str) -> dict[str, Any]:
    """The fields of config.json: floats are written as floats, because transformers checks types strictly, and "dtype"
    is float32, because transformers loads in that dtype.
    """
    fields = config.to_json()
    for name, value in fields.items():
        if is_int(value) and name.endswith(_FLOATS):
            fields[name] = float(value)
    return {"architectures": [architecture_of(config, head)], **fields, "dtype": "float32"}


_FLOATS = ("dropout", "dropout_prob", "probs_dropout_prob", "initializer_range", "layer_norm_eps")
_TWO_OUTPUTS = ("question-answering", "pretraining")


def as_written(config: BertConfig, head: str) -> BertConfig:
    """The config without labels for heads with two outputs, whose number transformers would take from the labels."""
    return config.replace(labels=BertConfig().labels, problem_type=None) if head in _TWO_OUTPUTS else config


def _check_form(config: BertConfig, head: str, vectors: Vectors | None, tf1: bool, step: int | None) -> None:
    if tf1:
        if step is not None:
            raise UserError(f"tf1 and step={step}: Google's form records no step; leave it out, or say it in card")
        if vectors is not None:
            raise UserError("tf1 and sentence_transformers: a folder has one form; write two folders")
        google_config(config)
    if vectors is not None:
        check_pools(config, head, vectors)


def check_pools(config: BertConfig, head: str, vectors: Vectors) -> None:
    """Raises a UserError if sentence-transformers has no such pooling, or the model is not an encoder."""
    check_pooling(vectors.pooling)
    if not is_encoder(head, config):
        raise UserError(f"sentence_transformers needs an encoder without a head: expected 'encoder', found {head!r}")


def check_values(flat: Mapping[str, np.ndarray], config: BertConfig, tokenizer: "Tokenizer | None") -> None:
    """Raises a UserError if the tokenizer has more tokens than the model, or a value is not finite."""
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's table has {config.vocab_size} rows: "
            "tokens with higher ids would have no embedding"
        )
    if (path := first_not_finite(flat.items())) is not None:
        raise UserError(f"{path} holds values that are not finite; bert_jax does not write such weights")


def _compare(
    folder: Path, config: BertConfig, head: str, flat: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> None:
    """Reads the folder back and checks that every array has the same bits as the original."""
    with open_weights(folder, config.model_type) as written:
        if len(written) != len(tensors) or written.verify() is False:
            raise UserError(f"{written.path}: the file differs from what was written to it; is the disk faulty?")
        sources, report = select(written, config, head)
        report.check()
        for path, array in read_arrays(written, sources):
            original = flat.get(path, flat.get(ENCODER + path))
            if original is None or not _same_bits(array, np.asarray(original, dtype=np.float32)):
                raise UserError(f"{written.path}: {path} has other bits than were written to it")


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def longest_text(config: BertConfig, tokenizer: "Tokenizer | None") -> int:
    """How many tokens of a text a model reads: what its positions and its tokenizer both allow."""
    known = None if tokenizer is None else tokenizer.max_length
    return config.longest_input if known is None else min(config.longest_input, known)


def save_tokenizer(tokenizer: "Tokenizer", folder: Path, config: BertConfig) -> None:
    """Writes the tokenizer's files with three settings that other programs need.

    "model_input_names" has no token types if the model has one type or none: such a model has no row for the second,
    and DistilBERT takes none. "model_max_length" is at most the model's longest input, in tokens, because transformers
    sets no limit without it. "split_special_tokens" is false, so that "[MASK]" in a text means the token, even if the
    training text was prepared by Google's rules, which split it.
    """
    tokenizer = tokenizer if config.tells_token_types else tokenizer.without_token_types()
    tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    fields = read_object(path)
    limit = config.longest_input
    fields["model_max_length"] = min(int(fields.get("model_max_length") or limit), limit)
    fields["split_special_tokens"] = False
    write_text(path, json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
