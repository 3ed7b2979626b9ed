"""Count the words of a text and learn a WordPiece vocabulary from the counts: the same text gives the same bytes."""

import heapq
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from bert_jax.data.tokenizer.families import BERT_SPECIAL_TOKENS
from bert_jax.data.tokenizer.pipelines import bert_normalizer, bert_pre_tokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import Splitter
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

_CHUNK_CHARACTERS = 1 << 21
LONGEST_WORD = 1000  # far beyond any tokenizer's limit; keeps binary data out of memory


def count_words(
    texts: Iterable[str],
    *,
    special_tokens: Iterable[str] = tuple(BERT_SPECIAL_TOKENS.values()),
    workers: int = 1,
    max_words: int = 2_000_000,
) -> dict[str, int]:
    """Counts words as BERT's pre-tokeniser splits them, before lower-casing and accent stripping.

    `learn_vocabulary` does both later; it needs the counts to decide about accents.

    Args:
        texts: any strings (documents, paragraphs, lines); consumed lazily, about 2 million characters at a time.
        special_tokens: removed from raw text, as the tokenizer will do.
        workers: processes (they import no JAX); 1 counts in this process. The result is the same for any number.
        max_words: bounds memory (about 1 kB per word while learning): above this many distinct words the rarest are
            dropped until half as many are left.

    Returns:
        word -> count, in no particular order.

    Raises:
        UserError: a text that is not valid Unicode.
    """
    return add_counts(_counted(texts, tuple(special_tokens), workers), max_words=max_words)


