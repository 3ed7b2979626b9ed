"""Formats of tagged sentences: KLUE-NER, NAVER-NER, CoNLL-U, labels of words, and CoNLL's as we write it."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bert_jax.data.tasks.tagging import find_tags
from bert_jax.data.tasks.tags import (
    TAG_READERS,
    TaggedSentence,
    has_upos,
    is_conllu,
    read_conll,
    read_klue_ner,
    read_naver_ner,
    read_pos,
    rows_have_tags,
    write_conll,
)
from bert_jax.errors import UserError
from bert_jax.evaluation.metrics import entities
from bert_jax.evaluation.score import score


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_klue(tmp_path):
    text = "## 주석 : ##\n## id-1\t<가:PS> 나\n가\tB-PS\n \tO\n나\tO\r\n\n## id-2\t#\n#\tO\n"
    assert list(read_klue_ner(write(tmp_path / "a.tsv", text))) == [
        (("가", " ", "나"), ("B-PS", "O", "O"), 1, 3),
        (("#",), ("O",), 2, 8),
    ]


def test_naver(tmp_path):
    path = write(tmp_path / "a.tsv", "나아가 한 스트로크를 .\tPER-B NUM-I O -\n\n가\tA-F-B\n")
    assert list(read_naver_ner(path)) == [
        (("나아가", "한", "스트로크를", "."), ("B-PER", "I-NUM", "O", "O"), 1, 1),
        (("가",), ("B-A-F",), 2, 3),
    ]


def conllu(*words: str) -> str:
    """Lines "ID FORM UPOS" with CoNLL-U's other columns; comments and empty lines as they are."""
    cells = (word if word.startswith("#") or not word else word.split("|") for word in words)
    lines = (
        line if isinstance(line, str) else f"{line[0]}\t{line[1]}\tlemma\t{line[2]}\tNN\t_\t0\troot\t_\t_"
        for line in cells
    )
    return "\n".join(lines) + "\n"


# The example of https://universaldependencies.org/format.html, "Words, Tokens and Empty Nodes", and a Vietnamese word.
UNIVERSAL = conllu(
    "# newdoc id = a", "# newpar", "# text = vámonos al mar", "1-2|vámonos|_", "1|vamos|VERB", "2|nos|PRON",
    "3-4|al|_", "3|a|ADP", "4|el|DET", "5|mar|NOUN", "", "# text = Sue likes coffee and Bill tea", "1|Sue|PROPN",
    "1.1|likes|VERB", "2|#|SYM", "", "#newdoc", "1|Việt Nam|PROPN",
)  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_universal_dependencies(tmp_path, end: str):
    path = write(tmp_path / "a.conllu", UNIVERSAL.replace("\n", end))
    expected = [
        (("vamos", "nos", "a", "el", "mar"), ("VERB", "PRON", "ADP", "DET", "NOUN"), 1, 5),
        (("Sue", "#"), ("PROPN", "SYM"), 1, 13),
        (("Việt Nam",), ("PROPN",), 2, 18),
    ]
    assert is_conllu(path) and has_upos(path)
    assert list(read_pos(path)) == expected
    assert list(read_pos(path, tagged=False)) == [(words, None, *place) for words, _, *place in expected]


def test_columns_of_words_and_labels(tmp_path):
    """A "#" is a word; H could be a residue's label, and I-think is a label like any other."""
    text = "#\tSYM\r\n-DOCSTART-\n\n1\tNUM\nNew York\tI-think\n\nM H\n"
    path = write(tmp_path / "a.txt", text)
    assert not is_conllu(path)
    expected = [
        (("#",), ("SYM",), 0, 1), (("1", "New York"), ("NUM", "I-think"), 1, 4), (("M",), ("H",), 1, 7),
    ]  # fmt: skip
    assert list(read_pos(path)) == expected
    assert list(read_pos(path, tagged=False)) == [(words, None, *place) for words, _, *place in expected]
    assert not is_conllu(write(path, "1\tword\tNOUN\n")) and not is_conllu(write(path, "# only\n\n"))


