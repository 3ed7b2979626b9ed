"""Names of Google's checkpoints: both ways between them and Hugging Face's, the optimizer's apart, others refused."""

import random
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.stored import Native
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint, write_bundle
from bert_jax.formats.tensorflow.entries import varint
from bert_jax.formats.tensorflow.google import google_hidden_act, optimizer_state
from bert_jax.formats.tensorflow.names import (
    hf_names,
    is_object_graph,
    is_of_optimizer,
    model_type_of,
    open_google,
    open_object_graph,
    tf1_names,
    to_tf1,
)
from bert_jax.formats.tensorflow.table import masked_crc32c
from tests.formats.tensorflow.tf1_protos import BundleEntryProto, proto, write_by_hand

# Google's names of ALBERT, from the scopes of its modeling.py and run_pretraining.py, written out.
ALBERT_NAMES = {
    "bert/embeddings/word_embeddings": ("albert.embeddings.word_embeddings.weight", False),
    "bert/embeddings/position_embeddings": ("albert.embeddings.position_embeddings.weight", False),
    "bert/embeddings/token_type_embeddings": ("albert.embeddings.token_type_embeddings.weight", False),
    "bert/embeddings/LayerNorm/gamma": ("albert.embeddings.LayerNorm.weight", False),
    "bert/embeddings/LayerNorm/beta": ("albert.embeddings.LayerNorm.bias", False),
    "bert/encoder/embedding_hidden_mapping_in/kernel": ("albert.encoder.embedding_hidden_mapping_in.weight", True),
    "bert/encoder/embedding_hidden_mapping_in/bias": ("albert.encoder.embedding_hidden_mapping_in.bias", False),
    **{
        f"bert/encoder/transformer/group_{g}/inner_group_{i}/{google}": (
            f"albert.encoder.albert_layer_groups.{g}.albert_layers.{i}.{hf}",
            google.endswith("kernel"),
        )
        for g, i in ((0, 0), (1, 0), (0, 1), (10, 0))
        for google, hf in {
            "attention_1/self/query/kernel": "attention.query.weight",
            "attention_1/self/query/bias": "attention.query.bias",
            "attention_1/self/key/kernel": "attention.key.weight",
            "attention_1/self/key/bias": "attention.key.bias",
            "attention_1/self/value/kernel": "attention.value.weight",
            "attention_1/self/value/bias": "attention.value.bias",
            "attention_1/output/dense/kernel": "attention.dense.weight",
            "attention_1/output/dense/bias": "attention.dense.bias",
            "LayerNorm/gamma": "attention.LayerNorm.weight",
            "LayerNorm/beta": "attention.LayerNorm.bias",
            "ffn_1/intermediate/dense/kernel": "ffn.weight",
            "ffn_1/intermediate/dense/bias": "ffn.bias",
            "ffn_1/intermediate/output/dense/kernel": "ffn_output.weight",
            "ffn_1/intermediate/output/dense/bias": "ffn_output.bias",
            "LayerNorm_1/gamma": "full_layer_layer_norm.weight",
            "LayerNorm_1/beta": "full_layer_layer_norm.bias",
        }.items()
    },
    "bert/pooler/dense/kernel": ("albert.pooler.weight", True),
    "bert/pooler/dense/bias": ("albert.pooler.bias", False),
    "cls/predictions/transform/dense/kernel": ("predictions.dense.weight", True),
    "cls/predictions/transform/dense/bias": ("predictions.dense.bias", False),
    "cls/predictions/transform/LayerNorm/gamma": ("predictions.LayerNorm.weight", False),
    "cls/predictions/transform/LayerNorm/beta": ("predictions.LayerNorm.bias", False),
    "cls/predictions/output_bias": ("predictions.bias", False),
    "cls/seq_relationship/output_weights": ("sop_classifier.classifier.weight", False),
    "cls/seq_relationship/output_bias": ("sop_classifier.classifier.bias", False),
    "output_weights": ("classifier.weight", False),
    "output_bias": ("classifier.bias", False),
    "cls/squad/output_weights": ("qa_outputs.weight", False),
    "cls/squad/output_bias": ("qa_outputs.bias", False),
}


