"""classify, tag, answer, choose: files in, results on stdout in the files' order, mistakes as one line."""

import io
import json
import sys

import pytest

from bert_jax.__main__ import main
from bert_jax.inference import commands
from bert_jax.inference.pipelines import pipeline
from tests.inference.task_folders import TAGS, export

TEXTS = ["hello world", "", "held, o'hello.", "o"]
SQUAD = {
    "version": "2.0",
    "data": [
        {"title": "t", "paragraphs": [
            {"context": "hello worlds. held", "qas": [
                {"id": "a", "question": "hello?", "answers": []}, {"id": "b", "question": "o", "answers": []},
            ]},
            {"context": "o held " * 20, "qas": [{"id": "c", "question": "held", "answers": []}]},
        ]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    labels = {"sequence-classification": ("bad", "fair", "good"), "token-classification": TAGS}
    heads = (*labels, "question-answering", "multiple-choice")
    fields = {head: {"labels": labels[head]} if head in labels else {} for head in heads}
    return {head: str(export(tmp_path_factory.mktemp(head), head, **fields[head])) for head in heads}


def output(capsys, *argv: object) -> str:
    """stdout of a command that must succeed and say nothing else."""
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def json_lines(text: str) -> list:
    return [json.loads(line) for line in text.splitlines()]


def same(found: list, expected: list) -> bool:
    """Whether the results are the same but for scores, which depend on who is in a batch with whom."""
    return [_without_scores(row) for row in found] == [_without_scores(row) for row in expected]


def _without_scores(row):
    if isinstance(row, list):
        return [_without_scores(one) for one in row]
    return {name: value for name, value in row.items() if not name.startswith("score")}


def test_classify_gives_a_result_a_line_from_a_file_or_stdin(folders, tmp_path, capsys, monkeypatch):
    folder = folders["sequence-classification"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    lines = output(capsys, "classify", folder, tmp_path / "texts.txt").splitlines()
    expected = pipeline("text-classification", folder)(TEXTS)
    assert [line.split("\t")[0] for line in lines] == [row["label"] for row in expected]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx([row["score"] for row in expected], abs=1e-4)
    monkeypatch.setattr(commands, "CHUNK", 3)
    for argv in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
        found = json_lines(output(capsys, "classify", folder, *argv, "--json", "--top-k", "3"))
        assert [row[0]["label"] for row in found] == [row["label"] for row in expected]
        assert [len(row) for row in found] == [3] * len(TEXTS)


def test_classify_reads_columns_of_a_table(folders, tmp_path, capsys):
    folder = folders["sequence-classification"]
    (tmp_path / "pairs.csv").write_text('premise,hypothesis\nhello,"o, world"\nheld,o\n', encoding="utf-8")
    argv = ["--text", "premise", "--pair", "hypothesis", "--json"]
    found = json_lines(output(capsys, "classify", folder, tmp_path / "pairs.csv", *argv))
    pairs = [{"text": "hello", "text_pair": "o, world"}, {"text": "held", "text_pair": "o"}]
    assert same([row[0] for row in found], pipeline("text-classification", folder)(pairs))


@pytest.mark.slow
def test_tag_gives_entities_of_lines_and_columns_of_columns(folders, tmp_path, capsys):
    folder = folders["token-classification"]
    predict = pipeline("token-classification", folder)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\r\n" for text in TEXTS), encoding="utf-8")
    found = json_lines(output(capsys, "tag", folder, tmp_path / "texts.txt", "--json"))
    assert same(found, predict(TEXTS))
    assert any(found)
    people = output(capsys, "tag", folder, tmp_path / "texts.txt")
    assert sum(line.startswith(("  0.", "  1.")) for line in people.splitlines()) == sum(map(len, found))

    gold = "-DOCSTART- O\n\nhello B-PER\nworlds O\n\nheld B-LOC\n, O\no O\n"
    (tmp_path / "gold.conll").write_text(gold, encoding="utf-8")
    columns = output(capsys, "tag", folder, tmp_path / "gold.conll", "--conll")
    (tmp_path / "predicted.conll").write_text(columns, encoding="utf-8")
    words = [["hello", "worlds"], ["held", ",", "o"]]
    tags = [[tag.label for tag in row] for row in predict.tags(words)]  # type: ignore[attr-defined]
    blocks = columns.strip().split("\n\n")
    assert [[line.split("\t") for line in block.split("\n")] for block in blocks] == [
        [[word, tag] for word, tag in zip(*both, strict=True)] for both in zip(words, tags, strict=True)
    ]
    scores = json.loads(
        output(capsys, "score", "conll", tmp_path / "gold.conll", tmp_path / "predicted.conll", "--json")
    )
    assert 0 <= scores["accuracy"] <= 100
    entities = json_lines(output(capsys, "tag", folder, tmp_path / "gold.conll", "--conll", "--json"))
    assert same(entities, predict(words, is_split_into_words=True))  # type: ignore[attr-defined]


@pytest.mark.slow
def test_answer_writes_what_the_official_script_reads(folders, tmp_path, capsys):
    folder = folders["question-answering"]
    file, predictions, odds = tmp_path / "dev.json", tmp_path / "predictions.json", tmp_path / "odds.json"
    file.write_text(json.dumps(SQUAD), encoding="utf-8")
    shown = json.loads(output(capsys, "answer", folder, file))
    asked = [
        {"question": qa["question"], "context": paragraph["context"]}
        for paragraph in SQUAD["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    ]
    expected = pipeline("question-answering", folder)(asked)
    assert shown == dict(zip("abc", (row["answer"] for row in expected), strict=True))
    found = json_lines(output(capsys, "answer", folder, file, "--json"))
    assert same(found, [{"id": id} | row for id, row in zip("abc", expected, strict=True)])

    argv = ["--null-threshold", "-1000000", "--null-odds", odds, "--output", predictions]
    assert output(capsys, "answer", folder, file, *argv) == ""
    assert json.loads(predictions.read_text()) == {"a": "", "b": "", "c": ""}
    assert set(json.loads(odds.read_text())) == {"a", "b", "c"}
    scores = json.loads(output(capsys, "score", "squad2", file, predictions, "--na-prob-file", odds, "--json"))
    assert scores["exact"] == 100  # no question of the file has an answer


def test_answer_reads_rows_of_a_table(folders, tmp_path, capsys):
    folder = folders["question-answering"]
    rows = [{"id": 7, "question": "o", "context": "hello world"}, {"question": "o", "context": "held,\nheld"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = json_lines(output(capsys, "answer", folder, tmp_path / "q.jsonl", "--json"))
    assert [row["id"] for row in found] == ["7", "1"]
    assert all(
        row["answer"] == asked["context"][row["start"] : row["end"]] for row, asked in zip(found, rows, strict=True)
    )
    lines = output(capsys, "answer", folder, tmp_path / "q.jsonl").splitlines()
    assert [line.split("\t")[1] for line in lines] == [" ".join(row["answer"].split()) for row in found]


@pytest.mark.slow
def test_choose_gives_the_number_of_a_choice(folders, tmp_path, capsys):
    folder = folders["multiple-choice"]
    head = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    (tmp_path / "val.csv").write_text(head + "hello,o,world,held,h,e,1\nheld,d,hello,o,w,l,\n", encoding="utf-8")
    found = json_lines(output(capsys, "choose", folder, tmp_path / "val.csv", "--json"))
    endings = [["o world", "o held", "o h", "o e"], ["d hello", "d o", "d w", "d l"]]
    questions = [{"text": text, "choices": some} for text, some in zip(("hello", "held"), endings, strict=True)]
    expected = pipeline("multiple-choice", folder)(questions)
    assert same(found, [{"id": id} | row for id, row in zip("01", expected, strict=True)])
    lines = output(capsys, "choose", folder, tmp_path / "val.csv").splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(row["choice"]) for row in expected]
    arc = {
        "id": "x",
        "question": {"stem": "hello", "choices": [{"text": "o", "label": "A"}, {"text": "d", "label": "B"}]},
    }
    (tmp_path / "arc.jsonl").write_text(json.dumps(arc) + "\n", encoding="utf-8")
    (row,) = json_lines(output(capsys, "choose", folder, tmp_path / "arc.jsonl", "--format", "arc", "--json"))
    assert row["id"] == "x" and len(row["scores"]) == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["classify", "{token-classification}", "{tmp}/texts.txt"], "that is for token-classification (verb tag)"),
        (["tag", "{question-answering}", "{tmp}/texts.txt"], "that is for question-answering (verb answer)"),
        (["classify", "{sequence-classification}", "{tmp}/none.txt"], "none.txt: no such file"),
        (["classify", "{sequence-classification}", "{tmp}/table.csv"], "a table; name the column"),
        (["classify", "{sequence-classification}", "{tmp}/table.csv", "--text", "t"], "line 2: has no column 't'"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--pair", "b"], "--pair b: name the column"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--top-k", "0"], "--top-k 0"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--batch-size", "0"], "batch_size=0"),
        (["tag", "{token-classification}", "--conll"], "--conll: name the file"),
        (["tag", "{token-classification}", "{tmp}/texts.txt", "--conll", "--split", "spaces"], "--split spaces"),
        (["answer", "{question-answering}", "{tmp}/table.csv"], "line 2: has no text 'question'; it has 'a', 'b'"),
        (["answer", "{question-answering}", "{tmp}/table.csv", "--output", "{tmp}/no/x"], "its folder does not exist"),
        (["choose", "{multiple-choice}", "{tmp}/table.csv"], "line 2: has no 'sent1'"),
        (["choose", "{multiple-choice}", "-"], "name the file"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(argv, message, folders, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("hello\n")
    (tmp_path / "table.csv").write_text("a,b\nhello,o\n")
    capsys.readouterr()
    assert main([word.format(tmp=tmp_path, **folders) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
