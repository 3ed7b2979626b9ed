"""A tokenizer's settings: the JSON files beside its vocabulary, checked, and the arguments that overrule them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers

from bert_jax.data.tokenizer.families import ROLES, Family, special_tokens_of
from bert_jax.errors import UserError, quoted
from bert_jax.files import read_object

_TYPES: dict[str, tuple[type, ...]] = {
    "tokenizer_class": (str, type(None)),
    "do_lower_case": (bool,),
    "strip_accents": (bool, type(None)),
    "keep_accents": (bool,),
    "tokenize_chinese_chars": (bool,),
    "add_prefix_space": (bool, type(None)),
    "trim_offsets": (bool,),
    "split_special_tokens": (bool,),
    "model_max_length": (int, float, type(None)),
}


@dataclass(frozen=True)
class Settings:
    """How to treat text: the arguments of `Tokenizer.load`, None for what the files decide.

    config: the content of tokenizer_config.json.
    """

    cased: bool | None = None
    strip_accents: bool | None = None
    max_word_length: int | None = None
    add_prefix_space: bool | None = None
    split_number_commas: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def says_case(self) -> bool:
        """Whether the caller or tokenizer_config.json says if text is lower-cased."""
        return self.cased is not None or "do_lower_case" in self.config

    def lowercases(self, default: bool) -> bool:
        """Whether to lower-case text; `default` if neither the caller nor tokenizer_config.json says."""
        return self.config.get("do_lower_case", default) if self.cased is None else not self.cased

    def keeps_accents(self, default: bool) -> bool:
        """Whether to keep accents (ALBERT's setting); `default` as above."""
        return self.config.get("keep_accents", default) if self.strip_accents is None else not self.strip_accents

    def prefixes_space(self, default: bool) -> bool:
        """Whether to put a space before a text; `default` as above."""
        if self.add_prefix_space is not None:
            return self.add_prefix_space
        said = self.config.get("add_prefix_space")
        return default if said is None else said


@dataclass(frozen=True)
class Beside:
    """The settings beside a vocabulary.

    Attributes:
        settings: the caller's arguments, and tokenizer_config.json.
        model: config.json.
        named: role -> the special token that the files name, as {"content", ...}.
        extra: the other special tokens that they name, in the same form: bos_token, additional_special_tokens ...
        added: tokens outside the vocabulary, by id, ascending.
        class_file: the file that names the `tokenizer_class` in `settings.config`, if one does.
    """

    folder: Path
    settings: Settings
    model: Mapping[str, Any]
    named: Mapping[str, Mapping[str, Any]]
    extra: Sequence[Mapping[str, Any]]
    added: Mapping[int, Mapping[str, Any]]
    class_file: Path

    def special_tokens(self, family: Family | None, tokens: Collection[str]) -> dict[str, str]:
        """The token of each role, of those tokens that are in `tokens` or among the added ones."""
        known = {*tokens, *(entry["content"] for entry in self.added.values())}
        return special_tokens_of(family, {role: entry["content"] for role, entry in self.named.items()}, known)

    def put_special_tokens(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        """Marks the special tokens in a pipeline's vocabulary, and adds the tokens that it lacks.

        The mask token swallows the spaces on its left, unless a file says otherwise.

        Raises:
            UserError: an added token that would not get the id that its file gives.
        """
        mask = special_tokens.get("mask")
        entries = [*self.added.values(), *self.named.values()]
        takes_space = next((bool(e["lstrip"]) for e in entries if e["content"] == mask and "lstrip" in e), True)
        for token in special_tokens.values():
            if backend.token_to_id(token) is not None:
                lstrip = token == mask and takes_space
                backend.add_special_tokens(
                    [tokenizers.AddedToken(token, special=True, normalized=False, lstrip=lstrip)]
                )
        self.put_added_tokens(backend, special_tokens, lstrip=[mask] if takes_space else [])

    def put_added_tokens(
        self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], lstrip: Sequence[str | None] = ()
    ) -> None:
        """Adds to a pipeline the tokens that its vocabulary lacks; those of `lstrip` swallow the spaces on their left.

        Tokens that its vocabulary has and the files name as special ones become such, as in transformers.

        Raises:
            UserError: one that would not get the id that its file gives.
        """
        known = backend.get_vocab()
        marked = {token.content for token in backend.get_added_tokens_decoder().values()}
        named = {*special_tokens.values(), *(entry["content"] for entry in self.extra)}
        for i, entry in self.added.items():
            token = entry["content"]
            expected = known.get(token, backend.get_vocab_size())
            if i != expected:
                raise UserError(f"{self.folder}: added token {quoted(token)} has id {i}, expected {expected}")
            if token in marked:
                continue
            special = bool(entry.get("special", False)) or token in named
            _put(backend, {"lstrip": token in lstrip, **entry}, special=special)
        marked |= {entry["content"] for entry in self.added.values()}
        for entry in (*self.named.values(), *self.extra):
            if entry["content"] in known and entry["content"] not in marked:
                _put(backend, entry, special=bool(entry.get("special", True)))


def _put(backend: tokenizers.Tokenizer, entry: Mapping[str, Any], *, special: bool) -> None:
    options = {k: bool(entry[k]) for k in ("single_word", "lstrip", "rstrip", "normalized") if k in entry}
    one = tokenizers.AddedToken(entry["content"], special=special, **options)
    (backend.add_special_tokens if special else backend.add_tokens)([one])


def read_beside(folder: Path, settings: Settings, model: Mapping[str, Any] | None = None) -> Beside:
    """Reads the JSON files of a folder; a missing file counts as empty. `model` replaces the content of config.json.

    As in transformers, config.json names the tokenizer's class if tokenizer_config.json does not.

    Raises:
        UserError: a file that is not JSON, or a field of the wrong type.
    """
    config = _read_config(folder)
    older = read_object(folder / "special_tokens_map.json", optional=True)
    model = read_object(folder / "config.json", optional=True) if model is None else model
    class_file = folder / "tokenizer_config.json"
    if config.get("tokenizer_class") is None and isinstance(name := model.get("tokenizer_class"), str):
        config, class_file = config | {"tokenizer_class": name}, folder / "config.json"
    return Beside(
        folder=folder,
        settings=replace(settings, config=config),
        model=model,
        named=_named_tokens(config, older),
        extra=_extra_tokens(config, older),
        added=_added_tokens(folder, config),
        class_file=class_file,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, {} if there is none; UserError for a field of the wrong type."""
    path = folder / "tokenizer_config.json"
    config = read_object(path, optional=True)
    for name, kinds in _TYPES.items():
        if name in config and not isinstance(config[name], kinds):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise UserError(f"{path}: {name} is {quoted(config[name])}, expected {expected}")
    if (side := config.get("truncation_side", "right")) not in ("left", "right"):
        raise UserError(f"{path}: truncation_side is {quoted(side)}, expected 'left' or 'right'")
    return config


def _named_tokens(config: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Role -> the special token that tokenizer_config.json names, else special_tokens_map.json: {"content", ...}."""
    found = ((role, _entry(config.get(f"{role}_token", older.get(f"{role}_token")))) for role in ROLES)
    return {role: entry for role, entry in found if entry is not None}


def _extra_tokens(config: Mapping[str, Any], older: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The special tokens without a role of ours that the files name, as in transformers.

    They are fields such as bos_token, and the lists or tables additional_special_tokens and extra_special_tokens.
    special_tokens_map.json counts in folders without an added_tokens_decoder.
    """
    fields = config if config.get("added_tokens_decoder") else {**config, **older}
    named = [value for name, value in fields.items() if name.endswith("_token") and name[:-6] not in ROLES]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        given = fields.get(name)
        named += given.values() if isinstance(given, dict) else given if isinstance(given, list) else []
    return [entry for entry in map(_entry, named) if entry is not None]


def _entry(named: Any) -> dict[str, Any] | None:
    """A token as {"content", ...}; None for what is none."""
    entry = {"content": named} if isinstance(named, str) else named
    return entry if isinstance(entry, dict) and isinstance(entry.get("content"), str) else None


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Tokens that older folders keep outside the vocabulary, by id, in the order of the ids.

    Raises:
        UserError: an entry without an id or a token.
    """
    decoder = config.get("added_tokens_decoder") or {}
    older = read_object(folder / "added_tokens.json", optional=True)
    path = folder / ("tokenizer_config.json" if decoder else "added_tokens.json")
    try:
        added = {int(i): {"content": token} for token, i in older.items()}
        added |= {int(i): dict(entry) for i, entry in decoder.items()}  # these have the token's rules too
        if not all(isinstance(entry["content"], str) for entry in added.values()):
            raise TypeError("a token is not a string")
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: its added tokens are not a table of ids and tokens ({quoted(str(error))})") from None
    return dict(sorted(added.items()))
