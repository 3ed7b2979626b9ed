"""The doctor names each of six faults, seeded in real data or real runs (record.py), and is silent about healthy runs."""

import itertools
import json
import re
import textwrap
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest

from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.manifest import read_manifest, write_list, write_manifest
from bert_jax.data.pretraining.shards import describe_file
from bert_jax.errors import UserError
from bert_jax.files import write_json
from bert_jax.training.optimizer import OptimizerConfig
from tests.root import ROOT
from tests.run_directory import records
from train import demo, doctor, prepare
from train.diagnosis import data_rules, metric_rules
from train.preparation.held_out import is_held_out
from train.pretraining.recipe import PretrainConfig
from train.run.config import override

RUNS = Path(__file__).parent / "recorded"
COMMON = ["--max-seq-length", "64", "--dupe-factor", "2", "--held-out", "0.1", "--workers", "1"]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Paragraphs of Python's language reference, each once; a document for each topic."""
    seen: set[str] = set()
    found = []
    for _, paragraphs in itertools.islice(demo.documents(), 75):
        fresh = [p for p in dict.fromkeys(paragraphs) if p not in seen]
        seen.update(fresh)
        if len(fresh) > 1:
            found.append("\n".join(fresh))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory, documents) -> Path:
    """Healthy data, uncased and cased, to seed faults in."""
    folder = tmp_path_factory.mktemp("doctor")
    make(folder / "uncased", documents, "--vocab-size", "1500")
    make(folder / "cased", documents, "--vocab-size", "1500", "--cased")
    return folder


def make(output: Path, documents: list[str], *options: str) -> Path:
    text = output.with_suffix(".txt")
    text.write_text("\n\n".join(documents))
    assert prepare.main([str(text), "--output", str(output), *COMMON, *options]) == 0
    return output


def run_on(tmp_path: Path, data: Path | None, metrics: str | None = None, **changes) -> Path:
    """A run directory with the config and metrics of a recorded run, and other data."""
    run = tmp_path / "run"
    run.mkdir()
    config = json.loads((RUNS / (metrics or "pairs") / "config.json").read_text())
    write_json(run / "config.json", config | {"data": str(data)} | changes)
    if metrics:
        (run / "metrics.jsonl").write_text((RUNS / metrics / "metrics.jsonl").read_text())
    return run


def diagnosis(run: Path, capsys) -> dict[str, dict]:
    """The findings by their rule; the doctor's exit code is that of its findings, and its commands can be run."""
    capsys.readouterr()
    code = doctor.main([str(run), "--json"])
    told = json.loads(capsys.readouterr().out)
    found = {finding["rule"]: finding for finding in told["findings"]}
    assert code == (doctor.EXIT_FOUND if found else 0)
    for finding in found.values():
        check_advice(finding["do"])
    return found


def check_advice(advice: str) -> None:
    commands = re.findall(r"python -m train\.prepare ((?:\S+ ?)*?\S+?)(?=\.(?: |$)|;|$)", advice)
    settings = dict(word.split("=", 1) for word in re.findall(r"(?<= )[a-z_.]+=(?:'[^']+'|[^\s;,]+)", advice))
    settings = {name: value.strip("'") for name, value in settings.items()}
    assert commands or settings or advice.endswith("give it more steps in phases")
    for command in commands:
        prepare.parser().parse_args(command.split())
    override(PretrainConfig(), settings)


