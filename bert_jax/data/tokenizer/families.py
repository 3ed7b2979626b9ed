"""The families of tokenizers: their files, their special tokens, and the family of the files in a folder."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, quoted

ROLES = ("unk", "sep", "pad", "cls", "mask")
BERT_SPECIAL_TOKENS = {role: f"[{role.upper()}]" for role in ROLES}
_FAIRSEQ_SPECIAL_TOKENS = {"unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
_ALBERT_SPECIAL_TOKENS = BERT_SPECIAL_TOKENS | {"unk": "<unk>", "pad": "<pad>"}
# Classes for which transformers uses tokenizer.json as it is; others it rebuilds from tokenizer_config.json.
TAKEN_AS_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True)
class Family:
    """What a published family fixes about its tokenizer.

    Attributes:
        tokenizer_class: transformers' class.
        model: the algorithm, by the `tokenizers` library's name: "WordPiece", "BPE" or "Unigram".
        files: the files of the vocabulary if there is no tokenizer.json.
        special_tokens: role (`ROLES`) -> token, unless the files name another.
        takes_token_types: whether the family's models take token type ids.
    """

    tokenizer_class: str
    model: str
    files: tuple[str, ...]
    special_tokens: Mapping[str, str] = field(hash=False)
    takes_token_types: bool


BERT = Family("BertTokenizer", "WordPiece", ("vocab.txt",), BERT_SPECIAL_TOKENS, True)
DISTILBERT = Family("DistilBertTokenizer", "WordPiece", ("vocab.txt",), BERT_SPECIAL_TOKENS, False)
ROBERTA = Family("RobertaTokenizer", "BPE", ("vocab.json", "merges.txt"), _FAIRSEQ_SPECIAL_TOKENS, False)
ALBERT = Family("AlbertTokenizer", "Unigram", ("spiece.model",), _ALBERT_SPECIAL_TOKENS, True)
XLM_ROBERTA = Family("XLMRobertaTokenizer", "Unigram", ("sentencepiece.bpe.model",), _FAIRSEQ_SPECIAL_TOKENS, False)
CAMEMBERT = Family("CamembertTokenizer", "Unigram", ("sentencepiece.bpe.model",), _FAIRSEQ_SPECIAL_TOKENS, False)

# Other models' classes whose rules and files are BERT's.
_AS_BERT = ("Electra", "ConvBert", "MobileBert", "SqueezeBert", "RetriBert", "LayoutLM")
_BY_CLASS = {family.tokenizer_class: family for family in (BERT, DISTILBERT, ROBERTA, ALBERT, XLM_ROBERTA, CAMEMBERT)}
_BY_CLASS |= {f"{name}Tokenizer": BERT for name in _AS_BERT}
_BY_MODEL_TYPE = {
    "bert": BERT,
    "electra": BERT,
    "distilbert": DISTILBERT,
    "roberta": ROBERTA,
    "albert": ALBERT,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
}
_FAIRSEQ_MODEL_TYPES = ("roberta", "xlm-roberta", "camembert")

FILES = ("tokenizer.json", *dict.fromkeys(name for family in _BY_CLASS.values() for name in family.files))
"""The files that may hold a vocabulary."""
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""The files beside it that change which ids a text gets."""


def declared_family(file: Path, config: Mapping[str, Any], *, has_json: bool) -> Family | None:
    """The family of the `tokenizer_class` in `config`, which `file` names; None if it is no known one.

    Raises:
        UserError: an unknown class, and no tokenizer.json (`has_json`) to use as it is: the files may look like BERT's
            and mean something else (BertJapaneseTokenizer, PhobertTokenizer).
    """
    name = config.get("tokenizer_class")
    if name is None or name in TAKEN_AS_IS:
        return None
    family = _BY_CLASS.get(name.removesuffix("Fast"))
    if family is None and not has_json:
        known = ", ".join(_BY_CLASS)
        raise UserError(
            f"{file}: tokenizer_class is {quoted(name)}, expected one of {known}, or a tokenizer.json beside it"
        )
    return family


