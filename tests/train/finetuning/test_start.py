"""What a fine-tuning run starts from: the source's exact parameters, except those that are initialised randomly."""

import dataclasses
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config import BertConfig
from bert_jax.data.tasks.encoded import encode_texts
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_json
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.source import open_source
from bert_jax.formats.write import save_pretrained
from bert_jax.training.layer_rates import layer_rates
from bert_jax.tree import flatten, unflatten
from tests.training.test_layer_rates import SIZES
from train import finetune
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.start import adopted_model, starting_parameters, warn_of_truncated, warn_of_unknown
from train.run import directory
from train.run.directory import RunDirectory
from train.run.launch import Launch

LABELS = ("bad", "good")
HEAD = "sequence-classification"


def drawn(config: BertConfig, head: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = parameters_of(config, head).items()
    return {path: rng.normal(size=row.shape).astype(np.float32) for path, row in rows}


def source(folder: Path, head: str = HEAD, **fields: Any) -> tuple[str, dict[str, np.ndarray]]:
    """A folder with a model that is not trained, and its parameters."""
    config = BertConfig(**SIZES).replace(labels=LABELS).replace(**fields)
    params = drawn(config, head, seed=1)
    return str(save_pretrained(folder, config, unflatten(params), None, head=head)), params


def begun(init: str, labels: tuple[str, ...], head: str = HEAD, **fields: Any) -> tuple[dict, dict]:
    """The parameters that a run begins with, and the random ones that were drawn for it, by path."""
    config, opened = FinetuneConfig(init=init, max_length=8, **fields), open_source(init)
    said = frozenset({"model.num_hidden_layers"}) if "model" in fields else frozenset()
    config = dataclasses.replace(config, model=adopted_model(config, said, labels, None, opened.config))
    fresh = jax.tree.map(jnp.asarray, unflatten(drawn(config.model, head, seed=2)))
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), fresh)
    (params,) = starting_parameters(config, opened, head, target, [fresh])
    return flatten(jax.device_get(params)), flatten(jax.device_get(fresh))


def parts_drawn_anew(found: dict, theirs: dict, fresh: dict) -> set[str]:
    """The parts whose parameters are all random; all other parameters must be the source's."""
    anew = set()
    for path, value in found.items():
        if path in theirs and np.array_equal(value, theirs[path]):
            continue
        np.testing.assert_array_equal(value, fresh[path], err_msg=path)
        first, *rest = path.split("/")
        anew.add(first if first != "bert" else "/".join([first, *rest[: 2 if rest[0] == "encoder" else 1]]))
    return anew


@pytest.mark.parametrize(
    ("layers", "anew"),
    [
        (0, set()),
        (1, {"bert/pooler", "bert/encoder/layer_2"}),
        (2, {"bert/pooler", "bert/encoder/layer_2", "bert/encoder/layer_1"}),
        (3, {"bert/pooler", *(f"bert/encoder/layer_{layer}" for layer in range(3))}),
    ],
)
def test_so_many_layers_at_the_top_are_drawn_anew_and_the_others_are_the_sources(tmp_path, layers, anew):
    init, theirs = source(tmp_path / "model")
    found, fresh = begun(init, LABELS, reinit_layers=layers)
    assert parts_drawn_anew(found, theirs, fresh) == anew
    assert found.keys() == fresh.keys()


