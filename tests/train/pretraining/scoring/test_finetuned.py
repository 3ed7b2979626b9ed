"""A fine-tuning while pretraining: the scores that train.finetune gets from the saved model, once each over a kill."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training.prediction import Predictor
from train import finetune, pretrain
from train.pretraining.job import PretrainingJob
from train.run.ending.stopping import EXIT_DONE

FIELDS = ["finetune_every=6", "finetune_examples=100", "finetune_epochs=12", "finetune_rate=3e-3"]


def scored(run: Path, prefix: str = "") -> dict[int, tuple[float, float]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row for row in found if row["kind"] == "eval"]
    assert len({row["step"] for row in found}) == len(found), "an evaluation is there twice"
    return {row["step"]: (row[f"{prefix}loss"], row[f"{prefix}accuracy"]) for row in found if f"{prefix}loss" in row}


@pytest.mark.slow
def test_scores_are_those_of_a_finetuning_and_a_killed_run_has_each_once(
    recipe: str, data: str, cats, cats_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, own, calls, made = tmp_path / "run", tmp_path / "own", [], []
    words = [recipe, f"data={data}", f"run={run}", f"finetune=sst2:{cats_task}", *FIELDS]
    facts, init = PretrainingJob.facts, Predictor.__init__

    def killed(job: PretrainingJob) -> dict:
        calls.append(job)
        if len(calls) == 2:  # step 6 is evaluated and logged, and not yet saved
            raise SystemError("killed")
        return facts(job)

    def counted(self: Predictor, *args) -> None:
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(PretrainingJob, "facts", killed)
    with pytest.raises(SystemError):
        pretrain.main(words)
    first = scored(run, "finetune_sst2_")
    monkeypatch.setattr(PretrainingJob, "facts", facts)
    monkeypatch.setattr(Predictor, "__init__", counted)
    assert pretrain.main(words) == EXIT_DONE
    assert len(made) == 1, "two evaluations, one model to compile"
    found = scored(run, "finetune_sst2_")
    assert list(found) == [6, 12] and first == {6: found[6]} and found[6] != found[12]

    hundred = tmp_path / "hundred.tsv"
    hundred.write_text("".join((cats_task / "train.tsv").read_text().splitlines(keepends=True)[:101]))
    settings = ["epochs=12", "optimizer.learning_rate=3e-3", "max_length=48", "model.dtype=float32"]
    files = [f"train={hundred}", f"dev={cats_task / 'dev.tsv'}"]
    assert (
        finetune.main(["configs/finetune.py", f"init={run}", "task=sst2", *files, f"run={own}", *settings]) == EXIT_DONE
    )
    assert found[12] == pytest.approx(list(scored(own).values())[-1], rel=1e-6)
    share = np.mean([label == "1" for _, label in cats["dev"]])
    assert found[12][0] < -share * np.log(share) - (1 - share) * np.log(1 - share), "it learnt nothing of the texts"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["finetune=sst3:x"], "finetune: found 'sst3:x'; expected TASK:FOLDER, TASK one of cola, mnli, .*stsb"),
        (["finetune=sst2"], "finetune: found 'sst2'; expected TASK:FOLDER"),
        (["finetune_every=4"], "finetune_every: found 4; expected a multiple of eval_every=6, or none"),
        (["finetune_examples=0"], "finetune_examples: found 0; expected at least 1, or none"),
        (["finetune_rate=0"], "finetune_rate: found 0.0; expected a number above 0"),
        (["finetune=sst2:nowhere"], "nowhere: no such folder"),
        (["finetune=cola:{task}"], "train.tsv"),
    ],
)
def test_what_cannot_be_finetuned_is_refused_before_the_run_begins(
    recipe: str, data: str, cats_task: Path, tmp_path: Path, words: list[str], line: str
):
    run = tmp_path / "run"
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"data={data}", f"run={run}", *(word.format(task=cats_task) for word in words)])
    assert not (run / "metrics.jsonl").exists() and not (run / "config.json").exists()