def test_words_without_parts_of_speech_are_read_if_they_are_only_predicted(tmp_path):
    path = write(tmp_path / "a.conllu", conllu("# newdoc", "1-2|x|_", "1|vamos|_", "2|nos|_"))
    assert not has_upos(path)
    assert list(read_pos(path, tagged=False)) == [(("vamos", "nos"), None, 1, 3)]
    with pytest.raises(UserError) as error:
        list(read_pos(path))
    assert str(error.value) == f"{path}, line 3: found '_' as the UPOS of 'vamos'; expected a tag of each word"


def test_a_sentence_that_is_not_utf_8_is_skipped(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_bytes(UNIVERSAL.replace("Sue\t", "S\udcff\t").encode("utf-8", "surrogateescape"))
    errors: list[UserError] = []
    assert [sentence.line for sentence in read_pos(path, wrong=errors.append)] == [5, 18]
    assert len(errors) == 1 and "line 13: byte 0xff" in str(errors[0])


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("klue-ner", "가\n", "line 1: '가'; expected one character, a tab, and its tag"),
        ("klue-ner", "\tO\n", "line 1: '\\tO'; expected one character"),
        ("klue-ner", "가\tO\n가나\tO\n", "line 2: '가나\\tO'; expected one character"),
        ("klue-ner", "가\tO\n \n나\tO\n", "line 2: ' '; expected one character"),
        ("klue-ner", "가\tPS\n", "line 1: the tag is 'PS'; expected O, or B-"),
        ("naver-ner", "가 나\n", "line 1: 1 columns; expected a sentence, a tab, and the tags"),
        ("naver-ner", "가 나\tO\n", "line 1: 2 words and 1 tags"),
        ("naver-ner", "가\tB-PER\n", "line 1: the tag is 'B-PER'; expected O, -, or a type and -B or -I"),
        ("naver-ner", "가\t-B\n", "line 1: the tag is '-B'"),
        ("conll", "가\tPS\n", "line 1: the tag is 'PS'"),
        ("pos", "a\tNO UN\n", "line 1: the tag is 'NO UN'; expected one without blanks"),
        ("pos", "a\tNOUN\nb\n", "line 2: 'b' has one column; expected a word, a tab or space, and its tag"),
        ("pos", conllu("1|a|X") + "2\tb\n", "line 2: found 2 columns; expected the ten of CoNLL-U"),
        ("pos", conllu("1|a|X", "2:|b|X"), "line 2: found the ID '2:'; expected a number, a range as in 1-2, or 8.1"),
        ("pos", conllu("1|a|X", "2||X"), "line 2: found no word; expected one in the second column"),
        ("pos", conllu("1|a|X", "2|b|"), "line 2: found '' as the UPOS of 'b'; expected a tag of each word"),
        ("pos", conllu("1|a|X Y"), "line 1: the tag is 'X Y'; expected one without blanks"),
    ],
)
def test_bad_files_are_one_line(tmp_path, kind, text, message):
    path = write(tmp_path / "a.tsv", text)
    with pytest.raises(UserError) as error:
        list(TAG_READERS[kind](path))
    assert str(error.value).startswith(f"{path}, {message}") and "\n" not in str(error.value)


@pytest.mark.slow
def test_klue_is_read_whole(data_dir):
    """https://arxiv.org/abs/2105.09680, table 1: 5,000 validation sentences; the file lists the entities above each."""
    path = data_dir / "finetune" / "ner" / "klue-ner-v1.1" / "klue-ner-v1.1_dev.tsv.gz"
    sentences = list(read_klue_ner(path))
    assert len(sentences) == 5_000
    types = ("DT", "LC", "OG", "PS", "QT", "TI")
    assert find_tags(sentences) == ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in "BI"))
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    differing = 0
    for sentence in sentences:
        told = lines[sentence.line - 2]
        assert told.startswith("## klue-ner-v1_dev_")
        expected = re.findall(rf"<(<?[^<>]*?):({'|'.join(types)})>", told.partition("\t")[2])
        found = [
            ("".join(sentence.words[entity.first : entity.last + 1]), entity.type)
            for entity in entities(sentence.tags or ())
        ]
        differing += expected != found
    assert differing == 0


