"""Names of transformers' Flax models -> names of its torch models: BERT, RoBERTa, ALBERT, DistilBERT, all heads.

The Flax modules were named after the torch modules, so that a path says the same in both. What differs is the last
word, and that a dense kernel is [in, out] there and [out, in] in torch. Source: transformers 4,
`modeling_flax_{bert,roberta,albert,distilbert}.py` and `modeling_flax_pytorch_utils.py`
(`load_flax_weights_in_pytorch_model`).
"""

from bert_jax.errors import UserError
from bert_jax.interop.stored import Native, Stored

# gamma, beta, weight: LayerNorm and Embed as they were before transformers 4.6.
_LAST_WORDS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "gamma": "weight", "beta": "bias"}
_ENCODERS = {
    "bert": ("bert", "embeddings", "encoder", "pooler"),
    "roberta": ("roberta", "embeddings", "encoder", "pooler"),
    "albert": ("albert", "embeddings", "encoder", "pooler"),
    "distilbert": ("distilbert", "embeddings", "transformer"),
}
_ENCODERS |= {"xlm-roberta": _ENCODERS["roberta"], "camembert": _ENCODERS["roberta"]}


def hf_names(stored: Stored, model_type: str | None = None, separator: str = "/") -> dict[str, Native]:
    """Torch's name of every array, and where it comes from: for `Renamed`.

    Names of a whole model ("bert/encoder/...") and of an encoder alone ("encoder/...") stay what they are: torch's
    files have both, too. A "params" above everything is taken away. What has no counterpart keeps its words.

    Args:
        stored: a `FlaxMsgpack`, or shards of them; or a .safetensors file of Flax, whose metadata says "flax".
        model_type: config.json's; None: any of those known.
        separator: of the path's words: "/" in a msgpack file, "." in .safetensors.

    Returns:
        Hugging Face's torch name -> (name in `stored`, whether its two axes are to be swapped).

    Raises:
        UserError: no encoder of this type is among the names, or two of them mean the same.
    """
    if model_type is not None and model_type not in _ENCODERS:
        raise UserError(f"{stored.path}: model_type {model_type!r} is not read; {', '.join(_ENCODERS)} are")
    paths = {name: tuple(name.split(separator)) for name in stored}
    if all(path[0] == "params" for path in paths.values()):
        paths = {name: path[1:] for name, path in paths.items()}
    known = {part for kind, parts in _ENCODERS.items() if model_type in (None, kind) for part in parts}
    tops = dict.fromkeys(path[0] for path in paths.values() if path)
    if not known & set(tops):
        expected = f"a {model_type} has {', '.join(_ENCODERS[model_type])}" if model_type else "no BERT has such names"
        raise UserError(f"{stored.path}: its arrays are in {', '.join([*tops][:5])}; {expected}")
    names: dict[str, Native] = {}
    for name, path in paths.items():
        key = ".".join((*path[:-1], _LAST_WORDS.get(path[-1], path[-1]))) if path else name
        if key in names:
            raise UserError(f"{stored.path}: {names[key].name} and {name} are both torch's {key}: keep one of them")
        names[key] = Native(name, transposed=path[-1:] == ("kernel",) and len(stored.shape(name)) == 2)
    return _with_one_decoder_bias(names)


def _with_one_decoder_bias(names: dict[str, Native]) -> dict[str, Native]:
    """Until transformers 4.5 the bias of the vocabulary was the decoder's; since then it stands beside it."""
    old, new = "cls.predictions.decoder.bias", "cls.predictions.bias"
    if old in names and new not in names:
        return {new if key == old else key: native for key, native in names.items()}
    return names
