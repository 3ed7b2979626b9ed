"""The files, symbols, tests and commands that the documents name exist."""

import re
from pathlib import Path

import pytest

from tests.guide import blocks_of, run_blocks
from tests.root import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "README.ko.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
TABLE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Where would I look")[1]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_link_and_path_of_the_repository_exists(document: Path):
    text = document.read_text(encoding="utf-8")
    links = [(document.parent / link) for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text)]
    named = re.findall(r"(?<![\w/.])((?:bert_jax|train|tests|configs|benchmarks|docs)/[\w/.-]*\.(?:py|md))", text)
    missing = [path for path in [*links, *(ROOT / name for name in named)] if not path.exists()]
    assert missing == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_of_the_map_names_a_symbol_that_its_file_has(row: list[str]):
    _, where, symbols, _ = row
    file = re.findall(r"`([\w/.]+\.py)`", f"{symbols} {where}")
    for symbol in re.findall(r"`([A-Za-z_][\w.]*)`", symbols):
        if not symbol.endswith(".py") and not symbol.startswith("layer_"):
            texts = [(ROOT / name).read_text(encoding="utf-8") for name in file]
            assert any(re.search(rf"\b{symbol.split('.')[-1]}\b", text) for text in texts), symbol


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_modules_that_commands_call_exist(document: Path):
    modules = set(re.findall(r"python -m ([\w.]+)", document.read_text(encoding="utf-8")))
    homes = {m: [ROOT / (m.replace(".", "/") + ".py"), ROOT / m.replace(".", "/") / "__main__.py"] for m in modules}
    others = {"venv", "pytest", "pip"}
    assert [m for m, paths in homes.items() if m not in others and not any(p.exists() for p in paths)] == []


@pytest.mark.slow
def test_the_readmes_python_runs(tmp_path: Path, monkeypatch):
    import jax

    import bert_jax
    from bert_jax.data.vocabulary import learn_vocabulary

    words = [
        "the",
        "door",
        "file",
        "book",
        "was",
        "is",
        "open",
        "closed",
        "returned",
        "new",
        "list",
        "a",
        "of",
        ".",
        ",",
    ]
    vocabulary = learn_vocabulary(dict.fromkeys(words, 5), size=60, cased=False)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary.pieces), encoding="utf-8")
    tokenizer = bert_jax.Tokenizer.load(tmp_path / "vocab.txt", cased=False)
    config = bert_jax.BertConfig.preset("tiny", vocab_size=tokenizer.vocab_size)
    params = bert_jax.BertForPreTraining(config).init(jax.random.key(0), jax.numpy.zeros((1, 4), "int32"))["params"]
    bert_jax.save_pretrained(tmp_path / "runs" / "books", config, params, tokenizer)
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("README.md", "python")
    assert len(blocks) == 2
    names = run_blocks(blocks)
    assert len(names["fill"]("The [MASK] was open.", top_k=3)) == 3
    kernels = [leaf for leaf in jax.tree.leaves(names["gradients"]) if leaf.ndim == 3]
    assert {leaf.shape[0] for leaf in kernels} == {4}
