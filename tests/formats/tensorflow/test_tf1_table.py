"""LevelDB's table: TensorFlow's own .index files are read and made again byte for byte; damage is one line."""

import random
import struct
import tracemalloc
from pathlib import Path

import pyarrow
import pytest

from bert_jax.formats.tensorflow import table as leveldb_table
from bert_jax.formats.tensorflow.entries import read_varint, varint
from bert_jax.formats.tensorflow.table import FOOTER_SIZE, MAGIC, masked_crc32c, read_table, write_table

INDICES = {
    "keras-bert-tiny-adam/bert_model.ckpt.index": 140,
    "detext-bert-hub-tf2/variables.index": 26,
    "tfr-bert-lite-tf2/bert_lite_tf2.ckpt.index": 26,
}
MANY = [(f"key/{number:06d}".encode(), bytes([number % 251]) * (number % 40)) for number in range(1_000)]


def block(contents: bytes, kind: int = 0) -> bytes:
    stored = contents + bytes([kind])
    return stored + struct.pack("<I", masked_crc32c(stored))


def entry(shared: int, key: bytes, value: bytes, size: int | None = None) -> bytes:
    return varint(shared) + varint(len(key)) + varint(len(value) if size is None else size) + key + value


def table(contents: bytes, kind: int = 0, handle: bytes | None = None) -> bytes:
    """A table of one data block, its bytes as given; `handle` is what the index says of it."""
    restarts = struct.pack("<II", 0, 1)
    blocks = block(contents, kind)
    index = len(blocks)
    blocks += block(entry(0, b"z", handle or varint(0) + varint(len(contents))) + restarts)
    meta = len(blocks)
    blocks += block(restarts)
    handles = varint(meta) + varint(8) + varint(index) + varint(meta - index - 5)
    return blocks + handles.ljust(FOOTER_SIZE - 8, b"\0") + MAGIC


@pytest.mark.parametrize("name", INDICES)
def test_reads_tensorflows_own(name, data_dir: Path):
    pairs = list(read_table((data_dir / "checkpoints" / name).read_bytes()))
    assert len(pairs) == INDICES[name]
    assert pairs[0] == (b"", b"\x08\x01\x1a\x02\x08\x01")  # BundleHeaderProto of one shard, version 1
    assert [key for key, _ in pairs] == sorted({key for key, _ in pairs})


@pytest.mark.parametrize("name", list(INDICES)[:2])
def test_makes_tensorflows_own_byte_for_byte(name, data_dir: Path):
    data = (data_dir / "checkpoints" / name).read_bytes()
    assert write_table(read_table(data)) == data


def test_makes_the_block_that_tensorflow_compressed(data_dir: Path):
    data = (data_dir / "checkpoints" / list(INDICES)[2]).read_bytes()
    size, _ = read_varint(data, 0)
    stored = next(n for n in range(1, len(data)) if data.startswith(block(data[:n], kind=1)))  # where the CRC agrees
    contents = pyarrow.decompress(data[:stored], decompressed_size=size, codec="snappy", asbytes=True)
    assert write_table(read_table(data)).startswith(block(contents))


@pytest.mark.parametrize("block_size", [1, 100, 4_096, 262_144])
def test_reads_back_what_it_wrote_at_any_block_size(block_size):
    data = write_table(MANY, block_size=block_size)
    assert list(read_table(data)) == MANY
    assert data == write_table(iter(MANY), block_size=block_size)


def test_large_values_have_a_block_of_their_own_and_no_entries_none():
    pairs = [(b"a", b"x"), (b"b", b"y" * 9_000), (b"c", b"z"), (b"\xff\xff", b"")]
    assert list(read_table(write_table(pairs, block_size=4_096))) == pairs
    assert list(read_table(write_table([]))) == []


