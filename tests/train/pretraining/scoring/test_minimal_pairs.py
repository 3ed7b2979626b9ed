"""BLiMP while training: the figures of the verb at the chosen steps, once each over a kill, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.evaluation.blimp import evaluate, read_blimp
from bert_jax.formats.load import load
from bert_jax.inference.runtimes.xla import Programs
from bert_jax.inference.tasks.likelihood import Likelihood
from tests.train.pretraining.conftest import WORDS
from tests.train.pretraining.scoring.killed import killed_after_an_evaluation, made, scores_of
from train import pretrain
from train.pretraining.scoring.minimal_pairs import MinimalPairs
from train.run.ending.stopping import EXIT_DONE


@pytest.fixture(scope="module")
def blimp(tmp_path_factory) -> Path:
    """Two sets of fifty pairs, each of a field; their sentences are words in random order."""
    folder = tmp_path_factory.mktemp("blimp")
    generator = np.random.default_rng(0)
    for name, field in (("order", "syntax"), ("place", "semantics")):
        rows = [[" ".join(generator.choice(WORDS, 5)) for _ in range(2)] for _ in range(50)]
        lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "field": field}) for good, bad in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("average", [[], ["optimizer.average_half_life=1e6"]])
def test_scores_are_those_of_the_verb_and_a_killed_run_has_each_once(
    average: list[str], recipe: str, data: str, blimp: Path, tmp_path: Path
):
    """With an average of the weights too: what is scored is what is exported."""
    words = [recipe, f"data={data}", f"run={tmp_path / 'run'}", f"blimp={blimp}", "blimp_every=6", "blimp_pairs=40"]
    words += [*average, "optimizer.learning_rate=0.02"]  # so that the mean is far from the last weights
    killed_after_an_evaluation(words)
    with made(Programs) as programs:
        assert pretrain.main(words) == EXIT_DONE
    assert len(programs) == 1, "two evaluations, one model to compile"
    found = scores_of(tmp_path / "run", "blimp_")
    assert list(found) == [6, 12]
    verb = evaluate(Likelihood(tmp_path / "run" / "export", dtype="float32"), read_blimp(blimp, 40))
    assert found[12] == {
        "blimp_accuracy": verb["accuracy"] / 100,
        **{f"blimp_{field}_accuracy": value / 100 for field, value in verb["fields"].items()},
    }
    assert set(verb["fields"]) == {"syntax", "semantics"}
    assert found[6] != found[12], "the weights of step 6 were scored at step 12"
    last = evaluate(Likelihood(tmp_path / "run", dtype="float32"), read_blimp(blimp, 40))
    assert (last["fields"] == verb["fields"]) == (not average)
    loaded = load(str(tmp_path / "run" / "export"), head="pretraining")
    kernel = loaded.config.replace(attention="kernel")  # which refuses the lengths of these sentences
    pairs = MinimalPairs(read_blimp(blimp, 40), kernel, loaded.tokenizer, "pretraining")
    assert pairs(loaded.params) == found[12]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["blimp_every=4"], "blimp_every: found 4; expected a multiple of eval_every=6, or none"),
        (["blimp_pairs=0"], "blimp_pairs: found 0; expected at least 1, or none"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_run_begins(
    recipe: str, data: str, tmp_path: Path, words: list[str], line: str
):
    run = tmp_path / "run"
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"data={data}", f"run={run}", *words])
    assert not (run / "metrics.jsonl").exists() and not (run / "config.json").exists()
