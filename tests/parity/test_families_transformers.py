"""Every head of every family against transformers' class on the same weights: outputs, loss, every gradient.

The relative error of a tensor is max |ours - theirs| / max |theirs|. Dropout cannot be compared by value: of it the
places, rates and sizes are.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.formats.names.parameters import FAMILIES, architecture_of
from bert_jax.formats.read import from_stored
from bert_jax.model.heads import HEADS
from bert_jax.model.losses import (
    causal_lm_loss,
    mean_cross_entropy,
    mean_pretraining_loss,
    multiple_choice_loss,
    question_answering_loss,
    sequence_classification_loss,
    token_classification_loss,
)
from bert_jax.tree import flatten, unflatten

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 17,
    "initializer_range": 0.2,
    "labels": ("a", "b", "c"),
}
TYPES: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, "classifier_dropout": 0.3},
    "roberta": {"pad_token_id": 1, "layer_norm_eps": 1e-5, "classifier_dropout": 0.3},
    "xlm-roberta": {"pad_token_id": 1, "layer_norm_eps": 1e-5},
    "camembert": {"pad_token_id": 1, "layer_norm_eps": 1e-5},
    "albert": {
        "num_hidden_groups": 1,
        "embedding_size": 12,
        "hidden_act": "gelu_new",
        "classifier_dropout": 0.3,
    },
    "distilbert": {},
    "electra": {"embedding_size": 12, "classifier_dropout": 0.3, "seq_classif_dropout": 0.2},
}
CASES = [
    (model_type, head)
    for model_type in ("bert", "roberta", "albert", "distilbert", "electra")
    for head in FAMILIES[model_type].heads
    if head != "encoder-no-pooler" or BertConfig(model_type=model_type).has_pooler  # else the same as the encoder
]
CASES += [(model_type, head) for model_type in ("xlm-roberta", "camembert") for head in ("mlm", "multiple-choice")]
# RoBERTa's masked-LM head keeps its gelu whatever the layers have; the groups of three layers of ALBERT are 0, 0, 1.
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "mlm", {"tie_word_embeddings": False, "hidden_act": "prelu"}),
    ("roberta", "mlm", {"tie_word_embeddings": False, "hidden_act": "xielu"}),
    ("albert", "mlm", {"tie_word_embeddings": False, "hidden_act": "prelu", "num_hidden_groups": 1}),
    ("distilbert", "mlm", {"tie_word_embeddings": False, "hidden_act": "xielu"}),
    ("bert", "sequence-classification", {"problem_type": "regression", "labels": ("value",)}),
    ("roberta", "sequence-classification", {"problem_type": "regression"}),
    ("distilbert", "sequence-classification", {"problem_type": "multi_label_classification"}),
    ("albert", "sequence-classification", {"problem_type": "multi_label_classification", "embedding_size": 32}),
    ("electra", "mlm", {"tie_word_embeddings": False, "hidden_act": "prelu", "embedding_size": 32}),
    ("electra", "replaced-token-detection", {"hidden_act": "prelu", "embedding_size": 32}),
    ("electra", "sequence-classification", {"problem_type": "regression", "labels": ("value",)}),
    ("albert", "encoder", {"num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2}),
]


def config_of(model_type: str, head: str, **fields: Any) -> BertConfig:
    fields = SIZES | TYPES[model_type] | {"model_type": model_type, "is_decoder": head == "causal-lm"} | fields
    if head in ("question-answering", "pretraining"):
        del fields["labels"]  # transformers takes start and end for labels, and the two orders of ALBERT's sentences
    return BertConfig(**fields)


def reference(config: BertConfig, head: str) -> Any:
    """transformers' model as it is initialised, but for biases and LayerNorms, which are no longer zeros and ones."""
    torch.manual_seed(0)
    theirs = transformers.AutoConfig.for_model(**config.to_json(), attn_implementation="eager")
    options = {"add_pooling_layer": False} if head == "encoder-no-pooler" else {}
    model = getattr(transformers, architecture_of(config, head))(theirs, **options).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def our_tree(tensors: Any, config: BertConfig, head: str) -> dict[str, Any]:
    arrays = {key: np.asarray(tensor.detach()) for key, tensor in tensors if tensor is not None}
    flat, report = from_stored(arrays, config, head)
    report.check()
    return unflatten({path: jnp.asarray(array) for path, array in flat.items()})


