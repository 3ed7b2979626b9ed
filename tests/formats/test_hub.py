"""Published models through the real client, against a hub on the loopback: what is asked for, and what goes wrong."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest

from bert_jax.data.tokenizer.families import FILES as FILES_OF_A_TOKENIZER
from bert_jax.data.tokenizer.families import SETTINGS_FILES
from bert_jax.errors import UserError
from bert_jax.formats import hub as hub_module
from bert_jax.formats.hub import fetch
from bert_jax.formats.hub_files import TOKENIZER, is_hub_id, parse_hub_id, published_as
from tests.hub_server import HubServer
from tests.root import ROOT

REPO = "google-bert/bert-base-uncased"
NEEDED = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": bytes(range(256)) * 40,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"do_lower_case": true}',
    "vocab.txt": b"[PAD]\n",
}
FILES = NEEDED | {
    "README.md": b"# card",
    "pytorch_model.bin": b"pickle" * 100,
    "flax_model.msgpack": b"msgpack" * 100,
    "tf_model.h5": b"hdf" * 100,
    "model.onnx": b"onnx" * 100,
}


@pytest.fixture
def hub(hub: HubServer) -> HubServer:
    hub.publish(REPO, FILES)
    return hub


@pytest.fixture
def get(hub: HubServer, tmp_path: Path):
    return partial(fetch, cache_dir=tmp_path / "cache", endpoint=hub.endpoint, token=False)


@pytest.fixture
def impatient(monkeypatch):
    """Removes the client's pauses between attempts."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_the_needed_files_are_downloaded_and_no_other_format(hub, get):
    folder = get(REPO)
    assert {name: (folder / name).read_bytes() for name in names(folder)} == NEEDED
    assert sorted(hub.asked("GET")) == sorted(NEEDED)
    assert hub.listings == 1
    assert published_as(folder) == f"{REPO}@{hub.models[REPO].revisions['main']}"


def test_what_is_cached_is_used_without_asking(hub, get):
    folder = get(REPO)
    hub.log.clear()
    assert get(REPO) == folder
    assert get(REPO, parts=("tokenizer",)) == folder
    hub.publish(REPO, FILES | {"config.json": b'{"model_type": "bert", "later": true}'})
    assert get(REPO) == folder
    assert hub.log == []


def test_only_the_parts_that_are_asked_for(hub, get):
    assert names(get(REPO, parts=("config",))) == {"config.json"}
    folder = get(REPO, parts=("tokenizer",))
    assert names(folder) == set(NEEDED) - {"model.safetensors"}
    assert names(get(REPO)) == set(NEEDED)
    assert sorted(hub.asked("GET")) == sorted(NEEDED)  # nothing twice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("published", "taken"),
    [
        (("model.safetensors", "pytorch_model.bin", "flax_model.msgpack"), ["model.safetensors"]),
        (("pytorch_model.bin", "flax_model.msgpack", "tf_model.h5"), ["pytorch_model.bin"]),
        (("flax_model.msgpack", "tf_model.h5"), ["flax_model.msgpack"]),
        (
            ("model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors", "pytorch_model.bin"),
            ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"],
        ),
        (
            ("pytorch_model.bin.index.json", "a.bin", "b.bin", "c.bin", "tf_model.h5"),
            ["a.bin", "b.bin", "pytorch_model.bin.index.json"],
        ),
    ],
    ids=["safetensors", "torch", "flax", "sharded-safetensors", "sharded-torch"],
)
def test_one_format_of_weights_in_order_of_preference(hub, get, published, taken):
    shards = [name for name in taken if not name.endswith(".json")]
    index = json.dumps({"weight_map": {f"weight {i}": name for i, name in enumerate([*shards, shards[0]])}}).encode()
    files = {name: index if name.endswith(".json") else name.encode() * 50 for name in published}
    hub.publish(
        "somebody/bert", {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "tokenizer_config.json": b"{}"} | files
    )
    get("somebody/bert")
    assert sorted(set(hub.asked("GET")) & set(published)) == taken
    hub.log.clear()
    get("somebody/bert")
    assert hub.log == []


