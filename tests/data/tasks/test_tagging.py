"""Words and tags as rows and back: places of labels, windows over long sentences, context from the document."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.data.tasks.tagging import encode_tagged, find_tags, find_word_labels, tags_of
from bert_jax.data.tasks.tags import TaggedSentence, read_conll, read_klue_ner
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.labels import IGNORED_LABEL

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##x", "##y", "##z", "?"]
TAGS = ("O", "B-PER", "I-PER")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(WORDS, cased=False)


def sentence(text: str, tags: str | None = None, document: int = 0, line: int = 1) -> TaggedSentence:
    return TaggedSentence(tuple(text.split(" ")), None if tags is None else tuple(tags.split(" ")), document, line)


def rows_of(tagged, name: str) -> list[np.ndarray]:
    """The rows that a step gets, one at a time, without padding."""
    lengths = tagged.encoded.row_lengths
    padded = [
        tagged.encoded.batch(BatchPlan(np.array([n]), np.ones(1, bool), max(lengths))) for n in range(len(lengths))
    ]
    return [batch[name][0, : batch["attention_mask"].sum()] for batch in padded]


def texts(tokenizer, tagged) -> list[str]:
    return [" ".join(tokenizer.ids_to_tokens(row)) for row in rows_of(tagged, "input_ids")]


def test_a_label_stands_at_the_first_token_of_its_word(tokenizer):
    tagged = encode_tagged(tokenizer, [sentence("a bxy c?d ?", "O B-PER I-PER O")], TAGS, max_length=16)
    assert texts(tokenizer, tagged) == ["[CLS] a b ##x ##y c ? d ? [SEP]"]
    assert rows_of(tagged, "labels")[0].tolist() == [-100, 0, 1, -100, -100, 2, -100, -100, 0, -100]
    assert tagged.encoded.pads == {"input_ids": 0, "token_type_ids": 0, "labels": IGNORED_LABEL}


def test_a_word_of_which_nothing_is_left_keeps_its_place(tokenizer):
    """A control character, an empty word, a space: BERT's normalisation removes all of them."""
    words = ("\x01", "a", "", "\u200b", " ", "bx", "\x7f")
    tags = ("B-PER", "O", "I-PER", "B-PER", "O", "B-PER", "I-PER")
    tagged = encode_tagged(tokenizer, [TaggedSentence(words, tags, 0, 1)], TAGS, max_length=16)
    assert texts(tokenizer, tagged) == ["[CLS] [UNK] a [UNK] [UNK] [UNK] b ##x [UNK] [SEP]"]
    assert tags_of(tagged, rows_of(tagged, "labels"), TAGS) == [list(tags)]


def test_a_sentence_without_words_is_a_row_without_tags(tokenizer):
    sentences = [sentence("a", "O"), TaggedSentence((), (), 0, 3), sentence("b", "B-PER")]
    tagged = encode_tagged(tokenizer, sentences, TAGS, max_length=8)
    assert texts(tokenizer, tagged) == ["[CLS] a [SEP]", "[CLS] [SEP]", "[CLS] b [SEP]"]
    assert tags_of(tagged, rows_of(tagged, "labels"), TAGS) == [["O"], [], ["B-PER"]]
    alone = encode_tagged(tokenizer, sentences[1:2], TAGS, max_length=8)
    assert tags_of(alone, rows_of(alone, "labels"), TAGS) == [[]]


def test_without_tags_there_are_no_labels(tokenizer):
    for sentences, tags in (([sentence("a", "O"), sentence("b")], TAGS), ([sentence("a", "O")], None)):
        tagged = encode_tagged(tokenizer, sentences, tags, max_length=8)
        assert set(tagged.encoded.tokens) == {"input_ids", "token_type_ids"}
        predictions = [np.full(length, 2) for length in tagged.encoded.row_lengths]
        assert tags_of(tagged, predictions, TAGS) == [["I-PER"]] * len(sentences)


