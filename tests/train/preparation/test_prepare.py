"""`python -m train.prepare`: the same bytes for any workers and after any kill, Google's bits, and clear messages."""

import errno
import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import unicodedata
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.manifest import shard_folder
from bert_jax.data.pretraining.shards import open_shard
from bert_jax.data.text.corpus import split_sentences
from bert_jax.data.text.lines import read_lines
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.pretraining.google_script import google_instances, google_lines, google_pieces
from tests.root import ROOT
from tests.train.preparation.small_corpus import (
    COMMAND,
    VOCABULARY,
    WORDS,
    arguments,
    documents_of,
    hashes,
    made,
    make_documents,
    write_vocabulary,
)
from train.preparation.held_out import is_held_out, measured, with_held_out
from train.preparation.show import print_report
from train.prepare import PrepareOptions, main
from train.run.ending.stopping import exit_code


@pytest.fixture
def vocab(tmp_path) -> Path:
    return write_vocabulary(tmp_path)


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(make_documents(60)) + "\n")
    return path


@pytest.fixture
def options(corpus, vocab, tmp_path) -> dict:
    """A small corpus in several shards, two lengths, some documents held out."""
    return {
        "inputs": (str(corpus),),
        "output": tmp_path / "out",
        "vocab": str(vocab),
        "max_seq_length": (24, 40),
        "dupe_factor": 2,
        "held_out": 0.2,
        "workers": 1,
        "shard_bytes": 2_000,
    }


def test_every_document_is_in_one_split_as_its_sentences_tokens(options, vocab):
    manifest = made(**options)
    tokenizer = Tokenizer.load(vocab)
    expected: dict[str, list] = {"train": [], "held-out": []}
    for text in make_documents(60):
        sentences = [tokenizer.encode_flat([s])[0].tolist() for s in split_sentences(text)]
        expected["held-out" if is_held_out(text, 0.2) else "train"].append(sentences)
    assert 2 < len(expected["held-out"]) < 25
    for split, documents in expected.items():
        assert documents_of(options["output"], manifest, split) == documents
        assert min(entry["documents"] for entry in PreparedDirectory(options["output"]).shards(split)) >= 2
        assert manifest["splits"][split]["shards"]["total"] == sum(len(s) for document in documents for s in document)
    assert manifest["splits"]["train"]["shards"]["count"] >= 4
    counts = np.load(options["output"] / "unigram_counts.npy")
    flat = [token for document in expected["train"] for sentence in document for token in sentence]
    assert counts.tolist() == np.bincount(flat, minlength=len(VOCABULARY)).tolist()


def test_a_document_stays_on_its_side_whatever_else_is_in_the_corpus():
    texts = make_documents(4_000)
    held_out = [text for text in texts if is_held_out(text, 0.1)]
    assert 300 < len(held_out) < 500
    assert all(is_held_out(text, 0.2) for text in held_out)
    assert not any(is_held_out(text, 0.0) for text in texts)


def test_by_default_a_small_corpus_holds_out_enough_to_evaluate_on(options):
    """At least two of ten documents or more, and no more than a tenth unless that is two."""
    del options["held_out"]
    for count, short, least, most in ((10, True, 2, 3), (60, True, 6, 8), (60, False, 2, 4)):
        texts = [text if short else "\n".join([text] * 100) for text in make_documents(count, seed=count)]
        share = with_held_out(PrepareOptions(**options), map(measured, texts, texts)).held_out
        assert least <= sum(is_held_out(text, share) for text in texts) <= most, (count, share)
    manifest = made(**options)
    assert manifest["settings"]["held_out"] > 0.02
    assert manifest["report"]["held-out"]["documents"] >= 2
    assert not [warning for warning in manifest["report"]["warnings"] if "held-out" in warning]


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_workers(options, tmp_path):
    manifest = made(**options)
    alone = hashes(options["output"])
    assert "manifest.json" in alone
    assert not any(".tmp" in name or "unfinished" in name for name in alone)
    for workers in (2, 3):
        again = options | {"workers": workers, "output": tmp_path / f"out-{workers}"}
        assert made(**again) == manifest
        assert hashes(again["output"]) == alone


