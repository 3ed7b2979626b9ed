"""`python -m bert_jax score`: the official figures from the official files; files that do not match are one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.preprocessing import MultiLabelBinarizer

from bert_jax.__main__ import main
from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.tags import read_conll, read_klue_ner, read_naver_ner, write_conll
from bert_jax.errors import UserError
from bert_jax.evaluation.score import KINDS, MOST_RANKED, ranking_scores, score
from train.finetuning.tasks.table import TASKS


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
def test_squad1_on_the_recorded_predictions(data_dir, capsys):
    squad = data_dir / "finetune" / "squad"
    predictions = squad / "dev-v1.1-recorded-predictions.json.gz"
    assert main(["score", "squad1", str(squad / "dev-v1.1.json.gz"), str(predictions), "--json"]) == 0
    recorded = json.loads((squad / "dev-v1.1-recorded-metrics.json").read_text())
    assert json.loads(capsys.readouterr().out) == {
        "exact_match": recorded["eval_exact_match"],
        "f1": recorded["eval_f1"],
    }


SQUAD2 = {"data": [{"paragraphs": [{"context": "a cat", "qas": [
    {"id": "a", "question": "?", "answers": [{"text": "cat", "answer_start": 2}], "is_impossible": False},
    {"id": "b", "question": "?", "answers": [], "is_impossible": True},
]}]}]}  # fmt: skip


def test_squad2_with_its_threshold(tmp_path):
    gold = write(tmp_path / "dev.json", json.dumps(SQUAD2))
    predictions = write(tmp_path / "predictions.json", json.dumps({"a": "the cat", "b": "dog"}))
    odds = write(tmp_path / "null_odds.json", json.dumps({"a": -3.5, "b": 2}))
    scores = score("squad2", gold, predictions, no_answer_scores=odds)
    assert scores["exact"] == 100.0 and scores["NoAns_f1"] == 100.0  # 2 is above the threshold of 1
    assert list(scores)[-4:] == ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert score("squad2", gold, predictions)["exact"] == 50.0


def test_questions_without_a_prediction_are_said_and_counted_as_the_official_scripts_do(tmp_path, caplog):
    """Version 1.1 counts them as wrong, and version 2.0 leaves them out; both print each."""
    gold = write(tmp_path / "dev.json", json.dumps(SQUAD2))
    some = write(tmp_path / "predictions.json", json.dumps({"b": "", "unknown": "x"}))
    assert score("squad2", gold, some)["total"] == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == f"{some}: 1 of 2 questions have no prediction, the first 'a'; these are not counted"
    answered = json.loads(
        json.dumps(SQUAD2).replace('"answers": []', '"answers": [{"text": "cat", "answer_start": 2}]')
    )
    write(gold, json.dumps(answered))
    assert score("squad1", gold, write(some, json.dumps({"b": "cat"})))["exact_match"] == 50
    assert (
        caplog.records[-1]
        .getMessage()
        .endswith("1 of 2 questions have no prediction, the first 'a'; these count as wrong")
    )
    caplog.clear()
    score("squad1", gold, write(some, json.dumps({"a": "cat", "b": "cat"})))
    assert not caplog.records


def test_a_threshold_without_scores_and_scores_without_an_order_are_one_line(tmp_path, capsys):
    gold = str(write(tmp_path / "dev.json", json.dumps(SQUAD2)))
    said = str(write(tmp_path / "predictions.json", json.dumps({"a": "the cat", "b": "dog"})))
    odds = str(write(tmp_path / "odds.json", '{"a": -Infinity, "b": NaN}'))
    for words, says in (
        (["squad2", gold, said, "--na-prob-file", odds], "odds.json, question b: found NaN; expected a number"),
        (
            ["squad2", gold, said, "--na-prob-thresh", "0.5"],
            "--na-prob-thresh 0.5: needs the scores that it applies to; say",
        ),
        (["squad2", gold, said, "--na-prob-thresh", "nan"], "'nan': expected a number"),
        (
            ["squad1", gold, said, "--na-prob-thresh", "1"],
            "--na-prob-thresh 1.0: needs the scores that it applies to; say",
        ),
        (["squad1", gold, said, "--na-prob-file", odds], "no-answer scores are for squad2 only; the task is squad1"),
        (
            ["squad2", said, "--na-prob-thresh", "1"],
            "--label, --id, --kind, --na-prob-file and --na-prob-thresh belong to",
        ),
    ):
        assert main(["score", *words]) == 2
        found = capsys.readouterr().err.strip()
        assert says in found and len(found.splitlines()) == 1, found
    write(tmp_path / "odds.json", '{"a": -3, "b": true}')
    with pytest.raises(UserError, match=r"odds.json, question b: found bool; expected a number"):
        score("squad2", Path(gold), Path(said), no_answer_scores=Path(odds))
    with pytest.raises(UserError, match=r"no_answer_threshold=2: needs no_answer_scores"):
        score("squad2", Path(gold), Path(said), no_answer_threshold=2)


CONLL = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"


def test_conll(tmp_path, capsys):
    gold = write(tmp_path / "gold", CONLL)
    guess = write(tmp_path / "guess", CONLL.replace("I-PER", "O"))
    assert main(["score", "conll", str(gold), str(guess)]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert printed["accuracy"] == "75" and printed["FB1"] == "50" and printed["ORG_FB1"] == "100"


def glue(tmp_path: Path, task: str, labels: list[str], predictions: list[str]) -> tuple[Path, Path]:
    rows = "".join(f"{i}\ta\tb\t{label}\n" for i, label in enumerate(labels))
    gold = write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n" + rows)
    lines = "".join(f"{i}\t{label}\n" for i, label in enumerate(predictions))
    return gold, write(tmp_path / f"{task}.tsv", "index\tprediction\n" + lines)


def test_glue(tmp_path):
    files = glue(tmp_path, "RTE", ["entailment", "not_entailment"], ["entailment", "entailment"])
    assert score("rte", *files) == {"accuracy": 0.5}
    gold = write(tmp_path / "dev.tsv", "Quality\t1\t2\tA\tB\n" + "".join(f"{q}\t1\t2\tx\ty\n" for q in "1101"))
    predictions = write(tmp_path / "MRPC.tsv", "index\tprediction\n0\t1\n1\t0\n2\t1\n3\t1\n")
    assert score("mrpc", gold, predictions) == {"f1": pytest.approx(2 / 3), "accuracy": 0.5}
    rows = "".join("\t".join([*"0123456", "a", "b", score]) + "\n" for score in ("0.0", "2.5", "5.0"))
    gold = write(tmp_path / "sts.tsv", "\t".join("abcdefghij") + "\n" + rows)
    predictions = write(tmp_path / "STS-B.tsv", "index\tprediction\n0\t1.0\n1\t1.5\n2\t9\n")
    scores = score("stsb", gold, predictions)
    assert scores["spearman"] == pytest.approx(1.0) and scores["pearson"] < 1


def by_scikit_learn(kind: str, gold: Any, said: Any) -> dict[str, Any]:
    if kind == "number":
        gold, said = np.array(gold), np.array(said)
        return {
            "r2": sk.r2_score(gold, said),
            "spearman": stats.spearmanr(gold, said)[0],
            "pearson": stats.pearsonr(gold, said)[0],
            "mean_absolute_error": sk.mean_absolute_error(gold, said),
            "mean_squared_error": sk.mean_squared_error(gold, said),
        }
    if kind == "classes":
        sets = MultiLabelBinarizer().fit([*gold, *said])
        gold, said = sets.transform(gold), sets.transform(said)
        micro, macro = (sk.f1_score(gold, said, average=average) for average in ("micro", "macro"))
        return {"micro_f1": micro, "accuracy": sk.accuracy_score(gold, said), "macro_f1": macro}
    return {
        "accuracy": sk.accuracy_score(gold, said),
        "macro_f1": sk.f1_score(gold, said, average="macro"),
        "matthews_correlation": sk.matthews_corrcoef(gold, said),
    }


ENTAILMENT = (
    ["neutral", "entailment", "contradiction", "neutral"],
    ["neutral", "entailment", "neutral", "contradiction"],
)
TABLES = {
    "snli": ("a.tsv", "sentence1\tsentence2\tgold_label", "a\tb\t{}", *ENTAILMENT),
    "kornli": ("a.tsv", "sentence1\tsentence2\tgold_label", "a\tb\t{}", *ENTAILMENT),
    "nsmc": ("a.txt", "id\tdocument\tlabel", "{id}\t영화\t{}", ["0", "1", "1", "0"], ["0", "1", "0", "0"]),
    "korsts": (
        "a.tsv", "genre\tscore\tsentence1\tsentence2", "x\t{}\ta\tb", [0.0, 2.8, 5.0, 1.25], [0.1, 2.5, 4.75, 1.5],
    ),
    "classify": ("a.csv", "text,label", '"a, b",{}', ["x", "좋음", "z", "x"], ["x", "좋음", "x", "y"]),
    "classify number": ("a.csv", "text,label", "a,{}", [0.0, -2.5, 5.0, 1.0], [1.0, -2.0, 5.5, 1.0]),
    "classify classes": (
        "a.csv", "text,label", "a,{}", [["x"], ["x", "y"], [], ["z"]], [["x", "y"], ["x", "y"], [], []],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_a_table(case: str, tmp_path: Path):
    """As scikit-learn and scipy have it; predictions in another order than the file, in either form."""
    name, header, row, gold, said = TABLES[case]
    task, _, kind = case.partition(" ")
    kind = kind or ("number" if task == "korsts" else "class")
    ids = ["7", "0", "3", "9"] if task == "nsmc" else [str(number) for number in range(4)]

    def cell(label: Any) -> str:
        return "|".join(label) if kind == "classes" else str(label)

    rows = [row.format(cell(label), id=id) for id, label in zip(ids, gold, strict=True)]
    path = write(tmp_path / name, "\n".join([header, *rows]) + "\n")
    lines = [(id, cell(label)) for id, label in zip(ids, said, strict=True)][::-1]
    columns = Columns(None, kind=kind) if task == "classify" else None
    for suffix, comma in (("csv", ","), ("tsv", "\t")):
        text = "".join(f"{a}{comma}{b}\n" for a, b in [("id", "prediction"), *lines])
        found = score(task, path, write(tmp_path / f"predictions.{suffix}", text), columns=columns)
        assert found == pytest.approx(by_scikit_learn(kind, gold, said), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "gold", "said"),
    [("class", ["x", "y "], [" x", "y"]), ("classes", ['["a", "b"]', "[]", "c"], ["b|a", "[]", '["c"]'])],
)
def test_a_prediction_is_read_as_a_label_is(kind: str, gold: list[str], said: list[str], tmp_path: Path):
    truth = write(tmp_path / "a.tsv", "".join(f"{cell}\n" for cell in ["label", *gold]))
    rows = "".join(f"{number}\t{cell}\n" for number, cell in enumerate(said))
    guess = write(tmp_path / "said.tsv", f"id\tprediction\n{rows}")
    assert score("classify", truth, guess, columns=Columns(None, kind=kind))["accuracy"] == 1.0


@pytest.mark.parametrize("case", ["classify", "classify number", "classify classes"])
def test_what_the_verb_classify_answered_is_scored_in_the_order_of_the_texts(case: str, tmp_path: Path):
    name, header, row, gold, said = TABLES[case]
    kind = case.partition(" ")[2] or "class"
    cells = ["|".join(label) if kind == "classes" else str(label) for label in gold]
    path = write(tmp_path / name, "\n".join([header, *map(row.format, cells)]) + "\n")

    def answer(label: Any) -> list[dict[str, Any]]:
        if kind == "classes":
            return [{"label": name, "score": 0.9 if name in label else 0.1} for name in "xyz"]
        return [{"label": "value", "score": label} if kind == "number" else {"label": label, "score": 0.4}]

    lines = [json.dumps(answer(label)) for label in said]
    columns = Columns(None, kind=kind)
    found = score("classify", path, write(tmp_path / "a.jsonl", "\n".join(lines) + "\n"), columns=columns)
    expected = by_scikit_learn(kind, gold, said)
    if kind == "classes":
        truth, guess = (
            MultiLabelBinarizer().fit(["xyz"]).transform(gold),
            [[0.9 if n in s else 0.1 for n in "xyz"] for s in said],
        )
        expected["roc_auc"] = sk.roc_auc_score(truth, guess)
        expected["average_precision"] = sk.average_precision_score(truth, guess)
    assert found == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UserError, match=r"a.jsonl: 3 predictions for 4 examples of"):
        score("classify", path, write(tmp_path / "a.jsonl", "\n".join(lines[1:]) + "\n"), columns=columns)
    with pytest.raises(UserError, match=r"a.jsonl, line 2: found \{'error': 'long'\}; expected labels with scores"):
        score("classify", path, write(tmp_path / "a.jsonl", lines[0] + '\n{"error": "long"}\n'), columns=columns)


def test_no_prediction_for_a_class_is_one_line(tmp_path: Path):
    truth = write(tmp_path / "a.tsv", "label\nx\ny\n")
    guess = write(tmp_path / "said.tsv", "id\tprediction\n0\tx\n1\t\n")
    with pytest.raises(UserError, match=r"said.tsv, line 3: 'prediction' is ''; expected the name of a class"):
        score("classify", truth, guess)


def test_a_pair_without_a_label_that_readers_agreed_on_is_not_asked_for(tmp_path: Path):
    gold = write(tmp_path / "a.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\na\tb\tneutral\na\tb\tentailment\n")
    said = write(tmp_path / "said.csv", "id,prediction\n1,neutral\n2,neutral\n")
    assert score("snli", gold, said)["accuracy"] == 0.5


def test_a_prediction_that_the_task_does_not_have_is_one_line(tmp_path: Path):
    gold = write(tmp_path / "a.tsv", "sentence1\tsentence2\tgold_label\na\tb\tneutral\na\tb\tentailment\n")
    said = write(tmp_path / "said.csv", "id,prediction\n0,neutral\n1,1\n")
    expected = "line 3: the prediction is '1'; expected one of contradiction, entailment, neutral"
    with pytest.raises(UserError, match=expected):
        score("snli", gold, said)


def test_the_words_for_a_table_s_columns(tmp_path: Path, capsys):
    gold = write(tmp_path / "a.csv", "key,mood\nx,1\ny,2\nz,4\n")
    said = write(tmp_path / "said.csv", "id,prediction\nx,2\ny,2\nz,2\n")
    words = ["score", "classify", str(gold), str(said), "--label", "mood", "--id", "key"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(1 / 3)
    assert main([*words, "--kind", "number", "--json"]) == 0
    out = capsys.readouterr().out  # equal predictions have no correlation, and JSON no word for that
    assert json.loads(out, parse_constant=pytest.fail) == {
        "r2": pytest.approx(1 - 5 / (2 * 7 / 3)), "spearman": None, "pearson": None, "mean_absolute_error": 1.0,
        "mean_squared_error": pytest.approx(5 / 3),
    }  # fmt: skip
    assert main([*words, "--kind", "number"]) == 0
    assert "spearman             none" in capsys.readouterr().out
    assert main(["score", "rte", str(gold), str(said), "--label", "mood"]) == 2
    assert "--label, --id, --kind are for classify only; rte has its own columns" in capsys.readouterr().err


# A gold file, the predicted tags, and of conlleval's figures those that can be counted: the share of right tags; the
# phrases there are, found and correct; of each type how many were found
TAGGED = {
    **dict.fromkeys(
        ("conll", "tag", "wnut17"),
        (CONLL, [["B-ORG", "O"], ["B-PER", "B-NEW"]], 3 / 4, (2, 3, 1), {"NEW": 1, "ORG": 1, "PER": 1}),
    ),
    "klue-ner": (
        "## a\n조\tB-PER\n현\tI-PER\n \tO\n왔\tO\n\n시\tB-LOC\n",
        [["B-PER", "I-PER", "O", "O"], ["O"]], 4 / 5, (2, 1, 1), {"LOC": 0, "PER": 1},
    ),
    "naver-ner": (
        "조현 왔다 .\tPER-B - -\n서울\tLOC-B\n",
        [["B-PER", "O", "O"], ["B-PER"]], 3 / 4, (2, 2, 1), {"LOC": 0, "PER": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", TAGGED)
def test_tags(task: str, tmp_path: Path):
    """conlleval's own output, on a file as a run writes it: gold tags before the predicted ones."""
    text, said, accuracy, (phrases, found, correct), types = TAGGED[task]
    gold = write(tmp_path / "gold", text)
    read = {"klue-ner": read_klue_ner, "naver-ner": read_naver_ner}.get(task, read_conll)
    write_conll(tmp_path / "said", list(read(gold)), said)
    scores = score(task, gold, tmp_path / "said")
    precision, recall = 100 * correct / found, 100 * correct / phrases
    expected = {
        "accuracy": 100 * accuracy,
        "precision": precision,
        "recall": recall,
        "FB1": 2 * precision * recall / (precision + recall),
        "phrases": phrases,
        "found": found,
        "correct": correct,
    }
    assert {name: scores[name] for name in list(scores)[:7]} == pytest.approx(expected)
    names = ("precision", "recall", "FB1", "found")
    assert list(scores) == [*expected, *(f"{type_}_{name}" for type_ in types for name in names)]
    assert {type_: scores[f"{type_}_found"] for type_ in types} == types
    right = "ORG" if read is read_conll else "PER"
    assert scores[f"{right}_recall"] == 100 and scores[f"{right}_precision"] == 100 / types[right]


