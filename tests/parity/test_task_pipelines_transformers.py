"""classify, tag, answer and choose against transformers on the same exported folder: its pipelines, or its model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.tasks.multiple_choice import MultipleChoice
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from bert_jax.inference.tasks.text_classification import TextClassification
from bert_jax.inference.tasks.token_classification import TokenClassification
from tests.inference.tasks.task_folders import TAGS, export

pytestmark = pytest.mark.parity


def theirs(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu", **options)  # type: ignore[call-overload]


def assert_same_labels(ours: list[dict[str, Any]], expected: list[dict[str, Any]]):
    assert [row["label"] for row in ours] == [row["label"] for row in expected]
    np.testing.assert_allclose([row["score"] for row in ours], [row["score"] for row in expected], atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "problem_type"),
    [
        ("bert", None),
        ("roberta", "single_label_classification"),
        ("distilbert", "multi_label_classification"),
        ("bert", "regression"),
    ],
)
def test_classes_are_those_of_transformers_pipeline(tmp_path: Path, model_type: str, problem_type: str | None):
    fields = {"labels": ("bad", "fair", "good"), "problem_type": problem_type}
    folder = export(tmp_path, "sequence-classification", model_type, **fields)
    predict, reference = TextClassification(folder, batch_size=2), theirs("text-classification", folder)
    texts = ["hello world", "hello, hello held worlds. " * 2, "o"]
    pairs = [{"text": "hello world", "text_pair": "held, held"}, {"text": "hello", "text_pair": "o"}]
    for given in (texts, pairs):
        for ours, expected in zip(
            predict(given, top_k=None), [reference(one, top_k=None) for one in given], strict=True
        ):
            assert_same_labels(ours, expected)
    assert_same_labels(predict(texts), reference(texts))
    assert_same_labels(predict(texts[0]), reference(texts[0]))


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
def test_the_function_that_is_asked_for_is_applied(tmp_path: Path, function: str):
    folder = export(tmp_path, "sequence-classification")
    predict = TextClassification(folder, function_to_apply=function)
    reference = theirs("text-classification", folder, function_to_apply=function)
    assert_same_labels(predict("hello world", top_k=2), reference("hello world", top_k=2))
    for options in ({"top_k": None}, {"top_k": 2, "function_to_apply": "softmax"}):
        settled = TextClassification(folder, **options)
        reference = theirs("text-classification", folder, **options)
        for call in ({}, {"function_to_apply": function}, {"function_to_apply": function, "top_k": 2}):
            ours, expected = settled("hello world", **call), reference("hello world", **call)
            if "top_k" not in call:  # a list in a list
                (ours,), (expected,) = ours, expected
            assert_same_labels(ours, expected)


LONG = "hello [MASK] " + "held world " * 20
PAIR = {"text": "hello world held", "text_pair": "held, held"}
CUT = {"truncation": True, "max_length": 8, "padding": True}
WORDS = {"is_split_into_words": True}

# task -> what it is made with, what a call says, what is given: each with each.
CALLS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[Any]]] = {
    "text-classification": (
        [{}, {"top_k": 1}, {"top_k": None}, {"top_k": 2, "function_to_apply": "SOFTMAX"}, CUT],
        [{}, {"top_k": 1}, {"top_k": None}, {"function_to_apply": "Sigmoid"}, CUT | {"padding": "max_length"}],
        ["hello", ["hello"], ["hello", "held world held o o world"], PAIR, [PAIR], [PAIR, "o"]],
    ),
    "fill-mask": (
        [{}, {"top_k": 2}, {"targets": ["world", "heldworld"]}, {"tokenizer_kwargs": CUT}],
        [{}, {"top_k": 1}, {"targets": "Held"}, {"tokenizer_kwargs": CUT | {"max_length": 5}}],
        ["hello [MASK]", ["hello [MASK]", "[MASK] o [MASK]"]],
    ),
    "token-classification": (
        [{"aggregation_strategy": "none"}, {"aggregation_strategy": "SIMPLE", "ignore_labels": ["LOC"]}],
        [{}, {"aggregation_strategy": "Max"}, {"ignore_labels": []}, {"aggregation_strategy": "first", "stride": 4}],
        ["hello worlds", ["hello worlds"], ["hello worlds", "held o"]],
    ),
    "token-classification of words": (
        [{"aggregation_strategy": "none"}, {"aggregation_strategy": "simple"}],
        [WORDS, WORDS | {"delimiter": "--"}],
        [["hello", "worlds"], [["hello", "worlds"]], [["hello", "worlds"], ["held"]]],
    ),
}

# Where the same call gives something else, as docs/inference-tasks.md says.
EXCEPTIONS: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("fill-mask", {}, {}, ["hello [MASK]"]),  # a list of one text gives a list of one result
    ("token-classification", {}, {}, "hello worlds"),  # words, not sub-tokens
    ("token-classification", WORDS, {}, [["hello", "worlds"]]),  # what is said at first holds for calls
    ("token-classification", {}, {"offset_mapping": [(0, 0), (0, 5), (0, 0)]}, "hello"),
    ("text-classification", {}, {}, LONG),  # is cut
    ("text-classification", {}, {"batch_size": 2}, ["hello", "held"]),  # settled when a pipeline is made
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """task -> a model for it."""
    path = tmp_path_factory.mktemp("folders")
    heads: dict[str, dict[str, Any]] = {
        "text-classification": {"head": "sequence-classification", "labels": ("bad", "fair", "good")},
        "token-classification": {"head": "token-classification", "labels": TAGS},
        "fill-mask": {"head": "mlm"},
    }
    return {task: export(path / task, **fields) for task, fields in heads.items()}


def assert_alike(ours: Any, expected: Any):
    """The same lists in lists, keys and values; of a word its place, since theirs is decoded from tokens."""
    assert isinstance(ours, dict | list) == isinstance(expected, dict | list)
    if isinstance(expected, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == expected.keys()
        for name in expected.keys() - {"word"}:
            assert_alike(ours[name], expected[name])
    elif isinstance(expected, list):
        assert isinstance(ours, list)
        assert len(ours) == len(expected)
        for one, other in zip(ours, expected, strict=True):
            assert_alike(one, other)
    else:
        assert ours == (expected if isinstance(expected, str | int) else pytest.approx(expected, abs=1e-5))


@pytest.mark.parametrize(
    ("name", "made_with"), [(name, made) for name, (mades, _, _) in CALLS.items() for made in mades]
)
def test_a_call_gives_what_it_gives_in_transformers(folders: dict[str, Path], name: str, made_with: dict[str, Any]):
    task = name.removesuffix(" of words")
    predict, reference = pipeline(task, folders[task], **made_with), theirs(task, folders[task], **made_with)
    _, calls, inputs = CALLS[name]
    for call in calls:
        for given in inputs:
            assert_alike(predict(given, **call), reference(given, **call))


@pytest.mark.parametrize(("task", "made_with", "call", "given"), EXCEPTIONS)
def test_the_documented_differences_from_transformers_exist(folders, task: str, made_with: Any, call: Any, given: Any):
    def result(make: Any) -> Any:
        try:
            return make(task, folders[task], **made_with)(given, **call)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            return type(error)

    with pytest.raises(AssertionError):
        assert_alike(result(pipeline), result(theirs))


@pytest.mark.parametrize("strategy", ["first", "max", "average"])
@pytest.mark.parametrize(("model_type", "labels"), [("bert", TAGS), ("distilbert", ("PER", "LOC", "O"))])
def test_entities_are_those_of_transformers(tmp_path: Path, model_type: str, labels: tuple[str, ...], strategy: str):
    folder = export(tmp_path, "token-classification", model_type, labels=labels)
    predict = TokenClassification(folder, batch_size=4, aggregation_strategy=strategy)
    reference = theirs("token-classification", folder, aggregation_strategy=strategy)
    texts = ["Hello Worlds, helds.", "held  O'hello\tworldheld .", "中中 hello", "hello world " * 5, ""]
    found = predict(texts)
    assert sum(map(len, found)) > 6
    for text, ours, expected in zip(texts, found, map(reference, texts), strict=True):
        for name in ("entity_group", "start", "end"):
            assert [row[name] for row in ours] == [row[name] for row in expected]
        np.testing.assert_allclose([row["score"] for row in ours], [row["score"] for row in expected], atol=1e-5)
        assert [row["word"] for row in ours] == [text[row["start"] : row["end"]] for row in expected]


@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_tokens_that_are_written_in_a_text_stay_whole(tmp_path: Path, strategy: str):
    folder = export(tmp_path, "token-classification", labels=TAGS, vocab_size=26)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for name, special in (("[E1]", True), ("@User", False)):
        entry = {"content": name, "special": special, "normalized": not special, "single_word": False}
        count = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]) - 5
        tokenizer["added_tokens"].append({"id": count, **entry, "lstrip": False, "rstrip": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    predict = TokenClassification(folder, aggregation_strategy=strategy, ignore_labels=[])
    reference = theirs("token-classification", folder, aggregation_strategy=strategy, ignore_labels=[])
    for text in ("[E1] hello,@USER [e1]", "held[E1]world [SEP] @users .", "hello"):
        ours, expected = predict(text), reference(text)
        for name in ("start", "end"):
            assert [row[name] for row in ours] == [row[name] for row in expected], text
        np.testing.assert_allclose([row["score"] for row in ours], [row["score"] for row in expected], atol=1e-5)


ROWS = {"none": ("entity", "index", "word", "start", "end"), "simple": ("entity_group", "start", "end")}


@pytest.mark.parametrize("strategy", ["none", "simple"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_options_of_a_call_are_those_of_transformers(tmp_path: Path, model_type: str, strategy: str):
    """Sub-tokens and groups of them, other labels ignored or none, words with something between them."""
    folder = export(tmp_path, "token-classification", model_type, labels=TAGS)
    predict, reference = TokenClassification(folder), theirs("token-classification", folder)
    texts = ["Hello Worlds helds", "held o'hello\u2603 held", "hello world " * 4, ""]
    if model_type == "roberta":  # whose tokens are of blanks too
        reference.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
        texts = [text.replace("'", " ").strip() for text in texts]
    words = ["hello", "worlds", "held"]
    for ignored in (None, [], ["LOC", "I-PER", "O"]):
        options: dict[str, Any] = {"aggregation_strategy": strategy, "ignore_labels": ignored}
        split: dict[str, Any] = options | {"is_split_into_words": True, "delimiter": "--"}
        both = [(predict(text, **options), reference(text, **options)) for text in texts]
        both.append((predict(words, **split)[0], reference(words, **split)[0]))
        assert sum(len(ours) for ours, _ in both) > 6
        for ours, expected in both:
            expected = [row for row in expected if row["start"] < row["end"]]  # transformers has those of blanks
            for name in ROWS[strategy]:
                assert [row[name] for row in ours] == [row[name] for row in expected]
            np.testing.assert_allclose([row["score"] for row in ours], [row["score"] for row in expected], atol=1e-5)


def test_words_of_roberta_are_those_of_transformers_split_into_words(tmp_path: Path):
    folder = export(tmp_path, "token-classification", "roberta", labels=TAGS)
    predict = TokenClassification(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
    model: Any = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    words = ["hello", "worlds", ",", "hello"]
    inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        chances = model(**inputs).logits[0].softmax(-1)
    firsts = [inputs.word_ids().index(number) for number in range(len(words))]
    (found,) = predict.tags([words])
    assert [tag.label for tag in found] == [TAGS[i] for i in chances[firsts].argmax(-1)]
    np.testing.assert_allclose([tag.score for tag in found], chances[firsts].max(-1).values, atol=1e-5)


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_the_answer_is_the_best_slice_by_transformers_logits(tmp_path: Path, model_type: str):
    """A passage in one window: all slices of at most five tokens, tried one by one."""
    folder = export(tmp_path, "question-answering", model_type)
    predict = QuestionAnswering(folder, max_answer_len=5, n_best=1000)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    asked, context = "held?", "Hello  worlds, held. O held"
    inputs = tokenizer(asked, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        output = model(**inputs)
    start, end = output.start_logits[0].double().numpy(), output.end_logits[0].double().numpy()
    tokens = [i for i, segment in enumerate(inputs.sequence_ids(0)) if segment == 1]
    best: dict[str, tuple[float, int, int]] = {}
    for first in tokens:
        for last in tokens[tokens.index(first) :][:5]:
            begin, stop = offsets[first][0], offsets[last][1]
            if begin == stop:  # a token of nothing but a space
                continue
            best.setdefault(context[begin:stop], (-np.inf, 0, 0))
            best[context[begin:stop]] = max(best[context[begin:stop]], (start[first] + end[last], begin, stop))
    ranked = sorted(best.items(), key=lambda one: -one[1][0])
    shares = np.exp([score - ranked[0][1][0] for _, (score, _, _) in ranked])
    found = predict(question=asked, context=context, top_k=3)
    assert [row["answer"] for row in found] == [text for text, _ in ranked[:3]]
    assert [(row["start"], row["end"]) for row in found] == [at[1:] for _, at in ranked[:3]]
    np.testing.assert_allclose([row["score"] for row in found], (shares / shares.sum())[:3], atol=1e-5)
    assert predict(question=asked, context=context) == found[0]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "albert"])
def test_scores_of_choices_are_those_of_transformers_model(tmp_path: Path, model_type: str):
    fields: dict[str, Any] = {"embedding_size": 6, "num_hidden_groups": 1} if model_type == "albert" else {}
    folder = export(tmp_path, "multiple-choice", model_type, **fields)
    predict = MultipleChoice(folder, batch_size=4)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    questions = [
        {"text": "hello world", "choices": ["held.", "hello, hello hello", "o"]},
        {"text": "held", "choices": ["hello", "worlds"]},
    ]
    for question, found in zip(questions, predict(questions), strict=True):
        choices = question["choices"]
        inputs = tokenizer([question["text"]] * len(choices), choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**{name: rows[None] for name, rows in inputs.items()}).logits[0].softmax(-1).numpy()
        np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
        assert found["choice"] == scores.argmax()
        assert found["score"] == max(found["scores"])
