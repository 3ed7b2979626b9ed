"""A run whose directory and data are on a bucket: the real clients against an emulator of Google Cloud Storage."""

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import unicodedata
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from bert_jax import files as bucket
from bert_jax.errors import UserError
from tests.root import ROOT
from train.prepare import main as prepare

RECIPE = """
from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2),
        phases=(Phase(32, 8, 600),),
        eval_every=600,
        eval_batches=2,
        save_every=200,
    )
"""


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> Iterator[dict[str, str]]:
    """An emulator with the bucket "a-bucket"; returns the environment that points the clients to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = (tmp_path_factory.mktemp("emulator") / "log").open("w")
    server = subprocess.Popen([*command, "--in-memory", "--default-bucket", "a-bucket"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(lambda: _get(f"{url}/storage/v1/b/a-bucket"))
        yield os.environ | {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "FSSPEC_GCS_TOKEN": "anon",
            "FSSPEC_GS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "NO_GCE_CHECK": "true",
            "HOME": str(tmp_path_factory.mktemp("home")),
        }
    finally:
        server.kill()
        server.wait()
        log.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Forty prepared documents of made-up sentences."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    words = ["a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "mat", "tree", "and", "then", "it", "was"]
    texts = ["\n".join(" ".join(generator.choice(words, 7)) + "." for _ in range(6)) for _ in range(40)]
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    options = "--vocab-size 60 --max-seq-length 32 --workers 1 --held-out 0.2"
    assert prepare([str(folder / "corpus.txt"), "--output", str(folder / "data"), *options.split()]) == 0
    return folder / "data"


@pytest.mark.slow
def test_a_stopped_run_on_a_bucket_resumes_to_the_bit_and_exports_as_a_local_run_does(storage, data, tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    train = [sys.executable, "-m", "train.pretrain", str(recipe)]
    copy = "from bert_jax.files import copy_folder as c; import sys; c(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", copy, str(data), "gs://a-bucket/data"], env=storage, cwd=ROOT, check=True)
    remote = [*train, "run=gs://a-bucket/run", "data=gs://a-bucket/data"]
    with (tmp_path / "first").open("w") as log:
        first = subprocess.Popen(remote, env=storage, cwd=ROOT, stderr=log)
    manifest = f"{storage['STORAGE_EMULATOR_HOST']}/storage/v1/b/a-bucket/o/run%2Fcheckpoints%2F200%2Fmanifest.json"
    _wait_for(lambda: _get(manifest) or first.poll() is not None)
    first.send_signal(signal.SIGTERM)
    assert first.wait(120) == 75, (tmp_path / "first").read_text()
    second = subprocess.run(remote, env=storage, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "resuming at step" in second.stderr
    subprocess.run([*train, f"run={tmp_path / 'run'}", f"data={data}"], cwd=ROOT, check=True)

    subprocess.run(
        [sys.executable, "-c", copy, "gs://a-bucket/run", str(tmp_path / "copy")], env=storage, cwd=ROOT, check=True
    )
    wanted = {path.relative_to(tmp_path / "run") for path in (tmp_path / "run" / "export").iterdir()}
    assert {path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy" / "export").iterdir()} == wanted
    weights = [(tmp_path / run / "export" / "model.safetensors").read_bytes() for run in ("run", "copy")]
    assert weights[0] == weights[1]
    there = {path.name for path in (tmp_path / "copy").iterdir()}
    assert there >= {"config.json", "environment.json", "metrics.jsonl", "run.log", "curves.png", "tensorboard"}
    assert list((tmp_path / "copy" / "tensorboard").iterdir())

    runs = ["gs://a-bucket/run", str(tmp_path / "run"), "--output", str(tmp_path / "compare.png"), "--json"]
    command = [sys.executable, "-m", "train.compare", *runs]
    compared = subprocess.run(command, env=storage, cwd=ROOT, capture_output=True, text=True)
    assert compared.returncode == 0, compared.stderr
    found = json.loads(compared.stdout)
    assert found["runs"][0]["loss"] == found["runs"][1]["loss"] and found["notes"] == []
    assert not (ROOT / "gs:").exists(), "something took the bucket for a local folder"


WAITS = """
import fsspec

