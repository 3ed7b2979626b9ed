"""A corpus, its prepared data and a recipe that are small enough for tests, shared by the files of this folder."""

from pathlib import Path

import numpy as np
import pytest

RECIPE = '''"""A recipe small enough for a test, dropout on."""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=48
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2),
        phases=(Phase(32, 8, 8), Phase(48, 8, 4)),
        packing="no",  # test_packing.py says otherwise
        log_every=2,
        eval_every=6,
        eval_batches=2,
        save_every=3,
        keep=2,
    )
'''
WORDS = [
    "the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "over", "mat", "tree", "house", "river",
    "quickly", "slowly", "and", "then", "it", "was",
]  # fmt: skip


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Sixty documents of sentences drawn from a small vocabulary."""
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    documents = []
    for _ in range(60):
        lengths = generator.integers(4, 12, generator.integers(3, 9))
        documents.append("\n".join(" ".join(generator.choice(WORDS, n)).capitalize() + "." for n in lengths))
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "small.py"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="session")
def data(corpus: Path, tmp_path_factory) -> str:
    from train.prepare import main

    directory = tmp_path_factory.mktemp("prepared") / "data"
    options = ["--vocab-size", "90", "--max-seq-length", "32,48", "--dupe-factor", "2", "--held-out", "0.1"]
    assert main([str(corpus), "--output", str(directory), *options, "--workers", "1"]) in (0, None)
    return str(directory)


@pytest.fixture(scope="session")
def cats() -> dict[str, list[tuple[str, str]]]:
    """Sentences of random words; the label is whether a cat is in it, now and then wrongly."""
    generator = np.random.default_rng(0)
    found = {}
    for name, count in (("train", 120), ("dev", 80)):
        texts = [" ".join(generator.choice(WORDS[:8], 4)) for _ in range(count)]
        found[name] = [(text, str(int(("cat" in text) != (generator.random() < 0.1)))) for text in texts]
    return found


@pytest.fixture(scope="session")
def cats_task(cats, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sst2")
    for name, examples in cats.items():
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in examples)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder
