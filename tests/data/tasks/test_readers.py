"""A user's own files: what the readers return, and the one-line errors that name file and line."""

import json
import unicodedata
from functools import partial
from pathlib import Path

import pytest

from bert_jax.data.tasks.labelled_text import Columns, read_table
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.passages import read_squad
from bert_jax.data.tasks.published import read_glue
from bert_jax.data.tasks.tags import read_conll
from bert_jax.errors import UserError

nfd = partial(unicodedata.normalize, "NFD")
SWAG = "video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"


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
    cells = 'text,label\na,"[""x"", "" y ""]"\nb,[]\nc, y | x\n'
    assert [e.label for e in read_table(write(tmp_path / "a.csv", cells), Columns("text", kind="classes"))] == [
        ("x", "y"), (), ("y", "x")
    ]  # fmt: skip
    whole = write(tmp_path / "a.json", json.dumps([{"t": "a", "l": 3}]))
    assert next(read_table(whole, Columns("t", label="l"))).label == "3"


def test_blanks_around_a_label_are_no_part_of_it(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,x\nb, x\nc,x \n")
    assert {example.label for example in read_table(path, Columns("text"))} == {"x"}


def test_a_table_without_labels(tmp_path):
    path = write(tmp_path / "a.csv", "text\nhello\n")
    (only,) = read_table(path, Columns("text", label=None))
    assert only.label is None and only.id == "0"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "text\na\n\nb\n", [("a", 2), ("", 3), ("b", 4)]),
        ("a.tsv", "text\na\n\nb\n", [("a", 2), ("", 3), ("b", 4)]),
        ("a.tsv", "text\r\n\r\nb\r\n\r\n", [("", 2), ("b", 3)]),
        ("a.csv", "text\r\n\r\n\r\nb\r\n\r\n\r\n", [("", 2), ("", 3), ("b", 4)]),
        ("a.csv", '\ntext\na\n""\n', [("a", 3), ("", 4)]),  # how Python's csv and pandas write an empty text
        ("a.csv", 'text\n"a\n\nb"\n\nc\n', [("a\n\nb", 4), ("", 5), ("c", 6)]),
        ("a.csv", 'text,label\n\n"a\n\nb",x\n\n', [("a\n\nb", 5)]),
        ("a.tsv", "text\tlabel\n\na\tx\n\nb\tx\n", [("a", 3), ("b", 5)]),
    ],
)
def test_a_blank_line_of_a_single_column_is_an_empty_text(tmp_path, name, text, expected):
    """Only between other rows, so that row numbers and line numbers agree; at the end of a file it is no row."""
    found = list(read_table(write(tmp_path / name, text), Columns("text", label=None)))
    assert [(example.text, example.line) for example in found] == expected
    assert [example.id for example in found] == [str(number) for number in range(len(expected))]