@pytest.mark.parametrize("name", ["pairs", "blocks", "slow", "fast", "warm-up"])
def test_no_alarm_on_healthy_runs(name, tmp_path, capsys):
    rules = ["too short"] if name == "slow" else []  # 400 steps that end on the unigram line
    assert list(diagnosis(run_on(tmp_path, None, name), capsys)) == rules


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_no_alarm_on_healthy_data(folder, name, tmp_path, capsys):
    assert diagnosis(run_on(tmp_path, folder / name), capsys) == {}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("rate-too-high", "rate too high"),
        ("rate-too-high-later", "rate too high"),
        ("rate-too-low", "rate too low"),
        ("rate-too-low-slightly", "rate too low"),
    ],
)
def test_a_wrong_learning_rate_is_named(name, rule, tmp_path, capsys):
    run = run_on(tmp_path, None, name)
    (found,) = diagnosis(run, capsys).values()
    assert found["rule"] == rule
    config = json.loads((run / "config.json").read_text())
    rate, steps = config["optimizer"]["learning_rate"], sum(steps for _, _, steps, *_ in config["phases"])
    words = re.findall(r"optimizer\.(\w+)=(\S+)", found["do"])
    advised = {name: json.loads(value.replace("none", "null")) for name, value in words}
    for first in ({"warmup_steps": 30}, {"warmup_share": 0.06}):  # a recipe has one of them, and not the other
        recipe = OptimizerConfig(**({"total_steps": steps, **first} | advised))
        least = max(config["optimizer"]["warmup_steps"], steps // 10) if rule == "rate too high" else 0
        assert recipe.warm_up >= 0.99 * least
    better = float(dict(words)["learning_rate"])
    assert better < rate if rule == "rate too high" else better > rate


@pytest.mark.parametrize("name", ["adamw", "muon", "schedule-free"])
def test_a_rate_that_is_far_too_high_is_not_lowered_step_by_step(name, tmp_path, capsys):
    config = json.loads((RUNS / "rate-too-high-later" / "config.json").read_text())
    optimizer = config["optimizer"] | {"name": name, "learning_rate": 5.0}
    (found,) = diagnosis(run_on(tmp_path, None, "rate-too-high-later", optimizer=optimizer, init=None), capsys).values()
    usual = metric_rules.USUAL_RATE * 128 / config["model"]["hidden_size"]
    assert float(re.findall(r"learning_rate=(\S+)", found["do"])[0]) == pytest.approx(usual, rel=0.5)


@pytest.mark.parametrize(
    ("mlm_loss", "step", "changes", "rules"),
    [
        (6.0, 300, {}, ["too short"]),
        (5.96, 300, {"init": "my-bert"}, ["too short"]),
        (5.94, 300, {}, []),
        (6.0, 299, {}, []),  # it goes on
        (None, 300, {}, []),
    ],
)
def test_a_run_that_ended_before_it_learnt_is_named(mlm_loss, step, changes, rules, tmp_path, capsys):
    phases = [[64, 32, 200], [128, 16, 100]]
    run = run_on(tmp_path, None, phases=phases, start={"heads": []}, **changes)
    row = {"kind": "eval", "step": step, "mlm_loss": mlm_loss, "unigram_loss": 6.0}
    (run / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    found = diagnosis(run, capsys)
    assert list(found) == rules
    if found:
        assert "ended at a held-out loss of" in found["too short"]["seen"] and "has 6.00" in found["too short"]["seen"]
        assert ("start.heads='((0, -1, 1),)'" in found["too short"]["do"]) == (not changes)
        model = json.loads((run / "config.json").read_text())["model"] | {"model_type": "albert"}
        write_json(run / "config.json", json.loads((run / "config.json").read_text()) | {"model": model})
        assert "start." not in diagnosis(run, capsys)["too short"]["do"]  # which a model of shared layers refuses


@pytest.mark.parametrize("steps", [60, 300])
def test_a_run_that_diverged_at_once_has_too_high_a_rate(steps, tmp_path, capsys):
    """Its loss is far above a random model's and does not rise any more: neither more steps nor a higher rate help."""
    run = run_on(tmp_path, None, "slow", phases=[[64, 32, steps]])
    config = json.loads((run / "config.json").read_text())
    optimizer = config["optimizer"] | {"name": "muon", "learning_rate": 30.0}
    write_json(run / "config.json", config | {"optimizer": optimizer})
    rows = [{"kind": "train", "step": step, "mlm_loss": 2000.0, "grad_norm": 9.0} for step in range(5, steps + 1, 5)]
    rows.append({"kind": "eval", "step": steps, "mlm_loss": 1900.0, "unigram_loss": 6.0})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = diagnosis(run, capsys)
    assert list(found) == ["rate too high"]
    assert "the held-out loss is 1900.00 at step" in found["rate too high"]["seen"]
    assert float(re.findall(r"learning_rate=(\S+)", found["rate too high"]["do"])[0]) < 0.01


@pytest.mark.parametrize(
    ("held_out", "training", "rate", "advised"),
    [
        # Every 400 steps, with pairs and 16,000 pieces: benchmarks/results/learning.md, "dropout over 120 passes".
        ((6.308, 5.965, 6.051, 6.085), (6.0, 4.9, 4.1, 3.7), 0.0, ["hidden_dropout_prob", "phases"]),
        ((6.308, 5.965, 6.051, 6.085), (6.0, 4.9, 4.1, 3.7), 0.1, ["phases"]),
        ((6.743, 5.989, 5.855, 5.761, 5.802, 5.785), (6.5, 5.6, 5.2, 4.9, 4.6, 4.4), 0.1, []),
        ((6.308, 5.965, 6.051, 6.085), (6.0, 4.9, 4.9, 5.0), 0.0, []),  # what rises is not for being known by heart
        ((6.308, None, 6.6), (6.0, 4.9, 4.1), 0.1, ["phases"]),
    ],
)
@pytest.mark.parametrize("of_phase", [None, 0.1])
def test_a_run_that_learns_its_text_by_heart_is_named(of_phase, held_out, training, rate, advised, tmp_path, capsys):
    """Where a phase has a dropout of its own, the model's says nothing."""
    phases = [[64, 64, 100, None, None, 1, 0.0], [128, 64, 3900, 0.2, [1, 0, 0]]]
    if of_phase is not None:
        phases[1] += [1, rate]
        rate = of_phase - rate
    run = run_on(tmp_path, None, phases=phases, optimizer={"name": "muon", "learning_rate": 2e-3, "warmup_steps": 200})
    config = json.loads((run / "config.json").read_text())
    model = config["model"] | {"hidden_dropout_prob": rate, "vocab_size": 16_000}
    write_json(run / "config.json", config | {"model": model})
    rows = []
    for step, (evaluated, trained) in enumerate(zip(held_out, training, strict=True), 1):
        rows.append({"kind": "train", "step": 400 * step, "mlm_loss": trained})
        rows.append({"kind": "eval", "step": 400 * step, "mlm_loss": evaluated, "unigram_loss": 7.416})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = diagnosis(run, capsys)
    assert list(found) == ["overfits"] * bool(advised)
    if advised:
        do = found["overfits"]["do"]
        first, own = "phases='((64, 64, 100, None, None, 1, 0.0), (128, 64", "" if of_phase is None else ", 1, "
        is_none = "hidden_dropout_prob" in advised
        assert ("hidden_dropout_prob" in do) == (is_none and of_phase is None)
        assert (f"{first}, 3900, 0.2, (1, 0, 0), 1, 0.1))' (it has no dropout" in do) == (is_none and bool(of_phase))
        best = 400 * (1 + held_out.index(min(filter(None, held_out))))
        assert f"{first}, {best - 100}, 0.2, (1, 0, 0){own}{phases[1][-1] if own else ''}))'" in do


def test_a_run_that_time_ended_is_judged_by_its_last_step(tmp_path, capsys):
    fields = {"stop_after": "10m", "phases": [[64, 32, 100_000]], "start": {"heads": []}}
    run = run_on(tmp_path, None, **fields)
    decay, last = {"kind": "decay", "step": 90, "begins": 90, "ends": 100}, {"kind": "eval", "step": 100}
    rows = [decay, last | {"mlm_loss": 6.0, "unigram_loss": 6.0}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "give it a longer stop_after" in diagnosis(run, capsys)["too short"]["do"]


def test_the_warm_up_of_a_run_that_time_ends_is_advised_in_steps(tmp_path, capsys):
    (found,) = diagnosis(run_on(tmp_path, None, "rate-too-high", stop_after="10m"), capsys).values()
    words = dict(re.findall(r"optimizer\.(\w+)=(\S+)", found["do"]))
    assert "warmup_share" not in words
    optimizer = OptimizerConfig(schedule="stable", warmup_steps=int(words["warmup_steps"]))
    assert PretrainConfig(stop_after="10m", optimizer=optimizer).optimizer.warm_up == int(words["warmup_steps"]) > 0


def test_a_corpus_without_documents_is_named(folder, documents, tmp_path, capsys):
    one = ["\n".join(documents)]
    data = make(tmp_path / "one", one, "--vocab", str(folder / "uncased"), "--objective", "none")
    assert list(diagnosis(run_on(tmp_path, data), capsys)) == ["one document"]


def test_a_directory_without_the_length_of_a_phase_in_which_it_has_no_share_is_no_error(folder, tmp_path, capsys):
    short = tmp_path / "short"
    words = ["--vocab", str(folder / "uncased"), "--max-seq-length", "32", "--objective", "none", "--workers", "1"]
    assert prepare.main([str(folder / "uncased.txt"), "--output", str(short), *words]) == 0
    both, phases = Path(f"{short},{folder / 'uncased'}"), [[32, 8, 10], [64, 8, 10]]
    assert diagnosis(run_on(tmp_path, both, data_shares=[[1, 0], [0, 1]], phases=phases), capsys) == {}


def test_of_several_directories_each_is_checked_and_named(folder, documents, tmp_path, capsys):
    one = make(tmp_path / "one", ["\n".join(documents[:9])], "--vocab", str(folder / "uncased"), "--objective", "none")
    mixture = f"{folder / 'uncased'}:0.7,{one}:0.2,{tmp_path / 'gone'}:0.1"
    assert doctor.main([str(run_on(tmp_path, Path(mixture)))]) == doctor.EXIT_FOUND
    told = capsys.readouterr().out
    assert f"one document: {one}: the train split is one document" in told and told.count("->") == 1
    assert f"note: its data {tmp_path / 'gone'} is not here: it was not checked" in told


def test_one_document_among_few_is_named(folder, documents, tmp_path, capsys):
    data = make(tmp_path / "most", ["\n".join(documents[5:]), *documents[:5]], "--vocab", str(folder / "uncased"))
    (found,) = diagnosis(run_on(tmp_path, data), capsys).values()
    assert found["rule"] == "one document"
    assert re.search(r"one of \d documents has [789]\d%", found["seen"])


def test_wrapped_text_is_named(folder, documents, tmp_path, capsys):
    wrapped = ["\n".join(textwrap.wrap(" ".join(text.splitlines()), 72)) for text in documents]
    data = make(tmp_path / "wrapped", wrapped, "--vocab", str(folder / "uncased"))
    (found,) = diagnosis(run_on(tmp_path, data), capsys).values()
    assert found["rule"] == "wrapped lines"
    assert re.search(r"wrapped.txt is wrapped at column 7\d", found["seen"])


@pytest.mark.slow
def test_a_vocabulary_in_the_other_casing_is_named(folder, documents, tmp_path, capsys):
    lower = [document.lower() for document in documents]
    faults = {
        "--cased": (documents, ["--vocab", str(folder / "cased" / "tokenizer" / "vocab.txt"), "--uncased"]),
        "--uncased": (documents, ["--vocab", str(folder / "uncased" / "tokenizer" / "vocab.txt"), "--cased"]),
        "was lower-cased before": (lower, ["--vocab", str(folder / "cased")]),
    }
    for number, (says, (text, options)) in enumerate(faults.items()):
        home = tmp_path / str(number)
        home.mkdir()
        (found,) = diagnosis(run_on(home, make(home / "data", text, *options)), capsys).values()
        assert found["rule"] == "casing"
        assert says in found["do"] + found["means"]


def test_a_text_that_repeats_itself_is_named(folder, documents, tmp_path, capsys):
    twice = documents + [f"Version two of document {n}.\n{text}" for n, text in enumerate(documents)]
    data = make(tmp_path / "twice", twice, "--vocab", str(folder / "uncased"))
    found = diagnosis(run_on(tmp_path, data), capsys)
    assert list(found) == ["duplicates", "held-out text is known"]
    share = read_manifest(data)["report"]["train"]["duplicate_lines"]
    assert share > 0.3
    assert f"{share:.0%} of the sentences" in found["duplicates"]["seen"]


def test_the_text_is_prepared_again_with_the_options_that_it_was_given(folder, documents, tmp_path, capsys):
    text = tmp_path / "twice.jsonl"
    text.write_text("".join(json.dumps({"body": document}) + "\n" for document in documents * 2))
    options = ["--field", "body", "--language", "de", "--short-seq-prob", "0.2", "--vocab", str(folder / "uncased")]
    assert prepare.main([str(text), "--output", str(tmp_path / "data"), *COMMON, *options]) == 0
    command = diagnosis(run_on(tmp_path, tmp_path / "data"), capsys)["duplicates"]["do"].partition("train.prepare ")[2]
    for words in ("--field body", "--language de", "--short-seq-prob 0.2", "--dupe-factor 2", "--max-seq-length 64"):
        assert f" {words} " in command, words
    vocabulary = (
        command.replace("TEXT", str(text)).replace("DATA", str(tmp_path / "again")).replace("VOCAB", options[-1])
    )
    assert prepare.main([*vocabulary.split(), "--workers", "1"]) == 0
    assert read_manifest(tmp_path / "again")["report"]["train"]["duplicate_lines"] < 0.2


def test_a_vocabulary_for_text_of_unknown_tokens_is_learnt_for_the_same_examples(folder, documents, tmp_path, capsys):
    text = [re.sub("[a-z]{7,}", "\N{CJK UNIFIED IDEOGRAPH-6F22}", document) for document in documents]
    vocabulary = ["--vocab", str(folder / "cased"), "--objective", "none", "--rows", "blocks"]
    data = make(tmp_path / "unknown", text, *vocabulary)
    advice = diagnosis(run_on(tmp_path, data), capsys)["unknown tokens"]["do"]
    same = "--vocab-size 1500 --cased --max-seq-length 64 --objective none --rows blocks --dupe-factor 2"
    assert advice == f"Learn one from the text: python -m train.prepare TEXT --output DATA {same}"


def test_held_out_text_that_the_model_has_seen_is_named(folder, documents, tmp_path, capsys):
    again = [f"{text}\nThis is the second version." for text in documents if is_held_out(text, 0.1)]
    data = make(tmp_path / "leak", documents + again, "--vocab", str(folder / "uncased"))
    assert list(diagnosis(run_on(tmp_path, data), capsys)) == ["held-out text is known"]


def test_missing_masks_are_named(folder, documents, tmp_path, capsys):
    vocab = ["--vocab", str(folder / "uncased")]
    few = make(tmp_path / "few", documents, *vocab, "--masked-lm-prob", "0.01")
    assert list(diagnosis(run_on(tmp_path, few), capsys)) == ["masks missing"]
    own = {"strategy": "bernoulli", "probability": 0.02, "max_predictions": 20, "whole_word": False, "ngram": 1}
    (tmp_path / "own").mkdir()
    found = diagnosis(run_on(tmp_path / "own", folder / "uncased", masking=own), capsys)
    assert "masking.probability=0.15" in found["masks missing"]["do"]


def test_rows_that_are_one_word_are_named(folder, documents, tmp_path, capsys):
    letters = [re.sub("[^a-z]", "", document)[:60] for document in documents if len(document) > 200]
    (tmp_path / "letters").mkdir()
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"{mark}{x}" for x in ascii_lowercase for mark in ("", "##")),
    ]
    (tmp_path / "letters" / "vocab.txt").write_text("\n".join(pieces))
    options = "--uncased", "--objective", "none", "--whole-word-masking", "--max-seq-length", "64"
    data = make(tmp_path / "one-word", letters, "--vocab", str(tmp_path / "letters"), *options)
    found = diagnosis(run_on(tmp_path, data), capsys)["masks missing"]
    assert "a row that is one word has none" in found["means"]
    assert "Without whole words: python -m train.prepare" in found["do"] and "--whole-word-masking" not in found["do"]


def test_missing_masks_of_a_phase_are_named(folder, tmp_path, capsys):
    healthy, few, plain = [64, 8, 9, 0.3], [64, 8, 9, 0.01], [64, 8, 9, None, [0.0, 0.0, 1.0], 1.0]
    last = [64, 8, 9, 0.05, [1.0, 0.0, 0.0], 0.5]  # as docs/pretraining.md ends a run
    assert diagnosis(run_on(tmp_path, folder / "uncased", phases=[healthy, last]), capsys) == {}
    for number, (phase, says) in enumerate(
        ((few, "phases= with 0.15 in place of 0.01"), (plain, "(0.8, 0.1, 0.1) in"))
    ):
        (tmp_path / str(number)).mkdir()
        run = run_on(tmp_path / str(number), folder / "uncased", phases=[healthy, phase])
        (found,) = diagnosis(run, capsys).values()
        assert found["rule"] == "masks missing" and says in found["do"] and "in a phase" in found["seen"]


def test_masks_that_hide_nothing_are_named(folder, documents, tmp_path, capsys):
    # as in shards that were converted from elsewhere: there are labels, but the input shows them
    data = make(tmp_path / "shown", documents, "--vocab", str(folder / "uncased"), "--recipe", "google")
    for path in data.glob("*/examples-64/*.mask_inputs.npy"):
        masks = np.load(path)
        np.save(path, np.full_like(masks, 7))
    manifest, (part,) = read_manifest(data), PreparedDirectory(data).examples("train", 64)
    part["files"]["mask_inputs"] = describe_file(data / "train/examples-64/00000.mask_inputs.npy")
    manifest["splits"]["train"]["examples"]["64"] = write_list(data, "train/examples-64", [part])
    write_manifest(data, manifest)
    (found,) = diagnosis(run_on(tmp_path, data), capsys).values()
    assert found["rule"] == "masks missing"
    assert " 0% of these show [MASK]" in found["seen"]


def test_steps_that_are_not_finite_are_named(tmp_path, capsys):
    run = run_on(tmp_path, None, "pairs")
    rows = records(run)
    for row in rows[-4:]:
        row |= {"skipped_total": 3.0, "mlm_loss": None}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(diagnosis(run, capsys)) == ["not finite"]


def test_it_reads_the_metrics_of_a_long_run_once(tmp_path):
    """The phase that a run is in was sought through all rows for each row: 40,000 took over ten minutes."""
    run, read = doctor.Evidence(str(run_on(tmp_path, None, "blocks"))), []

    class Row(dict):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

    run.train = [Row(row) for row in run.train]
    assert run.curve[-1].step == 1500
    assert len(read) < 5 * len(run.train)


def test_a_report_for_people_says_what_to_do(tmp_path, capsys):
    run = run_on(tmp_path, None, "rate-too-low")
    assert doctor.main([str(run)]) == doctor.EXIT_FOUND
    out = capsys.readouterr().out
    assert re.search(r"^rate too low: the training loss is \d", out)
    assert "  -> In the command of a new run: optimizer.learning_rate=0.002" in out
    assert f"{run}: step 300, 1 found" in out
    assert "is not here: only the metrics were checked" in out


def test_a_run_that_has_just_begun_and_one_of_another_kind_get_notes(folder, tmp_path, capsys):
    run = run_on(tmp_path, folder / "uncased")
    assert doctor.main([str(run)]) == 0
    assert "note: no training metrics yet" in capsys.readouterr().out
    config = json.loads((run / "config.json").read_text()) | {"task": "cola"}
    del config["phases"]
    write_json(run / "config.json", config)
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 9, "loss": 0.5, "skipped_total": 0.0}\n')
    assert doctor.main([str(run)]) == 0
    assert "not a pretraining run" in capsys.readouterr().out