def test_every_file_of_a_tokenizer_is_downloaded():
    assert set(TOKENIZER) == {*FILES_OF_A_TOKENIZER, *SETTINGS_FILES}


def test_how_a_text_becomes_a_vector_comes_along(hub, get):
    more = {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "2_Dense/config.json": b"{}"}
    hub.publish("somebody/sentences", NEEDED | more)
    folder = get("somebody/sentences")
    assert (folder / "1_Pooling" / "config.json").read_bytes() == b"{}"
    assert names(folder) == {*NEEDED, "modules.json", "1_Pooling"}
    assert get("somebody/sentences", offline=True) == folder


def test_an_old_name_and_the_full_one_share_a_cache(hub, get, tmp_path):
    folder = get("bert-base-uncased")
    assert "google-bert--bert-base-uncased" in str(folder)
    hub.stop()
    assert get(REPO) == folder
    cache = tmp_path / "cache"
    (cache / "models--google-bert--bert-base-uncased").rename(cache / "models--bert-base-uncased")
    for source in (REPO, "bert-base-uncased"):
        assert get(source).parts[-3] == "models--bert-base-uncased"


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, get):
    older = hub.publish(REPO, FILES | {"vocab.txt": b"[PAD]\nolder\n"}, revision="refs/pr/1")
    newest = get(REPO)
    for source, revision in [
        (REPO, "refs/pr/1"),
        (f"{REPO}@refs/pr/1", None),
        (REPO, older),
        (f"{REPO}@{older}", None),
    ]:
        assert get(source, revision=revision).name == older
    hub.log.clear()
    assert get(REPO) == newest
    assert get(REPO, revision=older).name == older
    assert hub.log == []


def test_the_token_is_sent_with_every_request(hub, get):
    hub.publish(REPO, FILES, token="hf_right")
    get(REPO, token="hf_right")
    assert set(hub.tokens) == {"Bearer hf_right"}


def test_a_model_without_a_tokenizer_is_asked_about_once(hub, get):
    hub.publish("somebody/encoder", {"config.json": b"{}", "model.safetensors": b"weights"})
    folder = get("somebody/encoder")
    assert names(folder) == {"config.json", "model.safetensors"}
    hub.log.clear()
    assert get("somebody/encoder") == get("somebody/encoder", offline=True) == folder
    assert hub.log == []
    with pytest.raises(UserError, match="has no tokenizer"):
        get("somebody/encoder", parts=("tokenizer",))


@pytest.mark.slow
def test_settings_that_a_cache_may_lack_are_asked_for(hub, get, caplog):
    """Without tokenizer_config.json a tokenizer would silently be another one."""
    folder = get(REPO)
    (folder / "tokenizer_config.json").unlink()
    assert get(REPO, offline=True) == folder
    assert "tokenizer_config.json" in caplog.text
    get(REPO)
    assert (folder / "tokenizer_config.json").exists()
    hub.publish("somebody/old", {name: NEEDED[name] for name in ("config.json", "model.safetensors", "vocab.txt")})
    get("somebody/old")
    hub.log.clear()
    get("somebody/old")
    assert hub.log == []


def test_what_an_earlier_version_did_not_ask_for_is_asked_for_once(hub, get, caplog):
    """A cache with modules.json may lack the file with the prompts."""
    prompts = "config_sentence_transformers.json"
    hub.publish("somebody/prompted", NEEDED | {"modules.json": b"[]", prompts: b"{}"})
    folder = get("somebody/prompted")
    (folder / prompts).unlink()
    assert get("somebody/prompted", offline=True) == folder
    assert prompts in caplog.text
    assert (get("somebody/prompted") / prompts).exists()
    hub.publish("somebody/plain", NEEDED | {"modules.json": b"[]"})
    get("somebody/plain")
    hub.log.clear()
    get("somebody/plain")
    assert hub.log == []


