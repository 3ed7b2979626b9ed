"""A run of each family from prepared text to its export: transformers loads it without a warning and computes the same."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bert_jax.cli.verbs.info import describe
from bert_jax.formats.load import load
from bert_jax.formats.names.parameters import architecture_of
from tests.train.pretraining.family_runs import prepare_for
from train import pretrain
from train.run.ending.stopping import EXIT_DONE

pytestmark = [pytest.mark.parity, pytest.mark.slow]

RECIPE = '''"""Three steps of a small {family}."""

from tests.train.pretraining.family_runs import BATCH, LENGTH, small_config
from train.pretraining.recipe import Phase


def get_config():
    return small_config("{family}", phases=(Phase(LENGTH, BATCH, 3),), log_every=1, eval_every=3, save_every=3)
'''
# RoBERTa's head starts by looking at the token before, with Fourier positions beside the row of padding.
WORDS = {
    "roberta": [
        "model.num_attention_heads=1",
        "start.range=width",
        "start.positions=fourier",
        "start.heads=((0, -1),)",
        "start.output_bias=unigram",
    ]
}
TEXTS = ["hello world.", "a lord told the world.", "hello"]


@pytest.mark.parametrize("family", ["roberta", pytest.param("albert", marks=pytest.mark.exhaustive), "distilbert"])
def test_a_run_is_exported_for_transformers(family: str, tmp_path: Path, caplog, capsys):
    data, run, recipe = prepare_for(family, tmp_path / "prepared"), tmp_path / "run", tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(family=family))
    assert pretrain.main([str(recipe), f"data={data}", f"run={run}", *WORDS.get(family, [])]) == EXIT_DONE
    head = "pretraining" if family == "albert" else "mlm"
    found = describe(run / "export")
    assert (found["head"], found["verified"], found["config"]["model_type"]) == (head, True, family)
    assert found["sha256"] == describe(run)["sha256"]

    config, params, tokenizer, report = loaded = load(run / "export")
    assert tokenizer and not (report.missing or report.unexpected or report.mismatched)
    assert config.pad_token_id == tokenizer.pad_token_id
    caplog.clear()
    capsys.readouterr()
    their_class: Any = getattr(transformers, architecture_of(config, head))
    with caplog.at_level(logging.WARNING):
        model, said = their_class.from_pretrained(run / "export", output_loading_info=True)
        their_tokenizer: Any = transformers.AutoTokenizer.from_pretrained(run / "export")
    assert not any(said[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert caplog.records == []
    assert "Some weights" not in capsys.readouterr().err
    theirs = their_tokenizer(TEXTS, padding=True, return_tensors="pt")
    ours = tokenizer(TEXTS, padding="longest")
    np.testing.assert_array_equal(ours["input_ids"], theirs["input_ids"].numpy())
    with torch.no_grad():
        expected = model.eval()(**theirs)
    output: Any = loaded.model.apply({"params": params}, ours["input_ids"], ours["attention_mask"])
    logits = expected.prediction_logits if family == "albert" else expected.logits
    attended = ours["attention_mask"].astype(bool)
    np.testing.assert_allclose(output.prediction_logits[attended], logits.numpy()[attended], atol=2e-5)
    if family == "albert":
        np.testing.assert_allclose(output.seq_relationship_logits, expected.sop_logits.numpy(), atol=2e-5)
