"""`data=A,B`: shares, temperatures and phases; what does not fit together; a run, its report and its dry run."""

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.pretraining.mixture import directories_in
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.errors import UserError
from bert_jax.training.optimizer import OptimizerConfig
from tests.run_directory import assert_equal_states, records, stopped_at
from tests.train.pretraining.conftest import WORDS
from train import pretrain
from train.prepare import main as prepare
from train.pretraining.first_rows import check_same_place, rows_used_of_each, with_first_rows
from train.pretraining.fitted_model import check_same_data
from train.pretraining.mixture import MixedData, mixed_scores, open_data
from train.pretraining.packing import with_packing
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import PreparedData
from train.run.config import to_json
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED
from train.run.launch import Launch, what_runs

PHASES = (Phase(32, 8, 30), Phase(48, 8, 5), Phase(32, 16, 20), Phase(48, 4, 7))


def write(path: Path, seed: int, documents: int) -> Path:
    generator = np.random.default_rng(seed)
    texts = [
        "\n".join(" ".join(generator.choice(WORDS, 8)).capitalize() + "." for _ in range(6)) for _ in range(documents)
    ]
    path.write_text("\n\n".join(texts) + "\n")
    return path


@pytest.fixture(scope="module")
def books(data: str, tmp_path_factory) -> str:
    """A third of the text of `data`, with its vocabulary."""
    folder = tmp_path_factory.mktemp("books")
    words = f"--vocab {data} --max-seq-length 32,48 --dupe-factor 3 --held-out 0.3 --workers 1".split()
    assert prepare([str(write(folder / "text.txt", 5, 20)), "--output", str(folder / "books"), *words]) in (0, None)
    return str(folder / "books")


def config_of(data: str, phases=PHASES, **fields) -> PretrainConfig:
    model = BertConfig.preset("tiny")
    return PretrainConfig(optimizer=OptimizerConfig(warmup_steps=2), phases=phases, model=model, data=data, **fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wiki", {"wiki": None}),
        ("wiki,books", {"wiki": None, "books": None}),
        ("wiki:0.7, books:.3", {"wiki": 0.7, "books": 0.3}),
        ("gs://a/wiki:2,s3://b/books:1", {"gs://a/wiki": 2.0, "s3://b/books": 1.0}),
        ("gs://a/wiki,C:/books", {"gs://a/wiki": None, "C:/books": None}),
        ("a:1:2,b:3", {"a:1": 2.0, "b": 3.0}),
        (
            ",".join(f"{'a' * 60}-{number}" for number in range(9)),
            {f"{'a' * 60}-{number}": None for number in range(9)},
        ),
    ],
)
def test_the_text_of_a_mixture_names_directories_and_weights(text, expected):
    assert directories_in(text) == expected


def test_a_directory_whose_name_looks_like_a_mixture_is_one(data: str, tmp_path: Path):
    (tmp_path / "lr=1,b:2").symlink_to(data)
    assert directories_in(str(tmp_path / "lr=1,b:2")) == {str(tmp_path / "lr=1,b:2"): None}


def test_hosts_compare_the_manifest_of_every_directory(data: str, books: str):
    sums = what_runs(Launch(config_of(f"{data}:1,{books}:3"), "run", (), False, False, frozenset()))
    for path in (data, books):
        expected = hashlib.sha256((Path(path) / "manifest.json").read_bytes()).hexdigest()
        assert expected.startswith(sums[f"data/manifest.json of {path}"])
    assert "data/manifest.json" in what_runs(Launch(config_of(data), "run", (), False, False, frozenset()))


def test_shares_are_weights_or_follow_the_temperature(data: str, books: str):
    tokens = [PreparedData(data).tokens, PreparedData(books).tokens]
    both = f"{data},{books}"

    def shares(text: str, **fields):
        mixture = open_data(config_of(text, **fields))
        assert isinstance(mixture, MixedData)
        assert len(mixture.shares) == len(PHASES)
        return mixture.shares

    assert shares(f"{data}:2,{books}:6") == [(0.25, 0.75)] * 4
    assert shares(both)[0] == pytest.approx([n / sum(tokens) for n in tokens])
    # Devlin's multilingual BERT: probabilities to the power of 0.7, then normalised.
    smoothed = np.power(np.array(tokens) / sum(tokens), 0.7)
    assert shares(both, data_temperature=1 / 0.7)[0] == pytest.approx((smoothed / smoothed.sum()).tolist())
    by_phase = ((1, 1), (1, 0), (0, 1), (3, 1))
    assert shares(both, data_shares=by_phase) == [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.75, 0.25)]


