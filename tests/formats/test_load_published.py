"""A hub id wherever a folder will do: `load` and its parts, and the commands."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load, load_config, load_tokenizer
from bert_jax.formats.write import save_pretrained
from tests import tiny
from tests.guide import blocks_of, run_blocks
from tests.hub_server import HubServer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "Mat", "##s", "."]
CONFIG = tiny.CONFIG.replace(vocab_size=16)
REPO = "google-bert/bert-base-cased"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    params = tiny.random_params(CONFIG, 3)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=True)
    return save_pretrained(tmp_path_factory.mktemp("out") / "model", CONFIG, params, tokenizer)


@pytest.fixture
def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_published_model_is_that_of_its_folder(hub: HubServer, folder, files):
    commit = hub.publish(REPO, files | {"tf_model.h5": b"other weights"})
    theirs, ours = load("bert-base-cased"), load(folder)
    assert theirs.config == ours.config
    assert jax.tree.structure(theirs.params) == jax.tree.structure(ours.params)
    for a, b in zip(jax.tree.leaves(theirs.params), jax.tree.leaves(ours.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert theirs.tokenizer is not None and ours.tokenizer is not None
    assert theirs.tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert theirs.tokenizer.cased
    assert commit in theirs.report.source
    assert "tf_model.h5" not in hub.asked()


def test_config_and_tokenizer_come_without_the_weights(hub: HubServer, files):
    hub.publish(REPO, files)
    assert load_config(REPO) == CONFIG
    assert hub.asked() == ["config.json"]
    tokenizer = load_tokenizer(REPO, max_length=7)
    assert tokenizer is not None and tokenizer.max_length == 7
    assert "model.safetensors" not in hub.asked()


def test_a_tokenizer_comes_from_the_hub_by_the_name_that_transformers_uses(hub: HubServer, folder, files):
    hub.publish(REPO, files)
    assert Tokenizer.from_pretrained(REPO).fingerprint == Tokenizer.load(folder).fingerprint
    assert "model.safetensors" not in hub.asked()
    hub.publish("somebody/weights", {name: files[name] for name in ("config.json", "model.safetensors")})
    with pytest.raises(UserError, match=r"^somebody/weights: has no tokenizer"):
        Tokenizer.from_pretrained("somebody/weights")


def test_a_published_model_without_a_tokenizer_has_none(hub: HubServer, files):
    hub.publish(REPO, {name: files[name] for name in ("config.json", "model.safetensors")})
    assert load(REPO).tokenizer is None
    assert load_tokenizer(REPO) is None


@pytest.mark.slow
def test_revision_and_token_reach_the_hub(hub: HubServer, files):
    hub.publish(REPO, files, token="hf_right")
    smaller = json.loads(files["config.json"]) | {"layer_norm_eps": 1e-5}
    hub.publish(REPO, files | {"config.json": json.dumps(smaller).encode()}, revision="v2")
    assert load(REPO, token="hf_right").config.layer_norm_eps == 1e-12
    assert load(REPO, token="hf_right", revision="v2").config.layer_norm_eps == 1e-5
    assert load(f"{REPO}@v2").config.layer_norm_eps == 1e-5  # cached by now
    assert set(hub.tokens) == {"Bearer hf_right"}


def test_a_folder_on_disk_comes_first_and_a_path_is_never_requested(
    hub: HubServer, folder, files, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder.parent)
    assert load("model").config == CONFIG
    with pytest.raises(UserError, match="is a local folder"):
        load("model", revision="main")
    for missing in (tmp_path / "runs", "./runs/demo", "runs/demo/checkpoints", Path("runs/demo")):
        with pytest.raises(FileNotFoundError, match="no such folder"):
            load(missing)
    assert hub.log == []
    with pytest.raises(FileNotFoundError, match=r"runs/demo: no such local folder, and http.* has no such model"):
        load("runs/demo")


@pytest.mark.slow
def test_the_commands_take_a_hub_id(hub: HubServer, folder, files, tmp_path, capsys):
    commit = hub.publish(REPO, files)
    assert main(["info", REPO, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["published"] == f"{REPO}@{commit}"
    assert main(["info", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == found["sha256"]
    assert main(["info", REPO]) == 0
    assert commit in capsys.readouterr().out
    assert main(["fill-mask", "bert-base-cased", "the [MASK] sat."]) == 0
    assert main(["export", f"{REPO}@{commit}", str(tmp_path / "copy")]) == 0
    assert load(tmp_path / "copy").config == CONFIG
    assert main(["convert", REPO, str(tmp_path / "encoder"), "--head", "encoder"]) == 0
    assert f"{REPO}@{commit}" in (tmp_path / "encoder" / "README.md").read_text()
    hub.stop()
    assert main(["fill-mask", REPO, "the [MASK] sat."]) == 0
    assert main(["info", "nobody/nothing"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("python -m bert_jax info: error: nobody/nothing: no such local folder")
    )


@pytest.mark.slow
def test_the_guides_python_runs(hub: HubServer, files):
    hub.publish("google-bert/bert-base-uncased", files)
    hub.publish("somebody/bert", files, revision="v1.0")
    (block,) = blocks_of("docs/hub.md", "python")
    run_blocks([block])
