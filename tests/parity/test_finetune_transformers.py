"""Twenty steps of fine-tuning, dropout off: the losses are those of transformers' own classes, for each kind of task."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.finetune_reference import opened, recipe, same_losses
from tests.train.finetuning.finetune_sources import (
    sentences,
    write_choices,
    write_csv,
    write_model,
    write_squad,
    write_tagged,
)

pytestmark = [pytest.mark.parity, pytest.mark.slow]

STILL = frozenset(["model.hidden_dropout_prob", "model.attention_probs_dropout_prob"])


def write_task(folder: Path, kind: str) -> dict[str, str]:
    """The files of a task of this kind; the words of its recipe."""
    for split, seed in (("train", 1), ("dev", 2)):
        if kind == "tag":
            write_tagged(folder / f"{split}.txt", 90, seed)
        elif kind == "arc":  # transformers has no mask for choices that are not there
            write_choices(folder / f"{split}.jsonl", 90, seed, fewest=4)
        elif kind == "squad1":
            write_squad(folder / f"{split}.json", 200, seed)
        elif kind == "number":
            rows = [(text, 1.5 if label == "good" else -1.5) for text, label in sentences(90, seed)]
            write_csv(folder / f"{split}.csv", rows)
        else:
            write_csv(folder / f"{split}.csv", sentences(90, seed))
    if kind in ("class", "number"):
        return {"task": "classify", "kind": kind}
    return {"task": kind}


@pytest.mark.parametrize("kind", ["class", "number", "tag", "arc", "squad1"])
def test_the_losses_of_twenty_steps_are_transformers_own(tmp_path: Path, kind: str):
    model = write_model(tmp_path / "model")
    words = write_task(tmp_path, kind) | {
        "batch": "8",
        "epochs": "4",
        "max_length": "16",
        "stride": "8",
        "optimizer.learning_rate": "5e-3",
        "optimizer.weight_decay": "0.1",
    }
    config = recipe(words.pop("task"), str(tmp_path), model, words, dropout=False)
    losses = same_losses(*opened(config, STILL))
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=0, atol=1e-4)
    assert abs(losses[-1, 0] - losses[0, 0]) > 0.01