def test_keys_of_the_index_part_the_blocks():
    # leveldb's FindShortestSeparator and FindShortSuccessor: "the quick", "the who" -> "the r", and the last -> "u".
    data = write_table([(b"the quick", b"1"), (b"the who", b"2")], block_size=1)
    assert b"\x00\x05\x02the r" in data and b"\x00\x01\x02u" in data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "does not end with a table's magic number"),
        (b"x" * 100, "does not end with a table's magic number"),
        (bytes(40) + MAGIC, "block of 0 bytes from byte 0"),
        (table(entry(0, b"a", b"v") + struct.pack("<II", 0, 1), kind=2), "type 2; expected 0 \\(raw\\) or 1"),
        (table(entry(0, b"a", b"v") + struct.pack("<II", 0, 1), kind=1), "Snappy"),
        (table(struct.pack("<I", 7)), "7 restart points"),
        (table(b"ab"), "too short for its number of restart points"),
        (table(entry(3, b"a", b"v") + struct.pack("<II", 0, 1)), "too long for it: 3 shared bytes"),
        (table(entry(0, b"a", b"v", size=900) + struct.pack("<II", 0, 1)), "too long for it: 0 shared bytes, then 1 \\+ 900"),
        (table(entry(0, b"b", b"") + entry(0, b"a", b"") + struct.pack("<II", 0, 1)), "not in order: b'a' follows b'b'"),
        (table(entry(0, b"b", b"") + entry(0, b"b", b"") + struct.pack("<II", 0, 1)), "not in order"),
        (table(struct.pack("<II", 0, 1), handle=varint(2**60) + varint(5)), "from byte 1152921504606846976"),
        (table(struct.pack("<II", 0, 1), handle=varint(1) + varint(6)), "does not match its recorded CRC-32C"),
        (table(struct.pack("<II", 0, 1), handle=b"\x80"), "within a number"),
    ],
)  # fmt: skip
def test_damage_is_one_line(data, said):
    with pytest.raises(ValueError, match=said):
        list(read_table(data))


def test_a_block_is_listed_once():
    # Empty blocks break no order, and an index could list one of them a million times.
    one = struct.pack("<II", 0, 1)
    blocks = block(one)
    index = entry(0, b"a", b"\x00\x08") + entry(0, b"b", b"\x00\x08") + one
    handles = b"\x00\x08" + varint(len(blocks)) + varint(len(index))
    with pytest.raises(ValueError, match="its blocks overlap at byte 0"):
        list(read_table(blocks + block(index) + handles.ljust(FOOTER_SIZE - 8, b"\0") + MAGIC))


def test_every_bit_of_the_file_is_vouched_for(data_dir: Path):
    good = (data_dir / "checkpoints" / "tfr-bert-lite-tf2/bert_lite_tf2.ckpt.index").read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ValueError, match=r"damaged|truncated|bytes|number|blocks|Snappy|type|padding"):
            list(read_table(bytes(damaged)))


def test_lengths_cut_anywhere_are_one_line():
    good = write_table(MANY[:200], block_size=1_000)
    for size in range(0, len(good), 13):
        with pytest.raises(ValueError, match="truncated"):
            list(read_table(good[:size]))


def test_shared_prefixes_cannot_fill_the_memory(monkeypatch):
    # 20,000 keys that each share a megabyte with the one before would be 20 GB written out.
    monkeypatch.setattr(leveldb_table, "MOST_BYTES", 1 << 24)
    keys = b"".join(entry(1_000_000, varint(n | 1 << 20)[::-1], b"") for n in range(20_000))
    data = table(entry(0, b"k" * 1_000_000, b"") + keys + struct.pack("<II", 0, 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 16777216 bytes of keys"):
        for _ in read_table(data):
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.slow
def test_random_bytes_within_blocks_that_have_their_checksum():
    generator = random.Random(0)
    good = entry(0, b"bert/a", b"12345") + entry(5, b"b", b"67") + entry(6, b"/adam_m", b"") + struct.pack("<II", 0, 1)
    said = set()
    for _ in range(3_000):
        damaged = bytearray(good)
        for _ in range(generator.randint(1, 5)):
            damaged[generator.randrange(len(damaged))] = generator.choice(
                (0, 1, 127, 128, 255, generator.randrange(256))
            )
        try:
            list(read_table(table(bytes(damaged), kind=generator.choice((0, 0, 0, 1)))))
        except ValueError as error:
            said.add(str(error))
    assert len(said) > 50
    assert "\n" not in "".join(said)
