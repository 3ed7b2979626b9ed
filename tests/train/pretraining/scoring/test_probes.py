"""Probes while training: scikit-learn's scores of the saved model at the chosen steps, once each over a kill."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.runtimes.xla import Programs
from bert_jax.inference.tasks.embed import TextEmbedding
from tests.train.pretraining.scoring.killed import killed_after_an_evaluation, made, scores_of
from train import pretrain
from train.pretraining.recipe import PretrainConfig
from train.pretraining.scoring.probes import Probe, read_probe
from train.run.ending.stopping import EXIT_DONE


@pytest.mark.slow
def test_scores_are_scikit_learns_and_a_killed_run_has_each_once(
    recipe: str, data: str, cats, cats_task: Path, tmp_path: Path
):
    run = tmp_path / "run"
    words = [recipe, f"data={data}", f"run={run}", f"probe=sst2:{cats_task}", "probe_every=6", "probe_examples=100"]
    killed_after_an_evaluation(words)
    first = scores_of(run, "probe_")
    with made(Programs) as programs:
        assert pretrain.main(words) == EXIT_DONE
    assert len(programs) == 1, "two evaluations, one model to compile"
    found = scores_of(run, "probe_")
    assert list(found) == [6, 12] and first == {6: found[6]}
    embed = TextEmbedding(run, pooling="mean", dtype="float32")
    (texts, labels), (dev_texts, dev_labels) = (zip(*part, strict=True) for part in (cats["train"][:100], cats["dev"]))
    theirs = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000))
    theirs.fit(embed(list(texts)), labels)
    assert found[12]["probe_sst2_accuracy"] == pytest.approx(theirs.score(embed(list(dev_texts)), dev_labels))
    assert found[12]["probe_sst2_accuracy"] > max(np.mean(np.array(dev_labels) == name) for name in "01"), (
        "the probe learnt nothing"
    )
    loaded = load(str(run / "export"), head="pretraining")
    kernel = loaded.config.replace(attention="kernel")  # which refuses the lengths of these sentences
    again = Probe(read_probe(PretrainConfig(probe=f"sst2:{cats_task}", probe_examples=100)), kernel, loaded.tokenizer)
    assert again(loaded.params) == found[12]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["probe=sst3:x"], "probe: found 'sst3:x'; expected TASK:FOLDER, TASK one of cola, mnli"),
        (["probe=stsb:x"], "probe: found 'stsb:x'; expected TASK:FOLDER"),
        (["probe=sst2"], "probe: found 'sst2'; expected TASK:FOLDER"),
        (["probe_every=4"], "probe_every: found 4; expected a multiple of eval_every=6, or none"),
        (["probe_examples=0"], "probe_examples: found 0; expected at least 1, or none"),
        (["probe=sst2:nowhere"], "nowhere: no such folder"),
        (["probe=sst2:{task}", "probe_examples=1"], "train.tsv: 1 examples and only '[01]' as a label"),
    ],
)
def test_what_cannot_be_probed_is_refused_before_the_run_begins(
    recipe: str, data: str, cats_task: Path, tmp_path: Path, words: list[str], line: str
):
    run = tmp_path / "run"
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"data={data}", f"run={run}", *(word.format(task=cats_task) for word in words)])
    assert not (run / "metrics.jsonl").exists() and not (run / "config.json").exists()
