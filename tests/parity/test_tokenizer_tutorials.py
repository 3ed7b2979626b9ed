"""The snippets of transformers' tokenizer tutorials run on ours with only the import changed, and give the same."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax import Tokenizer
from bert_jax.errors import UserError

pytestmark = [pytest.mark.parity, pytest.mark.slow]

THEIRS, OURS = "from transformers import AutoTokenizer", "from bert_jax import Tokenizer as AutoTokenizer"
LOAD = 'tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-cased")\n'
BATCH = """
batch_sentences = [
    "But what about second breakfast?",
    "Don't think he knows about second breakfast, Pip.",
    "What about elevensies?",
]
"""
PAIRS = """
sequence_a, sequence_b = "HuggingFace is based in NYC", "Where is HuggingFace based?"
"""
# Quick tour, preprocessing, padding and truncation, glossary, and the course's chapters 2 and 6.
SNIPPETS = {
    "encode one text": 'found = tokenizer("Do not meddle in the affairs of wizards, for they are quick to anger.")',
    "decode what it gives": 'found = tokenizer.decode(tokenizer("Do not meddle in the affairs of wizards.")["input_ids"])',
    "lists without padding": BATCH + "found = tokenizer(batch_sentences)",
    "padding": BATCH + "found = tokenizer(batch_sentences, padding=True)",
    "padding and truncation": BATCH + "found = tokenizer(batch_sentences, padding=True, truncation=True)",
    "arrays": BATCH + 'found = tokenizer(batch_sentences, padding=True, truncation=True, return_tensors="np")',
    "padding to the longest": BATCH + 'found = tokenizer(batch_sentences, padding="longest")',
    "padding to a length": BATCH + 'found = tokenizer(batch_sentences, padding="max_length", max_length=32)',
    "a length cut and filled": BATCH
    + 'found = tokenizer(batch_sentences, max_length=8, truncation=True, padding="max_length")',
    "no padding, by name": BATCH
    + 'found = tokenizer(batch_sentences, padding="do_not_pad", truncation="do_not_truncate")',
    "no padding, by False": BATCH + "found = tokenizer(batch_sentences, padding=False, truncation=False)",
    "a multiple of eight": BATCH + "found = tokenizer(batch_sentences, padding=True, pad_to_multiple_of=8)",
    "only the first": PAIRS + 'found = tokenizer(sequence_a, sequence_b, max_length=12, truncation="only_first")',
    "only the second": PAIRS + 'found = tokenizer(sequence_a, sequence_b, max_length=12, truncation="only_second")',
    "longest first": PAIRS + 'found = tokenizer(sequence_a, sequence_b, max_length=12, truncation="longest_first")',
    "a pair": PAIRS + "found = tokenizer(sequence_a, sequence_b)",
    "a pair decoded": PAIRS + 'found = tokenizer.decode(tokenizer(sequence_a, sequence_b)["input_ids"])',
    "pieces": 'found = tokenizer.tokenize("Using a Transformer network is simple")',
    "pieces to ids": """
tokens = tokenizer.tokenize("Using a Transformer network is simple")
found = tokenizer.convert_tokens_to_ids(tokens)""",
    "a piece to its id": 'found = [tokenizer.convert_tokens_to_ids("[MASK]"), tokenizer.convert_tokens_to_ids("qwxyz")]',
    "ids to pieces": "found = tokenizer.convert_ids_to_tokens([101, 7993, 170, 11303, 1200, 2443, 1110, 3014, 102])",
    "an id to its piece": "found = tokenizer.convert_ids_to_tokens(7993)",
    "pieces without special ones": "found = tokenizer.convert_ids_to_tokens([101, 7993, 102], skip_special_tokens=True)",
    "ids to text": "found = tokenizer.decode([7993, 170, 11303, 1200, 2443, 1110, 3014])",
    "ids to text without special ones": "found = tokenizer.decode([101, 7993, 170, 102], skip_special_tokens=True)",
    "a batch to texts": BATCH
    + 'ids = tokenizer(batch_sentences, padding=True)["input_ids"]\n'
    + "found = tokenizer.batch_decode(ids, skip_special_tokens=True)",
    "lists to texts": BATCH + 'found = tokenizer.batch_decode(tokenizer(batch_sentences)["input_ids"])',
    "encode": 'found = tokenizer.encode("Hello, I am a single sentence!")',
    "encode without special tokens": 'found = tokenizer.encode("Hello!", add_special_tokens=False)',
    "special tokens": "found = [tokenizer.all_special_tokens, tokenizer.all_special_ids, tokenizer.special_tokens_map]",
    "its special tokens": "found = [tokenizer.cls_token, tokenizer.sep_token_id, tokenizer.pad_token, tokenizer.mask_token_id]",
    "sizes": "found = [len(tokenizer), tokenizer.vocab_size, tokenizer.model_max_length]",
    "the vocabulary": "found = tokenizer.get_vocab()",
    "offsets": 'found = tokenizer("My name is Sylvain.", return_offsets_mapping=True)',
    "special tokens mask": 'found = tokenizer("My name is Sylvain.", return_special_tokens_mask=True)',
    "saved and loaded": """
