"""Tagged sentences: columns, CoNLL-U, Hugging Face's rows, KLUE-NER and NAVER-NER, and the reader of each task."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.tables import named_rows, suffix_of
from bert_jax.data.text.lines import read_lines
from bert_jax.errors import UserError, Wrong, errors_in_place, quoted, refuse, valid_unicode

DOCUMENT_START = "-DOCSTART-"
_PREFIXES = re.compile(r"[BIES]-.+|O")
_COLUMNS_OF_CONLLU = 10
_NO_UPOS = ("", "_")
_ID = re.compile(r"[0-9]+(?:[-.][0-9]+)?")
_WORDS_IN_ROWS = ("tokens", "words")
_TAGS_IN_ROWS = ("ner_tags", "tags", "labels")
_LABELS_IN_ROWS = ("pos_tags", "upos", "tags", "labels")
_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")


class TaggedSentence(NamedTuple):
    """Words and their tags (None if the file has none), the number of the document, the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int
    line: int


def checked_tag(tag: str, where: str) -> str:
    """The tag; UserError, beginning with `where`, if it is neither O nor B-, I-, E- or S- with a type."""
    if not is_entity_tag(tag):
        bilou = "; write U- and L- of BILOU as S- and E-" if tag.startswith(("U-", "L-")) else ""
        raise UserError(f"{where}: the tag is {quoted(tag)}; expected O, or B-, I-, E- or S- and a type{bilou}")
    return tag


def is_entity_tag(tag: str) -> bool:
    """Whether a tag is O, or B-, I-, E- or S- and a type."""
    return _PREFIXES.fullmatch(tag) is not None


def checked_label(label: str, where: str) -> str:
    """The label of a word; UserError, beginning with `where`, if it has a blank in it."""
    if len(label.split()) != 1:
        raise UserError(f"{where}: the tag is {quoted(label)}; expected one without blanks")
    return label


def read_conll(
    path: Path, *, tag: int | None = -1, check: Callable[[str, str], str] = checked_tag, wrong: Wrong = refuse
) -> Iterator[TaggedSentence]:
    """The sentences of a file whose columns are separated by tabs, or by spaces if a line has no tab.

    A .jsonl or .json file has rows instead, with "tokens" and "ner_tags" (or "words", "tags", "labels").
    All lines have as many columns, as conlleval requires: where one lacks its tag, the last column is another thing.

    Args:
        path: the file.
        tag: its column, whose number is -1 for the last (rows: any); None: only words are read, which the first has.
        check: called with each tag and its place; returns the tag, or raises UserError.
        wrong: called with the error of a line that is not UTF-8; its sentence is skipped.

    Raises:
        UserError: a line with one column, without a word or with another number of columns than the first, or a tag
            that `check` refuses.
    """
    if has_rows(path):
        return _of_rows(path, () if tag is None else _TAGS_IN_ROWS, check, wrong)
    first: tuple[int, str] | None = None  # the columns of the first line, and its place

    def word_of(line: str, where: str) -> tuple[str, str | None]:
        nonlocal first
        cells = _columns(line)
        if len(cells) < 2 and tag is not None:
            raise UserError(f"{where}: {quoted(line)} has one column; expected a word, a tab or space, and its tag")
        if not cells[0]:
            raise UserError(f"{where}: {quoted(line)} has no word; expected a word, a tab or space, and its tag")
        if tag is not None and (cells[tag] != cells[tag].rstrip() or not cells[tag]):
            raise UserError(f"{where}: {quoted(line)} ends in a blank, and a tag is expected there; remove it")
        count = len(cells) if "\t" in line else sum(map(bool, cells))  # spaces may align the columns
        first = first or (count, where.rpartition(", ")[2])
        if count != first[0]:
            raise UserError(f"{where}: {quoted(line)} has {count} columns; expected {first[0]}, as in {first[1]}")
        return cells[0], None if tag is None else check(cells[tag], where)

    return _sentences(path, lambda line: _columns(line)[0] == DOCUMENT_START, word_of, wrong)


