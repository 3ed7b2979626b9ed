"""Write a folder that transformers, and everything built on it, loads without a word; read it back before it counts."""

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.card import model_card
from bert_jax.interop.names import architecture_of, to_stored
from bert_jax.interop.names_table import ENCODER
from bert_jax.interop.read import from_stored
from bert_jax.interop.safetensors import STEP, TensorFile, write_tensors, written_by_us
from bert_jax.interop.tree import as_numpy
from bert_jax.interop.weights import SAFETENSORS as WEIGHTS

if TYPE_CHECKING:
    from bert_jax.data.tokenizer import Tokenizer

FILES = (
    "config.json",
    WEIGHTS,
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "README.md",
)
"""All that an export holds; a folder with anything else in it is somebody's and is not overwritten."""


def save_pretrained(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Mapping[str, Any],
    tokenizer: "Tokenizer | None",
    *,
    head: str = "pretraining",
    step: int | None = None,
    card: Mapping[str, Any] | str | None = None,
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
        head: "pretraining", "mlm", "nsp" or "encoder".
        step: the training step of these parameters, kept in the weights' metadata; `info` tells it.
        card: facts for README.md (a mapping becomes a table), or the text that goes under its title.

    Returns:
        The directory.

    Raises:
        UserError: a foreign folder is in the way, parameters are missing, of a wrong shape or not finite, the
            vocabulary is larger than the model's, or what was read back is not what was written.
    """
    if "://" in os.fspath(directory):
        raise UserError(f"{directory}: exports are written to a local folder; copy it from there")
    target = Path(directory)
    _refuse_foreign(target)
    _check_vocabulary(config, tokenizer)
    flat = as_numpy(params)
    for path, array in flat.items():
        if not np.isfinite(array).all():
            raise UserError(f"{path} holds values that are not finite; such weights are not written")
    tensors = to_stored(flat, config, head)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{target.name}.writing-{uuid.uuid4().hex[:8]}"
    try:
        draft.mkdir()  # not mkdtemp: its folders are closed to everybody else
        write_tensors(draft / WEIGHTS, tensors, {} if step is None else {STEP: str(step)})
        _write_text(draft / "config.json", json.dumps(config_json(config, head), indent=2) + "\n")
        if tokenizer is not None:
            _save_tokenizer(tokenizer, draft, config)
        _write_text(draft / "README.md", model_card(config, head, card, name=target.resolve().name))
        _compare(draft, config, head, flat, tensors)
        _rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def config_json(config: BertConfig, head: str) -> dict[str, Any]:
    """What goes into config.json: transformers checks types strictly, and loads in the dtype that it names."""
    fields = config.to_json()
    for name, value in fields.items():
        if name in _FLOATS and value is not None:
            fields[name] = float(value)
    return {"architectures": [architecture_of(config, head)], **fields, "dtype": "float32"}


_FLOATS = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "initializer_range",
    "layer_norm_eps",
}


def _refuse_foreign(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir() or target.is_symlink():
        raise UserError(f"{target}: is in the way and is no folder; name another place")
    names = sorted(path.name for path in target.iterdir())
    strangers = [name for name in names if name not in FILES]
    if names and (strangers or not written_by_us(target / WEIGHTS)):
        what = f"holds {strangers[0]!r}" if strangers else f"its {WEIGHTS} was not written by bert_jax"
        raise UserError(f"{target}: {what}; only a former export is replaced, so name another folder or remove it")


def _check_vocabulary(config: BertConfig, tokenizer: "Tokenizer | None") -> None:
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model's table {config.vocab_size} rows: "
            "ids past its end would have no embedding"
        )


def _compare(
    folder: Path, config: BertConfig, head: str, flat: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> None:
    """Out and in again must be the same bits: in the file, and in our tree."""
    if BertConfig.from_json(folder / "config.json").to_json() != config.to_json():
        raise UserError(f"{folder / 'config.json'}: reads back as another config")
    with TensorFile(folder / WEIGHTS) as written:
        if set(written) != set(tensors) or not written.verify():
            raise UserError(f"{folder / WEIGHTS}: what was read back is not what was written; is the disk sound?")
        again, report = from_stored(written, config, head)
    report.check()
    for path, array in again.items():
        original = flat.get(path, flat.get(ENCODER + path))
        if original is None or not _same_bits(array, np.asarray(original, dtype=np.float32)):
            raise UserError(f"{folder / WEIGHTS}: {path} reads back with other bits than were written")


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def _rename(draft: Path, target: Path) -> None:
    """Put the draft in the target's place: at no moment does the name stand for half a folder."""
    for path in (*draft.iterdir(), draft):
        _fsync(path)
    if target.is_dir():
        former = draft.with_name(draft.name.replace(".writing-", ".former-"))
        target.rename(former)
        draft.rename(target)
        shutil.rmtree(former)
    else:
        draft.rename(target)
    _fsync(target.parent)


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode())  # not write_text: line ends are the same on every system


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _save_tokenizer(tokenizer: "Tokenizer", folder: Path, config: BertConfig) -> None:
    """The tokenizer's own files, as whoever loads the folder expects them.

    With the model's length (absent, transformers takes it for unlimited), and with "[MASK]" in a text meaning the
    token, also where the training text was prepared by Google's rules, which split it.
    """
    tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    limit = config.longest_input
    fields["model_max_length"] = min(int(fields.get("model_max_length") or limit), limit)
    fields["split_special_tokens"] = False
    _write_text(path, json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
