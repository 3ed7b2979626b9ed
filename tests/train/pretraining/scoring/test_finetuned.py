"""A fine-tuning while pretraining: the scores that train.finetune gets from the saved model, once each over a kill."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training.prediction import Predictor
from tests.run_directory import records
from tests.train.pretraining.scoring.killed import killed_after_an_evaluation, made, scores_of
from train import finetune, pretrain
from train.run.ending.stopping import EXIT_DONE

FIELDS = ["finetune_every=6", "finetune_examples=100", "finetune_epochs=12", "finetune_rate=3e-3"]


@pytest.mark.slow
def test_scores_are_those_of_a_finetuning_and_a_killed_run_has_each_once(
    recipe: str, data: str, cats, cats_task: Path, tmp_path: Path
):
    run, own = tmp_path / "run", tmp_path / "own"
    words = [recipe, f"data={data}", f"run={run}", f"finetune=sst2:{cats_task}", *FIELDS]
    killed_after_an_evaluation(words)
    first = scores_of(run, "finetune_")
    with made(Predictor) as predictors:
        assert pretrain.main(words) == EXIT_DONE
    assert len(predictors) == 1, "two evaluations, one model to compile"
    found = scores_of(run, "finetune_")
    assert list(found) == [6, 12] and first == {6: found[6]} and found[6] != found[12]

    hundred = tmp_path / "hundred.tsv"
    hundred.write_text("".join((cats_task / "train.tsv").read_text().splitlines(keepends=True)[:101]))
    settings = ["epochs=12", "optimizer.learning_rate=3e-3", "max_length=48", "model.dtype=float32"]
    files = [f"train={hundred}", f"dev={cats_task / 'dev.tsv'}"]
    assert (
        finetune.main(["configs/finetune.py", f"init={run}", "task=sst2", *files, f"run={own}", *settings]) == EXIT_DONE
    )
    last = records(own, "eval")[-1]
    assert found[12] == pytest.approx({f"finetune_sst2_{name}": last[name] for name in ("loss", "accuracy")}, rel=1e-6)
    share = np.mean([label == "1" for _, label in cats["dev"]])
    assert found[12]["finetune_sst2_loss"] < -share * np.log(share) - (1 - share) * np.log(1 - share), (
        "it learnt nothing of the texts"
    )


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
