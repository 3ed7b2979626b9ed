"""Safetensors files: other programs read what we write, and a broken file is a one-line error."""

import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.formats.safetensors import SUM, TensorFile, write_tensors, written_by_us


def raw_file(path: Path, header: dict, data: bytes = b"") -> Path:
    """A file by the format's specification: header length, JSON, bytes."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "x.safetensors"


def test_arrays_of_any_memory_layout_keep_their_elements(path):
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    arrays = {
        "transposed": base[0].T,
        "fortran": np.asfortranarray(base[1]),
        "sliced": base[:, ::2, 1:4],
        "reversed": base[::-1],
        "broadcast": np.broadcast_to(base[0, 0], (3, 5)),
        "big-endian": base[2].astype(">f4"),
        "scalar": np.float32(7.0).reshape(()),
        "empty": np.zeros((0, 3), np.float32),
    }
    write_tensors(path, arrays)
    read = load_file(path)
    for name, array in arrays.items():
        assert read[name].shape == array.shape, name
        assert read[name].tolist() == array.tolist(), name


def test_equal_tensors_make_equal_bytes(path):
    write_tensors(path, {"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.float16)}, {"x": "y"})
    first = path.read_bytes()
    write_tensors(path, {"b": np.zeros(5, np.float16), "a": np.ones((3, 2), np.float32).T}, {"x": "y"})
    assert path.read_bytes() == first
    assert (8 + struct.unpack("<Q", first[:8])[0]) % 8 == 0  # aligned


def test_format_is_pt_whatever_metadata_is_asked_for(path):
    write_tensors(path, {"a": np.zeros(2, np.float32)}, {"format": "np", "more": "yes"})
    with TensorFile(path) as file:
        assert file.metadata["format"] == "pt"
        assert file.metadata["more"] == "yes"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_dtypes_come_back_as_they_went(path, dtype):
    array = np.array([[1.5, -2.0], [3.0, 0.25]]).astype(dtype)
    write_tensors(path, {"a": array})
    with TensorFile(path) as file:
        assert file.shape("a") == (2, 2)
        assert file.dtype("a") == file["a"].dtype.name == np.dtype(dtype).name
        np.testing.assert_array_equal(file["a"], array)


def test_bfloat16_of_another_writer_is_read(path):
    bits = np.array([0x3F80, 0xC040], np.uint16).tobytes()  # 1.0 and -3.0
    raw_file(path, {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, bits)
    with TensorFile(path) as file:
        assert file["a"].astype(np.float32).tolist() == [1.0, -3.0]


def test_a_single_flipped_bit_is_noticed(path):
    write_tensors(path, {"a": np.arange(100, dtype=np.float32), "b": np.ones(3, np.float32)})
    with TensorFile(path) as file:
        assert file.verify() is True
    content = bytearray(path.read_bytes())
    content[-50] ^= 0x10
    path.write_bytes(content)
    with TensorFile(path) as file:
        assert file.verify() is False


@pytest.mark.parametrize("place", [-1, -(1 << 18) - 3, -(1 << 19) + 1])
def test_a_flipped_bit_is_noticed_wherever_it_lies(path, place):
    write_tensors(path, {"a": np.zeros(300_000, np.float32), "b": np.ones(3, np.float32)})
    with TensorFile(path) as file:
        assert file.verify() is True
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with TensorFile(path) as file:
        assert file.verify() is False


def test_a_file_of_another_writer_is_neither_verified_nor_ours(path):
    save_file({"a": np.ones(3, np.float32)}, path)
    with TensorFile(path) as file:
        assert file.verify() is None
        assert SUM not in file.metadata
    assert not written_by_us(path)
    assert not written_by_us(path.with_name("absent"))


def test_broken_files_are_one_clear_line(path):
    write_tensors(path, {"a": np.arange(10, dtype=np.float32)})
    whole = path.read_bytes()
    broken = {
        "empty": b"",
        "truncated": whole[:-8],
        "longer": whole + b"\0" * 8,
        "no header": b"hello, this is text",
        "header over the cap": struct.pack("<Q", 10**9) + b"{}",
        "not JSON": struct.pack("<Q", 5) + b"{bad}",
    }
    for name, content in broken.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"not a complete safetensors file") as caught:
            TensorFile(path)
        assert str(path) in str(caught.value), name
        assert "\n" not in str(caught.value), name


def test_shapes_that_lie_and_dtypes_unknown_to_numpy_are_one_clear_line(path):
    raw_file(path, {"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}})
    with pytest.raises(UserError, match="'a' of shape"):
        TensorFile(path)
    raw_file(path, {"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"x")
    with TensorFile(path) as file, pytest.raises(UserError, match="F8_E4M3"):
        file["a"]


def entry(start: int, stop: int, shape=(1,), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": entry(0, 8, (2,)), "b": entry(4, 8)}, 8, "'b' begins at byte 4, expected byte 8: it overlaps"),
        ({"a": entry(0, 4), "b": entry(0, 4)}, 4, "it overlaps the one before"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "'b' begins at byte 8, expected byte 4: there is a gap"),
        ({"a": entry(4, 8)}, 8, "there is a gap before it"),
        ({"a": entry(0, 4)}, 12, "4 bytes in total, but 12 bytes follow"),
        ({"a": entry(0, 8, (2,))}, 4, "8 bytes in total, but 4 bytes follow"),
        ({"a": entry(8, 4, (0,))}, 8, "ends at byte 4, before it begins"),
        ({"a": entry(0, 8)}, 8, "has 8 bytes, but F32 of shape"),
        ({"a": entry(0, 0, (0, 2**62))}, 0, "too large for any array"),
        ({"a": entry(0, 0, (2**62, 2**62))}, 0, "too large for any array"),
        ({"a": entry(0, 4, (1,) * 65)}, 4, "too large for any array"),
        ({"a": entry(0, 0, (10**4000, 0))}, 0, "too large for any array"),
        ({"a": entry(-4, 0)}, 0, "invalid dtype, shape or data_offsets"),
        ({"a": entry(0, 4, (1.0,))}, 4, "shape"),
        ({"a": entry(0, 4, (True,))}, 4, "shape"),
        ({"a": entry(0, 4) | {"dtype": 7}}, 4, "dtype"),
        ({"a": entry(0, 4) | {"more": 1}}, 4, "exactly the fields"),
        ({"a": [0, 4]}, 4, "exactly the fields"),
        ({"__metadata__": {"x": 1}}, 0, "__metadata__"),
        ({"__metadata__": [1]}, 0, "__metadata__"),
        ({"a\ud800": entry(0, 0, (0,))}, 0, "the text 'a\\ud800' of its header is not valid Unicode: lone surrogate"),
        ({"__metadata__": {"\ud800": "x"}}, 0, "not valid Unicode"),
        ({"__metadata__": {"x": "\udfff"}}, 0, "not valid Unicode"),
        ([1, 2], 0, "not a JSON object"),
    ],
)
def test_headers_that_contradict_themselves_are_one_clear_line(path, header, size, message):
    raw_file(path, header, b"x" * size)
    with pytest.raises(UserError) as caught:
        TensorFile(path)
    assert str(caught.value).startswith(f"{path} (")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "a": 2}', "its header has the key 'a' twice"),
        (
            b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}',
            "its header has the key 'dtype' twice",
        ),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a": 1' + b"0" * 10_000 + b"}", "not JSON"),
        (b'{"a": \xff}', "not JSON"),
    ],
)
def test_json_that_means_two_things_or_none(path, text, message):
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(UserError) as caught:
        TensorFile(path)
    assert message in str(caught.value)


def test_a_file_cut_short_after_it_was_opened_is_one_clear_line(path):
    write_tensors(path, {"a": np.ones(1000, np.float32)})
    with TensorFile(path) as file:
        os.truncate(path, 200)
        with pytest.raises(UserError, match="became shorter while it was being read"):
            file["a"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (300, 401), (3, 0), (2, 3, 5)])
def test_copies_into_any_layout_are_the_array(path, dtype, shape):
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    write_tensors(path, {"a": array})
    with TensorFile(path) as file:
        for order in "CF":
            out = np.full(shape, np.nan, np.float32, order=order)
            file.copy_to("a", out)
            np.testing.assert_array_equal(out, array.astype(np.float32))


def test_reads_that_return_fewer_bytes_than_asked_for_are_continued(path, monkeypatch):
    array = np.random.default_rng(0).normal(size=(130, 50)).astype(np.float32)
    write_tensors(path, {"a": array})

    def few_bytes(number: int, buffers: list[memoryview], start: int) -> int:
        found = os.pread(number, min(33, len(buffers[0])), start)
        buffers[0][: len(found)] = found
        return len(found)

    monkeypatch.setattr(os, "preadv", few_bytes)
    with TensorFile(path) as file:
        out = np.full((50, 130), np.nan, np.float32)
        file.copy_to("a", out.T)
    np.testing.assert_array_equal(out.T, array)


def test_an_absent_file_and_an_absent_key_say_so(path):
    with pytest.raises(FileNotFoundError, match=r"x\.safetensors"):
        TensorFile(path)
    write_tensors(path, {"a": np.ones(1, np.float32)})
    with TensorFile(path) as file:
        assert "b" not in file
        with pytest.raises(KeyError):
            file["b"]