from bert_jax.training.checkpoint.hashing import files_in, receive
from bert_jax.training.checkpoint.step_directory import StepDirectory
from train.supervise import Supervisor

run = "gs://a-bucket/waits"
another = fsspec.filesystem("gcs", skip_instance_cache=True)  # whose writes no cache of this process learns of
supervisor = Supervisor(["true", f"run={run}"], restarts=1, wait=0)
assert supervisor._reached() == -1
steps = StepDirectory(f"{run}/checkpoints")
step = steps.step_path(300)
(step / "_METADATA").write_bytes(b"{}")
assert [path.name for path in files_in(step)] == ["_METADATA"] and steps.steps() == []
another.pipe_file(f"{steps.path}/300/sums.1.json", b'{"files": {"a": ["sum", 3]}, "error": null}')
assert receive(step, 2, 10) == {"a": ("sum", 3)}
for number in (300, 400):
    another.pipe_file(f"{steps.path}/{number}/manifest.json", b"{}")
    assert supervisor._reached() == steps.steps()[-1] == number
"""


@pytest.mark.slow
def test_what_another_process_writes_to_a_bucket_is_seen_in_folders_that_were_listed_before(storage):
    found = subprocess.run([sys.executable, "-c", WAITS], env=storage, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


COMPILES = """
import jax

found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8)))
print(found.count("cache_misses"), found.count("cache_hits"))
"""


@pytest.mark.slow
def test_compiled_programs_in_a_bucket_are_found_by_the_next_start(storage):
    everything = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    environment = storage | everything | {"JAX_COMPILATION_CACHE_DIR": "gs://a-bucket/compiled"}
    command = [sys.executable, "-c", COMPILES]
    first, second = (
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert first[0] == second[1] != "0" and first[1] == second[0] == "0"


def test_a_bucket_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(bucket, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"gs://a-bucket/run: .*pip install 'bert-jax\[gcs\]'"):
        bucket.check_reachable("gs://a-bucket/run")
    bucket.check_reachable("runs/local")


def _get(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def _wait_for(ready, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * 65 + "]" * 65, "nested too deeply"),
        ('{"a": ' * 500 + "1" + "}" * 500, "nested too deeply"),
        ("[" + "1" * 5000 + "]", "not JSON"),
        ('{"a": \xff}'.encode("latin-1"), "not JSON"),
    ],
)
def test_json_beyond_its_bounds_is_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        bucket.parse_json(text, "a.json")
    assert str(caught.value).startswith("a.json: not JSON (") and len(str(caught.value)) < 300


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_no_error_and_a_failing_disk_is(tmp_path, monkeypatch, number):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if number == errno.EINVAL else pytest.raises(OSError):
        bucket.write_json(tmp_path / "a.json", [1])
    assert bucket.read_json(tmp_path / "a.json") == [1]


def test_a_path_that_does_not_exist_is_compared_with_what_is_there(tmp_path):
    (tmp_path / unicodedata.normalize("NFD", "맥리뷰.csv")).touch()  # as macOS writes names
    (tmp_path / "리뷰.csv").touch()
    (tmp_path / "reviews.csv").touch()
    assert bucket.near_path(tmp_path / "revews.csv") == f" (did you mean {tmp_path / 'reviews.csv'}?)"
    assert bucket.near_path(tmp_path / "other.csv") == ""
    same = bucket.near_path(tmp_path / "맥리뷰.csv")
    assert "looks like it, in another of Unicode's forms" in same and "did you mean" not in same


def test_json_up_to_its_bounds_is_read(monkeypatch):
    assert bucket.parse_json("[" * 64 + "]" * 64, "a.json")
    monkeypatch.setattr(bucket, "MOST_JSON_PARTS", 3)
    assert bucket.parse_json("[[], {}]", "a.json") == [[], {}]
    with pytest.raises(UserError, match="4 lists and objects; at most 3 are read"):
        bucket.parse_json("[[], {}, []]", "a.json")
    monkeypatch.setattr(bucket, "LARGEST_JSON", 5)
    with pytest.raises(UserError, match="longer than"):
        bucket.parse_json("[1, 2]", "a.json")
