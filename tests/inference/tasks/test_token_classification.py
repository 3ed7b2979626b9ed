"""token-classification: words and their places, long texts, tags to entities."""

import numpy as np
import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_jax.data.tasks.encoded import best_windows, windows
from bert_jax.data.tokenizer.words import between_spaces, characters_of, words_of
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.tasks.token_classification import Tag, TokenClassification, aggregated, entities_of
from tests.inference.tasks.task_folders import LONGEST, TAGS, export


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("tags"), "token-classification", labels=TAGS)


@pytest.fixture(scope="module")
def predict(folder) -> TokenClassification:
    return TokenClassification(folder, batch_size=4)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world's  end.",
        "a\u00a0b\tc\n",
        "도쿄에서 “중국어”…",
        "中文no空",
        "$5 €5 U.N. x_y",
        "हिन्दी।",
        "",
        " .",
        "..a",
    ],
)
def test_words_are_those_of_berts_pre_tokenizer(text):
    """Chinese is set apart by its normaliser, which puts spaces around it."""
    found = [text[begin:end] for begin, end in words_of(text)]
    spaced = BertNormalizer(lowercase=False, strip_accents=False).normalize_str(text)
    assert found == [word for word, _ in BertPreTokenizer().pre_tokenize_str(spaced)]


def test_other_words_where_a_model_was_trained_on_them(folder):
    assert between_spaces(" a, b\tc ") == [(1, 3), (4, 5), (6, 7)]
    assert characters_of("a b") == [(0, 1), (1, 2), (2, 3)]
    text = "hello, world"
    by_space = TokenClassification(folder, split="spaces")(text)
    assert {bound for row in by_space for bound in (row["start"], row["end"])} <= {0, 6, 7, 12}
    with pytest.raises(UserError, match="split='lines': expected one of words, spaces, characters"):
        TokenClassification(folder, split="lines")


def test_what_has_no_token_is_no_word_of_a_text(folder):
    """As in transformers' pipeline; as [UNK] it would be an entity, and change the tags of the words beside it."""
    predict = TokenClassification(folder, aggregation_strategy="none", ignore_labels=[])
    plain, invisible = predict(["hello world.", "hello \u200b world \u0301 \ufeff."])
    of_both = [[(row["entity"], row["index"], row["word"]) for row in rows] for rows in (plain, invisible)]
    assert of_both[0] == of_both[1]
    assert [row["score"] for row in invisible] == pytest.approx([row["score"] for row in plain])
    assert [row["start"] for row in invisible] == [0, 8, 17]
    characters = TokenClassification(folder, split="characters", aggregation_strategy="none", ignore_labels=[])
    assert [row["start"] for row in characters("a b")] == [0, 1, 2]  # a blank has a tag, as in training


def test_a_special_token_is_one_word_and_found_without_a_pass_over_all_words(folder, monkeypatch):
    """With a pass for each token a document of 100,000 words took five minutes."""
    passes = []

    class Spans(list):
        def __iter__(self):
            passes.append(1)
            return super().__iter__()

    predict = TokenClassification(folder)
    monkeypatch.setattr(predict, "_split", lambda text: Spans(words_of(text)))
    text = "hello [MASK] x[SEP]y world " * 20
    words = [text[begin:end] for begin, end in list.__iter__(predict._spans(text))]
    assert words == ["hello", "[MASK]", "x", "[SEP]", "y", "world"] * 20
    assert not passes


@pytest.mark.slow
def test_entities_are_slices_and_a_list_gives_what_its_texts_give_alone(predict):
    texts = ["Hello WORLDS", "held o'hello,\t world ", "", "hello world. " * 8, "中h中"]
    together = predict(texts)
    assert sum(map(len, together)) > 6
    for text, found in zip(texts, together, strict=True):
        alone = predict(text)
        for row, same in zip(found, alone, strict=True):
            assert row == same | {"score": pytest.approx(same["score"], rel=1e-4)}
            assert row["word"] == text[row["start"] : row["end"]]
            assert row["word"] == row["word"].strip() != ""
    assert predict([]) == []


