"""A model of transformers in a folder of each format that we read, written by the programs that write such files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import flax.traverse_util
import numpy as np
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.formats.names.parameters import FAMILIES
from bert_jax.formats.tensorflow.bundle import write_bundle
from bert_jax.formats.tensorflow.google import google_config
from bert_jax.formats.tensorflow.names import to_tf1
from tests.parity.test_families_transformers import TYPES, config_of, make_inputs, reference
from tests.parity.test_flax_names_transformers import in_flax

__all__ = ["CASES", "FORMATS", "config_of", "is_written", "make_inputs", "reference", "their_class", "write_folder"]

CASES = [
    (model_type, head)
    for model_type in TYPES
    for head in FAMILIES[BertConfig(model_type=model_type).family].heads
    if head != "encoder-no-pooler" or BertConfig(model_type=model_type).has_pooler  # else the same as the encoder
]


def safetensors(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def safetensors_shards(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def torch_bin(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def torch_bin_before_1_6(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def torch_bin_shards(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    in_shards(model.state_dict(), folder / "pytorch_model.bin", torch.save)


def flax_msgpack(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    save_flax(in_flax(model), folder / "flax_model.msgpack")


def flax_msgpack_shards(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    in_shards(in_flax(model), folder / "flax_model.msgpack", save_flax)


def google(model: Any, folder: Path) -> None:
    folder.mkdir()
    name, fields = google_config(our_config(model))
    (folder / name).write_text(json.dumps(fields))
    parameters = {key: value.detach().numpy() for key, value in model.named_parameters()}
    write_bundle(folder / "bert_model.ckpt", to_tf1(parameters, our_config(model).family))


FORMATS: dict[str, Callable[[Any, Path], None]] = {
    "model.safetensors": safetensors,
    "model.safetensors, shards": safetensors_shards,
    "pytorch_model.bin": torch_bin,
    "pytorch_model.bin, before torch 1.6": torch_bin_before_1_6,
    "pytorch_model.bin, shards": torch_bin_shards,
    "flax_model.msgpack": flax_msgpack,
    "flax_model.msgpack, shards": flax_msgpack_shards,
    "bert_model.ckpt": google,
}


def is_written(form: str, model_type: str, head: str) -> bool:
    """Whether such files exist: Google's code has two families and no decoder."""
    return form != "bert_model.ckpt" or (model_type in ("bert", "albert") and head != "causal-lm")


def write_folder(form: str, model: Any, folder: Path) -> Path:
    """Config and weights of a model, in that format."""
    transformers.logging.disable_progress_bar()
    FORMATS[form](model, folder)
    return folder


def their_class(name: str) -> Any:
    return getattr(transformers, name)


def our_config(model: Any) -> BertConfig:
    return BertConfig.from_json(json.loads(model.config.to_json_string(use_diff=False)))


def in_shards(tensors: Any, path: Path, save: Callable[[Any, Path], Any]) -> None:
    """Three files and the index, as transformers names them."""
    keys = list(tensors)
    places = {key: f"{path.stem}-{1 + 3 * i // len(keys):05d}-of-00003{path.suffix}" for i, key in enumerate(keys)}
    for name in dict.fromkeys(places.values()):
        save({key: tensors[key] for key in keys if places[key] == name}, path.parent / name)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (path.parent / f"{path.name}.index.json").write_text(json.dumps(index))


def save_flax(flat: dict[str, np.ndarray], path: Path) -> None:
    path.write_bytes(flax.serialization.to_bytes(flax.traverse_util.unflatten_dict(flat, sep="/")))
