"""Wrapped text is recognised by its column, and unwrapping gives the paragraphs back; nothing else is joined."""

import itertools
import json
import random
import re
import textwrap
from pathlib import Path

import pytest

from bert_jax.data.text import wrapped as wrapping
from bert_jax.data.text.corpus import Corpus, split_sentences
from bert_jax.data.text.lines import read_lines
from bert_jax.data.text.sources import find_sources
from bert_jax.data.text.wrapped import _cut_word, _Hyphens, find_column, unwrap

# "·": where a hyphenating printer may cut the word.
TEXT = """\
The lighthouse keeper kept a book in which he wrote down every ship that passed, and he was proud that no ship
had ever passed without an entry. He wrote the name, the hour and the weather, and he never once left out an
exam·ple of bad sea·man·ship if he saw one.

On the first day of March a well-known schooner came by under half her sails. It was the third time in a
month, and the keeper, who was not easily sur·prised, put down his pen and went out on the gal·lery to look at
her through the glass. Nobody stood at the wheel.

He called his wife. She looked for a long time, and then she said that the wheel was tied with a rope and that
the lamp in the cabin was burn·ing in broad day·light; it was, she said, the strang·est thing that she had
seen in twenty-seven years on the rock.

In the morning the merchants walked about on the gallery and saw a lamp burning in daylight, for the first time
in twenty-seven years: the strangest thing.


The schooner had been built for the fruit trade, and every child on that coast knew her well-known red hull.
For an example of how fast she was, people named the year in which she had carried oranges home in nine days,
and how surprised the mer·chants were in the morn·ing when they found her at the quay.

Her master was a careful man--too careful, said the younger captains--and it was his habit to write down, in
the evening, what had been done that day, in pre- and post-war spelling side by side. His seamanship was never
in doubt. In the winter of 1914-18, as he called those years, he lost nothing but an anchor."""
CHAPTERS = [[" ".join(p.split()) for p in chapter.split("\n\n")] for chapter in TEXT.split("\n\n\n")]
PARAGRAPHS = [paragraph.replace("·", "") for chapter in CHAPTERS for paragraph in chapter]
VERSE = """\
The lamp is lit, the glass is clean,
The tide runs out, the wind runs in,
And we shall say what we have seen
Before the tale of years begin."""
TABLE = """\
Month        Ships    Storms
March           41         3
April           57         1"""
MAIL = """\
From: the keeper of the light <keeper@rock.example>
To: the harbour master <master@harbour.example>
Subject: the schooner that passed here without a hand"""
QUOTED = """\
> You wrote that nobody stood at the wheel of the ship when she passed
> your rock, and I should like to know how near she came to you then."""
LIST = """\
- a coil of rope
- two lamps
- a glass"""
CODE = """\
    for ship in ships:
        if ship.wheel is None:
            keeper.call(wife)"""
SIGNATURE = "Yours,\n--\nThe keeper of the light upon the rock, who has not slept for three\ndays"
HEADER = """\
The Project Gutenberg eBook of The Keeper's Book

This ebook is for the use of anyone anywhere in the world at no cost
and with almost no restrictions whatsoever.

*** START OF THE PROJECT GUTENBERG EBOOK THE KEEPER'S BOOK ***
"""
FOOTER = """\
*** END OF THE PROJECT GUTENBERG EBOOK THE KEEPER'S BOOK ***

Updated editions will replace the previous one.
"""


def hyphenated(paragraph: str, width: int) -> list[str]:
    """Fills lines as a printer does: a word that does not fit is cut at a "·" or at its own hyphen if a part fits."""
    lines, line = [], ""
    for word in paragraph.split(" "):
        places = [i for i, letter in enumerate(word[:-1]) if letter in "·-" and "--" not in word]
        cuts = [(word[:i].replace("·", "") + "-", word[i + 1 :].replace("·", "")) for i in places]
        whole = word.replace("·", "")
        if len(f"{line} {whole}".strip()) <= width:
            line = f"{line} {whole}".strip()
            continue
        fitting = [(start, rest) for start, rest in cuts if len(f"{line} {start}") <= width]
        start, rest = fitting[-1] if fitting else ("", whole)
        lines.append(f"{line} {start}".strip())
        line = rest
    return [*lines, line]


def wrapped(paragraph: str, width: int) -> list[str]:
    return textwrap.wrap(paragraph, width, break_long_words=False)


def book(width: int, wrap=wrapped) -> str:
    """The chapters with everything that a book has between its paragraphs."""
    between = [VERSE, TABLE, MAIL, QUOTED, LIST, CODE, SIGNATURE]
    text = HEADER + "\n\n"
    blocks = iter(between)
    for number, chapter in enumerate(CHAPTERS * 4, 1):
        text += f"\n\n\nCHAPTER {number}\n\n\n"
        for paragraph in chapter:
            source = paragraph if wrap is hyphenated else paragraph.replace("·", "")
            text += "\n".join(wrap(source, width)) + "\n\n"
            text += f"{block}\n\n" if (block := next(blocks, "")) else ""
    return text + "\n" + FOOTER