@pytest.mark.slow
def test_a_learnt_vocabulary_does_not_depend_on_the_workers_and_fits(options, tmp_path):
    options |= {"vocab": None, "vocab_size": 120, "max_seq_length": (24,)}
    manifest = made(**options)
    again = made(**options | {"workers": 2, "output": tmp_path / "again"})
    assert manifest == again
    assert manifest["report"]["train"]["unk_rate"] < 0.01
    assert manifest["report"]["vocabulary"]["size"] == manifest["tokenizer"]["vocab_size"] <= 120


def test_one_shard_of_one_document_never_comes_about(options, tmp_path):
    big = " ".join(["The cat sat."] * 300)
    for texts in (
        [big, "A dog."],
        ["A dog.", big],
        [big, big + " Ran.", "A bird."],
        ["A dog.", "A cat.", big, "\u200b"],
    ):
        corpus = tmp_path / "big.txt"
        corpus.write_text("\n\n".join(texts))
        output = tmp_path / hashlib.sha256("".join(texts).encode()).hexdigest()
        made(**options | {"inputs": (str(corpus),), "held_out": 0.0, "output": output, "shard_bytes": 100})
        assert all(entry["documents"] >= 2 for entry in PreparedDirectory(output).shards("train"))


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_missing_files(options, tmp_path):
    undisturbed = options | {"output": tmp_path / "undisturbed"}
    corpus = Path(options["inputs"][0])
    corpus.write_text("\n\n".join(make_documents(200)))
    made(**undisturbed)
    stages = [("parts/*/unit.json", 3), ("train/shard-*", 7), ("train/examples-40/*.npy", 4)]
    for (stage, number), workers in zip(stages, (2, 2, 1), strict=True):
        output = tmp_path / f"killed-{number}"
        process = subprocess.Popen(
            [*COMMAND, *arguments(options | {"output": output, "workers": workers})], cwd=ROOT, stderr=subprocess.PIPE
        )
        while len(list(output.glob(stage))) < number:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (output / "manifest.json").exists()
        parts, shards = list(output.glob("parts/*/unit.json")), list(output.glob("*/*/*.npy"))
        before = {path: path.stat().st_mtime_ns for path in (*parts, *shards)}
        (output / "parts" / ".unit.1.tmp").mkdir(parents=True)
        (output / "parts" / ".unit.1.tmp" / "tokens.npy").write_bytes(b"half")
        assert len(parts) >= 3
        assert not (output / "train" / "shard-00025").exists() or workers == 1
        with pytest.raises(UserError, match="other options: seed 0 \\(now 1\\)"):
            made(**options | {"output": output, "seed": 1})
        files = {path: path.stat().st_mtime_ns for path in (*parts, *shards)}
        assert files == before
        made(**options | {"output": output})
        assert hashes(output) == hashes(undisturbed["output"])
        assert {path: path.stat().st_mtime_ns for path in shards} == {path: before[path] for path in shards}


