"""Loading a run directory and its export: the same model from both, and no parameter is made up silently."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load, load_arrays, load_config, load_tokenizer
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.write import save_pretrained
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.tree import flatten, sha256_of_parameters, unflatten
from tests import tiny
from tests.run_directory import write_run

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "a", "##s", ",", "."]
CONFIG = tiny.CONFIG.replace(vocab_size=16)


@pytest.fixture(scope="module")
def params() -> dict:
    return tiny.random_params(CONFIG, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory, params) -> Path:
    """A run directory as training leaves it, trained in bfloat16, with two checkpoints."""
    model = CONFIG.to_json() | {"dtype": "bfloat16", "remat": "full"}
    del model["model_type"]
    directory, tokenizer = tmp_path_factory.mktemp("runs") / "tiny", Tokenizer.from_vocabulary(PIECES, cased=False)
    return write_run(directory, {"model": model, "seed": 0}, params, tokenizer, steps=(5, 7))


@pytest.fixture(scope="module")
def export(run, params, tmp_path_factory) -> Path:
    return save_pretrained(tmp_path_factory.mktemp("out") / "export", CONFIG, params, load_tokenizer(run))


def assert_same(a, b):
    assert sha256_of_parameters(a) == sha256_of_parameters(b)


def test_a_run_directory_gives_its_newest_checkpoint(run, params):
    config, loaded, tokenizer, report = bert_jax.load(run)
    assert config == CONFIG  # float32 products, whatever it was trained in
    assert_same(loaded, params)
    assert isinstance(loaded["nsp_head"]["bias"], jax.Array)
    assert tokenizer is not None
    assert tokenizer.vocabulary == PIECES
    assert tokenizer.max_length == 24
    assert (report.step, report.verified, report.head) == (7, True, "pretraining")


@pytest.mark.slow
def test_the_public_name_can_be_called_before_and_after_its_module_is_imported(export):
    code = f"""
import bert_jax
first = bert_jax.load({str(export)!r})
from bert_jax.formats.load import load
again = bert_jax.load({str(export)!r})
assert first.config == again.config == load({str(export)!r}).config
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_earlier_step_and_another_dtype_on_request(run, params):
    loaded = load(run, step=5, dtype="bfloat16")
    assert loaded.config.dtype == "bfloat16"
    assert loaded.report.step == 5
    assert_same(loaded.params, jax.tree.map(lambda x: x + 1, params))


def test_a_run_and_its_export_are_the_same_model(run, export):
    ours, theirs = load(run), load(export)
    assert ours.config == theirs.config
    assert_same(ours.params, theirs.params)
    assert theirs.report.verified is True
    assert theirs.report.step is None
    a, b = ours.tokenizer(["The cat sat"]), theirs.tokenizer(["The cat sat"])
    assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}
    assert load_config(run) == load_config(export) == CONFIG


@pytest.mark.slow
@pytest.mark.parametrize("head", ["pretraining", "mlm", "nsp", "encoder", "encoder-no-pooler"])
def test_each_head_from_both_has_the_model_s_own_tree(run, export, head):
    for source in (run, export):
        loaded = load(source, head=head)
        wanted = jax.eval_shape(loaded.model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
        assert jax.tree.map(jnp.shape, loaded.params) == jax.tree.map(lambda leaf: leaf.shape, wanted)
        assert loaded.report.head == head
        assert not loaded.report.fresh
    assert_same(load(run, head=head).params, load(export, head=head).params)


def test_what_a_head_does_not_use_is_listed(run):
    report = load(run, head="mlm").report
    assert "nsp_head/kernel" in report.unexpected
    assert "bert/pooler/bias" in report.unexpected


@pytest.mark.slow
def test_a_missing_head_is_an_error_or_initialised_and_reported(tmp_path, params, caplog):
    folder = save_pretrained(tmp_path / "mlm", CONFIG, params, None, head="mlm")
    with pytest.raises(UserError, match="missing: bert/pooler/kernel"):
        load(folder, head="pretraining")
    with pytest.raises(UserError, match="nsp_head/kernel"):
        load(folder, head="pretraining", allow_missing=["bert/pooler"])
    with caplog.at_level(logging.WARNING, logger="bert_jax"):
        loaded = load(folder, head="pretraining", allow_missing=["bert/pooler", "nsp_head"])
    assert loaded.tokenizer is None
    assert set(loaded.report.fresh) == {"bert/pooler/kernel", "bert/pooler/bias", "nsp_head/kernel", "nsp_head/bias"}
    assert "4 parameters are initialised randomly" in caplog.text
    drawn = jax.jit(loaded.model.init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    np.testing.assert_array_equal(loaded.params["nsp_head"]["kernel"], drawn["nsp_head"]["kernel"])
    np.testing.assert_array_equal(loaded.params["mlm_head"]["bias"], params["mlm_head"]["bias"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        "sequence-classification",
        "question-answering",
        "token-classification",
    ],
)
def test_a_task_starts_from_any_checkpoint_with_a_fresh_head(run, export, params, head, caplog):
    part = "qa_head" if head == "question-answering" else "classifier"
    for source in (run, export):
        with pytest.raises(UserError, match=f"missing: {part}/kernel.*allow_missing.*'{part}'"):
            load(source, head=head, num_labels=3)
        with caplog.at_level(logging.WARNING, logger="bert_jax"):
            loaded = load(source, head=head, num_labels=3, allow_missing=(part,), key=jax.random.key(7))
        assert loaded.config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        assert loaded.report.fresh == (f"{part}/kernel", f"{part}/bias")
        assert f"2 parameters are initialised randomly: {part}" in caplog.text
        kernel = np.asarray(loaded.params[part]["kernel"])
        assert kernel.shape == (CONFIG.hidden_size, 2 if part == "qa_head" else 3)
        assert 0 < np.abs(kernel).max() <= 2 * CONFIG.initializer_range
        np.testing.assert_array_equal(
            loaded.params["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"],
            params["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"],
        )


def test_a_classifier_of_another_number_of_classes_is_an_error_or_initialised(tmp_path, params):
    head = "sequence-classification"
    config = CONFIG.replace(labels=("no", "yes"))
    tree = {
        "bert": params["bert"],
        "classifier": {"kernel": np.ones((16, 2), np.float32), "bias": np.ones(2, np.float32)},
    }
    folder = save_pretrained(tmp_path / "m", config, tree, None, head=head)
    assert load(folder).config.labels == ("no", "yes")
    assert load(folder, num_labels=2).config.labels == ("no", "yes")
    assert load(folder, labels=["a", "b"]).config.labels == ("a", "b")
    with pytest.raises(UserError, match=r"classifier/kernel: .*\(2, 16\).*\(3, 16\)"):
        load(folder, num_labels=3)
    loaded = load(folder, num_labels=3, allow_missing="classifier")
    assert loaded.params["classifier"]["kernel"].shape == (16, 3)
    assert loaded.report.fresh == ("classifier/kernel", "classifier/bias")
    with pytest.raises(UserError, match="num_labels=3, but labels names 2"):
        load(folder, num_labels=3, labels=["a", "b"])
    with pytest.raises(UserError, match="expected a list of names"):
        load(folder, labels="ab")


def test_an_encoder_without_a_pooler_is_known_as_one(tmp_path, params):
    folder = save_pretrained(tmp_path / "m", CONFIG, params, None, head="encoder-no-pooler")
    assert load(folder).report.head == "encoder-no-pooler"
    with pytest.raises(UserError, match="missing: pooler/kernel"):
        load(folder, head="encoder")
    assert load(folder, head="encoder", allow_missing="pooler").report.fresh == ("pooler/kernel", "pooler/bias")


def test_parameters_may_be_given_away_to_a_program(export):
    """What was loaded lies in memory that the device took over; donating it must neither warn nor change a copy."""
    kernel = load(export).params["bert"]["encoder"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]
    before = np.array(kernel)
    after = jax.jit(lambda x: x + 1, donate_argnums=0)(kernel)
    np.testing.assert_array_equal(after, before + 1)
    assert kernel.is_deleted()


def test_a_token_past_the_table_is_one_clear_line(export, tmp_path):
    import shutil

    copy = shutil.copytree(export, tmp_path / "copy")
    fields = json.loads((copy / "tokenizer.json").read_text())
    fields["added_tokens"].append(fields["added_tokens"][0] | {"id": 16, "content": "[NEW]"})
    fields["model"]["vocab"]["[NEW]"] = 16
    (copy / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"has 17 tokens, .* has embeddings for vocab_size=16"):
        load(copy)


@pytest.mark.parametrize(("kind", "head"), [(None, "multiple-choice"), ("regression", "sequence-classification")])
def test_a_checkpoint_of_multiple_choice_is_not_taken_for_a_classifier(tmp_path, kind, head):
    """Their parameters have the same names and shapes."""
    config = CONFIG.replace(labels=("LABEL_0",), problem_type=kind)
    recorded = {"task": "swag" if kind is None else "stsb", "model": config.to_json()}
    run = write_run(
        tmp_path / "run", recorded, tiny.random_params(config, 3, head),
        Tokenizer.from_vocabulary(PIECES, cased=False), steps=(1, 2),
    )  # fmt: skip
    assert load_arrays(run, step=1).report.head == head
    assert load_arrays(convert(run, tmp_path / "out", step=1).directory).report.head == head


def test_a_run_without_sentence_pairs_is_a_masked_language_model(tmp_path, params):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"model": CONFIG.to_json() | {"dtype": "float32"}}))
    wanted = flatten(params)
    tree = unflatten({path: jnp.asarray(wanted[path]) for path in parameters_of(CONFIG, "mlm")})
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(1, {"params": tree}, {})
    assert load(run).report.head == "mlm"


