"""Messages advise in the syntax of the program that prints them, and what they advise is accepted."""

import ast
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main, make_parser
from bert_jax.cli.program import as_options
from bert_jax.cli.verbs import FILES
from tests.advice import corrected, filled, not_run
from tests.inference.tasks.task_folders import export
from tests.root import ROOT
from train.preparation.options import PrepareOptions
from train.pretraining.recipe import PretrainConfig
from train.run.config import override


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("advice")
    (folder / "table.csv").write_text("body,other,label\nhello,o,x\nheld,o,y\n")
    (folder / "columns.conll").write_text("hello O\n\n")
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [
        {"context": "hello world", "qas": [{"id": "a", "question": "o", "answers": []}]}]}]}))  # fmt: skip
    (folder / "texts.txt").write_text("hello\nheld\n")
    (folder / "taken").write_text("mine")
    (folder / "gold.csv").write_text("text,label\nhello,x\nheld,y\n")
    (folder / "found.csv").write_text("id,prediction\n0,x\n1,x\n")
    (folder / "answers.jsonl").write_text('{"id": "a", "gold": ["hello"], "label": "hello"}\n')
    heads = ("pretraining", "sequence-classification", "question-answering", "token-classification")
    models = {name.split("-")[0]: str(export(folder / name, name)) for name in heads}
    main(["convert", models["pretraining"], str(folder / "done"), "--head", "encoder"])
    main(["convert", models["pretraining"], str(folder / "tf1"), "--to", "tf1"])
    return {"tmp": str(folder)} | models


OF_VERBS = [
    # what is typed, part of the message, the words that it advises
    ("tag {token} --conll", "name the file", "{tmp}/columns.conll"),
    ("tag {token} {tmp}/columns.conll --conll --split spaces", "leave it out", "!--split !spaces"),
    ("embed {pretraining} --output {tmp}/a.npy", "name the input file too", "{tmp}/texts.txt"),
    ("embed {pretraining} {tmp}/texts.txt --json --output {tmp}/b.npy", "leave it out", "!--json"),
    ("fill-mask {pretraining} [MASK] --top-k 0", "expected at least 1", "!--top-k !0 --top-k 1"),
    ("classify {sequence} hello --tpo-k 1", "did you mean --top-k?", "!--tpo-k !1 --top-k 1"),
    ("classify {sequence} {tmp}/table.csv", "--text COL", "--text body"),
    ("classify {sequence} {tmp}/table.csv --pair other", "--text COL", "--text body"),
    ("classify {sequence} hello --output {tmp}/taken", "--overwrite replaces it", "--overwrite"),
    ("answer {question} {tmp}/squad.json --top-k 2", "add --json", "--json"),
    ("convert {pretraining} {tmp}/done --head encoder", "--overwrite replaces it", "--overwrite"),
    ("convert {pretraining} {tmp}/new --head sequence-classification", "--allow-missing classifier", "--allow-missing classifier"),
    ("fill-mask {pretraining} " + "hello_" * 40 + "[MASK]", "--truncate", "--truncate"),
    ("fill-mask {pretraining}", "give a text", "hello_[MASK]"),
    ("fill-mask {pretraining} hello", "put one in place of a word", "!hello hello_[MASK]"),
    ("classify {sequence} - --text body", "name the file", "!- !body {tmp}/table.csv --text body"),
    ("similar {pretraining} - -", "name a file for the other", "!- hello {tmp}/texts.txt"),
    ("edit {pretraining} {tmp}/edited", "name layers, heads, words or positions", "--keep-layers 0"),
    ("score classify {tmp}/gold.csv --label label", "say both files", "{tmp}/found.csv"),
    ("score classify {tmp}/gold.csv", "say GOLD PREDICTIONS", "{tmp}/found.csv"),
    ("score cola {tmp}/answers.jsonl", "say the run's own task", "!cola !{tmp}/answers squad1 {tmp}/answers.jsonl"),
    ("embed {pretraining} - --shard 1/2 --output {tmp}/s.npy", "name the input file", "!- !1/2 !{tmp}/s.npy {tmp}/texts.txt --shard 1/2 --output {tmp}/s.npy"),
    ("push {tmp}/tf1 me/it", "python -m bert_jax convert", "!push !{tmp}/tf1 !me/it convert {tmp}/tf1 {tmp}/hf"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "message", "advised"), OF_VERBS, ids=lambda text: text[:40])
def test_what_a_verb_advises_is_accepted(typed, message, advised, places, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal())
    words = filled(typed, places)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    code = main(corrected(words, filled(advised, places)))
    assert message not in capsys.readouterr().err
    assert code == 0 or "--truncate" in advised  # which would remove the mask of this text


@pytest.mark.slow
def test_an_earlier_export_of_programs_is_replaced_as_advised(places, capsys):
    words = filled(
        "export-compiled {sequence} {tmp}/made --task text-classification --lengths 8 --batch-sizes 1 --platforms cpu",
        places,
    )
    assert main(words) == 0
    assert main(words) == 2
    assert "--overwrite replaces an earlier export" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


