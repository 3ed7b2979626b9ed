"""Google's checkpoints: transformers, given what we read, computes what Google's code computes from the same file.

Google's side is NumPy in float64 on the variables by their own names and in their own layout, after modeling.py of
google-research/bert, modeling.py of google-research/albert and, with an axis for the heads, keras' MultiHeadAttention.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.special import erf

from bert_jax.formats.stored import Stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint, write_bundle
from bert_jax.formats.tensorflow.names import open_google, to_tf1

pytestmark = pytest.mark.parity

IDS = np.array([[2, 5, 6, 7, 3, 8, 9, 3, 0, 0], [2, 1, 4, 8, 5, 3, 6, 3, 7, 3]])
TYPES = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]])
MASK = np.array([[1] * 8 + [0] * 2, [1] * 10])


def gelu_erf(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Google:
    """Google's forward pass, variable by variable."""

    def __init__(self, variables: Mapping[str, np.ndarray], heads: int, gelu: Callable = gelu_erf):
        self.variables, self.heads, self.gelu = variables, heads, gelu

    def __getitem__(self, name: str) -> np.ndarray:
        return self.variables[name].astype(np.float64)

    def dense(self, x, name):
        return x @ self[f"{name}/kernel"] + self[f"{name}/bias"]

    def norm(self, x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * self[f"{name}/gamma"] + self[f"{name}/beta"]

    def embed(self, ids, types):
        x = self["bert/embeddings/word_embeddings"][ids] + self["bert/embeddings/token_type_embeddings"][types]
        x = x + self["bert/embeddings/position_embeddings"][: ids.shape[1]]
        return self.norm(x, "bert/embeddings/LayerNorm")

    def attend(self, x, mask, name):
        q, k, v = (
            self.dense(x, f"{name}/{part}").reshape(*x.shape[:2], self.heads, -1) for part in ("query", "key", "value")
        )
        return weighted(q, k, v, mask).reshape(x.shape)

    def bert_layer(self, x, mask, name):
        attended = self.dense(self.attend(x, mask, f"{name}/attention/self"), f"{name}/attention/output/dense")
        x = self.norm(x + attended, f"{name}/attention/output/LayerNorm")
        wide = self.gelu(self.dense(x, f"{name}/intermediate/dense"))
        return self.norm(x + self.dense(wide, f"{name}/output/dense"), f"{name}/output/LayerNorm")

    def albert_block(self, x, mask, name):
        attended = self.dense(self.attend(x, mask, f"{name}/attention_1/self"), f"{name}/attention_1/output/dense")
        x = self.norm(x + attended, f"{name}/LayerNorm")
        wide = self.gelu(self.dense(x, f"{name}/ffn_1/intermediate/dense"))
        return self.norm(x + self.dense(wide, f"{name}/ffn_1/intermediate/output/dense"), f"{name}/LayerNorm_1")

    def pretraining(self, x):
        pooled = np.tanh(self.dense(x[:, 0], "bert/pooler/dense"))
        hidden = self.gelu(self.dense(x, "cls/predictions/transform/dense"))
        hidden = self.norm(hidden, "cls/predictions/transform/LayerNorm")
        tokens = hidden @ self["bert/embeddings/word_embeddings"].T + self["cls/predictions/output_bias"]
        weights, bias = self["cls/seq_relationship/output_weights"], self["cls/seq_relationship/output_bias"]
        return tokens, pooled @ weights.T + bias


def weighted(q, k, v, mask):
    """Attention over [B, L, H, K]."""
    scores = np.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(q.shape[-1]) - 10_000.0 * (1 - mask[:, None, None])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhk->bihk", weights / weights.sum(-1, keepdims=True), v)


def theirs(model: torch.nn.Module, stored: Stored, ids=IDS, types=TYPES, mask=MASK):
    """transformers' outputs with the tensors that we read; every key must find its place."""
    prefix = "bert." if isinstance(model, transformers.BertModel) else ""
    floats = [key for key in stored if stored.dtype(key) == "float32"]
    state = {key.removeprefix(prefix): torch.from_numpy(np.array(stored[key])) for key in floats}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("decoder" in key for key in missing)  # tied
    model.tie_weights()
    with torch.inference_mode():
        arguments = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        return model.eval()(**{name: torch.from_numpy(array) for name, array in arguments.items()})


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("act", "gelu"), [("gelu", gelu_erf), ("gelu_new", gelu_tanh)])
def test_googles_bert(data_dir: Path, act, gelu):
    folder = data_dir / "checkpoints" / "keras-bert-tiny-adam"
    config = transformers.BertConfig.from_json_file(str(folder / "bert_config.json"))
    config.hidden_act = act
    with open_google(folder) as stored, Tf1Checkpoint(folder) as variables:
        outputs = theirs(transformers.BertForPreTraining(config), stored)
        google = Google(variables, heads=4, gelu=gelu)
        x = google.embed(IDS, TYPES)
        for layer in range(2):
            x = google.bert_layer(x, MASK, f"bert/encoder/layer_{layer}")
        tokens, pairs = google.pretraining(x)
    assert_close(tokens, outputs.prediction_logits)
    assert_close(pairs, outputs.seq_relationship_logits)