def make_inputs(config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Padded rows of an odd length; where position 0 is not read, one is padded on the left."""
    rng = np.random.default_rng(0)
    rows, length = 3, 11
    valid = np.arange(length) < np.array([[11], [7], [4]])
    if head in ("mlm", "token-classification", "encoder-no-pooler"):
        valid[1] = valid[1, ::-1]
    ids = rng.integers(2, config.vocab_size, size=(rows, length))
    # transformers blocks the gradient of the padding row, and the scores of an answer are over padding too.
    ids = ids if head == "question-answering" else np.where(valid, ids, config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": valid.astype(np.int64)}
    if config.family in ("bert", "albert", "electra"):
        inputs["token_type_ids"] = rng.integers(0, 2, size=(rows, length)) * valid
    if head == "multiple-choice":
        inputs = {name: array.reshape(1, rows, length) for name, array in inputs.items()}
    return inputs


def make_labels(config: BertConfig, head: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    ids, valid = inputs["input_ids"], inputs["attention_mask"] == 1
    tokens = np.where(valid & (rng.random(ids.shape) < 0.5), rng.integers(0, config.vocab_size, ids.shape), -100)
    sentences = rng.integers(0, 2, size=len(ids))
    count = config.num_labels
    match head:
        case "pretraining":
            name = "sentence_order_label" if config.family == "albert" else "next_sentence_label"
            return {"labels": tokens, name: sentences}
        case "mlm":
            return {"labels": tokens}
        case "causal-lm":
            return {"labels": np.where(valid, ids, -100)}
        case "nsp":
            return {"labels": sentences}
        case "replaced-token-detection":
            return {"labels": rng.integers(0, 2, ids.shape)}
        case "token-classification":
            return {"labels": np.where(valid, rng.integers(0, count, ids.shape), -100)}
        case "question-answering":
            return {"start_positions": np.array([2, 30, 0]), "end_positions": np.array([5, 3, 11])}
        case "multiple-choice":
            return {"labels": np.array([2])}
        case "sequence-classification":
            if config.problem_type in (None, "single_label_classification"):
                return {"labels": rng.integers(0, count, size=len(ids))}
            shape = (len(ids), count) if count > 1 else (len(ids),)
            return {"labels": (rng.random(shape) < 0.5).astype(np.float32)}
    return {}


def probe(output: Any, valid: Any, cos: Any) -> Any:
    """A loss for the encoder alone, which has none: a sum of waves over all positions that are not padding."""
    last = output.last_hidden_state
    loss = (last * cos(last * 3.0) * valid[..., None]).sum()
    return loss if output.pooler_output is None else loss + (output.pooler_output * 2.0).sum()


def our_loss(config: BertConfig, head: str, output: Any, labels: Any, valid: Any) -> jax.Array:
    match head:
        case "pretraining":
            return mean_pretraining_loss(output, *labels.values())
        case "mlm":
            return mean_pretraining_loss(output, labels["labels"])
        case "nsp":
            return mean_cross_entropy(output.seq_relationship_logits, labels["labels"])
        case "causal-lm":
            return causal_lm_loss(output.logits, labels["labels"])
        case "sequence-classification":
            return sequence_classification_loss(output.logits, labels["labels"], config.problem_type)
        case "replaced-token-detection":
            losses = optax.sigmoid_binary_cross_entropy(output.logits, labels["labels"])
            return (losses * valid).sum() / valid.sum()
        case "token-classification":
            return token_classification_loss(output.logits, labels["labels"])
        case "question-answering":
            return question_answering_loss(output.start_logits, output.end_logits, *labels.values())
        case "multiple-choice":
            return multiple_choice_loss(output.logits, labels["labels"])
    return probe(output, valid, jnp.cos)


OUR_FIELDS = {"pretraining": {"sop_logits": "seq_relationship_logits"}, "mlm": {"logits": "prediction_logits"}}
OUR_FIELDS["nsp"] = {"logits": "seq_relationship_logits"}


def run_theirs(model: Any, config: BertConfig, head: str, inputs: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    given = {name: torch.tensor(array) for name, array in (inputs | labels).items()}
    output = model(**given, output_hidden_states=True, output_attentions=True)
    if labels:
        loss = output.loss
    else:
        output.pooler_output = output.get("pooler_output")
        loss = probe(output, torch.tensor(inputs["attention_mask"]), torch.cos)
    loss.backward()
    values = {"loss": loss.detach().numpy()}
    for name, value in output.items():
        if name in ("hidden_states", "attentions"):
            values[name] = [layer.detach().numpy() for layer in value]
        elif isinstance(value, torch.Tensor) and name != "loss":
            values[OUR_FIELDS.get(head, {}).get(name, name)] = value.detach().numpy()
    gradients = [(name, parameter.grad) for name, parameter in model.named_parameters()]
    return values, our_tree(gradients, config, head)


def compare(config: BertConfig, head: str) -> None:
    theirs = reference(config, head)
    inputs = make_inputs(config, head)
    labels = make_labels(config, head, inputs)
    params = our_tree(theirs.state_dict().items(), config, head)
    expected, expected_gradients = run_theirs(theirs, config, head, inputs, labels)
    model = HEADS[head](config)

    def loss_and_output(params, inputs, labels):
        output = model.apply({"params": params}, **inputs, output_hidden_states=True, output_attentions=True)
        return our_loss(config, head, output, labels, inputs["attention_mask"]), output

    (loss, output), gradients = jax.value_and_grad(loss_and_output, has_aux=True)(params, inputs, labels)
    values = {name: loss if name == "loss" else getattr(output, name) for name in expected}
    errors = {name: relative_error(values[name], expected[name]) for name in expected}
    flat, flat_expected = flatten(gradients), flatten(expected_gradients)
    assert flat.keys() == flat_expected.keys()
    # A bias that adds the same to all that a softmax is over has a gradient of zero but for rounding.
    zero = 1e-5 * max(float(np.abs(gradient).max()) for gradient in flat_expected.values())
    for path, gradient in flat.items():
        scale = float(np.abs(flat_expected[path]).max())
        if scale < zero:
            assert path.endswith("bias"), path
            assert np.abs(gradient).max() < zero, path
        else:
            errors[path] = float(np.abs(gradient - flat_expected[path]).max()) / scale
    worst = max(errors, key=lambda name: errors[name])
    print(f"largest relative error of {len(errors)}: {errors[worst]:.1e} ({worst})")
    assert errors[worst] < TOLERANCE, worst


def relative_error(ours: Any, theirs: Any) -> float:
    if isinstance(theirs, list):
        return max(relative_error(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_each_head_of_each_family_equals_transformers(model_type, head):
    compare(config_of(model_type, head), head)


@pytest.mark.parametrize(("model_type", "head", "fields"), VARIANTS)
def test_options_equal_transformers(model_type, head, fields):
    compare(config_of(model_type, head, **fields), head)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_dropouts_stand_where_transformers_has_them_and_no_two_draw_the_same(model_type, head, monkeypatch):
    rates = {"hidden_dropout_prob": 0.11, "attention_probs_dropout_prob": 0.12, "qa_dropout": 0.13}
    config = config_of(model_type, head, **rates)
    inputs = make_inputs(config, head)
    theirs, ours, sites = [], [], []

    def their_dropout(x, p=0.5, training=True, inplace=False):
        if training and p > 0:
            theirs.append((p, x.numel()))
        return x

    def our_dropout(x, rate, key, site=0):
        if key is not None and rate > 0:
            ours.append((rate, x.size))
            sites.append((id(key.words), key.site + site))
        return x

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", their_dropout)
        reference(config, head).train()(**{name: torch.tensor(array) for name, array in inputs.items()})
    for name in [name for name in sys.modules if name.startswith("bert_jax.model.")]:
        monkeypatch.setattr(f"{name}.dropout", our_dropout, raising=False)
    model = HEADS[head](config)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    jax.eval_shape(functools.partial(model.init, deterministic=False), keys, **inputs)
    assert ours == theirs
    assert len(set(sites)) == len(sites)


def test_a_table_of_sinusoids_is_transformers_and_is_not_trained():
    config = config_of("distilbert", "encoder", sinusoidal_pos_embds=True)
    model = HEADS["encoder"](config)
    ids = jnp.asarray(make_inputs(config, "encoder")["input_ids"])
    params = model.init(jax.random.key(0), ids)["params"]
    theirs = reference(config, "encoder").embeddings.position_embeddings.weight.detach().numpy()
    np.testing.assert_allclose(params["embeddings"]["position_embeddings"], theirs, atol=1e-6)
    gradient = jax.grad(lambda p: jnp.square(model.apply({"params": p}, ids).last_hidden_state).sum())(params)
    assert (np.asarray(gradient["embeddings"]["position_embeddings"]) == 0).all()
