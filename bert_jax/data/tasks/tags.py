"""Tagged sentences: CoNLL's columns, KLUE-NER and NAVER-NER, and the reader of each task."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.text.lines import read_lines
from bert_jax.errors import UserError, Wrong, errors_in_place, quoted, refuse

DOCUMENT_START = "-DOCSTART-"
_PREFIXES = re.compile(r"[BIES]-.+|O")


class TaggedSentence(NamedTuple):
    """Words and their tags (None if the file has none), the number of the document, the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int
    line: int


def read_conll(path: Path, *, tag: int | None = -1, wrong: Wrong = refuse) -> Iterator[TaggedSentence]:
    """The sentences of a file whose columns are separated by tabs, or by spaces if a line has no tab.

    Args:
        path: the file.
        tag: its column, whose number is -1 for the last; None: only words are read, which the first column has.
        wrong: called with the error of a line that is not UTF-8; its sentence is skipped.

    Raises:
        UserError: a line with one column or without a word, or a tag that is neither O nor B-, I-, E- or S- with a
            type.
    """
    words: list[str] = []
    tags: list[str] = []
    document, first = 0, 0
    unread = False  # a line of this sentence was not UTF-8
    for row in errors_in_place(lambda at_fault: read_lines(path, wrong=at_fault)):
        if isinstance(row, UserError):
            if not unread:
                wrong(row)
            unread = True
            continue
        number, text = row
        line = text.removesuffix("\r")
        cells = line.split("\t") if "\t" in line else line.split(" ")
        if not line.strip() or cells[0] == DOCUMENT_START:
            if words and not unread:
                yield TaggedSentence(tuple(words), tuple(tags) if tag is not None else None, document, first)
            words, tags, unread = [], [], False
            document += cells[0] == DOCUMENT_START
            continue
        where = f"{path}, line {number}"
        if len(cells) < 2 and tag is not None:
            raise UserError(f"{where}: {quoted(line)} has one column; expected a word, a tab or space, and its tag")
        if not words:
            first = number
        if not cells[0]:
            raise UserError(f"{where}: {quoted(line)} has no word; expected a word, a tab or space, and its tag")
        words.append(cells[0])
        if tag is not None:
            found = cells[tag]
            if found != found.rstrip() or not found:
                raise UserError(f"{where}: {quoted(line)} ends in a blank, and a tag is expected there; remove it")
            tags.append(checked_tag(found, where))
    if words and not unread:
        yield TaggedSentence(tuple(words), tuple(tags) if tag is not None else None, document, first)


def write_conll(path: Path, sentences: Sequence[TaggedSentence], tags: Sequence[Sequence[str]]) -> None:
    """Writes a line per word: the word, its gold tag if all sentences have tags, the predicted tag; separated by tabs.

    `read_conll`, `python -m bert_jax score conll` and CoNLL's script (as conlleval -d '\\t') read it. Each document but
    the first begins with a -DOCSTART- line; a sentence without words is lost.

    Args:
        path: the file, which is replaced.
        sentences: as they were read.
        tags: the predicted tags, one list per sentence, one tag per word.

    Raises:
        UserError: tags that do not match the sentences, a word that the format cannot hold, a path that cannot be
            written.
    """
    if len(tags) != len(sentences):
        raise UserError(f"{path}: {len(tags)} lists of predicted tags for {len(sentences)} sentences")
    with_gold = all(sentence.tags is not None for sentence in sentences)
    columns = ["O", "O"] if with_gold else ["O"]  # conlleval refuses lines of different lengths
    lines, document = [], 0
    for sentence, predicted in zip(sentences, tags, strict=True):
        where = f"{path}: the sentence of line {sentence.line}"
        if len(predicted) != len(sentence.words):
            raise UserError(f"{where} has {len(sentence.words)} words and {len(predicted)} predicted tags")
        if sentence.document != document:
            lines.append("\t".join([DOCUMENT_START, *columns]) + "\n\n")
            document = sentence.document
        for number, (word, tag) in enumerate(zip(sentence.words, predicted, strict=True)):
            if word in ("", DOCUMENT_START) or "\t" in word or "\n" in word:
                raise UserError(f"{where} has the word {quoted(word)}, which CoNLL's columns have no way to write")
            gold = [sentence.tags[number]] if with_gold and sentence.tags else []
            lines.append("\t".join([word, *gold, tag]) + "\n")
        lines.append("\n")
    try:
        path.write_bytes("".join(lines).encode())
    except UnicodeEncodeError as error:
        raise UserError(f"{path}: a word is not valid Unicode ({error.reason}), so nothing was written") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


