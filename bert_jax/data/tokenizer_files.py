"""A tokenizer's files, in and out: vocab.txt, tokenizer.json, tokenizer_config.json, as transformers has them."""

import json
import logging
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

ROLES = ("unk", "sep", "pad", "cls", "mask")
BERT_SPECIAL_TOKENS = {role: f"[{role.upper()}]" for role in ROLES}
_OTHER_SPECIAL_TOKENS = {"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
# transformers takes tokenizer.json as it stands for these classes and rebuilds it from tokenizer_config.json for others.
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


@contextmanager
def rust_errors(what: str) -> Iterator[None]:
    """Errors of the `tokenizers` library, panics too (they are no `Exception`), as one `UserError` line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


def bert_normalizer(
    *, cased: bool, strip_accents: bool | None, chinese_characters: bool = True
) -> normalizers.Normalizer:
    """BERT's cleaning, spacing of Chinese characters, accents and lower-casing (`strip_accents=None`: if uncased)."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_characters, strip_accents=strip_accents, lowercase=not cased
    )


def bert_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """BERT's split at white space and around every punctuation character."""
    return pre_tokenizers.BertPreTokenizer()


def bert_backend(
    ids: Mapping[str, int],
    special_tokens: Mapping[str, str],
    *,
    cased: bool,
    strip_accents: bool | None = None,
    chinese_characters: bool = True,
    max_word_length: int = 100,
) -> tokenizers.Tokenizer:
    """The WordPiece pipeline that transformers' `BertTokenizer` builds from the same settings."""
    model = models.WordPiece(dict(ids), unk_token=special_tokens["unk"], max_input_chars_per_word=max_word_length)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(
        cased=cased, strip_accents=strip_accents, chinese_characters=chinese_characters
    )
    backend.pre_tokenizer = bert_pre_tokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([special_tokens[role] for role in ROLES if role in special_tokens])
    _set_bert_layout(backend, special_tokens)
    return backend


def _set_bert_layout(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    cls, sep = special_tokens["cls"], special_tokens["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )


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
        cased = _guess_uncased(path, pieces)
    if strip_accents is None:
        strip_accents = config.get("strip_accents")
    if not cased and strip_accents is not False:
        _warn_if_unreachable(path, pieces)
    with rust_errors(str(path)):
        backend = bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=config.get("tokenize_chinese_chars", True),
        )
        _add_tokens(backend, folder, config)
    return backend, special_tokens, _in_id_order(backend, pieces)


def read_vocabulary(path: Path) -> list[str]:
    """The pieces of a vocab.txt: one a line, lines end at \\n or \\r\\n only (U+0085 and U+2028 are pieces of some)."""
    data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 ({error.reason}), expected one piece a line") from None
    while lines and not lines[-1].strip("\r"):
        lines.pop()
    if not lines:
        raise UserError(f"{path}: an empty vocabulary")
    return [line.removesuffix("\r") for line in lines]


def _is_marker(piece: str) -> bool:
    return piece[:1] + piece[-1:] in ("[]", "<>")


def _guess_uncased(path: Path, pieces: Sequence[str]) -> bool:
    """False (uncased) where no piece has a capital, as transformers assumes; else nobody can know."""
    capital = next((piece for piece in pieces if piece != piece.lower() and not _is_marker(piece)), None)
    if capital is not None:
        raise UserError(
            f"{path}: has capital letters (piece {capital!r}) and no tokenizer_config.json says whether text is to be "
            "lower-cased: say cased (--cased, cased=True) or uncased (--uncased, cased=False)"
        )
    return False


def _warn_if_unreachable(path: Path, pieces: Sequence[str]) -> None:
    """An uncased BERT takes accents off, which cuts Hangul into letters: pieces with either can never come out."""
    lost = [
        piece
        for piece in pieces
        if not piece.isascii()
        and any(unicodedata.category(c) == "Mn" or _is_jamo(c) for c in _decomposed(piece))
        and piece != _decomposed(piece)
    ]
    if len(lost) > len(pieces) // 100:
        logger.warning(
            "%s: %d of %d pieces (%r is one) cannot occur in text whose accents are stripped, as uncased BERT does; "
            "if the vocabulary was made without, pass strip_accents=False or put it in tokenizer_config.json",
            path, len(lost), len(pieces), lost[0],
        )  # fmt: skip


def _decomposed(piece: str) -> str:
    return unicodedata.normalize("NFD", piece)


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff"


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
        _set_bert_layout(backend, special_tokens)
    pieces = read_vocabulary(text_file) if text_file is not None else []
    if pieces and {p: i for i, p in enumerate(pieces)} != backend.get_vocab(with_added_tokens=False):
        logger.warning(
            "%s and %s hold different vocabularies: the latter is used, as transformers does", text_file, path
        )
        pieces = []
    return backend, special_tokens, _in_id_order(backend, pieces)


def probe(backend: tokenizers.Tokenizer) -> None:
    """Run every stage once: some faults of a tokenizer.json panic only when a text passes through."""
    for text in ("Ab c, 1 é가字 [MASK] \u0301", ""):
        backend.encode_batch([text, (text, text)])
        backend.decode(backend.encode(text).ids)


def _in_id_order(backend: tokenizers.Tokenizer, pieces: Sequence[str]) -> list[str]:
    """Pieces by id; an id that no token has (a piece that stands twice in vocab.txt) keeps its line's text."""
    ids = backend.get_vocab(with_added_tokens=True)
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


def is_cased(backend: tokenizers.Tokenizer) -> bool:
    """Whether capital letters survive the normaliser."""
    return backend.normalizer is None or backend.normalizer.normalize_str("Aa") == "Aa"


def write_tokenizer(directory: str | Path, parts: TokenizerParts) -> None:
    """Write the files that transformers (4 and 5), TensorFlow's tools and `read_tokenizer` need for the same ids."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    normalizer = parts.backend.normalizer
    config = dict(parts.config) | {f"{role}_token": token for role, token in parts.special_tokens.items()}
    config["split_special_tokens"] = not parts.literal_special_tokens
    if parts.max_length is not None:
        config["model_max_length"] = parts.max_length
    if isinstance(parts.backend.model, models.WordPiece):
        pieces = parts.vocabulary[: parts.backend.get_vocab_size(with_added_tokens=False)]
        _write(directory / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))
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
