"""Corpora that open: files are opened when they are read, at most so many at once, however large the corpus."""

import json
import resource
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.large_corpus import LENGTH, make, words
from bert_jax.data.pretraining import arrays
from bert_jax.data.pretraining.arrays import FileSlices, load_array, open_array
from bert_jax.data.pretraining.batches import Batches
from bert_jax.errors import UserError
from tests.root import ROOT

READS = """
import json, resource, sys
from benchmarks.large_corpus import *
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
files, maps = handles()
batches = Batches(sys.argv[1], batch_size=100, max_seq_length=LENGTH)
memory = resident()
opened = handles()[0] - files
seen = [words(batches.batch(step)).tolist() for step in range(12)]
now = resident()
print(json.dumps([opened, handles()[0] - files, handles()[1] - maps, now["anon"] - memory["anon"], sum(seen, [])]))
"""


@pytest.mark.slow
def test_a_terabyte_is_read_at_random_with_few_files_and_little_memory(tmp_path):
    make(tmp_path / "data", shards=300, tokens=1_700_000_000)
    files = list((tmp_path / "data").glob("train/shard-*/tokens.npy"))
    assert sum(file.stat().st_size for file in files) > 1e12
    out = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path / "data")], cwd=ROOT, capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    opened, files, maps, anonymous, seen = json.loads(out.stdout)
    assert opened == 0, "the start opened files"
    assert files <= 64
    assert maps <= 64 + 40  # the others are the allocator's
    assert anonymous < 100 << 20
    assert sorted(seen) == [5 + example % 1995 for example in range(1200)]
    assert seen != sorted(seen)


def test_files_past_the_maps_give_the_same_batches(tmp_path, monkeypatch):
    make(tmp_path / "data", shards=5, tokens=1_000)

    def read(most: int) -> list[dict]:
        monkeypatch.setattr(arrays, "most_maps", lambda: most + len(arrays._maps))
        batches = Batches(tmp_path / "data", batch_size=7, max_seq_length=LENGTH)
        return [batches.batch(step) for step in range(6)]

    mapped = read(1000)
    for most in (0, 3):
        for one, other in zip(mapped, read(most), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len({int(word) for batch in mapped for word in words(batch)}) == 20


@pytest.mark.parametrize("array", [np.arange(10, dtype="<u2"), np.arange(12, dtype="<i4").reshape(4, 3)], ids=str)
def test_single_reads_are_numpys_slices(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    slices = FileSlices(tmp_path / "a.npy")
    for rows in (slice(2, 3), slice(0, 0), slice(3, 100), slice(50, 60), slice(None)):
        np.testing.assert_array_equal(slices[rows], array[rows])
        assert slices[rows].dtype == array.dtype


ARRAYS = [
    np.arange(6, dtype="<u4"),
    np.arange(6, dtype=">i2").reshape(3, 2),
    np.ones((2, 3, 4), np.float32),
    np.zeros(5, bool),
    np.zeros(3, [("start", "<u4"), ("is next", "<u4")]),
    np.zeros(2, [("a", "<u4", (2,)), ("b", [("c", "|u1"), ("d", "<f8")])]),
    np.asfortranarray(np.zeros((4, 1))),
]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)], ids=str)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_headers_are_read_as_numpy_reads_them(tmp_path, monkeypatch, array, version):
    """Without `ast`, which fails at random in threads: https://github.com/python/cpython/issues/106905."""
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)

    def fails(text: str) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=72, after=76)")

    monkeypatch.setattr("ast.literal_eval", fails)
    found = load_array(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


HEADER = "{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    ("magic", "header", "why"),
    [
        (b"\x93NUMPY\x03\x00", HEADER, "version 3.0; expected 1.0 or 2.0"),
        (b"\x93NUMPZ\x01\x00", HEADER, "magic string"),
        (b"\x93NUMPY\x01\x00", HEADER + " " * 10_000, "a header of 10057 bytes; expected at most 10000"),
        (b"\x93NUMPY\x01\x00", HEADER[:-2], "Expecting"),
        (b"\x93NUMPY\x01\x00", "__import__('os').getcwd()", "Expecting"),
        (b"\x93NUMPY\x01\x00", "[" * 9_000, ""),
        (b"\x93NUMPY\x01\x00", HEADER.replace("descr", "dtype"), "without its three fields"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("(3,)", "3"), "shape 3, fortran_order False; expected whole numbers"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("(3,)", "(3.0,)"), "expected whole numbers"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("(3,)", "(True,)"), "expected whole numbers"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("False", "0"), "fortran_order 0; expected"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("<u4", "<q4"), "<q4"),
        (b"\x93NUMPY\x01\x00", HEADER.replace("<u4", "|O"), "dtype('O')"),
    ],
)
def test_a_header_that_is_not_one_is_named(tmp_path, magic: bytes, header: str, why: str):
    size = len(header).to_bytes(2 * magic[6] if magic[6] < 3 else 4, "little")
    (tmp_path / "a.npy").write_bytes(magic + size + header.encode() + bytes(12))
    with pytest.raises(UserError, match=r"cannot be read as a \.npy file") as error:
        load_array(tmp_path / "a.npy")
    assert why in str(error.value) and str(tmp_path / "a.npy") in str(error.value)


def test_maps_are_closed_with_the_batches_that_read_them(tmp_path):
    make(tmp_path / "data", shards=3, tokens=1_000)
    before = len(arrays._maps)
    batches = Batches(tmp_path / "data", batch_size=64, max_seq_length=LENGTH)
    assert len(arrays._maps) == before
    batches.batch(0)
    assert len(arrays._maps) == before + 6 + 4  # of each shard two files, of each list two
    del batches
    assert len(arrays._maps) == before


def test_a_limit_that_the_system_does_not_raise_stays(monkeypatch):
    def refuse(kind, limits):  # as macOS does beyond kern.maxfilesperproc, although it names no hard limit
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert arrays.most_maps.__wrapped__() == 128


def test_a_file_that_becomes_shorter_while_it_is_read_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "most_maps", lambda: 0)
    np.save(tmp_path / "a.npy", np.arange(100, dtype="<u2"))
    array = open_array(tmp_path / "a.npy", (100,), np.dtype("<u2"))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-2])
    with pytest.raises(UserError, match=r"a\.npy: .*it has become shorter"):
        array[90:100]
    (tmp_path / "a.npy").unlink()
    with pytest.raises(UserError, match=r"a\.npy: missing"):
        array[0:1]


def npy(header: bytes) -> bytes:
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (8,",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (8,), 'x': (((((((('",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (" + b"9" * 40 + b",)}",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (-8,)}",
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (4, 0)}",
        b"{'descr': '|V0', 'fortran_order': False, 'shape': (999999999,)}",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (8,)}",
        b"{'descr': [('', '<u2', 'x')], 'fortran_order': False, 'shape': (8,)}",
        b"__import__('os').abort()",
        b"\x00\xff" * 20,
    ],
)
def test_a_header_that_numpy_does_not_write_is_one_line(header, tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(header))
    with pytest.raises(UserError, match=r"a\.npy: cannot be read as a \.npy file") as caught:
        load_array(tmp_path / "a.npy")
    assert len(str(caught.value)) < 400


def test_what_numpy_writes_is_loaded(tmp_path):
    for array in (np.arange(6, dtype="<u2"), np.ones((2, 3)), np.zeros((0, 3), np.int32)):
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(load_array(tmp_path / "a.npy"), array)
