"""fill-mask: the model's predictions as plain Python, and how often it compiles."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args, get_overloads, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded, load
from bert_jax.formats.read import Report
from bert_jax.formats.sentence_transformers import write_modules
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import TASKS, FillMask, pipeline
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.model.heads import BertForMaskedLM
from tests import tiny
from tests.inference.tasks.task_folders import TAGS, export

PIECES = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *"the cat sat on mat a dog ##s , .".split()]  # noqa: SIM905
CONFIG = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=40,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    params = tiny.random_params(CONFIG, 4)
    tokenizer = Tokenizer.from_vocabulary(PIECES, cased=False)
    return save_pretrained(tmp_path_factory.mktemp("models") / "m", CONFIG, params, tokenizer)


@pytest.fixture(scope="module")
def predict(folder) -> FillMask:
    return FillMask(folder, batch_size=4)


@pytest.fixture
def xla_compilations() -> Iterator[Callable[[], int]]:
    """How many programs XLA has compiled since the test began."""
    found = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(found)
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module")
def probabilities(folder):
    """text -> its ids and the softmax at every position, from the model itself, all texts in one shape."""
    config, params, tokenizer, _ = load(folder, head="mlm")
    apply = jax.jit(BertForMaskedLM(config).apply)

    def of(text: str) -> tuple[list[int], np.ndarray]:
        inputs = tokenizer([text], padding="max_length", max_length=12)
        logits = apply({"params": params}, **inputs).prediction_logits[0]
        return inputs["input_ids"][0].tolist(), np.asarray(jax.nn.softmax(logits, axis=-1))

    return of


def rows_of(result: list) -> list[dict]:
    """The dicts of a result, with one [MASK] or several."""
    return result if isinstance(result[0], dict) else [row for mask in result for row in mask]


def assert_same(a: list, b: list):
    a, b = rows_of(a), rows_of(b)
    for name in ("token", "token_str", "sequence"):
        assert [row[name] for row in a] == [row[name] for row in b]
    np.testing.assert_allclose([row["score"] for row in a], [row["score"] for row in b], rtol=1e-4)


@pytest.mark.slow
def test_predictions_are_the_model_s(probabilities, predict):
    ids, expected = probabilities("the cat [MASK] on the mat.")
    expected = expected[ids.index(4), : len(PIECES)]
    found = predict("The cat [MASK] on the mat.", top_k=4)
    assert [list(row) for row in found] == [["score", "token", "token_str", "sequence"]] * 4
    assert [row["token"] for row in found] == np.argsort(-expected)[:4].tolist()
    np.testing.assert_allclose([row["score"] for row in found], -np.sort(-expected)[:4], rtol=1e-5)
    for row in found:
        assert row["token_str"] == PIECES[row["token"]]
        assert (type(row["score"]), type(row["token"])) == (float, int)
    best = next(row for row in found if row["token_str"].isalpha())
    assert best["sequence"] == f"the cat {best['token_str']} on the mat."


def test_each_of_several_masks_is_filled_on_its_own(probabilities, predict):
    text = "[MASK] cat [MASK] on a [MASK]"
    ids, expected = probabilities(text)
    found = predict(text, top_k=2)
    assert len(found) == 3
    for position, row in zip([i for i, token in enumerate(ids) if token == 4], found, strict=True):
        assert row[0]["token"] == expected[position, : len(PIECES)].argmax()
        assert row[0]["sequence"].count("[MASK]") == (3 if row[0]["token"] == 4 else 2)
        assert row[0]["sequence"].startswith("[CLS]")


@pytest.mark.slow
def test_a_list_gives_what_its_texts_give_alone_in_their_order(predict):
    texts = [
        "the [MASK]", "the cat sat on the mat, " * 4 + "the [MASK].", "a [MASK] sat on [MASK].", "[MASK]", "dogs [MASK] a",
    ]  # fmt: skip
    together = predict(texts, top_k=3)
    assert len(together) == len(texts)
    for text, found in zip(texts, together, strict=True):
        alone = predict(text, top_k=3)
        assert_same(found, alone)
    assert predict([]) == []
    assert predict(["the [MASK]"], top_k=1) == [predict("the [MASK]", top_k=1)]


@pytest.mark.slow
def test_no_shape_is_compiled_twice(folder):
    predict = FillMask(folder, batch_size=4)
    words = "the cat sat on a mat , the dog sat . a cat".split()  # noqa: SIM905
    for count in range(1, 13):
        predict(" ".join(words[:count]) + " [MASK]", top_k=5)
    assert predict.compilations == 1  # lengths 4 to 15: one bucket
    for count in range(1, 8):
        predict(["[MASK] " + "a " * n for n in range(count + 1)], top_k=count)
    assert predict.compilations == 2  # and a full batch of it
    predict("a " * 20 + "[MASK]")
    predict("a " * 25 + "[MASK]")
    assert predict.compilations == 3
    predict("[MASK] [MASK] [MASK]")
    predict("[MASK] [MASK] [MASK] [MASK]")
    assert predict.compilations == 3  # a row for each mask


@pytest.mark.slow
def test_editors_know_what_each_task_returns():
    hints = [get_type_hints(one) for one in get_overloads(pipeline)]
    assert {get_args(hint["task"]): hint["return"] for hint in hints[:-1]} == {
        (task,): kind for task, kind in TASKS.items()
    }


def test_padding_rows_of_the_table_never_win(probabilities, predict):
    """The table has 20 rows and the vocabulary 15 tokens."""
    found = predict("the [MASK]", top_k=1000)
    assert sorted(row["token"] for row in found) == list(range(len(PIECES)))
    ids, expected = probabilities("the [MASK]")
    total = expected[ids.index(4), : len(PIECES)].sum()
    assert math.isclose(sum(row["score"] for row in found), total, rel_tol=1e-5)
    assert total < 0.999  # the share of the rows without a token is not given to the others


def test_masks_of_one_text_take_no_memory_of_the_others(predict):
    """A row needs the same number of positions whatever rows are beside it."""
    alone = predict.encode(["the [MASK]"], 0, **predict.settled)[1]
    beside = predict.encode(["the [MASK]", "[MASK] " * 30], 0, **predict.settled)[1]
    assert alone.targets["mlm_positions"].shape[1:] == beside.targets["mlm_positions"].shape[1:]
    assert predict("[MASK] " * 30)[29][0].keys() == {"score", "token", "token_str", "sequence"}


PRETRAINED = ("embed", "fill-mask", "likelihood", "next-sentence", "summarise")


def request_of(task: str, rng: np.random.Generator) -> Any:
    def words(most: int) -> str:
        return " ".join(rng.choice(["hello", "world", "o", ","], rng.integers(1, most)))

    return {
        "fill-mask": lambda: " ".join([words(20), *["[MASK]"] * rng.integers(1, 9)]),
        "next-sentence": lambda: (words(20), words(20)),
        "summarise": lambda: f"Hello {words(20)}. World {words(9)}.",
        "question-answering": lambda: {"question": words(9), "context": words(90)},
        "multiple-choice": lambda: {"text": words(20), "choices": [words(9) for _ in range(rng.integers(1, 6))]},
    }.get(task, lambda: words(30))()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "requests"),
    [
        *((task, 50) for task in TASKS),
        ("text-classification", 1000),
    ],
)
def test_what_is_compiled_ahead_of_time_is_all_that_a_pipeline_needs(task, requests, tmp_path, xla_compilations):
    fields: dict[str, Any] = {"labels": TAGS} if task == "token-classification" else {}
    folder = export(tmp_path, "pretraining" if task in PRETRAINED else task.replace("text", "sequence"), **fields)
    predict: Any = pipeline(task, folder, batch_size=4)
    engine = predict.embed.engine if task == "summarise" else predict.engine
    told = []
    before = xla_compilations()
    count = predict.compile_all(lambda done, total: told.append((done, total)))
    assert told == [(done, count) for done in range(1, count + 1)]
    assert count == predict.compilations == len(engine.shapes)
    assert xla_compilations() - before == count
    rng = np.random.default_rng(0)
    for _ in range(requests):
        list(predict.stream([request_of(task, rng) for _ in range(rng.integers(1, 7))]))
    assert predict.compilations == count
    assert xla_compilations() - before == count


def cut_at_the_beginning(folder, tmp_path) -> Tokenizer:
    other = shutil.copytree(folder, tmp_path / "left")
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    return Tokenizer.load(other)


def test_a_text_without_mask_is_a_clear_error(predict):
    with pytest.raises(UserError, match=r"text 2 \('the cat sat'\) has no \[MASK\]"):
        predict(["the [MASK]", "the cat sat"])


@pytest.mark.slow
def test_too_long_is_an_error_or_cut_by_the_stated_rule(folder, predict, tmp_path):
    long = "the [MASK] " + "a " * 60
    with pytest.raises(UserError, match=r"has 64 tokens; the model takes at most 40"):
        predict(long)
    cut = FillMask(folder, truncation=True)
    whole = predict("the [MASK] " + "a " * 36, top_k=3)  # 40 tokens with [CLS] and [SEP]
    assert_same(cut(long, top_k=3), whole)
    with pytest.raises(UserError, match=r"truncating it to 40 tokens removes a \[MASK\]"):
        cut("a " * 60 + "[MASK]")
    assert_same(predict(long, top_k=3, tokenizer_kwargs={"truncation": True, "padding": "longest"}), whole)
    assert_same(cut(long, tokenizer_kwargs={"max_length": 5}), predict("the [MASK] a"))
    cut.tokenizer = cut_at_the_beginning(folder, tmp_path)
    assert_same(cut("a " * 60 + "[MASK] the", top_k=3), predict("a " * 36 + "[MASK] the", top_k=3))
    with pytest.raises(UserError, match=r"truncating it to 40 tokens removes a \[MASK\]"):
        cut(long)
    with pytest.raises(UserError, match="has 64 tokens"):
        cut(long, tokenizer_kwargs={"truncation": False})
    with pytest.raises(UserError, match="tokenizer_kwargs: has 'stride'; expected some of truncation, max_length, pad"):
        predict(long, tokenizer_kwargs={"stride": 3})


@pytest.mark.slow
def test_a_loaded_model_and_a_run_by_googles_rules_work(folder, predict, tmp_path):
    loaded = load(folder)
    assert_same(pipeline("fill-mask", loaded)("the [MASK]"), predict("the [MASK]"))
    literal = Tokenizer.from_vocabulary(PIECES, cased=False, literal_special_tokens=False)
    copy = save_pretrained(tmp_path / "google", CONFIG, loaded.params, literal)
    assert load(copy).tokenizer.literal_special_tokens  # the folder is loaded for questions with [MASK] too
    assert_same(bert_jax.pipeline("fill-mask", copy)("the [MASK]"), predict("the [MASK]"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("likelihood", ["hello", "world"]),
        ("next-sentence", [("hello", "world"), ("held", "o")]),
        ("summarise", "Hello world. Held o."),
        ("summarise", ["Hello world. Held o.", "O."]),
    ],
)
def test_a_notebook_shows_the_results_as_tables(task, given, tmp_path):
    found: Any = pipeline(task, export(tmp_path, "pretraining"))(given)
    assert json.loads(json.dumps(found)) == found
    html = found._repr_html_()
    rows = found if isinstance(found[0], dict) else [row for some in found for row in some]
    assert html.count("<td>") == sum(map(len, rows)) > 0
    assert all(f"<th>{name}</th>" in html for row in rows for name in row)


def test_a_loaded_model_pools_and_cuts_as_its_folder_says(tmp_path):
    folder = export(tmp_path, "encoder")
    write_modules(folder, "cls", 8, 6)
    texts = ["hello " * 20, "hello world"]
    by_path, loaded = TextEmbedding(folder), TextEmbedding(load(folder))
    assert (loaded.pooling, loaded.longest) == (by_path.pooling, by_path.longest) == ("cls", 6)
    np.testing.assert_array_equal(loaded(texts), by_path(texts))
    elsewhere = load(folder)
    elsewhere = elsewhere._replace(report=replace(elsewhere.report, source="nowhere"))
    assert TextEmbedding(elsewhere).pooling == "mean+normalize"


def test_mistakes_are_one_clear_line(folder, predict):
    with pytest.raises(UserError, match="task 'translate': expected one of embed"):
        pipeline("translate", folder)
    for task, here in (("ner", "token-classification"), ("sentiment-analysis", "text-classification")):
        with pytest.raises(UserError, match=f"task '{task}': is called '{here}' here"):
            pipeline(task, folder)
    with pytest.raises(UserError, match="task 'zero-shot-classification': there is none; fine-tune"):
        pipeline("zero-shot-classification", folder)
    with pytest.raises(UserError, match="fill-mask needs a model: say source= in place of model="):
        pipeline(task="fill-mask", model=folder)
    for option, here in (
        ("return_all_scores", "say top_k=None"),
        ("device", "say devices="),
        ("prompt_name", "expected some of"),  # prompt= is an option of embed
    ):
        with pytest.raises(UserError, match=f"fill-mask has no option '{option}'; {here}"):
            pipeline("fill-mask", folder, **{option: 0})
    with pytest.raises(UserError, match="embed has no option 'prompt_name'; say prompt='TEXT'"):
        pipeline("embed", folder, prompt_name="query")
    with pytest.raises(UserError, match="top_k=0"):
        predict("the [MASK]", top_k=0)
    with pytest.raises(UserError, match="batch_size=0"):
        FillMask(folder, batch_size=0)
    loaded = load(folder)
    with pytest.raises(UserError, match="has no tokenizer"):
        FillMask(loaded._replace(tokenizer=None))
    encoder = Loaded(CONFIG, loaded.params["bert"], loaded.tokenizer, Report("here", "encoder"))
    with pytest.raises(UserError, match=r"here: the model has no mlm_head \(5 parameters\), which fill-mask needs"):
        FillMask(encoder)


@pytest.mark.slow
def test_bfloat16_products_on_request(folder):
    predict = FillMask(folder, dtype="bfloat16")
    assert predict.config.dtype == "bfloat16"
    assert len(predict("the [MASK]")) == 5
    layer = predict.engine.programs.params["bert"]["encoder"]["layer_0"]["feed_forward"]
    assert layer["output"]["kernel"].dtype == jnp.bfloat16 and layer["LayerNorm"]["scale"].dtype == jnp.float32
