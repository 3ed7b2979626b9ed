"""The code of a guide: finds its blocks and runs them as a reader does, top to bottom."""

import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bert_jax.__main__ import main
from tests.root import ROOT

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CALL = "python -m bert_jax "


class Block(NamedTuple):
    """The code between two fences of a guide, and the line, from 1, on which it begins."""

    guide: str
    language: str
    code: str
    line: int


def text_of(guide: str) -> str:
    """The text of a guide, such as "docs/model.md"."""
    return (ROOT / guide).read_text(encoding="utf-8")


def blocks_of(guide: str, *languages: str) -> list[Block]:
    """The blocks of a guide in these languages, "sh" and "python" if none is named, in their order."""
    text = text_of(guide)
    blocks = [Block(guide, *found.groups(), text.count("\n", 0, found.start(2)) + 1) for found in _BLOCK.finditer(text)]
    return [block for block in blocks if block.language in (languages or ("sh", "python"))]


def command_line(words: list[str]) -> None:
    """`bert_jax VERB ...`, which must succeed."""
    assert main(words) == 0, words


def run_blocks(blocks: Iterable[Block], call: Callable[[list[str]], Any] = command_line) -> dict[str, Any]:
    """Runs Python in one namespace, and every line of "sh" by `call`, with the words after `python -m bert_jax`.

    Returns:
        the namespace.
    """
    names: dict[str, Any] = {}
    for block in blocks:
        if block.language == "python":
            at_its_line = "\n" * (block.line - 1) + block.code  # so that a traceback names the guide's own lines
            exec(compile(at_its_line, ROOT / block.guide, "exec"), names)
            continue
        for line in block.code.splitlines():
            assert line.startswith(_CALL), line
            call(shlex.split(line.removeprefix(_CALL), comments=True))
    return names
