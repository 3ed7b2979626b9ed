"""`python -m bert_jax score`: the official figures from the official files, and one line where they do not fit."""

import gzip
import json
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UserError
from bert_jax.score import score


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
def test_squad1_on_the_recorded_predictions(data_dir, tmp_path, capsys):
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


CONLL = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"


def test_conll(tmp_path, capsys):
    gold = write(tmp_path / "gold", CONLL)
    guess = write(tmp_path / "guess", CONLL.replace("I-PER", "O"))
    assert main(["score", "conll", str(gold), str(guess)]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert printed["accuracy"] == "75" and printed["f1"] == "50" and printed["ORG_f1"] == "100"


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


def test_what_does_not_fit_is_one_line(tmp_path, capsys):
    gold, predictions = glue(tmp_path, "RTE", ["entailment"] * 3, ["entailment"] * 2)
    assert main(["score", "rte", str(gold), str(predictions)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "RTE.tsv: has no prediction for index 2 (2 predictions for 3" in error
    with pytest.raises(UserError, match="the prediction is '1'; rte has entailment, not_entailment"):
        score("rte", *glue(tmp_path, "RTE", ["entailment"], ["1"]))
    with pytest.raises(UserError, match="'glue' is no task; expected one of squad1"):
        score("glue", gold, predictions)
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        score("rte", gold, tmp_path / "nowhere")
    short = write(tmp_path / "short", "EU\tO\n")
    with pytest.raises(UserError, match=r"1 sentences, but .* has 2"):
        score("conll", write(tmp_path / "gold", CONLL), short)
    other = write(tmp_path / "other", CONLL.replace("EU", "US"))
    with pytest.raises(UserError, match=r"other, line 1: another sentence than at .*gold, line 1"):
        score("conll", tmp_path / "gold", other)
    with pytest.raises(UserError, match="question a: found int; expected a text"):
        score("squad2", write(tmp_path / "d.json", json.dumps(SQUAD2)), write(tmp_path / "p.json", '{"a": 1}'))
    packed = tmp_path / "p.json.gz"
    packed.write_bytes(gzip.compress(b'["a"]'))
    with pytest.raises(UserError, match="expected a JSON object, question id to a text, found list"):
        score("squad2", tmp_path / "d.json", packed)