def add_counts(parts: Iterable[Mapping[str, int]], *, max_words: int = 2_000_000) -> dict[str, int]:
    """The sum of the counts of several texts; `max_words` as in `count_words`, applied after each text."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part)
        if len(counts) > max_words:
            counts = _without_rarest(counts, max_words // 2)
    return dict(counts)


def _counted(texts: Iterable[str], special_tokens: tuple[str, ...], workers: int) -> Iterator[dict[str, int]]:
    """Counts of each chunk, in the order of the text, so that pruning drops the same words for any `workers`."""
    jobs = ((chunk, special_tokens) for chunk in _chunks(texts))
    with Workers(workers) as pool:
        yield from pool.map("bert_jax.data.vocabulary:_count_chunk", jobs)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _count_chunk(job: tuple[list[str], tuple[str, ...]]) -> dict[str, int]:
    texts, special_tokens = job
    split = Splitter(lowercase=False, chinese_characters=True, literal_tokens=special_tokens)
    parts: Counter[str] = Counter()
    for text in texts:
        parts.update(split(text))
    normalizer = bert_normalizer(cased=True, strip_accents=False)
    pre_tokenizer = bert_pre_tokenizer()
    special = re.compile("|".join(map(re.escape, special_tokens)) or r"(?!)")
    words: Counter[str] = Counter()
    for part, count in parts.items():
        if part.isascii() and part.isalnum():
            words[part] += count
            continue
        for plain in special.split(part):
            try:
                normal = normalizer.normalize_str(plain)
            except UnicodeEncodeError as error:
                raise UserError(f"text is not valid Unicode: lone surrogate {plain[error.start]!a}") from None
            for word, _ in pre_tokenizer.pre_tokenize_str(normal):
                words[word] += count
    return {word: count for word, count in words.items() if len(word) <= LONGEST_WORD}


def _without_rarest(counts: Counter[str], keep: int) -> Counter[str]:
    """At most `keep` words, those above some frequency; the choice does not depend on their order."""
    by_count = Counter(counts.values())
    kept, threshold = 0, max(by_count)
    for count in sorted(by_count, reverse=True):
        if kept + by_count[count] > keep:
            break
        kept, threshold = kept + by_count[count], count - 1
    logger.warning("%d distinct words: dropping those seen at most %d times so far", len(counts), threshold)
    return Counter({word: count for word, count in counts.items() if count > threshold})


_SHIFT = 24  # a pair of piece numbers as one integer: left << 24 | right


class PairMerges:
    """Words as sequences of pieces, and how often each pair of neighbours occurs in them.

    Joining a pair updates the counts. The heap also holds outdated counts, which are recognised when they are popped.
    Ties go to the pair whose texts (left, then right) come first by code point, so the result does not depend on hash
    order, time or threads.

    Args:
        words: word -> count; a word's pieces are at first its characters, with "##" before all but the first.
    """

    def __init__(self, words: Mapping[str, int]):
        self.pieces: list[str] = []
        self._numbers: dict[str, int] = {}
        self._frequencies: list[int] = []
        self._words: list[tuple[int, ...]] = []
        self._counts: dict[int, int] = defaultdict(int)
        self._places: dict[int, list[int]] = defaultdict(list)  # pair -> words that may hold it
        for word in sorted(words):
            if len(word) > 1:
                self._add_word(word, words[word])
        self._heap = [self._entry(pair, count) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def _number(self, piece: str) -> int:
        number = self._numbers.setdefault(piece, len(self.pieces))
        if number == len(self.pieces):
            self.pieces.append(piece)
        return number

    def _add_word(self, word: str, frequency: int) -> None:
        numbers = (self._number(word[0]), *(self._number("##" + character) for character in word[1:]))
        index = len(self._words)
        self._words.append(numbers)
        self._frequencies.append(frequency)
        counts, places = self._counts, self._places
        for pair in map(_pair, numbers, numbers[1:]):
            counts[pair] += frequency
            place = places[pair]
            if not place or place[-1] != index:
                place.append(index)

    def _entry(self, pair: int, count: int) -> tuple[int, str, str, int]:
        return -count, self.pieces[pair >> _SHIFT], self.pieces[pair & ((1 << _SHIFT) - 1)], pair

    def join(self, min_frequency: int) -> str | None:
        """Joins the most frequent pair everywhere; returns its text, or None if no pair has `min_frequency`.

        The text may be that of an existing piece (##a + ##bc and ##ab + ##c).
        """
        while self._heap:
            count, left, right, pair = heapq.heappop(self._heap)
            now = self._counts.get(pair, 0)
            if now != -count:
                if now:
                    heapq.heappush(self._heap, self._entry(pair, now))
                continue
            if now < max(min_frequency, 1):
                return None
            joined = left + right[2:]
            self._join_everywhere(pair, self._number(joined))
            return joined
        return None

    def _join_everywhere(self, pair: int, joined: int) -> None:
        left, right = pair >> _SHIFT, pair & ((1 << _SHIFT) - 1)
        changes: dict[int, int] = defaultdict(int)
        for index in self._places.pop(pair):
            self._join_in_word(index, left, right, joined, changes)
        del self._counts[pair]
        changes.pop(pair, None)
        for changed, difference in changes.items():
            if not difference:
                continue
            count = self._counts.get(changed, 0) + difference
            if count:
                self._counts[changed] = count
            else:
                self._counts.pop(changed, None)
                self._places.pop(changed, None)
            if difference > 0:
                heapq.heappush(self._heap, self._entry(changed, count))

    def _join_in_word(self, index: int, left: int, right: int, joined: int, changes: dict[int, int]) -> None:
        old, frequency = self._words[index], self._frequencies[index]
        new: list[int] = []
        i, last = 0, len(old) - 1
        while i <= last:
            if i == last or old[i] != left or old[i + 1] != right:
                new.append(old[i])
                i += 1
                continue
            if new:
                changes[_pair(new[-1], left)] -= frequency
                self._put(_pair(new[-1], joined), index, frequency, changes)
            if i + 2 <= last:
                changes[_pair(right, old[i + 2])] -= frequency
                self._put(_pair(joined, old[i + 2]), index, frequency, changes)
            new.append(joined)
            i += 2
        self._words[index] = tuple(new)

    def _put(self, pair: int, index: int, frequency: int, changes: dict[int, int]) -> None:
        changes[pair] += frequency
        place = self._places[pair]
        if not place or place[-1] != index:
            place.append(index)


def _pair(left: int, right: int) -> int:
    return left << _SHIFT | right


def learn_pieces(words: Mapping[str, int], known: Iterable[str], number: int, min_frequency: int) -> list[str]:
    """The pieces to add to `known`, at most `number`, in the order in which they were learned.

    Args:
        words: word -> count, words of known characters only.
        known: the alphabet and special tokens; a piece among them does not count again.
        number: how many to learn.
        min_frequency: pairs rarer than this are not joined.
    """
    merges = PairMerges(words)
    seen, learned = set(known), []
    while len(learned) < number:
        piece = merges.join(min_frequency)
        if piece is None:
            break
        if piece not in seen:
            seen.add(piece)
            learned.append(piece)
    return learned


SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Scripts that lose letters, not accents, when text is decomposed and category Mn dropped: Hangul falls apart into jamo,
# kana lose their voicing, the scripts of India and South-East Asia their vowels. Inclusive ranges.
_DECOMPOSING_BLOCKS = (
    (0x0900, 0x109F),  # Devanagari to Myanmar
    (0x1100, 0x11FF),  # Hangul jamo
    (0x1700, 0x17FF),  # Tagalog to Khmer
    (0x1900, 0x1AAF),  # Limbu to Tai Tham
    (0x1B00, 0x1C4F),  # Balinese to Lepcha
    (0x1CD0, 0x1CFF),  # Vedic extensions
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3130, 0x318F),  # Hangul compatibility jamo
    (0x31F0, 0x31FF),  # Katakana phonetic extensions
    (0xA800, 0xA82F),  # Syloti Nagri
    (0xA880, 0xA8FF),  # Saurashtra, Devanagari extended
    (0xA930, 0xAADF),  # Rejang to Tai Viet, Hangul jamo extended-A
    (0xABC0, 0xABFF),  # Meetei Mayek
    (0xAC00, 0xD7FF),  # Hangul syllables, jamo extended-B
    (0xFF66, 0xFFDC),  # halfwidth Katakana and Hangul
    (0x11000, 0x1192F),  # Brahmi to Dives Akuru
)
_MOST_DECOMPOSING = 0.01


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their ids, and what a tokenizer needs to use them.

    report: words, distinct_words, characters of the alphabet kept and dropped, character_coverage reached,
    decomposing_letters (share of Hangul, kana, Indic, Thai), decomposed_words (share of those in Unicode's form NFD),
    why accents are stripped or kept, size.
    """

    pieces: tuple[str, ...]
    cased: bool
    strip_accents: bool
    report: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self, **options: Any) -> Tokenizer:
        """The tokenizer of these pieces (`options`: `Tokenizer.from_vocabulary`); its `save` writes the choices out."""
        return Tokenizer.from_vocabulary(self.pieces, cased=self.cased, strip_accents=self.strip_accents, **options)