def read_conllu(path: Path, *, tagged: bool = True, wrong: Wrong = refuse) -> Iterator[TaggedSentence]:
    """The sentences of a CoNLL-U file (https://universaldependencies.org/format.html): each FORM with its UPOS.

    The lines of multiword tokens (1-2) and of empty nodes (8.1) are skipped: the words of the sentence are those with
    a number. A document begins at "# newdoc".

    Args:
        path: the file.
        tagged: False: read words without tags.
        wrong: called with the error of a line that is not UTF-8; its sentence is skipped.

    Raises:
        UserError: a line without ten columns, an invalid ID, a word that is empty or, if `tagged`, has no UPOS.
    """

    def word_of(line: str, where: str) -> tuple[str, str | None] | None:
        if line.startswith("#"):
            return None
        cells = line.split("\t")
        if len(cells) != _COLUMNS_OF_CONLLU:
            raise UserError(f"{where}: found {len(cells)} columns; expected the ten of CoNLL-U with tabs between")
        id, form, _, upos, *_ = cells
        if not _ID.fullmatch(id):
            raise UserError(f"{where}: found the ID {quoted(id)}; expected a number, a range as in 1-2, or 8.1")
        if not id.isdecimal():
            return None
        if not form:
            raise UserError(f"{where}: found no word; expected one in the second column")
        if not tagged:
            return form, None
        if upos in _NO_UPOS:
            raise UserError(f"{where}: found {quoted(upos)} as the UPOS of {quoted(form)}; expected a tag of each word")
        return form, checked_label(upos, where)

    return _sentences(path, lambda line: _NEW_DOCUMENT.match(line) is not None, word_of, wrong)


def is_conllu(path: Path) -> bool:
    """Whether the first line of a file that is neither empty nor a comment has CoNLL-U's ten columns and an ID."""
    lines = (line.removesuffix("\r") for _, line in read_lines(path, wrong=lambda _: None))
    id, *others = next((line for line in lines if line.strip() and not line.startswith("#")), "").split("\t")
    return len(others) == _COLUMNS_OF_CONLLU - 1 and _ID.fullmatch(id) is not None


def has_upos(path: Path) -> bool:
    """Whether any word of a CoNLL-U file has a UPOS."""
    rows = (line.split("\t") for _, line in read_lines(path))
    return any(len(cells) == _COLUMNS_OF_CONLLU and cells[0].isdecimal() and cells[3] not in _NO_UPOS for cells in rows)


def read_pos(path: Path, *, tagged: bool = True, wrong: Wrong = refuse) -> Iterator[TaggedSentence]:
    """The sentences of a file in which each word has a label by itself: CoNLL-U, or columns or rows as of `read_conll`.

    Arguments and errors are those of `read_conllu` and `read_conll`; a label is anything without blanks. Of rows it is
    that in "pos_tags" or "upos", if there is one.
    """
    if has_rows(path):
        return _of_rows(path, _LABELS_IN_ROWS if tagged else (), checked_label, wrong)
    if is_conllu(path):
        return read_conllu(path, tagged=tagged, wrong=wrong)
    return read_conll(path, tag=-1 if tagged else None, check=checked_label, wrong=wrong)


def has_rows(path: Path) -> bool:
    """Whether a file has JSON objects, one per sentence, by its name."""
    return suffix_of(path) in (".jsonl", ".json")


def rows_have_tags(path: Path) -> bool:
    """Whether the first row of a file has tags or labels of its words."""
    first = next((row for _, row in named_rows(path)), {})
    return any(first.get(name) is not None for name in (*_TAGS_IN_ROWS, *_LABELS_IN_ROWS))