CHOICES = {
    "swag": ("a.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label", "a,b,w,x,y,z,{}", "012"),
    "codah": ("a.tsv", None, "i\ta\tw\tx\ty\tz\t{}", "012"),
    "arc": ("a.jsonl", None, None, "012"),
    "hellaswag": ("a.jsonl", None, '{{"ctx": "a", "endings": ["w", "x", "y", "z"], "label": {}, "ind": {id}}}', "789"),
}


@pytest.mark.parametrize("task", CHOICES)
def test_choices(task: str, tmp_path: Path):
    name, header, row, ids = CHOICES[task]
    labels = [3, 0, 1]
    if task == "arc":
        choices = [{"text": text, "label": key} for text, key in zip("wxyz", "ABCD", strict=True)]
        question = {"stem": "a", "choices": choices}
        rows = [
            json.dumps({"id": id, "question": question, "answerKey": "ABCD"[n]})
            for id, n in zip(ids, labels, strict=True)
        ]
    else:
        rows = [row.format(label, id=id) for id, label in zip(ids, labels, strict=True)]
    gold = write(tmp_path / name, "\n".join([header, *rows] if header else rows) + "\n")
    said = write(tmp_path / "said.csv", "id,prediction\n{},3\n{},1\n{},1\n".format(*ids))
    assert score(task, gold, said) == {"accuracy": pytest.approx(2 / 3)}
    with pytest.raises(UserError, match=r"said.csv, line 2: the prediction is '4'; expected a number from 0 to 3"):
        score(task, gold, write(said, "id,prediction\n{},4\n{},1\n{},1\n".format(*ids)))
    with pytest.raises(UserError, match=r"said.csv, line 2: the prediction is '9999.*; expected a number from 0 to 3"):
        score(task, gold, write(said, "id,prediction\n{},{}\n{},1\n{},1\n".format(ids[0], "9" * 5000, *ids[1:])))


