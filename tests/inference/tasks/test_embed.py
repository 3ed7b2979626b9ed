"""Vectors of texts: pooled as the definitions say, the same packed or not; written to resumable files; nearest neighbours."""

import functools
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.cli.vector_file import VectorFile
from bert_jax.cli.verbs import embed as embed_command
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.sentence_transformers import Vectors, write_modules
from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.tasks.embed import TextEmbedding, nearest, pooled, pooled_sequences, similar
from bert_jax.model.heads import HEADS
from tests.inference.tasks.task_folders import LONGEST, export

TEXTS = ["hello world", "held", "o, world!", "", "hello held world " * 30, "中 hello", "[SEP] hello", "hello\0world"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("embed"), "pretraining")


@functools.cache
def model_of(folder):
    """(a function of ids and masks, its parameters, the tokenizer)."""
    config, params, tokenizer, _ = load(folder, head="encoder")
    return jax.jit(HEADS["encoder"](config).apply), params, tokenizer


def by_definition(folder, text: str, kind: str) -> np.ndarray:
    """The vector of one text, in float64 from the model's own hidden states."""
    apply, params, tokenizer = model_of(folder)
    inputs = tokenizer([text], max_length=LONGEST, padding="max_length")  # all in one shape: compiled once
    output = apply({"params": params}, **inputs)
    x_LD = np.asarray(output.last_hidden_state[0, : int(inputs["attention_mask"].sum())], np.float64)
    return {
        "mean": x_LD.mean(axis=0),
        "max": x_LD.max(axis=0),
        "cls": x_LD[0],
        "mean_sqrt_len_tokens": x_LD.sum(axis=0) / np.sqrt(len(x_LD)),
        "pooled": np.asarray(output.pooler_output[0], np.float64),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "max", "cls", "pooled"])
def test_vectors_are_pooled_as_they_are_defined(folder, kind):
    texts = TEXTS[:4]
    found = TextEmbedding(folder, pooling=kind)(texts)
    assert found.shape == (4, 8)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [by_definition(folder, text, kind) for text in texts], atol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "max", "cls", "mean_sqrt_len_tokens"])
def test_neither_padding_nor_a_neighbour_in_its_row_is_in_a_vector(kind):
    x_BLD = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
    of_definition = {
        "mean": lambda x_LD: x_LD.mean(axis=0),
        "max": lambda x_LD: x_LD.max(axis=0),
        "cls": lambda x_LD: x_LD[0],
        "mean_sqrt_len_tokens": lambda x_LD: x_LD.sum(axis=0) / np.sqrt(len(x_LD)),
    }[kind]
    found = pooled(x_BLD, np.array([[1, 1, 1, 1, 0, 0, 0], [1] * 7]), kind)
    np.testing.assert_allclose(found, [of_definition(x_BLD[0, :4]), of_definition(x_BLD[1])], rtol=1e-5)
    if kind != "max":
        of, starts = np.array([[1, 1, 2, 2, 2, 3, 0], [1] * 7]), np.array([[0, 2, 5], [0, 0, 0]])
        found = pooled_sequences(x_BLD, of, starts, kind)
        expected = [of_definition(x_BLD[0, begin:end]) for begin, end in ((0, 2), (2, 5), (5, 6))]
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)
        np.testing.assert_allclose(found[1, 0], of_definition(x_BLD[1]), rtol=1e-5)


@pytest.mark.slow
def test_packed_or_not_normalized_or_not_one_text_or_many(folder):
    packed = TextEmbedding(folder)
    assert packed.pooling == "mean+normalize"
    vectors = packed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(TextEmbedding(folder, packing=False)(TEXTS), vectors, atol=1e-5)
    plain = TextEmbedding(folder, pooling="mean")(TEXTS)
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), vectors, atol=1e-5)
    one = packed("hello world")
    assert one.shape == (8,)
    np.testing.assert_allclose(one, vectors[0], atol=1e-5)
    assert packed([]).shape == (0, 8)
    assert (pipeline("embed", folder)(TEXTS) == vectors).all()


@pytest.mark.slow
@pytest.mark.parametrize("pad", [0, 1])  # 0 is <s>, with which each text begins
def test_a_token_of_padding_within_a_text_does_not_bind_its_vector_to_its_neighbours(tmp_path, pad):
    embed = TextEmbedding(export(tmp_path, "encoder", "roberta", pad_token_id=pad))
    texts = ["hello <pad> world", "held", "<pad> <pad>hello", "world"]
    np.testing.assert_allclose(embed(texts), [embed(text) for text in texts], atol=1e-5)