def test_the_guide_has_the_thresholds():
    guide = (ROOT / "docs" / "pretraining.md").read_text()
    table = {line.split("|")[1].strip(): line for line in re.findall(r"^\|.*\|$", guide, re.MULTILINE)}
    for rule, share in {
        "one document": data_rules.LARGEST_DOCUMENT,
        "casing": data_rules.CAPITALS,
        "unknown tokens": data_rules.UNKNOWN,
        "duplicates": data_rules.DUPLICATES,
        "held-out text is known": data_rules.OVERLAP,
        "masks missing": data_rules.MASKED,
        "not finite": metric_rules.SKIPPED,
        "rate too high": metric_rules.RISE,
        "rate too low": metric_rules.ABOVE_UNIGRAM,
        "too short": metric_rules.BELOW_UNIGRAM,
        "overfits": metric_rules.ABOVE_LOWEST,
    }.items():
        assert f"{share} nats" in table[rule] or f"{share * 100:g} %" in table[rule], rule


def test_a_run_of_a_sweep_is_named_as_advised(tmp_path):
    (tmp_path / "members").mkdir()
    member = run_on(tmp_path / "members", None, "pairs")
    with pytest.raises(UserError, match=re.escape(f"is a sweep; name one of its runs, such as {member}")):
        doctor.main([str(tmp_path)])
    assert doctor.main([str(member)]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere: no such folder; expected the directory of a run"),
        (["notes.txt"], "notes.txt: is a file, not a folder; expected the directory of a run"),
        (["."], "has no config.json"),
        (["a", "b"], "b: expected RUN"),
        (["gs://bucket/run"], "is on a bucket"),
    ],
)
def test_what_is_not_a_run_is_one_line(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("a text")
    with pytest.raises(UserError, match=re.escape(says)):
        doctor.main(words)