def test_korquad(tmp_path: Path):
    """서울특별시 for 서울시: three characters of five and of three."""
    qas = [{"id": "a", "question": "?", "answers": [{"text": "서울시", "answer_start": 0}]}]
    dataset = {"data": [{"paragraphs": [{"context": "서울시", "qas": qas}]}]}
    gold = write(tmp_path / "dev.json", json.dumps(dataset))
    said = write(tmp_path / "said.json", json.dumps({"a": "서울특별시"}))
    assert score("korquad", gold, said) == {"exact_match": 0.0, "f1": pytest.approx(75.0)}


def test_every_task_that_can_be_learnt_can_be_scored():
    assert set(TASKS) <= set(KINDS)


def test_what_does_not_fit_is_one_line(tmp_path, capsys):
    gold, predictions = glue(tmp_path, "RTE", ["entailment"] * 3, ["entailment"] * 2)
    assert main(["score", "rte", str(gold), str(predictions)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "RTE.tsv: has no prediction for id 2 (2 predictions for 3" in error
    with pytest.raises(UserError, match="the prediction is '1'; expected one of entailment, not_entailment"):
        score("rte", *glue(tmp_path, "RTE", ["entailment"], ["1"]))
    with pytest.raises(FileNotFoundError, match="is a folder, not a file"):
        score("rte", tmp_path, predictions)
    with pytest.raises(UserError, match="'glue' is not a task; expected one of squad1"):
        score("glue", gold, predictions)
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        score("rte", gold, tmp_path / "nowhere")
    short = write(tmp_path / "short", "EU\tO\n")
    with pytest.raises(UserError, match=r"has 1 sentences; expected 2, as in .*gold"):
        score("conll", write(tmp_path / "gold", CONLL), short)
    other = write(tmp_path / "other", CONLL.replace("EU", "US"))
    with pytest.raises(UserError, match=r"other, line 1: its words differ from .*gold, line 1"):
        score("conll", tmp_path / "gold", other)
    with pytest.raises(UserError, match="question a: found int; expected a string"):
        score("squad2", write(tmp_path / "d.json", json.dumps(SQUAD2)), write(tmp_path / "p.json", '{"a": 1}'))
    packed = tmp_path / "p.json.gz"
    packed.write_bytes(gzip.compress(b'["a"]'))
    with pytest.raises(UserError, match="found list; expected a JSON object that maps question id to a string"):
        score("squad2", tmp_path / "d.json", packed)


@pytest.mark.parametrize("name", ["gold.json", "gold.jsonl"])
def test_answers_are_scored_against_the_rows_of_hugging_face(tmp_path: Path, name: str):
    answers = {"text": ["the cat", "a cat"], "answer_start": [0, 9]}
    rows = [{"id": "a", "context": "the cat, a cat", "question": "who", "answers": answers}]
    text = json.dumps(rows) if name.endswith(".json") else json.dumps(rows[0]) + "\n"
    said = write(tmp_path / "said.json", '{"a": "cat"}')
    assert score("squad1", write(tmp_path / name, text), said) == {"exact_match": 100.0, "f1": 100.0}


def test_probabilities_of_very_many_classes_are_not_ranked_since_rows_of_predictions_lack_some():
    few, many = np.eye(MOST_RANKED, dtype=bool), np.eye(MOST_RANKED + 1, dtype=bool)
    assert ranking_scores(few, few.astype(float), several=False) == {"roc_auc": 1.0}
    assert ranking_scores(many, many.astype(float), several=False) == {}


def write_rows(path: Path, rows: list[Any]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_predictions_with_their_gold_labels_need_no_other_file(tmp_path: Path, capsys):
    gold, found = ["a", "b", "c", "a", "b"], ["a", "b", "a", "c", "b"]
    rows = [
        {"id": str(n), "text": "t", "gold": g, "label": f} for n, (g, f) in enumerate(zip(gold, found, strict=True))
    ]
    assert main(["score", "classify", str(write_rows(tmp_path / "dev.jsonl", rows)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pytest.approx(
        {
            "accuracy": sk.accuracy_score(gold, found),
            "macro_f1": sk.f1_score(gold, found, average="macro", zero_division=0),
            "matthews_correlation": sk.matthews_corrcoef(gold, found),
        }
    )
    sets = [[["a"], ["a", "b"]], [[], ["b"]], [["a", "b"], ["a", "b"]]]
    file = write_rows(tmp_path / "sets.jsonl", [{"id": "0", "gold": g, "label": f} for g, f in sets])
    binary = MultiLabelBinarizer().fit([["a", "b"]])
    truth, guess = (binary.transform([pair[side] for pair in sets]) for side in (0, 1))
    assert main(["score", "classify", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pytest.approx(
        {
            "micro_f1": sk.f1_score(truth, guess, average="micro"),
            "accuracy": sk.accuracy_score(truth, guess),
            "macro_f1": sk.f1_score(truth, guess, average="macro"),
        }
    )


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        ("rte", {"gold": "entailment", "label": "1"}, "the label is '1'; rte has entailment, not_entailment"),
        ("ax", {"gold": "yes", "label": "neutral"}, "the label is 'yes'; ax has contradiction, entailment, neutral"),
        ("snli", {"gold": "neutral", "label": "no"}, "the label is 'no'; snli has contradiction, entailment, neutral"),
        ("stsb", {"gold": 1.5, "label": "1.5"}, "the label is '1.5'; stsb has numbers"),
        ("korsts", {"gold": True, "label": 2}, "the label is True; korsts has numbers"),
        (
            "cola",
            {"gold": 1, "label": 1, "choices": ["a", "b"]},
            "has 'choices', as runs of swag, codah, arc, hellaswag write it, not of cola; say",
        ),
        (
            "classify",
            {"gold": ["O"], "label": ["O"], "words": ["a"]},
            "has 'words', as runs of conll, tag, pos, wnut17, klue-ner, naver-ner",
        ),
        (
            "tag",
            {"gold": "a", "label": "b", "text": "c"},
            "the label is 'a'; tag has lists of tags; say the run's own task",
        ),
        ("arc", {"gold": True, "label": 1}, "the label is True; arc has numbers of choices; say the run's own task"),
        ("squad1", {"gold": ["a"], "label": 1}, "the label is 1; squad1 has texts; say the run's own task"),
        ("squad1", {"gold": "a b", "label": "a b"}, "'gold' is 'a b'; expected a list of the right answers"),
        (
            "squad2",
            {"gold": ["a"], "label": "a", "question": "?"},
            "has no 'no_answer_score', which a run of task=squad2",
        ),
    ],
)
def test_predictions_of_another_task_are_one_line(task: str, row: dict, says: str, tmp_path: Path, capsys):
    file = write_rows(tmp_path / "dev.jsonl", [{"id": "0"} | row])
    assert main(["score", task, str(file)]) == 2
    found = capsys.readouterr().err.strip()
    assert f"dev.jsonl, line 1: {says}" in found and len(found.splitlines()) == 1, found


def test_what_is_no_run_and_no_predictions_of_one_is_one_line(tmp_path: Path, capsys):
    run = tmp_path / "run"
    (run / "predictions").mkdir(parents=True)
    write(run / "config.json", json.dumps({"task": "rte"}))
    unlabelled = write_rows(run / "predictions/test.jsonl", [{"id": "0", "text": "t", "label": "a"}])
    (tmp_path / "young").mkdir()
    write(tmp_path / "young/config.json", json.dumps({"task": "rte"}))
    (tmp_path / "pretraining").mkdir()
    write(tmp_path / "pretraining/config.json", json.dumps({"phases": []}))
    own = tmp_path / "own"
    (own / "predictions").mkdir(parents=True)
    write(own / "config.json", json.dumps({"task": "stars"}))
    write_rows(own / "predictions/dev.jsonl", [{"id": "0", "gold": "4", "label": "5"}])
    for words, says in (
        ([str(own)], "its task 'stars' is one of your own, which score does not know; the run wrote its scores to"),
        (["rte"], "rte: no such run directory; to score other files say TASK GOLD PREDICTIONS"),
        ([str(tmp_path / "young")], "young: has no predictions/*.jsonl; a run writes them when it ends"),
        ([str(tmp_path / "pretraining")], "pretraining: not a fine-tuning run"),
        ([str(run)], "run: the predictions have no gold labels"),
        (["rte", str(unlabelled)], "test.jsonl, line 1: has no 'gold'; expected an object with gold and label"),
        (["rte", str(tmp_path / "dev.tsv")], "dev.tsv: no such file"),
        (["rte", str(write(tmp_path / "d.tsv", "a"))], "d.tsv: found no PREDICTIONS beside it; say GOLD PREDICTIONS"),
        (["rte", str(write(tmp_path / "e.jsonl", ""))], "e.jsonl: is empty"),
        (["rt", str(unlabelled)], "hellaswag; did you mean rte?"),
        ([str(run), "--kind", "class"], "--label, --id, --kind, --na-prob-file and --na-prob-thresh belong to"),
    ):
        assert main(["score", *words]) == 2
        found = capsys.readouterr().err.strip()
        assert says in found and len(found.splitlines()) == 1, found