@pytest.mark.slow
def test_the_folder_says_how_it_pools_and_where_it_cuts(tmp_path, caplog):
    folder = export(tmp_path, "encoder")
    write_modules(folder, "cls+normalize", 8, 6)
    embed = TextEmbedding(folder)
    assert (embed.pooling, embed.longest) == ("cls+normalize", 6)
    embed(["hello " * 20, "hello"])
    assert "1 of 2 texts are longer than 6 tokens and were truncated" in caplog.text
    expected = by_definition(folder, "hello", "cls")
    np.testing.assert_allclose(embed("hello"), expected / np.linalg.norm(expected), atol=1e-5)


def test_models_of_equal_parameters_that_answer_otherwise_have_different_fingerprints(tmp_path):
    """An unfinished file of vectors, or the parts of one, would be continued by the other."""
    folder = export(tmp_path, "encoder", "albert", embedding_size=4)
    found = {TextEmbedding(folder, runtime="xla", max_length=longest).fingerprint for longest in (None, LONGEST, 6)}
    assert len(found) == 2
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 3'))
    assert TextEmbedding(folder, runtime="xla").fingerprint not in found


def test_a_family_without_a_pooler_is_said_to_have_none(tmp_path):
    folder = export(tmp_path, "encoder-no-pooler", "distilbert")
    with pytest.raises(UserError, match="model: the model has no pooler, which pooling='pooled' needs"):
        TextEmbedding(folder, pooling="pooled")


def test_a_prompt_that_its_pooling_leaves_out_is_said_not_to_be_applied(tmp_path, caplog):
    folder = export(tmp_path, "encoder")
    fields = {"prompts": {"query": "hello "}, "default_prompt_name": "query"}
    write_modules(folder, Vectors("mean", include_prompt=False, fields=fields), 8, 6)
    assert TextEmbedding(folder).prompt == ""
    assert "its default prompt 'hello ' is not put before texts" in caplog.text
    with pytest.raises(UserError, match=r"leaves the prompt's tokens out \(include_prompt false\)"):
        TextEmbedding(folder, prompt="world ")
    caplog.clear()
    assert TextEmbedding(folder, pooling="max").prompt == ""  # another pooling says nothing of prompts
    assert "its default prompt 'hello ' is not put before texts" in caplog.text
    assert (
        main(["convert", str(folder), str(tmp_path / "new"), "--to", "sentence-transformers", "--pooling", "max"]) == 0
    )
    assert json.loads((tmp_path / "new/1_Pooling/config.json").read_text())["include_prompt"] is False


def test_similar_puts_the_prompts_of_the_folder_before_queries_and_texts(tmp_path, capsys):
    folder, texts, queries = export(tmp_path, "encoder"), ["held", "world hello", "low"], ["hello world", "held"]
    fields = {"prompts": {"query": "hello ", "passage": "world low "}, "default_prompt_name": "query"}
    write_modules(folder, Vectors("mean", fields=fields), 8, LONGEST)
    embed = TextEmbedding(folder, runtime="xla")

    def ranked(query: str, text: str, **options: Any) -> list[list[tuple[int, float]]]:
        scores, rows = nearest(embed(queries, prompt=query), embed(texts, prompt=text), 3, **options)
        return [list(zip(*one, strict=True)) for one in zip(rows.tolist(), scores.tolist(), strict=True)]

    def found(**options: Any) -> list[list[tuple[int, float]]]:
        return [
            [(row["corpus_id"], row["score"]) for row in one] for one in similar(embed, queries, texts, 3, **options)
        ]

    assert found() == ranked("hello ", "world low ") != ranked("hello ", "hello ")
    assert found(query_prompt="low ", text_prompt="") == ranked("low ", "")
    assert TextEmbedding(folder, runtime="xla", prompt="low ").search_prompts == ("low ", "low ")
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n")
    verb = ["similar", str(folder), queries[0], str(tmp_path / "corpus.txt"), "--json", "--runtime", "xla"]
    assert main(verb) == 0
    output = capsys.readouterr()
    assert [row["line"] - 1 for row in json.loads(output.out)] == [row for row, _ in ranked("hello ", "world low ")[0]]
    assert "prompts: 'hello ' before each query, 'world low ' before each line" in output.err
    for options, prompts in (
        (["--prompt", ""], ("", "")),
        (["--prompt=", "--query-prompt", "low "], ("low ", "")),
        (["--query-prompt="], ("", "world low ")),
    ):
        assert main([*verb, *options]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["score"] for row in rows] == pytest.approx([score for _, score in ranked(*prompts)[0]], abs=1e-5)


