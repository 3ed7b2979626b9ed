"""Tagged words as rows of a model, and predictions at tokens as tags of words.

After https://arxiv.org/abs/1810.04805, section 5.3: a word's tag is learnt and predicted at its first token, tags are
predicted independently, and the neighbouring sentences may serve as context.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.tasks.encoded import Encoded, best_windows, windows
from bert_jax.data.tasks.tags import TaggedSentence
from bert_jax.data.tokenizer.layout import Segments, assemble, within
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, quoted
from bert_jax.labels import IGNORED_LABEL

_AT_ONCE = 256  # rows, which are padded to the longest of them


class Tagged(NamedTuple):
    """Rows of a model, and where in them the words of N sentences are: of all that were given, or of the chosen ones.

    Attributes:
        encoded: the rows; a long sentence has several. `tokens` has labels if all sentences have tags: the number of
            a word's tag at its first token, in one row only; IGNORED_LABEL at all other tokens.
        positions: int64 [tokens of all words], where in the concatenated rows a token is predicted: in the row that
            gives it the most context.
        piece_counts: int64 [words of all sentences], tokens of each word.
        word_counts: int64 [N], words of each sentence.
    """

    encoded: Encoded
    positions: np.ndarray
    piece_counts: np.ndarray
    word_counts: np.ndarray

    @property
    def first_pieces(self) -> np.ndarray:
        """Indices in `positions` of the words' first tokens, which carry their tags: int64 [words]."""
        return np.cumsum(self.piece_counts) - self.piece_counts


class _Rows(NamedTuple):
    """Pieces [begins, ends) of each row, int64 [R]; and the row that predicts each piece, int64 [T]."""

    begins: np.ndarray
    ends: np.ndarray
    row_of_piece: np.ndarray  # -1 for a piece that is only context


def find_tags(sentences: Sequence[TaggedSentence], source: str = "training data") -> tuple[str, ...]:
    """The tags that a model learns, by id: O, then each type with each prefix, sorted: O, B-LOC, I-LOC, B-ORG ...

    Every type gets every prefix that any type has: a rare type may lack names of two words by chance, and B- is so
    rare in CoNLL-2003's own IOB1 that its training file lacks it for one type.

    Args:
        sentences: of the training data.
        source: their file, for messages.

    Raises:
        UserError: a sentence without tags, with its line; or no entity at all.
    """
    found = _distinct(sentences, source)
    parts = [tag.partition("-") for tag in found if tag != "O"]
    if not parts:
        raise UserError(f"{source}: no tag but O in {len(sentences)} sentences, so there is nothing to learn")
    prefixes, types = sorted({prefix for prefix, _, _ in parts}), sorted({type_ for _, _, type_ in parts})
    return ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in prefixes))


def find_word_labels(sentences: Sequence[TaggedSentence], source: str = "training data") -> tuple[str, ...]:
    """The labels of single words that a model learns, by id: those that occur, sorted. Arguments as `find_tags`.

    Raises:
        UserError: a sentence without tags, with its line; or fewer than two different ones.
    """
    found = sorted(_distinct(sentences, source))
    if len(found) < 2:
        only = f"only {quoted(found[0])}" if found else "none"
        raise UserError(f"{source}: {len(sentences):,} sentences and {only} as a tag; expected at least two tags")
    return tuple(found)


def _distinct(sentences: Sequence[TaggedSentence], source: str) -> set[str]:
    found: set[str] = set()
    for sentence in sentences:
        if sentence.tags is None:
            raise UserError(f"{source}, line {sentence.line}: has no tags, but training needs them")
        found.update(sentence.tags)
    return found


