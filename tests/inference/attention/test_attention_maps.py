"""attend: the weights of all layers as arrays, tokens and their sides, files, mistakes, the verb, the guide."""

import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import run as run_verb
from bert_jax.cli.verbs.attend import summary
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.attention.maps import Attend, AttentionMaps, readable
from tests.guide import blocks_of, run_blocks
from tests.inference.attention.attention_folders import LONGEST, export

TEXT = "hello world held"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model"), "mlm")


@pytest.fixture(scope="module")
def look(folder: Path) -> Attend:
    return Attend(folder)


def run(*argv: object) -> None:
    run_verb([str(word) for word in argv])


def maps_of(weights: np.ndarray, special: list[int], tokens: list[str] | None = None) -> AttentionMaps:
    length = len(special)
    names = tokens or [f"t{i}" for i in range(length)]
    return AttentionMaps(
        tokens=names,
        attentions=weights.astype(np.float32),
        segments=np.zeros(length, np.int32),
        special=np.array(special, bool),
        has_head=np.asarray(weights.any(axis=(2, 3))),
        text="",
        text_pair=None,
        model="m",
        shown=names,
    )


def test_a_text_gives_a_distribution_over_its_own_tokens_for_each_of_them(look: Attend):
    maps = look(TEXT)
    assert maps.tokens == ["[CLS]", "hello", "world", "held", "[SEP]"]
    assert maps.attentions.shape == (2, 2, 5, 5)
    assert maps.attentions.dtype == np.float32
    assert (maps.attentions >= 0).all()
    np.testing.assert_allclose(maps.attentions.sum(axis=-1), 1, atol=1e-5)
    assert maps.special.tolist() == [True, False, False, False, True]
    assert maps.segments.tolist() == [0] * 5
    assert maps.has_head.all()


def test_weights_that_are_not_finite_are_named_and_never_shown(folder: Path):
    loaded = load(folder)
    layer = loaded.params["bert"]["encoder"]["layer_1"]["attention"]["query"]
    layer["kernel"] = layer["kernel"].at[0, 1].set(np.nan)
    with pytest.raises(UserError, match=r"parameter .*layer_1/attention/query/kernel is not finite"):
        Attend(loaded)(TEXT)


@pytest.mark.parametrize(
    ("text", "pair", "message"),
    [
        (7, None, "expected a text or a list of texts, found int"),
        ({"text": "hello"}, None, "expected a text or a list of texts, found dict"),
        (["hello", 7], None, "text 2: expected a string, found 7"),
        (["hello", "a\ud800"], None, "text 2 is not valid Unicode: lone surrogate"),
        (["hello", "o"], ["held", None], "text_pair 2: expected a string, found None"),
        ("hello", "\ud800", "text_pair 1 is not valid Unicode: lone surrogate"),
        (["hello", "o"], 7, "text_pair: expected a string if text is a string"),
        ("hello", ["held"], "text_pair: expected a string if text is a string"),
    ],
)
def test_anything_but_text_is_named(look: Attend, text: Any, pair: Any, message: str):
    with pytest.raises(UserError) as caught:
        look(text, pair)
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_padding_leaves_no_trace(look: Attend, folder: Path):
    loaded = load(folder, head="encoder-no-pooler")
    assert loaded.tokenizer is not None
    rows = loaded.tokenizer([TEXT], ["o held"])
    names = ("input_ids", "attention_mask", "token_type_ids")
    model: Any = loaded.model
    output = model.apply({"params": loaded.params}, *(rows[name] for name in names), output_attentions=True)
    maps = look(TEXT, "o held")
    np.testing.assert_allclose(maps.attentions, np.stack([layer[0] for layer in output.attentions]), atol=1e-6)


@pytest.mark.slow
def test_a_pair_has_sides_and_its_special_tokens_belong_to_the_text_before_them(look: Attend, tmp_path):
    maps = look("hello", "o held")
    assert maps.tokens == ["[CLS]", "hello", "[SEP]", "o", "held", "[SEP]"]
    assert maps.segments.tolist() == [0, 0, 0, 1, 1, 1]
    assert maps.special.tolist() == [True, False, True, False, False, True]
    roberta = Attend(export(tmp_path, "mlm", "roberta"))("hello", "o held")
    first = roberta.tokens.index("</s>")
    assert roberta.tokens[first : first + 2] == ["</s>", "</s>"]
    assert roberta.segments.tolist() == [0] * (first + 2) + [1] * (len(roberta.tokens) - first - 2)
    assert roberta.special.nonzero()[0].tolist() == [0, first, first + 1, len(roberta.tokens) - 1]