@pytest.fixture
def tiny(data_dir: Path) -> Path:
    return data_dir / "checkpoints" / "keras-bert-tiny-adam"


def test_every_variable_of_a_real_checkpoint_has_a_name_that_leads_back(tiny):
    with Tf1Checkpoint(tiny) as stored:
        theirs = hf_names(stored, "bert")
        assert len(theirs) == 46
        assert {name for name in stored if not is_of_optimizer(name)} == {native.name for native in theirs.values()}
        back = tf1_names(theirs, "bert")
        assert back == {name: Native(key, swapped) for key, (name, swapped) in theirs.items()}
    assert theirs["cls.predictions.bias"] == Native("cls/predictions/output_bias", False)
    assert theirs["cls.seq_relationship.weight"] == Native("cls/seq_relationship/output_weights", False)
    query = "bert/encoder/layer_1/attention/self/query/kernel"
    assert theirs["bert.encoder.layer.1.attention.self.query.weight"] == Native(query, True)


def test_renamed_tensors_are_googles_with_kernels_turned(tiny):
    with Tf1Checkpoint(tiny) as google, open_google(tiny) as theirs:
        kernel = google["bert/encoder/layer_0/intermediate/dense/kernel"]
        assert kernel.shape == (4, 16)
        assert np.array_equal(theirs["bert.encoder.layer.0.intermediate.dense.weight"], kernel.T)
        table = "bert/embeddings/word_embeddings"
        assert np.array_equal(theirs["bert.embeddings.word_embeddings.weight"], google[table])
        assert theirs.verify()


def test_a_checkpoint_goes_to_hugging_faces_names_and_back_to_the_same_bytes(tiny, tmp_path):
    with open_google(tiny) as theirs:
        write_bundle(tmp_path / "model", to_tf1(theirs, "bert"))
    with Tf1Checkpoint(tiny) as before, Tf1Checkpoint(tmp_path / "model") as after:
        assert set(after) == {name for name in before if not is_of_optimizer(name)}
        for name in after:
            assert after[name].tobytes() == before[name].tobytes(), name


def test_albert_by_the_names_in_googles_code():
    expected = {key: Native(name, swapped) for name, (key, swapped) in ALBERT_NAMES.items()}
    shuffled = random.Random(0).sample(sorted(ALBERT_NAMES), len(ALBERT_NAMES))
    slots = [f"{name}/{slot}" for name in shuffled for slot in ("adam_m", "adam_v")]
    assert hf_names([*shuffled, *slots, "global_step"], "albert") == expected
    assert tf1_names(expected, "albert") == {name: Native(*pair) for name, pair in ALBERT_NAMES.items()}
    assert model_type_of(shuffled) == "albert"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("output_weights", "classifier.weight"),
        ("output_bias", "classifier.bias"),
        ("cls/squad/output_weights", "qa_outputs.weight"),
        ("cls/squad/output_bias", "qa_outputs.bias"),
    ],
)
def test_heads_of_googles_fine_tuning_programs(name, key):
    names = ["bert/embeddings/word_embeddings", name]
    assert hf_names(names, "bert")[key] == Native(name, False)
    assert tf1_names([key], "bert") == {name: Native(key, False)}


def test_a_hub_modules_prefix_and_unknown_names():
    names = ["module/bert/embeddings/word_embeddings", "module/bert/pooler/dense/kernel", "crf_loss/transitions"]
    assert model_type_of(names) == "bert"
    assert hf_names(names, "bert") == {
        "bert.embeddings.word_embeddings.weight": Native(names[0], False),
        "bert.pooler.dense.weight": Native(names[1], True),
        "crf_loss/transitions": Native(names[2], False),  # left for the reader's report
    }
    with pytest.raises(UserError, match=r"both mean .bert\.pooler\.dense\.weight.: keep one"):
        hf_names([*names, "bert/pooler/dense/kernel"], "bert")


