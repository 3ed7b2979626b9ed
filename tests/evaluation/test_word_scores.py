"""Labels of single words, such as parts of speech, are scored as scikit-learn scores classes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as sk

from bert_jax.__main__ import main
from bert_jax.data.tasks.tags import TaggedSentence, write_conll
from bert_jax.errors import UserError
from bert_jax.evaluation.score import score, word_scores

Tags = list[list[str]]


def random_tags(seed: int) -> tuple[Tags, Tags]:
    """Gold and predicted tags of a few sentences; most predictions are right, and a tag may be in one of them alone."""
    rng = np.random.default_rng(seed)
    names = ["NOUN", "VERB", "B-X", "O", "."][: int(rng.integers(2, 6))]
    gold = [rng.choice(names, size=int(rng.integers(1, 9))).tolist() for _ in range(int(rng.integers(1, 9)))]
    return gold, [[tag if rng.random() < 0.7 else str(rng.choice([*names, "X"])) for tag in tags] for tags in gold]


def by_scikit_learn(gold: Tags, found: Tags) -> dict[str, float]:
    labels, predictions = ([tag for tags in side for tag in tags] for side in (gold, found))
    return {
        "accuracy": float(sk.accuracy_score(labels, predictions)),
        "macro_f1": float(sk.f1_score(labels, predictions, average="macro", zero_division=0)),
    }


def test_scores_are_scikit_learn_s():
    for seed in range(50):
        assert word_scores(*random_tags(seed)) == pytest.approx(by_scikit_learn(*random_tags(seed)))


@pytest.mark.slow
def test_scores_have_the_same_last_digit_in_every_process():
    code = """
import random
from bert_jax.evaluation.score import word_scores
draw = random.Random(0)
gold = [draw.choice("ABCDEFGHI") for _ in range(200)]
print(word_scores([gold], [[tag if draw.random() < 0.7 else draw.choice("ABCDEFGHI") for tag in gold]]))
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "3")
    }
    assert len(told) == 1


def conllu(tags: Tags) -> str:
    """The words are their numbers in the file of all words; each sentence begins with a range that has no tag."""
    lines = []
    number = 0
    for own in tags:
        lines.append("1-2\tx" + "\t_" * 8)
        for place, tag in enumerate(own, 1):
            lines.append(f"{place}\tw{number}\t_\t{tag}" + "\t_" * 6)
            number += 1
        lines.append("")
    return "\n".join(lines) + "\n"


def test_files_are_scored_whatever_their_form(tmp_path: Path, capsys):
    gold, found = random_tags(3)
    expected = pytest.approx(by_scikit_learn(gold, found))
    numbers = iter(range(1000))
    sentences = [TaggedSentence(tuple(f"w{next(numbers)}" for _ in tags), tuple(tags), 0, 1) for tags in gold]
    (tmp_path / "gold.conllu").write_text(conllu(gold))
    (tmp_path / "said.conllu").write_text(conllu(found))
    write_conll(tmp_path / "said.conll", sentences, found)
    for truth in ("gold.conllu", "said.conll"):
        column = gold if truth == "gold.conllu" else found  # the last one of said.conll
        for said in ("said.conll", "said.conllu"):
            scores = score("pos", tmp_path / truth, tmp_path / said)
            assert scores == (expected if column is gold else {"accuracy": 1.0, "macro_f1": 1.0})
    assert main(["score", "pos", str(tmp_path / "gold.conllu"), str(tmp_path / "said.conll"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    rows = [{"words": s.words, "gold": s.tags, "label": tags} for s, tags in zip(sentences, found, strict=True)]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["score", "pos", str(tmp_path / "dev.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


def test_what_cannot_be_scored_is_one_line(tmp_path: Path, capsys):
    gold, other, bare = (tmp_path / name for name in ("gold.conllu", "other.conllu", "bare.conllu"))
    gold.write_text(conllu([["X", "Y"]]))
    other.write_text(conllu([["X", "Y"]]).replace("w1", "w2"))
    bare.write_text(conllu([["X", "_"]]))
    with pytest.raises(UserError, match=r"other.conllu, line 2: its words differ from .*gold.conllu, line 2"):
        score("pos", gold, other)
    with pytest.raises(UserError, match=r"bare.conllu, line 3: found '_' as the UPOS of 'w1'; expected a tag"):
        score("pos", bare, gold)
    row = {"words": ["a", "b"], "gold": ["X", "Y"], "label": ["X"]}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["score", "pos", str(tmp_path / "dev.jsonl")]) == 2
    assert "dev.jsonl: not what a run of task=pos writes" in capsys.readouterr().err