def test_what_is_known_of_a_length_is_the_mean_over_its_own_rows(data: str, books: str):
    """Not over those of the run: another length may come from the directories in other shares, or from one alone."""
    parts = [PreparedData(data), PreparedData(books)]
    for shares, of_48 in ((((1, 0), (0, 1)), (0, 1)), (((1, 1), (1, 3)), (0.25, 0.75))):
        config = config_of(f"{data},{books}", phases=((32, 8, 90), (48, 8, 10)), data_shares=shares)
        mixed = open_data(config)
        for figure in ("examples_a_row", "padding_share"):
            first, second = (getattr(part, figure)(48) for part in parts)
            assert first != second
            assert getattr(mixed, figure)(48) == pytest.approx(of_48[0] * first + of_48[1] * second)


def test_the_passes_over_a_part_count_the_examples_of_its_packed_rows(data: str, tmp_path: Path):
    """As many rows of a part whose examples are short are more passes over its text."""
    text, short = tmp_path / "text.txt", tmp_path / "short"
    text.write_text("\n\n".join(f"The {one} sat.\nIt {two}." for one in WORDS for two in WORDS[:5]))
    words = f"--vocab {data} --max-seq-length 32,48 --dupe-factor 3 --held-out 0 --workers 1".split()
    assert prepare([str(text), "--output", str(short), *words]) in (0, None)
    config = config_of(f"{data},{short}", packing="yes", data_shares=((1, 1), (1, 3), (1, 1), (1, 0)))
    mixture = open_data(config)
    assert isinstance(mixture, MixedData)
    config, parts = with_packing(config, mixture), list(mixture.parts.values())
    first, second = (part.examples_a_row(48) for part in parts)
    assert second > 2 * first, "the test needs parts of different density"
    passes, rows = np.zeros(2), np.zeros(2)
    for length in (32, 48):
        of_length = [k for k, phase in enumerate(config.phases) if phase.length == length]
        used = sum(np.array(mixture.shares[k]) * math.prod(config.phases_in_rows[k][1:3]) for k in of_length)
        for k, part in enumerate(parts):
            made = PackedBatches(part.directory, batch_size=round(used[k]), max_seq_length=length).batch(0)
            passes[k] += made["sequence_ids"].max(axis=1).sum() / part.examples(length) * part.passes
        rows += used
    facts = mixture.facts(config)
    assert [one["text_passes"] for one in facts] == pytest.approx(passes.tolist(), rel=0.03)
    assert [one["share"] for one in facts] == pytest.approx((rows / rows.sum()).tolist(), abs=0.01)


def rows_of(batch: dict[str, np.ndarray]) -> list[bytes]:
    """Each row by its content, masks included."""
    names = sorted(batch)
    return [b"".join(batch[name][row].tobytes() for name in names) for row in range(len(batch["input_ids"]))]


def test_phases_continue_each_part_whatever_their_shares_and_lengths(data: str, books: str):
    config = config_of(f"{data},{books}", data_shares=((0.9, 0.1), (0.5, 0.5), (0.2, 0.8), (0, 1)))
    mixture = open_data(config)
    assert isinstance(mixture, MixedData)
    seen: dict[int, Counter[bytes]] = {32: Counter(), 48: Counter()}
    start = 0
    for phase in config.phases:
        # As a run that stopped just before the phase, or in it: from the config and the step alone.
        batches = mixture.batches(config, phase, first_row=config.rows_before(start, phase.length))
        for step in range(phase.steps):
            seen[phase.length].update(rows_of(batches.batch(step)))
        start += phase.steps
    for length, shares in ((32, [0.9 * 240 + 0.2 * 320, 0.1 * 240 + 0.8 * 320]), (48, [0.5 * 40, 0.5 * 40 + 28])):
        expected: Counter[bytes] = Counter()
        for path, count, share in zip((data, books), mixture.rows_of_run[length].tolist(), shares, strict=True):
            assert count == pytest.approx(share, abs=3)
            # Of each part the first rows of its own order, none of them twice or left out.
            expected.update(rows_of(PreparedData(path).batches(config, Phase(length, count, 1)).batch(0)))
        assert seen[length] == expected