def family_of_files(path: Path, declared: Family | None, model: Mapping[str, Any]) -> Family:
    """The family of a folder without tokenizer.json, or of one file: of those with such files, the one that `declared`,
    else config.json, names.

    Raises:
        FileNotFoundError: no vocabulary in the folder.
        UserError: the files are not those of the declared class; files of several families, and nothing names one.
    """
    held, possible = _possible(path)
    if not possible:
        raise FileNotFoundError(f"no tokenizer in {path}: it has neither tokenizer.json nor {_alternatives()}")
    if declared is not None:
        if declared not in possible:
            raise UserError(
                f"{path}: its tokenizer_class is {declared.tokenizer_class}, which needs tokenizer.json or "
                f"{' and '.join(declared.files)}; found {', '.join(held)}"
            )
        return declared
    by_type = _BY_MODEL_TYPE.get(model.get("model_type", ""))
    if by_type in possible:
        return by_type
    if len({family.files for family in possible}) > 1:
        raise UserError(
            f"{path}: has {', '.join(held)}, the files of several tokenizers: name one in tokenizer_config.json "
            "(tokenizer_class) or config.json (model_type)"
        )
    if XLM_ROBERTA in possible:
        raise UserError(
            f"{path}: {held[0]} may be XLM-R's or CamemBERT's, which number its pieces differently: name the "
            "tokenizer_class in tokenizer_config.json or the model_type in config.json"
        )
    return possible[0]


def _possible(path: Path) -> tuple[list[str], list[Family]]:
    """The names of the vocabulary files, and the families that they can be of."""
    families = list(dict.fromkeys(_BY_CLASS.values()))
    if path.is_dir():
        held = [name for name in FILES if (path / name).is_file()]
        return held, [family for family in families if any(name in held for name in family.files)]
    exact = [family for family in families if path.name in family.files]
    model = {".json": "BPE", ".model": "Unigram"}.get(path.suffix, "WordPiece")
    return [path.name], exact or [family for family in families if family.model == model]


def family_of_json(
    path: Path, model_name: str, declared: Family | None, config: Mapping[str, Any], model: Mapping[str, Any]
) -> Family | None:
    """The family whose rules transformers applies to a tokenizer.json of this algorithm; None: it is used as it is.

    Raises:
        UserError: tokenizer_config.json declares a family with another algorithm.
    """
    if declared is not None:
        if declared.model != model_name:
            raise UserError(
                f"{path}: holds a {model_name} tokenizer, but the tokenizer_class is {declared.tokenizer_class}, "
                f"which is {declared.model}: these files do not belong together"
            )
        return declared
    by_type = _BY_MODEL_TYPE.get(model.get("model_type", ""))
    if by_type is not None and by_type.model == model_name and "tokenizer_class" not in config:
        return by_type
    return BERT if model_name == BERT.model else None


def takes_token_types(family: Family | None, config: Mapping[str, Any], model: Mapping[str, Any]) -> bool | None:
    """Whether the model takes token type ids; None if nothing says.

    tokenizer_config.json decides (`model_input_names`), else config.json (`type_vocab_size`, `model_type`: some
    RoBERTas have BERT's vocabulary), else the family. transformers 5 also leaves them out for ALBERT, although its
    model uses them.
    """
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    if model.get("type_vocab_size") == 1 or model.get("model_type") in ("distilbert", *_FAIRSEQ_MODEL_TYPES):
        return False
    return family.takes_token_types if family else None


def longest_input(config: Mapping[str, Any], model: Mapping[str, Any]) -> int | None:
    """The smaller of the two limits that the files name, in tokens; None if neither does.

    transformers writes 1e30 for "unknown".

    RoBERTa models number positions from the id of the padding token + 1 (fairseq), so their position table has that
    many more rows than the longest input.
    """
    limits = [config.get("model_max_length"), model.get("max_position_embeddings")]
    if model.get("model_type") in _FAIRSEQ_MODEL_TYPES and isinstance(limits[1], int):
        padding = model.get("pad_token_id", 1)
        limits[1] -= padding + 1 if isinstance(padding, int) else 2
    known = [int(limit) for limit in limits if isinstance(limit, (int, float)) and 0 < limit < 10**9]
    return min(known, default=None)


def special_tokens_of(family: Family | None, named: Mapping[str, str], tokens: Collection[str]) -> dict[str, str]:
    """The token of each role: the one that the files name, else the family's; without those that `tokens` lacks."""
    usual: Sequence[Mapping[str, str]] = [BERT_SPECIAL_TOKENS, _FAIRSEQ_SPECIAL_TOKENS]
    if family is not None:
        usual = [family.special_tokens, *usual]
    roles: dict[str, str] = {}
    for role in ROLES:
        name = named.get(role)
        candidates = [name] if name is not None else [table[role] for table in usual]
        found = next((token for token in candidates if token in tokens), None)
        if found is not None:
            roles[role] = found
    return roles


def _alternatives() -> str:
    return " nor ".join(" + ".join(f.files) for f in (BERT, ROBERTA, ALBERT, XLM_ROBERTA))
