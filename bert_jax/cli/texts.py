"""What a verb reads: arguments that are texts, files of texts or stdin, told apart by one rule for all verbs.

An argument is a file if it exists; so is one without a space that has a slash or ends in a suffix such as .txt, so that
a mistyped name is an error and never becomes a text. Any other argument is a text.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert_jax.data.text.lines import read_what_is_text, what_is_text
from bert_jax.errors import UserError
from bert_jax.files import near_path, no_file

_SUFFIX = re.compile(r"\w\.[A-Za-z][A-Za-z0-9]{0,6}$")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
TABLES = (".csv", ".tsv", ".jsonl", ".json")
AS_LINES = "write its texts to a file that ends in .txt, one text per line"


def is_text(word: str) -> bool:
    """Whether an argument is a text, by the rule above.

    Raises:
        FileNotFoundError: it is the name of a file that does not exist.
        UserError: it is a folder, a file that may not be looked at, or a text that is not UTF-8.
    """
    if word == "-" or _is_file(word):
        return False
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UserError(f"{word!a:.60}: not UTF-8; expected a text in UTF-8") from None
    return True


def _is_file(word: str) -> bool:
    """Whether an argument names a file; raises as `is_text`."""
    try:
        mode = os.stat(word).st_mode
    except ValueError:  # a text with a zero byte
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        if error.errno not in _NOT_THERE:
            raise UserError(f"{word}: cannot be read ({error.strerror})") from None
        mode = 0
    if stat.S_ISREG(mode):
        return True
    if stat.S_ISDIR(mode):
        raise UserError(f"{word}: is a folder; expected a file with one text per line, or a text")
    _refuse_pipe(word)
    looks_like_a_path = not re.search(r"\s", word) and (os.sep in word or _SUFFIX.search(word) is not None)
    if looks_like_a_path:
        raise FileNotFoundError(
            f"{word}: no such file{near_path(word)}; a text that looks like a file goes in by a pipe"
        )
    return False


def texts_of(
    words: Sequence[str], *, tables: Sequence[str] = TABLES, instead: str = AS_LINES
) -> Iterator[str | UserError]:
    """The texts that the arguments give, in order, with an error in place of each line that is not UTF-8.

    Args:
        words: the arguments.
        tables: the suffixes of files whose lines are no texts.
        instead: what the user does with such a file.

    Raises:
        FileNotFoundError, UserError: as `is_text` and `lines_of`, before the first text.
    """
    parts = [[word] if is_text(word) else lines_of(word, tables=tables, instead=instead) for word in words]
    return (text for part in parts for text in part)


def lines_of(name: str, *, tables: Sequence[str] = TABLES, instead: str = AS_LINES) -> Iterator[str | UserError]:
    """The lines of a file, or of stdin for "-", with an error in place of each line that is not UTF-8.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: stdin is a terminal or closed; the file is one of the `tables`.
    """
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():  # None: closed by the caller
            raise UserError("no texts: give a text, name a file with one text per line, or pipe one in")
        lines: Iterable[str | UserError] = what_is_text(sys.stdin.buffer, "stdin")
    else:
        path = file_of(name)
        if suffix_of(name) in tables:
            raise UserError(f"{name}: this is a table, whose lines are no texts; {instead}")
        lines = read_what_is_text(path)
    return (line if isinstance(line, UserError) else line.removesuffix("\r") for line in lines)


def suffix_of(name: str) -> str:
    """The suffix of a file's name before .gz or .zst, in lower case."""
    return Path(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()


def document_of(word: str) -> str | UserError:
    """One text: the argument, or all lines of the file or stdin that it names; or the error of a line of it."""
    if is_text(word):
        return word
    lines = list(lines_of(word, tables=()))
    wrong = next((line for line in lines if isinstance(line, UserError)), None)
    return wrong or "\n".join(line for line in lines if isinstance(line, str))


def file_of(name: str) -> Path:
    """The path of a file that must exist.

    Raises:
        FileNotFoundError: there is no such file.
    """
    path = Path(name)
    _refuse_pipe(name)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: {no_file(name)}")
    return path


def _refuse_pipe(name: str) -> None:
    path = Path(name)
    if path.is_fifo() or path.is_char_device():
        raise UserError(f"{name}: is a pipe or a device, not a file; save what comes from it in a file")


def table_of(name: str) -> Path:
    """The path of a table, which cannot be read from stdin.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it is "-".
    """
    if name == "-":
        raise UserError("a table cannot be read from stdin; name the file")
    return file_of(name)
