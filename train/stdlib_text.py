"""English prose from inside Python itself: the demo's corpus, there on every machine.

The language reference ships as `pydoc_data.topics`, and the standard library's modules carry docstrings. Both are
cleaned of code and markup here and become documents: one a topic, one a module.
"""

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_NOT_PROSE_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
}
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
    """The block as one line of prose, or None where it is code, a table, a heading or a signature."""
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
    """Blocks between blank lines that stand at the text's own margin: what is indented further is code."""
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
    """Yields (name, paragraphs), topics first, then modules by path: one order for one version of Python."""
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
        except (SyntaxError, ValueError):  # a few files exist to be wrong
            continue
        yield module.as_posix(), paragraphs


def write_corpus(path: Path) -> int:
    """Writes the documents as JSON lines ({"title", "text"}, one paragraph a line of text); returns the bytes of text.

    A paragraph that has been seen before is left out: the reference repeats itself between topics.
    """
    seen: set[str] = set()
    size = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for title, paragraphs in documents():
            fresh = list(dict.fromkeys(p for p in paragraphs if p not in seen))
            seen.update(fresh)
            if len(fresh) >= 2:
                text = "\n".join(fresh)
                size += len(text.encode())
                file.write(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
    return size