def test_keys_of_the_encoder_alone_are_written_with_berts_name():
    assert tf1_names(["pooler.dense.bias", "encoder.layer.3.output.dense.weight"], "bert") == {
        "bert/pooler/dense/bias": Native("pooler.dense.bias", False),
        "bert/encoder/layer_3/output/dense/kernel": Native("encoder.layer.3.output.dense.weight", True),
    }


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: hf_names(ALBERT_NAMES, "bert"), "those of Google's ALBERT; the config says model_type='bert'"),
        (lambda: hf_names(["bert/encoder/layer_0/output/dense/bias"], "albert"), "those of Google's BERT; the config"),
        (lambda: hf_names(["bert/embeddings/word_embeddings"], "albert"), "no bert/encoder/embedding_hidden_mapping"),
        (lambda: hf_names([], "roberta"), "model_type='roberta': expected bert or albert"),
        (lambda: tf1_names([], "distilbert"), "model_type='distilbert': expected bert or albert"),
        (
            lambda: tf1_names(["bert.encoder.layer.0.crossattention.self.key.bias"], "bert"),
            "'bert.encoder.layer.0.crossattention.self.key.bias' has no counterpart in a checkpoint of Google's BERT",
        ),
        (lambda: tf1_names(["bert.encoder.layer.01.output.dense.bias"], "bert"), "has no counterpart"),
        (lambda: model_type_of(["electra/embeddings/word_embeddings"]), "found electra/embeddings/word_emb"),
        (lambda: model_type_of([]), "found none"),
    ],
)
def test_what_is_not_googles_is_refused_by_name(refused, said):
    with pytest.raises(UserError, match=said) as raised:
        refused()
    assert "\n" not in str(raised.value)


