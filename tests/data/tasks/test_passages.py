"""Passages as windows, gold answers as positions, and answers from logits as in run_squad.py."""

import gzip
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.tasks.passages import answer_lengths, answer_positions, encode_passages, read_squad
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation import Question, squad1
from bert_jax.inference.tasks.question_answering import best_answers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##x", "##y", "what", "is", "?"]
QUESTIONS = ["what is a ?", "what is what is what is ?", "is b ?"]
CONTEXTS = ["a b cx d e f g h i j a b", "ax by", "c  d\te f a b c d e f g h i j"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(WORDS, cased=False)


@pytest.fixture
def passages(tokenizer):
    return encode_passages(tokenizer, QUESTIONS, CONTEXTS, max_length=12, stride=2, max_question_length=4)


def test_a_row_is_the_question_and_a_window(tokenizer, passages):
    first = tokenizer.ids_to_tokens(passages.rows["input_ids"][0])
    assert first == ["[CLS]", "what", "is", "a", "?", "[SEP]", "a", "b", "c", "##x", "d", "[SEP]"]
    assert passages.rows["token_type_ids"][0].tolist() == [0] * 6 + [1] * 6
    assert passages.question.tolist() == [0] * 5 + [1] + [2] * 5
    assert tokenizer.ids_to_tokens(passages.rows["input_ids"][5])[:6] == ["[CLS]", "what", "is", "what", "is", "[SEP]"]
    assert passages.rows["attention_mask"][5].tolist() == [1] * 11 + [0]


def test_offsets_are_characters_of_the_passage(passages):
    for row, number in enumerate(passages.question):
        for column in np.flatnonzero(passages.in_passage[row]):
            begin, end = passages.offsets[row, column]
            piece = WORDS[passages.rows["input_ids"][row, column]].removeprefix("##")
            assert CONTEXTS[number][begin:end] == piece


def test_each_token_of_a_passage_has_one_best_window(passages):
    for number in range(len(CONTEXTS)):
        rows = passages.question == number
        best = passages.offsets[rows][passages.is_best[rows]]
        everything = passages.offsets[rows][passages.in_passage[rows]]
        assert len(best) == len({tuple(span) for span in everything.tolist()})
    assert not (passages.is_best & ~passages.in_passage).any()


def test_an_answer_is_marked_where_a_window_holds_all_of_it(passages):
    begin = CONTEXTS[0].index("cx d")
    first, last = answer_positions(passages, [(begin, begin + 4), None, None])
    for row in range(5):
        marked = passages.offsets[row, first[row], 0], passages.offsets[row, last[row], 1]
        whole = {tuple(span) for span in passages.offsets[row][passages.in_passage[row]].tolist()}
        if {(begin, begin + 1), (begin + 1, begin + 2), (begin + 3, begin + 4)} <= whole:
            assert marked == (begin, begin + 4)
        else:
            assert first[row] == last[row] == 0
    assert not first[5:].any() and first[:5].any()


def test_without_a_stride_windows_of_all_lengths_overlap(tokenizer):
    """By a third of a row, at most 128: run_squad.py's number for its rows of 384 tokens."""
    context = "a " * 1000
    for length, stride in ((384, 128), (512, 128), (128, 42), (16, 5), (5, 1)):
        given, default = (
            encode_passages(tokenizer, ["is"], [context], max_length=length, **said)
            for said in ({"stride": stride}, {})
        )
        np.testing.assert_array_equal(given.offsets, default.offsets)
        own = length - 4
        assert stride < own or length == 5
        assert len(default.question) == 1 + math.ceil((1000 - own) / stride)


def test_the_tokens_of_an_answer_are_counted_across_windows(tokenizer, passages):
    spans = [(0, len(CONTEXTS[0])), None, (2, 9)]  # " d\te f "
    assert answer_lengths(passages, spans).tolist() == [13, 0, 3]
    assert not answer_positions(passages, spans)[1][:5].any()


def test_a_question_that_is_truncated_is_known(passages):
    assert passages.is_cut.tolist() == [False, True, False]


def by_definition(passages, start, end, contexts, number, n_best, longest):
    """run_squad.py's write_predictions, with its loops; but padding has no logits that were trained."""
    slices = []
    for row in np.flatnonzero(passages.question == number):
        real = np.flatnonzero(passages.rows["attention_mask"][row]).tolist()
        order = [sorted(real, key=lambda i, x=x: x[i], reverse=True)[:n_best] for x in (start[row], end[row])]
        for s in order[0]:
            for e in order[1]:
                inside = passages.in_passage[row, s] and passages.in_passage[row, e]
                if not inside or not passages.is_best[row, s] or e < s or e - s + 1 > longest:
                    continue
                slices.append((start[row, s] + end[row, e], passages.offsets[row, s, 0], passages.offsets[row, e, 1]))
    slices.sort(key=lambda one: one[0], reverse=True)
    texts = []
    for score, begin, stop in slices:
        text = contexts[number][begin:stop]
        if len(texts) < n_best and text not in [known for known, _ in texts]:
            texts.append((text, score))
    null = min(start[row, 0] + end[row, 0] for row in np.flatnonzero(passages.question == number))
    return texts, null


@pytest.mark.parametrize("n_best", [3, 20])
def test_answers_are_those_of_the_definition(passages, n_best):
    rng = np.random.default_rng(0)
    for _ in range(50):
        # Halves, so that scores tie.
        start, end = (np.round(rng.normal(size=passages.in_passage.shape) * 4) / 2 for _ in range(2))
        found = best_answers(passages, start, end, CONTEXTS, n_best=n_best, max_answer_length=3, null_answers=True)
        for number, answers in enumerate(found):
            texts, null = by_definition(passages, start, end, CONTEXTS, number, n_best, 3)
            assert [(c.text, c.score) for c in answers.candidates] == texts
            assert answers.null_score == null
            total = math.fsum(math.exp(score) for _, score in texts) + math.exp(null)
            for candidate in answers.candidates:
                assert CONTEXTS[number][candidate.start : candidate.end] == candidate.text
                assert candidate.probability == pytest.approx(math.exp(candidate.score) / total)
            if texts:
                assert answers.no_answer_score == null - texts[0][1]
                assert answers.text(threshold=answers.no_answer_score - 0.1) == ""
                assert answers.text(threshold=answers.no_answer_score) == texts[0][0] == answers.text()


def test_logits_of_padding_have_no_influence(passages):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, *passages.in_passage.shape))
    real = passages.rows["attention_mask"] > 0
    assert not real.all()
    expected = best_answers(passages, *logits, CONTEXTS, n_best=2, null_answers=True)
    assert best_answers(passages, *np.where(real, logits, 9.0), CONTEXTS, n_best=2, null_answers=True) == expected


