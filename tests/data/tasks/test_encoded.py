"""Rows made from concatenated tokens equal the tokenizer's own padded rows, for any batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tasks.encoded import Encoded, encode_choices, encode_texts
from bert_jax.data.tasks.length_batches import BatchPlan, LengthBatches, evaluation_batches
from bert_jax.data.tasks.multiple_choice import Choices
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from tests.data.tokenizer.tokenizer_folders import byte_level_files, write

RNG = np.random.default_rng(0)
WORDS = ["hello", "world", "held", "o", "he", "lo", ",", "d"]
LONGEST = 14


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["", *(" ".join(rng.choice(WORDS, size=int(rng.integers(1, 20)))) for _ in range(count - 1))]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    if request.param == "roberta":
        return Tokenizer.load(write(tmp_path_factory.mktemp("roberta"), **byte_level_files()))
    return Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##l"], cased=False)


def plans(examples: Encoded) -> list[BatchPlan]:
    """Batches of training and of evaluation, and one with repeated examples in any order, not all of which count."""
    order = LengthBatches(examples.lengths, 4, padded=(8, LONGEST))
    count = len(examples)
    anyhow = BatchPlan(RNG.integers(0, count, 9).astype(np.int32), RNG.random(9) < 0.5, LONGEST + 5)
    return [
        *(order.batch(step) for step in range(order.steps_per_epoch)),
        *evaluation_batches(examples.lengths, 3, padded=(5, 9, LONGEST)),
        anyhow,
    ]


def expected(tokenizer: Tokenizer, first: list[str], second: list[str] | None, length: int) -> dict[str, np.ndarray]:
    """The tokenizer's own rows; its token types are 0 where the model has none."""
    cut = tokenizer.with_max_length(LONGEST)(first, second, padding="longest")
    pads = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
    cut.setdefault("token_type_ids", np.zeros_like(cut["input_ids"]))
    width = max(length, cut["input_ids"].shape[1])
    return {
        name: np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=pads[name])[:, :length]
        for name, rows in cut.items()
    }


@pytest.mark.parametrize("paired", [False, True])
def test_rows_are_the_tokenizers(tokenizer: Tokenizer, paired: bool):
    first, second = texts(23, seed=1), texts(23, seed=2) if paired else None
    labels = np.arange(23, dtype=np.int32) * 10
    examples = encode_texts(tokenizer, first, second, max_length=LONGEST, targets={"labels": labels})
    assert len(examples) == 23
    assert examples.lengths.max() == LONGEST  # some are cut
    for plan in plans(examples):
        batch = examples.batch(plan)
        chosen = [first[n] for n in plan.examples], second and [second[n] for n in plan.examples]
        for name, rows in expected(tokenizer, *chosen, plan.length).items():
            np.testing.assert_array_equal(batch[name], rows, err_msg=name)
            assert batch[name].dtype == np.int32
        np.testing.assert_array_equal(batch["labels"], plan.examples * 10)
        np.testing.assert_array_equal(batch["weights"], plan.counts.astype(np.float32))
        assert batch.keys() == {"input_ids", "token_type_ids", "attention_mask", "labels", "weights"}


@pytest.mark.parametrize("paired", [False, True])
def test_a_text_alone_has_the_row_that_it_has_among_others(tokenizer: Tokenizer, paired: bool):
    first, second = texts(23, seed=4), texts(23, seed=5) if paired else None
    ids, types, lengths, _ = tokenizer.encode_joined(first, second, max_length=LONGEST)
    alone = [
        tokenizer.encode_joined([text], second and [second[number]], max_length=LONGEST)[:3]
        for number, text in enumerate(first)
    ]
    for together, singly in zip((ids, types, lengths), zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(together, np.concatenate(singly))
        assert {one.dtype for one in singly} == {together.dtype}
    assert lengths.min() < LONGEST == lengths.max()


def questions(count: int, **fields: Any) -> list[Choices]:
    """Questions with three and four choices by turns."""
    endings = texts(4 * count, seed=3)
    found = []
    for number in range(count):
        choices = 3 + number % 2
        first = (f"hello {WORDS[number % len(WORDS)]}",) * choices
        second = tuple(endings[4 * number : 4 * number + choices])
        found.append(Choices(str(number), first, second, number % choices, number + 1)._replace(**fields))
    return found


def test_each_choice_is_a_row_and_questions_are_padded_to_the_most_choices(tokenizer: Tokenizer):
    asked = questions(11)
    examples = encode_choices(tokenizer, asked, max_length=LONGEST)
    assert len(examples) == 11
    for plan in plans(examples):
        batch = examples.batch(plan)
        assert batch["input_ids"].shape == (len(plan.examples), 4, plan.length)
        for row, number in enumerate(plan.examples):
            question = asked[number]
            width = len(question.second)
            wanted = expected(tokenizer, list(question.first), list(question.second), plan.length)
            for name, rows in wanted.items():
                np.testing.assert_array_equal(batch[name][row, :width], rows, err_msg=name)
                np.testing.assert_array_equal(batch[name][row, width:], rows[:1].repeat(4 - width, axis=0))
            assert batch["is_choice"][row].tolist() == [choice < width for choice in range(4)]
            assert batch["labels"][row] == question.label
        np.testing.assert_array_equal(batch["weights"], plan.counts)


def test_an_example_is_as_long_as_its_longest_choice(tokenizer: Tokenizer):
    asked = questions(5)
    lengths = encode_choices(tokenizer, asked, max_length=LONGEST).lengths
    one_by_one = [
        expected(tokenizer, list(q.first), list(q.second), LONGEST)["attention_mask"].sum(axis=1).max() for q in asked
    ]
    assert lengths.tolist() == one_by_one


def test_without_an_answer_to_each_question_there_are_no_labels(tokenizer: Tokenizer):
    asked = [*questions(2), *questions(1, label=None)]
    assert set(encode_choices(tokenizer, asked, max_length=LONGEST).targets) == {"is_choice"}


@pytest.mark.slow
def test_published_vocabularies_make_the_same_rows(data_dir: Path, tmp_path: Path):
    """SST-2's dev sentences by BERT's own vocabulary, cut at 32."""
    import gzip

    from bert_jax.data.tasks.published import find_split, read_glue

    packed = data_dir / "checkpoints" / "vocab" / "bert-base-uncased-vocab.txt.gz"
    (tmp_path / "vocab.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    tokenizer = Tokenizer.load(tmp_path, cased=False)
    sentences = [example.text for example in read_glue("sst2", find_split(data_dir / "finetune/glue/SST-2", "dev"))]
    examples = encode_texts(tokenizer, sentences, None, max_length=32, targets={})
    whole = BatchPlan(np.arange(len(sentences), dtype=np.int32), np.ones(len(sentences), bool), 32)
    found = examples.batch(whole)
    for name, rows in tokenizer.with_max_length(32)(sentences, padding="max_length").items():
        np.testing.assert_array_equal(found[name], rows)
