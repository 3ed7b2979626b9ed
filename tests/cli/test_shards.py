"""Parts of a large file: together they are the whole, in order and bit for bit, however they are made and restarted."""

import os
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.cli import shards, streaming
from bert_jax.cli.shards import PartFile, Share
from bert_jax.cli.vector_file import VectorFile, join_parts
from bert_jax.cli.verbs import embed as embed_command
from bert_jax.errors import UserError
from bert_jax.inference.tasks import text_classification
from tests.hosts import Hosts
from tests.inference.tasks.task_folders import export


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    heads = ("pretraining", "sequence-classification")
    return {head: export(tmp_path_factory.mktemp("shards"), head) for head in heads}


@pytest.fixture
def lines(tmp_path: Path, monkeypatch) -> Path:
    """Fourteen lines, of which number 10 is not UTF-8; all verbs take four at a time."""
    for module, name in ((embed_command, "_AT_ONCE"), (shards, "CHUNK"), (streaming, "CHUNK")):
        monkeypatch.setattr(module, name, 4)
    found = [b"hello " * (number % 5) + b"held" for number in range(14)]
    found[9] = b"\xff"
    (tmp_path / "texts.txt").write_bytes(b"\n".join(found) + b"\n")
    return tmp_path / "texts.txt"


VERBS = {
    "embed .npy": ("embed", "pretraining", "v.npy"),
    "embed .jsonl": ("embed", "pretraining", "v.jsonl"),
    "likelihood": ("likelihood", "pretraining", "v.tsv", "--tokens"),
    "classify": ("classify", "sequence-classification", "v.jsonl", "--json"),
}