def test_a_table_of_very_many_columns_is_read_in_one_pass(tmp_path):
    """To look for each of so many names among all of them would take most of an hour."""
    names = [f"c{number}" for number in range(100_000)]
    path = write(tmp_path / "a.tsv", "\t".join(names) + "\n" + "\t".join(names) + "\n")
    (example,) = read_table(path, Columns("c7", label=None))
    assert example.text == "c7"


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.csv", "text,label\nx,y\n", Columns("sentence"), "a.csv: has no column 'sentence'; it has 'text', 'label'"),
        (
            "a.jsonl",
            '{"text": "x"}\n{"t": "x"}',
            Columns("text", label=None),
            "line 2: has no column 'text'; it has 't'",
        ),
        (
            "a.csv",
            f"{nfd('본문')},label\nx,y\n",
            Columns("본문"),
            "has no column '본문'; one that looks like it is in another",
        ),
        ("a.csv", "text,label\nx\n", Columns("text"), "line 2: 1 cells, but the header has 2"),
        ("a.csv", "text;label\na, b;y\n", Columns("text"), "2 cells, but the header has 1; are ; between its cells?"),
        ("a.tsv", "text\tlabel\nx\ty\tz\n", Columns("text"), "line 2: 3 cells, but the header has 2; a tab within"),
        ("a.csv", 'text,label\n"x,y\n', Columns("text"), "not CSV"),
        ("a.csv", "text,text\nx,y\n", Columns("text"), "line 1: the header has 'text' twice"),
        ("a.csv", "", Columns("text"), "is empty; expected a header"),
        ("a.csv", "text,label\nx,\n", Columns("text"), "line 2: 'label' is ''; expected the name of a class"),
        ("a.csv", "text,label\nx,warm\n", Columns("text", kind="number"), "line 2: the label 'warm' is not a finite"),
        ("a.csv", "text,label\nx,nan\n", Columns("text", kind="number"), "line 2: the label 'nan' is not a finite"),
        ("a.jsonl", '{"text": 3, "label": "y"}', Columns("text"), "line 1: 'text' is int; expected a text"),
        ("a.jsonl", "{", Columns("text"), "line 1: not JSON"),
        (
            "a.jsonl",
            '{"text": "x", "label": ["a|b"]}',
            Columns("text", kind="classes"),
            "line 1: the label 'a|b' has a |, which stands between labels; rename it",
        ),
        (
            "a.csv",
            "text,label\nx,['a']\n",
            Columns("text", kind="classes"),
            "line 2: 'label': not JSON (Expecting value",
        ),
        (
            "a.csv",
            'text,label\nx,"[""a"", 1]"\n',
            Columns("text", kind="classes"),
            "line 2: 'label' is '[\"a\", 1]'; expected a list of",
        ),
        (
            "a.csv",
            "text,label\nx,1e300\n",
            Columns("text", kind="number"),
            "line 2: the label '1e300' is beyond float32",
        ),
        (
            "a.csv",
            "text,label\nx,5_0\n",
            Columns("text", kind="number"),
            "line 2: the label '5_0' is not a finite number",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": true}',
            Columns("text", kind="number"),
            "line 1: the label True is not a fin",
        ),
        ("a.jsonl", '{"text": "x", "label": true}', Columns("text"), "line 1: 'label' is true; expected the name of a"),
        ("a.jsonl", '{"text": "x\\ud800", "label": "a"}', Columns("text"), "line 1: 'text' is not valid Unicode: lone"),
        (
            "a.jsonl",
            '{"text": "x", "label": "a\\ud800"}',
            Columns("text"),
            "line 1: 'label' is not valid Unicode: lone",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": ["\\ud800"]}',
            Columns("text", kind="classes"),
            "line 1: the label '\\ud800' is not valid Unicode: lone surrogate '\\ud800' at character 1",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": "a", "n": "\\udfff"}',
            Columns("text", id="n"),
            "line 1: 'n' is not valid Un",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": "a", "n": null}',
            Columns("text", id="n"),
            "line 1: 'n' is None; expected an",
        ),
        (
            "a.jsonl",
            '{"text": "x", "label": "a", "n": [1]}',
            Columns("text", id="n"),
            "line 1: 'n' is [1]; expected an id",
        ),
        (
            "a.csv",
            "n,text,label\n7,x,a\n8,y,a\n7,z,b\n",
            Columns("text", id="n"),
            "line 4: the id '7' is that of line 2 too; expected ids that all differ",
        ),
        (
            "a.json",
            '{"text": "x"}\n{"text": "y"}',
            Columns("text"),
            "a file with one JSON object per line is named .jsonl",
        ),
        ("a.jsonl", "[1]", Columns("text"), "line 1: expected a JSON object, found list"),
        ("a.json", "{}", Columns("text"), "expected a JSON list of objects"),
        (
            "a.json",
            '[{"text": "\\n{"},\n\n {"text":\n "x"}, {"text": 1}]',
            Columns("text", label=None),
            "line 4: 'text' is int",
        ),
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


def test_a_short_row_of_qqp_is_skipped_in_training_and_predicted_in_the_test_file(tmp_path, caplog):
    """GLUE takes predictions for all ids of a test file only (gluebenchmark.com, "submit")."""
    few = write(tmp_path / "train.tsv", "id\tq1\tq2\ta\tb\tc\n1\t2\t3\n1\t2\t3\tone\ttwo\t1\n1\t2\n")
    assert [example.text for example in read_glue("qqp", few)] == ["one"]
    assert f"{few}: 2 rows lack columns and are skipped, the first in line 2" in caplog.text
    test = write(tmp_path / "test.tsv", "id\tquestion1\tquestion2\n0\tone\ttwo\n1\tone\n2\n3\tone\ttwo\n")
    found = [(example.id, example.text, example.pair) for example in read_glue("qqp", test, labelled=False)]
    assert found == [("0", "one", "two"), ("1", "one", ""), ("2", "", ""), ("3", "one", "two")]
    bad = write(tmp_path / "test.tsv", "index\tsentence1\tsentence2\n0\ta\n")
    with pytest.raises(UserError, match=r"line 2: 2 columns; rte has its text in column 3"):
        list(read_glue("rte", bad, labelled=False))


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\n-DOCSTART- -X- O O\n\nPeter NNP B-NP I-PER\n"
    found = list(read_conll(write(tmp_path / "a.conll", text)))
    assert [(s.words, s.tags, s.document, s.line) for s in found] == [
        (("EU", "rejects"), ("I-ORG", "O"), 1, 3),
        (("Peter",), ("I-PER",), 2, 8),
    ]
    words = list(read_conll(write(tmp_path / "b.conll", "EU\nrejects\n"), tag=None))
    assert words[0].words == ("EU", "rejects") and words[0].tags is None
    aligned = list(read_conll(write(tmp_path / "c.conll", "-DOCSTART-\n\nEU       NNP I-ORG\nrejects  VBZ  O\n")))
    assert aligned[0].words == ("EU", "rejects") and aligned[0].tags == ("I-ORG", "O")


