"""Many runs in one program, for every kind of task: each equals the run alone; runs that predict one class for all."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.tree import flatten, unflatten
from tests.run_directory import records, state_of
from tests.train.finetuning.finetune_sources import (
    sentences,
    write_choices,
    write_csv,
    write_squad,
    write_start,
    write_tagged,
)
from tests.train.finetuning.test_tasks import opened
from train import finetune
from train.finetuning.sweep import says_one_thing
from train.run.ending.stopping import EXIT_DONE


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model, and two files of every kind of task."""
    folder = tmp_path_factory.mktemp("kinds")
    write_start(folder)
    for name, seed, count in (("train", 1, 32), ("dev", 2, 9)):
        some = sentences(count, seed)
        write_csv(folder / f"class-{name}.csv", some)
        write_csv(folder / f"classes-{name}.csv", [(text, f"{label}|always") for text, label in some])
        write_csv(folder / f"number-{name}.csv", [(text, len(text)) for text, _ in some])
        write_tagged(folder / f"tag-{name}.txt", count, seed)
        write_choices(folder / f"arc-{name}.jsonl", count, seed)
        write_squad(folder / f"squad1-{name}.json", count, seed)
        write_squad(folder / f"squad2-{name}.json", count, seed, impossible=True)
    return folder


def fields(place: Path, kind: str) -> dict[str, str]:
    """The options of a command line for a kind of task."""
    found = {"kind": kind} if kind in ("class", "classes", "number") else {"task": kind}
    for name in ("train", "dev"):
        (path,) = place.glob(f"{kind}-{name}.*")
        found[name] = str(path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("classes", []),
        ("tag", []),
        ("squad2", []),
        pytest.param("arc", [], marks=pytest.mark.exhaustive),
        pytest.param("class", ["freeze=embeddings", "layer_decay=0.5"], marks=pytest.mark.exhaustive),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_of_the_runs_equals_the_same_run_alone(place: Path, tmp_path: Path, kind: str, words: list[str]):
    said = [f"{name}={value}" for name, value in fields(place, kind).items()]
    for run, own in (("many", ["seeds=2", "seed=3"]), ("alone", ["seed=4"])):
        recipe = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={tmp_path / run}"]
        assert finetune.main([*recipe, *said, "epochs=1", "eval_every=0", *words, *own]) == EXIT_DONE
    many, alone = (flatten(unflatten(state_of(tmp_path / run))["params"]) for run in ("many", "alone"))
    assert many.keys() == alone.keys()
    for path, ours in many.items():
        if kind == "arc" and path == "classifier/bias":
            continue  # the same for every choice, so its gradient is only rounding, which Adam turns into full steps
        np.testing.assert_allclose(ours[1], alone[path], rtol=0, atol=2e-4, err_msg=path)
    (theirs,) = records(tmp_path / "alone", "eval")
    (ours,) = [json.loads(line)["scores"][1] for line in (tmp_path / "many/runs.jsonl").read_text().splitlines()]
    assert ours == pytest.approx({name: theirs[name] for name in ours}, abs=1e-4)
    frozen = [path for path, ours in many.items() if (ours[0] == ours[1]).all()]
    assert all("embeddings" in path for path in frozen) and bool(frozen) == ("freeze=embeddings" in words)


def _logits(rows: list) -> dict[str, np.ndarray]:
    return {"logits": np.array(rows, np.float32)}


# Nine examples: the class of the highest number, the classes above 0, the number itself.
OF_TEXTS = [
    ("class", [[2, 1], *[[0, -5]] * 8], True),
    ("class", [[2, 1], *[[0, 5]] * 8], False),
    ("classes", [[2, 1, -1], *[[1, 2, -3]] * 8], True),  # other orders, the same decisions
    ("classes", [[3, 1, -1], *[[3, -1, -1]] * 8], False),  # the highest is the same, the decisions are not
    ("classes", [[-1, -2, -3], *[[-3, -2, -1]] * 8], True),  # none at all
    ("number", [[0.5]] * 9, True),
    ("number", [[0.5], *[[0.25]] * 8], False),
]


@pytest.mark.parametrize(("kind", "rows", "expected"), OF_TEXTS)
def test_texts_that_all_get_the_same(place: Path, kind: str, rows: list, expected: bool):
    task = opened(**fields(place, kind))
    outputs = _logits([row[: len(task.labels)] for row in rows])
    assert says_one_thing(task, task.evaluations[0], outputs) == expected


@pytest.mark.parametrize("tag", [None, "O", "B-LOC"])
def test_words_that_all_get_the_same_tag(place: Path, tag: str | None):
    """The tags at padding and at [CLS] do not matter. None: one word has another tag."""
    task = opened(**fields(place, "tag"))
    split = task.evaluations[0]
    chosen = np.full((9, 16), task.labels.index(tag or "O"))
    chosen[:, 0] = chosen[np.arange(16) >= split.encoded.lengths[:, None]] = task.labels.index("B-PER")
    if tag is None:
        chosen[4, 1] = task.labels.index("B-PER")
    assert says_one_thing(task, split, _logits(np.eye(len(task.labels))[chosen].tolist())) == (tag is not None)


def test_questions_that_all_get_the_same_choice(place: Path):
    task = opened(**fields(place, "arc"))
    split = task.evaluations[0]
    rows = np.where(split.encoded.targets["is_choice"], [1, 0, 0, 0], 9)  # a missing choice is never chosen
    assert says_one_thing(task, split, _logits(rows.tolist()))
    rows[2, 1] = 2
    assert not says_one_thing(task, split, _logits(rows.tolist()))


@pytest.mark.parametrize("version", [1, 2])
def test_questions_that_all_get_no_answer(place: Path, version: int):
    """If [CLS], the first token, is the best beginning and end of every window, no window has an answer."""
    task = opened(**fields(place, f"squad{version}"))
    split = task.evaluations[0]
    logits = np.zeros((len(split.encoded), 16), np.float32)
    logits[:, 0] = 1
    assert says_one_thing(task, split, {"start_logits": logits, "end_logits": logits})
    of_one = split.windows.question == 0
    logits[of_one] = np.where(split.windows.in_passage[of_one, :16], 2, 0)
    assert not says_one_thing(task, split, {"start_logits": logits, "end_logits": logits})
