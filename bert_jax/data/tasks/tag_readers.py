"""Tagged sentences in layouts other than CoNLL's: the Korean data sets KLUE-NER and NAVER-NER; and all by name."""

from collections.abc import Callable, Iterator
from pathlib import Path

from bert_jax.data.tasks.conll import TaggedSentence, checked_tag, read_conll
from bert_jax.data.text_files import read_lines
from bert_jax.errors import UserError


def read_klue_ner(path: Path) -> Iterator[TaggedSentence]:
    """KLUE-NER (https://arxiv.org/abs/2105.09680, section 3.4): a character a line, a tab, its tag; "##" is a comment.

    The words are characters, blanks among them, for an entity's blanks have tags too. Each sentence is a document of
    its own: neighbours in the file have nothing to do with each other.

    Raises:
        UserError: a line without a tab, more than one character before it, or a tag that is none; with its line.
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
            raise UserError(f"{where}: {line!r}; expected one character, a tab, and its tag")
        if not characters:
            first = number
        characters.append(character)
        tags.append(checked_tag(tag, where))
    if characters:
        yield TaggedSentence(tuple(characters), tuple(tags), document + 1, first)


def read_naver_ner(path: Path) -> Iterator[TaggedSentence]:
    """NAVER-NER as KoELECTRA publishes it: words parted by blanks, a tab, as many tags: O or "-", PER-B, PER-I.

    The tags come as B-PER, I-PER and O. Each sentence is a document of its own.

    Raises:
        UserError: a line of another form, other numbers of words and tags, or a tag that is none; with its line.
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
    "klue": read_klue_ner,
    "naver": read_naver_ner,
}


def _prefix_first(tag: str, where: str) -> str:
    type_, hyphen, prefix = tag.rpartition("-")
    if tag in ("O", "-"):
        return "O"
    if not hyphen or not type_ or prefix not in ("B", "I"):
        raise UserError(f"{where}: the tag is {tag!r}; expected O, -, or a type and -B or -I")
    return f"{prefix}-{type_}"
