"""Which sentences are plain."""

import pytest

from bert_jax.data.text.plain import is_plain


@pytest.mark.parametrize(
    "sentence",
    [
        "The cats sleep all day.",
        "Do the cats sleep?",
        "Nobody's well-known cat slept, it ran away!",
        "It’s a café that Maria likes.",
        "Das ist ein schöner Tag.",
        "고양이는 하루 종일 잠을 잔다.",
        "यह एक बहुत अच्छा दिन है.",
        "यह लड़का आज दिल्ली में रहता है।",
        "هل ذهب الولد إلى البيت؟",
        "ذهب الولد، ثم عاد إلى البيت.",
        "می\u200cخواهم امروز به خانه بروم.",
        "یہ لڑکا آج دلی میں رہتا ہے۔",
        "One " + "more " * 28 + "word.",
    ],
)
def test_a_whole_sentence_of_words_is_plain(sentence):
    assert is_plain(sentence)


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("Cats sleep well.", "three words"),
        ("One " + "more " * 29 + "word.", "31 words"),
        ("The 7 cats sleep all day.", "a digit"),
        ("In practice even n² algorithms are slow.", "a raised digit"),
        ("He ate ½ of the cake today.", "a fraction"),
        ("The café; it was closed today.", "a semicolon"),
        ("It’s a café that Maria likes", "no end"),
        ("The cats (all three) sleep.", "brackets"),
        ('The cats said "good night" twice.', "quotes"),
        ("The cats sleep; the dogs bark.", "a semicolon"),
        ("The cats sleep all day", "no end"),
        ("The cats sleep all day:", "no end of a sentence"),
        ("and then the cats slept.", "a small letter first"),
        ("'Tis the end of it.", "an apostrophe first"),
        ("Then Mary met John there.", "two names of five words"),
        ("The file_name is too long.", "an underscore"),
        ("猫は一日中寝ています。", "no blanks, another full stop"),
        ("", "nothing"),
    ],
)
def test_others_are_not(sentence, why):
    assert not is_plain(sentence), why


def test_a_fifth_of_the_words_may_be_names():
    assert is_plain("Then Mary met him there.")
    assert is_plain("Then Mary met her friend John in the town again.")
    assert not is_plain("Then Mary met her friend John in Paris again.")