def test_a_cache_that_transformers_filled_is_asked_for_what_makes_vectors(hub, get, tmp_path, caplog):
    """transformers never asks for modules.json, without which texts would silently become other vectors."""
    client = partial(huggingface_hub.hf_hub_download, cache_dir=tmp_path / "cache", endpoint=hub.endpoint, token=False)
    hub.publish("somebody/sentences", NEEDED | {"modules.json": b"[]", "1_Pooling/config.json": b"{}"})
    hub.publish("somebody/plain", NEEDED)
    for repo in ("somebody/sentences", "somebody/plain"):
        for name in NEEDED:
            client(repo, name)
    folder = get("somebody/sentences", offline=True)
    assert "may lack modules.json" in caplog.text
    assert get("somebody/sentences") == folder
    assert {"modules.json", "1_Pooling"} <= names(folder)
    get("somebody/plain")
    hub.log.clear()
    assert get("somebody/sentences") == folder
    get("somebody/plain")
    assert hub.log == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token": "hf_right"}, r"refuses access \(HTTP 401"),
        ({"token": "hf_right", "gated": True}, "is gated"),
        (None, "has no such model"),
        ({"revisions": {}}, "has no revision 'main'"),
    ],
    ids=["private", "gated", "deleted", "revision"],
)
def test_a_complete_copy_is_used_where_the_hub_refuses_what_may_be_missing(hub, get, caplog, change, says):
    folder = get(REPO)
    for path in folder.parents[1].glob(".no_exist/*/*"):
        path.unlink()
    if change is None:
        del hub.models[REPO]
    else:
        hub.publish(REPO, FILES, **change)
    with caplog.at_level("WARNING"):
        assert get(REPO) == folder
    told = [record.getMessage() for record in caplog.records if "may lack" in record.getMessage()]
    assert len(told) == 1 and told[0].endswith("; the cached copy may lack modules.json")
    assert re.search(says, told[0]) and told[0].count(REPO + ":") == 1
    (folder / "model.safetensors").unlink()
    with pytest.raises((FileNotFoundError, UserError), match=says):
        get(REPO)


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_a_partial_copy_is_completed_or_refused_by_name(hub, get, lost):
    folder = get(REPO)
    (folder / lost).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {lost}, and bert_jax is offline") as error:
        get(REPO, offline=True)
    assert "\n" not in str(error.value)
    hub.log.clear()
    get(REPO)
    assert set(hub.asked("GET")) <= {lost}
    assert (folder / lost).exists()


def test_a_partial_copy_without_a_vocabulary_or_a_shard_is_refused(hub, get):
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
    shards = {"one.safetensors": b"1", "two.safetensors": b"2", "model.safetensors.index.json": index}
    files = {name: NEEDED[name] for name in ("config.json", "vocab.txt", "tokenizer_config.json")}
    hub.publish("somebody/large", files | shards)
    folder = get("somebody/large")
    (folder / "two.safetensors").unlink()
    (folder / "vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks tokenizer\.json or vocab\.txt, two\.safetensors"):
        get("somebody/large", offline=True)


def test_nothing_cached_and_no_network_is_one_line_and_one_attempt(hub, get, tmp_path):
    hub.stop()
    with pytest.raises(FileNotFoundError, match=r"no such local folder.*cannot be reached \(ConnectError") as error:
        get("bert-base-uncased")
    assert hub.endpoint in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="bert_jax is offline"):
        get("bert-base-uncased", offline=True)
    assert not (tmp_path / "cache").exists()


def test_a_password_in_the_address_of_the_hub_is_used_and_not_shown(hub, tmp_path):
    address = hub.endpoint.replace("://", "://user:s3cret@")
    get = partial(fetch, cache_dir=tmp_path / "cache", endpoint=address, token=False)
    told = []

    def refused(*model: str, **options: str) -> None:
        with pytest.raises((UserError, FileNotFoundError)) as error:
            get(*model, **options)
        told.append(str(error.value))

    refused("nobody/nothing")
    refused(REPO, revision="v9")
    hub.publish("somebody/gated", FILES, token="hf_right", gated=True)
    refused("somebody/gated")
    hub.publish("somebody/private", FILES, token="hf_right")
    refused("somebody/private", token="hf_wrong")
    hub.down = True
    refused(REPO)
    hub.down = False
    assert names(get(REPO)) == set(NEEDED)
    hub.stop()
    refused("somebody/else")
    assert len(told) == 6
    assert all(hub.endpoint in line and "s3cret" not in line and "user" not in line for line in told), told


