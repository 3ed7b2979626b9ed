"""A user's workflow: their own file, a fine-tuned model, its answers in the shell, and the same in transformers."""

import csv
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

from bert_jax.__main__ import main
from bert_jax.formats.load import load_config
from bert_jax.inference.tasks.text_classification import TextClassification
from tests.data.tokenizer.tokenizer_folders import ALBERT, ALBERT_WORDS, albert_spiece, write
from tests.inference.tasks.task_folders import export
from tests.train.finetuning.finetune_sources import (
    RECIPE,
    sentences,
    write_conllu,
    write_csv,
    write_model,
    write_squad,
    write_tagged,
)
from train import finetune

pytestmark = [pytest.mark.parity, pytest.mark.slow]

# Four texts are learnt by heart, whatever the draws.
NO_DROPOUT = [f"model.{kind}=0" for kind in ("hidden_dropout_prob", "attention_probs_dropout_prob")]
TEXTS = [
    "the film was great",
    "a poor day in rome",
    "bob met ann",
    "",
    "awful",
    "in paris ann and bob met who was fine .",
]


def fine_tuned(folder: Path, *words: str) -> Path:
    """The run directory of `python -m train.finetune` with a tiny model."""
    (folder / "recipe.py").write_text(RECIPE)
    write_model(folder / "model")
    argv = [str(folder / "recipe.py"), f"init={folder / 'model'}", f"run={folder / 'run'}", "epochs=12", *words]
    assert finetune.main(argv) == 0
    return folder / "run"


def said(capsys, verb: str, run: Path, texts: list[str]) -> list:
    """The output of `python -m bert_jax VERB RUN FILE --json` for each line."""
    (run.parent / "new.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    capsys.readouterr()
    assert main([verb, str(run), str(run.parent / "new.txt"), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_from_a_table_to_labels_by_transformers(tmp_path, capsys):
    table = write_csv(
        tmp_path / "mails.csv",
        [(str(number), text, f"Very {label}!") for number, (text, label) in enumerate(sentences(64, seed=1))],
        header=("id", "body", "folder"),
    )
    run = fine_tuned(tmp_path, f"train={table}", "dev=0.2", "text=body", "label=folder")
    ours = said(capsys, "classify", run, TEXTS)
    assert [row[0]["label"] for row in ours][:2] == ["Very good!", "Very bad!"]
    assert load_config(str(run / "export")).labels == ("Very bad!", "Very good!")

    theirs = transformers.pipeline("text-classification", str(run / "export"))
    assert theirs.model.config.id2label == {0: "Very bad!", 1: "Very good!"}
    assert type(theirs.model).__name__ == "BertForSequenceClassification"
    for row, expected in zip(ours, theirs(TEXTS), strict=True):
        assert row[0]["label"] == expected["label"]
        assert row[0]["score"] == pytest.approx(expected["score"], abs=1e-5)


def albert(folder: Path) -> Path:
    """A masked-LM of two layers that share their parameters, with a SentencePiece model, as transformers writes it."""
    write(folder, spiece__model=albert_spiece())
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=len(ALBERT) + len(ALBERT_WORDS), embedding_size=8, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, max_position_embeddings=34, initializer_range=0.3,
    )  # fmt: skip
    transformers.AlbertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "albert"])
def test_models_of_other_families_go_the_same_way(tmp_path, capsys, model_type: str):
    texts = ["hello world", "held", "o, hello.", "world world held"]
    labels = ["some" if "held" in text else "none" for text in texts]
    table = write_csv(tmp_path / "t.csv", list(zip(texts, labels, strict=True)) * 4)
    (tmp_path / "recipe.py").write_text(RECIPE)
    source = tmp_path / "source"
    source, run = albert(source) if model_type == "albert" else export(source, "mlm", model_type), tmp_path / "run"
    words = [
        f"init={source}",
        f"run={run}",
        f"train={table}",
        f"dev={table}",
        "freeze=embeddings",
        "epochs=40",
        *NO_DROPOUT,
    ]
    assert finetune.main([str(tmp_path / "recipe.py"), *words]) == 0
    scores = json.loads((run / "report/metrics.json").read_text())["scores"]["dev"]
    assert scores["accuracy"] == 1.0
    with open(run / "predictions/dev-predictions.csv", encoding="utf-8", newline="") as file:
        assert [prediction for _, prediction in list(csv.reader(file))[1:]] == labels * 4

    ours = said(capsys, "classify", run, texts)
    assert [row[0]["label"] for row in ours] == labels
    theirs = transformers.pipeline("text-classification", str(run / "export"))
    assert theirs.model.config.model_type == model_type
    for row, expected in zip(ours, theirs(texts), strict=True):
        assert row[0] == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}
    model, tokenizer = theirs.model, transformers.AutoTokenizer.from_pretrained(run / "export")
    with torch.no_grad():
        expected = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    predict = TextClassification(run / "export", function_to_apply="none")
    for found, logits in zip(predict(texts, top_k=None), expected, strict=True):
        by_label = {row["label"]: row["score"] for row in found}
        assert [by_label[model.config.id2label[id]] for id in range(2)] == pytest.approx(logits.tolist(), abs=1e-4)

    with (
        safe_open(source / "model.safetensors", "np") as before,
        safe_open(run / "export/model.safetensors", "np") as after,
    ):
        shared = set(before.keys()) & set(after.keys())
        same = {name for name in shared if (before.get_tensor(name) == after.get_tensor(name)).all()}
    of_embeddings = {name for name in shared if "embedding" in name}
    assert len(of_embeddings) >= 4 and of_embeddings <= same
    assert {name for name in same - of_embeddings if name.endswith("weight")} == set()


