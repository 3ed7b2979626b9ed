"""A tiny model and small files of every kind of task, for the tests of fine-tuning."""

import csv
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")
REST = (
    "the", "film", "was", "a", "day", "trip", "ann", "bob", "paris", "rome", "in", "met", "who", "where", "and",
    ".",
)  # fmt: skip
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *REST)

RECIPE = '''"""A recipe small enough for a test."""

from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig


def get_config() -> FinetuneConfig:
    return FinetuneConfig(
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=0, bias_correction=True),
        batch=8, eval_batch=8, epochs=20, max_length=16, stride=8, log_every=16, eval_every=32,
    )
'''


def write_model(folder: Path, max_position_embeddings: int = 32, head: str = "pretraining", **fields: Any) -> str:
    """A BERT of one layer, or as `fields` say, whose words are those of the files below."""
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=max_position_embeddings,
        initializer_range=0.1,
    ).replace(**fields)
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY, cased=False)
    params = jax.jit(HEADS[head](config).init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    return str(save_pretrained(folder, config, params, tokenizer, head=head))


def write_start(folder: Path) -> list[str]:
    """`RECIPE` and a model; the words of a command line that start from them."""
    (folder / "recipe.py").write_text(RECIPE)
    return [str(folder / "recipe.py"), f"init={write_model(folder / 'model')}"]


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """(text, "good" or "bad"): one word of each text decides the label."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = ("good", "bad")[int(rng.integers(2))]
        word = rng.choice(GOOD if label == "good" else BAD)
        rest = rng.choice(REST, size=int(rng.integers(2, 9))).tolist()
        rest.insert(int(rng.integers(len(rest) + 1)), word)
        found.append((" ".join(rest), label))
    return found


def write_csv(path: Path, rows: list[tuple], header: tuple[str, ...] = ("text", "label")) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_tables(folder: Path) -> None:
    """train.csv, dev.csv and test.csv, the last without labels."""
    write_csv(folder / "train.csv", sentences(64, seed=1))
    write_csv(folder / "dev.csv", sentences(21, seed=2))
    write_csv(folder / "test.csv", [(text,) for text, _ in sentences(9, seed=3)], header=("text",))


def write_tagged(path: Path, count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        for word in rng.choice([w for w in REST if w != "."], size=int(rng.integers(3, 9))):
            tag = {"ann": "B-PER", "bob": "B-PER", "paris": "B-LOC", "rome": "B-LOC"}.get(str(word), "O")
            lines.append(f"{word}\t{tag}")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_conllu(path: Path, count: int, seed: int) -> Path:
    """Sentences in CoNLL-U, with comments and ranges; the first letter of a word decides its part of speech."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        lines += [f"# sent_id = {number}", "1-2\tthe" + "\t_" * 8]
        for place, word in enumerate(rng.choice([w for w in REST if w != "."], size=int(rng.integers(3, 9))), 1):
            lines.append(f"{place}\t{word}\t_\t{part_of_speech(str(word))}" + "\t_" * 6)
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def part_of_speech(word: str) -> str:
    return "NOUN" if word[0] in "abp" else "VERB" if word[0] in "wm" else "X"


def write_squad(path: Path, count: int, seed: int, *, impossible: bool = False) -> Path:
    """Questions whether it was ann or bob, on passages longer than a window."""
    rng = np.random.default_rng(seed)
    paragraphs = []
    for number in range(count):
        name = str(rng.choice(["ann", "bob"]))
        words = rng.choice(["the", "film", "was", "a", "day", "trip", "and"], size=15).tolist()
        words.insert(int(rng.integers(0, 16)), name)
        context = " ".join(words)
        none = impossible and number % 3 == 0
        qa = {
            "id": f"{seed}-{number}",
            "question": "good film" if none else "who",
            "answers": [] if none else [{"text": name, "answer_start": context.index(name)}],
        }
        paragraphs.append({"context": context, "qas": [qa | ({"is_impossible": none} if impossible else {})]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def write_choices(path: Path, count: int, seed: int, *, fewest: int = 3) -> Path:
    """ARC's format; the right ending is the good one; questions have `fewest` to four endings."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        endings = [str(word) for word in rng.choice(BAD, size=int(rng.integers(fewest, 5)))]
        right = int(rng.integers(len(endings)))
        endings[right] = str(rng.choice(GOOD))
        choices = [{"text": text, "label": "ABCD"[i]} for i, text in enumerate(endings)]
        question = {"stem": "the film was", "choices": choices}
        lines.append(json.dumps({"id": str(number), "question": question, "answerKey": "ABCD"[right]}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
