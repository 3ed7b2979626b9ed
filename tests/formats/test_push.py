"""Models pushed through the real client to a hub on the loopback: the files, the card, what is refused, what is lost."""

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.hub import fetch, upload
from bert_jax.formats.hub_files import is_read_by_a_load
from bert_jax.formats.load import load
from bert_jax.formats.push import packed
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import pipeline
from bert_jax.tree import sha256_of_parameters
from tests import tiny
from tests.hub_server import HubServer
from tests.run_directory import write_run

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "고양이", "a", "##s", "."]
CONFIG = tiny.CONFIG.replace(vocab_size=12)
REPO, TOKEN = "somebody/cats", "hf_writer"
SCORES = {"mlm_loss": 4.5, "unigram_loss": 6.25, "nsp_accuracy": 0.7, "majority_accuracy": 0.56}

# The client's own upload of a large file uses a word of its HTTP library that is going out of use.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def params() -> dict:
    return tiny.random_params(CONFIG, 5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES, cased=False, strip_accents=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory, params, tokenizer) -> Path:
    config = {"model": CONFIG.to_json(), "phases": [[128, 8, 30]], "data": "/secret/path"}
    directory = write_run(tmp_path_factory.mktemp("runs") / "cats", config, params, tokenizer, steps=(20, 30))
    rows = [{"kind": "eval", "step": 10, "mlm_loss": 9.0}, {"kind": "eval", "step": 30} | SCORES]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "data").mkdir()
    manifest = {
        "objective": "nsp",
        "tokenizer": {"vocab_size": 12, "cased": False},
        "report": {"train": {"documents": 1234, "sentences": 5678, "tokens": 91011, "duplicate_lines": 0.25}},
    }
    (directory / "data" / "manifest.json").write_text(json.dumps(manifest))
    return directory


@pytest.fixture
def hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.writers[TOKEN] = "somebody"
    return hub


def files_of(hub: HubServer, repo: str = REPO, revision: str = "main") -> dict[str, bytes]:
    model = hub.models[repo]
    return model.commits[model.revisions[revision]]