@pytest.mark.slow
def test_a_run_continues_in_each_part_after_the_rows_that_another_run_used(data: str, books: str):
    """In other shares, with another batch, stopped within a phase; the second run is continued in turn, by a third."""
    seen: Counter[bytes] = Counter()
    first_rows: tuple[tuple[int, ...], ...] = ()
    for shares, step in (((0.9, 0.1), (1, 1), (0.3, 0.7), (0, 1)), 41), (((2, 1), (1, 0), (1, 4), (1, 1)), 57):
        config = config_of(f"{data},{books}", data_shares=shares, first_rows=first_rows)
        mixture = open_data(config)
        assert isinstance(mixture, MixedData)
        for number in range(step):
            start, phase = config.phase_at(number)
            if phase.length == 32:
                batches = mixture.batches(config, phase, first_row=config.rows_before(start, 32))
                seen.update(rows_of(batches.batch(number - start)))
        facts = {"config": to_json(config), "data_digest": mixture.digest, "data_shares": mixture.shares, "step": step}
        used = rows_used_of_each(facts)
        first_rows = tuple(
            (length, *(used[digest][length] for digest in mixture.digest.split(","))) for length in (32, 48)
        )
    expected: Counter[bytes] = Counter()
    for path, count in zip((data, books), first_rows[0][1:], strict=True):
        expected.update(rows_of(PreparedData(path).batches(config, Phase(32, count, 1)).batch(0)))
    assert seen == expected


def test_rows_to_leave_out_have_a_number_for_each_directory(data: str, books: str):
    config = config_of(f"{data},{books}", first_rows=((32, 8),))
    with pytest.raises(UserError, match=r"first_rows: found \(32, 8\); expected a length and 2 numbers of rows, one"):
        with_first_rows(config, open_data(config), None)


def test_what_does_not_fit_together_is_one_line(data: str, books: str, corpus: Path, tmp_path: Path):
    both = f"{data},{books}"
    words = ["--max-seq-length", "32,48", "--dupe-factor", "2", "--workers", "1", "--held-out", "0.1"]

    def other(name: str, *options: str) -> str:
        assert prepare([str(corpus), "--output", str(tmp_path / name), *words, *options]) in (0, None)
        return f"{data},{tmp_path / name}"

    (tmp_path / "again").symlink_to(data)
    vocabulary, share = (
        other("vocabulary", "--vocab-size", "70"),
        other("share", "--vocab", data, "--masked-lm-prob", "0.3"),
    )
    for text, fields, says in [
        (vocabulary, {}, rf"{data} and .*vocabulary were prepared with another tokenizer; .*--vocab {data}"),
        (other("objective", "--vocab", data, "--objective", "sop"), {}, r"another objective \(nsp and sop\)"),
        (share, {}, r"prepared for MaskingConfig.*say masking"),
        (f"{data},{tmp_path / 'again'}", {}, "are the same data"),
        (f"{data}:1,{books}", {}, f"{books} has no weight"),
        (f"{data},{data}", {}, "names a directory twice"),
        (f"{data},", {}, "has a comma without a directory"),
        (f"{data}:1,{books}:2", {"data_temperature": 2.0}, "weights in data= and data_temperature both say the shares"),
        (f"{data}:1,{books}:2", {"data_shares": ((1, 1),) * 4}, "weights in data= and data_shares both say the shares"),
        (both, {"data_shares": ((1, 1),)}, "a tuple of 2 shares for each of the 4 phases"),
        (both, {"data_shares": ((1, 1, 1),) * 4}, "a tuple of 2 shares for each of the 4 phases"),
        (both, {"data_shares": ((0, 0),) * 4}, r"data_shares: found the shares \(0, 0\)"),
        (both, {"phases": (Phase(64, 8, 4),)}, f"{data}: has no examples of length 64"),
        (data, {"data_temperature": 2.0}, "data_temperature: has no effect on one directory"),
        (data, {"data_shares": ((1,),)}, "data_shares: has no effect on one directory"),
        ("random", {"data_shares": ((1, 1),) * 4}, "data_shares: has no effect on data=random"),
        ("random", {"data_temperature": 2.0}, "data_temperature: has no effect on data=random"),
    ]:
        with pytest.raises(UserError, match=says) as caught:
            open_data(config_of(text, **fields))
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"data_temperature: found 0"):
        config_of(both, data_temperature=0.0)
    # And as the messages advise:
    open_data(config_of(other("again-with", "--vocab", data, "--seed", "1")))
    open_data(config_of(share, masking=MaskingConfig(probability=0.15, max_predictions=5)))
    open_data(config_of(data))