def encode_tagged(
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedSentence],
    tags: Sequence[str] | None,
    *,
    max_length: int,
    stride: int | None = None,
    document_context: bool = False,
    chosen: Sequence[int] | None = None,
    source: str = "the sentences",
) -> Tagged:
    """Rows [CLS] sentence [SEP]; a sentence that is too long for the model becomes overlapping windows.

    Each word is tokenised by itself, as transformers does with `is_split_into_words`; a word that yields no token
    (a control character, a blank) becomes [UNK], so that it has a position. A word's tag is learnt and predicted in
    the one window in which its first token has the most context. So all words weigh the same in the loss, and nothing
    is learnt at the edge of a window that is not also predicted there.

    Args:
        tokenizer: the model's.
        sentences: with or without tags.
        tags: all tags by id, as `find_tags` or `find_word_labels` returns them; None: no labels.
        max_length: tokens per row, special tokens included.
        stride: tokens from the beginning of one window of a sentence to that of the next, at most a window. None: half
            a window, so that a token has a quarter of a window on either side in one of them, if the sentence does.
        document_context: fill each row with the text before and after in the same document, with the same number of
            tokens on both sides if possible. (A file without -DOCSTART- is one document.)
        chosen: numbers of the sentences that are to be learnt or predicted, in rising order; the
            others have no rows, and only serve them as context. None: all.
        source: the file of the sentences, for messages.

    Raises:
        UserError: no sentences, a tag that is not in `tags` (with its line), no room for a token, a stride below 1,
            words that are not valid Unicode.
    """
    room = max_length - tokenizer.special_tokens_added(pair=False)
    if not len(sentences):
        raise UserError(f"{source}: no sentences, so there is nothing to encode")
    if room < 1:
        raise UserError(f"max_length={max_length} leaves no room for words beside the {max_length - room} added tokens")
    ids, lengths = _pieces(tokenizer, [word for sentence in sentences for word in sentence.words])
    bounds = np.concatenate([[0], np.cumsum(lengths)])  # of words, in pieces
    word_counts = np.fromiter((len(sentence.words) for sentence in sentences), np.int64, len(sentences))
    ends = bounds[np.cumsum(word_counts)]
    spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
    documents = _documents(spans, [sentence.document for sentence in sentences]) if document_context else None
    picked = np.arange(len(sentences)) if chosen is None else np.asarray(chosen, np.int64)
    rows = _rows(spans, picked, documents, room, max(1, room // 2) if stride is None else stride)
    labels = None
    if tags is not None and all(sentence.tags is not None for sentence in sentences):
        labels = np.full(len(ids), IGNORED_LABEL, np.int32)
        labels[bounds[:-1]] = _label_ids(sentences, tags, source)
    encoded = _encoded(tokenizer, ids, labels, rows)
    # For each token its row, and its distance from the row's first token.
    row, starts = rows.row_of_piece, np.cumsum(encoded.row_lengths) - encoded.row_lengths
    positions = starts[row] + special_tokens_before(tokenizer) + np.arange(len(ids)) - rows.begins[row]
    has_row = np.isin(np.arange(len(sentences)), picked)
    return Tagged(encoded, positions[row >= 0], lengths[np.repeat(has_row, word_counts)], word_counts[picked])


def special_tokens_before(tokenizer: Tokenizer) -> int:
    """The number of special tokens before the first word of a row."""
    return next(number for number, slot in enumerate(tokenizer.layouts[0]) if slot.special_id is None)


def pieces_of_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of words, as `encode_tagged` makes them.

    Returns:
        their ids, int [T]; the word of each, int64 [T]; where in the word it begins and ends, int64 [T, 2].
    """
    spaced = _with_leading_spaces(tokenizer, words) if tokenizer.keeps_leading_space else words
    ids, lengths, spans = tokenizer.encode_flat_with_offsets(spaced)
    found, ends = [np.zeros((0, 2), np.int64)], np.cumsum(lengths)
    for word, given, end, length in zip(words, spaced, ends.tolist(), lengths.tolist(), strict=True):
        found.append(_places(given, word)[spans[end - length : end]] if length else np.array([[0, len(word)]]))
    return (
        _with_unknown(tokenizer, ids, lengths),
        np.repeat(np.arange(len(words)), np.maximum(lengths, 1)),
        np.concatenate(found),
    )


def tags_of(tagged: Tagged, predictions: Sequence[np.ndarray], tags: Sequence[str]) -> list[list[str]]:
    """The predicted tags: one list per sentence, one tag per word.

    Args:
        tagged: from `encode_tagged`.
        predictions: for each row of `tagged.encoded`, in order, the ids of the tags at its tokens, int [length of the
            row].
        tags: the tags by id.

    Raises:
        UserError: rows that do not match those of `tagged`, or an id without a tag.
    """
    found = np.fromiter(map(len, predictions), np.int64, len(predictions))
    if not np.array_equal(found, tagged.encoded.row_lengths):
        raise UserError(
            f"predictions for {len(found)} rows of {found.sum()} tokens; expected {len(tagged.encoded.row_lengths)} "
            f"rows of {tagged.encoded.row_lengths.sum()}, each as long as it is without padding"
        )
    ids: list[int] = np.concatenate(predictions)[tagged.positions[tagged.first_pieces]].tolist()
    if ids and not 0 <= min(ids) <= max(ids) < len(tags):
        raise UserError(f"predicted ids from {min(ids)} to {max(ids)}, but there are {len(tags)} tags")
    names = [tags[id] for id in ids]
    ends = np.cumsum(tagged.word_counts)
    return [names[begin:end] for begin, end in zip(ends - tagged.word_counts, ends, strict=True)]


def _pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all words end to end, and the number of ids per word, at least 1."""
    if tokenizer.keeps_leading_space:
        words = _with_leading_spaces(tokenizer, words)
    ids, lengths = tokenizer.encode_flat(words)
    return _with_unknown(tokenizer, ids, lengths), np.maximum(lengths, 1)


def _with_unknown(tokenizer: Tokenizer, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`ids` with [UNK] inserted for each word that yields no token."""
    lost = lengths == 0
    return np.insert(ids, np.cumsum(lengths)[lost], tokenizer.unk_token_id) if lost.any() else ids


def _places(spaced: str, word: str) -> np.ndarray:
    """For each position in a word with inserted spaces, and for its end, the position in the word: int64 [len + 1]."""
    if spaced == word:
        return np.arange(len(word) + 1)
    places, at = [0], 0
    for character in spaced:
        at += at < len(word) and character == word[at]
        places.append(at)
    return np.array(places)


def _with_leading_spaces(tokenizer: Tokenizer, words: Sequence[str]) -> list[str]:
    """The words, with a space before each, and after each special token written out in one.

    This acts like add_prefix_space, without which transformers' RoBERTa accepts no words."""
    literal = tokenizer.ids_to_tokens(tokenizer.all_special_ids) if tokenizer.literal_special_tokens else []
    tokens = list(map(re.escape, literal))
    before, after = "|".join([r"\A", *tokens]), "|".join([r"\Z", " ", *tokens])
    lacking = re.compile(f"({before})(?!{after})")
    return [lacking.sub(r"\1 ", word) for word in words]


def _label_ids(sentences: Sequence[TaggedSentence], tags: Sequence[str], source: str) -> list[int]:
    """The numbers of all words' tags."""
    ids = {tag: id for id, tag in enumerate(tags)}
    found = []
    for sentence in sentences:
        where, own = f"{source}, sentence of line {sentence.line}", sentence.tags or ()
        if len(own) != len(sentence.words):
            raise UserError(f"{where}: {len(sentence.words)} words and {len(own)} tags")
        for word, tag in zip(sentence.words, own, strict=True):
            if tag not in ids:
                raise UserError(
                    f"{where}: {quoted(word)} has the tag {quoted(tag)}, which is not in the training "
                    f"data ({', '.join(tags[:10])}{', ...' if len(tags) > 10 else ''})"
                )
            found.append(ids[tag])
    return found


def _documents(spans: np.ndarray, numbers: list[int]) -> np.ndarray:
    """For each sentence the pieces [begin, end) of its document, int64 [N, 2]: neighbours with the same number."""
    first = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    last = np.append(first[1:], len(numbers)) - 1
    return np.repeat(np.stack([spans[first, 0], spans[last, 1]], axis=1), last - first + 1, axis=0)


def _rows(spans: np.ndarray, chosen: np.ndarray, documents: np.ndarray | None, room: int, stride: int) -> _Rows:
    begins, ends, best = [], [], np.full(spans[-1, 1], -1, np.int64)
    for number, (first, last) in zip(chosen.tolist(), spans[chosen].tolist(), strict=True):
        found = windows(last - first, room, stride)
        best[first:last] = best_windows(last - first, found) + len(begins)
        for start, length in found:
            begin, end = first + start, first + start + length
            if documents is not None:
                low, high = documents[number].tolist()
                begin = max(low, min(begin - (room - length) // 2, high - room))
                end = min(high, begin + room)
            begins.append(begin)
            ends.append(end)
    return _Rows(np.array(begins, np.int64), np.array(ends, np.int64), best)


def _encoded(tokenizer: Tokenizer, ids: np.ndarray, labels: np.ndarray | None, rows: _Rows) -> Encoded:
    pads = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED_LABEL}
    parts: dict[str, list[np.ndarray]] = {}
    row_lengths = []
    for first in range(0, len(rows.begins), _AT_ONCE):
        begins, lengths = rows.begins[first : first + _AT_ONCE], (rows.ends - rows.begins)[first : first + _AT_ONCE]
        row, place = within(lengths)
        source = begins[row] + place
        fields = {"input_ids": ids[source]}
        if labels is not None:
            fields["labels"] = np.where(rows.row_of_piece[source] == first + row, labels[source], IGNORED_LABEL)
        width = int(lengths.max()) + tokenizer.special_tokens_added(pair=False)
        made = assemble(tokenizer.layouts[0], [Segments(lengths, fields)], lengths[None], pads, width)
        real = made["attention_mask"].astype(bool)
        row_lengths.append(real.sum(axis=1))
        for name in (*fields, "token_type_ids"):
            parts.setdefault(name, []).append(made[name][real])
    tokens = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    pads = {name: pads.get(name, 0) for name in tokens}
    return Encoded(tokens, pads, np.concatenate(row_lengths), {})
