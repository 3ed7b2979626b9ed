"""Messages advise in the syntax of the program that prints them, and what they advise is accepted."""

import ast
import json
import re
from pathlib import Path

import pytest

from bert_jax.__main__ import main, make_parser
from bert_jax.cli.program import as_options
from bert_jax.cli.verbs import FILES
from tests.inference.tasks.task_folders import export
from train.preparation.options import PrepareOptions
from train.pretraining.recipe import PretrainConfig
from train.run.config import override
from train.run.stopping import exit_code

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("advice")
    (folder / "table.csv").write_text("body,other,label\nhello,o,x\nheld,o,y\n")
    (folder / "columns.conll").write_text("hello O\n\n")
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [
        {"context": "hello world", "qas": [{"id": "a", "question": "o", "answers": []}]}]}]}))  # fmt: skip
    (folder / "texts.txt").write_text("hello\nheld\n")
    (folder / "taken").write_text("mine")
    (folder / "rows.json").write_text('{"text": "hello"}\n{"text": "held"}\n')
    (folder / "rows.jsonl").write_text('{"text": "hello"}\n{"text": "held"}\n')
    (folder / "old.png").write_text("mine")
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text('{"phases": [[16, 2, 4]]}')
    rows = ({"kind": "train", "step": step, "mlm_loss": 3.0, "mlm_accuracy": 0.1} for step in (1, 2))
    (folder / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "words.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nHello\n")
    heads = ("pretraining", "sequence-classification", "question-answering", "token-classification")
    models = {name.split("-")[0]: str(export(folder / name, name)) for name in heads}
    main(["convert", models["pretraining"], str(folder / "done"), "--head", "encoder"])
    return {"tmp": str(folder)} | models


def corrected(words: list[str], advised: str, places: dict[str, str]) -> list[str]:
    """The words with those that a message advises; "!WORD" leaves out the words that begin so."""
    said = advised.format(**places).split()
    left_out = tuple(word[1:] for word in said if word.startswith("!"))
    kept = [word for word in words if not (left_out and word.startswith(left_out))]
    return kept + [word for word in said if not word.startswith("!")]


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
]  # fmt: skip


@pytest.mark.parametrize(("typed", "message", "advised"), OF_VERBS, ids=lambda text: text[:40])
def test_what_a_verb_advises_is_accepted(typed, message, advised, places, capsys):
    argv = [word.replace("_", " ") if word.startswith("hello_") else word.format(**places) for word in typed.split()]
    assert main(argv) == 2
    assert message in capsys.readouterr().err
    code = main(corrected(argv, advised, places))
    assert message not in capsys.readouterr().err
    assert code == 0 or typed.startswith("fill-mask")  # its mask is what --truncate would remove


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


def test_keywords_become_options():
    options = {"allow_missing": "--allow-missing", "truncation": "--truncate", "step": "--step"}
    for text, told in (
        ("say allow_missing=('nsp_head', 'pooler') now", "say --allow-missing nsp_head,pooler now"),
        ("or say truncation=True", "or say --truncate"),
        ("step=3: no such step; last_step=3", "--step 3: no such step; last_step=3"),
        ("it has num_labels=3 (step='a b')", "it has num_labels=3 (--step a b)"),
    ):
        assert as_options(text, options) == told


