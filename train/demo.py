"""`make demo`: from the text inside Python itself to a small BERT that fills masks, in a few minutes on two cores.

The language reference ships as `pydoc_data.topics`, and the standard library's modules have docstrings. This program
removes code and markup from both and makes one document per topic and one per module.
"""

import ast
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bert_jax.cli.program import command_line, in_own_words
from bert_jax.errors import UserError
from bert_jax.files import read_json_lines, write_whole
from bert_jax.runtime.cpu import multiplies_bfloat16
from train.pretrain import main as pretrain  # here, so that the program knows at its start that it will use JAX
from train.run.ending.stopping import EXIT_DONE, run_program

_NOT_PROSE_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}
_LIST_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s")
_MARKUP = (
    (re.compile(r":[a-zA-Z:]+:`~?([^`<]*?)(?:\s*<[^`]*>)?`"), r"\1"),  # :class:`Name`, :ref:`text <target>`
    (re.compile(r"`{1,2}([^`]+)`{1,2}'*"), r"\1"),
    (re.compile(r"\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}"), r"\1"),
    (re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+"), ""),
    (re.compile(r"\s+"), " "),
)
_SENTENCE_END = re.compile(r"""[.!?:]["')\]]*$""")


def _prose(block: str) -> str | None:
    """The block as one line of prose; None if it is code, a table, a heading or a signature."""
    if ">>>" in block or "::=" in block:
        return None
    text = " ".join(line.strip() for line in block.splitlines())
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = text.strip()
    letters = sum(character.isalpha() or character == " " for character in text)
    if len(text.split()) < 4 or letters < 0.75 * len(text) or not _SENTENCE_END.search(text):
        return None
    return text


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the prose of the blocks between blank lines; skips indented blocks, which are code, except list items."""
    for block in re.split(r"\n\s*\n", text):
        if block[:1].isspace() and not _LIST_ITEM.match(block):
            continue
        prose = _prose(block)
        if prose:
            yield prose


def _docstrings(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def documents() -> Iterator[tuple[str, list[str]]]:
    """Yields (name, paragraphs): topics by name, then modules by path. The order is fixed for a version of Python."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"topic {name}", list(_paragraphs(text))
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if _NOT_PROSE_FOLDERS & set(module.parts[:-1]):
            continue
        try:
            paragraphs = [p for text in _docstrings(path.read_bytes()) for p in _paragraphs(text)]
        except (SyntaxError, ValueError):  # a few files are invalid on purpose
            continue
        yield module.as_posix(), paragraphs


def write_corpus(path: Path) -> int:
    """Writes the documents as JSON lines ({"title", "text"}, one line of `text` per paragraph).

    Writes each paragraph once, since the reference repeats paragraphs between topics, and skips documents with fewer
    than two new ones. Returns the size of the texts in bytes.
    """
    seen: set[str] = set()
    lines, size = [], 0
    for title, paragraphs in documents():
        fresh = list(dict.fromkeys(p for p in paragraphs if p not in seen))
        seen.update(fresh)
        if len(fresh) >= 2:
            text = "\n".join(fresh)
            size += len(text.encode())
            lines.append(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))  # the demo takes up a corpus that is there
    return size


RUN = Path("runs/demo")
USAGE = f"""\
usage: python -m train.demo

Trains a small BERT from the documentation inside Python's standard library, and fills masks with it: 1,400 steps of
BERT-tiny, some minutes on two cores. It writes {RUN}/; the same command goes on with a demo that was stopped. It takes
no options: python -m train.pretrain does.
"""
TEXTS = (
    "Read up to n [MASK] from the file.",
    "This is the base [MASK] for all exceptions.",
    "See the [MASK] for details.",
    "Close the connection to the [MASK].",
)


def main(argv: list[str]) -> int:
    """Writes the corpus, learns a vocabulary, makes examples, trains, and prints a report on stdout."""
    if argv in (["-h"], ["--help"]):
        print(in_own_words(USAGE))
        return EXIT_DONE
    if argv:
        raise UserError(f"{argv[0]}: the demo takes no arguments; python -m train.pretrain does")
    started = time.monotonic()
    print("1. text: the documentation inside Python's standard library", file=sys.stderr)
    corpus = RUN / "stdlib.jsonl"
    if not corpus.exists():
        size = write_corpus(corpus)
        print(f"   {size / 1e6:.2f} MB of English prose in {corpus}", file=sys.stderr)
    print("2. vocabulary, examples and training; if stopped, the same command continues from there", file=sys.stderr)
    words = ["model.dtype=float32"] if multiplies_bfloat16() is False else []
    code = pretrain([str(Path(__file__).parents[1] / "configs/demo.py"), f"text={corpus}", f"run={RUN}", *words])
    if code == 0:
        report(time.monotonic() - started)
    return code


def report(seconds: float) -> None:
    """Prints the held-out scores beside their baselines, a few filled masks, and what to try next."""
    from bert_jax.inference.pipeline import pipeline

    last = [row for row in read_json_lines(RUN / "metrics.jsonl") if row["kind"] == "eval"][-1]
    out = Console(highlight=False)
    table = Table(title=f"held-out documents after {last['step']:,} steps ({seconds:.0f} s in all)")
    for column in ("", "this model", "baseline", "what the baseline is"):
        table.add_column(column)
    unigram = "how often each token occurs"
    loss, accuracy = f"{last['mlm_loss']:.3f}", f"{last['mlm_accuracy']:.1%}"
    table.add_row("masked LM loss (nats)", loss, f"{last['unigram_loss']:.3f}", unigram)
    table.add_row("masked LM accuracy", accuracy, f"{last['unigram_accuracy']:.1%}", "the most frequent token")
    pairs, majority = f"{last['nsp_accuracy']:.1%}", f"{last['majority_accuracy']:.1%}"
    table.add_row("next sentence accuracy", pairs, majority, "the more frequent answer")
    out.print(table)
    if last["nsp_accuracy"] <= last["majority_accuracy"] + 0.02:
        out.print("The model has not learned next sentence prediction in so few steps: it stays near the baseline.")
    for text, answers in zip(TEXTS, pipeline("fill-mask", RUN)(list(TEXTS), top_k=4), strict=True):
        guesses = ", ".join(f"{answer['token_str']} {answer['score']:.0%}" for answer in answers)
        out.print(f"  {text}  ->  {guesses}", markup=False, soft_wrap=True)
    out.print("After so few steps, so small a model knows which words occur together, but little grammar.")
    python = f"{os.path.relpath(sys.executable)} -m"
    own, pretrain = f"{python} bert_jax", f"{python} train.pretrain"
    if command_line() == "bert-jax":
        own, pretrain = "bert-jax", "bert-jax pretrain"
    out.print(
        f"\nThe curves: {RUN}/curves.png\n\nTry next:\n"
        f'  {own} fill-mask {RUN} "The file is opened for [MASK]."\n'
        f"  {own} info {RUN}\n"
        f"  {pretrain} configs/tiny.py text='YOUR/*.txt' run=runs/mine",
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    run_program(main)