def test_a_hub_that_is_down_is_asked_once(hub, get):
    hub.down = True
    with pytest.raises(FileNotFoundError, match="answered HTTP 503"):
        get(REPO)
    assert len(hub.log) == 1


def test_a_broken_download_continues_where_it_broke(hub, get, impatient):
    hub.broken["model.safetensors"] = 2
    folder = get(REPO)
    assert (folder / "model.safetensors").read_bytes() == NEEDED["model.safetensors"]
    assert hub.asked("GET").count("model.safetensors") == 3


def test_what_came_before_the_hub_died_is_kept_for_the_next_call(hub, get, impatient):
    hub.broken["model.safetensors"] = 1000
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors") as error:
        get(REPO)
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="bert_jax is offline"):  # half of it is not a model
        get(REPO, offline=True)
    hub.broken.clear()
    hub.log.clear()
    folder = get(REPO)
    assert names(folder) == set(NEEDED)
    assert set(hub.asked("GET")) == {"model.safetensors", "config.json"}


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_a_file_that_is_not_what_the_hub_has_is_not_kept(hub, get, name):
    hub.spoilt[name] = bytes(len(NEEDED[name]))
    with pytest.raises(UserError, match=f"the download of {name} is damaged"):
        get(REPO)
    hub.spoilt.clear()
    assert (get(REPO) / name).read_bytes() == NEEDED[name]


@pytest.mark.parametrize("revision", ["main", "a commit"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_whose_check_was_killed_is_checked_by_the_next_call(hub, get, monkeypatch, name, revision):
    commit = hub.models[REPO].revisions["main"]
    get = partial(get, REPO, revision=commit if revision == "a commit" else "main")
    if name != "config.json":
        get(parts=("tokenizer",))  # after which the branch points to the commit
    hub.spoilt[name] = bytes(len(NEEDED[name]))
    check = hub_module._damage

    def killed(path, file):
        if path.name == name:
            raise KeyboardInterrupt
        return check(path, file)

    monkeypatch.setattr(hub_module, "_damage", killed)
    with pytest.raises(KeyboardInterrupt):
        get()
    monkeypatch.setattr(hub_module, "_damage", check)
    hub.spoilt.clear()
    with pytest.raises(FileNotFoundError, match=r"lacks .*and bert_jax is offline|no complete copy"):
        get(offline=True)
    with pytest.raises(UserError, match=f"the download of {name} is damaged"):
        get()
    assert (get() / name).read_bytes() == NEEDED[name]


def test_a_file_of_another_length_is_not_kept(hub, get, impatient):
    hub.spoilt["model.safetensors"] = NEEDED["model.safetensors"] + b"more"
    with pytest.raises(UserError, match="file should be of size 10240") as error:
        get(REPO)
    assert "\n" not in str(error.value)
    hub.spoilt.clear()
    assert names(get(REPO)) == set(NEEDED)


def test_a_full_disk_is_reported_before_anything_is_downloaded(hub, get, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 100))
    with pytest.raises(UserError, match="HF_HOME"):
        get(REPO)
    assert hub.asked() == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left in .*HF_HOME"),
        (PermissionError(errno.EACCES, "Permission denied", "/cache/x"), "/cache/x: Permission denied"),
    ],
)
def test_a_disk_that_refuses_is_one_line(hub, get, monkeypatch, error, says):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(UserError, match=says) as told:
        get(REPO)
    assert "\n" not in str(told.value)