@pytest.mark.parametrize(
    ("labels", "anew", "says"),
    [
        (LABELS, set(), "a head for this task: training continues with it"),
        (("good", "bad"), {"classifier"}, "no classifier for this task: initialised randomly"),
        (("bad", "fair", "good"), {"classifier"}, "no classifier for this task: initialised randomly"),
    ],
)
def test_a_head_is_gone_on_with_where_the_labels_are_the_same(tmp_path, caplog, labels, anew, says):
    init, theirs = source(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        found, fresh = begun(init, labels)
    assert parts_drawn_anew(found, theirs, fresh) == anew
    assert says in caplog.text


def test_a_pretrained_model_gets_a_head_and_keeps_its_pooler(tmp_path):
    init, theirs = source(tmp_path / "model", "pretraining")
    found, fresh = begun(init, LABELS)
    assert parts_drawn_anew(found, theirs, fresh) == {"classifier"}
    assert set(found) - set(theirs) == {"classifier/kernel", "classifier/bias"}


def test_a_pooler_that_the_source_lacks_is_initialised_randomly(tmp_path, caplog):
    init, theirs = source(tmp_path / "model", "mlm")
    with caplog.at_level(logging.WARNING):
        found, fresh = begun(init, LABELS)
    assert parts_drawn_anew(found, theirs, fresh) == {"classifier", "bert/pooler"}
    assert "classifier, bert/pooler" in caplog.text


@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_a_family_without_a_pooler_has_a_dense_layer_in_the_head(tmp_path, model_type):
    init, theirs = source(tmp_path / "model", "mlm", model_type=model_type)
    found, fresh = begun(init, LABELS, reinit_layers=1)
    assert parts_drawn_anew(found, theirs, fresh) == {"classifier", "pre_classifier", "bert/encoder/layer_2"}


@pytest.mark.parametrize(("head", "labels"), [("multiple-choice", 1), ("question-answering", 2)])
def test_heads_without_classes_are_kept_whatever_labels_the_source_names(tmp_path, head, labels):
    """A published model for such a task has transformers' default of two labels."""
    names = tuple(f"LABEL_{number}" for number in range(labels))
    init, theirs = source(tmp_path / "model", head, labels=("LABEL_0", "LABEL_1"))
    found, fresh = begun(init, names, head)
    assert parts_drawn_anew(found, theirs, fresh) == set()


def test_a_missing_part_of_the_encoder_is_one_line(tmp_path):
    init, _ = source(tmp_path / "model")
    with pytest.raises(UserError) as error:
        begun(init, LABELS, model=BertConfig(num_hidden_layers=4))
    assert "layer_3" in str(error.value) and "\n" not in str(error.value)


def test_a_value_that_is_not_finite_is_refused_unless_the_run_draws_that_part_anew(tmp_path):
    init, _ = source(tmp_path / "model")
    tensors = load_file(f"{init}/model.safetensors")
    tensors["bert.encoder.layer.2.output.dense.bias"][0] = np.nan
    tensors["classifier.bias"][0] = np.nan
    save_file(tensors, f"{init}/model.safetensors")
    with pytest.raises(UserError, match=r"^init: .*bert/encoder/layer_2/feed_forward/output/bias that are not finite"):
        begun(init, LABELS)
    found, _ = begun(init, ("other", "names", "of", "labels"), reinit_layers=1)
    assert all(np.isfinite(leaf).all() for leaf in found.values())


@pytest.mark.parametrize(
    ("fields", "layers", "says"),
    [
        ({}, 4, "reinit_layers: found 4; this bert has 3 layers with 3 sets of parameters"),
        ({"model_type": "albert", "embedding_size": 4}, 1, "this albert has 3 layers with 1 sets of parameters"),
    ],
)
def test_missing_or_shared_layers_cannot_be_initialised_randomly(tmp_path, fields, layers, says):
    init, _ = source(tmp_path / "model", **fields)
    with pytest.raises(UserError, match=says):
        begun(init, LABELS, reinit_layers=layers)


@pytest.mark.parametrize(("freeze", "layers"), [("all", 1), ("3", 1), ("2", 2)])
def test_what_is_drawn_at_random_is_not_frozen(tmp_path, freeze, layers):
    init, _ = source(tmp_path / "model")
    with pytest.raises(
        UserError, match=rf"freeze={freeze}, reinit_layers={layers}: some of the 3 layers .* leave one of the two out"
    ):
        begun(init, LABELS, reinit_layers=layers, freeze=freeze)
    begun(init, LABELS, reinit_layers=1, freeze="2")


def test_a_pooler_that_the_source_lacks_is_not_frozen(tmp_path):
    init, theirs = source(tmp_path / "model", "mlm")
    with pytest.raises(UserError, match=r"^freeze: found 'all', and .* has no pooler, .*; say freeze=3, which trains"):
        begun(init, LABELS, freeze="all")
    found, fresh = begun(init, LABELS, freeze="3")
    assert parts_drawn_anew(found, theirs, fresh) == {"classifier", "bert/pooler"}
    assert layer_rates(BertConfig(**SIZES), freeze="3")("bert/pooler/kernel") == 1


def test_many_runs_have_their_own_heads_and_report_it_once(tmp_path, caplog):
    init, theirs = source(tmp_path / "model", head="encoder")
    config, opened = FinetuneConfig(init=init, max_length=8), open_source(init)
    config = dataclasses.replace(config, model=adopted_model(config, frozenset(), LABELS, None, opened.config))
    fresh = [jax.tree.map(jnp.asarray, unflatten(drawn(config.model, HEAD, seed=seed))) for seed in (2, 3)]
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), fresh[0])
    begun = [flatten(params) for params in starting_parameters(config, opened, HEAD, target, fresh)]
    for params, own in zip(begun, map(flatten, fresh), strict=True):
        np.testing.assert_array_equal(params["classifier/kernel"], own["classifier/kernel"])
        np.testing.assert_array_equal(params["bert/pooler/kernel"], theirs["pooler/kernel"])
    (said,) = [record.message for record in caplog.records]
    assert said.endswith("has no classifier for this task: initialised randomly")