def test_a_damaged_checkpoint_is_passed_over_loudly(run, tmp_path, params, caplog):
    import shutil

    copy = shutil.copytree(run, tmp_path / "copy")
    largest = max((copy / "checkpoints" / "7").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        loaded = load(copy)
    assert loaded.report.step == 5
    assert largest.name in caplog.text
    assert_same(loaded.params, jax.tree.map(lambda x: x + 1, params))


def test_a_model_with_one_token_type_is_given_none(tmp_path):
    """A second type would be past its table, where JAX reads NaN and transformers fails."""
    config, tokenizer = CONFIG.replace(type_vocab_size=1), Tokenizer.from_vocabulary(PIECES, cased=False)
    params = tiny.random_params(config, 3, "mlm")
    assert tokenizer.takes_token_types
    run = write_run(tmp_path / "run", {"model": config.to_json()}, params, tokenizer, steps=(1, 2))
    google = save_pretrained(tmp_path / "google", config, params, tokenizer, tf1=True)
    for source in (run, google, save_pretrained(tmp_path / "hf", config, params, tokenizer)):
        assert "token_type_ids" not in load_tokenizer(source)("the cat", "sat")


@pytest.mark.parametrize("model", ["distilbert", "one type"])
def test_the_files_of_a_tokenizer_name_the_inputs_of_the_model(tmp_path, model):
    config = CONFIG.replace(model_type="distilbert") if model == "distilbert" else CONFIG.replace(type_vocab_size=1)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    out = save_pretrained(tmp_path / "m", config, tiny.random_params(config, 3, "mlm"), tokenizer)
    saved = json.loads((out / "tokenizer_config.json").read_text())
    assert saved["model_input_names"] == ["input_ids", "attention_mask"]
    again = Tokenizer.load(out / "tokenizer.json")  # without config.json, too
    assert not again.takes_token_types and again.fingerprint == tokenizer.fingerprint


def test_mistakes_are_one_clear_line(run, export, tmp_path, params):
    with pytest.raises(FileNotFoundError, match="nowhere: no such local folder"):
        load("nowhere")
    with pytest.raises(UserError, match="cannot load from a bucket"):
        load("gs://bucket/run")
    with pytest.raises(UserError, match="has no steps"):
        load(export, step=3)
    with pytest.raises(UserError, match="no step 3; there are 5; 7"):
        load(run, step=3)
    with pytest.raises(UserError, match="head='qa'"):
        load(run, head="qa")
    empty = tmp_path / "new"
    empty.mkdir()
    (empty / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(FileNotFoundError, match="new/checkpoints: no checkpoint found"):
        load(empty)
    wrong = json.loads((run / "config.json").read_text())
    wrong["model"]["hidden_size"] = "8"
    (empty / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(UserError, match=r"config\.json, model: hidden_size='8'"):
        load_config(empty)
    large = Tokenizer.from_vocabulary([*PIECES, "x", "y", "z"], cased=False)
    with pytest.raises(UserError, match=r"17 tokens.*16 rows"):
        save_pretrained(tmp_path / "large", CONFIG, params, large)


def test_the_host_copy_touches_no_device(export):
    arrays = flatten(load_arrays(export).params)
    assert all(type(array) is np.ndarray and array.dtype == np.float32 for array in arrays.values())


def test_what_is_loaded_shows_itself_in_one_line(run: Path, export: Path):
    count = sum(leaf.size for leaf in flatten(load(export).params).values())
    assert repr(load(export)) == f"Loaded({export}: bert, pretraining, {count:,} parameters, tokenizer of 14 tokens)"
    assert "\n" not in repr(load(run)) and len(repr(load(run))) < 250
