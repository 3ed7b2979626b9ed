"""The GELU of a Google checkpoint: chosen in load and convert, and named in the report."""

import json

import pytest

import bert_jax
from bert_jax.__main__ import main
from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from tests.tiny import random_params

CONFIG = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    folder = tmp_path_factory.mktemp("google") / "bert"
    return bert_jax.save_pretrained(folder, CONFIG, random_params(CONFIG, 1), None, head="pretraining", tf1=True)


@pytest.mark.parametrize(
    ("gelu", "act", "word"), [(None, "gelu", "erf"), ("erf", "gelu", "erf"), ("tanh", "gelu_new", "tanh")]
)
def test_load_takes_the_choice_and_the_report_tells_it(google, gelu, act, word):
    config, *_, report = bert_jax.load(google, gelu=gelu)
    assert config.hidden_act == act
    assert [note for note in report.notes if f"computed with {word}" in note] == list(report.notes)
    assert len(report.notes) == 1


def test_convert_writes_the_choice(google, tmp_path, capsys):
    assert main(["convert", str(google), str(tmp_path / "hf"), "--gelu", "tanh"]) == 0
    assert "computed with tanh, as requested" in capsys.readouterr().err
    assert json.loads((tmp_path / "hf/config.json").read_text())["hidden_act"] == "gelu_new"
    assert not bert_jax.load(tmp_path / "hf").report.notes


def test_a_folder_that_leaves_no_choice_is_refused(google, tmp_path):
    bert_jax.save_pretrained(tmp_path / "hf", CONFIG, random_params(CONFIG, 1), None, head="pretraining")
    with pytest.raises(UserError, match="gelu='tanh': applies only to Google's files"):
        bert_jax.load(tmp_path / "hf", gelu="tanh")


ALBERT = BertConfig(
    model_type="albert", vocab_size=9, hidden_size=8, embedding_size=4, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=12, hidden_act="gelu",
)  # fmt: skip


def test_an_albert_computed_with_erf_is_written_with_a_warning_and_read_as_asked_for(tmp_path, caplog):
    params = random_params(ALBERT, 1)
    folder = bert_jax.save_pretrained(tmp_path / "erf", ALBERT, params, None, head="pretraining", tf1=True)
    assert "hidden_act='gelu' (set gelu='erf')" in caplog.text
    tanh = bert_jax.load(folder)
    assert tanh.config.hidden_act == "gelu_new"
    assert tanh.report.notes == ('hidden_act "gelu" is computed with tanh, as in Google\'s ALBERT',)
    assert bert_jax.load(folder, gelu="erf").config.hidden_act == "gelu"
    caplog.clear()
    config = ALBERT.replace(hidden_act="gelu_new")
    bert_jax.save_pretrained(tmp_path / "tanh", config, params, None, head="pretraining", tf1=True)
    assert not caplog.text


def test_what_googles_config_cannot_say_is_named_when_it_is_written(tmp_path, caplog):
    params = random_params(CONFIG, 1)
    config = CONFIG.replace(problem_type="regression", labels=("score",), pad_token_id=3, hidden_act="gelu_new")
    bert_jax.save_pretrained(tmp_path / "tf1", config, params, None, head="encoder", tf1=True)
    (record,) = caplog.records
    line = record.getMessage()
    for lost in (
        "labels=('score',)",
        "problem_type='regression'",
        "pad_token_id=3",
        "hidden_act='gelu_new' (set gelu='tanh')",
    ):
        assert lost in line
    assert "\n" not in line
