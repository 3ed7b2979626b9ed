"""The scores that a model card gives: those of the weights in the folder, the last ones or their average."""

import json
from pathlib import Path

import pytest

from bert_jax.formats.training_record import last_evaluation

OF_AVERAGE = {"average_mlm_loss": 1.5, "average_mlm_accuracy": 0.6}
ROW = {"mlm_loss": 2.0, "nsp_loss": 0.5, "unigram_loss": 7.0, "blimp_accuracy": 0.7, "tokens": 90.0}


@pytest.mark.parametrize(
    ("row", "of_average", "expected"),
    [
        (ROW, False, {"mlm_loss": 2.0, "nsp_loss": 0.5, "blimp_accuracy": 0.7}),
        (ROW | OF_AVERAGE, False, {"mlm_loss": 2.0, "nsp_loss": 0.5}),
        (ROW | OF_AVERAGE, True, {"mlm_loss": 1.5, "mlm_accuracy": 0.6, "blimp_accuracy": 0.7}),
        ({"loss": 1.0, "average_precision": 0.4}, False, {"loss": 1.0, "average_precision": 0.4}),
    ],
)
def test_scores_are_those_of_the_weights_that_are_described(row, of_average, expected, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 3} | row) + "\n")
    found = last_evaluation(tmp_path, None, of_average=of_average)
    assert found and {score.name: score.value for score in found.scores} == expected
    baselines = {score.name: score.baseline for score in found.scores}
    assert baselines.get("mlm_loss") == row.get("unigram_loss")