def test_googles_albert(tmp_path):
    """Google's layout of a model that transformers drew: written by us, read by Google's rules, and by us again."""
    config = transformers.AlbertConfig(
        vocab_size=12, embedding_size=6, hidden_size=8, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2,
        num_attention_heads=2, intermediate_size=10, max_position_embeddings=10, hidden_act="gelu_new",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AlbertForPreTraining(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    state = {key: array.numpy() for key, array in model.state_dict().items() if "decoder" not in key}
    write_bundle(tmp_path / "model.ckpt-best", to_tf1(state, "albert"))
    with open_google(tmp_path) as stored, Tf1Checkpoint(tmp_path) as variables:
        outputs = theirs(transformers.AlbertForPreTraining(config), stored)
        google = Google(variables, heads=2, gelu=gelu_tanh)
        x = google.dense(google.embed(IDS, TYPES), "bert/encoder/embedding_hidden_mapping_in")
        for layer in range(4):
            for inner in range(2):
                x = google.albert_block(x, MASK, f"bert/encoder/transformer/group_{layer // 2}/inner_group_{inner}")
        tokens, pairs = google.pretraining(x)
    assert_close(tokens, outputs.prediction_logits)
    assert_close(pairs, outputs.sop_logits)


# The encoder's arrays in the order in which its layers were built, and where the other checkpoint has them.
BUILT = [
    "word",
    "position",
    "type",
    "gamma0",
    "beta0",
    "qk",
    "qb",
    "kk",
    "kb",
    "vk",
    "vb",
    "ok",
    "ob",
    "gamma1",
    "beta1",
    "ik",
    "ib",
    "fk",
    "fb",
    "gamma2",
    "beta2",
    "pk",
    "pb",
]
_BLOCK = "model/layer_with_weights-4"
PLACES = {
    **{f"{table}": f"model/layer_with_weights-{n}/embeddings" for n, table in enumerate(BUILT[:3])},
    **{
        f"{part}{number}": f"{place}/{part}"
        for number, place in enumerate(
            ("model/layer_with_weights-3", f"{_BLOCK}/_attention_layer_norm", f"{_BLOCK}/_output_layer_norm")
        )
        for part in ("gamma", "beta")
    },
    **{
        f"{short}{part[0]}": f"{place}/{part}"
        for short, place in {
            "q": f"{_BLOCK}/_attention_layer/_query_dense",
            "k": f"{_BLOCK}/_attention_layer/_key_dense",
            "v": f"{_BLOCK}/_attention_layer/_value_dense",
            "o": f"{_BLOCK}/_attention_output_dense",
            "i": f"{_BLOCK}/_intermediate_dense",
            "f": f"{_BLOCK}/_output_dense",
            "p": "model/layer_with_weights-5",
        }.items()
        for part in ("kernel", "bias")
    },
}


@pytest.mark.parametrize(
    ("folder", "sizes", "places"),
    [
        ("tfr-bert-lite-tf2", (10, 4, 2, 2, 2, 1), PLACES),
        ("detext-bert-hub-tf2", (100, 128, 16, 16, 32, 2), {name: f"variables/{n}" for n, name in enumerate(BUILT)}),
    ],
)
def test_the_model_gardens_encoder(data_dir: Path, folder, sizes, places):
    vocabulary, positions, types, width, intermediate, heads = sizes
    config = transformers.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=positions, type_vocab_size=types, hidden_size=width,
        intermediate_size=intermediate, num_attention_heads=heads, num_hidden_layers=1, hidden_act="gelu_new",
    )  # fmt: skip
    ids, type_ids, mask = IDS[:, :4], TYPES[:, 4:8], MASK[:, 6:]
    path = data_dir / "checkpoints" / folder
    with open_google(path) as stored, Tf1Checkpoint(path) as raw:
        outputs = theirs(transformers.BertModel(config), stored, ids, type_ids, mask)
        w = {name: raw[f"{place}/.ATTRIBUTES/VARIABLE_VALUE"].astype(np.float64) for name, place in places.items()}

    def norm(x, number):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * w[f"gamma{number}"] + w[f"beta{number}"]

    x = norm(w["word"][ids] + w["position"][: ids.shape[1]] + w["type"][type_ids], 0)
    q, k, v = (np.einsum("bld,dhk->blhk", x, w[f"{part}k"]) + w[f"{part}b"] for part in "qkv")
    x = norm(x + np.einsum("blhk,hkd->bld", weighted(q, k, v, mask), w["ok"]) + w["ob"], 1)
    x = norm(x + gelu_tanh(x @ w["ik"] + w["ib"]) @ w["fk"] + w["fb"], 2)
    assert_close(x, outputs.last_hidden_state)
    assert_close(np.tanh(x[:, 0] @ w["pk"] + w["pb"]), outputs.pooler_output)