def test_similar_compares_as_the_folder_says(tmp_path):
    folder, texts, queries = export(tmp_path, "encoder"), ["held", "world hello", "low"], ["hello world", "held"]
    for name, product in (("cosine", False), ("dot", True), ("euclidean", None), ("hamming", None)):
        fields = {"similarity_fn_name": name}
        shutil.rmtree(folder / "1_Pooling", ignore_errors=True)
        write_modules(folder, Vectors("mean", fields=fields), 8, LONGEST)
        embed = TextEmbedding(folder, runtime="xla")
        if product is None:
            with pytest.raises(UserError, match=f"compared by '{name}'; similar knows cosine and dot"):
                list(similar(embed, queries, texts))
            continue
        left, right = embed(queries), embed(texts)
        if not product:
            left, right = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (left, right))
        for row, found in zip(left @ right.T, similar(embed, queries, texts, 3), strict=True):
            assert [one["corpus_id"] for one in found] == np.argsort(-row).tolist()
            np.testing.assert_allclose([one["score"] for one in found], np.sort(row)[::-1], rtol=1e-5)


def test_a_prompt_is_put_before_the_texts_of_a_pipeline_a_call_or_a_verb(folder, tmp_path, capsys):
    embed, texts = TextEmbedding(folder, runtime="xla"), ["held", "world"]
    want = embed([f"hello {text}" for text in texts])
    assert not np.allclose(want, embed(texts), atol=1e-3)
    np.testing.assert_array_equal(embed(texts, prompt="hello "), want)
    np.testing.assert_array_equal(TextEmbedding(folder, runtime="xla", prompt="hello ")(texts), want)
    with pytest.raises(UserError, match="prompt=3: expected a text"):
        embed(texts, prompt=3)
    with pytest.raises(UserError, match="prompt is not valid Unicode"):
        embed(texts, prompt="\udce9")
    (tmp_path / "lines.txt").write_text("\n".join(texts) + "\n")
    verb = ["embed", str(folder), str(tmp_path / "lines.txt"), "--output", str(tmp_path / "v.npy"), "--runtime", "xla"]
    assert main([*verb, "--prompt", "hello "]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), want)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("hello held\nheld\n")
    for options, line in (([], 2), (["--query-prompt", "hello "], 1), (["--prompt", "hello "], 2)):
        capsys.readouterr()
        assert main(["similar", str(folder), "held", str(corpus), "--top-k", "1", "--json", *options]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["line"], round(found["score"], 4)) == (line, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_every_runtime_keeps_as_many_numbers_as_the_folder_says(tmp_path, runtime):
    if find_spec(runtime) is None:  # importing OpenVINO here would fork, which the pipeline's own import does not
        pytest.skip(f"{runtime} is not installed")
    folder = export(tmp_path, "encoder")
    write_modules(folder, Vectors("mean+normalize", fields={"truncate_dim": 3}), 8, LONGEST)
    want = TextEmbedding(folder, runtime="xla", dtype="float32")(TEXTS)
    assert want.shape == (len(TEXTS), 3) and (np.linalg.norm(want, axis=1) < 0.99).all()
    asked = TextEmbedding(folder, pooling="mean+normalize", runtime=runtime, dtype="float32")(TEXTS)
    np.testing.assert_allclose(asked, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)
    found = TextEmbedding(folder, runtime=runtime, dtype="float32")
    np.testing.assert_allclose(found(TEXTS), want, atol=1e-5)
    np.testing.assert_allclose(found(TEXTS[0]), want[0], atol=1e-5)


@pytest.mark.slow
def test_a_text_without_a_vector_is_reported_and_the_others_get_theirs(folder):
    embed = TextEmbedding(folder)
    bad = ["hello", "\ud800", 7, UserError("line 4 could not be read"), "world"]
    with pytest.raises(UserError, match="Unicode"):
        embed(bad[:2])
    found = list(embed.stream(bad, on_error="return"))
    assert [isinstance(one, UserError) for one in found] == [False, True, True, True, False]
    np.testing.assert_allclose([found[0], found[4]], embed(["hello", "world"]), atol=1e-6)
    assert str(found[3]) == "line 4 could not be read"
    assert "text 3: expected a string, found 7" in str(found[2])
    with pytest.raises(UserError, match="expected one of cls, mean, max, mean_sqrt_len_tokens, pooled, or one of them"):
        TextEmbedding(folder, pooling="sum")
    with pytest.raises(UserError, match="packing: pooling is 'max'"):
        TextEmbedding(folder, pooling="max", packing=True)


@pytest.mark.slow
def test_weights_that_are_nan_are_refused(folder):
    loaded = load(folder, head="encoder-no-pooler")
    params = jax.tree.map(np.array, loaded.params)
    params["encoder"]["layer_0"]["attention"]["query"]["kernel"][0, 0] = np.nan
    with pytest.raises(UserError, match="parameter encoder/layer_0/attention/query/kernel is not finite"):
        TextEmbedding(loaded._replace(params=params))("hello")


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_a_stopped_file_of_vectors_is_completed_to_the_same_bits(tmp_path, suffix):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(23, 5)).astype(np.float32)

    def write(name: str, until: int, facts: dict) -> VectorFile:
        with VectorFile(tmp_path / name, width=5, made_of=facts, chunk=4) as file:
            for begin in range(file.rows, until, 4):
                file.append(list(vectors[begin : min(begin + 4, until)]))
            if until == 23:
                file.finish()
            return file

    write("whole" + suffix, 23, {"model": "a"})
    write("parts" + suffix, 14, {"model": "a"})
    assert not (tmp_path / ("parts" + suffix)).exists()
    with open(tmp_path / f"parts{suffix}.part", "ab") as file:
        file.write(b"[1")  # a write that was cut short
    with pytest.raises(
        UserError, match=r"was started with model='a', but now it is 'b'; remove it to start again, or say --over"
    ):
        write("parts" + suffix, 23, {"model": "b"})
    with VectorFile(tmp_path / f"parts{suffix}", width=5, made_of={"model": "a"}, chunk=4) as file:
        assert file.rows == 12
    write("parts" + suffix, 23, {"model": "a"})
    content = (tmp_path / ("whole" + suffix)).read_bytes()
    assert (tmp_path / ("parts" + suffix)).read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == [f"parts{suffix}", f"whole{suffix}"]
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(tmp_path / "whole.npy"), vectors)
        assert np.load(tmp_path / "whole.npy", mmap_mode="r").shape == (23, 5)
    else:
        rows = [json.loads(line) for line in content.decode().splitlines()]
        np.testing.assert_array_equal(np.array(rows, np.float32), vectors)
    with pytest.raises(UserError, match="already exists"):
        write("whole" + suffix, 23, {"model": "a"})


