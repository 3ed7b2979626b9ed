"""What a user's string names is determined once: its kind is recognised, and no file is opened twice."""

import json
import shutil
from pathlib import Path

import pytest

import bert_jax
import bert_jax.formats.source as source_module
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays, load_config, load_tokenizer
from bert_jax.formats.source import Source, open_source
from bert_jax.formats.write import save_pretrained
from tests import tiny
from tests.opened_files import opened_by
from tests.run_directory import write_run

CONFIG = tiny.CONFIG.replace(vocab_size=8)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    """The same model as each kind of source."""
    root, params = tmp_path_factory.mktemp("sources"), tiny.random_params(CONFIG, 0)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    model = {name: value for name, value in CONFIG.to_json().items() if name != "model_type"}
    return {
        "run": write_run(root / "run", {"model": model}, params, tokenizer, steps=(1, 2)),
        "hf": save_pretrained(root / "hf", CONFIG, params, tokenizer),
        "shards": save_pretrained(root / "shards", CONFIG, params, tokenizer, max_shard_size=500),
        "google": save_pretrained(root / "google", CONFIG, params, tokenizer, tf1=True),
    }


@pytest.mark.parametrize("place", ["run", "hf", "shards", "google"])
def test_the_kind_is_recognised_and_the_architecture_read(places, place):
    source = open_source(places[place])
    assert source.kind == (place if place in ("run", "google") else "hf")
    assert source.is_run == (place == "run")
    assert (str(source), source.published) == (str(places[place]), None)
    assert source.config == load_config(places[place]) == CONFIG
    assert open_source(source) is source


def test_the_current_folder_can_be_a_source(places, monkeypatch):
    for place in ("run", "hf"):
        monkeypatch.chdir(places[place])
        assert open_source(".").kind == place
    places["run"].with_name("run.index").touch()  # which is no part of the run
    assert open_source(places["run"]).is_run


@pytest.mark.parametrize("place", ["hf", "shards", "google"])
def test_a_load_opens_each_file_of_a_folder_once(places, place):
    counts = opened_by(lambda: bert_jax.load(places[place]), places[place])
    weights = {"hf": "model.safetensors", "shards": "model.safetensors.index.json", "google": "bert_model.ckpt.index"}
    config = "bert_config.json" if place == "google" else "config.json"
    assert {config, weights[place], "tokenizer.json"} <= set(counts)
    assert set(counts.values()) == {1}, counts


def test_a_load_opens_each_file_of_a_run_once_but_what_a_checkpoint_vouches_for(places):
    counts = opened_by(lambda: bert_jax.load(places["run"]), places["run"])
    beside = {path: count for path, count in counts.items() if not path.startswith("checkpoints/")}
    assert {"config.json", "tokenizer/tokenizer.json"} <= set(beside)
    assert set(beside.values()) == {1}, beside


@pytest.mark.parametrize("place", ["run", "hf", "google"])
def test_a_source_that_is_open_is_not_looked_at_again(places, place):
    source = open_source(places[place])

    def use():
        load_config(source)
        load_tokenizer(source)
        load_arrays(source)

    assert not {"config.json", "bert_config.json"} & set(opened_by(use, places[place]))


def test_of_a_fine_tuning_run_the_export_is_taken_unless_a_checkpoint_is_asked_for(places, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"task": "classify", "model": {}}))
    assert open_source(tmp_path).best().folder == tmp_path
    places["hf"].joinpath("config.json").read_text()
    (tmp_path / "export").symlink_to(places["hf"])
    assert open_source(tmp_path).best().folder == tmp_path / "export"
    assert open_source(tmp_path).best(step=3).folder == tmp_path
    (tmp_path / "config.json").write_text(json.dumps({"model": {}}))  # pretraining
    assert open_source(tmp_path).best().folder == tmp_path


def test_a_snapshot_with_its_weights_is_not_asked_about_again(places, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(source_module, "fetch", lambda repo, **options: asked.append((repo, options)))
    cache, commit = tmp_path / "elsewhere", "0" * 40
    folder = cache / "models--somebody--bert" / "snapshots" / commit
    shutil.copytree(places["hf"], folder)
    opened = open_source(folder)
    assert opened.with_weights() is opened and asked == []
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    opened.with_weights()
    assert asked == [(f"somebody/bert@{commit}", {"parts": ("config", "weights"), "cache_dir": cache})]


def test_a_tilde_of_nobody_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="~nobody-of-this-name: no such folder"):
        open_source("~nobody-of-this-name")


def test_what_says_too_little_is_one_line(places, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent: no such folder; expected a run directory, a folder or a"):
        open_source(tmp_path / "absent")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"notes\.txt: is a file, not a folder; expected a run directory"):
        open_source(tmp_path / "notes.txt")
    (tmp_path / "notes.txt").unlink()
    with pytest.raises(UserError, match="bert_jax cannot load from a bucket"):
        open_source("gs://bucket/run")
    assert open_source(tmp_path) == Source(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"contains no config\.json \(nor bert_config\.json, albert_config\.json\)"
    ):
        load_config(tmp_path)
    for text, found in (("{", "not JSON"), ("[]", "expected a JSON object, found list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=rf"config\.json: {found}"):
            open_source(tmp_path)
    for value, found in (("3", "3"), ("null", "None"), (json.dumps(str(places["hf"])), "'/")):
        (tmp_path / "config.json").write_text(f'{{"model": {value}}}')
        with pytest.raises(UserError, match=rf"config\.json: model is {found}.*; expected an object"):
            load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model": {"hidden_size": "4"}}')
    with pytest.raises(UserError, match=r"config\.json, model: hidden_size='4'"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model": {}, "model_type": "bert"}')
    assert open_source(tmp_path).kind == "hf"