def refusal(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main(["push", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error: ") == 1
    return err.splitlines()[-1]


@pytest.mark.slow
def test_a_pushed_run_loads_from_the_hub_and_answers_the_same(run, hub, params, capsys):
    assert main(["push", str(run), REPO, "--license", "apache-2.0"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{hub.endpoint}/{REPO}\n"
    assert f"created {REPO}, branch main" in err
    assert hub.models[REPO].messages == ["pretraining, step 30, written by bert_jax"]
    assert sha256_of_parameters(load(REPO).params) == sha256_of_parameters(params)
    assert pipeline("fill-mask", REPO)("the [MASK] sat.") == pipeline("fill-mask", str(run))("the [MASK] sat.")


@pytest.mark.slow
def test_the_hubs_own_reader_finds_licence_and_scores_in_the_card(run, hub):
    with packed(run, REPO, license="mit") as parcel:
        card = huggingface_hub.ModelCard(parcel.card)
    assert card.data.license == "mit"
    assert card.data.pipeline_tag == "fill-mask"
    assert {found.metric_type: found.metric_value for found in card.data.eval_results} == {
        "mlm_loss": 4.5,
        "nsp_accuracy": 0.7,
    }
    assert "| masked-LM loss, nats | 4.5 | 6.25 | how often each token occurs |" in card.text
    assert "| sentence-pair accuracy | 0.7 | 0.56 |" in card.text
    assert "| documents | 1,234 |" in card.text
    assert f'BertForPreTraining.from_pretrained("{REPO}")' in card.text
    assert "\n# cats\n" in card.text
    assert "DIR" not in card.text
    assert "secret" not in card.text


@pytest.mark.slow
def test_a_fine_tuned_models_card_has_the_score_beside_the_majority_class(tmp_path, params, tokenizer):
    config = {"model": CONFIG.to_json(), "task": "classify"}
    run = write_run(tmp_path / "mails", config, params, tokenizer, steps=(5, 9))
    row = {"kind": "eval", "step": 9, "accuracy": 0.875, "baseline_accuracy": 0.5, "f1": 0.75}
    (run / "metrics.jsonl").write_text(json.dumps(row))
    with packed(run, REPO) as parcel:
        assert "| accuracy | 0.875 | 0.5 | the most frequent answer of the training data |" in parcel.card
        assert "| f1 | 0.75 | | |" in parcel.card


def test_a_folder_goes_up_as_it_is_with_its_own_card(tmp_path, hub, params, tokenizer, capsys):
    folder = save_pretrained(tmp_path / "my", CONFIG, params, tokenizer, head="pretraining")
    (folder / "README.md").write_text('---\ntags: [cats]\n---\n# Cats\nMy own words about the "DIR".\n')
    (folder / ".secret").write_text("no")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert main(["push", str(folder), REPO, "--license", "mit", "--message", "first", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["created"] and told["commit"] == hub.models[REPO].revisions["main"]
    sent = files_of(hub)
    assert {name: len(content) for name, content in sent.items() if name != ".gitattributes"} == told["files"]
    assert sent["1_Pooling/config.json"] == b"{}"
    assert sent["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    card = sent["README.md"].decode()
    assert 'My own words about the "DIR".' in card
    assert "license: mit" in card and "cats" in card
    assert ".secret" not in sent
    assert hub.models[REPO].messages == ["first"]


@pytest.mark.parametrize("target", ["../secret/id_rsa", ".git/config"])
@pytest.mark.parametrize("link", ["merges_notes.txt", "README.md", "onnx/notes.txt"])
def test_a_link_to_what_its_owner_does_not_publish_stops_the_push(
    tmp_path, hub, params, tokenizer, capsys, link, target
):
    folder = save_pretrained(tmp_path / "theirs", CONFIG, params, tokenizer, head="pretraining")
    (tmp_path / "secret").mkdir()
    for name in (".git", "onnx"):
        (folder / name).mkdir()
    (folder / target).write_text("PRIVATE KEY")
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(folder / target)
    (folder / ".also").symlink_to(folder / target)  # hidden, so it would not be uploaded
    told = refusal(capsys, str(folder), REPO)
    assert f"{link}: a symbolic link to {(folder / target).resolve()}" in told and "copy" in told
    assert hub.models == {}
    (folder / link).unlink()
    (folder / link).symlink_to(folder / "config.json")
    with packed(folder, REPO) as parcel:
        assert parcel.files.keys() >= {link, "config.json"}


def test_a_published_model_goes_up_from_the_cache_whose_files_are_links(tmp_path, hub, params, tokenizer):
    folder = save_pretrained(tmp_path / "my", CONFIG, params, tokenizer, head="pretraining")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.publish("google-bert/bert-base-uncased", files)
    cached = fetch("bert-base-uncased")
    assert (cached / "model.safetensors").is_symlink()
    with packed(cached, REPO) as parcel:
        assert parcel.files["model.safetensors"].read_bytes() == files["model.safetensors"]
    outside = tmp_path / "id_rsa"
    outside.write_text("PRIVATE KEY")
    (cached / "notes.txt").symlink_to(outside)
    with pytest.raises(UserError, match="symbolic link"), packed(cached, REPO):
        pass


def test_a_dry_run_lists_names_with_escapes(tmp_path, params, tokenizer, capsys):
    folder = save_pretrained(tmp_path / "my", CONFIG, params, tokenizer, head="pretraining")
    (folder / "a\x1b[2Jb\n.txt").write_text("x")
    assert main(["push", str(folder), REPO, "--dry-run"]) == 0
    assert "1 bytes  a\\x1b[2Jb\\n.txt\n" in capsys.readouterr().out


def test_a_card_of_ones_own_stays_to_the_byte_unless_a_licence_is_added(tmp_path, params):
    folder = save_pretrained(tmp_path / "m", CONFIG, params, None)
    own = b"---\r\nlanguage: [no]  # Norwegian\r\nmodel-index: to come\r\n---\r\n# Cats\r\n"
    (folder / "README.md").write_bytes(own)
    with packed(folder, REPO) as parcel:
        assert parcel.files["README.md"].read_bytes() == own
    for card, says in (
        (own, r"README\.md: its metadata cannot be read \(Invalid `model_index` in .* 'str'\); mend it"),
        (b"---\ntags: [\n---\n", r"README\.md: its metadata cannot be read \(while parsing"),
        (b"caf\xe9", r"m/README\.md: not UTF-8 \(unexpected end of data at byte 3\)"),
    ):
        (folder / "README.md").write_bytes(card)
        with pytest.raises(UserError, match=says), packed(folder, REPO, license="mit"):
            pass


def test_a_model_does_not_go_up_without_the_pooling_that_an_older_folder_has_beside_it(tmp_path, params, tokenizer):
    vectors = {"head": "encoder", "sentence_transformers": "cls"}
    new, old = save_pretrained(tmp_path / "new", CONFIG, params, tokenizer, **vectors), tmp_path / "old"
    old.mkdir()
    modules = json.loads((new / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([modules[0] | {"path": "0_Transformer"}, *modules[1:]]))
    (new / "modules.json").unlink()
    (new / "1_Pooling").rename(old / "1_Pooling")
    new.rename(old / "0_Transformer")
    for source in (old, old / "0_Transformer"):
        with pytest.raises(UserError, match=r"python -m bert_jax convert .*/0_Transformer DST"), packed(source, REPO):
            pass
    convert(old, tmp_path / "whole")
    with packed(tmp_path / "whole", REPO) as parcel:
        assert {"modules.json", "1_Pooling/config.json"} <= set(parcel.files)


def test_a_dry_run_shows_files_and_card_and_asks_the_hub_nothing(run, hub, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(run), REPO, "--dry-run"]) == 0
    out, _ = capsys.readouterr()
    assert "bytes  model.safetensors" in out
    assert "## Scores" in out
    assert hub.log == []


@pytest.mark.slow
def test_a_repository_with_files_is_replaced_only_on_request(run, hub, params, tokenizer, capsys):
    old = {"config.json": b"{}", "model.safetensors.index.json": b"{}", "model-00001-of-00001.safetensors": b"old"}
    old |= {"onnx/model.onnx": b"graph", "openvino/openvino_model.xml": b"graph"}
    hub.publish(REPO, old | {"photo.jpg": b"cat"})
    before = dict(files_of(hub))
    said = refusal(capsys, str(run), REPO)
    assert f"error: {REPO}: already has 6 files" in said and "--overwrite" in said
    assert files_of(hub) == before
    assert main(["push", str(run), REPO, "--overwrite"]) == 0
    assert "deleted there" in capsys.readouterr().err
    after = files_of(hub)
    assert after["photo.jpg"] == b"cat"
    assert not (old.keys() - {"config.json"}) & after.keys()
    assert sha256_of_parameters(load(REPO).params) == sha256_of_parameters(params)


def test_a_branch_of_its_own_leaves_main_alone(run, hub, capsys):
    model = {"config.json": b"{}", "pytorch_model.bin": b"old", "photo.jpg": b"cat", ".gitattributes": b""}
    hub.publish(REPO, model)
    assert main(["push", str(run), f"{REPO}@v2"]) == 0
    assert files_of(hub) == model
    branch = files_of(hub, revision="v2")
    assert "model.safetensors" in branch and branch["config.json"] != b"{}" and branch["photo.jpg"] == b"cat"
    assert "pytorch_model.bin" not in branch
    card = branch["README.md"].decode()
    assert f'from_pretrained("{REPO}", revision="v2")' in card and f'bert_jax.load("{REPO}@v2")' in card
    assert f"{REPO}@v2: already has" in refusal(capsys, str(run), f"{REPO}@v2")  # it is there now
    assert files_of(hub, revision="v2") == branch


def test_a_refused_push_leaves_no_branch_and_no_repository(run, hub, capsys):
    hub.publish(REPO, {".gitattributes": b""})
    refusal(capsys, str(run), f"{REPO}@v2", "--private")
    assert list(hub.models) == [REPO] and "v2" not in hub.models[REPO].revisions


def test_a_heading_of_ones_own_stays_in_a_card_of_ours(tmp_path, params):
    folder = save_pretrained(tmp_path / "my.bert", CONFIG, params, None, head="pretraining")
    with packed(folder, REPO) as parcel:
        assert "\n# cats\n" in parcel.card and "my.bert" not in parcel.card
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("# my.bert", "# The cats of my street\n\n# my.bertha"))
    with packed(folder, REPO) as parcel:
        assert "\n# The cats of my street\n\n# my.bertha\n" in parcel.card
        assert f'bert_jax.load("{REPO}")' in parcel.card


@pytest.mark.slow
def test_a_private_push_creates_a_private_repository_and_refuses_a_public_one(run, hub, capsys):
    assert main(["push", str(run), REPO, "--private"]) == 0
    assert hub.models[REPO].private
    hub.publish("somebody/open", {".gitattributes": b""})
    assert "error: somebody/open: exists and is public" in refusal(capsys, str(run), "somebody/open", "--private")
    assert list(files_of(hub, "somebody/open")) == [".gitattributes"]


@pytest.mark.parametrize(
    ("prepare", "words", "expected"),
    [
        (lambda hub, patch: patch.delenv("HF_TOKEN"), [REPO], "no token for http"),
        (lambda hub, patch: patch.setenv("HF_TOKEN", "hf_wrong"), [REPO], "refuses the token (HTTP 401)"),
        (lambda hub, patch: None, ["elsewhere/cats"], "needs write access to elsewhere"),
        (lambda hub, patch: None, ["cats"], "expected ORG/NAME"),
        (lambda hub, patch: None, ["./some/cats"], "expected ORG/NAME"),
        (lambda hub, patch: None, [REPO, "--license", "mine"], '"license" must be one of'),
        (lambda hub, patch: setattr(hub, "down", True), [REPO], "answered HTTP 503"),
        (lambda hub, patch: hub.stop(), [REPO], "cannot be reached"),
        (lambda hub, patch: patch.setattr(constants, "HF_HUB_OFFLINE", True), [REPO], "cannot be pushed offline"),
        (lambda hub, patch: hub.lost.add("vocab.txt"), [REPO], "vocab.txt on the hub differs"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_what_goes_wrong_is_one_line(
    run, hub, monkeypatch, capsys, tmp_path, prepare: Callable, words: list[str], expected: str
):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    prepare(hub, monkeypatch)
    assert expected in refusal(capsys, str(run), *words)


def test_a_model_that_does_not_load_is_not_sent(hub, tmp_path, params, capsys):
    folder = save_pretrained(tmp_path / "my", CONFIG, params, None, head="pretraining")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "model.safetensors" in refusal(capsys, str(folder), REPO)
    google = save_pretrained(tmp_path / "google", CONFIG, params, None, tf1=True)
    assert "python -m bert_jax convert" in refusal(capsys, str(google), REPO)
    assert hub.log == []


def test_a_push_that_another_overtakes_is_refused(run, hub, monkeypatch):
    hub.publish(REPO, {".gitattributes": b""})
    api = huggingface_hub.HfApi
    real = api.create_commit

    def overtaken(self, *args, **kwargs):
        hub.publish(REPO, {".gitattributes": b"", "theirs.txt": b"1"})
        return real(self, *args, **kwargs)

    monkeypatch.setattr(api, "create_commit", overtaken)
    with packed(run, REPO) as parcel, pytest.raises(UserError, match="changed during the push"):
        upload(parcel.files, REPO, message="mine")
    assert files_of(hub)["theirs.txt"] == b"1"


def test_a_hub_that_dies_after_the_commit_has_the_files_and_the_error_says_so(run, hub, monkeypatch):
    api = huggingface_hub.HfApi
    real = api.create_commit

    def last(self, *args, **kwargs):
        commit = real(self, *args, **kwargs)
        hub.down = True
        return commit

    monkeypatch.setattr(api, "create_commit", last)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    written = r"the files were written \(commit \w+\), but http\S+ did not list them, so they were not compared"
    with packed(run, REPO) as parcel, pytest.raises(UserError, match=written):
        upload(parcel.files, REPO, message="mine")
    hub.down = False
    assert "model.safetensors" in files_of(hub)


def test_a_password_in_the_address_of_the_hub_is_not_shown(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint.replace("://", "://user:s3cret@"))
    (tmp_path / "config.json").write_text("{}")
    files = {"config.json": tmp_path / "config.json"}
    basic = "Basic dXNlcjpzM2NyZXQ="  # which the client sends in place of the token
    hub.writers[basic] = "somebody"
    assert upload(files, REPO, message="mine").url == f"{hub.endpoint}/{REPO}"
    hub.writers.clear()
    with pytest.raises(UserError, match="refuses the token") as refused:
        upload(files, "somebody/else", message="mine")
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:s3cret@127.0.0.1:9")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9 cannot be reached") as unreached:
        upload(files, REPO, message="mine")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match=r"no token for http://127\.0\.0\.1:9") as tokenless:
        upload(files, REPO, message="mine")
    assert not any("s3cret" in str(error.value) for error in (refused, unreached, tokenless))


def test_a_file_that_cannot_be_read_is_no_fault_of_the_network(run, hub, monkeypatch):
    def unreadable(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", "my/vocab.txt")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", unreadable)
    with packed(run, REPO) as parcel, pytest.raises(UserError, match=r"my/vocab\.txt: Permission denied; no file on"):
        upload(parcel.files, REPO, message="mine")


def test_files_that_a_load_reads():
    read = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "vocab.txt", "tf_model.h5"]
    read += ["onnx/model.onnx", "onnx/model.onnx_data", "openvino/openvino_model.bin", "model.onnx"]
    assert all(is_read_by_a_load(name) for name in read)
    others = ["LICENSE", "photo.jpg", "onnx/notes.txt", "README.md", "openvino/README.md", "figures/model.onnx"]
    assert not any(is_read_by_a_load(name) for name in others)
