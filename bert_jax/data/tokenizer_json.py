"""tokenizer.json: the `tokenizers` library's own file, read without trusting it."""

from collections import Counter
from pathlib import Path

import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer_errors import rust_errors
from bert_jax.data.tokenizer_pipeline import probe
from bert_jax.data.tokenizer_settings import read_json
from bert_jax.data.tokenizer_unigram import without_number_commas
from bert_jax.errors import UserError


def load_backend(path: Path, *, split_number_commas: bool) -> tokenizers.Tokenizer:
    """The pipeline of a tokenizer.json, without the padding and truncation written into it; every stage has run once.

    Raises:
        UserError: not JSON, not such a file, one that the library cannot run, one with two tokens of the same id, or
            one whose added tokens do not get the ids that it says.
    """
    declared = read_json(path)
    with rust_errors(f"{path}: not a usable tokenizer file"):
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        backend.no_padding()
        backend.no_truncation()
        if split_number_commas and isinstance(backend.model, models.Unigram):
            model = declared["model"]
            pieces = without_number_commas([(piece, score) for piece, score in model["vocab"]])
            backend.model = models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))
        probe(backend)
    for token in declared.get("added_tokens") or []:
        found = backend.token_to_id(token["content"])
        if found != token["id"]:
            raise UserError(f"{path}: added token {token['content']!r} has id {token['id']}, expected {found}")
    ids = backend.get_vocab(with_added_tokens=True)
    if len(set(ids.values())) < len(ids):
        twice = next(i for i, count in Counter(ids.values()).items() if count > 1)
        first, second = [token for token, i in ids.items() if i == twice][:2]
        raise UserError(f"{path}: id {twice} stands for two tokens, {first!r} and {second!r}")
    return backend
