"""The files that sentence-transformers needs beside a model: which layers turn a text into a vector.

They are written in the layout of versions 2 to 5, which version 6 reads too; older versions may not read version 6's.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, quoted
from bert_jax.files import read_json, read_object
from bert_jax.formats.new_folder import write_text

NORMALIZED = "+normalize"
"""Suffix of a pooling: vectors are scaled to length one."""

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
POOLINGS = tuple(_FLAGS)
_ALL_FLAGS = _FLAGS | {"weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken"}

MODULES, FIELDS, POOLING = "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"
VECTOR = "sentence_embedding"
"""What version 6 calls a text's vector."""
SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names that the file with the maximum length has had, in the order in which sentence-transformers tries them."""


class Vectors(NamedTuple):
    """How the texts of a sentence-transformers folder become vectors.

    Attributes:
        pooling: one of `POOLINGS`, perhaps followed by `NORMALIZED`.
        max_length: texts are truncated to this many tokens; None: no file says.
        lower_case: text is lower-cased first, whatever the tokenizer does.
        include_prompt: whether the pooling counts the tokens of a prompt.
        fields: the content of config_sentence_transformers.json; {} without one.
    """

    pooling: str
    max_length: int | None = None
    lower_case: bool = False
    include_prompt: bool = True
    fields: Mapping[str, Any] = {}

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name."""
        return {name: prompt or "" for name, prompt in _prompts(self.fields).items()}

    @property
    def prompt(self) -> str:
        """What stands before each text by default."""
        return self.prompts.get(self.fields.get("default_prompt_name") or "", "")

    @property
    def similarity(self) -> str:
        """How vectors are compared, in sentence-transformers' words: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.fields.get("similarity_fn_name") or "cosine"

    @property
    def truncate_dim(self) -> int | None:
        """How many numbers of a vector are kept, from its first on; None: all."""
        return self.fields.get("truncate_dim")


def vectors_as(given: "Vectors | str | None") -> Vectors | None:
    """What a caller gave, as `Vectors`: a pooling alone stands for one with the defaults."""
    return given if given is None or isinstance(given, Vectors) else Vectors(given)


def check_pooling(pooling: str, known: Sequence[str] = POOLINGS) -> None:
    """Raises a UserError unless `pooling` is one of `known`, with or without the suffix `NORMALIZED`."""
    if not isinstance(pooling, str) or pooling.removesuffix(NORMALIZED) not in known:
        names = ", ".join(known)
        raise UserError(f"pooling={pooling!r}: expected one of {names}, or one of them followed by {NORMALIZED!r}")


def write_modules(folder: Path, vectors: Vectors | str, width: int, max_length: int) -> None:
    """Writes modules.json, the settings of its layers, and config_sentence_transformers.json if `vectors` has fields.

    Args:
        folder: a folder with config.json, the weights and the tokenizer.
        vectors: what `vectors_of` returned, or one of `POOLINGS`, such as "mean" (over the tokens); "+normalize" after
            it divides each vector by its length.
        width: D, the size of a vector.
        max_length: texts are truncated to this many tokens, whatever `vectors` says.
    """
    given = vectors_as(vectors)
    assert given is not None
    pooling = given.pooling
    check_pooling(pooling)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.endswith(NORMALIZED) else [])]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    _write_json(folder / MODULES, modules)
    # do_lower_case asks for more than the tokenizer does, which lower-cases by itself where the model needs it.
    _write_json(folder / SETTINGS[0], {"max_seq_length": max_length, "do_lower_case": given.lower_case})
    if given.fields:
        _write_json(folder / FIELDS, given.fields)
    (folder / POOLING).parent.mkdir()
    chosen = pooling.removesuffix(NORMALIZED)
    flags: dict[str, Any] = {flag: name == chosen for name, flag in _FLAGS.items()}
    if not given.include_prompt:
        flags["include_prompt"] = False
    _write_json(folder / POOLING, {"word_embedding_dimension": width, **flags})


def vectors_of(folder: Path, pooling: str | None = None) -> Vectors | None:
    """What the files of a sentence-transformers folder say; None for any other folder, unless `pooling` is given.

    Args:
        folder: the folder with the model; in folders of before version 0.3 it is a subfolder, 0_Transformer.
        pooling: in place of the folder's own, of which then only `include_prompt` is read.

    Raises:
        UserError: a file cannot be read, or names layers or a pooling that bert_jax does not have.
    """
    modules = _modules_of(folder)
    include_prompt = modules is None or _include_prompt_of(modules)
    if pooling is None:
        if modules is None:
            return None
        pooling = _pooling_of(modules)
    settings = _settings_of(folder)
    if processing := settings.get("processing_kwargs"):
        found = quoted(json.dumps(processing))
        raise UserError(f"{folder / SETTINGS[0]}: processing_kwargs is {found}; expected none, or max_seq_length")
    length = settings.get("max_seq_length")
    return Vectors(
        pooling,
        length if type(length) is int and length > 0 else None,
        settings.get("do_lower_case") is True,
        include_prompt,
        {} if modules is None else _fields_of(modules.parent / FIELDS),
    )


def model_folder(folder: Path) -> Path | None:
    """The subfolder in which an older sentence-transformers folder has its model; None for any other folder."""
    try:
        path = read_json(folder / MODULES)[0]["path"]
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None
    is_name = isinstance(path, str) and path not in ("", ".", "..") and Path(path).name == path
    return folder / path if is_name and (folder / path / "config.json").is_file() else None


def _modules_of(folder: Path) -> Path | None:
    """The modules.json of a model's folder: in it, or beside it if that names the folder."""
    if (folder / MODULES).is_file():
        return folder / MODULES
    above = folder.resolve().parent
    return above / MODULES if model_folder(above) == folder.resolve() else None


