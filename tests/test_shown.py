"""Objects show themselves in a line, without their arrays, and in notebooks as a small table."""

import jax
import jax.numpy as jnp
import pytest

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.errors import UserError
from bert_jax.inference.pipeline import pipeline
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.step import TrainState
from tests.inference.tasks.task_folders import export
from train.finetuning.recipe import FinetuneConfig
from train.pretraining.recipe import Phase, PretrainConfig


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> bert_jax.formats.load.Loaded:
    return bert_jax.load(export(tmp_path_factory.mktemp("shown"), "pretraining"))


CONFIGS = [
    BertConfig(),
    BertConfig(hidden_size=128, num_attention_heads=2, labels=("a", "b", "c")),
    OptimizerConfig(learning_rate=1e-3, name="lamb"),
    MeshConfig(fsdp=2),
    MaskingConfig(probability=0.2),
    FinetuneConfig(task="mrpc", epochs=2.0),
    PretrainConfig(phases=(Phase(64, 8, 20_000),), model=BertConfig.preset("tiny")),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_a_config_shows_what_differs_from_the_defaults_and_can_be_made_from_it(config):
    """repr's own rule: Python makes an equal object from it."""
    names = {kind.__name__: kind for kind in (*map(type, CONFIGS), Phase)}
    assert eval(repr(config), names) == config
    assert len(repr(config)) < 400 and "\n" not in repr(config)
    assert type(config).__name__ in config._repr_html_()
    assert repr(BertConfig()) == "BertConfig()"


def test_models_tokenizers_pipelines_and_states_are_a_line(loaded):
    fill = pipeline("fill-mask", loaded)
    state = TrainState(jnp.int32(1200), loaded.params, (), jnp.int32(0), jnp.int32(0), jnp.int32(-1))
    for shown, facts in (
        (loaded, ("pretraining", f"{loaded.num_parameters():,} parameters")),
        (loaded.report, ("pretraining", "loaded")),
        (loaded.tokenizer, ("21 tokens", "uncased", "34")),
        (fill, ("FillMask", "bert", "at most 34 tokens", "float32")),
        (state, ("step 1,200", f"{loaded.num_parameters():,} parameters")),
    ):
        assert all(fact in repr(shown) for fact in facts), repr(shown)
        assert len(repr(shown)) < 300 and "\n" not in repr(shown)
    assert "step" not in repr(jax.eval_shape(lambda: state))
    for shown in (loaded, fill):
        html = shown._repr_html_()
        assert html.count("<tr>") >= 4 and len(html) < 2000
    assert "<script" not in bert_jax.formats.load.Loaded(*loaded[:3], loaded.report)._repr_html_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: pipeline("fill-mask", 42), "a model is named by a run directory, a folder or a hub id; found int (42)"),
        (lambda model: pipeline("fill-mask", ""), "a model is named by a run directory, a folder or a hub id; found str ('')"),
        (lambda model: bert_jax.load(None), "found NoneType (None)"),
        (lambda model: pipeline("fil-mask", model), "task 'fil-mask'; did you mean fill-mask?"),
        (lambda model: pipeline(["fill-mask"], model), "expected one of embed, fill-mask"),
        (lambda model: pipeline("fill-mask", model, topk=3), "fill-mask has no option 'topk'; did you mean top_k?"),
        (lambda model: pipeline("fill-mask", model, top_k="3"), "top_k='3': expected a whole number, at least 1"),
        (lambda model: pipeline("fill-mask", model)(42), "expected a text or a list of texts, found int (42)"),
        (lambda model: pipeline("fill-mask", model)(None), "expected a text or a list of texts, found NoneType (None)"),
        (lambda model: pipeline("fill-mask", model)("[MASK]", top_k=0), "top_k=0: expected a whole number, at least 1"),
        (lambda model: pipeline("embed", model)(b"text"), "found bytes"),
        (lambda model: pipeline("next-sentence", model)(3), "expected two texts or a list of pairs"),
        (lambda model: pipeline("embed", model, batch_size="8"), "batch_size='8': expected a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(call, message, loaded):
    with pytest.raises(UserError) as caught:
        call(loaded)
    assert message in str(caught.value) and "\n" not in str(caught.value)