OF_TEXT = "{{tmp}}/texts.txt --output {{tmp}}/prepared-{} --vocab-size 40 --workers 1"
OF_PROGRAMS = [
    ("pretrain", "configs/tiny.py", "say data=DIR", "data=random --fields"),
    ("pretrain", "configs/tiny.py teacher=x data=random", "text_options.objective=none", "text_options.objective=none"),
    ("pretrain", "configs/tiny.py init_step=true data=random", "say init=RUN init_optimizer=true", "init=x init_optimizer=true --fields"),
    ("pretrain", "configs/tiny.py distillation.alpha_cos=2", "say teacher=SOURCE", "teacher=x --fields"),
    ("finetune", "configs/finetune.py task=mrpc", "say init=DIR", "init=x --fields"),
    ("pretrain", "configs/tiny.py optimizer.learning_rte=1", "did you mean optimizer.learning_rate", "--fields"),
    ("pretrain", "configs/tiny.py data=random phases=((9999,8,2000),)", "lower the length", "!phases phases=((64,8,2000),) --fields"),
    ("pretrain", "configs/tiny.py data=random accumulation=7", "expected a divisor", "!accumulation accumulation=8 --fields"),
    ("finetune", "configs/finetune.py init={sequence} train={tmp}/table.csv text=body --dry-run", "dev=0.1", "dev=0.5"),
    ("finetune", "configs/finetune.py init={sequence} train={tmp}/table.csv text=body dev=0.5 optimizer.warmup_steps=3 --dry-run",
     "set epochs=, or warmup=", "!optimizer.warmup_steps warmup=0.1"),
    ("compare", "{tmp}/run --output {tmp}/c.txt", "ends in .png", "!--output !{tmp}/c.txt --output {tmp}/c.png"),
    ("compare", "{tmp}/run --by tokens --output {tmp}/d.png", "say --by step", "!--by !tokens --by step"),
    ("compare", "{tmp}/run --output {tmp}/old.png", "--overwrite", "--overwrite"),
    ("prepare", OF_TEXT.format("a") + " --rows blocks", "needs --objective none", "--objective none"),
    ("prepare", OF_TEXT.format("b") + " --unwrap --format lines", "leave one of them out", "!--unwrap"),
    ("prepare", OF_TEXT.format("c") + " --recipe google --objective none", "use the default recipe", "!--recipe !google"),
    ("prepare", OF_TEXT.format("d") + " --recipe google --documents files", "leave one out", "!--documents !files"),
    ("prepare", OF_TEXT.format("e").replace("texts.txt", "rows.json"), "--format jsonl", "--format jsonl"),
    ("prepare", OF_TEXT.format("f").replace("texts.txt", "rows.jsonl") + " --documents files", "leave it out", "!--documents !files"),
    ("prepare", "{tmp}/texts.txt", "--output DIR", "--output {tmp}/prepared"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/prepared", "--vocab-size N", "--vocab-size 40"),
    ("prepare", "{tmp}/texts.txt --output {tmp}/cased --vocab {tmp}/words.txt", "say --cased or --uncased", "--cased"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("program", "typed", "message", "advised"), OF_PROGRAMS, ids=lambda text: text[:40])
def test_what_a_training_program_advises_is_accepted(
    program, typed, message, advised, places, capsys, monkeypatch, tmp_path
):
    from importlib import import_module

    run = import_module(f"train.{program}").main
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_directory = [f"run={tmp_path / 'run'}"] if program in ("pretrain", "finetune") else []
    words = [*typed.format(**places).split(), *run_directory]
    assert exit_code(run, words) == 2
    assert message in capsys.readouterr().err
    if "did you mean" in message:
        words = [word.replace("learning_rte", "learning_rate") for word in words]
    with pytest.raises(SystemExit) if "--fields" in advised else _nothing():
        exit_code(run, corrected(words, advised, places))
    assert message not in capsys.readouterr().err


class _nothing:
    def __enter__(self): ...

    def __exit__(self, *_): ...


@pytest.mark.parametrize(
    ("said", "told", "word"),
    [
        ("--held-out: found 5.0, expected a share", "text_options.held_out: found 5.0, expected a share", "text_options.held_out=0.1"),
        ("say --format jsonl or --format text", "say text_options.format=jsonl or text_options.format=text", "text_options.format=text"),
        ("say --cased or --uncased", "say text_options.cased=true or text_options.cased=false", "text_options.cased=true"),
        ("--max-seq-length: found 4", "phases: found 4", "phases=((32, 8, 20000),)"),
    ],
)  # fmt: skip
def test_a_run_on_text_names_fields_in_place_of_the_options_of_prepare(said, told, word):
    options = PrepareOptions(inputs=("texts",), output=Path("data"), vocab_size=90, for_run=True)
    assert options.spelled(said) == told
    name, value = word.split("=", 1)
    override(PretrainConfig(), {name: value, "optimizer.warmup_steps": "10"})


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
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
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
