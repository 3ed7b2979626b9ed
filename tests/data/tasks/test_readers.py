"""A user's own files: what is read, and the one line that says what is wrong with which line."""

import json
from pathlib import Path

import pytest

from bert_jax.data.tasks.conll import read_conll
from bert_jax.data.tasks.glue import read_glue
from bert_jax.data.tasks.labelled_text import Columns, read_table
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.squad import read_squad
from bert_jax.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_csv_is_quoted_and_tsv_is_not(tmp_path):
    csv = write(tmp_path / "a.csv", 'text,label\r\n"one, ""two""\nthree",yes\r\nfour,no\r\n')
    assert [(e.text, e.label, e.line) for e in read_table(csv, Columns("text"))] == [
        ('one, "two"\nthree', "yes", 3),
        ("four", "no", 4),
    ]
    tsv = write(tmp_path / "a.tsv", 'text\tlabel\r\n"one\tyes\r\n')
    assert [(e.text, e.label) for e in read_table(tsv, Columns("text"))] == [('"one', "yes")]


def test_json_lines_and_several_labels(tmp_path):
    rows = [{"t": "a", "l": ["x", "y"]}, {"t": "b", "l": []}, {"t": "c", "l": "y|x"}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    found = list(read_table(path, Columns("t", label="l", kind="classes")))
    assert [e.label for e in found] == [("x", "y"), (), ("y", "x")]
    whole = write(tmp_path / "a.json", json.dumps([{"t": "a", "l": 3}]))
    assert next(read_table(whole, Columns("t", label="l"))).label == "3"


def test_a_table_without_labels(tmp_path):
    path = write(tmp_path / "a.csv", "text\nhello\n")
    (only,) = read_table(path, Columns("text", label=None))
    assert only.label is None and only.id == "0"


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "text,label\nx,y\n", Columns("sentence"), "line 2: has no column 'sentence'; it has 'text', 'label'"),
        ("a.csv", "text,label\nx\n", Columns("text"), "line 2: 1 cells, but the header has 2"),
        ("a.tsv", "text\tlabel\nx\ty\tz\n", Columns("text"), "line 2: 3 cells, but the header has 2; a tab within"),
        ("a.csv", 'text,label\n"x,y\n', Columns("text"), "not CSV"),
        ("a.csv", "text,text\nx,y\n", Columns("text"), "line 1: the header has 'text' twice"),
        ("a.csv", "", Columns("text"), "is empty; expected a header"),
        ("a.csv", "text,label\nx,\n", Columns("text"), "line 2: 'label' is ''; expected the name of a class"),
        ("a.csv", "text,label\nx,warm\n", Columns("text", kind="number"), "line 2: the label 'warm' is no finite"),
        ("a.csv", "text,label\nx,nan\n", Columns("text", kind="number"), "line 2: the label 'nan' is no finite"),
        ("a.jsonl", '{"text": 3, "label": "y"}', Columns("text"), "line 1: 'text' is int; expected a text"),
        ("a.jsonl", "{", Columns("text"), "line 1: not JSON"),
        ("a.jsonl", "[1]", Columns("text"), "line 1: expected a JSON object, found list"),
        ("a.json", "{}", Columns("text"), "expected a JSON list of objects"),
        ("a.xlsx", "x", Columns("text"), "expected a name that ends in .tsv"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, name, text, columns, message):
    path = write(tmp_path / name, text)
    with pytest.raises(UserError) as error:
        list(read_table(path, columns))
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_bad_glue_files(tmp_path):
    short = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\n")
    with pytest.raises(UserError, match=r"line 2: 2 columns; rte has its text in column 3"):
        list(read_glue("rte", short))
    strange = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    with pytest.raises(UserError, match=r"line 2: the label is 'maybe'; rte has entailment, not_entailment"):
        list(read_glue("rte", strange))
    few = write(tmp_path / "train.tsv", "id\tq1\tq2\ta\tb\tc\n1\t2\t3\n1\t2\t3\tone\ttwo\t1\n")
    assert [example.text for example in read_glue("qqp", few)] == ["one"]


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\n-DOCSTART- -X- O O\n\nPeter NNP B-NP I-PER\n"
    found = list(read_conll(write(tmp_path / "a.conll", text)))
    assert [(s.words, s.tags, s.document, s.line) for s in found] == [
        (("EU", "rejects"), ("I-ORG", "O"), 1, 3),
        (("Peter",), ("I-PER",), 2, 8),
    ]
    words = list(read_conll(write(tmp_path / "b.conll", "EU\nrejects\n"), tag=None))
    assert words[0].words == ("EU", "rejects") and words[0].tags is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EU\tORG\n", "line 1: the tag is 'ORG'; expected O, or B-, I-, E- or S- and a type"),
        ("EU\tO\nrejects\n", "line 2: 'rejects' has one column"),
        ("EU\tB-\n", "line 1: the tag is 'B-'"),
    ],
)
def test_bad_conll_is_one_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        list(read_conll(write(tmp_path / "a.conll", text)))
    assert message in str(error.value)


def squad(**qa) -> str:
    qas = [{"id": "q", "question": "?", "answers": [{"text": "cat", "answer_start": 4}]} | qa]
    return json.dumps({"data": [{"paragraphs": [{"context": "the cat", "qas": qas}]}]})


def test_squad(tmp_path):
    (question,) = read_squad(write(tmp_path / "a.json", squad()))
    assert question.answers == (("cat", 4),) and question.context == "the cat"
    (unlabelled,) = read_squad(write(tmp_path / "a.json", squad(answers=[])))
    assert unlabelled.answers == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (squad(answers=[{"text": "dog", "answer_start": 4}]), "question q: the answer 'dog' is not at character 4"),
        ("[]x", "not JSON"),
        ('{"version": 1}', 'expected an object with a list "data"'),
        ('{"data": [{"title": "x"}]}', "article 1: not in SQuAD's form"),
    ],
)
def test_bad_squad_is_one_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        list(read_squad(write(tmp_path / "a.json", text)))
    assert message in str(error.value) and "a.json" in str(error.value)


def test_swag_is_read_as_google_and_transformers_do(tmp_path):
    header = "video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    path = write(tmp_path / "train.csv", header + 'v,"A man, old, sits.",He,smiles.,runs.,eats.,sleeps.,2\n')
    (found,) = CHOICE_READERS["swag"](path)
    assert found.first == ("A man, old, sits.",) * 4
    assert found.second == ("He smiles.", "He runs.", "He eats.", "He sleeps.")
    assert found.label == 2


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("codah", "o\tI am\ta\tb\tc\td\n", "line 1: 6 columns; expected category"),
        ("codah", "o\tI am\ta\tb\tc\td\t4\n", "line 1: the label is '4'; expected a number from 0 to 3"),
        ("arc", '{"id": "x"}\n', "line 1: not in ARC's form"),
        ("hellaswag", '{"ctx": "x"}\n', "line 1: has no 'endings'; it has 'ctx'"),
    ],
)
def test_bad_choices_are_one_line(tmp_path, kind, text, message):
    with pytest.raises(UserError) as error:
        list(CHOICE_READERS[kind](write(tmp_path / "a.tsv", text)))
    assert message in str(error.value)
