"""A tokenizer's files, in and out: vocab.txt, tokenizer.json, tokenizer_config.json, as transformers has them."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from bert_jax.data.tokenizer_pipeline import (
    BERT_SPECIAL_TOKENS,
    ROLES,
    bert_backend,
    is_cased,
    probe,
    rust_errors,
    set_bert_layout,
)
from bert_jax.data.tokenizer_vocab_txt import guess_cased, read_vocabulary, warn_if_unreachable
from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

_OTHER_SPECIAL_TOKENS = {"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
# Classes for which transformers takes tokenizer.json as it stands; for others it rebuilds from tokenizer_config.json.
_TAKEN_AS_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True)
class TokenizerParts:
    """What the files of a tokenizer say.

    backend: the pipeline; vocabulary: pieces in the order of their ids; special_tokens: role (`ROLES`) -> token, absent
    where the vocabulary has none; literal_special_tokens: whether "[MASK]" in raw text is the token; max_length: tokens
    that the model takes, None if no file says; config: tokenizer_config.json.
    """

    backend: tokenizers.Tokenizer
    vocabulary: list[str]
    special_tokens: dict[str, str]
    literal_special_tokens: bool = True
    max_length: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


def read_tokenizer(
    path: str | Path,
    *,
    cased: bool | None = None,
    strip_accents: bool | None = None,
    max_word_length: int | None = None,
    literal_special_tokens: bool | None = None,
    max_length: int | None = None,
) -> TokenizerParts:
    """Read a folder, a vocab.txt or a tokenizer.json; arguments that are not None overrule the files.

    The files beside the named one (tokenizer_config.json, special_tokens_map.json, config.json) are read too.

    Raises:
        FileNotFoundError: there is no tokenizer at `path`.
        UserError: a file that cannot be used; the line names it and what is wrong.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no tokenizer at {path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    json_file, text_file = _tokenizer_files(path)
    config = _read_json(folder / "tokenizer_config.json")
    _check_types(config, folder / "tokenizer_config.json")
    if json_file is not None:
        backend, special_tokens, vocabulary = _read_tokenizer_json(json_file, text_file, folder, config)
        _overrule_normalizer(backend, config, json_file, cased, strip_accents)
    else:
        assert text_file is not None
        backend, special_tokens, vocabulary = _read_vocab_txt(text_file, folder, config, cased, strip_accents)
    if max_word_length is not None and isinstance(backend.model, models.WordPiece):
        backend.model.max_input_chars_per_word = max_word_length
    model = _read_json(folder / "config.json")
    if literal_special_tokens is None:
        literal_special_tokens = not config.get("split_special_tokens", False)
    backend.encode_special_tokens = not literal_special_tokens
    _check_model(model, len(vocabulary), folder)
    return TokenizerParts(
        backend=backend,
        vocabulary=vocabulary,
        special_tokens=special_tokens,
        literal_special_tokens=literal_special_tokens,
        max_length=max_length if max_length is not None else _model_max_length(config, model),
        config=config,
    )


def _tokenizer_files(path: Path) -> tuple[Path | None, Path | None]:
    if not path.is_dir():
        return (path, None) if path.suffix == ".json" else (None, path)
    found = [path / name if (path / name).is_file() else None for name in ("tokenizer.json", "vocab.txt")]
    if not any(found):
        raise FileNotFoundError(f"no tokenizer in {path}: it has neither tokenizer.json nor vocab.txt")
    return found[0], found[1]


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: found a {type(value).__name__}, expected a JSON object")
    return value


def _check_types(config: Mapping[str, Any], path: Path) -> None:
    kinds = {"do_lower_case": (bool,), "strip_accents": (bool, type(None)), "tokenize_chinese_chars": (bool,)}
    kinds |= {"split_special_tokens": (bool,), "model_max_length": (int, float, type(None))}
    for name, kind in kinds.items():
        if name in config and not isinstance(config[name], kind):
            raise UserError(f"{path}: {name} is {config[name]!r}, expected {' or '.join(k.__name__ for k in kind)}")


def _model_max_length(config: Mapping[str, Any], model: Mapping[str, Any]) -> int | None:
    """The smaller of the two limits that the files name; transformers writes 1e30 for "not known"."""
    limits = [config.get("model_max_length"), model.get("max_position_embeddings")]
    known = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 10**9]
    return min(known, default=None)


