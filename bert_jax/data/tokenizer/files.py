"""Read and write a tokenizer's files as transformers does: which to read, which overrules which, what to write."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import models, normalizers

from bert_jax.data.tokenizer.families import (
    ALBERT,
    FILES,
    ROBERTA,
    ROLES,
    TAKEN_AS_IS,
    declared_family,
    family_of_files,
    longest_input,
    takes_token_types,
)
from bert_jax.data.tokenizer.ids import TokenizerParts
from bert_jax.data.tokenizer.pipelines import is_cased, prefix_space, prefixes_words, refuse_unheeded, strips_accents
from bert_jax.data.tokenizer.readers import (
    read_byte_level,
    read_spiece_model,
    read_tokenizer_json,
    read_vocab_txt,
)
from bert_jax.data.tokenizer.settings import Beside, Settings, read_beside
from bert_jax.errors import UserError
from bert_jax.files import near_path


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file that a tokenizer can be read from."""
    return any((folder / name).is_file() for name in FILES)


def read_tokenizer(
    path: str | Path,
    settings: Settings,
    *,
    literal_special_tokens: bool | None = None,
    max_length: int | None = None,
    model: Mapping[str, Any] | None = None,
) -> TokenizerParts:
    """Reads a tokenizer from a folder or from one of its files; arguments that are not None overrule the files.

    The files beside the named one (tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json) are
    read too; `model` is the content of config.json, if the caller has read it.

    Raises:
        FileNotFoundError: there is no tokenizer at `path`.
        UserError: a file that cannot be used; the message names it and what is wrong.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no tokenizer at {path}: no such file or folder{near_path(path)}")
    beside = read_beside(path if path.is_dir() else path.parent, settings, model)
    parts, config = _read(path, beside), beside.settings.config
    refuse_unheeded(parts.backend, parts.family, path, settings)
    if settings.max_word_length is not None:
        assert isinstance(parts.backend.model, models.WordPiece)
        parts.backend.model.max_input_chars_per_word = settings.max_word_length
    if literal_special_tokens is None:
        literal_special_tokens = not config.get("split_special_tokens", False)
    _check_model(beside.model, len(parts.vocabulary), beside.folder)
    return replace(
        parts,
        literal_special_tokens=literal_special_tokens,
        max_length=max_length if max_length is not None else longest_input(config, beside.model),
        config=config,
        token_types=takes_token_types(parts.family, config, beside.model),
    )


def _read(path: Path, beside: Beside) -> TokenizerParts:
    json_file = _json_file(path)
    declared = declared_family(beside.class_file, beside.settings.config, has_json=json_file is not None)
    if json_file is not None:
        return read_tokenizer_json(json_file, declared, beside)
    family = family_of_files(path, declared, beside.model)
    file = path / family.files[0] if path.is_dir() else path
    if family.model == "WordPiece":
        return read_vocab_txt(file, family, beside)
    if family == ROBERTA:
        return read_byte_level(file.with_name("vocab.json") if file.suffix == ".txt" else file, beside)
    return read_spiece_model(file, family, beside)


def _json_file(path: Path) -> Path | None:
    """The tokenizer.json in or at `path`, if there is one; a .json file whose name begins with vocab is BPE's."""
    if path.is_dir():
        return path / "tokenizer.json" if (path / "tokenizer.json").is_file() else None
    return path if path.suffix == ".json" and not path.name.startswith("vocab") else None


def _check_model(model: Mapping[str, Any], vocab_size: int, folder: Path) -> None:
    rows = model.get("vocab_size")
    if isinstance(rows, int) and vocab_size > rows:
        raise UserError(
            f"{folder}: the tokenizer has {vocab_size} tokens, the model of {folder / 'config.json'} has embeddings "
            f"for vocab_size={rows}: these files do not belong together"
        )


def write_tokenizer(directory: str | Path, parts: TokenizerParts) -> None:
    """Writes the files from which transformers (4 and 5), TensorFlow's tools and `read_tokenizer` give the same ids."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    backend, family = parts.backend, parts.family
    config = dict(parts.config) | {f"{role}_token": token for role, token in parts.special_tokens.items()}
    config.pop("split_special_tokens", None)
    if not parts.literal_special_tokens:
        config["split_special_tokens"] = True
    if parts.max_length is not None:
        config["model_max_length"] = parts.max_length
    config |= _class(parts) | _rules(parts)
    if isinstance(backend.model, models.WordPiece):
        rows = 1 + max(backend.get_vocab(with_added_tokens=False).values())
        _write(directory / "vocab.txt", "".join(f"{piece}\n" for piece in parts.vocabulary[:rows]))
    elif family == ROBERTA:
        backend.model.save(str(directory))  # vocab.json and merges.txt
    elif family is not None and parts.spiece is not None:
        (directory / family.files[0]).write_bytes(parts.spiece)
    _write(directory / "tokenizer.json", json.dumps(json.loads(backend.to_str()), ensure_ascii=False, indent=2))
    _write(directory / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True))
    named = {f"{role}_token": parts.special_tokens[role] for role in ROLES if role in parts.special_tokens}
    _write(directory / "special_tokens_map.json", json.dumps(named, ensure_ascii=False, indent=2, sort_keys=True))


def _class(parts: TokenizerParts) -> dict[str, Any]:
    """The fields that tell transformers the class, and whether to return token type ids if its default is wrong."""
    family, declared = parts.family, parts.config.get("tokenizer_class")
    as_is = declared in TAKEN_AS_IS or (family is None and declared is None)
    name = (declared or TAKEN_AS_IS[0]) if as_is or family is None else declared or family.tokenizer_class
    fields: dict[str, Any] = {"tokenizer_class": name}
    if family is not None and family.model != "WordPiece" and not as_is:
        # Without these transformers uses "<s>" and "</s>", and adds them to a vocabulary that lacks them.
        ends = {"bos_token": parts.special_tokens["cls"], "eos_token": parts.special_tokens["sep"]}
        fields |= {name: token for name, token in ends.items() if name not in parts.config}
    usual = not as_is and family is not None and family != ALBERT and family.takes_token_types
    if parts.token_types is not None and parts.token_types != usual:
        types = ["token_type_ids"] if parts.token_types else []
        fields["model_input_names"] = ["input_ids", *types, "attention_mask"]
    return fields


def _rules(parts: TokenizerParts) -> dict[str, Any]:
    """The fields on the treatment of text, from which transformers rebuilds the family's pipeline."""
    backend, family = parts.backend, parts.family
    normalizer = backend.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        return {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }
    if family == ROBERTA:
        return {"add_prefix_space": prefix_space(backend)}
    if family is None or family.model != "Unigram":
        return {}
    fields: dict[str, Any] = {"add_prefix_space": prefixes_words(backend)}
    if family == ALBERT:
        fields |= {"do_lower_case": not is_cased(backend), "keep_accents": not strips_accents(backend)}
    return fields


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))
