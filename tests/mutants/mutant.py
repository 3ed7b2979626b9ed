"""What a mutant is, and how its row finds the code that it changes."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("model", "data", "training", "formats", "inference", "evaluation", "train", "surgery", "cli", "runtime")


@dataclass(frozen=True)
class Mutant:
    """One change of meaning that some test must notice.

    Attributes:
        file: the path from the root of the checkout.
        old: a piece of one line, which must stand in the file exactly once.
        new: what stands there instead.
        breaks: what is then wrong.
        tests: ids of the tests of which at least one must fail, `path::name`; few and quick.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The folder of `bert_jax` that it is about, or "train"; the config is the model's, the entry point the cli's."""
        top, *rest = self.file.split("/")
        if top != "bert_jax":
            return top
        return rest[0] if len(rest) > 1 else "cli" if rest == ["__main__.py"] else "model"

    def applied(self, text: str) -> str:
        """The file's text with the change made.

        Raises:
            ValueError: `old` does not stand in it exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands in it {count} times; a row needs it once")
        return text.replace(self.old, self.new)

    def problems(self, root: Path) -> list[str]:
        """What is wrong with the row, in a line each: the code has moved, a test has another name, nothing changes."""
        found = []
        path = root / self.file
        if not path.is_file():
            return [f"{self.file}: no such file"]
        try:
            self.applied(_text(path))
        except ValueError as error:
            return [str(error)]
        if "\n" in self.old or "\n" in self.new:
            found.append(f"{self.file}: {self.old!r}: a change is within one line")
        if self.old == self.new:
            found.append(f"{self.file}: {self.old!r} is changed to itself")
        if not self.tests:
            found.append(f"{self.file}: {self.old!r} names no test")
        return found + [problem for test in self.tests for problem in _problems_of_test(test, root)]


def _problems_of_test(test: str, root: Path) -> list[str]:
    path, _, name = test.partition("::")
    if not (root / path).is_file():
        return [f"{path}: no such file of tests"]
    name = name.partition("[")[0]
    if name and not re.search(rf"^def {re.escape(name)}\(", _text(root / path), re.MULTILINE):
        return [f"{path}: has no test {name}"]
    return []


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
