"""Lines of prose -> sentences, in any script; linear in the length of a line."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bert_jax.errors import UserError

# sentencex takes quadratic time if many sentences follow one another without a space (80,000 characters of
# Chinese: over a second), so it never gets more than a window. Prose with spaces gets a wide window.
_WINDOW, _SPACED_WINDOW = 1_000, 8_000
_SPACED = 0.05


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text, stripped, in order; line breaks ("\\n") end sentences too.

    language: an ISO 639-1 code, for the abbreviations that do not end a sentence. In every language the punctuation
    of all scripts ends a sentence (tested: English, German, Korean, Chinese, Japanese, Hindi, Arabic).

    Raises UserError if the package sentencex is missing.
    """
    segment = partial(_segmenter(), language)
    sentences = []
    for line in text.split("\n"):
        line = line.strip()
        if line:
            sentences += (piece for part in _split_line(line, segment) if (piece := part.strip()))
    return sentences


def with_leading_spaces(text: str, sentences: Iterable[str]) -> Iterator[str]:
    """The sentences of a text; each but the first starts with a space if white space precedes it.

    sentences: stripped, in order, with nothing but white space between them in `text`.
    """
    end = 0
    for sentence in sentences:
        start = text.index(sentence, end)
        yield f" {sentence}" if 0 < end < start else sentence
        end = start + len(sentence)


def _split_line(line: str, segment: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Split the line in windows: a window's last sentence may be incomplete, so it starts the next window."""
    start = 0
    while start < len(line):
        spaced = line.count(" ", start, start + _SPACED_WINDOW) > _SPACED * min(_SPACED_WINDOW, len(line) - start)
        window = line[start : start + (_SPACED_WINDOW if spaced else _WINDOW)]
        pieces = list(segment(window))
        if start + len(window) < len(line):
            pieces = pieces[:-1] or [_cut(window)]
        yield from pieces
        start += sum(map(len, pieces))


def _cut(window: str) -> str:
    """The part to cut off a window in which no sentence ends: up to its last blank past the middle, else all."""
    blank = window.rfind(" ")
    return window[: blank + 1] if blank > len(window) // 2 else window


def _segmenter() -> Callable[[str, str], Iterable[str]]:
    try:
        from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise UserError("splitting sentences needs the package sentencex: pip install 'bert-jax[train]'") from None
    return segment