def expected() -> list[list[str]]:
    """What a reader would call the paragraphs and lines of each chapter of `book`."""
    blocks, chapters = iter([VERSE, TABLE, MAIL, QUOTED, LIST, CODE, SIGNATURE]), []
    for number, chapter in enumerate(CHAPTERS * 4, 1):
        lines = [f"CHAPTER {number}"]
        for paragraph in chapter:
            lines += [paragraph.replace("·", ""), *(line.strip() for line in next(blocks, "").split("\n") if line)]
        chapters.append(lines)
    return chapters


def unwrapped(text: str) -> list[str]:
    return [line for line in unwrap(text.split("\n")) if line]


def documents(path: Path, text: str, **options) -> list[list[str]]:
    path.write_bytes(text.encode())
    return [document.split("\n") for document in Corpus(find_sources([path]), unwrap=True, **options)]


@pytest.mark.parametrize("wrap", [wrapped, hyphenated])
def test_a_wrapped_book_gives_back_its_paragraphs_and_keeps_all_else_as_lines(tmp_path, wrap):
    cut = 0
    for width in range(60, 81):
        text = book(width, wrap)
        cut += sum(line.endswith("-") and line[-2:-1].isalpha() for line in text.split("\n"))
        assert find_column(text.split("\n")) == (width, False)
        assert documents(tmp_path / "book.txt", text) == expected(), width
    assert cut > 40 or wrap is wrapped
    assert documents(tmp_path / "book.txt", text.replace("\n", "\r\n")) == expected()
    assert documents(tmp_path / "book.txt", "\ufeff" + text.replace("\n", "\r\n")) == expected()


def test_a_word_cut_by_a_hyphen_is_written_as_elsewhere_in_the_text():
    filled = [
        "so that the text has a column at which all of its lines have been wrapped,",
        "which takes two lines",
        "",
    ] * 12
    for known, broken, whole in (
        ("an example", "exam-\nple", "example"),
        ("a well-known", "well-\nknown", "well-known"),
        ("an example, a well-known", "Exam-\nple", "Example"),
        ("a mother-in-law", "mother-in-\nlaw", "mother-in-law"),
        ("some", "Anglo-\nSaxon", "Anglo-Saxon"),
        ("some", "pre-\nand post-war", "pre- and post-war"),
        ("some", "1914-\n18", "1914-18"),
        ("some", "64-\nbit", "64-bit"),
        ("some", "so\u00ad\nmewhere", "somewhere"),
        ("a dash--so", "keeper--\nalways", "keeper--always"),
        ("a dash -- so", "keeper --\nalways", "keeper -- always"),
    ):
        first, rest = broken.split("\n")
        filler = "x" * (74 - len(f"Here is {known} of it, "))
        text = "\n".join(
            [
                *filled,
                "",
                f"Here is {known} of it, {filler}".strip(),
                "",
                first.rjust(74, "y").replace("y" + first, " " + first),
                rest,
            ]
        )
        assert unwrapped(text)[-1].endswith(f" {whole}"), (known, broken)


def test_words_at_the_breaks_keep_their_hyphen_in_a_text_that_cuts_no_words():
    rows = [
        "The eco-system of the rock is small and its name is written with a hyphen-",
        "less word or with one, as it comes: ecosystem is as good as eco-system, eco-",
        "system is how this text has it where two lines meet, and it is well-",
        "known.",
    ]
    assert "hyphen-less" in unwrapped("\n".join(rows * 6))[0]


@pytest.mark.parametrize("script", ["ko", "zh"])
def test_scripts_without_case_and_without_spaces_are_unwrapped(script):
    rng = random.Random(5)
    letters = "가나다라마바사아자차카타파하" if script == "ko" else "日月水火木金土山川田人口目耳手足"
    paragraphs = []
    for _ in range(20):
        words = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 5))) for _ in range(60)]
        paragraphs.append(" ".join(words) + "." if script == "ko" else "".join(words) + "。")
    for wide in (1, 2) if script == "ko" else (1,):
        lines = []
        for paragraph in paragraphs:
            if script == "zh":
                lines += [paragraph[i : i + 35] for i in range(0, len(paragraph), 35)]
            else:  # as wide as two Latin letters, or as one
                lines += [
                    row.replace("·", "")
                    for row in textwrap.wrap("".join(c + "·" * (wide - 1) * (c > "\x7f") for c in paragraph), 70)
                ]
            lines.append("")
        assert unwrapped("\n".join(lines)) == paragraphs


def test_a_block_quotation_with_a_column_of_its_own_is_one_paragraph():
    quotation = PARAGRAPHS[1]
    rows = textwrap.wrap(quotation, 60, initial_indent=" " * 8, subsequent_indent=" " * 8)
    text = "\n\n".join(["\n".join(wrapped(p, 72)) for p in PARAGRAPHS] + ["\n".join(rows)])
    assert unwrapped(text) == [*PARAGRAPHS, quotation]


def test_paragraphs_may_begin_with_an_indented_line_and_no_blank_one():
    rows = [textwrap.wrap(p, 70, initial_indent="    ", break_long_words=False) for p in PARAGRAPHS * 3]
    assert unwrapped("\n".join(itertools.chain.from_iterable(rows))) == PARAGRAPHS * 3


