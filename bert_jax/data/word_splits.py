"""Where a text may be cut so that its parts, tokenised one by one, give what the text gives."""

import re
from collections.abc import Callable, Iterable

# Runs of the characters that `tokenizers` turns into a space, or splits at, whatever stands beside them.
SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# The blocks that get spaces around each character. U+2B820-2B91F is left out: by a slip `tokenizers` does not space it.
CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Splitter:
    """Cuts a text where BERT's tokenisation cuts it in any case; call it with the text.

    The parts are coarser than words where the text is not plain (`is_plain`). Those of plain text are lower-cased if
    `lowercase` (the tokenizer would do it anyway).

    Args:
        lowercase: whether the tokenizer lower-cases.
        chinese_characters: whether the tokenizer puts spaces around Chinese characters.
        literal_tokens: special tokens that the tokenizer recognises inside raw text; they hold no white space.
    """

    def __init__(self, *, lowercase: bool, chinese_characters: bool, literal_tokens: Iterable[str]):
        self.lowercase = lowercase
        self._literal_tokens = list(literal_tokens)
        self._literal_words = [token for token in self._literal_tokens if token.isalnum()]
        self._coarse = re.compile(f"[{CHINESE}]|[^{SPACES}{CHINESE}]+" if chinese_characters else f"[^{SPACES}]+")

    def is_plain(self, text: str) -> bool:
        """Whether its words are the runs of ASCII letters and digits in it, and every other sign by itself."""
        if not text.isascii():
            return False
        literal = self._literal_tokens
        if text.isalnum():
            literal = self._literal_words
        elif _ASCII_CONTROLS.search(text):
            return False
        return not (literal and any(token in text for token in literal))

    def plain_words(self, text: str) -> list[str]:
        """The words of plain text."""
        return _ASCII_WORDS.findall(text.lower() if self.lowercase else text)

    def __call__(self, text: str) -> list[str]:
        if self.is_plain(text):
            return self.plain_words(text)
        if text.isascii() or "\n" not in text:
            return self._coarse.findall(text)
        # Line by line: one accent in a long document need not send all of it down the slow path.
        return [part for line in text.split("\n") for part in self(line)]


# Letters and signs that neither join a space beside them to one grapheme nor decompose into what would.
_PLAIN = (
    "!-~\u00c0-\u024f\u0370-\u03ff\u0400-\u0481\u048a-\u052f"  # ASCII, Latin, Greek, Cyrillic
    "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # kana, Chinese, Hangul
)


def space_splitter(*, keep_spaces: bool) -> Callable[[str], list[str]]:
    """A function that cuts a text at single spaces, where byte-level BPE and unigram models cut it in any case.

    Tokenising the parts one by one gives what tokenising the text gives.

    Args:
        keep_spaces: the space goes with the word after it (byte-level BPE: GPT-2's words begin with theirs, and none
            looks back; a mask token may swallow it). Otherwise it is left out, and only those between plain letters
            and signs are taken: SentencePiece's table of replacements is asked for whole graphemes, of which a space
            may be a part.
    """
    return re.compile(r"(?<=\S)(?= \S)" if keep_spaces else f"(?<=[{_PLAIN}]) (?=[{_PLAIN}])").split