def _check_model(model: Mapping[str, Any], vocab_size: int, folder: Path) -> None:
    rows = model.get("vocab_size")
    if isinstance(rows, int) and vocab_size > rows:
        raise UserError(
            f"{folder}: the tokenizer has {vocab_size} tokens, the model of {folder / 'config.json'} has embeddings "
            f"for vocab_size={rows}: these files do not belong together"
        )


def _special_tokens(folder: Path, config: Mapping[str, Any], known: Mapping[str, int]) -> dict[str, str]:
    older = _read_json(folder / "special_tokens_map.json")
    roles: dict[str, str] = {}
    for role in ROLES:
        named = config.get(f"{role}_token", older.get(f"{role}_token"))
        named = named.get("content") if isinstance(named, dict) else named
        candidates = [named] if isinstance(named, str) else [BERT_SPECIAL_TOKENS[role], _OTHER_SPECIAL_TOKENS[role]]
        for token in candidates:
            if token in known:
                roles[role] = token
                break
    return roles


def _read_vocab_txt(
    path: Path, folder: Path, config: Mapping[str, Any], cased: bool | None, strip_accents: bool | None
) -> tuple[tokenizers.Tokenizer, dict[str, str], list[str]]:
    pieces = read_vocabulary(path)
    ids = {piece: i for i, piece in enumerate(pieces)}
    special_tokens = _special_tokens(folder, config, ids)
    missing = [BERT_SPECIAL_TOKENS[role] for role in ("unk", "cls", "sep") if role not in special_tokens]
    if missing:
        raise UserError(f"{path}: no {' and no '.join(missing)} among its {len(pieces)} pieces: not a BERT vocabulary?")
    if cased is None and "do_lower_case" in config:
        cased = not config["do_lower_case"]
    if cased is None:
        cased = guess_cased(path, pieces)
    if strip_accents is None:
        strip_accents = config.get("strip_accents")
    if not cased and strip_accents is not False:
        warn_if_unreachable(path, pieces)
    with rust_errors(str(path)):
        backend = bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=config.get("tokenize_chinese_chars", True),
        )
        _add_tokens(backend, folder, config)
    return backend, special_tokens, _in_id_order(backend, pieces, path)


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path, config: Mapping[str, Any]) -> None:
    """Tokens that old folders keep outside the vocabulary, in the order of their ids."""
    decoder = config.get("added_tokens_decoder", {})
    added = {int(i): entry for i, entry in decoder.items()} if isinstance(decoder, dict) else {}
    added |= {i: {"content": token} for token, i in _read_json(folder / "added_tokens.json").items()}
    known = backend.get_vocab()
    for i, entry in sorted(added.items()):
        token = entry["content"]
        if known.get(token) == i:
            continue
        if token in known or i != backend.get_vocab_size():
            raise UserError(f"{folder}: added token {token!r} has id {i}, expected {backend.get_vocab_size()}")
        options = {k: bool(entry[k]) for k in ("single_word", "lstrip", "rstrip", "normalized") if k in entry}
        one = tokenizers.AddedToken(token, special=bool(entry.get("special", False)), **options)
        (backend.add_special_tokens if entry.get("special") else backend.add_tokens)([one])


