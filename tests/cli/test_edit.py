"""`python -m bert_jax edit` writes the altered model with its tokenizer and config."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.convert import convert
from bert_jax.formats.sentence_transformers import Vectors
from tests import tiny

PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "co", "##vid", "."]
CONFIG = tiny.CONFIG.replace(vocab_size=11, num_hidden_layers=3, max_position_embeddings=16)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False, max_length=16)
    return bert_jax.save_pretrained(
        tmp_path_factory.mktemp("source") / "bert", CONFIG, tiny.random_params(CONFIG, 3), tokenizer, head="pretraining"
    )


def test_everything_at_once(source, tmp_path, capsys):
    (tmp_path / "terms.txt").write_text("Covid\n\nfever\n")
    options = "--keep-layers 0,2 --prune-heads 1:0 --positions 24 --initial pieces --json"
    assert (
        main(["edit", str(source), str(tmp_path / "out"), "--words", str(tmp_path / "terms.txt"), *options.split()])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["new_tokens"] == {"covid": 11, "fever": 12}
    config, params, tokenizer, report = bert_jax.load(tmp_path / "out")
    assert config == CONFIG.replace(
        vocab_size=13, num_hidden_layers=2, pruned_heads=((1, (0,)),), max_position_embeddings=24
    )
    assert report.head == "pretraining"
    assert tokenizer is not None
    assert (tokenizer.max_length, tokenizer.tokenize("COVID cat")) == (24, ["covid", "cat"])
    before = bert_jax.load(source).params["bert"]
    table = params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_allclose(table[11], before["embeddings"]["word_embeddings"][8:10].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(
        params["bert"]["encoder"]["layer_1"]["feed_forward"]["output"]["kernel"],
        before["encoder"]["layer_2"]["feed_forward"]["output"]["kernel"],
    )
    assert "layers 0, 2 kept; heads 0 of layer 1 pruned; 2 words added" in (tmp_path / "out/README.md").read_text()


def test_a_layer_that_is_named_twice_loses_the_heads_of_both(source, tmp_path, capsys):
    config = CONFIG.replace(hidden_size=16, num_attention_heads=4, num_hidden_layers=1)
    four = bert_jax.save_pretrained(tmp_path / "four", config, tiny.random_params(config, 1), None, head="mlm")
    options = "--prune-heads 0:3 --prune-heads 0:1,3"
    assert main(["edit", str(four), str(tmp_path / "out"), *options.split()]) == 0
    assert "heads 1, 3 of layer 0 pruned" in capsys.readouterr().err
    assert bert_jax.load(tmp_path / "out").config.pruned_heads == ((0, (1, 3)),)


def test_a_list_may_be_given_in_several_options(source, tmp_path):
    assert main(["edit", str(source), str(tmp_path / "out"), "--keep-layers", "0", "--keep-layers", "2"]) == 0
    assert bert_jax.load(tmp_path / "out").config.num_hidden_layers == 2
    bare = convert(source, tmp_path / "bare", head="encoder-no-pooler").directory
    options = ["--head", "pretraining", "--allow-missing", "mlm_head,nsp_head", "--allow-missing", "bert/pooler"]
    assert main(["convert", str(bare), str(tmp_path / "whole"), *options]) == 0
    assert bert_jax.load(tmp_path / "whole").report.head == "pretraining"


def test_a_distilbert_of_some_layers(source, tmp_path, capsys):
    argv = ["edit", str(source), str(tmp_path / "student"), "--student", "distilbert", "--keep-layers", "0,2"]
    assert main(argv) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "student")
    assert "a DistilBERT of layers 0, 2; nsp_head left out" in (tmp_path / "student/README.md").read_text()
    loaded = bert_jax.load(tmp_path / "student")
    assert (loaded.config.model_type, loaded.config.num_hidden_layers, loaded.report.head) == ("distilbert", 2, "mlm")


def test_vectors_keep_their_pooling_and_their_maximum_length(source, tmp_path):
    vectors = convert(source, tmp_path / "vectors", to="sentence-transformers", pooling="cls+normalize")
    settings = vectors.directory / "sentence_bert_config.json"
    settings.write_text(settings.read_text().replace("16", "10").replace("false", "true"))
    prompts = {"prompts": {"query": "the "}, "default_prompt_name": "query"}
    (vectors.directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for options, longest in (("--keep-layers 0,2", 10), ("--positions 24", 24)):
        out = tmp_path / f"to-{longest}"
        assert main(["edit", str(vectors.directory), str(out), *options.split()]) == 0
        assert json.loads((out / "sentence_bert_config.json").read_text())["max_seq_length"] == longest
        assert json.loads((out / "sentence_bert_config.json").read_text())["do_lower_case"] is True
        assert json.loads((out / "config_sentence_transformers.json").read_text()) == prompts
        embed = bert_jax.pipeline("embed", out, runtime="xla")
        assert embed.pooling == "cls+normalize"
        assert np.linalg.norm(embed("cat")) == pytest.approx(1, abs=1e-5)


def test_words_are_lower_cased_where_the_folder_s_texts_are(tmp_path, capsys):
    cased = Tokenizer.from_vocabulary(PIECES, cased=True)
    params, vectors = tiny.random_params(CONFIG, 3, "encoder"), Vectors("mean", lower_case=True)
    source = tmp_path / "vectors"
    bert_jax.save_pretrained(source, CONFIG, params, cased, head="encoder", sentence_transformers=vectors)
    (tmp_path / "terms.txt").write_text("Covid\nTHE\n")
    argv = ["edit", str(source), str(tmp_path / "medical"), "--words", str(tmp_path / "terms.txt"), "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["new_tokens"] == {"covid": 11}
    assert bert_jax.pipeline("embed", tmp_path / "medical", runtime="xla").tokenizer.tokenize("Covid") == ["covid"]


def test_a_model_without_a_part_of_its_head_is_first_made_whole(source, tmp_path, capsys):
    config, params, tokenizer, _ = bert_jax.load(source)
    part = bert_jax.save_pretrained(tmp_path / "part", config, params, tokenizer, head="pretraining")
    weights = load_file(part / "model.safetensors")
    save_file(
        {name: array for name, array in weights.items() if "seq_relationship" not in name}, part / "model.safetensors"
    )
    argv = ["edit", str(part), str(tmp_path / "out"), "--keep-layers", "0"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"{part}: has no nsp_head, which its head pretraining needs; write it whole first" in said
    (words,) = re.findall(r"python -m bert_jax (convert \S+ )WHOLE", said)
    convert_it = [*words.split(), str(tmp_path / "whole")]
    assert main(convert_it) == 2
    (more,) = re.findall(r"say (--allow-missing \S+)\)", capsys.readouterr().err)
    assert main([*convert_it, *more.split()]) == 0
    assert main(["edit", str(tmp_path / "whole"), *argv[2:]]) == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "no change given"),
        ("--keep-layers 0,7", "--keep-layers 0,7: expected ascending numbers from 0 to 2"),
        ("--keep-layers 0;2", "expected whole numbers with commas between"),
        (
            "--student distilbert",
            "of twelve, and {source} has 3; say which, as in --keep-layers 0",
        ),
        ("--prune-heads 1", "expected a layer and its heads, such as 0:1,3"),
        ("--prune-heads 5:0", "heads of layer 5"),
        ("--positions 8", "--positions 8: the model already takes 16 positions"),
        ("--keep-layers 0 --how tile", "--how tile: say --positions too, or leave it out"),
        ("--keep-layers 0 --initial mean", "--initial mean: say --words FILE too, or leave it out"),
        ("--positions 40 --into-unused", "--into-unused: say --words FILE too, or leave it out"),
        ("--words {empty}", "has no words; expected one per line"),
        ("--words {absent}", "absent.txt: no such file; expected a file with a word per line"),
        ("--words {folder}", ": is a folder; expected a file with a word per line"),
        ("--words {terms} --into-unused", "2 new words, but the vocabulary has 1 free [unusedN] places"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(options, line, source, tmp_path, capsys):
    files = {name: str(tmp_path / f"{name}.txt") for name in ("empty", "absent", "terms")}
    files["folder"] = str(tmp_path)
    Path(files["empty"]).touch()
    Path(files["terms"]).write_text("one\ntwo\n")
    try:
        code = main(["edit", str(source), str(tmp_path / "out"), *options.format(**files).split()])
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr().err
    assert code == 2
    assert line.replace("{source}", str(source)) in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