def test_a_refusal_names_the_file(tmp_path):
    write_bundle(tmp_path / "x", {"electra/embeddings/word_embeddings": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match=r"x.index: the variables are not those of Google's BERT or ALBERT"):
        open_google(tmp_path)


# The optimizer's part


def test_moments_and_step_stand_apart(tiny):
    with Tf1Checkpoint(tiny) as stored:
        step, m, v = optimizer_state(stored)
        assert step == int(stored["global_step"]) > 0
        assert set(m) == set(v) == set(hf_names(stored, "bert"))
        assert len(m) + len(v) == 92
        name, key = "bert/encoder/layer_0/intermediate/dense/kernel", "bert.encoder.layer.0.intermediate.dense.weight"
        assert np.array_equal(m[key], stored[f"{name}/adam_m"].T)
        assert np.array_equal(v[key], stored[f"{name}/adam_v"].T)
        assert min(float(array.min()) for array in v.values()) >= 0


def test_without_moments_or_with_a_step_that_cannot_be(tmp_path):
    table = {"bert/embeddings/word_embeddings": np.zeros((2, 2), np.float32)}
    slots = {f"{name}/{slot}": array for name, array in table.items() for slot in ("adam_m", "adam_v")}

    def state(tensors):
        write_bundle(tmp_path / "x", tensors)
        with Tf1Checkpoint(tmp_path) as stored:
            return optimizer_state(stored)

    with pytest.raises(UserError, match=r"x.index: holds no moments of Google's optimizers"):
        state(table)
    assert state(table | slots).step is None
    assert state(table | slots | {"global_step": np.int64(7)}).step == 7
    for wrong, said in (
        (np.int64(-1), "is -1"),
        (np.float32(1), "float32 of shape"),
        (np.zeros(2, np.int64), "int64 of"),
    ):
        with pytest.raises(UserError, match=f"global_step is {said.removeprefix('is ')}"):
            state(table | slots | {"global_step": wrong})


# TF2's object-based checkpoints


@pytest.mark.parametrize(
    ("folder", "sizes"),
    [("tfr-bert-lite-tf2", (10, 4, 2, 2, 2, 1)), ("detext-bert-hub-tf2", (100, 128, 16, 16, 32, 1))],
)
def test_the_model_gardens_encoder_is_read(data_dir: Path, folder, sizes):
    vocabulary, positions, types, width, intermediate, layers = sizes
    with Tf1Checkpoint(data_dir / "checkpoints" / folder) as raw:
        assert is_object_graph(raw)
    with open_google(data_dir / "checkpoints" / folder) as stored:
        shapes = {key: stored.shape(key) for key in stored if stored.dtype(key) == "float32"}
        assert all(stored[key].shape == shape for key, shape in shapes.items())
        assert stored.verify()
    assert shapes["bert.embeddings.word_embeddings.weight"] == (vocabulary, width)
    assert shapes["bert.embeddings.position_embeddings.weight"] == (positions, width)
    assert shapes["bert.embeddings.token_type_embeddings.weight"] == (types, width)
    assert shapes["bert.encoder.layer.0.intermediate.dense.weight"] == (intermediate, width)
    assert shapes["bert.encoder.layer.0.attention.self.query.weight"] == (width, width)
    assert shapes["bert.encoder.layer.0.attention.self.query.bias"] == (width,)
    assert len(shapes) == 5 + 16 * layers + 2


def test_what_tf2_keeps_for_training_is_left_out(data_dir: Path):
    with Tf1Checkpoint(data_dir / "checkpoints" / "tfr-bert-lite-tf2") as raw, open_object_graph(raw) as encoder:
        assert "save_counter/.ATTRIBUTES/VARIABLE_VALUE" in raw
        assert len(encoder) == 23
        assert all(name.startswith("bert/") for name in encoder)


def test_another_object_based_checkpoint_is_refused_in_one_line(tmp_path):
    write_bundle(tmp_path / "ckpt-1", {"model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match=r"ckpt-1.index: an object-based checkpoint of TensorFlow 2 .*save_pretrained"):
        open_google(tmp_path)


@pytest.mark.slow
def test_a_damaged_graph_of_objects_is_one_line(data_dir: Path, tmp_path):
    with Tf1Checkpoint(data_dir / "checkpoints" / "tfr-bert-lite-tf2") as stored:
        graph = stored.string("_CHECKPOINTABLE_OBJECT_GRAPH")
        table = next(name for name in stored if stored.dtype(name) == "float32")
        array = stored[table]
    generator = random.Random(0)
    said = set()
    for _ in range(200):
        damaged = bytearray(graph)
        for _ in range(generator.randint(1, 20)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        text = string_bytes(bytes(damaged))
        entry = BundleEntryProto(dtype=7, offset=array.nbytes, size=len(text), shape={})
        size = len(graph).to_bytes(4, "little")
        entry.crc32c = masked_crc32c(size + text[-len(graph) - 4 :])
        entries = {table: proto(array), "_CHECKPOINTABLE_OBJECT_GRAPH": entry}
        write_by_hand(tmp_path / "x", entries, [array.tobytes() + text])
        try:
            with open_google(tmp_path / "x") as encoder:
                assert all(encoder[key].nbytes <= array.nbytes for key in encoder)
        except UserError as error:
            said.add(str(error))
    assert {"cannot be read" in line or "object-based" in line for line in said} == {True}
    assert len(said) > 5
    assert "\n" not in "".join(said)


def string_bytes(text: bytes) -> bytes:
    """A tensor of one string as TensorFlow stores it: length, masked CRC of the length as 32 bits, bytes."""
    return varint(len(text)) + masked_crc32c(len(text).to_bytes(4, "little")).to_bytes(4, "little") + text


# Which GELU


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, ("gelu", "erf, as in transformers")), ("erf", ("gelu", "erf")), ("tanh", ("gelu_new", "tanh"))],
)
def test_the_gelu_is_a_stated_choice(asked, expected):
    act, line = google_hidden_act("gelu", asked)
    assert act == expected[0]
    assert expected[1] in line


def test_a_gelu_is_not_chosen_for_another_activation():
    assert google_hidden_act("relu") == ("relu", "")
    with pytest.raises(UserError, match="applies only to hidden_act='gelu'; the config has 'relu'"):
        google_hidden_act("relu", "tanh")
    with pytest.raises(UserError, match="""gelu='exact': expected "erf" or "tanh\""""):
        google_hidden_act("gelu", "exact")  # type: ignore[arg-type]