def test_naver_is_read_whole(data_dir):
    """https://github.com/monologg/KoELECTRA, finetune: 9,000 test sentences, 14 types and so 29 tags."""
    sentences = list(read_naver_ner(data_dir / "finetune" / "ner" / "naver-ner" / "test.tsv.gz"))
    assert len(sentences) == 9_000
    types = ["PER", "FLD", "AFW", "ORG", "LOC", "CVL", "DAT", "TIM", "NUM", "EVT", "ANM", "PLT", "MAT", "TRM"]
    assert find_tags(sentences) == ("O", *(f"{prefix}-{type_}" for type_ in sorted(types) for prefix in "BI"))


HUGGING_FACE = (
    {"tokens": ["-DOCSTART-"], "ner_tags": ["O"], "pos_tags": ["-X-"]},
    {"id": "0", "tokens": ["EU", "New York"], "ner_tags": ["B-ORG", "B-LOC"], "pos_tags": ["NNP", "NNP"]},
    {"words": ["\u200b"], "tags": ["O"]},
)


def rows(path: Path, *rows: dict) -> Path:
    return write(path, "".join(json.dumps(row) + "\r\n" for row in rows))


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_rows_of_hugging_face(tmp_path, suffix: str):
    path = rows(tmp_path / "a.jsonl", *HUGGING_FACE)
    if suffix == "json":
        path = write(tmp_path / "a.json", "[" + ",\n".join(map(json.dumps, HUGGING_FACE)) + "]")
    words = ("EU", "New York")
    assert list(read_conll(path)) == [(words, ("B-ORG", "B-LOC"), 1, 2), (("\u200b",), ("O",), 1, 3)]
    assert list(read_pos(path)) == [(words, ("NNP", "NNP"), 1, 2), (("\u200b",), ("O",), 1, 3)]
    assert list(read_pos(path, tagged=False)) == [(words, None, 1, 2), (("\u200b",), None, 1, 3)]
    assert score("tag", path, path)["correct"] == 2 and rows_have_tags(path)
    assert not rows_have_tags(rows(tmp_path / "b.jsonl", {"tokens": ["EU"], "ner_tags": None}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "EU"}, "has no words; expected a list of them as 'tokens' or 'words'"),
        ({"tokens": ["EU"]}, "has no tags; expected a list of them as 'ner_tags' or 'tags' or 'labels'"),
        ({"tokens": []}, "found [] as 'tokens'; expected a list of words"),
        ({"tokens": "EU"}, "found 'EU' as 'tokens'; expected a list of words"),
        ({"tokens": [1]}, "found 1 in 'tokens'; expected strings"),
        ({"tokens": ["EU", ""]}, "found the word '', which CoNLL's columns have no way to write"),
        ({"tokens": ["E\tU"]}, "found the word 'E\\tU', which"),
        ({"tokens": ["\ud800"]}, "'\\ud800' is not valid Unicode"),
        ({"tokens": ["EU"], "tags": ["O", "O"]}, "1 words and 2 in 'tags'"),
        ({"tokens": ["EU"], "ner_tags": [3]},
         "found 3 in 'ner_tags'; expected names, not ids; features['ner_tags'].feature.names of the data set has them"),
        ({"tokens": ["EU"], "tags": ["ORG"]}, "the tag is 'ORG'; expected O, or B-"),
    ],
)  # fmt: skip
def test_bad_rows_are_one_line(tmp_path, row: dict, message: str):
    path = rows(tmp_path / "a.jsonl", {"tokens": ["a"], "tags": ["O"]}, row)
    with pytest.raises(UserError) as error:
        list(read_conll(path))
    assert str(error.value).startswith(f"{path}, line 2: {message}")