class Terminal(io.StringIO):
    """A stdin that nobody has redirected."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("classify {sequence} hello --batch-size 0", "--batch-size 0: expected"),
        ("convert {pretraining} {tmp}/other --head qa", "--head qa: bert has"),
        ("convert {pretraining} {tmp}/other --max-shard-size many", "--max-shard-size many"),
        ("edit {pretraining} {tmp}/other --keep-layers 0,7", "--keep-layers 0,7: expected"),
        ("info {pretraining} --step 3", "--step 3: "),
    ],
)
def test_verbs_say_options_where_the_library_says_keywords(typed, said, places, capsys):
    assert main([word.format(**places) for word in typed.split()]) == 2
    assert said in capsys.readouterr().err


def test_the_errors_of_several_texts_say_options_too(places, capsys):
    words = ["fill-mask", places["pretraining"], "hello " * 40 + "[MASK]", "hello"]
    assert main(words) == 2
    assert "shorten it, or say --truncate\n" in capsys.readouterr().err
    assert main([*words, "--json"]) == 2
    first, _ = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["error"].endswith("shorten it, or say --truncate")


def test_a_verb_that_cannot_allow_what_is_missing_names_the_one_that_can(places, tmp_path, capsys):
    folder = shutil.copytree(places["pretraining"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    decoder = weights["bert.embeddings.word_embeddings.weight"] + 1
    save_file(weights | {"cls.predictions.decoder.weight": decoder}, folder / "model.safetensors")
    assert main(["fill-mask", str(folder), "a [MASK]"]) == 2
    said = capsys.readouterr().err
    (advice,) = re.findall(r"say (python -m bert_jax convert SRC DST --allow-missing [\w.]+);", said)
    words = advice.removeprefix("python -m bert_jax ").replace("SRC", str(folder)).replace("DST", str(tmp_path / "new"))
    assert main(words.split()) == 0
    assert main(["info", str(tmp_path / "new")]) == 0


def test_keywords_become_options():
    options = {"allow_missing": "--allow-missing", "truncation": "--truncate", "step": "--step"}
    for text, told in (
        ("say allow_missing=('nsp_head', 'pooler') now", "say --allow-missing nsp_head,pooler now"),
        ("or say truncation=True", "or say --truncate"),
        ("step=3: no such step; last_step=3", "--step 3: no such step; last_step=3"),
        ("it has num_labels=3 (step='a b')", "it has num_labels=3 (--step a b)"),
    ):
        assert as_options(text, options) == told


@pytest.mark.parametrize(
    ("said", "told", "word"),
    [
        ("--held-out: found 5.0, expected a share", "text_options.held_out: found 5.0, expected a share", "text_options.held_out=0.1"),
        ("say --format jsonl or --format text", "say text_options.format=jsonl or text_options.format=text", "text_options.format=text"),
        ("say --cased or --uncased", "say text_options.cased=true or text_options.cased=false", "text_options.cased=true"),
        ("documents held out, say --held-out 0.0037", "documents held out, say text_options.held_out=0.0037", "text_options.held_out=0.0037"),
        ("(other rules: --documents), or", "(other rules: text_options.documents), or", "text_options.documents=files"),
        ("--max-seq-length: found 4", "phases: found 4", "phases=((32, 8, 20000),)"),
    ],
)  # fmt: skip
def test_a_run_on_text_names_fields_in_place_of_the_options_of_prepare(said, told, word):
    options = PrepareOptions(inputs=("texts",), output=Path("data"), vocab_size=90, for_run=True)
    assert options.spelled(said) == told
    name, value = word.split("=", 1)
    override(PretrainConfig(), {name: value, "optimizer.warmup_steps": "10"})


def test_the_advice_of_each_message_of_a_verb_is_run():
    tried = [message for _, message, _ in OF_VERBS]
    elsewhere = {
        "--overwrite replaces an earlier export": "the test above",
        "add --int8": "tests/evaluation/test_int8.py",
        "leave them out": "tests/evaluation/test_int8.py",
        "name two files": "tests/cli/test_texts.py",
        "remove it to start again": "tests/cli/test_embed.py",
        "another program is writing it": "tests/inference/tasks/test_embed.py",
        "save what comes from it in a file": "a copy, which is no command of ours",
        "remove one of them and make it again": "tests/cli/test_shards.py",
        "remove both to start again": "tests/cli/test_embed.py",
        "remove both and make it again": "tests/cli/test_shards.py",
    }
    assert not_run(sorted((ROOT / "bert_jax/cli").glob("*.py")), [*tried, *elsewhere]) == []


@pytest.mark.slow
def test_each_option_that_a_message_names_is_one_of_the_programs_that_print_it():
    """Statically: what the library says with "--" belongs to train.prepare, which it then names; verbs say their own."""
    prepare = {word for action in _prepare()._actions for word in action.option_strings}
    wrong = []
    for path in sorted((ROOT / "bert_jax").rglob("*.py")):
        room = path.relative_to(ROOT / "bert_jax").parts[0]
        own = _options_of(path) if room == "cli" else set()
        for text in _messages(path):
            # The corpus is read by train.prepare, and by text= of a run, which turns its options into fields.
            of_corpus = path.parent.name == "text"
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text):
                by_prepare = option in prepare and (of_corpus or "python -m train.prepare" in text)
                if option not in own | {"--help"} and not by_prepare:
                    wrong.append(f"{path.relative_to(ROOT)}: {text}")
    assert wrong == []


def _prepare():
    from train.prepare import parser

    return parser()


def _options_of(path: Path) -> set[str]:
    """The options of the verbs in a file; of all verbs for a file that they share."""
    verbs = [verb for verb, file in FILES.items() if file == path.stem] or list(FILES)
    return {word for verb in verbs for action in make_parser(verb)._actions for word in action.option_strings}


def _messages(path: Path) -> list[str]:
    """The texts of the errors that a file raises."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    raised = [call for call in calls if ast.unparse(call.func).endswith(("Error", "warning"))]
    return [
        "".join(part.value for part in ast.walk(call) if isinstance(part, ast.Constant) and isinstance(part.value, str))
        for call in raised
    ]