def test_special_tokens_that_stand_in_the_text_are_special_and_a_mask_is_not(look: Attend):
    maps = look("hello [SEP] [MASK]")
    assert maps.tokens == ["[CLS]", "hello", "[SEP]", "[MASK]", "[SEP]"]
    assert maps.special.tolist() == [True, False, True, False, True]


@pytest.mark.slow
def test_texts_of_like_length_are_compiled_once(folder: Path):
    look = Attend(folder)
    for text in ("", "hello", "hello world", "hello world held o"):
        look(text)
    assert look.compilations == 1
    look(" ".join(["hello"] * 20))
    assert look.compilations == 2
    assert look(" ".join(["hello"] * (LONGEST - 2))).attentions.shape[-1] == LONGEST
    assert look.compilations == 3


def test_a_list_gives_what_its_texts_give_one_by_one(look: Attend):
    texts, pairs = ["hello", "", TEXT], ["o", "held", ""]
    for maps, text, pair in zip(look(texts, pairs), texts, pairs, strict=True):
        np.testing.assert_array_equal(maps.attentions, look(text, pair).attentions)
        assert (maps.text, maps.text_pair) == (text, pair)
    assert look([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sequence-classification", "pretraining", "encoder", "encoder-no-pooler"])
def test_any_head_has_an_encoder_to_look_at(tmp_path: Path, head: str):
    folder = export(tmp_path, head)
    maps = Attend(folder)(TEXT)
    np.testing.assert_allclose(maps.attentions.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_array_equal(Attend(load(folder))(TEXT).attentions, maps.attentions)


@pytest.mark.slow
def test_heads_that_were_pruned_keep_their_places_empty(tmp_path: Path):
    kept = export(tmp_path / "a", "encoder", pruned_heads=((0, (0,)),))
    maps = Attend(kept)(TEXT)
    assert maps.has_head.tolist() == [[False, True], [True, True]]
    assert not maps.attentions[0, 0].any()
    np.testing.assert_allclose(maps.attentions[maps.has_head].sum(axis=-1), 1, atol=1e-5)
    assert [(row["layer"], row["head"]) for row in summary(maps)] == [(0, 1), (1, 0), (1, 1)]


def test_nothing_is_cut_what_is_too_long_is_an_error_that_names_both_lengths(look: Attend):
    long = " ".join(["hello"] * LONGEST)
    with pytest.raises(UserError) as error:
        look(["o", long])
    assert "text 2 ('hello hello" in str(error.value)
    assert f"has {LONGEST + 2} tokens; the model takes at most {LONGEST}" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=f"pair 1 .* has {LONGEST + 4} tokens"):
        look("o", long)


def test_mistakes_with_pairs_are_one_line(look: Attend):
    with pytest.raises(UserError, match="text_pair has 1 texts; expected 2"):
        look(["o", "o"], ["o"])
    with pytest.raises(UserError, match="expected a string if text is a string, else a list"):
        look("o", ["o"])


def test_the_file_of_arrays_is_read_back_by_numpy_alone(look: Attend, tmp_path: Path):
    maps = look(TEXT, "o")
    path = maps.save_npz(tmp_path / "weights")
    assert path == tmp_path / "weights"
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["tokens"].tolist() == maps.tokens
        for name in ("attentions", "segments", "special", "has_head"):
            np.testing.assert_array_equal(arrays[name], getattr(maps, name))


@pytest.mark.slow
def test_the_picture_shows_each_weight_in_its_place(tmp_path: Path):
    from matplotlib.image import imread

    def dark(weights: np.ndarray, tokens: list[str] | None = None) -> np.ndarray:
        path = maps_of(weights, [0] * weights.shape[-1], tokens).save_png(tmp_path / "grid.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        # The colour of the weight 1, which the bar beside the grid has too.
        return np.abs(imread(path)[..., :3] - (8 / 255, 48 / 255, 107 / 255)).max(axis=-1) < 0.02

    corner = np.zeros((1, 1, 30, 30))
    corner[..., 0] = 1  # all look at the first
    other = corner[..., ::-1]
    left, right = dark(corner), dark(other)
    columns = [np.flatnonzero(found.sum(axis=0) > found.shape[0] // 3) for found in (left, right)]
    assert columns[0].max() < left.shape[1] / 3 < right.shape[1] / 2 < columns[1].min()
    dark(np.stack([np.zeros((2, 3, 3)), np.tile(np.eye(3), (2, 1, 1))]), ["$x$\n", "中", "a" * 50])  # no warning


@pytest.mark.slow
def test_what_cannot_be_written_is_said_and_what_is_missing_named(look: Attend, tmp_path: Path, monkeypatch):
    maps = look("o")
    for save in (maps.save_html, maps.save_png, maps.save_npz):
        with pytest.raises(FileNotFoundError, match="its folder does not exist"):
            save(tmp_path / "none" / "file")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"needs the package matplotlib: pip install 'bert-jax\[train\]'"):
        maps.save_png(tmp_path / "grid.png")


def test_its_parameters_go_with_the_last_reference(folder: Path):
    look = Attend(folder)
    look(TEXT)
    kept = weakref.ref(look)
    gc.collect()
    gc.disable()
    try:
        del look
        assert kept() is None
    finally:
        gc.enable()


def test_byte_level_pieces_are_shown_as_the_text_they_stand_for():
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = ByteLevel.alphabet()
    text = " hé 中\n"
    ((piece, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert readable([piece, piece[:3], "<s>"], [*alphabet, "<s>"]) == ["▁hé 中\n", "▁h\\xc3", "<s>"]
    assert readable([piece], ["Ġ"]) == [piece]


def test_the_table_says_what_the_weights_do():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(6), size=(1, 2, 6))
    maps = maps_of(weights, [1, 0, 0, 1, 0, 1])
    rows = summary(maps)
    text, marks = [1, 2, 4], [0, 3, 5]
    for row, head in zip(rows, weights[0], strict=True):
        expected = {
            "special": np.mean([sum(head[i, j] for j in marks) for i in text]),
            "previous": np.mean([head[i, i - 1] for i in text]),
            "itself": np.mean([head[i, i] for i in text]),
            "next": np.mean([head[i, i + 1] for i in text]),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-6)
        assert row["most"] == f"t{np.argmax([sum(head[i, j] for i in text) for j in range(6)])}"
    shift = np.eye(4, k=-1)
    shift[0, 0] = 1  # each looks at the one before it, the first at itself
    (row,) = summary(maps_of(shift[None, None], [0, 0, 0, 0]))
    assert (row["previous"], row["itself"], row["next"]) == (0.75, 0.25, 0)


@pytest.mark.slow
def test_the_verb_prints_a_line_a_head_and_writes_what_is_asked_for(folder: Path, look: Attend, tmp_path, capsys):
    written = [tmp_path / name for name in ("a.html", "a.png", "a.npz")]
    files = [word for path in written for word in (f"--{path.suffix[1:]}", path)]
    run("attend", folder, "hello", "--pair", "o held", *files)
    out, err = capsys.readouterr()
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[0] == ["layer", "head", "special", "previous", "itself", "next", "most"]
    assert [line[:2] for line in lines[1:]] == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert all(path.stat().st_size for path in written) and err.count("wrote") == 3
    run("attend", folder, "hello", "--pair", "o held", "--json")
    found = json.loads(capsys.readouterr().out)
    maps = look("hello", "o held")
    assert found == {
        "tokens": maps.tokens, "special": maps.special.tolist(), "segments": maps.segments.tolist(),
        "heads": summary(maps),
    }  # fmt: skip
    assert [f"{row['special']:.4f}" for row in found["heads"]] == [line[2] for line in lines[1:]]
    with pytest.raises(FileNotFoundError, match="its folder does not exist"):
        run("attend", tmp_path / "no-model", "hello", "--png", tmp_path / "none" / "a.png")


@pytest.mark.slow
def test_the_guide_runs_as_written(tmp_path, monkeypatch):
    export(tmp_path / "made", "mlm").rename(tmp_path / "my-bert")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/attention.md")
    assert {block.language for block in blocks} == {"sh", "python"}
    run_blocks(blocks)
    assert all((tmp_path / name).is_file() for name in ("cat.html", "cat.png", "cat.npz", "pair.html"))
