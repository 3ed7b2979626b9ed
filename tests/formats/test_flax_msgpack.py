"""flax_model.msgpack: what Flax writes is read, under torch's names if asked; what is broken is one clear line."""

import json
import random
import re
import tracemalloc
from pathlib import Path

import flax.serialization
import ml_dtypes
import msgpack
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.flax import FlaxMsgpack
from bert_jax.formats.weights import Sharded

TREE = {
    "bert": {
        "embeddings": {"word_embeddings": {"embedding": np.arange(20, dtype=np.float32).reshape(5, 4)}},
        "encoder": {"layer": {"0": {"output": {"dense": {"kernel": np.full((3, 4), 1 / 3, ml_dtypes.bfloat16)}}}}},
    },
    "cls": {
        "bias": np.array([1.5, -2.0], np.float16),
        "step": np.int64(7),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5),
    },
}
FLAT = {
    "bert/embeddings/word_embeddings/embedding": TREE["bert"]["embeddings"]["word_embeddings"]["embedding"],
    "bert/encoder/layer/0/output/dense/kernel": TREE["bert"]["encoder"]["layer"]["0"]["output"]["dense"]["kernel"],
    "cls/bias": TREE["cls"]["bias"],
    "cls/step": TREE["cls"]["step"],
    "cls/none": TREE["cls"]["none"],
    "cls/scalar": TREE["cls"]["scalar"],
}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "flax_model.msgpack"


def write(path: Path, tree) -> Path:
    path.write_bytes(tree if isinstance(tree, bytes) else flax.serialization.msgpack_serialize(tree))
    return path


def refusal(path: Path, content) -> str:
    """The one-line error for a bad file."""
    write(path, content)
    with pytest.raises(UserError) as caught:
        FlaxMsgpack(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line
    assert len(line) < len(str(path)) + 400
    return line


def check(arrays, expected) -> None:
    assert sorted(arrays) == sorted(expected)
    for name, array in expected.items():
        assert arrays.shape(name) == arrays[name].shape == array.shape
        assert arrays.dtype(name) == arrays[name].dtype.name == array.dtype.name
        assert arrays[name].tolist() == array.tolist()


def test_what_flax_writes_is_read(path):
    with FlaxMsgpack(write(path, TREE)) as arrays:
        check(arrays, FLAT)
        assert arrays.verify() is None
        with pytest.raises(KeyError):
            arrays["absent"]


def test_arrays_in_chunks_are_put_together(path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 24)
    assert b"__msgpack_chunked_array__" in write(path, TREE).read_bytes()
    with FlaxMsgpack(path) as arrays:
        check(arrays, FLAT)


def test_a_model_in_several_files_is_one(tmp_path):
    names = ["flax_model-00001-of-00002.msgpack", "flax_model-00002-of-00002.msgpack"]
    for name, top in zip(names, TREE, strict=True):
        write(tmp_path / name, {top: TREE[top]})
    places = {name: names[name.startswith("cls")] for name in FLAT}
    index = tmp_path / "flax_model.msgpack.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    with Sharded(index, open_shard=FlaxMsgpack) as arrays:
        check(arrays, FLAT)


def extension(code: int, *parts) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(parts[0] if len(parts) == 1 else parts, use_bin_type=True))


def packed(tree) -> bytes:
    content = msgpack.packb(tree, use_bin_type=True)
    assert content is not None
    return content


def array(shape, dtype="float32", content=bytes(8)) -> msgpack.ExtType:
    return extension(1, shape, dtype, content)