@pytest.mark.slow
def test_of_a_long_text_each_word_is_read_where_it_has_the_most_context(folder, predict):
    """The windows of run_squad.py, each given to the model by itself."""
    _, params, tokenizer, _ = loaded = load(folder)
    words = ["hello", "world", "o", "held", "d", ","] * 15
    room = LONGEST - 2
    found = windows(len(words), room, room // 2)
    best = best_windows(len(words), found)
    expected = []
    for start, length in found:
        inputs = tokenizer([" ".join(words[start : start + length])])  # type: ignore[misc]
        expected.append(loaded.model.apply({"params": params}, **inputs).logits[0, 1:-1].argmax(-1))  # type: ignore[union-attr]
    wanted = [TAGS[expected[best[i]][i - found[best[i]].start]] for i in range(len(words))]
    assert len(found) > 3
    (tags,) = predict.tags([words])
    assert [tag.label for tag in tags] == wanted
    assert len(set(wanted)) > 1


def test_the_chances_of_a_word_are_those_of_its_first_or_surest_sub_token_or_their_mean():
    of_pieces = np.array([[0.6, 0.4], [0.1, 0.9], [0.5, 0.5], [0.7, 0.3], [0.2, 0.8], [0.3, 0.7]])
    expected = {
        "first": [[0.6, 0.4], [0.5, 0.5], [0.7, 0.3]],
        "max": [[0.1, 0.9], [0.5, 0.5], [0.2, 0.8]],
        "average": [[0.35, 0.65], [0.5, 0.5], [0.4, 0.6]],
    }
    for how, chances in expected.items():
        np.testing.assert_allclose(aggregated(of_pieces, np.array([2, 1, 3]), how), chances)


def test_tags_of_every_scheme_become_entities():
    cases = {
        "B-A I-A I-A O": ["A 0-2"],
        "I-A I-A B-A": ["A 0-1", "A 2-2"],
        "B-A I-B": ["A 0-0", "B 1-1"],
        "S-A S-A B-A E-A I-A": ["A 0-0", "A 1-1", "A 2-3", "A 4-4"],
        "O I-A O I-A": ["A 1-1", "A 3-3"],
        "A A B O": ["A 0-1", "B 2-2"],
        "B-first-name I-first-name": ["first-name 0-1"],
    }
    for labels, expected in cases.items():
        tags = [Tag(label, 0.25 * (1 + number % 2)) for number, label in enumerate(labels.split())]
        words = [f"w{number}" for number in range(len(tags))]
        spans = [(3 * number, 3 * number + 2) for number in range(len(tags))]
        found = [row for row in entities_of(tags, spans, " ".join(words)) if row["entity_group"] != "O"]
        assert [f"{row['entity_group']} {row['word'][1]}-{row['word'][-1]}" for row in found] == expected
        for row in found:
            assert " ".join(words)[row["start"] : row["end"]] == row["word"]
            inside = [tags[int(word[1:])].score for word in row["word"].split()]
            assert row["score"] == pytest.approx(np.mean(inside))


def test_words_instead_of_texts_are_one_clear_line(predict):
    with pytest.raises(UserError, match=r"expected a string, found .*; for words use is_split_into_words=True"):
        predict([["hello", "world"]])


def test_an_invalid_word_is_named_with_its_text(predict):
    for wrong, message in (
        (["hello", "a\ud800"], r"text 2, word 2 is not valid Unicode: lone surrogate"),
        (["hello", 7], r"text 2, word 2: expected a string, found 7"),
        (7, r"text 2: expected a list of words, found 7"),
        ("hello", r"text 2: expected a list of words, found 'hello'"),
    ):
        found = list(predict.stream([["hello"], wrong, ["world"]], is_split_into_words=True, on_error="return"))
        assert [isinstance(one, UserError) for one in found] == [False, True, False]
        with pytest.raises(UserError, match=message):
            predict([["hello"], wrong], is_split_into_words=True)
    with pytest.raises(UserError, match=r"text 2, word 1 is not valid Unicode"):
        predict.tags([["hello"], ["\ud800"]])


def test_words_and_what_stands_between_them_are_one_text(folder, predict):
    words = ["hello", "world,", "held"]
    (alone,) = found = predict(words, is_split_into_words=True, delimiter=", ", ignore_labels=[])
    assert found == predict([words], is_split_into_words=True, delimiter=", ", ignore_labels=[])
    assert "".join(row["word"] for row in alone).replace(", ", "") == "helloworld,held"
    assert [row["word"] for row in alone] == ["hello, world,, held"[row["start"] : row["end"]] for row in alone]
    assert predict([], is_split_into_words=True) == []
    sentences = [words, ["held"], ["world", "hello"]]
    listed = predict(sentences, is_split_into_words=True)
    assert predict(iter(sentences), is_split_into_words=True) == listed and len(listed) == 3
    assert predict(np.array(["held", "hello"]), is_split_into_words=True) == predict(
        [["held", "hello"]], is_split_into_words=True
    )
    told = TokenClassification(folder, is_split_into_words=True, delimiter=", ", ignore_labels=[])
    assert told(words) == found
    assert told("hello world", is_split_into_words=False, aggregation_strategy="FIRST") == predict(
        "hello world", ignore_labels=[]
    )


def test_options_of_a_call_that_cannot_be(predict, folder):
    for options, message in {
        (
            "aggregation_strategy",
            "last",
        ): "aggregation_strategy='last': expected one of none, simple, first, max, average",
        ("ignore_labels", "O"): r"ignore_labels='O': expected a list of labels",
        ("aggregation_strategy", 1): "aggregation_strategy=1: expected one of none, simple",
        ("delimiter", 1): "delimiter=1: expected the characters between two words",
        ("stride", "2"): "stride='2': expected a whole number, at least 0",
        ("stride", LONGEST - 2): f"stride={LONGEST - 2}: expected 0 to {LONGEST - 3}",
    }.items():
        name, value = options
        with pytest.raises(UserError, match=message):
            predict("hello", **{name: value})
        with pytest.raises(UserError, match=message):
            TokenClassification(folder, **{name: value})
    with pytest.raises(UserError, match="expected a list of words, found 'hello'"):
        predict([["hello"], "hello"], is_split_into_words=True)
    with pytest.raises(UserError, match="expected a list of words, found 'hello world'"):
        predict("hello world", is_split_into_words=True)


def test_windows_share_as_many_tokens_as_a_call_says(predict):
    text = "hello world " * 40
    options = [predict.settled | {"stride": stride} for stride in (0, 16, LONGEST - 4)]
    rows = {one["stride"]: len(predict.encode([text], 0, **one)[1].row_lengths) for one in options}
    assert rows == {0: 3, 16: 4, LONGEST - 4: 25}
    for stride in rows:
        assert predict(text, stride=stride, ignore_labels=[])[-1]["end"] == len(text.rstrip())
