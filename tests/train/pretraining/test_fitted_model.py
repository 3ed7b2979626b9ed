"""`init=SOURCE` before training: the architecture, the vocabulary, and what is asked of a published model first."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.source import open_source
from bert_jax.formats.write import save_pretrained
from bert_jax.training.optimizer import OptimizerConfig
from tests import tiny
from tests.hub_server import HubServer
from train.pretrain import prepare_text
from train.pretraining.fitted_model import adopted_model, check_vocabulary, open_init
from train.pretraining.recipe import Phase, PretrainConfig
from train.run.config import override
from train.run.directory import RunDirectory

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "the", "The", "cat", "sat", "##s", "."]
MODEL = tiny.CONFIG.replace(vocab_size=16, layer_norm_eps=1e-5)


def source(path: Path, head: str = "pretraining", *, tokenizer: Tokenizer | None = None, **fields) -> Path:
    """A folder in Hugging Face's layout with the parameters of one head."""
    config = MODEL.replace(**fields)
    return save_pretrained(path, config, tiny.random_params(config, 3, head), tokenizer, head=head)


def recipe(init: Path | str, *words: str, length: int = 16) -> tuple[PretrainConfig, frozenset[str]]:
    config = PretrainConfig(
        init=str(init), phases=(Phase(length, 8, 20),), optimizer=OptimizerConfig(warmup_steps=2),
        model=BertConfig(dtype="bfloat16"),
    )  # fmt: skip
    said = dict(word.split("=", 1) for word in words)
    return override(config, said), frozenset(said)


def data(objective: str = "nsp", tokenizer: Tokenizer | None = None, *, twice: bool = False) -> SimpleNamespace:
    second = twice or objective != "none"
    return SimpleNamespace(objective=objective, has_second=second, tokenizer=tokenizer, vocab_size=12)


def tokenizer(pieces: list[str] = PIECES, **switches) -> Tokenizer:
    return Tokenizer.from_vocabulary(pieces, **({"cased": True} | switches))