def _include_prompt_of(path: Path) -> bool:
    """`Vectors.include_prompt`, by the file of the second layer of modules.json; True where it says nothing."""
    try:
        place = Path(read_json(path)[1]["path"]).name
        return read_object(path.parent / place / "config.json", optional=True).get("include_prompt") is not False
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return True  # what else is wrong with it is the reader's of the pooling to say


def _pooling_of(path: Path) -> str:
    """The pooling that modules.json and the file of its second layer name."""
    folder = path.parent
    try:
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in read_json(path)]
        kinds = [kind for kind, _ in modules]
        known = kinds in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
        place = Path(modules[1][1]).name if known else ""
        fields = read_json(folder / place / "config.json") if known else {}
        flagged = [name for name, flag in _ALL_FLAGS.items() if fields.get(flag)]
        said = fields.get("pooling_mode", flagged or "mean")
        last = Path(modules[-1][1]).name if known else ""
        scaled = read_object(folder / last / "config.json", optional=True) if kinds[2:] == ["Normalize"] else {}
        names = [scaled.get(f"module_{kind}_name") or VECTOR for kind in ("input", "output")]
        chosen = list(said) if isinstance(said, list) else [said]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: not the modules of a sentence-transformers model ({error})") from None
    if not known:
        found = ", ".join(kinds) or "none"
        raise UserError(f"{path}: has the layers {found}; expected Transformer and Pooling, then perhaps Normalize")
    if names != [VECTOR, VECTOR]:
        raise UserError(
            f"{folder / last}: scales {quoted(names[0])} to {quoted(names[1])}; expected {VECTOR} to {VECTOR}"
        )
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        found = " and ".join(map(str, chosen))
        raise UserError(f"{folder / place}: its pooling is {quoted(found)}; expected one of {', '.join(POOLINGS)}")
    return chosen[0] + (NORMALIZED if len(kinds) == 3 else "")


def _settings_of(folder: Path) -> Mapping[str, Any]:
    """The content of the first file of `SETTINGS` that says something; {} if none does."""
    return next(filter(None, (read_object(folder / name, optional=True) for name in SETTINGS)), {})


def _fields_of(path: Path) -> Mapping[str, Any]:
    """config_sentence_transformers.json, in which the fields that change vectors are checked."""
    fields = read_object(path, optional=True)
    prompts, name, size = _prompts(fields), fields.get("default_prompt_name"), fields.get("truncate_dim")
    if name not in (None, *prompts):
        raise UserError(
            f"{path}: default_prompt_name is {quoted(name)}; expected a name in prompts ({', '.join(prompts)}) or null"
        )
    if wrong := next((one for one, text in prompts.items() if not isinstance(text, str | None)), None):
        raise UserError(f"{path}: the prompt {quoted(wrong)} is {quoted(prompts[wrong])}; expected a text")
    if size is not None and (type(size) is not int or size < 1):
        raise UserError(f"{path}: truncate_dim is {quoted(size)}; expected a whole number, at least 1, or null")
    return fields


def _prompts(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The prompts by name, with the two that sentence-transformers has in every model."""
    found = fields.get("prompts")
    return {"query": "", "document": ""} | (found if isinstance(found, dict) else {})


def _write_json(path: Path, fields: Any) -> None:
    write_text(path, json.dumps(fields, indent=2) + "\n")