def test_a_kill_right_after_the_manifest_leaves_no_working_files_for_ever(options, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    output = options["output"]
    with monkeypatch.context() as patch:
        patch.setattr("train.preparation.directory._remove_working_files", killed)
        with pytest.raises(KeyboardInterrupt):
            made(**options)
    assert (output / "manifest.json").exists()
    assert (output / "parts").exists()
    assert (output / "unfinished.json").exists()
    made(**options)
    assert not (output / "parts").exists()
    assert not (output / "unfinished.json").exists()


@pytest.mark.slow
def test_preparing_imports_no_jax():
    code = "import sys, train.prepare, train.preparation.jobs; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_finished_output_is_kept(options, capsys):
    made(**options)
    before = {p: p.stat().st_mtime_ns for p in options["output"].rglob("*")}
    assert main(arguments(options)) == 0
    assert "was already prepared" in capsys.readouterr().err
    changes = {
        "seed": 3,
        "dupe_factor": 3,
        "max_seq_length": (24,),
        "held_out": 0.1,
        "objective": "sop",
        "cased": False,
    }
    for name, value in changes.items():
        with pytest.raises(UserError, match=f"made with other options: .*{name}"):
            made(**options | {name: value})
    corpus = Path(options["inputs"][0])
    corpus.write_text(corpus.read_text().replace("cat", "dog", 1))
    with pytest.raises(UserError, match="made with other options: the text itself"):
        made(**options)
    assert {p: p.stat().st_mtime_ns for p in options["output"].rglob("*")} == before


def test_an_output_that_is_not_ours_or_in_use_is_refused(options):
    fcntl = pytest.importorskip("fcntl")
    options["output"].mkdir()
    (options["output"] / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is not empty"):
        made(**options)
    (options["output"] / "thesis.tex").unlink()
    (options["output"] / ".DS_Store").write_bytes(b"")
    held = os.open(options["output"], os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process"):
        made(**options)
    os.close(held)

    def without_locks(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", without_locks)
        with pytest.raises(UserError, match=r"output .*: cannot be locked .*has locks"):
            made(**options)

    def full_pipe(*_, **__):  # a non-blocking stdout whose reader is slow
        raise BlockingIOError(11, "write could not complete without blocking")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.preparation.directory.look_at", full_pipe)
        with pytest.raises(BlockingIOError):
            made(**options)
    made(**options)


def test_recipe_google_equals_googles_script_on_files_of_lines(tmp_path, vocab, capsys):
    # A document continues in the next file; lines are sentences; special tokens are text; 120 letters are a word.
    lines = [line for text in make_documents(25) for line in [*text.split("\n"), ""]]
    lines += ["The cat [MASK] sat.", "\u200b", "q" + "x" * 119 + " dog.", "  big cats  ", "", " \t", "And the dog."]
    cut = 31
    assert lines[cut - 1] and lines[cut]
    for name, part in [("1.txt", lines[:cut]), ("2.txt.gz", lines[cut:])]:
        data = "".join(f"{line}\n" for line in part).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    output = tmp_path / "out"
    flags = [
        "--recipe",
        "google",
        "--dupe-factor",
        "3",
        "--max-seq-length",
        "32",
        "--max-predictions",
        "4",
        "--workers",
        "1",
    ]
    flags += ["--shard-bytes", "900", "--vocab", str(vocab)]
    assert main([str(tmp_path / "1.txt"), str(tmp_path / "2.txt.gz"), "--output", str(output), *flags]) == 0
    assert main(["--check", str(output)]) == 0
    capsys.readouterr()
    assert main(["--show", str(output), "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def tokenize(line: str) -> list[str]:
        tokens = []
        for word in re.findall(r"\w+|[^\w\s]", line.replace("\u200b", "").lower()):
            stem = next((w for w in WORDS if word in (w, w + "s", w + "ing")), None)
            if word.startswith("qx"):
                tokens += ["q"] + ["##x"] * (len(word) - 1)
            elif stem:
                tokens += [stem] + ([f"##{word.removeprefix(stem)}"] if word != stem else [])
            else:
                tokens.append(word if word in VOCABULARY else "[UNK]")
        return tokens

    expected = google_instances(lines, tokenize, VOCABULARY, length=32, predictions=4, dupes=3)
    assert any("##x" in instance["tokens"] for instance in expected)
    assert any("[UNK]" in instance["mlm_labels"] + instance["tokens"] for instance in expected)
    assert shown == expected


@pytest.fixture(scope="session")
def published(data_dir, tmp_path_factory) -> Path:
    """The vocab.txt of the released uncased BERT."""
    packed = data_dir / "checkpoints" / "vocab" / "bert-base-uncased-vocab.txt.gz"
    path = tmp_path_factory.mktemp("published") / "vocab.txt"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


def examples_by_google(files: list[Path], published: Path, output: Path, capsys, *flags: str) -> list[dict]:
    flags = ("--recipe", "google", "--vocab", str(published), "--uncased", "--workers", "1", *flags)
    assert main([*map(str, files), "--output", str(output), *flags]) == 0
    capsys.readouterr()
    assert main(["--show", str(output), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]


def google_expects(files: list[Path], published: Path, **settings) -> list[dict]:
    words = published.read_text().split("\n")[:-1]
    tokenize = partial(google_pieces, vocabulary=set(words), lower=True)
    lines = google_lines(*(file.read_bytes() for file in files))
    return google_instances(lines, tokenize, words, **settings)


@pytest.mark.slow
def test_recipe_google_on_the_sample_of_the_bert_release(data_dir, published, tmp_path, capsys):
    # The options of the release's README; the rest are the defaults of Google's script.
    files = [data_dir / "text" / "google-bert-sample_text.txt"]
    shown = examples_by_google(files, published, tmp_path / "out", capsys, "--dupe-factor", "5")
    assert shown == google_expects(files, published, length=128, predictions=20, dupes=5)


@pytest.mark.slow
@pytest.mark.parametrize("whole_words", [False, True], ids=["tokens", "whole words"])
def test_recipe_google_on_hostile_text(data_dir, published, tmp_path, capsys, whole_words):
    file = tmp_path / "hostile.txt"
    file.write_bytes(gzip.decompress((data_dir / "text" / "hostile.txt.gz").read_bytes()))
    flags = ["--max-seq-length", "64", "--max-predictions", "10", "--dupe-factor", "1", "--shard-bytes", "50000"]
    flags += ["--whole-word-masking"] * whole_words
    shown = examples_by_google([file], published, tmp_path / "out", capsys, *flags)
    settings = {"length": 64, "predictions": 10, "dupes": 1, "whole_words": whole_words}
    assert shown == google_expects([file], published, **settings)


@pytest.mark.slow
def test_recipe_google_reads_odd_files_as_the_script_does(published, tmp_path, capsys):
    contents = [
        "\ufeffThe cat sat.\r\nA dog\rran fast.\r\n\r\nOne\x85two three\n\x85\nnext \u2028 line\x0b\n\x1c\nlast one.\n\r",
        "\ufeff\nthe same document goes on \u07fd ΟΔΟΣ \U0002b830\n\u200b\n\u3000\n[MASK] [CLS] " + "x" * 150 + " end",
        "goes on again\n\nA new one\nwith İstanbul and \ue000.\n\r\r\nThe end\nat last.",
    ]
    files = [tmp_path / f"{number}.txt" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content.encode())
    flags = ["--max-seq-length", "32", "--max-predictions", "5", "--dupe-factor", "4"]
    shown = examples_by_google(files, published, tmp_path / "out", capsys, *flags)
    assert shown == google_expects(files, published, length=32, predictions=5, dupes=4)
    assert any("##ος" in instance["tokens"] + instance["mlm_labels"] for instance in shown)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["report"]["train"]["documents"] == 7
    assert manifest["options"]["unicode_version"] == unicodedata.unidata_version


def test_recipe_google_reads_markdown_as_lines_and_no_other_format(vocab, tmp_path):
    text = "# The cat *sat*.\n\n" + "\n\n".join(make_documents(8))
    options = {"vocab": str(vocab), "max_seq_length": (40,), "dupe_factor": 1, "workers": 1, "recipe": "google"}
    for name in ("a.txt", "a.md"):
        (tmp_path / name).write_text(text)
        made(**options, inputs=(str(tmp_path / name),), output=tmp_path / f"of-{name}")
    of_text, of_markdown = ((tmp_path / f"of-{name}" / "train") for name in ("a.txt", "a.md"))
    assert hashes(of_markdown) == hashes(of_text)
    (tmp_path / "b.jsonl").write_text('{"text": "The cat sat."}\n')
    with pytest.raises(UserError, match=r"^--recipe google: reads plain text .* and the input has jsonl; leave those"):
        made(**options, inputs=(str(tmp_path / "b.jsonl"),), output=tmp_path / "of-json")


def test_google_with_whole_words_masks_whole_words(options, capsys):
    made(**options | {"recipe": "google", "format": "lines", "whole_word_masking": True, "max_seq_length": (40,)})
    main(["--show", str(options["output"]), "--json"])
    pieces = 0
    for line in capsys.readouterr().out.splitlines():
        instance = json.loads(line)
        original = list(instance["tokens"])
        for position, label in zip(instance["mlm_positions"], instance["mlm_labels"], strict=True):
            original[position] = label
        for position, token in enumerate(original):
            if token.startswith("##") and original[position - 1] not in ("[CLS]", "[SEP]"):
                assert (position in instance["mlm_positions"]) == (position - 1 in instance["mlm_positions"])
                pieces += position in instance["mlm_positions"]
    assert pieces > 10


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_show_gives_all_examples_in_the_order_of_the_index(options, capsys, objective):
    manifest = made(**options | {"objective": objective})
    output = options["output"]
    tokenizer = Tokenizer.load(output / "tokenizer")
    for split, length in [("train", 40), ("held-out", 24)]:
        main(["--show", str(output), "--json", "--split", split, "--max-seq-length", str(length)])
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        count = manifest["splits"][split]["shards"]["count"]
        shards = [open_shard(output / shard_folder(split, number)) for number in range(count)]
        index = np.concatenate([np.load(path) for path in sorted((output / split).glob(f"examples-{length}/*.npy"))])
        assert len(shown) == len(index) == manifest["report"][split]["examples"][str(length)]["examples"]
        for instance, row in zip(shown, index, strict=True):
            tokens = list(instance["tokens"])
            assert 1 <= len(instance["mlm_positions"]) <= -(-length * 15 // 100)
            for position, label in zip(instance["mlm_positions"], instance["mlm_labels"], strict=True):
                tokens[position] = label
            a = tokenizer.ids_to_tokens(shards[row["a_shard"]].tokens[row["a_start"] : row["a_end"]])
            b = tokenizer.ids_to_tokens(shards[row["b_shard"]].tokens[row["b_start"] : row["b_end"]])
            second = [*b, "[SEP]"] if b else []
            assert tokens == ["[CLS]", *a, "[SEP]", *second]
            assert instance["token_type_ids"] == [0] * (len(a) + 2) + [1] * len(second)
            assert instance["next_sentence_label"] == (None if objective == "none" else row["label"])
    assert sum(instance["tokens"].count("[MASK]") for instance in shown) > len(shown)


@pytest.mark.parametrize(("objective", "passes"), [("nsp", 10), ("none", 1)])
def test_the_number_of_passes_depends_on_the_objective(options, tmp_path, objective, passes):
    options |= {"objective": objective, "max_seq_length": (24,)}
    del options["dupe_factor"]
    manifest = made(**options)
    assert manifest["settings"]["dupe_factor"] == passes
    again = options | {"output": tmp_path / "again", "dupe_factor": passes}
    assert made(**again) == manifest
    assert hashes(again["output"]) == hashes(options["output"])


def test_rows_across_documents_are_shown_with_their_separators_and_padding(options, capsys):
    options |= {"objective": "none", "max_seq_length": (40,), "shard_bytes": 100_000}
    padding, documents = {}, {}
    for rows in ("doc-sentences", "full-sentences", "blocks"):
        output = options["output"].with_name(rows)
        manifest = made(**(options | {"output": output, "rows": rows}))
        print_report(manifest, title="done")
        assert f"objective none ({rows})" in capsys.readouterr().err
        padding[rows] = manifest["report"]["train"]["examples"]["40"]["padding_share"]
        assert main(["--show", str(output)]) == 0
        shown = capsys.readouterr().out
        documents[rows] = shown.count("A from documents ")
        # prepared data from before there was this choice says nothing of it
        assert manifest["settings"].get("rows") == (None if rows == "doc-sentences" else rows)
        assert "rows" in manifest["options"] or rows == "doc-sentences"
        for row in re.findall(r"A from documents (\d+) to (\d+) of .*\n(.*)", shown):
            assert row[2].split().count("[SEP]") == int(row[1]) - int(row[0]) + 1
    assert documents["doc-sentences"] == 0 < documents["full-sentences"]
    assert padding["blocks"] < 0.03 < padding["full-sentences"] < padding["doc-sentences"]


def test_a_sentence_is_shown_twice_cut_and_masked_anew(options, capsys):
    manifest = made(**options | {"objective": "none", "rows": "sentences", "twice": 1.0, "max_seq_length": (48,)})
    print_report(manifest, title="done")
    assert "objective none (sentences, 100% of them twice)" in capsys.readouterr().err
    assert main(["--show", str(options["output"]), "--json", "--split", "train"]) == 0
    masked_apart, cuts = 0, set()
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        tokens, second = list(row["tokens"]), row["token_type_ids"].index(1)
        masked = set(row["mlm_positions"])
        for position, label in zip(row["mlm_positions"], row["mlm_labels"], strict=True):
            tokens[position] = label
        first, last = tokens[1 : second - 1], tokens[second:-1]
        # A lacks up to half of the sentence's `whole` tokens at the end, B as many at the beginning: where does B begin?
        begins = [
            whole - len(last)
            for whole in range(max(len(first), len(last)), len(first) + len(last) + 1)
            if max(whole - len(first), whole - len(last)) <= whole // 2
            and first[whole - len(last) :] == last[: len(first) + len(last) - whole]
        ]
        assert begins and row["next_sentence_label"] is None
        cuts.add(begins[0])
        masked_apart += any(
            (1 + at in masked) != (second + at - begins[0] in masked) for at in range(begins[0], len(first))
        )
    assert masked_apart > 20 and len(cuts) > 4
    assert main(["--show", str(options["output"]), "--limit", "1"]) == 0
    assert re.search(r": A from document \d+ of shard-\d+, and again as B\n", capsys.readouterr().out)


def test_show_for_people_says_what_was_masked_and_which_pair(options, capsys):
    made(**options)
    assert main(["--show", str(options["output"]), "--limit", "40"]) == 0
    out = capsys.readouterr().out
    assert out.count("masked: ") == 40
    assert re.search(
        r"train 24 #0: label [01] \(B (follows A|is random)\); A from document \d+ of shard-\d+, B from", out
    )
    assert re.search(r"\d+ \S+ -> \[MASK\]", out)
    assert re.search(r"\d+ \S+ kept", out)
    for pair in re.findall(r"label (\d).*A from (document \d+ of \S+), B from (document \d+ of \S+)", out):
        assert (pair[0] == "0") == (pair[1] == pair[2])


def test_the_report_counts_what_is_there(options, capsys):
    assert main([*arguments(options), "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads((options["output"] / "manifest.json").read_text())["report"]
    train = [text for text in make_documents(60) if not is_held_out(text, 0.2)]
    assert report["train"]["documents"] == len(train)
    assert report["train"]["sentences"] == sum(len(split_sentences(text)) for text in train)
    assert report["train"]["sentences_per_document_median"] == np.median([len(split_sentences(t)) for t in train])
    assert 0 < report["train"]["examples"]["40"]["padding_share"] < 0.6
    assert report["warnings"] == []
    for words in ("documents", "[UNK]", "unigram entropy", "examples of length 40", "random second sentence"):
        assert words in captured.err
    assert main(["--check", str(options["output"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_problems_of_the_text_are_reported_before_training(options, capsys):
    corpus = Path(options["inputs"][0])
    stuck = "\n\n".join(["The cat sat.", "The zebra sat.", "A dog ran."] * 20)
    corpus.write_text(stuck)
    main(arguments(options | {"held_out": 0.0}))
    err = capsys.readouterr().err
    for words in ("blank line after every sentence", "% of the tokens are [UNK]", "repeat another line"):
        assert re.search(f"^warning: .*{re.escape(words)}", err, re.MULTILINE), words


def test_one_document_is_refused_or_goes_without_sentence_pairs(options, tmp_path):
    corpus = Path(options["inputs"][0])
    corpus.write_text("The cat sat. The dog ran.\nThe bird flew.\n")
    with pytest.raises(UserError, match=r"the text is one document: .*--objective none"):
        made(**options)
    alone = made(**options | {"objective": "none", "held_out": 0.0})  # in the same place
    assert alone["report"]["train"]["documents"] == 1
    assert any("one document" in warning for warning in alone["report"]["warnings"])
    google = made(**options | {"recipe": "google", "held_out": 0.0, "output": tmp_path / "google"})
    assert any("true neighbours" in warning for warning in google["report"]["warnings"])


def test_a_held_out_split_too_small_for_pairs_is_left_out_and_reported(options):
    texts = make_documents(400)
    one = next(text for text in texts if is_held_out(text, 0.2))
    rest = [text for text in texts if not is_held_out(text, 0.2)][:10]
    Path(options["inputs"][0]).write_text("\n\n".join([*rest[:5], one, *rest[5:]]))
    manifest = made(**options)
    nothing = {"count": 0, "total": 0, "bytes": 0}
    assert manifest["splits"]["held-out"] == {"shards": nothing, "examples": {"24": nothing, "40": nothing}}
    assert any(
        "held-out split: too few documents with words (1 in all)" in warning
        for warning in manifest["report"]["warnings"]
    )


def test_a_changed_byte_fails_the_check(options, capsys):
    made(**options)
    file = options["output"] / "train" / "examples-24" / "00001.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    capsys.readouterr()
    assert exit_code(main, ["--check", str(options["output"])]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"python -m train.prepare: error: damaged: {file}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no INPUT or no --output"),
        (["IN"], "no INPUT or no --output"),
        (["IN", "--output", "OUT"], "--vocab, --vocab-size: found neither"),
        (["IN", "--output", "OUT", "--vocab", "V", "--vocab-size", "9"], "found both"),
        (["IN", "--output", "OUT", "--vocab", "no/where"], "--vocab no/where: no such local folder"),
        (["NO", "--output", "OUT", "--vocab", "V"], "NO: no such file or folder"),
        (["IN", "--output", "OUT", "--vocab", "V", "--max-seq-length", "12,x"], "'12,x': expected whole numbers"),
        (["IN", "--output", "OUT", "--vocab", "V", "--max-seq-length", "4"], "--max-seq-length: found 4, expected"),
        (["IN", "--output", "OUT", "--vocab", "V", "--max-predictions", "3,4"], "--max-predictions: found 3,4, expected a number for each"),
        (["IN", "--output", "OUT", "--vocab", "V", "--held-out", "5"], "--held-out: found 5.0, expected a share"),
        (["IN", "--output", "OUT", "--vocab", "V", "--masked-lm-prob", "0"], "--masked-lm-prob: found 0.0"),
        (["IN", "--output", "OUT", "--vocab", "V", "--recipe", "google", "--objective", "sop"], "--recipe google: needs"),
        (["IN", "--output", "OUT", "--vocab", "V", "--rows", "blocks"], "--rows blocks: needs --objective none"),
        (["IN", "--output", "OUT", "--vocab", "V", "--twice", "0.2"], "--twice: needs --rows sentences, found --rows doc"),
        (["IN", "--output", "OUT", "--vocab", "V", "--recipe", "gogle"], "invalid choice: 'gogle'"),
        (["IN", "--output", "OUT", "--vocab-size", "7"], "--vocab-size 7: a vocabulary of 7 pieces is too small"),
        (["--check", "NO"], "NO: no such folder"),
        (["--show", "NO", "--limit", "-1"], "--limit: found -1"),
        (["IN", "--check", "NO"], "cannot be combined"),
        (["IN", "--output", "gs://b/d", "--vocab", "V"], "--output gs://b/d: is not on a local disk; prepare in a folder"),
        (["IN", "--output", "OUT", "--vocab", "gs://b/d"], "--vocab gs://b/d: is not on a local disk; copy it"),
        (["s3://b/t.txt", "--output", "OUT", "--vocab", "V"], "error: s3://b/t.txt: is not on a local disk; copy it"),
        (["--check", "gs://b/d"], "--check gs://b/d: is not on a local disk; copy it"),
        (["--show", "gs://b/d"], "--show gs://b/d: is not on a local disk; copy it"),
        (["--show", "NO", "--max-seq-length", "24,40"], "--max-seq-length: found 24,40; expected one length"),
        (["--show", "NO", "--seed", "1"], "--seed: has no effect on --show; leave it out"),
        (["--check", "NO", "--limit", "2"], "--limit: has no effect on --check; leave it out"),
        (["IN", "--output", "OUT", "--vocab", "V", "--split", "held-out"], "--split: is for --show; leave it out"),
        (["IN", "--output", "OUT", "--vocab", "V", "--masked-lm-prob", "1"], "--masked-lm-prob: found 1.0, expected a share above 0 and below 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, vocab, corpus, capsys, flags, message):
    words = {"IN": str(corpus), "OUT": str(tmp_path / "out"), "V": str(vocab)}
    assert exit_code(main, [words.get(flag, flag) for flag in flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_worker_reports_a_mistake_in_the_text_too(options, capsys):
    Path(options["inputs"][0]).write_bytes(b"good\n\nbad \xff\n")
    for workers in ("1", "2"):
        assert exit_code(main, arguments(options | {"workers": workers})) == 2
        assert "corpus.txt, line 3: byte 0xff" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_and_the_command_resumes(options, workers):
    Path(options["inputs"][0]).write_text("\n\n".join(make_documents(200)))
    options |= {"workers": workers, "shard_bytes": 40_000}
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1)); "
        "from train.prepare import main; from train.run.ending.stopping import run_program; run_program(main)"
    )
    command = [sys.executable, "-c", limited, *arguments(options)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert re.fullmatch(
        r"python -m train.prepare: error: .*/out/train/.*: cannot be written to \(File too large\)\n", done.stderr
    )
    assert not (options["output"] / "manifest.json").exists()
    made(**options)


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_the_command_goes_on(options):
    Path(options["inputs"][0]).write_text("\n\n".join(make_documents(200)))
    # A shell that starts the tests in the background has them, and what they start, ignore SIGINT.
    heeding = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from train.prepare import main; from train.run.ending.stopping import run_program; run_program(main)"
    )
    command = [sys.executable, "-c", heeding, *arguments(options | {"workers": 2})]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (options["output"] / "train" / "shard-00001").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("interrupted; the same command continues where this one stopped\n")
    assert "Traceback" not in err
    made(**options)


@pytest.mark.slow
def test_real_korean_and_chinese_and_english_are_learnt_and_prepared(data_dir, tmp_path):
    for language, least in [("ko", 2_000), ("zh", 3_000), ("en", 1_000)]:
        source = data_dir / "text" / f"wiki-{language}-00.jsonl.zst"
        small = tmp_path / f"{language}.jsonl"
        lines = [line for _, line in islice(read_lines(source), 120)]
        small.write_text("\n".join(lines))
        manifest = made(
            inputs=(str(small),), output=tmp_path / language, vocab_size=6_000, held_out=0.1, workers=2,
            shard_bytes=100_000, dupe_factor=1,
        )  # fmt: skip
        report = manifest["report"]
        assert report["warnings"] == []
        assert report["train"]["sentences_per_document_median"] > 3
        assert manifest["tokenizer"]["vocab_size"] > least
        assert manifest["tokenizer"]["strip_accents"] == (language != "ko")
        text = json.loads(lines[0])["text"]
        pieces = Tokenizer.load(tmp_path / language / "tokenizer").tokenize(text)
        if language == "ko":
            assert sum("\uac00" <= piece.removeprefix("##")[0] <= "\ud7a3" for piece in pieces) > 0.5 * len(pieces)


@pytest.mark.slow
def test_hostile_text_is_prepared_to_the_last_line(data_dir, vocab, tmp_path):
    source = str(data_dir / "text" / "hostile.txt.gz")
    manifest = made(
        inputs=(source,), output=tmp_path / "out", vocab=str(vocab), format="lines", held_out=0.0,
        workers=2, shard_bytes=20_000, dupe_factor=1,
    )  # fmt: skip
    lines = [line.strip() for _, line in read_lines(Path(source))]
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer")
    expected = [ids for line in lines if len(ids := tokenizer.encode_flat([line])[0].tolist())]
    found = [ids for document in documents_of(tmp_path / "out", manifest, "train") for ids in document]
    assert found == expected
    assert main(["--check", str(tmp_path / "out")]) == 0


def test_the_commands_of_the_guide_run(tmp_path, vocab, monkeypatch, capsys):
    texts = make_documents(40)
    (tmp_path / "books").mkdir()
    (tmp_path / "gutenberg").mkdir()
    for number in range(4):
        book = "\n\n\n".join(textwrap.fill(text, 72) for text in texts)
        (tmp_path / "gutenberg" / f"{number}.txt").write_text(book)
        (tmp_path / "books" / f"{number}.txt").write_text("\n\n".join(texts[number::4]))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number::4])
        (tmp_path / f"wiki-{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (guide,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "prepare.md").read_text(), re.DOTALL)
    commands = [line.split()[3:] for line in guide.splitlines() if line.startswith("python -m train.prepare ")]
    assert len(commands) == 5
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert exit_code(main, [*command, *(("--workers", "1") if "--output" in command else ())]) == 0
    assert capsys.readouterr().out.count("masked: ") == 3
