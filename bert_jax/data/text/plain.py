"""Plain sentences: whole ones of everyday length, of words alone, with few names."""

import re

FEWEST_WORDS, MOST_WORDS, MOST_CAPITALISED = 4, 30, 0.2
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[,'’ -])*[.?!]")


def is_plain(sentence: str) -> bool:
    """Whether a sentence is plain, by what can be seen without a dictionary of its language.

    It has 4 to 30 words with blanks between them; nothing but letters, commas, apostrophes and hyphens; no small letter
    at its beginning; and a full stop, a question mark or an exclamation mark at its end. Capitals begin at most a fifth
    of its words, not counting the first. So headings, lists, figures, brackets, quotations and most names are left out.
    A script that writes no blanks has no plain sentences.
    """
    words = sentence.split()
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS or words[0][0].islower() or not _WORDS.fullmatch(sentence):
        return False
    return sum(word[0].isupper() for word in words[1:]) <= MOST_CAPITALISED * len(words)
