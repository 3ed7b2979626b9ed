"""Snappy: reads the output of pyarrow's compressor and hand-made elements; damage is one line."""

import random
import tracemalloc

import pyarrow
import pytest

from bert_jax.formats.tensorflow.entries import varint
from bert_jax.formats.tensorflow.table import decompress


def compressed(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="snappy", asbytes=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a",
        b"abcabcabcabcabcabcabcabc" * 40,
        b"A" * 100_000,
        bytes(range(256)) * 300,
        random.Random(0).randbytes(70_000),
        b"".join(random.Random(1).choice((b"bert/encoder/", b"layer_", b"adam_m", b"\0\1")) for _ in range(20_000)),
    ],
    ids=["empty", "byte", "words", "run", "cycle", "noise", "names"],
)
def test_reads_what_pyarrow_compresses(data):
    assert decompress(compressed(data), len(data)) == data


def test_reads_every_kind_of_element():
    text = b"0123456789abcdefghijklmnopqrstuvwxyz"
    long = bytes(range(251)) * 400  # a literal whose length takes three bytes
    data = (
        bytes([(len(text) - 1) << 2])
        + text
        + bytes([(4 - 4) << 2 | 1, 36])  # 4 bytes from 36 back
        + bytes([(11 - 4) << 2 | 1, 3])  # 11 bytes from 3 back: among them what is being written
        + bytes([(62) << 2])
        + (len(long) - 1).to_bytes(3, "little")
        + long
        + bytes([63 << 2 | 2])
        + (1_000).to_bytes(2, "little")  # 64 bytes
        + bytes([9 << 2 | 3])
        + (100_000).to_bytes(4, "little")  # 10 bytes from far back
    )
    expected = bytearray(text + text[:4])
    for _ in range(11):
        expected.append(expected[-3])
    expected += long
    expected += expected[-1_000:][:64]
    expected += expected[-100_000:][:10]
    assert decompress(varint(len(expected)) + data, 1 << 20) == bytes(expected)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "within a number"),
        (b"\xff\xff\xff\xff\xff\x01", "more than 32 bits"),
        (varint(2_000_000) + b"\0a", "has 2000000 bytes according to its header; at most 1000"),
        (varint(5) + b"\0a", "ends after 1 of 5"),
        (varint(1) + b"\x04ab", "more than the 1 bytes"),
        (varint(9) + b"\x08ab", "ends within an element"),
        (varint(9) + b"\xf4\xff", "ends within an element"),
        (varint(9) + b"\x00a" + b"\x01", "ends within an element"),
        (varint(9) + b"\x00a" + b"\x01\x00", "from 0 bytes back"),
        (varint(9) + b"\x00a" + b"\x01\x02", "from 2 bytes back, 1 bytes after"),
    ],
)
def test_damage_is_one_line(data, said):
    with pytest.raises(ValueError, match=said):
        decompress(data, 1_000)


@pytest.mark.slow
def test_whatever_the_bytes_memory_is_bounded_and_nothing_but_valueerror_comes_out():
    generator = random.Random(2)
    good = compressed(b"bert/encoder/layer_0/attention/" * 300)
    outcomes = set()
    tracemalloc.start()
    for _ in range(2_000):
        damaged = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        end = generator.choice([len(damaged), generator.randint(1, len(damaged))])
        try:
            assert len(decompress(bytes(damaged[:end]), 20_000)) <= 20_000
            outcomes.add("read")
        except ValueError:
            outcomes.add("refused")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert outcomes == {"read", "refused"}