def words_of(verb: str, folders: dict[str, Path], texts: Path, output: Path) -> list[str]:
    name, head, file, *options = VERBS[verb]
    return [name, str(folders[head]), str(texts), "--output", str(output / file), *options]


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_the_parts_are_joined_to_the_file_that_one_process_writes(verb, folders, lines, tmp_path, capsys):
    for name in ("one", "parts"):
        (tmp_path / name).mkdir()
    assert main(words_of(verb, folders, lines, tmp_path / "one")) == 2  # line 10
    parts, file = tmp_path / "parts", VERBS[verb][2]
    codes = {}
    for number in (3, 1, 2):
        codes[number] = main([*words_of(verb, folders, lines, parts), "--shard", f"{number}/3"])
        if number != 2:
            part = f"{Path(file).stem}-0000{number}-of-00003{Path(file).suffix}"
            assert (parts / part).exists() and (parts / f"{part}.json").exists() and not (parts / file).exists()
    assert codes == {1: 0, 2: 0, 3: 2}  # parts of 4, 4 and 6 lines
    said = capsys.readouterr().err
    assert "not yet complete: 1/3, 2/3\n" in said and "joined 3 parts" in said
    assert [path.name for path in parts.iterdir()] == [file]
    assert (parts / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
    if file.endswith(".npy"):
        vectors = np.load(parts / file)
        assert vectors.shape == (14, 8) and np.isnan(vectors[9]).all() and np.isfinite(np.delete(vectors, 9, 0)).all()


@pytest.mark.parametrize("verb", ["embed .npy", "classify"])
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_parts_that_different_runtimes_computed_are_not_joined(runtime, verb, folders, lines, tmp_path, capsys):
    for package in (runtime, "onnx"):
        if find_spec(package) is None:  # importing OpenVINO here would fork for its telemetry
            pytest.skip(f"{package} is not installed")
    argv = words_of(verb, folders, lines, tmp_path)
    assert main([*argv, "--shard", "1/2", "--runtime", "xla", "--dtype", "float32"]) == 0
    capsys.readouterr()
    assert main([*argv, "--shard", "2/2", "--runtime", runtime, "--dtype", "float32"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "was made with" in line]
    assert "was made with --runtime xla, and " in line
    assert line.endswith(f"with '{runtime}'; remove one of them and make it again with the same --runtime")
    assert not (tmp_path / VERBS[verb][2]).exists()


@pytest.mark.slow
def test_without_a_file_a_part_goes_to_stdout(folders, lines, capsys):
    argv = ["likelihood", str(folders["pretraining"]), str(lines)]
    assert main(argv) == 2
    whole = capsys.readouterr().out
    assert [main([*argv, "--shard", f"{number}/2"]) for number in (1, 2)] == [0, 2]
    assert capsys.readouterr().out == whole


def test_a_part_with_one_text_that_fails_keeps_its_line(folders, lines, tmp_path):
    lines.write_bytes(b"hello\n" * 4 + b"\xff\n")
    argv = ["classify", str(folders["sequence-classification"]), str(lines), "--output"]
    assert main([*argv, str(tmp_path / "whole.tsv")]) == 2
    assert [main([*argv, str(tmp_path / "parts.tsv"), "--shard", f"{number}/2"]) for number in (1, 2)] == [0, 2]
    assert (tmp_path / "parts.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert (tmp_path / "whole.tsv").read_text().endswith("\n\n")


@pytest.mark.slow
def test_the_rows_of_a_table_have_parts_too(folders, lines, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n" + "".join(f"hello,{'held ' * (n % 3)}\n" for n in range(9)))
    argv = [
        "classify",
        str(folders["sequence-classification"]),
        str(tmp_path / "table.csv"),
        "--text",
        "a",
        "--pair",
        "b",
    ]
    assert main([*argv, "--output", str(tmp_path / "whole.tsv")]) == 0
    for number in (1, 2):
        assert main([*argv, "--output", str(tmp_path / "parts.tsv"), "--shard", f"{number}/2"]) == 0
    assert (tmp_path / "parts.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.slow
def test_a_part_that_was_stopped_goes_on_and_a_complete_one_is_not_made_again(
    folders, lines, tmp_path, capsys, monkeypatch
):
    argv = words_of("embed .npy", folders, lines, tmp_path)
    append, appended = VectorFile.append, []

    def stopped_at_the_second(self, rows):
        appended.append(len(rows))
        if len(appended) == 2:
            raise KeyboardInterrupt
        append(self, rows)

    assert main([*argv, "--shard", "1/2"]) == 0
    monkeypatch.setattr(VectorFile, "append", stopped_at_the_second)
    assert main([*argv, "--shard", "2/2"]) == 130
    capsys.readouterr()
    assert main([*argv, "--shard", "1/2"]) == 0
    assert "v-00001-of-00002.npy is complete already" in capsys.readouterr().err
    assert main([*argv, "--shard", "2/2"]) == 2
    said = capsys.readouterr().err
    assert "resuming after line 12\n" in said and "texts.txt, line 10" not in said  # which the first start said
    assert "1 of 6 texts have no vector" in said
    assert not (tmp_path / "v-00002-of-00002.npy").exists()  # joined
    assert appended == [4, 2, 2]  # 8 lines were in the first part
    shutil.move(tmp_path / "v.npy", tmp_path / "parts.npy")
    assert main(argv) == 2
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "parts.npy").read_bytes()


@pytest.mark.parametrize("verb", ["embed", "likelihood"])
def test_a_part_that_is_complete_says_again_what_has_no_answer(folders, lines, tmp_path, capsys, verb):
    argv = [verb, str(folders["pretraining"]), str(lines), "--output", str(tmp_path / "v.jsonl"), "--shard", "2/2"]
    for _ in range(2):
        assert main(argv) == 2
        assert "1 of 6 texts" in capsys.readouterr().err


@pytest.mark.slow
def test_parts_of_different_things_are_not_joined(folders, lines, tmp_path, capsys):
    first = ["likelihood", str(folders["pretraining"]), str(lines), "--output", str(tmp_path / "v.tsv")]
    assert main([*first, "--shard", "1/2"]) == 0
    assert main([*first, "--within-word", "--shard", "1/2"]) == 2
    assert "v-00001-of-00002.tsv: already exists; --overwrite replaces it" in capsys.readouterr().err
    assert main([*first, "--within-word", "--shard", "2/2"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "v-00001-of-00002.tsv: was made with --within-word False, and" in said
    assert {"v-00001-of-00002.tsv", "v-00002-of-00002.tsv"} < {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "v.tsv").exists()
    assert main([*first, "--shard", "2/2", "--overwrite"]) == 2  # line 10
    assert (tmp_path / "v.tsv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "count", "first", "second"),
    [
        ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "0", "1"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "1", "0"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "0", "1"),
    ],
)
def test_a_process_of_a_job_knows_its_part(folders, lines, tmp_path, capsys, monkeypatch, number, count, first, second):
    argv = ["likelihood", str(folders["pretraining"]), str(lines)]
    monkeypatch.setenv(count, "2")
    monkeypatch.setenv(number, first)
    assert main(argv) == 2
    assert "--output: not given; this is process" in capsys.readouterr().err
    assert main([*argv, "--output", str(tmp_path / "v.tsv")]) == (0 if first == "0" else 2)
    monkeypatch.setenv(number, second)
    assert main([*argv, "--output", str(tmp_path / "v.tsv")]) == (0 if second == "0" else 2)
    assert main([*argv, "--shard", "1/1", "--output", str(tmp_path / "alone.tsv")]) == 2
    assert (tmp_path / "v.tsv").read_bytes() == (tmp_path / "alone.tsv").read_bytes()
    monkeypatch.setenv(number, "2")
    assert main([*argv, "--output", str(tmp_path / "x.tsv")]) == 2
    assert f"{number}: found {count}=2 and {number}=2; expected a number from 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("0/4", "found 0/4; parts count from 1: expected 1/4 to 4/4"),
        ("5/4", "found 5/4; parts count from 1: expected 1/4 to 4/4"),
        ("2", "found '2'; expected I/N, such as 2/4"),
        ("-1/4", "expected I/N, such as 2/4"),
        ("a/b", "found 'a/b'; expected I/N, such as 2/4"),
    ],
)
def test_a_part_that_does_not_exist_is_one_line(folders, lines, capsys, shard, message):
    assert main(["likelihood", str(folders["pretraining"]), str(lines), f"--shard={shard}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_stdin_has_no_parts(folders, capsys):
    assert main(["classify", str(folders["sequence-classification"]), "--shard", "1/2"]) == 2
    assert "--shard 1/2: name the input file" in capsys.readouterr().err


@pytest.mark.parametrize("chunk", [1, 4])
def test_parts_are_whole_chunks_as_even_as_can_be_and_miss_nothing(chunk):
    for total in range(60):
        for count in range(1, 9):
            parts = [Share(number, count).of(total, chunk) for number in range(1, count + 1)]
            assert [row for part in parts for row in part] == list(range(total))
            chunks = [-(-len(part) // chunk) for part in parts]
            assert max(chunks) - min(chunks) <= 1
            assert all(part.start % chunk == 0 for part in parts if len(part))


@pytest.mark.slow
def test_two_processes_of_a_job_embed_one_file(folders, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{'hello ' * (n % 7)}world\n" for n in range(9000)))
    argv = ["embed", str(folders["pretraining"]), str(tmp_path / "texts.txt"), "--output"]
    with Hosts(2, ["-m", "bert_jax", *argv, str(tmp_path / "v.npy")], tmp_path / "logs", devices=1) as hosts:
        ends = hosts.wait()
    assert [end.code for end in ends] == [0, 0], ends
    assert sum("joined 2 parts" in end.out for end in ends) >= 1
    assert [path.name for path in tmp_path.glob("v*")] == ["v.npy"]
    assert main([*argv, str(tmp_path / "alone.npy")]) == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()


def test_a_part_that_lost_its_end_is_not_joined(tmp_path, capsys):
    output = tmp_path / "v.npy"
    for number in (1, 2):
        part = PartFile(str(output), Share(number, 2), total=4, made_of={}, overwrite=False)
        with VectorFile(part.path, width=8, chunk=2, made_of={}) as file:
            file.append([np.ones(8, np.float32)] * 2)
            part.complete(file.size)
            file.finish()
    whole = part.path.read_bytes()
    part.path.write_bytes(whole[:-32])
    with pytest.raises(UserError, match=r"v-00002-of-00002\.npy: has 160 bytes, and had 192 when it was written"):
        join_parts(part, 8)
    assert not output.exists() and part.path.exists()
    part.path.write_bytes(whole)
    join_parts(part, 8)
    assert np.load(output).shape == (4, 8)
    assert "joined 2 parts" in capsys.readouterr().err
    join_parts(part, 8)  # as a process does that finished at the same moment: no part is missing
    assert capsys.readouterr().err == ""


def written_parts(output: Path, contents: tuple[bytes, ...]) -> list[PartFile]:
    """The parts of a file, all of them complete."""
    parts = []
    for number, content in enumerate(contents, 1):
        part = PartFile(str(output), Share(number, len(contents)), total=4, made_of={}, overwrite=False)
        part.complete(len(content))
        part.path.write_bytes(content)
        parts.append(part)
    return parts


def test_a_part_of_texts_that_was_not_copied_whole_is_not_joined(tmp_path):
    output = tmp_path / "v.tsv"
    part, other = written_parts(output, (b"a\nb\n", b"c\nd\n"))
    other.path.write_bytes(b"c\n")
    with pytest.raises(UserError, match=r"v-00002-of-00002\.tsv: has 2 bytes, and had 4 when it was written; copy it"):
        part.join()
    assert sorted(path.name for path in tmp_path.glob("*v*tsv")) == [part.path.name, other.path.name]
    other.path.write_bytes(b"c\nd\n")
    part.join()
    assert output.read_bytes() == b"a\nb\nc\nd\n"


def test_two_that_join_at_once_do_not_write_one_file(tmp_path, monkeypatch):
    """As processes of two hosts do, which can have the same number: the second begins within the first."""
    output, copy = tmp_path / "v.tsv", shutil.copyfileobj
    first, second = written_parts(output, (b"a\nb\n", b"c\nd\n"))
    has_begun, is_joined = threading.Event(), threading.Event()

    def copied(source, target, size):
        if threading.current_thread() is other:
            has_begun.set()
            assert is_joined.wait(60)
        copy(source, target, size)
        target.flush()
        if not has_begun.is_set():
            other.start()
            assert has_begun.wait(60)

    monkeypatch.setattr(shutil, "copyfileobj", copied)
    other = threading.Thread(target=second.join)
    first.join()
    joined = output.read_bytes()
    is_joined.set()
    other.join(60)
    assert joined == output.read_bytes() == b"a\nb\nc\nd\n"
    assert [path.name for path in tmp_path.iterdir()] == ["v.tsv"]


def test_a_part_that_is_replaced_is_not_complete_before_the_new_one(tmp_path):
    """As if the program were killed between the facts of the new part and its file."""
    output = tmp_path / "v.tsv"
    (part, _) = written_parts(output, (b"a\nb\n", b"c\nd\n"))
    options = {"total": 4, "made_of": {"top_k": 2}}
    part = PartFile(str(output), Share(1, 2), **options, overwrite=True)
    assert not part.is_done
    part.complete(4)
    assert not PartFile(str(output), Share(1, 2), **options, overwrite=True).is_done
    assert not part.path.exists()


@pytest.mark.slow
def test_parts_that_runs_cut_at_different_lengths_are_not_joined(folders, lines, tmp_path, capsys, monkeypatch):
    argv = words_of("classify", folders, lines, tmp_path)
    for number, length, said in ((1, 4, ""), (2, 8, "was made with --max-length 4, and")):
        monkeypatch.setattr(text_classification, "settings_of_run", lambda _, length=length: {"max_length": length})
        assert main([*argv, "--shard", f"{number}/2"]) == (2 if said else 0)
        assert said in capsys.readouterr().err
    assert not (tmp_path / "v.jsonl").exists()


@pytest.mark.slow
def test_a_file_whose_name_is_not_utf8_has_no_parts(folders, lines, tmp_path, capsys):
    odd = lines.rename(tmp_path / os.fsdecode(b"caf\xe9.txt"))
    argv = words_of("classify", folders, odd, tmp_path)
    assert main([*argv, "--shard", "1/2"]) == 2
    err = capsys.readouterr().err
    assert r"b'caf\xe9.txt': the name is not UTF-8; rename it" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [odd]