def test_no_model_no_revision_no_access(hub, get):
    with pytest.raises(FileNotFoundError, match=r"no such local folder, and http.* has no such model.*HF_TOKEN"):
        get("nobody/nothing")
    with pytest.raises(UserError, match="has no revision 'v9'"):
        get(REPO, revision="v9")
    hub.publish("somebody/gated", FILES, token="hf_right", gated=True)
    with pytest.raises(UserError, match=r"gated: accept its terms at .*HF_TOKEN"):
        get("somebody/gated")
    hub.publish("somebody/private", FILES, token="hf_right")
    with pytest.raises(UserError, match=r"refuses access \(HTTP 403\).*HF_TOKEN"):
        get("somebody/private", token="hf_wrong")
    assert len(hub.log) == 4


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tf_model.h5": b"", "config.json": b"{}"}, r"expected weights in one of .*found tf_model\.h5"),
        ({"model.safetensors": b"weights"}, r"has no config\.json"),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../../x"}}'},
            r"lists '\.\./\.\./x'; expected the name of a file beside the index",
        ),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "x.safetensors"}}'},
            "x.safetensors, which the model does not have",
        ),
        ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, "expected a JSON object, found list"),
        (
            {
                "config.json": b"{}",
                "a(1).safetensors": b"",
                "model.safetensors.index.json": b'{"weight_map": {"a": "a(1).safetensors"}}',
            },
            r"lists 'a\(1\)\.safetensors'; expected the name",  # which a load would refuse after the download
        ),
    ],
    ids=["tensorflow", "no-config", "shard-elsewhere", "shard-missing", "no-index", "shard-unreadable"],
)
def test_a_model_that_cannot_be_loaded_is_refused_with_its_reason(hub, get, files, says):
    hub.publish("somebody/odd", files)
    with pytest.raises(UserError, match=says) as error:
        get("somebody/odd")
    assert "\n" not in str(error.value)


def test_a_folder_goes_before_a_published_model(hub, get, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "google-bert" / "bert-base-uncased").mkdir(parents=True)
    assert get(REPO) == Path(REPO)
    with pytest.raises(UserError, match="is a local folder"):
        get(REPO, revision="main")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        get("file")
    assert hub.log == []


@pytest.mark.parametrize(
    "text",
    ["a/b/c", "/tmp/x", "./x", "a//b", "a b", "", "a/", "-a/b", "a@", "a@../b", "x--y/z", "~/a", "a\\b", "a/b.git"],
)
def test_what_is_neither_a_path_nor_a_hub_id_is_one_line(get, text):
    assert not is_hub_id(text)
    with pytest.raises(UserError, match="neither a folder nor a hub id"):
        parse_hub_id(text)


def test_two_revisions_are_refused():
    with pytest.raises(UserError, match="give only one of them"):
        parse_hub_id("a/b@v1", "v2")
    assert str(parse_hub_id("bert-base-uncased@v1", "v1")) == f"{REPO}@v1"


def test_the_client_is_loaded_when_a_model_is_asked_for_and_not_before():
    code = "import sys, bert_jax, bert_jax.formats.load, bert_jax.formats.hub; print('huggingface_hub' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.slow
def test_the_environment_is_the_clients(hub, tmp_path):
    """HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are read by the client when it is imported."""
    hub.publish(REPO, FILES, token="hf_right")
    code = f"from bert_jax.formats.hub import fetch; print(fetch({REPO!r}))"
    environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_right"}
    environment["HF_HUB_OFFLINE"] = "0"

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=ROOT, env=environment | more, capture_output=True, text=True, check=False)

    offline = run(HF_HUB_OFFLINE="1")
    assert "bert_jax is offline (HF_HUB_OFFLINE)" in offline.stderr.splitlines()[-1]
    assert hub.log == []
    folder = run().stdout.strip()
    assert folder.startswith(str(tmp_path)) and names(Path(folder)) == set(NEEDED)
    assert run(HF_HUB_OFFLINE="1").stdout.strip() == folder


def test_a_reference_that_leads_outside_the_cache_is_not_followed(tmp_path):
    refs = tmp_path / "cache" / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs.parent / "snapshots").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    (refs / "main").write_text("../../../outside")
    with pytest.raises(FileNotFoundError, match="no complete copy"):
        fetch("org/name", cache_dir=tmp_path / "cache", offline=True)
    (refs / "main").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="its entry of org/name is damaged"):
        fetch("org/name", cache_dir=tmp_path / "cache", offline=True)