def _of_rows(
    path: Path, tags_in: tuple[str, ...], check: Callable[[str, str], str], wrong: Wrong
) -> Iterator[TaggedSentence]:
    """The sentences of JSON objects such as {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}.

    A row whose one word is -DOCSTART- begins a document.

    Args:
        path: the file.
        tags_in: the names under which tags may be, the first that is there is taken; (): only words are read.
        check: called with each tag and its place.
        wrong: called with the error of a line that is not a JSON object.
    """
    document = 0
    for number, row in named_rows(path, wrong):
        where = f"{path}, line {number}"
        _, words = _strings_of(row, _WORDS_IN_ROWS, where, "words")
        if words == (DOCUMENT_START,):
            document += 1
            continue
        for word in words:
            if word in ("", DOCUMENT_START) or "\t" in word or "\n" in word:
                raise UserError(f"{where}: found the word {quoted(word)}, which CoNLL's columns have no way to write")
            valid_unicode(word, f"{where}: {word!a}")
        if not tags_in:
            yield TaggedSentence(words, None, document, number)
            continue
        name, tags = _strings_of(row, tags_in, where, "tags")
        if len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} words and {len(tags)} in {quoted(name)}")
        yield TaggedSentence(words, tuple(check(tag, where) for tag in tags), document, number)


def _strings_of(row: dict[str, Any], names: tuple[str, ...], where: str, what: str) -> tuple[str, tuple[str, ...]]:
    """The first of `names` that a row has, and the list of strings there."""
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        raise UserError(f"{where}: has no {what}; expected a list of them as {' or '.join(map(quoted, names))}")
    values = row[name]
    if not isinstance(values, list) or not values:
        raise UserError(f"{where}: found {values!r:.60} as {quoted(name)}; expected a list of {what}")
    for value in values:
        if not isinstance(value, str):
            of_ids = f"names, not ids; features[{quoted(name)}].feature.names of the data set has them"
            expected = of_ids if what == "tags" else "strings"
            raise UserError(f"{where}: found {value!r:.60} in {quoted(name)}; expected {expected}")
    return name, tuple(values)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split(" ")


def _sentences(
    path: Path,
    starts_document: Callable[[str], bool],
    word_of: Callable[[str, str], tuple[str, str | None] | None],
    wrong: Wrong,
) -> Iterator[TaggedSentence]:
    """The sentences of a file with a word per line.

    Args:
        path: the file.
        starts_document: whether a line begins a document, and has no word.
        word_of: called with a line and its place; returns its word and tag (None: the file has none), or None if the
            line has no word.
        wrong: called with the error of a line that is not UTF-8; its sentence is skipped.
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
        starts = starts_document(line)
        if starts or not line.strip():
            if words and not unread:
                yield TaggedSentence(tuple(words), tuple(tags) if tags else None, document, first)
            words, tags, unread = [], [], False
            document += starts
            continue
        found = word_of(line, f"{path}, line {number}")
        if found is None:
            continue
        word, tag = found
        if not words:
            first = number
        words.append(word)
        if tag is not None:
            tags.append(tag)
    if words and not unread:
        yield TaggedSentence(tuple(words), tuple(tags) if tags else None, document, first)


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
    "pos": read_pos,
    "wnut17": read_conll,
    "klue-ner": read_klue_ner,
    "naver-ner": read_naver_ner,
}
"""A task of fine-tuning, or "conll" for files of other programs -> the reader of its files."""

WORD_TASKS = ("pos",)
"""Tasks that give each word a label by itself; the tags of the others are parts of entities."""

SPLIT_OF_TASK = {"klue-ner": "characters", "naver-ner": "spaces"}
"""A task -> how a text is split into what its files tag: a key of `SPLITS`; "words" for a task that is not here."""


def _prefix_first(tag: str, where: str) -> str:
    type_, hyphen, prefix = tag.rpartition("-")
    if tag in ("O", "-"):
        return "O"
    if not hyphen or not type_ or prefix not in ("B", "I"):
        raise UserError(f"{where}: the tag is {quoted(tag)}; expected O, -, or a type and -B or -I")
    return f"{prefix}-{type_}"
