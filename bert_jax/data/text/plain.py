"""Plain sentences: whole ones of everyday length, of words alone, with few names."""

import re
import unicodedata

FEWEST_WORDS, MOST_WORDS, MOST_CAPITALISED = 4, 30, 0.2
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[,'’ -])*[.?!]")
_BESIDE_LETTERS = frozenset(",'’ -،\u200c\u200d")
_ENDS = frozenset(".?!।॥؟۔")


def is_plain(sentence: str) -> bool:
    """Whether a sentence is plain, by what can be seen without a dictionary of its language.

    It has 4 to 30 words with blanks between them; nothing but letters, commas, apostrophes and hyphens; no small letter
    at its beginning; and a full stop, a question mark or an exclamation mark at its end, those of Hindi and Arabic too.
    Capitals begin at most a fifth of its words, not counting the first. So headings, lists, figures, brackets,
    quotations and most names are left out. A script that writes no blanks has no plain sentences.
    """
    words = sentence.split()
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS or words[0][0].islower() or not _is_of_words(sentence):
        return False
    return sum(word[0].isupper() for word in words[1:]) <= MOST_CAPITALISED * len(words)


def _is_of_words(sentence: str) -> bool:
    """Whether a sentence begins with a letter, has nothing but letters and what joins them, and ends as one does."""
    if sentence.isascii():
        return _WORDS.fullmatch(sentence) is not None
    # A letter may be followed by marks, as in Hindi; a raised or circled digit is a number.
    words = set(sentence[:-1]) - _BESIDE_LETTERS
    return (
        sentence[0].isalpha()
        and sentence[-1] in _ENDS
        and all(unicodedata.category(character)[0] in "LM" for character in words)
    )