def test_a_resumed_run_compares_its_data_with_what_its_checkpoint_records(data: str, books: str):
    """Here `books` stands at the path where `data` was; moved data and older checkpoints have nothing to compare."""
    config, was, now = config_of("data"), PreparedData(data), PreparedData(books)
    facts = {"config": {"data": "data"}, "data": was.fingerprint, "data_digest": was.digest, "step": 7}
    check_same_data(config, was, facts, ())
    for changed, what in ((facts, "its text or its examples"), (facts | {"data": "x"}, "its vocabulary")):
        says = f"{books} was prepared anew, and {what} changed: .* is {now.digest[:12]}, .* on {was.digest[:12]} up to step 7"
        with pytest.raises(UserError, match=says):
            check_same_data(config, now, changed, ("model",))
    check_same_data(config, now, facts, ("data",))
    moved = facts | {"config": {"data": "elsewhere"}}
    check_same_data(config, now, moved, ())
    with pytest.raises(UserError, match="was prepared anew"):  # made of its text by the run, which has moved
        check_same_data(dataclasses.replace(config, text=("books/*.txt",)), now, moved, ())
    check_same_data(config, now, {"config": {"data": "data"}, "step": 7}, ())


def test_a_resumed_run_whose_steps_would_have_had_other_rows_is_refused(data: str, books: str):
    """Its place in the data follows from its phases and shares: of those that are done it keeps them."""

    def resume(text: str, phases: tuple, *, step: int = 35, **fields) -> None:
        was = config_of(text, phases=((32, 8, 30), (48, 8, 20, 0.3)), **shares)
        now = config_of(text, phases=phases, **(shares | fields))
        mixed = open_data(was)
        facts = {"config": to_json(was), "data_digest": mixed.digest, "step": step}
        check_same_place(now, open_data(now), facts | ({"data_shares": mixed.shares} if shares else {}))

    both, shares = f"{data},{books}", {}
    done = r"35 steps are done, .* begin with those that are done, \(32, 8, 30\), \(48, 8, 5, 0.3\)$"
    for phases in (((32, 16, 30), (48, 8, 20)), ((32, 8, 29), (48, 8, 20)), ((48, 8, 50),), ((32, 8, 20),)):
        with pytest.raises(UserError, match=done):
            resume(data, phases)
    resume(data, ((32, 8, 30), (48, 8, 5, 0.3), (48, 16, 10)))
    resume(data, ((32, 8, 30), (48, 8, 7), (32, 4, 10)))
    resume(data, ((32, 8, 30), (48, 8, 5)))  # nothing is left to do
    shares = {"data_shares": ((1, 1), (1, 2))}
    with pytest.raises(UserError, match=r"phases and shares .*, and data_shares= with their shares$"):
        resume(both, ((32, 8, 30), (48, 8, 20)), data_shares=((1, 1), (2, 1)))
    resume(both, ((32, 8, 30), (48, 8, 5), (48, 8, 20)), data_shares=((1, 1), (1, 2), (2, 1)))


def test_the_scores_of_a_mixture_are_the_means_of_its_parts():
    one, two = (
        {"mlm_loss": 2.0, "mlm_perplexity": np.exp(2), "x": 1.0},
        {"mlm_loss": 4.0, "mlm_perplexity": 0.0, "x": 0.0},
    )
    found = mixed_scores([("a", 0.6, one), ("b", 0.2, two), ("c", 0.2, {})])
    assert found == pytest.approx(
        {"mlm_loss": 2.5, "mlm_perplexity": np.exp(2.5), "x": 0.75, "mlm_loss_a": 2.0, "mlm_loss_b": 4.0}
    )
    assert mixed_scores([("a", 1.0, {}), ("b", 0.0, one)]) == pytest.approx(one | {"mlm_loss_b": 2.0})
    assert mixed_scores([("", 1.0, one)]) == one
    assert mixed_scores([("", 1.0, {})]) == mixed_scores([("a", 0.5, {}), ("b", 0.5, {})]) == {}