def learn_vocabulary(
    word_counts: Mapping[str, int],
    *,
    size: int,
    cased: bool,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    character_coverage: float = 1.0,
    characters_of: Mapping[str, int] | None = None,
    max_word_length: int = 100,
) -> Vocabulary:
    """Learns a WordPiece vocabulary as the `tokenizers` library's WordPiece training does, but reproducibly.

    Starting from characters, the most frequent pair of neighbouring pieces becomes a piece, until there are `size`.
    Ties go to the pair that comes first by code point. Ids: special tokens, characters, "##" characters, pieces as
    learned. The text itself is no longer needed: memory and time grow with the number of distinct words.

    Args:
        word_counts: from `count_words`, or any other counts of words split as BERT's pre-tokeniser splits.
        size: number of pieces, with special tokens and characters. A short text may yield fewer.
        cased: if False, lower-case first.
        strip_accents: None: no if cased; if uncased, yes unless 1 % of the letters are Hangul, kana, Indic or Thai,
            which it would take apart. `Vocabulary.strip_accents` has the choice, the report the reason.
        min_frequency: pairs seen less often are not joined.
        character_coverage: the alphabet is the most frequent characters that make up this share of the text; a word
            with any other character becomes [UNK]. 1.0 keeps all; for text from the web 0.9999 is a good start.
        characters_of: counts of words whose characters are taken, if the words to learn from are a part of the text.
        max_word_length: words of more characters are skipped, since the tokenizer turns them into [UNK].

    Raises:
        UserError: no words, a `size` too small for the special tokens and the alphabet, or a `character_coverage` that
            is no share.
    """
    if not 0 < character_coverage <= 1:
        raise UserError(f"character_coverage is {character_coverage}, expected a share above 0 and at most 1")
    share = letters_that_decompose(word_counts)
    reason = "asked for"
    if strip_accents is None:
        strip_accents = not cased and share < _MOST_DECOMPOSING
        reason = "cased" if cased else f"{share:.2%} of the letters are Hangul, kana, Indic or Thai"
    fold = partial(fold_words, cased=cased, strip_accents=strip_accents, max_word_length=max_word_length)
    words = fold(word_counts)
    if not words:
        why = f"every word has more than {max_word_length} characters" if word_counts else "the text is empty"
        raise UserError(f"no words to learn a vocabulary from: {why}")
    spelt = words if characters_of is None else fold(characters_of)
    alphabet, coverage, characters = _alphabet(spelt, character_coverage)
    for some in (words, spelt):
        for word in [word for word in some if not alphabet.issuperset(word)]:
            del some[word]
    known = [*SPECIAL_TOKENS, *(c for c in sorted(alphabet) if c not in SPECIAL_TOKENS), *_continuing(spelt)]
    if len(known) > size:
        raise UserError(
            f"a vocabulary of {size} pieces is too small: {len(SPECIAL_TOKENS)} special tokens and an alphabet of "
            f"{len(known) - len(SPECIAL_TOKENS)} need {len(known)}"
        )
    pieces = tuple(known + learn_pieces(words, known, size - len(known), min_frequency))
    if len(pieces) < size:
        logger.warning(
            "the text gave only %d of the requested %d pieces: no remaining pair occurs %d times",
            len(pieces), size, min_frequency,
        )  # fmt: skip
    report = {
        "size": len(pieces),
        "words": sum(word_counts.values()),
        "distinct_words": len(word_counts),
        "alphabet": len(alphabet),
        "alphabet_dropped": characters - len(alphabet),
        "character_coverage": coverage,
        "decomposing_letters": share,
        "decomposed_words": _decomposed_words(word_counts),
        "strip_accents": strip_accents,
        "strip_accents_because": reason,
    }
    return Vocabulary(pieces, cased, strip_accents, report)


