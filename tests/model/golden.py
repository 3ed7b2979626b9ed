"""Golden weights: each follows from the name that transformers gives it, so a swapped or transposed one cannot hide."""

import re
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

IDS = jnp.array([[2, 5, 9, 4, 1], [3, 6, 10, 0, 0]])
MASK = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
TYPES = jnp.array([[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]])

_ENCODER = (
    (r"layer_(\d+)/", r"layer/\1/"),
    (r"attention/(query|key|value)/", r"attention/self/\1/"),
    (r"attention/output/", "attention/output/dense/"),
    (r"attention/LayerNorm", "attention/output/LayerNorm"),
    (r"feed_forward/(intermediate|output)/", r"\1/dense/"),
    (r"feed_forward/LayerNorm", "output/LayerNorm"),
)
_LEAVES = ((r"(_embeddings)$", r"\1/weight"), (r"/(kernel|scale)$", "/weight"))
# Independent of bert_jax/formats/names, which they check.
_RENAMES = {
    "bert": (
        ("cross_attention/", "crossattention/"),
        ("attention/distance_embedding", "attention/self/distance_embedding/weight"),
        *_ENCODER,
        ("pooler/", "pooler/dense/"),
        ("mlm_head/transform/", "cls/predictions/transform/dense/"),
        ("mlm_head/LayerNorm", "cls/predictions/transform/LayerNorm"),
        ("mlm_head/", "cls/predictions/"),
        ("nsp_head/", "cls/seq_relationship/"),
        *_LEAVES,
    ),
    "roberta": (
        *_ENCODER,
        ("^bert/", "roberta/"),
        ("^mlm_head/transform/", "lm_head/dense/"),
        ("^mlm_head/LayerNorm/", "lm_head/layer_norm/"),
        ("^mlm_head/", "lm_head/"),
        *_LEAVES,
    ),
    "albert": (
        ("^bert/", "albert/"),
        ("/projection/", "/embedding_hidden_mapping_in/"),
        (r"/layer_(\d+)/", r"/albert_layer_groups/\1/albert_layers/0/"),
        ("attention/output/", "attention/dense/"),
        ("feed_forward/intermediate/", "ffn/"),
        ("feed_forward/output/", "ffn_output/"),
        ("feed_forward/LayerNorm/", "full_layer_layer_norm/"),
        ("^mlm_head/transform/", "predictions/dense/"),
        ("^mlm_head/", "predictions/"),
        ("^nsp_head/", "sop_classifier/classifier/"),
        *_LEAVES,
    ),
    "distilbert": (
        ("^bert/", "distilbert/"),
        (r"/encoder/layer_(\d+)/", r"/transformer/layer/\1/"),
        ("attention/(q|k|v)(uery|ey|alue)/", r"attention/\1_lin/"),
        ("attention/output/", "attention/out_lin/"),
        ("attention/LayerNorm/", "sa_layer_norm/"),
        ("feed_forward/intermediate/", "ffn/lin1/"),
        ("feed_forward/output/", "ffn/lin2/"),
        ("feed_forward/LayerNorm/", "output_layer_norm/"),
        ("^mlm_head/transform/", "vocab_transform/"),
        ("^mlm_head/LayerNorm/", "vocab_layer_norm/"),
        ("^mlm_head/", "vocab_projector/"),
        *_LEAVES,
    ),
}


def their_name(path: tuple[Any, ...], family: str = "bert") -> str:
    """transformers' name of the parameter at a path of `jax.tree_util`."""
    name = "/".join(part.key for part in path)
    for pattern, replacement in _RENAMES[family]:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")


def golden_params(model: Any) -> Any:
    """The golden weights of a model, in its own tree."""

    def leaf(path: tuple[Any, ...], shape: jax.ShapeDtypeStruct) -> np.ndarray:
        name, is_kernel = their_name(path, model.config.family), path[-1].key == "kernel"
        n = np.arange(np.prod(shape.shape))
        values = 0.3 * np.sin(0.37 * n + (zlib.crc32(name.encode()) % 1000) / 100) + name.endswith("orm.weight")
        values = values.reshape(shape.shape[::-1] if is_kernel else shape.shape)
        return np.asarray(values.T if is_kernel else values, np.float32)

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))["params"]
    return jax.tree_util.tree_map_with_path(leaf, shapes)