def test_a_file_of_texts_whose_name_is_not_utf8_is_refused_before_it_is_recorded(tmp_path):
    with pytest.raises(UserError, match=r"caf\\xe9\.txt': the name is not UTF-8"):
        embed_command._described(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")))


@pytest.mark.slow
def test_embed_writes_a_row_a_line_and_says_which_lines_have_none(folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_bytes(b"hello world\n\n\xff\nheld\n")
    argv = ["embed", str(folder), str(tmp_path / "texts.txt")]
    assert main([*argv, "--output", str(tmp_path / "v.npy")]) == 2
    said = capsys.readouterr().err
    assert (
        f"python -m bert_jax embed: error: {tmp_path / 'texts.txt'}, line 3: byte 0xff at position 1 is not UTF-8"
        in said
    )
    assert "1 of 4 texts have no vector" in said
    vectors = np.load(tmp_path / "v.npy")
    expected = TextEmbedding(folder)(["hello world", "", "held"])
    np.testing.assert_allclose(vectors[[0, 1, 3]], expected, atol=1e-6)
    assert np.isnan(vectors[2]).all()
    assert main(argv) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == ""
    np.testing.assert_allclose([json.loads(lines[i]) for i in (0, 1, 3)], expected, atol=1e-6)
    assert main([*argv, "--output", str(tmp_path / "v.npy")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main([*argv, "--output", str(tmp_path / "v.txt")]) == 2
    assert "expected a name ending in .npy or .jsonl" in capsys.readouterr().err


def test_embed_gives_json_or_the_error_in_its_place(folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_bytes(b"hello world\n\xff\nheld\n")
    argv = ["embed", str(folder), str(tmp_path / "texts.txt"), "--json"]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    first, error, second = (json.loads(line) for line in out.splitlines())
    np.testing.assert_allclose([first, second], TextEmbedding(folder)(["hello world", "held"]), atol=1e-6)
    assert "texts.txt, line 2: byte 0xff" in error["error"]
    assert err == "python -m bert_jax embed: error: 1 of 3 texts could not be answered\n"
    assert main([*argv, "--output", str(tmp_path / "v.npy")]) == 2
    assert "--json: leave it out with --output" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_embed_resumes_where_it_was_stopped(folder, tmp_path, capsys, monkeypatch, suffix):
    lines = [b"hello " * (number % 5) + b"held" for number in range(14)]
    lines[5] = lines[9] = b"\xff"
    (tmp_path / "texts.txt").write_bytes(b"\n".join(lines) + b"\n")
    monkeypatch.setattr(embed_command, "_AT_ONCE", 4)
    append, appended = VectorFile.append, []

    def stopped_at_the_third(self, rows):
        appended.append(len(rows))
        if len(appended) == 3:
            raise KeyboardInterrupt
        append(self, rows)

    def run(name: str) -> int:
        return main(["embed", str(folder), str(tmp_path / "texts.txt"), "--output", str(tmp_path / f"{name}{suffix}")])

    assert run("whole") == 2  # lines 6 and 10
    monkeypatch.setattr(VectorFile, "append", stopped_at_the_third)
    assert run("parts") == 130
    assert (tmp_path / f"parts{suffix}.part").exists() and not (tmp_path / f"parts{suffix}").exists()
    capsys.readouterr()
    assert run("parts") == 2
    said = capsys.readouterr().err
    assert "resuming after line 8\n" in said and "texts.txt, line 10: byte 0xff" in said
    assert "2 of 14 texts have no vector" in said and "line 6:" not in said  # which was said before
    assert appended == [4, 4, 4, 4, 2]
    assert (tmp_path / f"parts{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in (tmp_path / "parts.jsonl").read_text().splitlines()]
        assert len(rows) == 14 and rows[9] is None
        np.testing.assert_allclose(rows[0], TextEmbedding(folder)("held"), atol=1e-5)


@pytest.mark.parametrize("damaged", [False, True])
def test_what_another_start_left_unfinished_is_replaced_on_request(tmp_path, damaged):
    def begin(made_of: dict, overwrite: bool = False) -> int:
        with VectorFile(tmp_path / "v.npy", width=2, made_of=made_of, chunk=1, overwrite=overwrite) as file:
            before = file.rows
            file.append([np.full(2, before, np.float32)])
            return before

    assert [begin({"model": "a"}), begin({"model": "a"}), begin({"model": "a"}, overwrite=True)] == [0, 1, 2]
    if damaged:
        (tmp_path / "v.npy.part.json").write_text("damaged")
    assert begin({"model": "b"}, overwrite=True) == 0
    with VectorFile(tmp_path / "v.npy", width=2, made_of={"model": "b"}, chunk=1) as file:
        assert np.load(file.finish()).tolist() == [[0, 0]]


def test_a_file_that_another_program_is_writing_is_left_alone(tmp_path):
    options = {"width": 2, "made_of": {}, "chunk": 1}
    with VectorFile(tmp_path / "v.npy", **options) as first:
        first.append([np.ones(2, np.float32)])
        with pytest.raises(UserError, match=r"v\.npy\.part: another program is writing it; wait until it ends"):
            VectorFile(tmp_path / "v.npy", **options)
        first.append([np.ones(2, np.float32)])
        assert np.load(first.finish()).shape == (2, 2)
    with VectorFile(tmp_path / "v.npy", overwrite=True, **options) as second:
        assert second.rows == 0


def test_a_start_that_was_killed_before_it_wrote_anything_is_no_obstacle(tmp_path):
    (tmp_path / "v.npy.part").touch()
    with VectorFile(tmp_path / "v.npy", width=2, made_of={}, chunk=1) as file:
        assert file.rows == 0


@pytest.mark.parametrize("content", [b"", b'{"wid', b"[]", b"\xff"])
def test_damage_to_an_unfinished_file_is_reported(tmp_path, content):
    def begin() -> None:
        with VectorFile(tmp_path / "v.npy", width=2, made_of={}, chunk=4) as file:
            file.append([np.zeros(2, np.float32)] * 4)

    begin()
    (tmp_path / "v.npy.part.json").write_bytes(content)
    with pytest.raises(UserError, match=r"v\.npy\.part\.json: is damaged, .*; remove both to start again"):
        begin()


def test_the_facts_of_an_unfinished_file_are_whole_or_as_they_were(tmp_path, monkeypatch):
    def begin() -> int:
        with VectorFile(tmp_path / "v.npy", width=2, made_of={}, chunk=1) as file:
            file.append([np.zeros(2, np.float32)])
            return file.rows

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    begin()
    with monkeypatch.context() as stop:
        stop.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            begin()
    assert begin() == 2


def test_the_nearest_are_those_of_sorting_all_cosines():
    rng = np.random.default_rng(1)
    queries, corpus = rng.normal(size=(7, 6)).astype(np.float32), rng.normal(size=(50, 6)).astype(np.float32)
    corpus[20] = corpus[4] * 2  # the same direction: the earlier goes first
    corpus[9] = np.nan
    scores, rows = nearest(queries, corpus, 8)
    for query, own_scores, own_rows in zip(queries, scores, rows, strict=True):
        with np.errstate(invalid="ignore"):
            cosines = corpus @ query / np.linalg.norm(corpus, axis=1) / np.linalg.norm(query)
        order = sorted((i for i in range(50) if i != 9), key=lambda i: (-round(float(cosines[i]), 5), i))[:8]
        assert own_rows.tolist() == order
        np.testing.assert_allclose(own_scores, cosines[order], atol=1e-5)
    assert nearest(queries, corpus[:3], 8)[1].shape == (7, 3)


def test_similar_finds_the_text_itself_first(folder, tmp_path, capsys):
    corpus = ["held", "hello world", "o, world!", "中"]
    found = list(similar(TextEmbedding(folder), ["hello world", "中"], corpus, top_k=2))
    assert [one[0]["corpus_id"] for one in found] == [1, 3]
    assert found[0][0]["text"] == "hello world"
    assert found[0][0]["score"] == pytest.approx(1, abs=1e-5)
    for name, lines in (("q", ["hello world", "中"]), ("c", corpus)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["similar", str(folder), str(tmp_path / "q"), str(tmp_path / "c"), "--top-k", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[row["line"] for row in one] for one in rows] == [[row["corpus_id"] + 1 for row in one] for one in found]
    embed = TextEmbedding(folder)
    assert list(similar(embed, np.array(["hello world", "中"]), iter(corpus), top_k=2)) == found
    for queries, texts, says in (
        (["a"], [], "the corpus has no texts"),
        ("hello", corpus, "expected a list of queries, found str"),
        (["hello"], "abc", "expected a list of texts as the corpus, found str"),
    ):
        with pytest.raises(UserError, match=says):
            next(similar(embed, queries, texts))
    for options, says in (
        ({"max_length": "5"}, "max_length='5': expected a whole"),
        ({"pooling": 3}, "pooling=3: expected"),
    ):
        with pytest.raises(UserError, match=says):
            TextEmbedding(folder, **options)
    with pytest.raises(UserError, match="expected a list or another iterable of items, found one: 'hello'"):
        next(embed.stream("hello"))


@pytest.mark.slow
def test_similar_says_which_lines_are_bad_and_finds_the_others(folder, tmp_path, capsys):
    (tmp_path / "q").write_bytes(b"hello world\n\xff\nheld\n")
    (tmp_path / "c").write_bytes(b"held\n\xfe\nhello world\n")
    argv = ["similar", str(folder), str(tmp_path / "q"), str(tmp_path / "c"), "--json"]
    assert main([*argv, "--top-k", "3"]) == 2
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [[row["line"] for row in rows[i]] for i in (0, 2)] == [[3, 1], [1, 3]]
    assert f"{tmp_path / 'q'}, line 2: byte 0xff" in rows[1]["error"]
    assert f"python -m bert_jax similar: error: {tmp_path / 'c'}, line 2: byte 0xfe" in err.splitlines()[0]
    assert "1 of 3 texts could not be answered" in err.splitlines()[1]
    (tmp_path / "q").write_bytes(b"hello world\n")
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert "1 of 3 lines of" in err.splitlines()[-1]
    assert main([*argv, "--output", str(tmp_path / "found")]) == 2
    assert "1 of 3 lines of" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "found").read_text() == out