def test_words_alone_are_one_column(tmp_path):
    with pytest.raises(UserError, match=r"line 2: 'New York' has 2 columns; expected 1, as in line 1"):
        list(read_conll(write(tmp_path / "a.conll", "EU\nNew York\n"), tag=None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EU\tORG\n", "line 1: the tag is 'ORG'; expected O, or B-, I-, E- or S- and a type"),
        ("EU\tO\nrejects\n", "line 2: 'rejects' has one column"),
        ("EU\tB-\n", "line 1: the tag is 'B-'"),
        ("EU O\nrejects O \n", "line 2: 'rejects O ' ends in a blank, and a tag is expected there; remove it"),
        ("EU\tB-ORG \n", "line 1: 'EU\\tB-ORG ' ends in a blank, and a tag is expected there; remove it"),
        ("EU O\n O\n", "line 2: ' O' has no word; expected a word, a tab or space, and its tag"),
        ("EU\tO\n\tO\n", "line 2: '\\tO' has no word; expected a word, a tab or space, and its tag"),
        (
            "EU NNP I-NP I-ORG\n\nrejects VBZ I-VP\n",
            "line 3: 'rejects VBZ I-VP' has 3 columns; expected 4, as in line 1",
        ),
        ("EU I-ORG\nNew York I-LOC\n", "line 2: 'New York I-LOC' has 3 columns; expected 2, as in line 1"),
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


ROW = {"id": "q", "title": "x", "context": "the cat", "question": "?"}
ROWS = (
    ROW | {"answers": {"text": ["cat", "the cat"], "answer_start": [4, 0]}},
    ROW | {"id": "r", "answers": {"text": [], "answer_start": []}},
    ROW | {"id": "s", "answers": [{"text": "the", "answer_start": 0}]},
)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_squad_as_rows_of_hugging_faces_datasets(tmp_path, name):
    text = json.dumps(ROWS) if name == "a.json" else "".join(json.dumps(row) + "\n" for row in ROWS)
    found = list(read_squad(write(tmp_path / name, text)))
    assert [one.id for one in found] == ["q", "r", "s"] and {one.context for one in found} == {"the cat"}
    assert [one.answers for one in found] == [(("cat", 4), ("the cat", 0)), (), (("the", 0),)]


def test_a_bad_row_of_squad_has_its_line(tmp_path):
    rows = (ROWS[0], ROWS[1] | {"answers": {"text": ["dog"], "answer_start": ["0"]}})
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: not in SQuAD's form, .*an answer_start is not a whole num"):
        list(read_squad(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (squad(answers=[{"text": "dog", "answer_start": 4}]), "question 'q': the answer 'dog' is not at character 4"),
        ("[]x", "not JSON"),
        (
            squad(answers={"text": ["cat"], "answer_start": []}),
            "question 'q': 'answers' is an object, as in Hugging Face's datasets; expected two lists of one length in",
        ),
        (squad(answers={"text": "cat"}), "'answers' is an object, as in Hugging Face's datasets; expected two lists"),
        (squad(answers=None), "question 'q': 'answers' is null; expected a list of objects, each with text and answer"),
        (squad(answers="cat"), "question 'q': 'answers' is a text; expected a list of objects"),
        (squad(answers=["cat"]), "question 'q': 'answers' is a list of other values; expected a list of objects"),
        (squad(answers=4), "question 'q': 'answers' is a number; expected a list of objects"),
        ('{"id": "q"}\n{"id": "r"}\n', "a file with one JSON object per line is named .jsonl"),
        ('[{"context": "the cat", "question": "?"}]', "article 1: not in SQuAD's form, paragraphs > context and qas"),
        (
            squad(id="q\ud800"),
            "the question id 'q\\ud800' is not valid Unicode: lone surrogate '\\ud800' at character 2",
        ),
        (
            squad(question="\udfff?"),
            "question 'q': its question is not valid Unicode: lone surrogate '\\udfff' at char",
        ),
        ('{"version": 1}', 'expected an object with a list "data"'),
        ('{"data": [{"title": "x"}]}', "article 1: not in SQuAD's form"),
    ],
)
def test_bad_squad_is_one_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        list(read_squad(write(tmp_path / "a.json", text)))
    assert message in str(error.value) and "a.json" in str(error.value)


def test_swag_is_read_as_google_and_transformers_do(tmp_path):
    path = write(tmp_path / "train.csv", SWAG + 'v,"A man, old, sits.",He,smiles.,runs.,eats.,sleeps.,2\n')
    (found,) = CHOICE_READERS["swag"](path)
    assert found.first == ("A man, old, sits.",) * 4
    assert found.second == ("He smiles.", "He runs.", "He eats.", "He sleeps.")
    assert found.label == 2


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("codah", "o\tI am\ta\tb\tc\td\n", "line 1: 6 columns; expected category"),
        ("codah", "o\tI am\ta\tb\tc\td\t4\n", "line 1: the label is '4'; expected a number from 0 to 3"),
        ("codah", "o\tI am\ta\t \tc\td\t0\n", "line 1: choice 2 of 4 is empty"),
        ("swag", f"{SWAG}v,He,He,a,b,,d,0\n", "line 2: choice 3 of 4 is empty"),
        (
            "arc",
            '{"question": {"stem": "I", "choices": [{"text": "", "label": "A"}]}}',
            "line 1: choice 1 of 1 is empt",
        ),
        ("hellaswag", '{"ctx": "x", "endings": ["a", 3]}\n', "line 1: choice 2 of 2 is int; expected a text"),
        ("arc", '{"id": "x"}\n', "line 1: not in ARC's form"),
        ("arc", '{"question": {"stem": "I", "choices": []}}', "line 1: has no choices; expected at least one"),
        ("hellaswag", '{"ctx": "x", "endings": [], "label": 0}\n', "line 1: has no choices; expected at least one"),
        ("hellaswag", '{"ctx": "x", "endings": ["a"], "ind": "\\ud800"}\n', "line 1: 'ind' is not valid Unicode: lone"),
        (
            "hellaswag",
            '{"ctx": "x", "endings": ["a", "\\ud800"]}\n',
            "line 1: choice 2 of 2 is not valid Unicode: lone",
        ),
        ("hellaswag", '{"ctx": "x"}\n', "line 1: has no 'endings'; it has 'ctx'"),
    ],
)
def test_bad_choices_are_one_line(tmp_path, kind, text, message):
    with pytest.raises(UserError) as error:
        list(CHOICE_READERS[kind](write(tmp_path / ("a.csv" if kind == "swag" else "a.tsv"), text)))
    assert message in str(error.value)


def test_squad_whose_texts_are_no_texts_is_one_line(tmp_path):
    for change in ({"text": 5}, {"text": ["a"]}, {"answer_start": "0"}, {"answer_start": -1}, {"answer_start": None}):
        answer = {"text": "a", "answer_start": 0} | change
        qa = {"id": "q", "question": "w", "answers": [answer]}
        (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [qa]}]}]}))
        with pytest.raises(UserError, match=r"a\.json, article 1: not in SQuAD's form"):
            list(read_squad(tmp_path / "a.json"))


@pytest.mark.parametrize("change", [{"endings": 5}, {"endings": {"a": 1}}, {"ctx": None}, {"endings": "abcd"}])
def test_hellaswag_of_another_form_is_one_line(change, tmp_path):
    row = {"ctx": "He", "endings": ["a", "b", "c", "d"], "label": 0} | change
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: expected a text as 'ctx' and a list of texts"):
        list(CHOICE_READERS["hellaswag"](tmp_path / "a.jsonl"))


def test_a_cell_may_be_longer_than_pythons_own_limit(tmp_path):
    text = "word " * 40_000
    path = write(tmp_path / "long.csv", f'text,label\n"{text}",a\n')
    assert [example.text for example in read_table(path, Columns("text"))] == [text]