SENTENCES = [
    TaggedSentence(("EU", "rejects"), ("B-ORG", "O"), 1, 3),
    TaggedSentence((" ", "a b", "\u2028", "\r"), ("O", "B-PER", "I-PER", "O"), 1, 6),
    TaggedSentence((), (), 1, 9),
    TaggedSentence(("#",), ("B-LOC",), 2, 12),
]
GUESS = [["B-ORG", "O"], ["O", "B-PER", "O", "O"], [], ["O"]]


def test_predictions_are_read_back_as_they_were_written(tmp_path):
    path = tmp_path / "predicted.conll"
    write_conll(path, SENTENCES, GUESS)
    assert path.read_bytes().startswith(b"-DOCSTART-\tO\tO\n\nEU\tB-ORG\tB-ORG\nrejects\tO\tO\n\n \tO\tO\na b\tB-PER")
    for column, tags in ((-1, GUESS), (-2, [list(s.tags or ()) for s in SENTENCES])):
        found = list(read_conll(path, tag=column))
        assert [s.words for s in found] == [s.words for s in SENTENCES if s.words]
        assert [list(s.tags or ()) for s in found] == [one for one in tags if one]
        assert [s.document for s in found] == [1, 1, 2]


def test_predictions_are_scored(tmp_path):
    gold, path = tmp_path / "gold", tmp_path / "predicted"
    tags = [list(s.tags or ()) for s in SENTENCES]
    write_conll(gold, [s._replace(tags=None) for s in SENTENCES], tags)
    assert gold.read_bytes().startswith(b"-DOCSTART-\tO\n\nEU\tB-ORG\n")
    write_conll(path, SENTENCES, GUESS)
    scores = score("conll", gold, path)
    assert (
        scores["precision"] == 50
        and scores["recall"] == pytest.approx(100 / 3)
        and scores["accuracy"] == pytest.approx(100 * 5 / 7)
    )


def test_sentences_of_no_document_have_no_marks_between_them(tmp_path):
    write_conll(tmp_path / "a", [s._replace(document=0) for s in SENTENCES], GUESS)
    assert b"-DOCSTART-" not in (tmp_path / "a").read_bytes()


def test_what_cannot_be_written_is_one_line_and_no_file(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(UserError, match=r"a: 1 lists of predicted tags for 4 sentences"):
        write_conll(path, SENTENCES, GUESS[:1])
    with pytest.raises(UserError, match=r"the sentence of line 3 has 2 words and 4 predicted tags"):
        write_conll(path, SENTENCES, [GUESS[1], *GUESS[1:]])
    for word in ("a\tb", "a\nb", "-DOCSTART-", ""):
        with pytest.raises(UserError, match=r"the sentence of line 4 has the word .*, which CoNLL's columns"):
            write_conll(path, [TaggedSentence((word,), ("O",), 0, 4)], [["O"]])
    with pytest.raises(UserError, match="not valid Unicode"):
        write_conll(path, [TaggedSentence(("\ud800",), ("O",), 0, 4)], [["O"]])
    assert not path.exists()
    with pytest.raises(UserError, match="cannot be written"):
        write_conll(tmp_path / "none" / "a", SENTENCES, GUESS)


@pytest.mark.slow
def test_the_published_data_are_written_and_read_alike(data_dir, tmp_path):
    folder = data_dir / "finetune" / "ner"
    for kind, name in (
        ("conll", "wnut17/emerging.dev.conll.gz"),
        ("klue-ner", "klue-ner-v1.1/klue-ner-v1.1_dev.tsv.gz"),
    ):
        sentences = list(TAG_READERS[kind](folder / name))
        write_conll(tmp_path / kind, sentences, [s.tags or () for s in sentences])
        found = list(read_conll(tmp_path / kind))
        assert [(s.words, s.tags, s.document) for s in found] == [(s.words, s.tags, s.document) for s in sentences]
        assert Counter(tag for s in found for tag in s.tags or ()) == Counter(
            t for s in sentences for t in s.tags or ()
        )
