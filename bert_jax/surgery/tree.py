"""A parameter tree with or without a head above the encoder: reading and replacing one subtree of it."""

from collections.abc import Mapping
from typing import Any


def encoder_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The encoder's own tree (embeddings, encoder, pooler): `params["bert"]` of a head's tree, else all of it."""
    return params.get("bert", params)


def with_encoder(params: Mapping[str, Any], encoder: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with another encoder's tree; what did not change is shared."""
    return {**params, "bert": dict(encoder)} if "bert" in params else dict(encoder)
