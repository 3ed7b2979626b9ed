"""classify, tag, answer, choose: files in, results on stdout in the files' order, mistakes as one line."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from bert_jax.__main__ import main
from bert_jax.cli import streaming
from bert_jax.cli.verbs import attend, fill_mask, likelihood, score, tag
from bert_jax.errors import UserError
from bert_jax.evaluation import blimp
from bert_jax.inference.attention import maps as attention_maps
from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.tasks import likelihood as likelihood_task
from bert_jax.inference.tasks import task_model
from tests.inference.tasks.task_folders import TAGS, export

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
    """Whether the results are the same except for scores, which depend on the other rows of a batch."""
    return [_without_scores(row) for row in found] == [_without_scores(row) for row in expected]


def _without_scores(row):
    if isinstance(row, list):
        return [_without_scores(one) for one in row]
    return {name: value for name, value in row.items() if not name.startswith("score")}


@pytest.mark.slow
def test_classify_gives_a_result_a_line_from_a_file_or_stdin(folders, tmp_path, capsys, monkeypatch):
    folder = folders["sequence-classification"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    lines = output(capsys, "classify", folder, tmp_path / "texts.txt").splitlines()
    expected = pipeline("text-classification", folder)(TEXTS)
    assert [line.split("\t")[0] for line in lines] == [row["label"] for row in expected]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx([row["score"] for row in expected], abs=1e-4)
    monkeypatch.setattr(streaming, "CHUNK", 3)
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
    expected = pipeline("text-classification", folder)(pairs)
    assert same([row[0] for row in found], expected)
    scores = [row["score"] for row in expected]
    assert [row[0]["score"] for row in found] == pytest.approx(scores, rel=1e-4)  # which the second text decides


def test_classify_prints_the_labels_that_are_decided_where_a_text_can_have_several(tmp_path, capsys):
    """Those of a probability above a half, as fine-tuning decides them; transformers' top_k where it is given."""
    fields = {"labels": ("bad", "fair", "good"), "problem_type": "multi_label_classification"}
    folder = str(export(tmp_path, "sequence-classification", **fields))
    texts = ["hello", "held", "world", "o", "hello world", "", "held held", "helo"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    chances = pipeline("text-classification", folder)(texts, top_k=None)
    expected = [[row["label"] for row in some if row["score"] > 0.5] for some in chances]
    assert len({len(labels) for labels in expected}) > 1
    argv = ["classify", folder, tmp_path / "texts.txt"]
    lines = output(capsys, *argv).split("\n")[:-1]
    assert [line.split("\t")[0::2] if line else [] for line in lines] == expected
    assert same(json_lines(output(capsys, *argv, "--json")), chances)
    first = [line.split("\t") for line in output(capsys, *argv, "--top-k", 1).splitlines()]
    assert [label for label, _ in first] == [some[0]["label"] for some in chances]


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
    right = [tag == gold for tag, gold in zip([*tags[0], *tags[1]], ["B-PER", "O", "B-LOC", "O", "O"], strict=True)]
    assert scores["accuracy"] == 100 * sum(right) / 5
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
    answers = pipeline("question-answering", folder).answers(asked)  # type: ignore[attr-defined]
    no_answer_scores = {id: one.no_answer_score for id, one in zip("abc", answers, strict=True)}
    assert json.loads(odds.read_text()) == pytest.approx(no_answer_scores, rel=1e-4)
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


def test_a_question_that_cannot_be_answered_has_null_odds(folders, tmp_path, capsys):
    file, said, odds = (tmp_path / name for name in ("dev.json", "predictions.json", "odds.json"))
    qas = [[{"id": id, "question": "o", "answers": []}] for id in "ab"]
    paragraphs = [{"context": context, "qas": some} for context, some in zip(("held", " "), qas, strict=True)]
    file.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    argv = ["answer", folders["question-answering"], str(file), "--output", str(said), "--null-odds", str(odds)]
    assert main(argv) == 2
    assert json.loads(said.read_text())["b"] == "" and json.loads(odds.read_text())["b"] == 1e9
    assert "total" in output(capsys, "score", "squad2", file, said, "--na-prob-file", odds)


def test_null_odds_of_two_questions_are_never_those_of_one_id(tmp_path, capsys):
    rows = [{"id": 1, "question": "o", "context": "hello"}, {"question": "o", "context": "held"}]  # whose id is 1, too
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = ["answer", "no-model", str(tmp_path / "q.jsonl"), "--null-odds", str(tmp_path / "odds.json")]
    assert main(argv) == 2
    assert "q.jsonl: the id '1' occurs twice; --null-odds needs ids that differ" in capsys.readouterr().err
    assert not (tmp_path / "odds.json").exists()


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


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz", "q.jsonl.zst"])
def test_choose_says_which_formats_are_json_lines(folders, tmp_path, capsys, name):
    (tmp_path / name).write_text('{"text": "hello", "choices": ["o", "d"]}')
    assert main(["choose", folders["multiple-choice"], str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert f"{name}: --format swag is a table; for JSON lines say --format arc or --format hellaswag" in said


ENDINGS = b"sent1,sent2,ending0,ending1,ending2,ending3,label\n"
ROW = b"hello,o,world,held,h,e,1\n"
ARC = b'{"question": {"stem": "o", "choices": [{"text": "h", "label": "A"}, {"text": "d", "label": "B"}]}}\n'


@pytest.mark.parametrize(
    ("verb", "name", "content", "options", "message"),
    [
        ("classify", "t.csv", b"t\nhello\n\xff\nworld\n", ["--text", "t"], "line 3: byte 0xff at position 1"),
        ("classify", "t.csv", b't,u\n"a\nb",o\n"a\n\xff\nb",o\no,o\n', ["--text", "t"], "line 5: byte 0xff at position 1"),
        ("classify", "t.csv", b't\nhello\n"a"b\nworld\n', ["--text", "t"], "line 3: not CSV"),
        ("classify", "t.tsv", b"t\tu\nhello\to\nworld\no\to\n", ["--text", "t", "--pair", "u"], "line 3: 1 cells"),
        ("classify", "t.jsonl", b'{"t": "o"}\n{"t": null}\n{"t": "e"}\n', ["--text", "t"], "line 2: 't' is NoneType"),
        ("classify", "t.jsonl", b'{"t": "o"}\n{"u": "o"}\n{"t": "e"}\n', ["--text", "t"], "line 2: has no column 't'"),
        ("classify", "t.jsonl", b'{"t": "o"}\n{"t"\n{"t": "e"}\n', ["--text", "t"], "line 2: not JSON"),
        ("answer", "q.csv", b"question,context\no,hello\n\xff,o\no,o\n", [], "line 3: byte 0xff at position 1"),
        ("answer", "q.jsonl", b'{"question": "o", "context": "hello"}\n{"question": "o"}\n{"question": "o", "context": "o"}\n', [], "line 2: has no string 'context'"),
        ("tag", "t.conll", b"hello O\n\nworld O\n\xff O\nheld O\n\nheld O\n", ["--conll"], "line 4: byte 0xff at position 1"),
        ("choose", "c.csv", ENDINGS + ROW + b"\xff" + ROW + ROW, [], "line 3: byte 0xff at position 1"),
        ("choose", "c.csv", ENDINGS + ROW + ROW.replace(b"1", b"7") + ROW, [], "line 3: the label is '7'"),
        ("choose", "c.jsonl", ARC + b"{}\n" + ARC, ["--format", "arc"], "line 2: not in ARC's form"),
    ],
)  # fmt: skip
def test_a_bad_row_is_said_in_its_place_and_the_others_are_answered(
    verb, name, content, options, message, folders, tmp_path, capsys
):
    heads = ("sequence-classification", "token-classification", "question-answering", "multiple-choice")
    folder = folders[dict(zip(("classify", "tag", "answer", "choose"), heads, strict=True))[verb]]
    (tmp_path / name).write_bytes(content)
    assert main([verb, folder, str(tmp_path / name), *options, "--json"]) == 2
    out, err = capsys.readouterr()
    rows = json_lines(out)
    assert [isinstance(row, dict) and "error" in row for row in rows] == [False, True, False]
    assert f"{name}, {message}" in rows[1]["error"]
    assert err.startswith(f"python -m bert_jax {verb}: error: 1 of 3 ") and err.count("\n") == 1
    if verb == "choose" and name == "c.csv":
        assert [row["id"] for row in rows if "error" not in row] == ["0", "2"]  # rows, as the file numbers them


def test_a_failure_is_a_line_of_its_own_on_stderr(folders, tmp_path, capsys):
    (tmp_path / "t.conll").write_bytes(b"hello O\n\n\xff O\n\nheld O\n")
    assert main(["tag", folders["token-classification"], str(tmp_path / "t.conll"), "--conll"]) == 2
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines() if line] == ["hello", "held"]
    assert "t.conll, line 3: byte 0xff" in err.splitlines()[0]
    rows = [{"question": "o", "context": context} for context in ("\0\0", "hello world", "\u200b", "\u0301")]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["answer", folders["question-answering"], str(tmp_path / "q.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    said = err.splitlines()
    assert [line.split(" (")[0] for line in said[:3]] == [
        f"python -m bert_jax answer: error: question {n}: its context" for n in (1, 3, 4)
    ]
    assert all("has no token; expected a passage with the answer" in line for line in said[:3])
    assert said[3:] == ["python -m bert_jax answer: error: 3 of 4 questions could not be answered"]


HOSTILE, ESCAPED = "\x1b]0;x\x07\tA\n\u202e", r"\x1b]0;x\x07\tA\n\u202e"


def test_a_label_cannot_command_the_terminal_or_end_its_column(tmp_path, capsys):
    folder = export(tmp_path, "sequence-classification", labels=(HOSTILE, "B"))
    first, *rest = output(capsys, "classify", folder, "hello", "o", "--top-k", 2).split("\n")[:-1]
    assert len(rest) == 1
    assert {*first.split("\t")[0::2]} == {ESCAPED, "B"}
    found = json_lines(output(capsys, "classify", folder, "hello", "--json", "--top-k", 2))[0]
    assert {row["label"] for row in found} == {HOSTILE, "B"}


def _attend(monkeypatch) -> None:
    row = {"layer": 0, "head": 0, "special": 0.0, "previous": 0.0, "itself": 0.0, "next": 0.0, "most": HOSTILE}
    monkeypatch.setattr(attend, "summary", lambda maps: [row])
    maps = SimpleNamespace(save_html=None, save_png=None, save_npz=None)
    monkeypatch.setattr(attention_maps, "Attend", lambda *source, **options: lambda text, pair: maps)
    main(["attend", "no-model", "a text"])


def _blimp(monkeypatch) -> None:
    one = {"accuracy": 50.0, "pairs": 2, "ties": 0}
    groups = {"phenomena": {HOSTILE: 50.0}, "fields": {HOSTILE: 50.0}, "note": None}
    monkeypatch.setattr(blimp, "read_blimp", lambda path, limit: [])
    monkeypatch.setattr(blimp, "evaluate", lambda *given, **options: one | groups | {"sets": {HOSTILE: one}})
    monkeypatch.setattr(likelihood_task, "Likelihood", lambda *source, **options: None)
    main(["evaluate-blimp", "no-model", "no-data"])


def _fill_mask(monkeypatch) -> None:
    streaming.write(fill_mask._show("a text", [{"score": 0.5, "token_str": HOSTILE, "sequence": HOSTILE}]))


def _likelihood(monkeypatch) -> None:
    token = {"log_probability": -1.0, "token": HOSTILE}
    streaming.write(likelihood._show("a text", {"pll": -1.0, "tokens": 1, "pppl": 2.7, "per_token": [token]}))


def _score(monkeypatch) -> None:
    score._show({HOSTILE: {HOSTILE: 0.5}}, as_json=False)


def _tag(monkeypatch) -> None:
    found = {"score": 0.5, "entity_group": HOSTILE, "word": "text", "start": 2, "end": 6}
    streaming.write(tag._show_entities("a text", [found]))


def _tag_columns(monkeypatch) -> None:
    streaming.write(tag._show_tags(SimpleNamespace(words=["text"]), [SimpleNamespace(label=HOSTILE)]))


def _notes(monkeypatch) -> None:
    streaming.say(f"left out: {HOSTILE}")


def _errors(monkeypatch) -> None:
    main(["info", "no such folder/" + HOSTILE])


@pytest.mark.parametrize(
    "shown", [_attend, _blimp, _fill_mask, _likelihood, _score, _tag, _tag_columns, _notes, _errors]
)
def test_what_a_file_names_is_printed_with_escapes(shown, monkeypatch, capsys):
    shown(monkeypatch)
    printed = "".join(capsys.readouterr())
    assert ESCAPED.removesuffix(r"\n\u202e") in printed
    assert "".join(printed.split("\n")).replace("\t", "").isprintable()


@pytest.mark.slow
def test_answer_gives_the_n_best(folders, tmp_path, capsys):
    folder = folders["question-answering"]
    rows = [{"id": "x", "question": "o", "context": "hello world held"}, {"id": "y", "question": "o", "context": "o"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [folder, tmp_path / "q.jsonl", "--top-k", "3"]
    found = json_lines(output(capsys, "answer", *argv, "--json"))
    asked = [{name: row[name] for name in ("question", "context")} for row in rows]
    expected = pipeline("question-answering", folder)(asked, top_k=3)  # type: ignore[call-arg]
    assert [len(some) for some in found] == [3, 1]
    for name, some, others in zip("xy", found, expected, strict=True):
        assert same(some, [{"id": name} | row for row in others])
    cells = [line.split("\t") for line in output(capsys, "answer", *argv).splitlines()]
    assert [row[1::2] for row in cells] == [[row["answer"] for row in some] for some in found]


@pytest.mark.parametrize(
    "argv",
    ["classify DIR F", "tag DIR F", "answer DIR Q", "choose DIR C", "attend DIR hello", "embed DIR F", "similar DIR F F",
     "likelihood DIR F", "evaluate-blimp DIR B", "next-sentence DIR F", "summarise DIR F", "fill-mask DIR [MASK]"],
)  # fmt: skip
def test_every_verb_loads_its_model_with_the_products_type_that_is_asked_for(argv, tmp_path, capsys, monkeypatch):
    def loaded(task, source, *, dtype):
        raise UserError(f"{task}: {dtype}")

    monkeypatch.setattr(task_model, "model_for", loaded)
    monkeypatch.setattr(attention_maps, "model_for", loaded)
    (tmp_path / "B").mkdir()
    (tmp_path / "B" / "b.jsonl").write_text('{"sentence_good": "o", "sentence_bad": "h"}\n')
    contents = {"F": b"hello\n", "C.csv": ENDINGS + ROW, "Q.jsonl": b'{"question": "o", "context": "o"}\n'}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = {"DIR": tmp_path, "B": tmp_path / "B"} | {name.split(".")[0]: tmp_path / name for name in contents}
    words = [str(paths.get(word, word)) for word in argv.split()]
    for given, dtype in (([], "float32"), (["--dtype", "bfloat16"], "bfloat16")):
        assert main([*words, *given]) == 2
        assert capsys.readouterr().err.endswith(f": {dtype}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["answer", "{question-answering}", "{tmp}/table.csv", "--top-k", "21"], "--top-k 21: expected 1 to 20"),
        (["answer", "{question-answering}", "{tmp}/dev.json", "--top-k", "2"], "one answer per question; add --json"),
        (["classify", "{token-classification}", "{tmp}/texts.txt"], "which is for token-classification (verb tag)"),
        (["tag", "{question-answering}", "{tmp}/texts.txt"], "which is for question-answering (verb answer)"),
        (["classify", "{sequence-classification}", "{tmp}/none.txt"], "none.txt: no such file"),
        (
            ["classify", "{sequence-classification}", "{tmp}/table.csv"],
            "table.csv: this is a table, whose lines are no texts; name the column with the texts, --text COL",
        ),
        (["classify", "{sequence-classification}", "{tmp}/table.csv", "--text", "t"], "table.csv: has no column 't'"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--pair", "b"], "--pair b: name the column"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--top-k", "0"], "--top-k 0"),
        (["classify", "{sequence-classification}", "{tmp}/texts.txt", "--batch-size", "0"], "--batch-size 0"),
        (["tag", "{token-classification}", "--conll"], "--conll: name the file"),
        (["tag", "{token-classification}", "{tmp}/texts.txt", "--conll", "--split", "spaces"], "--split spaces"),
        (["answer", "{question-answering}", "{tmp}/table.csv"], "line 2: has no string 'question'; it has 'a', 'b'"),
        (["answer", "{question-answering}", "{tmp}/table.csv", "--output", "{tmp}/no/x"], "its folder does not exist"),
        (["choose", "{multiple-choice}", "{tmp}/table.csv"], "line 2: has no 'sent1'"),
        (["choose", "{multiple-choice}", "-"], "name the file"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(argv, message, folders, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("hello\n")
    (tmp_path / "table.csv").write_text("a,b\nhello,o\n")
    (tmp_path / "dev.json").write_text(json.dumps(SQUAD))
    capsys.readouterr()
    assert main([word.format(tmp=tmp_path, **folders) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith(f"python -m bert_jax {argv[0]}: error: ")
    assert err.count("\n") == 1