def test_the_architecture_is_the_sources_and_how_to_compute_the_configs(tmp_path):
    folder = source(tmp_path / "model")
    config, given = recipe(folder, "model.remat=full")
    assert adopted_model(config, data(), given, open_source(folder).config) == MODEL.replace(
        dtype="bfloat16", remat="full"
    )
    config, given = recipe(folder, "model.hidden_dropout_prob=0", "model.layer_norm_eps=1e-12")
    wanted = MODEL.replace(dtype="bfloat16", hidden_dropout_prob=0.0, layer_norm_eps=1e-12)
    assert adopted_model(config, data(), given, open_source(folder).config) == wanted


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        (["model.hidden_size=24"], {}, "model.hidden_size: needs bert/embeddings/word_embeddings of shape (16, 24)"),
        (["model.vocab_size=20"], {}, "model.vocab_size: needs bert/embeddings/word_embeddings of shape (20, 16)"),
        (["model.num_hidden_layers=3"], {}, "query/kernel of shape (16, 16), and {} has none; leave it out"),
        ([], {"length": 32}, "phases: length 32 is more than the 24 positions of {}; lower it, as in phases='((24, 8,"),
    ],
)
def test_what_contradicts_the_source_is_one_line(tmp_path, words, options, says):
    folder = source(tmp_path / "model")
    config, given = recipe(folder, *words, **options)
    with pytest.raises(UserError) as error:
        adopted_model(config, data(), given, open_source(folder).config)
    assert says.format(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_source_without_sentence_pairs_wants_data_without(tmp_path):
    roberta = source(tmp_path / "roberta", "mlm", model_type="roberta", type_vocab_size=1, pad_token_id=1)
    with pytest.raises(
        UserError,
        match=r"\(roberta\) is trained without sentence pairs; found data with objective nsp: say text_options.objective=none",
    ):
        adopted_model(*args_of(roberta, data()))
    assert adopted_model(*args_of(roberta, data("none"))).model_type == "roberta"
    one_type = source(tmp_path / "one-type", type_vocab_size=1)
    with pytest.raises(
        UserError,
        match=r"has 1 token type, and sentence pairs need 2; found data with objective sop: say text_options.objective=none",
    ):
        adopted_model(*args_of(one_type, data("sop")))
    with pytest.raises(UserError, match=r"has 1 token type; rows of the data have a sentence twice.* without --twice"):
        adopted_model(*args_of(one_type, data("none", twice=True)))


def test_a_source_that_does_not_fit_the_task_is_refused_before_text_is_prepared(tmp_path):
    roberta = source(tmp_path / "roberta", "mlm", model_type="roberta", type_vocab_size=1, pad_token_id=1)
    run = RunDirectory(str(tmp_path / "run"))
    for words, says in [
        (["text=nowhere"], "--objective none"),
        (["text=nowhere", "text_options.objective=none", "phases=((99, 8, 9),)"], "length 99 is more than the 22"),
    ]:
        with pytest.raises(UserError, match=says):
            prepare_text(run, *recipe(roberta, *words), open_source(roberta))
    assert not run.data.exists()


def args_of(folder: Path, of: SimpleNamespace) -> tuple:
    config, given = recipe(folder)
    return config, of, given, open_source(folder).config


@pytest.mark.parametrize(
    ("prepared", "says"),
    [
        (tokenizer(), None),
        (tokenizer([*PIECES[:5], "ocelot", *PIECES[6:]]), None),  # a word in the place of [unused1]
        (tokenizer(PIECES[:10]), None),
        (tokenizer(max_word_length=200, literal_special_tokens=False), None),  # Google's rules
        (tokenizer([*PIECES[:8], "dog", *PIECES[9:]]), "token 8 is 'dog' in the data and 'cat' in"),
        (tokenizer(cased=False), "the data was prepared uncased, accents stripped, and .* is cased, accents kept"),
    ],
    ids=["same", "unused", "shorter", "google", "another-piece", "another-casing"],
)
def test_the_data_must_have_been_prepared_with_the_sources_vocabulary(tmp_path, prepared, says):
    folder = source(tmp_path / "model", tokenizer=tokenizer())
    if says is None:
        check_vocabulary(open_source(folder), data(tokenizer=prepared))
        return
    with pytest.raises(UserError, match=f"{says}.*prepare the text with --vocab") as error:
        check_vocabulary(open_source(folder), data(tokenizer=prepared))
    assert "\n" not in str(error.value)


def test_a_vocabulary_alone_does_not_tell_its_casing(tmp_path):
    folder = source(tmp_path / "model")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    for cased in (True, False):
        check_vocabulary(open_source(folder), data(tokenizer=tokenizer(cased=cased)))
    with pytest.raises(UserError, match="token 8 is"):
        check_vocabulary(open_source(folder), data(tokenizer=tokenizer([*PIECES[:8], "dog", *PIECES[9:]])))


def test_a_source_without_a_tokenizer_is_warned_about(tmp_path, caplog):
    folder = source(tmp_path / "model")
    check_vocabulary(open_source(folder), data(tokenizer=tokenizer()))
    assert "has no tokenizer" in caplog.text
    caplog.clear()
    check_vocabulary(open_source(folder), data())  # random tokens
    assert caplog.text == ""


@pytest.mark.slow
def test_a_published_model_is_asked_for_config_and_tokenizer_first(tmp_path, hub: HubServer):
    folder = source(tmp_path / "model", tokenizer=tokenizer())
    commit = hub.publish("somebody/bert", {path.name: path.read_bytes() for path in folder.iterdir()})
    published = open_init(recipe("somebody/bert")[0])
    assert published is not None and published.config.hidden_size == MODEL.hidden_size
    check_vocabulary(published, data(tokenizer=tokenizer()))
    assert "model.safetensors" not in hub.asked()
    assert published.name == published.published == f"somebody/bert@{commit}"
    assert published.with_weights() is published
    assert "model.safetensors" in hub.asked()
