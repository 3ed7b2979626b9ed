"""What int8 is measured by: the outputs of two graphs on texts, and the scores of both on a file of GLUE."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.int8 import compare_on_texts, glue_score, labelled_examples, open_graph
from bert_jax.formats.onnx.save import save_onnx
from bert_jax.formats.sentence_transformers import Vectors
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.tasks.embed import TextEmbedding
from tests import tiny

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "ran"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, cased=False)
TEXTS = ["the cat sat", "dog", "the dog ran the cat sat", "cat ran"]
LABELS = ("0", "1")


def graph_of(folder: Path, head: str, name: str = "a", seed: int = 4, pooling: str = "mean", labels=LABELS):
    config = tiny.CONFIG.replace(labels=labels)
    params = tiny.random_params(config, seed, head)
    path = save_onnx(folder / name, config, params, None, head=head) / "onnx" / "model.onnx"
    return open_graph(path, TOKENIZER, 12, pooling, labels)


def outputs(graph, text: str, pair: str | None = None) -> dict[str, np.ndarray]:
    """The outputs for one text, without padding."""
    rows = TOKENIZER([text], None if pair is None else [pair], padding="longest", max_length=12)
    names = [node.name for node in graph.session.get_outputs()]
    inputs = {name: np.asarray(array, np.int64) for name, array in rows.items()}
    return {name: found.astype(np.float64) for name, found in zip(names, graph.session.run(names, inputs), strict=True)}


@pytest.mark.parametrize(("pooling", "take"), [("mean+normalize", lambda x: x.mean(axis=0)), ("cls", lambda x: x[0])])
def test_vectors_are_compared_by_their_cosines(pooling, take, tmp_path):
    graphs = [graph_of(tmp_path, "encoder", str(seed), seed, pooling) for seed in (4, 5)]
    vectors = [[take(outputs(graph, text)["last_hidden_state"][0]) for text in TEXTS] for graph in graphs]
    cosines = [np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*vectors, strict=True)]
    found = compare_on_texts(graphs[0], graphs[1], TEXTS)
    assert found == pytest.approx({"mean cosine": np.mean(cosines), "least cosine": min(cosines)}, abs=1e-5)


def test_scores_are_compared_by_the_best_one_of_each_token(tmp_path):
    graphs = [graph_of(tmp_path, "token-classification", str(seed), seed, labels=tuple("abcd")) for seed in (4, 5)]
    best = [np.concatenate([outputs(graph, text)["logits"][0].argmax(axis=-1) for text in TEXTS]) for graph in graphs]
    same = (best[0] == best[1]).mean()
    assert 0 < same < 1
    assert compare_on_texts(graphs[0], graphs[1], TEXTS) == {"same logits": pytest.approx(same)}


def test_the_places_of_answers_are_compared_among_the_tokens(tmp_path):
    graphs = [graph_of(tmp_path, "question-answering", str(seed), seed) for seed in (4, 5)]
    found = compare_on_texts(graphs[0], graphs[1], TEXTS)
    for name in ("start_logits", "end_logits"):
        places = [[outputs(graph, text)[name][0].argmax() for text in TEXTS] for graph in graphs]
        assert found[f"same {name}"] == np.mean(np.equal(*places))


def test_single_scores_are_compared_by_their_correlation(tmp_path):
    graphs = [graph_of(tmp_path, "sequence-classification", str(seed), seed, labels=("value",)) for seed in (4, 5)]
    values = [[outputs(graph, text)["logits"][0, 0] for text in TEXTS] for graph in graphs]
    want = stats.pearsonr(*values).statistic
    assert compare_on_texts(graphs[0], graphs[1], TEXTS) == {"correlation of logits": pytest.approx(want, abs=1e-5)}


@pytest.mark.parametrize(
    "vectors",
    [
        Vectors("max"),
        Vectors("mean", fields={"prompts": {"query": "dog ran "}, "default_prompt_name": "query"}),
        Vectors("mean+normalize", fields={"truncate_dim": 3}),
    ],
)
def test_int8_is_measured_on_the_vectors_that_the_folder_describes(vectors, tmp_path, capsys):
    params = tiny.random_params(tiny.CONFIG, 4, "encoder", scale=0.3)
    source = save_pretrained(
        tmp_path / "m", tiny.CONFIG, params, TOKENIZER, head="encoder", sentence_transformers=vectors
    )
    rows = [line.split("\t")[-3:] for line in sts_file(tmp_path).read_text().splitlines()[1:]]
    embed = TextEmbedding(source, runtime="xla", dtype="float32")
    first, second = (np.asarray(embed([row[column] for row in rows]), np.float64) for column in (0, 1))
    cosines = (first * second).sum(axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    argv = ["convert", str(source), str(tmp_path / "onnx"), "--to", "onnx", "--int8", "--json"]
    assert main([*argv, "--score", f"stsb={tmp_path / 'dev.tsv'}"]) == 0
    found = json.loads(capsys.readouterr().out)["int8"]["stsb pearson"]["float32"]
    assert found == pytest.approx(stats.pearsonr([float(row[2]) for row in rows], cosines).statistic, abs=1e-4)


def sts_file(folder: Path) -> Path:
    rows = [("the cat sat", "dog", 1.0), ("cat ran", "the cat", 4.5), ("dog", "dog ran", 3.0), ("sat", "the", 2.0)]
    lines = ["\t".join(["index", "a", "b", "c", "d", "e", "f", "sentence1", "sentence2", "score"])]
    lines += ["\t".join([str(i), *"abcdef", *map(str, row)]) for i, row in enumerate(rows)]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n")
    return folder / "dev.tsv"


def test_an_encoder_is_scored_by_the_cosines_of_pairs(tmp_path):
    graph, path = graph_of(tmp_path, "encoder"), sts_file(tmp_path)
    cosines, gold = [], []
    for line in path.read_text().splitlines()[1:]:
        *_, first, second, score = line.split("\t")
        a, b = (outputs(graph, text)["last_hidden_state"][0].mean(axis=0) for text in (first, second))
        cosines.append(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))
        gold.append(float(score))
    found = glue_score(graph, "stsb", labelled_examples("stsb", path))
    assert found["spearman"] == pytest.approx(stats.spearmanr(gold, cosines).statistic)
    assert found["pearson"] == pytest.approx(stats.pearsonr(gold, cosines).statistic, abs=1e-5)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (("contradiction", "neutral", "entailment"), ("contradiction", "neutral", "entailment")),
        (("ENTAILMENT", "Neutral", "contradiction"), ("entailment", "neutral", "contradiction")),
        (("LABEL_0", "LABEL_1", "LABEL_2"), None),
        (("entailment", "neutral", "other"), None),
    ],
)
def test_three_classes_are_those_of_their_names_in_any_case(labels, order, tmp_path):
    """Published models for MNLI have all orders, and some have names in capitals."""
    graph = graph_of(tmp_path, "sequence-classification", labels=labels)
    best = [outputs(graph, text, "dog")["logits"][0].argmax() for text in TEXTS]
    rows = ["\t".join([*"abcdefgh", text, "dog", "neutral"]) + "\n" for text in TEXTS]
    (tmp_path / "dev.tsv").write_text("header\n" + "".join(rows))
    examples = labelled_examples("mnli", tmp_path / "dev.tsv")
    if order is None:
        with pytest.raises(UserError) as error:
            glue_score(graph, "mnli", examples)
        shown = ", ".join(map(repr, labels))
        expected = "expected contradiction, entailment, neutral, in any order"
        assert str(error.value) == f"mnli: the model's classes are {shown}; {expected}"
    else:
        assert glue_score(graph, "mnli", examples) == {"accuracy": np.mean([order[n] == "neutral" for n in best])}


@pytest.mark.parametrize("labels", [("0", "1"), ("1", "0"), ("LABEL_0", "LABEL_1")])
def test_a_classifier_is_scored_by_the_names_of_its_classes(labels, tmp_path):
    graph = graph_of(tmp_path, "sequence-classification", labels=labels)
    best = [outputs(graph, text)["logits"][0].argmax() for text in TEXTS]
    names = labels if "0" in labels else ("0", "1")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in TEXTS))
    found = glue_score(graph, "sst2", labelled_examples("sst2", tmp_path / "dev.tsv"))
    assert found == {"accuracy": np.mean([names[number] == "1" for number in best])}


def test_a_task_that_the_model_cannot_do_is_refused(tmp_path):
    pairs = labelled_examples("stsb", sts_file(tmp_path))
    with pytest.raises(UserError, match="stsb needs 1 scores for a text; this model gives"):
        glue_score(graph_of(tmp_path, "sequence-classification"), "stsb", pairs)
    encoder = graph_of(tmp_path, "encoder", "b")
    (tmp_path / "sst.tsv").write_text("sentence\tlabel\nthe cat\t1\n")
    with pytest.raises(UserError, match="an encoder without a head gives vectors; expected stsb"):
        glue_score(encoder, "sst2", labelled_examples("sst2", tmp_path / "sst.tsv"))


def test_the_verb_prints_what_int8_costs(tmp_path, capsys):
    params = tiny.random_params(tiny.CONFIG, 4, "encoder", scale=0.3)
    source = save_pretrained(tmp_path / "m", tiny.CONFIG, params, TOKENIZER, head="encoder")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    argv = ["convert", str(source), str(tmp_path / "onnx"), "--to", "onnx", "--int8", "--json"]
    assert main([*argv, "--texts", str(tmp_path / "texts.txt"), "--score", f"stsb={sts_file(tmp_path)}"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)["int8"]
    assert 0.8 < told["least cosine"] <= told["mean cosine"] < 1
    assert set(told["stsb spearman"]) == {"float32", "int8"}
    assert f"int8 beside float32 on 4 texts: mean cosine {told['mean cosine']:.4f}" in err
    assert "stsb, spearman: float32" in err
    assert main([*argv[:-2], "--overwrite", "--texts", str(tmp_path / "texts.txt")]) == 2
    assert "add --int8" in capsys.readouterr().err
    assert main([*argv, "--overwrite"]) == 0
    assert "what int8 costs was not measured" in capsys.readouterr().err


def test_int8_of_a_model_without_a_tokenizer_is_refused_before_anything_is_written(tmp_path, capsys):
    params = tiny.random_params(tiny.CONFIG, 4, "encoder")
    source = save_pretrained(tmp_path / "m", tiny.CONFIG, params, None, head="encoder")
    argv = ["convert", str(source), str(tmp_path / "onnx"), "--to", "onnx", "--int8"]
    assert main([*argv, "--score", f"stsb={sts_file(tmp_path)}"]) == 2
    assert capsys.readouterr().err.endswith(
        "no tokenizer, which --calibrate, --texts and --score need; leave them out\n"
    )
    assert not (tmp_path / "onnx").exists()
    assert main(argv) == 0