def checked_tag(tag: str, where: str) -> str:
    """The tag; UserError, beginning with `where`, if it is neither O nor B-, I-, E- or S- with a type."""
    if not _PREFIXES.fullmatch(tag):
        raise UserError(f"{where}: the tag is {quoted(tag)}; expected O, or B-, I-, E- or S- and a type")
    return tag


def read_klue_ner(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of KLUE-NER (https://arxiv.org/abs/2105.09680, section 3.4): a character, a tab, its tag per line.

    "##" begins a comment. The words are characters, blanks included, since an entity's blanks have tags too. Each
    sentence is its own document: neighbours in the file are unrelated.

    Raises:
        UserError: a line without a tab, more than one character before it, or an invalid tag; with its line.
    """
    characters: list[str] = []
    tags: list[str] = []
    document, first = 0, 0
    for number, text in read_lines(path):
        line = text.removesuffix("\r")
        if line.startswith("##"):
            continue
        if not line:
            if characters:
                document += 1
                yield TaggedSentence(tuple(characters), tuple(tags), document, first)
                characters, tags = [], []
            continue
        where = f"{path}, line {number}"
        character, tab, tag = line.partition("\t")
        if not tab or len(character) != 1:
            raise UserError(f"{where}: {quoted(line)}; expected one character, a tab, and its tag")
        if not characters:
            first = number
        characters.append(character)
        tags.append(checked_tag(tag, where))
    if characters:
        yield TaggedSentence(tuple(characters), tuple(tags), document + 1, first)


def read_naver_ner(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of NAVER-NER as KoELECTRA publishes it: words with blanks between, a tab, as many tags.

    The file's tags PER-B, PER-I and O or "-" are returned as B-PER, I-PER and O. Each sentence is its own document.

    Raises:
        UserError: a line in another format, different numbers of words and tags, or an invalid tag; with its line.
    """
    document = 0
    for number, text in read_lines(path):
        line = text.removesuffix("\r")
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        cells = line.split("\t")
        if len(cells) != 2:
            raise UserError(f"{where}: {len(cells)} columns; expected a sentence, a tab, and the tags of its words")
        words, tags = cells[0].split(), cells[1].split()
        if len(words) != len(tags):
            raise UserError(f"{where}: {len(words)} words and {len(tags)} tags")
        document += 1
        yield TaggedSentence(tuple(words), tuple(_prefix_first(tag, where) for tag in tags), document, number)


TAG_READERS: dict[str, Callable[[Path], Iterator[TaggedSentence]]] = {
    "conll": read_conll,
    "tag": read_conll,
    "wnut17": read_conll,
    "klue-ner": read_klue_ner,
    "naver-ner": read_naver_ner,
}
"""A task of fine-tuning, or "conll" for files of other programs -> the reader of its files."""

SPLIT_OF_TASK = {"klue-ner": "characters", "naver-ner": "spaces"}
"""A task -> how a text is split into what its files tag: a key of `SPLITS`; "words" for a task that is not here."""


def _prefix_first(tag: str, where: str) -> str:
    type_, hyphen, prefix = tag.rpartition("-")
    if tag in ("O", "-"):
        return "O"
    if not hyphen or not type_ or prefix not in ("B", "I"):
        raise UserError(f"{where}: the tag is {quoted(tag)}; expected O, -, or a type and -B or -I")
    return f"{prefix}-{type_}"
