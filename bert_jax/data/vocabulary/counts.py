"""Count the words of a text, split as the tokenizer splits, in parallel; the result is the same for any workers."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from bert_jax.data.tokenizer.families import BERT_SPECIAL_TOKENS
from bert_jax.data.tokenizer.pipelines import bert_normalizer, bert_pre_tokenizer
from bert_jax.data.tokenizer.words import Splitter
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError

logger = logging.getLogger(__name__)

_CHUNK_CHARACTERS = 1 << 21
_LONGEST_WORD = 1000  # far beyond any tokenizer's limit; keeps binary data out of memory


def count_words(
    texts: Iterable[str],
    *,
    chinese_characters: bool = True,
    special_tokens: Iterable[str] = tuple(BERT_SPECIAL_TOKENS.values()),
    workers: int = 1,
    max_words: int = 2_000_000,
) -> dict[str, int]:
    """Count words as BERT's pre-tokeniser splits them, before lower-casing and accent stripping.

    `learn_vocabulary` does both later; it needs the counts to decide about accents.

    Args:
        texts: any strings (documents, paragraphs, lines); consumed lazily, about 2 million characters at a time.
        chinese_characters: whether each Chinese character is a word (as for every published BERT).
        special_tokens: removed from raw text, as the tokenizer will do.
        workers: processes (they import no JAX); 1 counts in this process. The result is the same for any number.
        max_words: bounds memory (about 1 kB per word while learning): above this many distinct words the rarest are
            dropped until half as many are left.

    Returns:
        word -> count, in no particular order.

    Raises:
        UserError: a text that is not valid Unicode.
    """
    counts: Counter[str] = Counter()
    for part in _counted(texts, chinese_characters, tuple(special_tokens), workers):
        counts.update(part)
        if len(counts) > max_words:
            counts = _without_rarest(counts, max_words // 2)
    return dict(counts)


def _counted(
    texts: Iterable[str], chinese_characters: bool, special_tokens: tuple[str, ...], workers: int
) -> Iterator[dict[str, int]]:
    """Counts of each chunk, in the order of the text, so that pruning drops the same words for any `workers`."""
    jobs = ((chunk, chinese_characters, special_tokens) for chunk in _chunks(texts))
    with Workers(workers) as pool:
        yield from pool.map("bert_jax.data.vocabulary.counts:_count_chunk", jobs)


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


def _count_chunk(job: tuple[list[str], bool, tuple[str, ...]]) -> dict[str, int]:
    texts, chinese_characters, special_tokens = job
    split = Splitter(lowercase=False, chinese_characters=chinese_characters, literal_tokens=special_tokens)
    parts: Counter[str] = Counter()
    for text in texts:
        parts.update(split(text))
    normalizer = bert_normalizer(cased=True, strip_accents=False, chinese_characters=chinese_characters)
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
    return {word: count for word, count in words.items() if len(word) <= _LONGEST_WORD}


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