def test_batches_may_be_padded_to_less_than_the_windows(tokenizer):
    passages = encode_passages(tokenizer, QUESTIONS, CONTEXTS, max_length=40, max_question_length=4)
    logits = np.random.default_rng(1).normal(size=(2, *passages.in_passage.shape))
    longest = (passages.rows["attention_mask"] > 0).sum(axis=1).max()
    assert longest < 40
    assert best_answers(passages, *logits[..., :longest], CONTEXTS) == best_answers(passages, *logits, CONTEXTS)


def test_no_legal_slice_is_no_answer(passages):
    start = np.where(passages.in_passage, -1.0, 1.0)
    (first, *_) = best_answers(passages, start, start, CONTEXTS, n_best=2)
    assert first.candidates == () and first.text() == "" and first.no_answer_score == np.inf


def test_a_long_passage_takes_no_memory_for_the_short_ones_beside_it(tokenizer):
    """All were padded to the longest: a book of a million tokens among 255 questions took over six gigabytes."""
    contexts = ["hello " * 20_000, *(f"hello {number}" for number in range(255))]
    tracemalloc.start()
    try:
        encode_passages(tokenizer, ["hello"] * len(contexts), contexts)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50 << 20


def test_a_question_that_leaves_no_room_is_one_line(tokenizer):
    says = "dev.json: 20 tokens of question 2, 'what .*', leave no room .* in a row of 16; allow longer rows"
    with pytest.raises(UserError, match=says):
        encode_passages(tokenizer, ["a", "what " * 20], ["a b"] * 2, max_length=16, stride=4, source="dev.json")
    with pytest.raises(UserError, match="no questions"):
        encode_passages(tokenizer, [], [])


@pytest.mark.slow
def test_the_gold_positions_give_the_gold_answers_back(data_dir: Path, tmp_path: Path):
    """The score of a perfect model on SQuAD's dev set: the loss from mapping answers to tokens and back."""
    vocabulary = tmp_path / "vocab.txt"
    packed = data_dir / "checkpoints" / "vocab" / "bert-base-uncased-vocab.txt.gz"
    vocabulary.write_bytes(gzip.decompress(packed.read_bytes()))
    tokenizer = Tokenizer.load(vocabulary, cased=False)
    questions = list(read_squad(data_dir / "finetune" / "squad" / "dev-v1.1.json.gz"))[::5]
    contexts = [question.context for question in questions]
    passages = encode_passages(tokenizer, [question.question for question in questions], contexts)
    spans = [(a.start, a.start + len(a.text)) for a in (question.answers[0] for question in questions)]
    first, last = answer_positions(passages, spans)
    start, end = (np.zeros(passages.in_passage.shape) for _ in range(2))
    rows = np.arange(len(first))
    start[rows, first] = end[rows, last] = 1.0
    start[:, 0] = end[:, 0] = -1.0
    found = best_answers(passages, start, end, contexts, max_answer_length=10**6)
    gold = [Question(question.id, (question.answers[0].text,)) for question in questions]
    scores = squad1(gold, {q.id: answers.text() for q, answers in zip(questions, found, strict=True)})
    print(scores)
    assert scores["exact_match"] > 99
