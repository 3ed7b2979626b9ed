"""Training a model that transformers wrote on one's own text, and loading the result in transformers: end to end."""

import contextlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from tests.hub_server import HubServer
from tests.run_directory import records, stopped_at
from train import pretrain
from train.prepare import main as prepare
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED

pytestmark = [pytest.mark.parity, pytest.mark.slow]

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "The",
    "the",
    "A",
    "a",
    "Cat",
    "cat",
    "Dog",
    "dog",
    "sat",
    "ran",
    "slept",
    "on",
    "under",
    "by",
    "Mat",
    "mat",
    "Tree",
    "tree",
    "House",
    "house",
    "Paris",
    "Rome",
    ".",
    ",",
]
RECIPE = '''"""A recipe small enough for a test."""

from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=5),
        phases=(Phase(32, 16, 50),),
        packing="no",
        log_every=1,
        eval_every=25,
        eval_batches=4,
        save_every=25,
        keep=2,
    )
'''
SIZES = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "layer_norm_eps": 1e-10,
    "hidden_act": "gelu_new",
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "more.py"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """Documents of a simple grammar, capitals and all."""
    generator = np.random.default_rng(0)
    subjects, verbs, places = ["The cat", "The dog", "A cat"], ["sat", "ran", "slept"], ["mat", "tree", "house"]

    def sentence() -> str:
        return " ".join([*(generator.choice(part) for part in (subjects, verbs)), "on the", generator.choice(places)])

    documents = ["\n".join(f"{sentence()} by Paris." for _ in range(generator.integers(4, 9))) for _ in range(80)]
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return str(path)


def written_by_transformers(path: Path, architecture: str) -> Path:
    """A cased folder with random weights, as `save_pretrained` of transformers leaves it."""
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(transformers.BertConfig(**SIZES))
    model.save_pretrained(path)
    vocabulary = path.parent / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in [*SPECIAL, *WORDS]))
    tokenizer = transformers.BertTokenizer(str(vocabulary), do_lower_case=False)
    tokenizer.save_pretrained(path)
    return path


def prepared(corpus: str, vocab: str | Path, directory: Path, *options: str) -> str:
    words = [corpus, "--output", str(directory), "--vocab", str(vocab), "--max-seq-length", "32", "--held-out", "0.15"]
    assert prepare([*words, "--dupe-factor", "2", "--workers", "1", *options]) == EXIT_DONE
    return str(directory)


@contextlib.contextmanager
def silence(caplog):
    """A context in which transformers must not log a warning."""
    transformers.logging.enable_propagation()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        yield
    transformers.logging.disable_propagation()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("transformers")] == []


def masked_loss(folder: Path, architecture: str, data: str) -> float:
    """The loss of transformers' model in that folder on one batch of the prepared held-out examples."""
    from bert_jax.data.pretraining.batches import Batches

    batch = Batches(data, split="held-out", batch_size=16, max_seq_length=32, shuffle=False).batch(0)
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    inputs = {name: torch.tensor(np.asarray(batch[name])) for name in ("input_ids", "token_type_ids", "attention_mask")}
    rows = torch.arange(16)[:, None]
    with torch.no_grad():
        output = model(**inputs)
    logits = getattr(output, "prediction_logits", None)
    logits = output.logits if logits is None else logits
    positions, labels = (torch.tensor(np.asarray(batch[name])).long() for name in ("mlm_positions", "mlm_labels"))
    weights = torch.tensor(np.asarray(batch["mlm_weights"]))
    losses = torch.nn.functional.cross_entropy(logits[rows, positions].transpose(1, 2), labels, reduction="none")
    return float((losses * weights).sum() / weights.sum())