tokenizer.save_pretrained("directory_on_my_computer")
found = AutoTokenizer.from_pretrained("directory_on_my_computer")("Using a Transformer network is simple")""",
    "padding by hand": """
sequences = ["I've been waiting for a HuggingFace course my whole life.", "So have I!"]
ids = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sequence)) for sequence in sequences]
longest = max(map(len, ids))
found = [row + [tokenizer.pad_token_id] * (longest - len(row)) for row in ids]""",
}


@pytest.fixture(scope="module")
def folder(data_dir: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bert-base-cased")
    for name in ("vocab.txt", "tokenizer.json"):
        stored = data_dir / "checkpoints" / "vocab" / f"bert-base-cased-{name}.gz"
        (folder / name).write_bytes(gzip.decompress(stored.read_bytes()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "model_max_length": 512}))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 28996}))
    return folder


def plain(value: Any) -> Any:
    """Lists and dicts; a row alone for one text, which ours gives as a batch of one."""
    if hasattr(value, "keys"):
        return {name: plain(value[name]) for name in value.keys()}  # noqa: SIM118 (transformers' own class)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = [plain(item) for item in value]
        return value[0] if len(value) == 1 and isinstance(value[0], list) else value
    return value


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_gives_what_it_gives_in_transformers(name: str, folder: Path, tmp_path: Path, monkeypatch):
    code = f"{THEIRS}\n{LOAD}{SNIPPETS[name]}".replace("google-bert/bert-base-cased", str(folder))
    results = []
    for place, text in (("theirs", code), ("ours", code.replace(THEIRS, OURS))):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        names: dict[str, Any] = {}
        exec(text, names)
        results.append(plain(names["found"]))
    assert results[1] == results[0]


@pytest.mark.parametrize("length", [None, 12])
def test_words_are_encoded_as_in_transformers(length: int | None, data_dir: Path, folder: Path):
    import transformers

    text = gzip.decompress((data_dir / "finetune" / "ner" / "wnut17" / "emerging.dev.conll.gz").read_bytes()).decode()
    rows = [[line.split("\t")[0] for line in lines.splitlines()] for lines in text.split("\n\n")[:200] if lines]
    options: dict[str, Any] = {"is_split_into_words": True, "truncation": True, "max_length": length}
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(rows, return_offsets_mapping=True, **options)
    ours = Tokenizer.from_pretrained(folder)(rows, return_offsets_mapping=True, return_word_ids=True, **options)
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert plain(ours[name]) == plain(theirs[name])
    found = [[None if word < 0 else word for word in row] for row in plain(ours["word_ids"])]
    assert found == [theirs.word_ids(number) for number in range(len(rows))]
    assert plain(ours["offset_mapping"]) == plain(theirs["offset_mapping"])
    pairs = transformers.AutoTokenizer.from_pretrained(folder)(rows[:9], rows[9:18], **options)["input_ids"]
    assert plain(Tokenizer.from_pretrained(folder)(rows[:9], rows[9:18], **options)["input_ids"]) == plain(pairs)


@pytest.mark.parametrize("kind", ["pt", "tf", "jax"])
def test_other_tensors_are_refused_in_one_line(kind: str, folder: Path):
    with pytest.raises(UserError, match=f"return_tensors='{kind}': .*NumPy arrays.* use 'np' or leave it out"):
        Tokenizer.from_pretrained(folder)("a", return_tensors=kind)


def test_the_special_tokens_of_roberta_are_transformers_own(data_dir: Path, tmp_path: Path):
    import transformers

    for name in ("vocab.json", "merges.txt"):
        stored = data_dir / "checkpoints" / "vocab" / f"distilroberta-base-{name}.gz"
        (tmp_path / name).write_bytes(gzip.decompress(stored.read_bytes()))
    theirs = transformers.RobertaTokenizer(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    ours = Tokenizer.from_pretrained(tmp_path)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert len(ours) == len(theirs)