def chunked(shape, *chunks, **more) -> dict:
    numbered = {str(index): chunk for index, chunk in enumerate(chunks)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": numbered} | more


WRONG = {
    "nothing": (b"", "expected 1 more bytes, found 0"),
    "text": (b"hello", "4 bytes follow"),
    "a list": (packed([array([2])]), "expected a map, found a list"),
    "an array": (packed(array([2])), "expected a map, found bytes"),
    "no arrays": (packed({"a": {"b": {}}}), "contains no arrays"),
    "more behind": (packed({"a": array([2])}) + b"\0", "1 bytes follow"),
    "a reserved byte": (b"\x81\xa1a\xc1", "0xc1 is not the first byte"),
    "a number as a name": (packed({1: array([2])}), "expected the name of an array, found a number"),
    "a map as a name": (b"\x81\x80\x01", "expected the name of an array, found a map"),
    "a name twice": (b"\x82" + 2 * packed({"a": array([2])})[1:], "the name 'a' twice"),
    "a path twice": (packed({"a/b": array([2]), "a": {"b": array([2])}}), "'a/b' is too long, or two arrays have it"),
    "a name that is none": (b"\x81\xa1\xff\x01", "not UTF-8"),
    "a long name": (packed({"a" * 300: array([2])}), "text of 300 bytes"),
    "a long path": (packed({"a" * 200: {"b" * 200: {"c" * 200: {"d" * 200: {"e" * 200: array([2])}}}}}), "too long"),
    "a number": (packed({"step": 3}), "'step' is a int, not an array"),
    "none": (packed({"a": {"b": None}}), "'a/b' is a NoneType, not an array"),
    "a string": (packed({"a": "b"}), "'a' is a str"),
    "raw bytes": (packed({"a": b"b"}), "'a' is of extension type None"),
    "a native complex number": (packed({"a": extension(2, 1.0, 2.0)}), "'a' is of extension type 2"),
    "a timestamp": (packed({"a": msgpack.ExtType(127, b"1234")}), "'a' is of extension type 127"),
    "bytes that lack": (packed({"a": array([3])}), r"'a' has shape (3,) of float32 but 8 bytes"),
    "bytes too many": (packed({"a": array([1])}), "has shape (1,) of float32 but 8 bytes"),
    "a negative size": (packed({"a": array([-1])}), "impossible shape"),
    "a float as size": (packed({"a": array([2.0])}), "impossible shape"),
    "a truth as size": (packed({"a": array([True], "float64")}), "impossible shape"),
    "a huge size": (packed({"a": array([2**62, 4])}), "impossible shape"),
    "sizes that wrap round": (packed({"a": array([2**32, 2**32])}), "which is impossible"),
    "empty but huge": (packed({"a": array([0, 2**47, 2**47], content=b"")}), "which is impossible"),
    "many axes": (packed({"a": array([1] * 40)}), "impossible shape"),
    "a size for every byte": (b"\x81\xa1a\xc9\0\3\x0d\x46\x01\x93\xdd\0\3\x0d\x40" + bytes(200_000), "more than 131072 values"),
    "a complex dtype": (packed({"a": array([1], "complex64")}), "'a' is 'complex64'; bert_jax reads bfloat16, float16"),
    "an object dtype": (packed({"a": array([1], "object")}), "'a' is 'object'"),
    "an invented dtype": (packed({"a": array([1], "float33")}), "'a' is 'float33'"),
    "a structured dtype": (packed({"a": array([1], "f4,f4")}), "'a' is 'f4,f4'"),
    "two parts": (packed({"a": extension(1, [2], "float32")}), "does not consist of shape, dtype and elements"),
    "elements as text": (packed({"a": extension(1, [2], "float32", "12345678")}), "does not consist of"),
    "no parts": (packed({"a": msgpack.ExtType(1, b"")}), "found 0"),
    "more than the parts": (packed({"a": msgpack.ExtType(1, array([2]).data + b"\0")}), "1 bytes follow"),
    "a scalar with axes": (packed({"a": extension(3, [2], "float32", bytes(8))}), "has shape (2,)"),
    "chunks that are no array": (packed({"a": chunked({"0": 2}, 5)}), "is a int"),
    "chunks out of order": (packed({"a": chunked({"1": 2}, array([2]))}), "the list of chunks or the shape is missing"),
    "no chunks": (packed({"a": chunked({"0": 2})}), "the list of chunks or the shape is missing"),
    "no truth": (packed({"a": chunked({"0": 2}, array([2]), __msgpack_chunked_array__=1)}), "the list of chunks or the shape is missing"),
    "too few chunks": (packed({"a": chunked({"0": 5}, array([2]), array([2]))}), "has 2 chunks that do not add up to"),
    "chunks of two dtypes": (packed({"a": chunked({"0": 4}, array([2]), array([2], "int32"))}), "do not add up to"),
    "a shape of a chunked array that is none": (packed({"a": chunked({"0": -2}, array([2]))}), "impossible shape"),
    "deep maps": (b"\x81\xa1a" * 5000, "more than 32 levels of nesting"),
    "deep lists": (b"\x81\xa1a" + b"\x91" * 5000, "more than 32 levels of nesting"),
    "many values": (b"\x81\xa1a\xdd\xff\xff\xff\xff" + b"\0" * 200_000, "more than 131072 values"),
    "a map of many": (b"\xdf\xff\xff\xff\xff", "expected 1 more bytes, found 0"),
    "bytes without end": (b"\x81\xa1a\xc9\x7f\xff\xff\xff\x01", "expected 2147483647 more bytes, found 0"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "found"), WRONG.values(), ids=WRONG)
def test_other_files_are_one_clear_line(path, content, found):
    assert found in refusal(path, content)


def test_an_absent_file_says_so(path):
    with pytest.raises(FileNotFoundError, match=r"flax_model\.msgpack: no such file"):
        FlaxMsgpack(path)


def test_a_file_cut_anywhere_is_refused(path):
    content = flax.serialization.msgpack_serialize(TREE)
    for length in range(len(content)):
        refusal(path, content[:length])


@pytest.mark.slow
def test_a_flipped_bit_changes_no_shape_and_no_dtype(path):
    """The format has no checksum: a changed element, or a changed letter in a name, cannot be noticed."""
    content = write(
        path, {**TREE, "cls": {key: value for key, value in TREE["cls"].items() if key != "none"}}
    ).read_bytes()
    expected = {name: (FLAT[name].shape, FLAT[name].dtype.name) for name in sorted(FLAT) if name != "cls/none"}
    words = {word.encode() for name in FLAT for word in name.split("/")}
    letters = {at for word in words for found in re.finditer(word, content) for at in range(*found.span())}
    rng = random.Random(3)
    outcomes = set()
    for _ in range(600):
        at, bit = rng.randrange(len(content)), rng.randrange(8)
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        write(path, bytes(damaged))
        try:
            with FlaxMsgpack(path) as arrays:
                found = {name: (value.shape, value.dtype.name) for name, value in arrays.items()}
        except UserError:
            outcomes.add("refused")
            continue
        assert list(found.values()) == list(expected.values())
        assert found == expected or at in letters
        outcomes.add("read")
    assert outcomes == {"refused", "read"}


def test_any_damage_is_refused_or_gives_arrays_within_the_file(path):
    content = flax.serialization.msgpack_serialize(TREE)
    rng = random.Random(4)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 2, 5])):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice([0, 1, 1, 4])] = rng.randbytes(rng.choice([0, 1, 1, 4]))
        write(path, bytes(damaged))
        try:
            with FlaxMsgpack(path) as arrays:
                assert sum(value.nbytes for value in arrays.values()) <= len(damaged)
        except UserError:
            continue


def test_memory_is_one_array_and_no_more(path):
    size = 1 << 21
    write(path, {name: np.full(size, float(index), np.float32) for index, name in enumerate("abcd")})
    tracemalloc.start()
    with FlaxMsgpack(path) as arrays:
        for index, name in enumerate("abcd"):
            assert arrays[name][-1] == index
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * size <= peak < 4 * size + (1 << 20)
