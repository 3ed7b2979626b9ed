"""The lines of a run's log: which values a person sees on the console."""

import io
from pathlib import Path

from train.run.log.run_log import RunLog


def told(tmp_path: Path, values: dict[str, float]) -> str:
    stream = io.StringIO()
    with RunLog(tmp_path, start_step=0, total_steps=1, stream=stream) as log:
        log.record("eval", 1, values)
    return stream.getvalue()


def test_scores_that_a_pretraining_run_was_asked_for_are_in_its_line(tmp_path: Path):
    """BLiMP's fields are the first to be left out where there are many scores."""
    fields = {f"blimp_{name}_accuracy": 0.5 for name in ("morphology", "semantics", "syntax", "syntax_semantics")}
    asked = {
        "average_mlm_loss": 2.0,
        "average_mlm_accuracy": 0.3,
        "blimp_accuracy": 0.6,
        "probe_mrpc_accuracy": 0.7,
        "probe_mrpc_f1": 0.8,
        "finetune_rte_loss": 0.7,
        "finetune_rte_accuracy": 0.5,
    }
    line = told(tmp_path, {"mlm_loss": 3.0} | fields | asked)
    assert all(f" {name} " in line for name in asked) and not any(name in line for name in fields)
    assert "blimp_syntax_accuracy 50.0%" in told(tmp_path, {"mlm_loss": 3.0, "blimp_accuracy": 0.6} | fields)


def test_a_task_of_many_scores_shows_its_first(tmp_path: Path):
    scores = {f"f1_of_{number}": 0.1 for number in range(9)}
    line = told(tmp_path, {"loss": 1.0} | scores)
    assert "f1_of_5" in line and "f1_of_6" not in line