def test_a_vocabulary_that_does_not_fit_is_told(caplog):
    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world")
    config, tokenizer = FinetuneConfig(init="a-model"), Tokenizer.from_vocabulary(vocabulary, cased=False)
    few, many = ["hello " * 19 + "세계"] * 9, ["hello " * 9 + "세계"] * 9
    for texts, told in (["hello world"], False), (few, False), (many, True), (["hello 세계"], False):
        encoded = encode_texts(tokenizer, texts, None, max_length=32, targets={})
        task: Any = SimpleNamespace(head=HEAD, train=encoded)
        caplog.clear()
        warn_of_unknown(config, task, tokenizer)
        assert ("train: 8% of the 108 tokens are [UNK]: the vocabulary of a-model does not fit" in caplog.text) is told
        warn_of_unknown(config, SimpleNamespace(head="token-classification", train=encoded), tokenizer)
        assert len(caplog.records) == told  # KLUE-NER tags blanks, each of which is [UNK]


def test_texts_that_are_truncated_are_told_for_each_file(caplog):
    tokenizer = Tokenizer.from_vocabulary(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"), cased=False)
    config = FinetuneConfig(init="a-model", max_length=8)
    short, long = "hello " * 6, "hello " * 7
    few, many = (encode_texts(tokenizer, texts, None, max_length=8, targets={}) for texts in ([short] * 9, [long] * 9))
    dev: Any = SimpleNamespace(name="dev", encoded=many)
    for longest, advice in ((16, "; this model takes max_length=16"), (8, "")):
        caplog.clear()
        task: Any = SimpleNamespace(train=few, evaluations=(dev,), tests=())
        warn_of_truncated(config, task, longest)
        assert caplog.messages == [f"dev: 9 of 9 texts are longer than max_length=8 and are truncated{advice}"]


def test_the_longer_text_of_a_pair_counts_once_where_it_is_truncated():
    tokenizer = Tokenizer.from_vocabulary(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"), cased=False)
    first, second = ["hello " * 2, "hello " * 3, "hello " * 9], ["hello " * 3, "hello " * 3, "hello " * 9]
    assert encode_texts(tokenizer, first, second, max_length=8, targets={}).truncated == 2


def test_a_run_on_a_bucket_is_resumed_with_its_own_tokenizer(tmp_path, monkeypatch):
    config = {"model": dataclasses.asdict(BertConfig(**SIZES))}
    write_json(tmp_path / "config.json", config)
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], cased=False)
    tokenizer.save(tmp_path / "tokenizer")

    def copy(source, target, *, skip):
        assert str(source) == "gs://bucket/run"
        shutil.copytree(tmp_path, target, dirs_exist_ok=True)

    class TaskIsOpened(Exception):
        pass

    def open_task(config, tokenizer):
        raise TaskIsOpened(tokenizer.vocab_size)

    monkeypatch.setattr(directory, "copy_folder", copy)
    monkeypatch.setattr(RunDirectory, "config_to_resume", lambda run: config)
    monkeypatch.setattr("train.finetuning.tasks.table.open_task", open_task)
    launch = Launch(FinetuneConfig(init="a/b"), "gs://bucket/run", (), False, False, frozenset())
    with pytest.raises(TaskIsOpened, match="6"):
        finetune.prepared(RunDirectory(launch.run), launch)
