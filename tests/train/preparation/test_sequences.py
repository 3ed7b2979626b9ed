"""Text that is no prose: sequences of letters, event ids, formulas, with tokenizers of words and of characters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.text.corpus import split_sentences
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.vocabulary import count_words, learn_vocabulary
from bert_jax.errors import UserError
from train.prepare import PrepareOptions, prepare

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EVENTS = ("page.Home", "page.Cart!", "cart?Id=3", "btn.Buy")
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def made(tmp_path: Path, text: str, **options: Any) -> tuple[Path, dict[str, Any]]:
    (tmp_path / "a.txt").write_text(text)
    output = tmp_path / "out"
    usual: dict[str, Any] = {"objective": "none", "dupe_factor": 1, "held_out": 0.0, "workers": 1, "cased": True}
    usual["max_seq_length"] = (32,)
    return output, prepare(PrepareOptions(inputs=(str(tmp_path / "a.txt"),), output=output, **usual | options))


def about_unknown(manifest: dict[str, Any]) -> str:
    (warning,) = [one for one in manifest["report"]["warnings"] if "[UNK]" in one]
    return warning


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """A tokenizer of whole words between blanks, as a tokenizer.json."""
    folder = tmp_path_factory.mktemp("words")
    pieces = {piece: number for number, piece in enumerate((*SPECIAL, *EVENTS))}
    backend = tokenizers.Tokenizer(models.WordLevel(pieces, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"]))
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    return folder


def test_each_token_is_a_word_where_nothing_marks_its_begin(words, tmp_path):
    assert not Tokenizer.load(words).is_continuation.any()
    output, _ = made(tmp_path, f"{' '.join(EVENTS)} " * 20, vocab=str(words))
    counts = [
        Batches(output, batch_size=2, max_seq_length=32, masking=MaskingConfig(whole_word=whole)).batch(0)[
            "mlm_weights"
        ]
        for whole in (True, False)
    ]
    assert counts[0].sum() == counts[1].sum() > 0


def test_a_sentence_does_not_end_within_a_word_of_such_a_tokenizer(words, tmp_path):
    text = f"{' '.join(EVENTS)} btn.Buy"
    assert len(split_sentences(text)) > 1  # for BERT, which splits at signs anyway
    _, manifest = made(tmp_path, text, vocab=str(words))
    assert manifest["report"]["train"]["unk_rate"] == 0
    assert manifest["report"]["train"]["tokens"] == len(EVENTS) + 1


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It ended.Next came two! Three?", ["It ended.Next came two!", "Three?"]),
        ("[Na+].[Cl-]", ["[Na+].[Cl-]"]),
        ('x = """a."""', ['x = """a."""']),
        ("一。二！三", ["一。", "二！", "三"]),
    ],
)
def test_what_ends_a_sentence_for_tokens_that_span_signs(text: str, sentences: list[str]):
    assert split_sentences(text, within_words=False) == sentences


def test_words_that_are_too_long_are_told_by_their_share_of_the_text(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list(LETTERS), length)) for length in [20] * 300 + [101] * 15]
    _, manifest = made(tmp_path, "\n".join(lines), vocab_size=200)
    assert manifest["report"]["train"]["unk_rate"] < 0.01  # each is a single token
    told = [one for one in manifest["report"]["warnings"] if "words of more than 100 characters" in one]
    assert len(told) == 1 and told[0].startswith(f"{15 * 101 / (300 * 21 + 15 * 102):.0%} of the text")


@pytest.mark.parametrize(("recipe", "longest"), [("default", 100), ("google", 200)])
def test_the_length_that_is_told_is_the_recipes(recipe: str, longest: int, tmp_path):
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "##a"]) + "\n")
    text = "\n\n".join([f"{'a' * (longest + 1)}\n{'a ' * longest}"] * 4)
    _, manifest = made(tmp_path, text, recipe=recipe, vocab=str(tmp_path / "vocab"), objective="nsp")
    assert f"words of more than {longest} characters" in about_unknown(manifest)


@pytest.mark.parametrize(("length", "message"), [(101, "every word has more than 100 characters"), (1001, "1,000")])
def test_text_of_long_words_alone_is_not_called_empty(length: int, message: str, tmp_path):
    with pytest.raises(UserError, match=message):
        made(tmp_path, "\n".join(letter * length for letter in "ACGT"), vocab_size=50)


def test_no_words_and_long_words_are_told_apart():
    with pytest.raises(UserError, match="every word has more than 100 characters"):
        learn_vocabulary(count_words(["A" * 101]), size=30, cased=True)
    with pytest.raises(UserError, match="the text is empty"):
        learn_vocabulary(count_words([" "]), size=30, cased=True)


def test_letters_without_blanks_between_them_are_told_from_a_wrong_vocabulary(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "vocab.txt").write_text("\n".join([*SPECIAL, *LETTERS]) + "\n")
    _, manifest = made(tmp_path, f"{LETTERS}\n{LETTERS[::-1]}\n", vocab=str(tmp_path / "letters"))
    assert "no piece of the vocabulary continues a word" in about_unknown(manifest)


def test_what_near_duplicates_make_of_few_letters_is_told(tmp_path):
    rng = np.random.default_rng(0)
    sequences = [" ".join(rng.choice(list("ACGT"), 6_000)) for _ in range(4)]
    _, manifest = made(tmp_path, "\n\n".join(sequences), vocab_size=12, dedupe="near")
    assert manifest["report"]["removed"]["documents"] == 3
    assert any(one.startswith("--dedupe near removed 75% of the text") for one in manifest["report"]["warnings"])
