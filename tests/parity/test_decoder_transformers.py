"""Decoders against transformers' BertLMHeadModel and RobertaForCausalLM: outputs, gradients, and steps through a cache.

The relative error of a tensor is max |ours - theirs| / max |theirs|; each must stay below 1e-4 in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.formats.read import from_stored
from bert_jax.model.decoder import init_cache
from bert_jax.model.heads import BertLMHeadModel
from bert_jax.model.losses import causal_lm_loss
from bert_jax.tree import flatten, unflatten

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4
DECODER = BertConfig(
    vocab_size=101,
    hidden_size=36,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=50,
    max_position_embeddings=24,
    is_decoder=True,
)
CONFIGS = {
    "bert": DECODER,
    "bert, cross-attention": DECODER.replace(add_cross_attention=True),
    "roberta": DECODER.replace(model_type="roberta", pad_token_id=1, type_vocab_size=1),
    "roberta, cross-attention": DECODER.replace(
        model_type="roberta", pad_token_id=1, type_vocab_size=1, add_cross_attention=True
    ),
}
NAMES = pytest.mark.parametrize("name", CONFIGS)
ROWS, LENGTH, STATES = 3, 11, 7


def reference(config: BertConfig) -> Any:
    """transformers' model as it is initialised, but for biases and LayerNorms, which are no longer zeros and ones."""
    torch.manual_seed(0)
    model_class = {"bert": transformers.BertLMHeadModel, "roberta": transformers.RobertaForCausalLM}[config.family]
    theirs = transformers.AutoConfig.for_model(**config.to_json(), attn_implementation="eager")
    model = model_class(theirs).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.1 if parameter.ndim == 1 else 0.05) * torch.randn_like(parameter))
    return model


def our_tree(tensors: Any, config: BertConfig) -> dict[str, Any]:
    arrays = {key: np.asarray(tensor.detach()) for key, tensor in tensors if tensor is not None}
    flat, report = from_stored(arrays, config, "causal-lm")
    report.check()
    return unflatten({path: jnp.asarray(array) for path, array in flat.items()})


def make_inputs(config: BertConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    valid = np.arange(LENGTH) < np.array([[11], [7], [4]])
    # transformers blocks the gradient of the padding row: it stands for padding alone here.
    ids = np.where(valid, rng.integers(2, config.vocab_size, size=(ROWS, LENGTH)), config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": valid.astype(np.int64)}
    if config.add_cross_attention:
        inputs["encoder_hidden_states"] = rng.normal(size=(ROWS, STATES, config.hidden_size)).astype(np.float32)
        inputs["encoder_attention_mask"] = (np.arange(STATES) < np.array([[7], [3], [5]])).astype(np.int64)
    return inputs


def relative_error(ours: Any, theirs: Any, scale: Any = None) -> float:
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs if scale is None else scale).max())


@NAMES
def test_outputs_and_gradients_equal_transformers(name):
    config, inputs = CONFIGS[name], make_inputs(CONFIGS[name])
    labels = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)
    theirs = reference(config)
    given = {key: torch.tensor(array) for key, array in inputs.items()}
    if config.add_cross_attention:
        given["encoder_hidden_states"].requires_grad_()
    expected = theirs(**given, labels=torch.tensor(labels), output_hidden_states=True, output_attentions=True)
    expected.loss.backward()

    model = BertLMHeadModel(config)
    params = our_tree(theirs.state_dict().items(), config)

    def loss_and_output(params, states, inputs):
        inputs = inputs if states is None else inputs | {"encoder_hidden_states": states}
        output = model.apply({"params": params}, **inputs, output_hidden_states=True, output_attentions=True)
        return causal_lm_loss(output.logits, jnp.asarray(labels)), output

    step = jax.jit(
        jax.value_and_grad(loss_and_output, argnums=(0, 1), has_aux=True),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    (loss, output), (gradients, of_states) = step(params, inputs.get("encoder_hidden_states"), inputs)

    errors = {"loss": abs(float(loss) / expected.loss.item() - 1)}
    errors["logits"] = relative_error(output.logits, expected.logits.detach())
    for field in ("hidden_states", "attentions", "cross_attentions"):
        ours, layers = getattr(output, field) or (), getattr(expected, field) or ()
        errors |= {
            f"{field} {i}": relative_error(a, b.detach()) for i, (a, b) in enumerate(zip(ours, layers, strict=True))
        }
    assert {f"{field} 1" in errors for field in ("hidden_states", "attentions")} == {True}
    assert ("cross_attentions 1" in errors) == config.add_cross_attention
    wanted = flatten(our_tree([(key, leaf.grad) for key, leaf in theirs.named_parameters()], config))
    found = flatten(gradients)
    assert found.keys() == wanted.keys()
    for path, gradient in found.items():
        # The bias of the keys adds the same to all scores of a query: its gradient is zero but for rounding.
        errors[path] = relative_error(gradient, wanted[path], wanted[path.replace("key/bias", "query/bias")])
    if config.add_cross_attention:
        errors["encoder_hidden_states"] = relative_error(of_states, given["encoder_hidden_states"].grad)
    worst = max(errors, key=lambda key: errors[key])
    print(f"largest relative error of {len(errors)}: {errors[worst]:.1e} ({worst})")
    assert errors[worst] < TOLERANCE, worst


@NAMES
def test_steps_through_the_cache_equal_transformers_steps_through_theirs(name):
    config, inputs = CONFIGS[name], make_inputs(CONFIGS[name])
    ids = np.where(inputs.pop("attention_mask") == 1, inputs["input_ids"], 5)
    encoder = {key: array for key, array in inputs.items() if key.startswith("encoder")}
    theirs = reference(config)
    model = BertLMHeadModel(config)
    params = our_tree(theirs.state_dict().items(), config)
    apply = jax.jit(model.apply, compiler_options={"xla_backend_optimization_level": 0})

    with torch.no_grad():
        given = {key: torch.tensor(array) for key, array in encoder.items()}
        expected = theirs(torch.tensor(ids[:, :6]), **given, use_cache=True)
        output = apply({"params": params}, ids[:, :6], **encoder, cache=init_cache(config, ROWS, LENGTH))
        assert relative_error(output.logits, expected.logits) < TOLERANCE
        for position in range(6, LENGTH):
            one = ids[:, position : position + 1]
            expected = theirs(torch.tensor(one), **given, past_key_values=expected.past_key_values, use_cache=True)
            output = apply({"params": params}, one, cache=output.cache)
            assert relative_error(output.logits, expected.logits) < TOLERANCE
