"""Runs what error messages advise: the words that a message adds or leaves out, and the messages that give advice."""

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_VERBS = (
    "say|add|leave|name|give|set|use|pass|run|choose|put|copy|raise|lower|start|prepare|call|load|write|train|make|"
    "shorten|remove|convert|install|split|save"
)
_ADVICE = re.compile(rf"(?:;|\bor|:|,) (?:first:? )?(?:{_VERBS})\b|first: |--overwrite|overwrite=|as in |to replace")


def filled(typed: str, places: dict[str, str]) -> list[str]:
    """The words of a command, with the places in braces filled in; "_" after "hello" stands for a space."""
    words = (word.format(**places) for word in typed.split())
    return [word.replace("_", " ") if word.startswith("hello_") else word for word in words]


def corrected(words: Sequence[str], advised: Sequence[str]) -> list[str]:
    """The words followed by those that a message advises; "!WORD" takes away the earlier words that begin so."""
    found: list[str] = []
    for word in (*words, *advised):
        found = [kept for kept in found if not kept.startswith(word[1:])] if word.startswith("!") else [*found, word]
    first = next((word for word in found if word.startswith("configs/")), found[0])
    return [first, *(word for word in found if word != first)]


def not_run(files: Iterable[Path], tried: Sequence[str]) -> list[str]:
    """The error messages of these files that advise something, of which none of the `tried` is a part."""
    return [
        f"{path.name}: {text}"
        for path in files
        for text in _errors(path)
        if _ADVICE.search(text) and not any(part in text for part in tried)
    ]


def _errors(path: Path) -> list[str]:
    """The texts of the errors that a file raises, with "…" in place of what is filled in."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return [_text(call.args[0]) for call in calls if ast.unparse(call.func).endswith("Error") and call.args]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return "…"