def letters_that_decompose(word_counts: Mapping[str, int]) -> float:
    """The share of the letters (by count) of Hangul, kana, Indic scripts or Thai, which accent stripping ruins."""
    letters: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            letters[character] += count
    decomposing = sum(count for letter, count in letters.items() if _decomposes(letter))
    total = sum(count for letter, count in letters.items() if letter.isalpha() or _decomposes(letter))
    return decomposing / total if total else 0.0


def _decomposed_words(word_counts: Mapping[str, int]) -> float:
    """The share of the words (by count) with a letter in several characters for which Unicode has one."""
    found = (count for word, count in word_counts.items() if len(unicodedata.normalize("NFC", word)) < len(word))
    return sum(found) / max(1, sum(word_counts.values()))


def _decomposes(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _DECOMPOSING_BLOCKS)


def fold_words(
    word_counts: Mapping[str, int],
    *,
    cased: bool,
    strip_accents: bool,
    max_word_length: int = 100,
) -> dict[str, int]:
    """Counts of words as the finished tokenizer will see them, by its own normaliser and pre-tokeniser."""
    normalizer = bert_normalizer(cased=cased, strip_accents=strip_accents)
    pre_tokenizer = bert_pre_tokenizer()
    words: defaultdict[str, int] = defaultdict(int)
    for word, count in word_counts.items():
        if word.isascii() and word.isalnum():
            words[word if cased else word.lower()] += count
            continue
        for folded, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(word)):
            words[folded] += count
    for word in [word for word in words if len(word) > max_word_length]:
        del words[word]
    return words


def _alphabet(words: Mapping[str, int], coverage: float) -> tuple[set[str], float, int]:
    """The characters kept, the share of the text they make up, and the number of distinct characters."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    total = sum(characters.values())
    ranked = sorted(characters, key=lambda c: (-characters[c], c))
    covered = 0

    def wanted(character: str) -> bool:
        nonlocal covered
        if covered >= coverage * total:
            return False
        covered += characters[character]
        return True

    kept = set(takewhile(wanted, ranked))
    return kept, covered / total, len(characters)


def _continuing(words: Mapping[str, int]) -> list[str]:
    return ["##" + character for character in sorted({c for word in words for c in word[1:]})]
