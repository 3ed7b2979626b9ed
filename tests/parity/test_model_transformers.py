"""The model against transformers' BertForPreTraining on the same weights: every output, the loss, every gradient.

The relative error of a tensor is max |ours - theirs| / max |theirs|; each must stay below 1e-4 in float32. The
largest one is printed (pytest -rP shows it).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import BertForPreTraining
from bert_jax.model.losses import mean_pretraining_loss, pretraining_loss, pretraining_sums
from tests.model.golden import their_name

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4


def from_torch(shapes, tensors):
    """Our tree, filled from tensors under transformers' names."""

    def leaf(path, shape):
        array = tensors[their_name(path)].detach().numpy()
        array = array.T if path[-1].key == "kernel" else array
        assert array.shape == shape.shape
        return jnp.asarray(array)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def reference(config, seed=0):
    """transformers' model as it is initialised, but for biases and LayerNorms, which are no longer zeros and ones."""
    torch.manual_seed(seed)
    model = transformers.BertForPreTraining._from_config(
        transformers.BertConfig(**config.to_json()), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make_batch(config, rows, length, masking, seed=0):
    """Ids with labels at a fifth of the positions that are not padding, as NumPy."""
    rng = np.random.default_rng(seed)
    sizes = np.full(rows, length) if masking == "none" else rng.integers(length // 2, length + 1, size=rows)
    valid = np.arange(length) < sizes[:, None]
    # transformers blocks the gradient of the padding row, so that id 0 stands for padding alone here.
    ids = np.where(valid, rng.integers(1, config.vocab_size, size=(rows, length)), 0)
    count = max(1, length // 5)
    positions = np.stack([np.sort(rng.permutation(size)[:count]) for size in sizes])
    labels = np.full((rows, length), -100)
    np.put_along_axis(labels, positions, rng.integers(1, config.vocab_size, size=positions.shape), 1)
    mask = {"none": None, "padding": valid.astype(np.int32)}.get(masking)
    if masking == "each query":
        mask = (valid[:, None] & (rng.random((rows, length, length)) < 0.7) | np.eye(length, dtype=bool)).astype(
            np.int32
        )
    return {
        "ids": ids,
        "mask": mask,
        "types": (np.arange(length) >= length // 2).astype(np.int64) * valid,
        "labels": labels,
        "positions": positions,
        "next": rng.integers(0, 2, size=rows),
    }


def run_theirs(model, batch):
    mask = batch["mask"]
    if mask is not None:
        mask = torch.tensor(mask)
        if mask.ndim == 3:
            # Release 5 takes a mask for each query as what is added to the scores.
            mask = torch.where(mask[:, None] == 1, 0.0, torch.finfo(torch.float32).min)
    output = model(
        torch.tensor(batch["ids"]),
        attention_mask=mask,
        token_type_ids=torch.tensor(batch["types"]),
        labels=torch.tensor(batch["labels"]),
        next_sentence_label=torch.tensor(batch["next"]),
        output_hidden_states=True,
        output_attentions=True,
    )
    output.loss.backward()
    with torch.no_grad():
        pooled = model.bert.pooler(output.hidden_states[-1])
    values = {
        "hidden_states": [x.detach().numpy() for x in output.hidden_states],
        "attentions": [x.detach().numpy() for x in output.attentions],
        "pooler": pooled.numpy(),
        "mlm_logits": output.prediction_logits.detach().numpy(),
        "nsp_logits": output.seq_relationship_logits.detach().numpy(),
        "loss": output.loss.detach().numpy(),
    }
    return values, {name: parameter.grad for name, parameter in model.named_parameters()}


def run_ours(model, params, batch):
    """Outputs at all positions; loss and gradients as in training, from the masked positions alone."""
    ids, types, labels, positions = (
        jnp.asarray(batch[name], jnp.int32) for name in ("ids", "types", "labels", "positions")
    )
    mask = None if batch["mask"] is None else jnp.asarray(batch["mask"])
    count = positions.size

    @jax.jit
    def outputs(params):
        output = model.apply({"params": params}, ids, mask, types, output_hidden_states=True, output_attentions=True)
        return {
            "hidden_states": list(output.hidden_states),
            "attentions": list(output.attentions),
            "pooler": Bert(model.config).apply({"params": params["bert"]}, ids, mask, types).pooler_output,
            "mlm_logits": output.prediction_logits,
            "nsp_logits": output.seq_relationship_logits,
            "loss": mean_pretraining_loss(output, labels, jnp.asarray(batch["next"])),
        }

    @jax.jit
    @jax.value_and_grad
    def value_and_grad(params):
        output = model.apply({"params": params}, ids, mask, types, mlm_positions=positions)
        sums = pretraining_sums(
            output,
            {
                "mlm_labels": jnp.take_along_axis(labels, positions, 1),
                "mlm_weights": jnp.ones(positions.shape),
                "next_sentence_label": jnp.asarray(batch["next"]),
            },
        )
        return pretraining_loss(sums, mlm_denominator=count, nsp_denominator=len(ids))

    return outputs(params), *value_and_grad(params)


def relative_errors(ours, theirs, scale=None):
    """path -> max |ours - theirs| / max |theirs|."""
    scale = theirs if scale is None else scale
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), jax.tree.leaves(scale), strict=True
    )
    return {
        jax.tree_util.keystr(path): float(np.abs(np.asarray(a) - b).max() / np.abs(c).max())
        for (path, a), b, c in leaves
    }


def gradient_scale(gradients):
    """What a gradient's error is held against: itself, but for the bias of the keys.

    It adds the same to all scores of a query, so that its gradient is zero but for rounding; the query's stands in.
    """
    bert = gradients["bert"]
    layers = {
        name: layer
        | {
            "attention": layer["attention"]
            | {"key": layer["attention"]["key"] | {"bias": layer["attention"]["query"]["bias"]}}
        }
        for name, layer in bert["encoder"].items()
    }
    return gradients | {"bert": bert | {"encoder": layers}}


def compare(config, rows, length, masking):
    theirs = reference(config)
    batch = make_batch(config, rows, length, masking)
    model = BertForPreTraining(config)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.ones((1, 2), jnp.int32)))["params"]
    params = from_torch(shapes, theirs.state_dict())
    expected, expected_gradients = run_theirs(theirs, batch)
    outputs, loss, gradients = run_ours(model, params, batch)
    expected_gradients = from_torch(shapes, expected_gradients)
    errors = {
        "outputs": relative_errors(outputs, expected) | {"['loss'], gathered": abs(float(loss / expected["loss"]) - 1)},
        "gradients": relative_errors(gradients, expected_gradients, gradient_scale(expected_gradients)),
    }
    for kind, found in errors.items():
        worst = max(found, key=lambda name: found[name])
        print(f"largest relative error of {len(found)} {kind}: {found[worst]:.2e} ({worst})")
        assert found[worst] < TOLERANCE
    # Nothing was compared with nothing.
    assert min(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient_scale(gradients))) > 0


ODD = BertConfig(
    vocab_size=101,
    hidden_size=36,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=50,
    max_position_embeddings=24,
    type_vocab_size=3,
    layer_norm_eps=1e-5,
    hidden_act="gelu_new",
)


@pytest.mark.parametrize("masking", ["none", "padding", "each query"])
def test_a_model_of_odd_sizes_equals_transformers(masking):
    compare(ODD, rows=3, length=17, masking=masking)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["none", "padding", "each query"])
def test_tiny_equals_transformers(masking):
    compare(BertConfig.preset("tiny"), rows=4, length=64, masking=masking)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "masking"), [("mini", "padding"), ("small", "each query"), ("medium", "none")])
def test_sizes_between_equal_transformers(name, masking):
    compare(BertConfig.preset(name, vocab_size=3000), rows=2, length=32, masking=masking)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["padding", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_base_equals_transformers(masking):
    compare(BertConfig.preset("base-uncased"), rows=2, length=24, masking=masking)