def random_sentences(rng: np.random.Generator, number: int) -> list[TaggedSentence]:
    """Words of 1 to 9 pieces in documents of several sentences; a quarter of the sentences have no words."""
    found = []
    for line in range(number):
        words = ["abcdefghij"[rng.integers(10)] + "xyz"[rng.integers(3)] * int(k) for k in rng.integers(0, 9, size=15)]
        words = words[: int(rng.integers(1, 15))] if rng.random() < 0.75 else []
        tags = tuple(TAGS[i] for i in rng.integers(0, 3, size=len(words)))
        found.append(TaggedSentence(tuple(words), tags, line // 4, line + 1))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("document_context", [False, True])
def test_gold_labels_come_back_through_windows_of_any_size(tokenizer, document_context):
    rng = np.random.default_rng(0)
    for _ in range(60):
        sentences = random_sentences(rng, 9)
        room = int(rng.integers(1, 40))
        stride = None if rng.random() < 0.5 else int(rng.integers(1, room + 1))
        tagged = encode_tagged(
            tokenizer, sentences, TAGS, max_length=room + 2, stride=stride, document_context=document_context
        )
        labels = rows_of(tagged, "labels")
        assert tags_of(tagged, labels, TAGS) == [list(s.tags or ()) for s in sentences]
        # Every word is learnt once, where it is predicted, and nothing else is.
        assert sum((row != IGNORED_LABEL).sum() for row in labels) == sum(len(s.words) for s in sentences)
        assert max(map(len, labels)) <= room + 2
        assert len(np.unique(tagged.positions)) == len(tagged.positions)


def test_a_word_is_predicted_in_the_window_that_shows_most_around_it(tokenizer):
    """Each token's context by run_squad.py's definition, over windows placed as in run_squad.py."""
    words = ["a", "bxyz", "c", "dx", "e", "f", "gxx", "h", "i", "j", "axy", "b"]
    only = TaggedSentence(tuple(words), ("O",) * len(words), 0, 1)
    pieces = [piece for word in words for piece in tokenizer.tokenize(word)]
    room, stride = 8, 3
    tagged = encode_tagged(tokenizer, [only], None, max_length=room + 2, stride=stride)
    starts = [0]
    while starts[-1] + room < len(pieces):
        starts.append(starts[-1] + stride)
    assert texts(tokenizer, tagged) == [" ".join(["[CLS]", *pieces[s : s + room], "[SEP]"]) for s in starts]
    # Predictions that show the window: the id of the tag is the number of the row.
    rows = [np.full(length, number) for number, length in enumerate(tagged.encoded.row_lengths)]
    names = [str(number) for number in range(len(rows))]
    expected, position = [], 0
    for word in words:
        scores = []
        for start in starts:
            end = min(start + room, len(pieces))
            inside = start <= position < end
            scores.append(min(position - start, end - 1 - position) + 0.01 * (end - start) if inside else -1)
        expected.append(str(scores.index(max(scores))))
        position += len(tokenizer.tokenize(word))
    assert tags_of(tagged, rows, names) == [expected]
    assert len(set(expected)) > 3


def test_without_a_stride_windows_overlap_by_half(tokenizer):
    tagged = encode_tagged(tokenizer, [sentence("a b c d e f g h i j")], None, max_length=6)
    assert [row[6:7] for row in texts(tokenizer, tagged)] == ["a", "c", "e", "g"]
    smallest = encode_tagged(tokenizer, [sentence("a b c")], None, max_length=3)
    assert texts(tokenizer, smallest) == ["[CLS] a [SEP]", "[CLS] b [SEP]", "[CLS] c [SEP]"]


def test_context_is_filled_up_from_both_sides_of_the_same_document(tokenizer):
    sentences = [
        sentence("a b c", "O O O", 1),
        sentence("d", "B-PER", 1),
        sentence("e f", "O O", 1),
        sentence("g h", "O O", 2),
        sentence("i", "B-PER", 3),
        sentence("j ?", "O O", 3),
    ]

    def rows(max_length):
        return encode_tagged(tokenizer, sentences, TAGS, max_length=max_length, document_context=True)

    assert [row[6:-6] for row in texts(tokenizer, rows(6))] == [
        "a b c d",
        "c d e f",
        "c d e f",
        "g h",
        "i j ?",
        "i j ?",
    ]
    # An odd token of room goes to the right side; if one side ends, the other fills the room.
    assert [row[6:-6] for row in texts(tokenizer, rows(5))] == ["a b c", "c d e", "d e f", "g h", "i j ?", "i j ?"]
    everything = rows(16)
    assert [row[6:-6] for row in texts(tokenizer, everything)] == ["a b c d e f"] * 3 + ["g h"] + ["i j ?"] * 2
    labels = [row[1:-1].tolist() for row in rows_of(everything, "labels")]
    no = IGNORED_LABEL
    assert labels[:3] == [[0, 0, 0, no, no, no], [no, no, no, 1, no, no], [no, no, no, no, 0, 0]]
    assert labels[3:] == [[0, 0], [1, no, no], [no, 0, 0]]


@pytest.mark.parametrize("document_context", [False, True])
def test_chosen_sentences_have_the_rows_that_they_have_among_all(tokenizer, document_context):
    sentences = [
        sentence("a bxy c", "O B-PER O"),  # as the next, longer than a row
        sentence("d e f g h i j", "B-PER O O O I-PER O O"),
        TaggedSentence((), (), 0, 3),
        sentence("e f", "O I-PER"),
        sentence("g h ?", "B-PER O O", document=1),
    ]

    def encoded(chosen=None):
        return encode_tagged(
            tokenizer, sentences, TAGS, max_length=6, stride=3, document_context=document_context, chosen=chosen
        )

    whole = encoded()
    rows_of_each = [2, 2, 1, 1, 1]
    begins = np.cumsum([0, *rows_of_each])
    for chosen in ([0, 3], [1], [1, 2, 4], [4], [*range(5)]):
        tagged = encoded(chosen)
        numbers = [row for number in chosen for row in range(begins[number], begins[number + 1])]
        for name in ("input_ids", "labels"):
            found, expected = rows_of(tagged, name), [rows_of(whole, name)[row] for row in numbers]
            assert list(map(list, found)) == list(map(list, expected))
        gold = [list(sentences[number].tags or ()) for number in chosen]
        assert tags_of(tagged, rows_of(tagged, "labels"), TAGS) == gold


def test_a_sentence_longer_than_the_model_has_context_in_its_last_window(tokenizer):
    sentences = [sentence("a b c d e", "O O O O O"), sentence("f g", "O O")]
    tagged = encode_tagged(tokenizer, sentences, TAGS, max_length=6, stride=4, document_context=True)
    assert [row[6:-6] for row in texts(tokenizer, tagged)] == ["a b c d", "d e f g", "d e f g"]
    assert [row[1:-1].tolist() for row in rows_of(tagged, "labels")][1] == [
        IGNORED_LABEL,
        0,
        IGNORED_LABEL,
        IGNORED_LABEL,
    ]


def test_tags_are_numbered_by_type_and_every_type_has_every_prefix():
    sentences = [sentence("a b c", "I-PER O B-LOC"), sentence("d", "I-ORG-x")]
    assert find_tags(sentences) == ("O", "B-LOC", "I-LOC", "B-ORG-x", "I-ORG-x", "B-PER", "I-PER")
    assert find_tags([sentence("a b", "S-X E-X")]) == ("O", "E-X", "S-X")


def test_what_cannot_be_learnt_is_one_line(tokenizer):
    with pytest.raises(UserError, match=r"train\.conll, line 7: has no tags"):
        find_tags([sentence("a", "O"), sentence("a", None, line=7)], "train.conll")
    with pytest.raises(UserError, match=r"train\.conll: no tag but O in 1 sentences"):
        find_tags([sentence("a", "O")], "train.conll")
    strange = [sentence("a b", "O B-LOC", line=12)]
    with pytest.raises(
        UserError, match=r"dev\.conll, sentence of line 12: 'b' has the tag 'B-LOC', which is not in .*\(O, B-P"
    ):
        encode_tagged(tokenizer, strange, TAGS, max_length=8, source="dev.conll")
    with pytest.raises(UserError, match="sentence of line 1: 2 words and 1 tags"):
        encode_tagged(tokenizer, [sentence("a b", "O")], TAGS, max_length=8)
    with pytest.raises(UserError, match="empty: no sentences"):
        encode_tagged(tokenizer, [], TAGS, max_length=8, source="empty")
    with pytest.raises(UserError, match="max_length=2 leaves no room for words beside the 2 added"):
        encode_tagged(tokenizer, strange, None, max_length=2)
    with pytest.raises(UserError, match="stride=0: expected at least 1"):
        encode_tagged(tokenizer, strange, None, max_length=8, stride=0)
    with pytest.raises(UserError, match="lone surrogate"):
        encode_tagged(tokenizer, [sentence("a \ud800")], None, max_length=8)


def test_labels_of_words_are_those_that_occur():
    sentences = [sentence("a b c", "VERB B-X NOUN"), sentence("a", "NOUN")]
    assert find_word_labels(sentences) == ("B-X", "NOUN", "VERB")
    with pytest.raises(UserError, match=r"^t.conllu: 2 sentences and only 'X' as a tag; expected at least two tags"):
        find_word_labels([sentence("a b", "X X"), sentence("a", "X")], "t.conllu")
    with pytest.raises(UserError, match=r"^t.conllu, line 7: has no tags"):
        find_word_labels([sentence("a", "X"), sentence("a", None, line=7)], "t.conllu")


def test_predictions_that_do_not_fit_are_one_line(tokenizer):
    tagged = encode_tagged(tokenizer, [sentence("a b"), sentence("c")], None, max_length=8)
    with pytest.raises(UserError, match="predictions for 2 rows of 8 tokens; expected 2 rows of 7"):
        tags_of(tagged, [np.zeros(4, int)] * 2, TAGS)
    with pytest.raises(UserError, match="predictions for 1 rows"):
        tags_of(tagged, [np.zeros(4, int)], TAGS)
    for id in (3, -1):
        with pytest.raises(UserError, match="but there are 3 tags"):
            tags_of(tagged, [np.full(4, id), np.zeros(3, int)], TAGS)


@pytest.fixture
def published(data_dir: Path, tmp_path: Path):
    def load(name: str, cased: bool) -> Tokenizer:
        packed = data_dir / "checkpoints" / "vocab" / f"{name}-vocab.txt.gz"
        (tmp_path / "vocab.txt").write_bytes(gzip.decompress(packed.read_bytes()))
        return Tokenizer.load(tmp_path / "vocab.txt", cased=cased)

    return load


@pytest.mark.slow
@pytest.mark.parametrize("document_context", [False, True])
def test_wnut17_comes_back_whole(published, data_dir, document_context):
    """Tweets with emoji, links and hash tags; 24 tokens, so that most are longer than the model."""
    tokenizer = published("bert-base-uncased", cased=False)
    folder = data_dir / "finetune" / "ner" / "wnut17"
    train, dev = (list(read_conll(folder / name)) for name in ("wnut17train.conll.gz", "emerging.dev.conll.gz"))
    tags = find_tags(train)
    assert len(tags) == 13  # 6 types, IOB2
    tagged = encode_tagged(tokenizer, dev, tags, max_length=24, document_context=document_context)
    assert len(tagged.encoded) > len(dev)
    assert tags_of(tagged, rows_of(tagged, "labels"), tags) == [list(s.tags or ()) for s in dev]


@pytest.mark.slow
def test_klue_comes_back_whole(published, data_dir):
    """Words are characters, including spaces, which have no tokens."""
    tokenizer = published("koelectra-v1", cased=True)
    path = data_dir / "finetune" / "ner" / "klue-ner-v1.1" / "klue-ner-v1.1_dev.tsv.gz"
    sentences = list(read_klue_ner(path))[::10]
    tags = find_tags(sentences)
    tagged = encode_tagged(tokenizer, sentences, tags, max_length=128)
    assert tags_of(tagged, rows_of(tagged, "labels"), tags) == [list(s.tags or ()) for s in sentences]