def test_a_published_model_continues_on_ones_own_text_and_goes_back(corpus, recipe, tmp_path, hub: HubServer, caplog):
    """Prepared with its tokenizer, started from its weights, its commit recorded, resumed without it, exported."""
    folder = written_by_transformers(tmp_path / "theirs", "BertForPreTraining")
    commit = hub.publish("somebody/bert", {path.name: path.read_bytes() for path in folder.iterdir()})
    data, run = prepared(corpus, "somebody/bert", tmp_path / "data"), tmp_path / "run"
    words = [recipe, "init=somebody/bert", f"data={data}", f"run={run}", "model.hidden_dropout_prob=0"]

    with stopped_at(30):
        assert pretrain.main(words) == EXIT_PREEMPTED
    # Whoever resumes needs neither the network nor the cache.
    hub.stop()
    shutil.rmtree(tmp_path / "hub-cache")
    assert pretrain.main(words) == EXIT_DONE

    assert json.loads((run / "environment.json").read_text())["init"] == f"somebody/bert@{commit}"
    assert f"model and parameters of somebody/bert@{commit}: bert, 2 layers of 32" in (run / "run.log").read_text()
    assert f"| started from | somebody/bert@{commit} |" in (run / "export" / "README.md").read_text()
    model = json.loads((run / "config.json").read_text())["model"]
    assert {name: model[name] for name in SIZES} == SIZES
    assert model["hidden_dropout_prob"] == 0

    before = masked_loss(folder, "BertForPreTraining", data)
    with silence(caplog):
        after = masked_loss(run / "export", "BertForPreTraining", data)
        AutoTokenizer.from_pretrained(run / "export")
    first, last = records(run, "train")[0], records(run, "eval")[-1]
    assert first["mlm_loss"] == pytest.approx(before, rel=0.1)  # it began where theirs is
    assert after < before - 1
    assert last["mlm_loss"] < before - 1 and last["mlm_loss"] < last["unigram_loss"]

    theirs, ours = (AutoTokenizer.from_pretrained(f) for f in (folder, run / "export"))
    text = "The Cat sat on the mat, by Paris."
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert Tokenizer.load(run / "export").cased


@pytest.mark.parametrize(
    ("architecture", "drawn"),
    [("BertForMaskedLM", "nsp_head, bert/pooler"), ("BertModel", "mlm_head, nsp_head")],
)
def test_raw_text_is_cut_by_the_sources_tokenizer_and_missing_heads_are_new(
    corpus, recipe, tmp_path, architecture, drawn, caplog
):
    folder, run = written_by_transformers(tmp_path / "theirs", architecture), tmp_path / "run"
    words = [recipe, f"init={folder}", f"text={corpus}", f"run={run}"]
    assert pretrain.main([*words, "text_options.held_out=0.15", "text_options.workers=1"]) == EXIT_DONE
    assert Tokenizer.load(run / "tokenizer").fingerprint == Tokenizer.load(folder).fingerprint
    assert f"{folder} has no {drawn}: initialised randomly" in caplog.text
    first = records(run, "train")[0]
    with silence(caplog):
        assert masked_loss(run / "export", "BertForPreTraining", str(run / "data")) < first["mlm_loss"] - 1


def test_roberta_continues_without_pairs(corpus, recipe, tmp_path, caplog):
    """Byte-level pieces, [PAD] 1, positions that start at 2, one token type."""
    folder, run = tmp_path / "theirs", tmp_path / "run"
    folder.mkdir()
    pieces = ByteLevelBPETokenizer()
    pieces.train([corpus], vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    pieces.save_model(str(folder))
    tokenizer = transformers.RobertaTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 34, "type_vocab_size": 1}
    transformers.RobertaForMaskedLM(transformers.RobertaConfig(**sizes)).save_pretrained(folder)
    words = [recipe, f"init={folder}", f"text={corpus}", f"run={run}", "text_options.held_out=0.15"]
    words += ["text_options.objective=none", "text_options.workers=1", "phases=((32, 16, 30),)"]
    assert pretrain.main(words) == EXIT_DONE
    assert "initialised randomly" not in caplog.text
    data = str(run / "data")
    before = masked_loss(folder, "RobertaForMaskedLM", data)
    with silence(caplog):
        assert masked_loss(run / "export", "RobertaForMaskedLM", data) < before - 1
        again = AutoTokenizer.from_pretrained(run / "export")
    assert records(run, "train")[0]["mlm_loss"] == pytest.approx(before, rel=0.1)
    assert again("The Cat sat.")["input_ids"] == tokenizer("The Cat sat.")["input_ids"]