def test_a_paragraph_as_long_as_the_file_takes_time_in_proportion(monkeypatch):
    paragraph = " ".join(PARAGRAPHS * 20).replace(".", ",")
    join, lengths = _Hyphens.join, []
    monkeypatch.setattr(_Hyphens, "join", lambda self, a, b: lengths.append(len(a)) or join(self, a, b))
    assert unwrapped("\n".join(wrapped(paragraph, 72))) == [paragraph]
    assert 1_000 < max(lengths) < 3_000 < len(paragraph) / 5


@pytest.mark.parametrize("line", ["a" * 300_000 + "1-", "a-" * 150_000 + "1-", "a" * 300_000 + "-"])
def test_a_word_as_long_as_the_file_takes_time_in_proportion(line):  # with its square: hours
    assert list(unwrap([line, "b c"])) == [line, "b c"]
    assert _Hyphens([]).join(line, "b c").replace("-", "").startswith("a" * 1000)


def test_the_last_word_of_a_line_is_what_a_search_for_it_finds():
    pattern = re.compile(r"[^\W\d_]+(?:[-‐'’][^\W\d_]+)*(?=[-‐]$)")
    rng = random.Random(0)
    for _ in range(20_000):
        line = "".join(rng.choices("aé字1_-‐'’ .", k=rng.randrange(12)))
        found = pattern.search(line)
        assert _cut_word(line) == (found.group() if found else "")


def test_a_block_without_end_is_read_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(wrapping, "SAMPLE_CHARS", 300)
    monkeypatch.setattr(wrapping, "_LARGEST_BLOCK", 6_600)
    read = itertools.count()
    lines = ("ab" for _ in itertools.takewhile(lambda number: number < 10_000, read))
    assert next(unwrap(lines)) == "ab"
    assert next(read) < 300


def test_a_long_block_is_cut_between_lines_and_loses_nothing(monkeypatch):
    paragraph = wrapped(" ".join(PARAGRAPHS[0].split() * 40), 72)
    (whole,) = unwrap(paragraph)
    monkeypatch.setattr(wrapping, "_LARGEST_BLOCK", 2_000)
    parts = list(unwrap(paragraph))
    assert len(parts) > 1 and " ".join(parts) == whole


def test_running_heads_page_numbers_and_form_feeds_do_not_break_a_paragraph():
    rows = [row for paragraph in PARAGRAPHS * 6 for row in (*wrapped(paragraph, 66), "")]
    pages = []
    for number, start in enumerate(range(0, len(rows), 20), 1):
        head = f"{number}   THE KEEPER'S BOOK" if number % 2 else f"CHAPTER ONE   {number}"
        pages.append("\n".join([head, "", *rows[start : start + 20], "", ""]))
    assert len(pages) > 6
    assert unwrapped("\f".join(pages)) == PARAGRAPHS * 6


def test_a_text_without_a_column_stays_as_it_is():
    sentences = [sentence for paragraph in PARAGRAPHS for sentence in split_sentences(paragraph)] * 3
    for lines in (sentences, PARAGRAPHS * 5, VERSE.split("\n") * 10, LIST.split("\n") * 10, CODE.split("\n") * 9):
        assert find_column(lines) is None
        assert unwrapped("\n".join(lines)) == [line.strip() for line in lines]


@pytest.fixture(scope="module")
def articles(data_dir: Path) -> dict[str, list[str]]:
    """The paragraphs of thirty Wikipedia articles in three languages."""
    found = {}
    for language in ("en", "ko", "zh"):
        lines = itertools.islice(read_lines(data_dir / "text" / f"wiki-{language}-00.jsonl.zst"), 30)
        texts = [json.loads(line)["text"] for _, line in lines]
        found[language] = [" ".join(p.split()) for text in texts for p in text.split("\n") if p.strip()]
    return found


@pytest.mark.slow
def test_wrapping_and_unwrapping_real_text_gives_back_its_paragraphs(articles):
    rng = random.Random(0)
    for paragraphs in (articles["en"], articles["ko"]):
        for width in rng.sample(range(60, 81), 3):
            lines = [line for paragraph in paragraphs for line in (*wrapped(paragraph, width), "")]
            found = find_column(lines)
            assert found and found.width == width
            restored = [line for line in unwrap(lines) if line]
            assert len(set(paragraphs) - set(restored)) <= len(paragraphs) / 200


def test_real_text_that_is_not_wrapped_is_not_taken_for_it(data_dir: Path, articles):
    for language, paragraphs in articles.items():
        sentences = [sentence for paragraph in paragraphs[:200] for sentence in split_sentences(paragraph, language)]
        assert find_column(paragraphs) is None
        assert find_column(sentences) is None
    tables = sorted((data_dir / "finetune").rglob("*.tsv.gz"))
    assert len(tables) > 20
    for path in [data_dir / "text" / "google-bert-sample_text.txt", data_dir / "text" / "hostile.txt.gz", *tables]:
        assert find_column([line for _, line in itertools.islice(read_lines(path), 300)]) is None, path