def _read_tokenizer_json(
    path: Path, text_file: Path | None, folder: Path, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str], list[str]]:
    _read_json(path)
    with rust_errors(f"{path}: not a usable tokenizer file"):
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        backend.no_padding()
        backend.no_truncation()
        probe(backend)
    ids = backend.get_vocab(with_added_tokens=True)
    special_tokens = _special_tokens(folder, config, ids)
    wordpiece = isinstance(backend.model, models.WordPiece)
    missing = [BERT_SPECIAL_TOKENS[role] for role in ("unk", "cls", "sep") if role not in special_tokens]
    if wordpiece and missing:
        raise UserError(f"{path}: no {' and no '.join(missing)} among its {len(ids)} tokens")
    if wordpiece and backend.post_processor is None:
        set_bert_layout(backend, special_tokens)
    pieces = read_vocabulary(text_file) if text_file is not None else []
    if pieces and {p: i for i, p in enumerate(pieces)} != backend.get_vocab(with_added_tokens=False):
        logger.warning(
            "%s and %s hold different vocabularies: the latter is used, as transformers does", text_file, path
        )
        pieces = []
    return backend, special_tokens, _in_id_order(backend, pieces, path)


def _in_id_order(backend: tokenizers.Tokenizer, pieces: Sequence[str], path: Path) -> list[str]:
    """Pieces by id; an id that no token has (a piece that stands twice in vocab.txt) keeps its line's text."""
    ids = backend.get_vocab(with_added_tokens=True)
    if max(ids.values()) > 2 * len(ids) + 1000:
        raise UserError(f"{path}: {len(ids)} tokens with ids up to {max(ids.values())}: most ids are missing")
    rows = list(pieces) + [""] * (max(ids.values()) + 1 - len(pieces))
    for token, i in ids.items():
        rows[i] = token
    return rows


def _overrule_normalizer(
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    path: Path,
    cased: bool | None,
    strip_accents: bool | None,
) -> None:
    """Casing and accents: the argument, else tokenizer_config.json (transformers rebuilds so), else tokenizer.json."""
    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        if cased is not None and cased != is_cased(backend):
            raise UserError(f"{path}: its normalizer is not BERT's, so cased={cased} cannot be put on it")
        return
    rebuilt = "do_lower_case" in config and config.get("tokenizer_class") not in _TAKEN_AS_IS
    if rebuilt:
        normalizer.lowercase = not cased if cased is not None else config["do_lower_case"]
        normalizer.strip_accents = config.get("strip_accents")
        normalizer.handle_chinese_chars = config.get("tokenize_chinese_chars", True)
    elif cased is not None:
        normalizer.lowercase = not cased
    if strip_accents is not None:
        normalizer.strip_accents = strip_accents
    backend.normalizer = normalizer


def write_tokenizer(directory: str | Path, parts: TokenizerParts) -> None:
    """Write the files that transformers (4 and 5), TensorFlow's tools and `read_tokenizer` need for the same ids."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    normalizer = parts.backend.normalizer
    config = dict(parts.config) | {f"{role}_token": token for role, token in parts.special_tokens.items()}
    config.pop("split_special_tokens", None)
    if not parts.literal_special_tokens:
        config["split_special_tokens"] = True
    if parts.max_length is not None:
        config["model_max_length"] = parts.max_length
    if isinstance(parts.backend.model, models.WordPiece):
        rows = 1 + max(parts.backend.get_vocab(with_added_tokens=False).values())
        _write(directory / "vocab.txt", "".join(f"{piece}\n" for piece in parts.vocabulary[:rows]))
        if config.get("tokenizer_class") not in _TAKEN_AS_IS:
            config.setdefault("tokenizer_class", "BertTokenizer")
    if isinstance(normalizer, normalizers.BertNormalizer):
        config |= {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }
    _write(directory / "tokenizer.json", json.dumps(json.loads(parts.backend.to_str()), ensure_ascii=False, indent=2))
    _write(directory / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True))
    named = {f"{role}_token": parts.special_tokens[role] for role in ROLES if role in parts.special_tokens}
    _write(directory / "special_tokens_map.json", json.dumps(named, ensure_ascii=False, indent=2, sort_keys=True))


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))