def test_from_tagged_words_to_entities_by_transformers(tmp_path, capsys):
    tagged = write_tagged(tmp_path / "words.txt", 64, seed=1)
    run = fine_tuned(tmp_path, "task=tag", f"train={tagged}", "dev=0.2")
    ours = said(capsys, "tag", run, TEXTS)
    found = [(entity["word"], entity["entity_group"]) for entity in ours[2]]
    assert found == [("bob", "PER"), ("ann", "PER")]

    theirs = transformers.pipeline("token-classification", str(run / "export"), aggregation_strategy="first")
    id2label = theirs.model.config.id2label or {}
    assert set(id2label.values()) == {"O", "B-LOC", "B-PER"}
    keys = ("entity_group", "start", "end")
    for text, entities in zip(TEXTS, ours, strict=True):
        expected = theirs(text) if text else []
        assert [[one[key] for key in keys] for one in entities] == [[one[key] for key in keys] for one in expected]
        assert [e["score"] for e in entities] == pytest.approx([e["score"] for e in expected], abs=1e-5)


def test_from_parts_of_speech_to_labels_of_words_by_transformers(tmp_path, capsys):
    """Each word is a token here, and transformers joins neighbours of one label unless it gives tokens."""
    words = write_conllu(tmp_path / "words.conllu", 64, seed=1)
    run = fine_tuned(tmp_path, "task=pos", f"train={words}", "dev=0.2")
    ours = said(capsys, "tag", run, TEXTS)
    assert [(one["word"], one["entity_group"]) for one in ours[2]] == [
        ("bob", "NOUN"),
        ("met", "VERB"),
        ("ann", "NOUN"),
    ]

    theirs = transformers.pipeline("token-classification", str(run / "export"))
    assert theirs.model.config.id2label == {0: "NOUN", 1: "VERB", 2: "X"}
    for text, labels in zip(TEXTS, ours, strict=True):
        expected = theirs(text) if text else []
        assert [(one["entity_group"], one["start"], one["end"]) for one in labels] == [
            (one["entity"], one["start"], one["end"]) for one in expected
        ]
        assert [one["score"] for one in labels] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert said(capsys, "tag", run / "export", ["ann bob met"]) == [
        [
            {"entity_group": one["entity_group"], "score": pytest.approx(one["score"], abs=1e-5), "word": one["word"],
             "start": int(one["start"]), "end": int(one["end"])}
            for one in theirs("ann bob met", aggregation_strategy="first")
        ]
    ]  # fmt: skip


def test_from_questions_to_answers_by_the_logits_of_transformers(tmp_path, capsys):
    train = write_squad(tmp_path / "train.json", 64, seed=1)
    run = fine_tuned(tmp_path, "task=squad1", f"train={train}", "dev=0.2", "max_length=32")
    dev = write_squad(tmp_path / "new.json", 12, seed=3)
    capsys.readouterr()
    assert main(["answer", str(run), str(dev), "--json"]) == 0
    ours = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked = [(p["context"], p["qas"][0]) for one in json.loads(dev.read_text())["data"] for p in one["paragraphs"]]
    assert [row["id"] for row in ours] == [qa["id"] for _, qa in asked]
    assert sum(row["answer"] == qa["answers"][0]["text"] for row, (_, qa) in zip(ours, asked, strict=True)) >= 10

    model = transformers.AutoModelForQuestionAnswering.from_pretrained(run / "export")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "export")
    for row, (context, qa) in zip(ours, asked, strict=True):
        rows = tokenizer(qa["question"], context, return_tensors="pt", return_offsets_mapping=True)
        spans, segments = rows.pop("offset_mapping")[0].tolist(), rows.sequence_ids(0)
        with torch.no_grad():
            found = model(**rows)
        places = [place for place, segment in enumerate(segments) if segment == 1]
        pairs = [(begin, end) for begin in places for end in places if begin <= end < begin + 30]
        start, end = max(pairs, key=lambda pair: float(found.start_logits[0, pair[0]] + found.end_logits[0, pair[1]]))
        assert (row["start"], row["end"]) == (spans[start][0], spans[end][1])
        assert row["answer"] == context[row["start"] : row["end"]]