@pytest.mark.slow
def test_a_run_on_a_mixture_says_its_shares_and_evaluates_each_part(
    recipe: str, data: str, books: str, tmp_path: Path, capfd
):
    (tmp_path / "books").symlink_to(books)
    books = str(tmp_path / "books")
    words = [recipe, f"data={data},{books}", "data_shares=((0.5, 0.5), (0.25, 0.75))"]
    run = tmp_path / "run"
    assert pretrain.main([*words, f"run={run}", "seed=3"]) == EXIT_DONE
    said = capfd.readouterr().err
    line = re.search(
        r"data: data (.*)% of the rows .*; books (.*)% of the rows \(50.0%, 75.0% by phase\), (.*) passes", said
    )
    assert line, said
    # 8 steps of 8 rows, half of them, and 4 steps of 8 rows, a quarter
    assert float(line[1].split("%")[0]) == pytest.approx(100 * (32 + 8) / 96, abs=0.1)
    part = PreparedData(books)
    assert float(line[3]) == pytest.approx(3 * (32 / part.examples(32) + 24 / part.examples(48)), rel=0.02)
    evaluated = records(run, "eval")
    assert len(evaluated) == 2
    for row in evaluated:
        mean = row["mlm_loss_data"] * 40 / 96 + row["mlm_loss_books"] * 56 / 96
        assert row["mlm_loss"] == pytest.approx(mean, rel=1e-3)
    stopped = tmp_path / "stopped"
    for at in (5, 10):  # in each phase
        with stopped_at(at):
            assert pretrain.main([*words, f"run={stopped}", "seed=3"]) == EXIT_PREEMPTED
    assert pretrain.main([*words, f"run={stopped}", "seed=3"]) == EXIT_DONE
    assert_equal_states(stopped, run)
    with pytest.raises(UserError, match=r"data_shares: .* became"):
        pretrain.main([recipe, f"data={data},{books}", f"run={run}", "seed=3"])
    with pytest.raises(UserError, match="let phases= begin with those that are done"):
        pretrain.main([*words[:2], words[2].replace("0.25", "2"), f"run={run}", "seed=3", "allow_change=data_shares"])
    capfd.readouterr()

    assert pretrain.main([*words, "--dry-run", "--json"]) == EXIT_DONE
    facts = json.loads(capfd.readouterr().out)
    assert [one["name"] for one in facts["mixture"]] == ["data", "books"]
    assert facts["mixture"][1]["shares"] == [0.5, 0.75]

    after = [recipe, f"init={run}", "init_data=true", "seed=3", "phases=((32, 8, 1),)", "optimizer.warmup_steps=0"]
    for name, text, expected in (
        ("both", f"{books}:1,{data}:9", [[32, 32, 32], [48, 24, 8]]),  # of books first, as data= has them now
        ("one", books, [[32, 32], [48, 24]]),
    ):
        assert pretrain.main([*after, f"data={text}", f"run={tmp_path / name}"]) == EXIT_DONE
        assert json.loads((tmp_path / name / "config.json").read_text())["first_rows"] == expected
    again = [recipe, f"init={tmp_path / 'one'}", *after[2:], f"data={data},{books}", f"run={tmp_path / 'again'}"]
    assert pretrain.main(again) == EXIT_DONE  # `data` had no part in the second run
    assert json.loads((tmp_path / "again/config.json").read_text())["first_rows"] == [[32, 0, 40], [48, 0, 24]]

    old = PreparedData(books).digest
    (tmp_path / "books").unlink()
    of_other_text = [*f"--vocab {data} --max-seq-length 32,48 --dupe-factor 3 --held-out 0.3 --workers 1".split()]
    assert prepare([str(write(tmp_path / "text.txt", 6, 20)), "--output", books, *of_other_text]) in (0, None)
    new = PreparedData(books).digest
    with pytest.raises(UserError) as refused:
        pretrain.main([*words, f"run={run}", "seed=3"])
    assert str(refused.value) == (
        f"data: {books} was prepared anew, and its text or its examples changed: the sum in its manifest.json is "
        f"{new[:12]}, and the run was trained on {old[:12]} up to step 12; put that data back, or say allow_change=data "
        "to continue on the new data, or start another run with init="
    )
    assert pretrain.main([*words, f"run={run}", "seed=3", "allow_change=data"]) == EXIT_DONE
