"""A BERT encoder's safetensors as the parameters of transformers' Flax model: its own converter needs torch."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file


def flax_weights(path: Path) -> dict[str, Any]:
    """Names with dots as a nested dict; kernels transposed, as in transformers 4's `modeling_flax_pytorch_utils`."""
    tree: dict[str, Any] = {}
    for name, array in load_file(path).items():
        *parents, leaf = name.removeprefix("bert.").split(".")
        if leaf == "position_ids" or (parents and parents[0] == "cls"):
            continue
        if leaf == "weight":
            embedding, norm = parents[-1].endswith("embeddings"), parents[-1] == "LayerNorm"
            leaf = "embedding" if embedding else "scale" if norm else "kernel"
            array = array if embedding or norm else np.ascontiguousarray(array.T)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = array
    return tree
