"""TensorFlow checkpoints: real ones are read and written again byte for byte; others are put together by hand."""

import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.tensorflow import bundle
from bert_jax.formats.tensorflow.bundle import MOST_INDEX_BYTES, Tf1Checkpoint, find_prefix, is_checkpoint, write_bundle
from bert_jax.formats.tensorflow.entries import read_entry, slice_key, stored_dtype
from bert_jax.formats.tensorflow.table import read_table, write_table
from tests.formats.tensorflow.tf1_protos import (
    DTYPES,
    BundleEntryProto,
    BundleHeaderProto,
    proto,
    types_pb2,
    write_by_hand,
)


@pytest.fixture
def tiny(data_dir: Path) -> Path:
    return data_dir / "checkpoints" / "keras-bert-tiny-adam"


@pytest.fixture
def copied(tiny, tmp_path) -> Path:
    """The prefix of a copy that may be damaged."""
    for file in tiny.glob("bert_model.ckpt.*"):
        shutil.copy(file, tmp_path)
        (tmp_path / file.name).chmod(0o644)
    return tmp_path / "bert_model.ckpt"


def test_reads_googles_layout(tiny):
    with Tf1Checkpoint(tiny) as stored:
        names = list(stored)
        assert len(stored) == len(names) == 139
        assert stored.path == tiny / "bert_model.ckpt.index"
        assert sum(name.endswith(("/adam_m", "/adam_v")) for name in names) == 92
        kernel = "bert/encoder/layer_1/intermediate/dense/kernel"
        assert (stored.shape(kernel), stored.dtype(kernel)) == ((4, 16), "float32")
        assert (stored.shape("global_step"), stored.dtype("global_step")) == ((), "int64")
        assert stored.verify()
        # The data file is the arrays one after the other, in the order of their names.
        whole, step = b"".join(stored[name].tobytes() for name in sorted(names)), int(stored["global_step"])
    assert whole == (tiny / "bert_model.ckpt.data-00000-of-00001").read_bytes()
    assert whole.endswith(struct.pack("<q", step))


def test_entries_are_read_as_protobuf_reads_them(data_dir: Path):
    for index in sorted((data_dir / "checkpoints").glob("*/*.index")):
        for key, value in list(read_table(index.read_bytes()))[1:]:
            theirs, ours = BundleEntryProto.FromString(value), read_entry(value)
            assert (ours.dtype, ours.shard, ours.offset, ours.size) == (
                theirs.dtype,
                theirs.shard_id,
                theirs.offset,
                theirs.size,
            ), key
            assert (ours.masked_crc, ours.shape) == (theirs.crc32c, tuple(dim.size for dim in theirs.shape.dim)), key


def test_tensorflows_own_bytes_come_out_again(tiny, tmp_path):
    with Tf1Checkpoint(tiny) as stored:
        shuffled = dict(random.Random(0).sample(sorted(stored.items(), key=lambda item: item[0]), len(stored)))
    write_bundle(tmp_path / "bert_model.ckpt", shuffled)
    for ending in (".index", ".data-00000-of-00001"):
        name = f"bert_model.ckpt{ending}"
        assert (tmp_path / name).read_bytes() == (tiny / name).read_bytes(), ending


def test_every_dtype_and_layout_comes_back(tmp_path):
    base = np.arange(-12, 12).reshape(2, 3, 4)
    tensors = {name: base.astype(name) for name in DTYPES}
    assert {name: stored_dtype(np.dtype(name)) for name in DTYPES} == DTYPES
    tensors |= {
        "transposed": base.astype(np.float32).T,
        "big-endian": base.astype(">f4"),
        "scalar": np.float32(7).reshape(()),
        "empty": np.zeros((0, 3), np.float32),
        "über/käse": np.ones(1, np.float32),
    }
    write_bundle(tmp_path / "x", tensors)
    with Tf1Checkpoint(tmp_path / "x") as stored:
        assert set(stored) == set(tensors)
        assert stored.verify()
        for name, array in tensors.items():
            assert stored[name].dtype == array.dtype.newbyteorder("="), name
            assert stored.shape(name) == stored[name].shape == array.shape, name
            assert stored[name].tolist() == array.tolist(), name
        with pytest.raises(KeyError):
            stored["not there"]


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_the_other_byte_order_is_turned(tmp_path, name):
    array = np.arange(6).reshape(2, 3).astype(name)
    turned = array.byteswap()
    header = BundleHeaderProto(num_shards=1, endianness=1)
    write_by_hand(tmp_path / "x", {"a": proto(turned)}, [turned.tobytes()], header)
    with Tf1Checkpoint(tmp_path / "x") as stored:
        assert stored["a"].tolist() == array.tolist()


def test_copies_into_memory_of_any_layout(tiny, copied):
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    with Tf1Checkpoint(tiny) as stored:
        for out in (np.empty((4, 16), np.float32), np.empty((16, 4), np.float32).T, np.empty((4, 16))):
            stored.copy_to(name, out)
            assert np.array_equal(out, stored[name])
        scalar = np.empty((), np.int64)
        stored.copy_to("global_step", scalar)
        assert scalar == stored["global_step"]
    with Tf1Checkpoint(copied) as stored:
        data = Path(f"{copied}.data-00000-of-00001")
        whole = data.read_bytes()
        data.write_bytes(whole.replace(stored[name].tobytes(), bytes(256)))
        with pytest.raises(UserError, match=f"tensor '{name}' .256 bytes from byte .* damaged"):
            stored.copy_to(name, np.empty((4, 16), np.float32))
        data.write_bytes(whole[:100])
        for read in (lambda: stored[name], lambda: stored.copy_to(name, np.empty((4, 16), np.float32))):
            with pytest.raises(UserError, match="data-00000-of-00001: the file became shorter while it was being read"):
                read()


def test_strings_are_listed_and_not_read(data_dir: Path):
    with Tf1Checkpoint(data_dir / "checkpoints" / "tfr-bert-lite-tf2") as stored:
        key = "_CHECKPOINTABLE_OBJECT_GRAPH"
        assert (stored.dtype(key), stored.shape(key)) == ("object", ())
        assert b"transformer/layer_0" in stored.string(key)
        with pytest.raises(UserError, match="'_CHECKPOINTABLE_OBJECT_GRAPH' holds strings; expected numbers"):
            stored[key]
        assert stored.verify()


def test_what_is_not_one_string_is_not_read_as_one(tmp_path):
    sliced = BundleEntryProto(dtype=types_pb2.DT_STRING, shape={}, shard_id=3)
    sliced.slices.add()
    piece = BundleEntryProto(dtype=types_pb2.DT_STRING, shape={}, size=4)
    empty = BundleEntryProto(dtype=types_pb2.DT_STRING, shape={})
    entries = {"number": proto(ONE), "sliced": sliced, slice_key("sliced", ()): piece, "empty": empty}
    entries["number"].offset = 4
    with Tf1Checkpoint(write_by_hand(tmp_path / "x", entries, [b"text" + ONE.tobytes()])) as stored:
        for name in ("number", "sliced"):
            with pytest.raises(UserError, match=f"x.index: tensor '{name}' is not one string"):
                stored.string(name)
        with pytest.raises(UserError, match="data-00000-of-00001: tensor 'empty': the data ends at byte 0"):
            stored.string("empty")


# Partitioned variables


def test_the_key_of_a_slice():
    # OrderedCode's own examples: 0x424242 -> f0424242 and -0x800 -> 3800; one byte holds -64 to 63, 0x80 is 0.
    assert slice_key("foo", ((0, -1), (3, 4))) == b"\0foo\0\1\1\2" + bytes.fromhex("807f8384")
    assert slice_key("a\0b", ((0x424242, -0x800),)) == b"\0a\0\xffb\0\1\1\1" + bytes.fromhex("f04242423800")
    assert slice_key("x", ((63, 64), (-64, -65))) == b"\0x\0\1\1\2" + bytes.fromhex("bfc040" + "403fbf")
    assert slice_key("x", ((8191, 8192),)) == b"\0x\0\1\1\1" + bytes.fromhex("dfff" + "e02000")


def partitioned(tmp_path: Path, cuts, pieces=None, shape=(5, 4)) -> tuple[Path, np.ndarray]:
    """A [5, 4] table in slices that lie in two data files; `pieces` replaces what lies there."""
    whole = np.arange(20, dtype=np.float32).reshape(5, 4)
    entry = BundleEntryProto(dtype=types_pb2.DT_FLOAT)
    for size in shape:
        entry.shape.dim.add(size=size)
    entries, shards = {"table": entry}, [b"", b""]
    for number, cut in enumerate(cuts):
        extents = entry.slices.add()
        for start, length in cut:
            extent = extents.extent.add(start=start)
            if length >= 0:
                extent.length = length
        place = tuple(slice(start, None if length < 0 else start + length) for start, length in cut)
        piece = np.ascontiguousarray(whole[place]) if pieces is None else pieces[number]
        entries[slice_key("table", cut)] = proto(piece, len(shards[number % 2]), number % 2)
        shards[number % 2] += piece.tobytes()
    return write_by_hand(tmp_path / "x", entries, shards), whole


ROWS = (((0, 2), (0, 4)), ((2, 2), (0, -1)), ((4, 1), (0, 4)))


@pytest.mark.parametrize("cuts", [ROWS, (((0, -1), (0, 1)), ((0, -1), (1, 3)))], ids=["rows", "columns"])
def test_a_partitioned_variable_is_one_tensor(tmp_path, cuts):
    prefix, whole = partitioned(tmp_path, cuts)
    with Tf1Checkpoint(prefix) as stored:
        assert list(stored) == ["table"]
        assert (stored.shape("table"), stored.dtype("table")) == ((5, 4), "float32")
        assert np.array_equal(stored["table"], whole)
        assert stored.verify()


@pytest.mark.parametrize(
    ("cuts", "shape", "said"),
    [
        (ROWS[:2], (5, 4), "the slices of tensor 'table' repeat, or have .* and not 20"),
        ((*ROWS[:2], ROWS[1]), (5, 4), "not in order|repeat"),
        ((((0, 2), (0, 4)), ((1, 2), (0, 4)), ((4, 1), (0, 4))), (5, 4), r"slices of tensor 'table' overlap at"),
        (ROWS, (4, 4), "does not lie within shape"),
        (ROWS, (5, 4, 1), "does not lie within shape"),
        ((((0, 9), (0, 4)),), (5, 4), "does not lie within shape"),
    ],
)
def test_slices_that_do_not_make_the_whole_are_one_line(tmp_path, cuts, shape, said):
    prefix = partitioned(tmp_path, cuts, shape=shape)[0]
    with pytest.raises(UserError, match=said), Tf1Checkpoint(prefix) as stored:
        stored["table"]


def test_a_slice_of_another_shape_is_one_line(tmp_path):
    pieces = [np.zeros((2, 4), np.float32), np.zeros((4, 2), np.float32), np.zeros((1, 4), np.float32)]
    with pytest.raises(UserError, match=r"tensor 'table' lacks its slice of shape \(2, 4\)"):
        Tf1Checkpoint(partitioned(tmp_path, ROWS, pieces)[0])


def without_slices(path: Path, name: str, *, slices: int, entries: int = 1) -> Path:
    """A checkpoint whose tensors declare slices that are not there."""
    entry = BundleEntryProto(dtype=types_pb2.DT_FLOAT)
    entry.shape.dim.add(size=slices)
    for start in range(slices):
        entry.slices.add().extent.add(start=start, length=1)
    return write_by_hand(path, dict.fromkeys([name, *(f"~{number}" for number in range(1, entries))], entry), [b""])


def test_slices_that_are_not_there_take_no_memory(tmp_path):
    prefix = without_slices(tmp_path / "x", "a" * 1000, slices=4000)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.index: its tensors have 4000 slices, of which 0 are there"):
        Tf1Checkpoint(prefix)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3_000_000  # the keys of the slices alone would have 4 MB


def test_an_index_of_no_checkpoint_is_refused_by_its_sizes(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"x\.index: the name b'aaa.* has 1001 bytes; at most 1,000 are read"):
        Tf1Checkpoint(without_slices(tmp_path / "x", "a" * 1001, slices=1))
    with pytest.raises(UserError, match=r"y\.index: entry b'a': has .* bytes; at most 1,048,576 are read"):
        Tf1Checkpoint(without_slices(tmp_path / "y", "a", slices=150_000))
    monkeypatch.setattr(bundle, "MOST_ENTRIES", 100)
    for slices, entries in ((0, 101), (30, 4)):
        with pytest.raises(UserError, match=r"z\.index: it has more than 100 tensors and slices"):
            Tf1Checkpoint(without_slices(tmp_path / "z", "a", slices=slices, entries=entries))


# Which files


def test_a_prefix_a_file_or_the_folder_names_it(tiny):
    prefix = tiny / "bert_model.ckpt"
    for source in (tiny, prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001"):
        assert find_prefix(source) == prefix
        assert is_checkpoint(source)
    assert not is_checkpoint(tiny.parent / "vocab")
    assert not is_checkpoint(tiny / "nothing")


def test_what_macos_puts_beside_a_checkpoint_is_none(tmp_path):
    write_bundle(tmp_path / "model.ckpt", {"global_step": np.int64(1)})
    for ending in (".index", ".data-00000-of-00001"):
        (tmp_path / f"._model.ckpt{ending}").write_bytes(b"\0\5\x16\7")
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt"


def test_of_several_the_file_checkpoint_says_which(tmp_path):
    for step in (100, 2000):
        write_bundle(tmp_path / f"model.ckpt-{step}", {"global_step": np.int64(step)})
    with pytest.raises(UserError, match=r"holds 2 checkpoints, model.ckpt-100, model.ckpt-2000: name one in") as error:
        Tf1Checkpoint(tmp_path)
    (tmp_path / "checkpoint").write_text(str(error.value).split(", as in ")[1])  # the advice can be followed
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-100"
    (tmp_path / "checkpoint").write_text(r'model_checkpoint_path: "C:\\runs\\model.ckpt-2000"' + "\n")  # from Windows
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-2000"
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/run/model.ckpt-2000"\nall_model_checkpoint_paths: "model.ckpt-100"\n'
    )
    for source, step in ((tmp_path, 2000), (tmp_path / "model.ckpt-100", 100)):
        with Tf1Checkpoint(source) as stored:
            assert int(stored["global_step"]) == step
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3000"\n')
    with pytest.raises(UserError, match="holds 2 checkpoints"):
        Tf1Checkpoint(tmp_path)


def test_a_hub_module_keeps_it_in_variables(tmp_path):
    (tmp_path / "variables").mkdir()
    write_bundle(tmp_path / "variables" / "variables", {"a": np.zeros(1, np.float32)})
    assert is_checkpoint(tmp_path)
    with Tf1Checkpoint(tmp_path) as stored:
        assert list(stored) == ["a"]


def test_the_old_one_file_format_is_refused_by_name(tmp_path):
    (tmp_path / "model.ckpt").write_bytes(write_table([(b"", b"SavedTensorSlices")]))
    for source in (tmp_path, tmp_path / "model.ckpt"):
        with pytest.raises(
            UserError, match=r"model.ckpt: a checkpoint in TensorFlow's V1 format .* save it again with"
        ):
            Tf1Checkpoint(source)


def test_files_that_are_not_there_are_named(copied, tmp_path):
    index, data = Path(f"{copied}.index"), Path(f"{copied}.data-00000-of-00001")
    content = index.read_bytes()
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"data-00000-of-00001: bert_model.ckpt.index is missing beside it"):
        Tf1Checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"bert_model.ckpt.index: no such file"):
        Tf1Checkpoint(copied)
    index.write_bytes(content)
    data.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"data-00000-of-00001: no such file; bert_model.ckpt.index says that it holds"
    ):
        Tf1Checkpoint(tmp_path)
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"contains no TensorFlow checkpoint \(no file \*.index\)"):
        Tf1Checkpoint(tmp_path)


# Damage


def test_a_flipped_bit_of_a_tensor_is_noticed_when_it_is_read(copied):
    data = Path(f"{copied}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[5_000] ^= 4
    data.write_bytes(content)
    with Tf1Checkpoint(copied) as stored:
        assert not stored.verify()
        failed = []
        for name in stored:
            try:
                stored[name]
            except UserError as error:
                failed.append(str(error))
    assert len(failed) == 1
    assert "does not match its recorded CRC-32C: the file is damaged" in failed[0]


def test_a_data_file_that_was_cut_off_is_noticed_on_opening(copied):
    data = Path(f"{copied}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"has 8419 bytes, but tensor 'global_step' needs 8420: truncated"):
        Tf1Checkpoint(copied)


ONE = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (proto(ONE, size=20), r"entry b'a': it is float32 of shape \(2, 3\), but has 20 bytes"),
        (proto(ONE, offset=1 << 60), "needs 1152921504606847000: truncated"),
        (proto(ONE, offset=-5), "offset -5, size 24: one of them is negative"),
        (proto(ONE, shard=3), "in data file 3, counted from 0, of only 1"),
        (proto(ONE, shard=-1), "shard -1, offset 0"),
        (proto(np.zeros((0, 1 << 40), np.float32)), None),
        (proto(ONE).SerializeToString() + b"\x12\x0d\x12\x0b\x08" + b"\xff" * 9 + b"\x01", "has a negative size"),
        (proto(ONE).SerializeToString() + b"\x12\x02\x18\x01", r"its shape \(2, 3\) is unknown"),
        (proto(ONE).SerializeToString() + b"\x12\x04\x12\x02\x08\x05", "but has 24 bytes"),
        (proto(ONE).SerializeToString()[:-2], "entry b'a': field 6"),
        (b"\x08", "within a number"),
    ],
)
def test_lies_of_an_entry_are_one_line(tmp_path, entry, said):
    prefix = write_by_hand(tmp_path / "x", {"a": entry}, [ONE.tobytes()])
    if said is None:
        with Tf1Checkpoint(prefix) as stored:
            assert stored["a"].size == 0
        return
    with pytest.raises(UserError, match=said) as raised:
        Tf1Checkpoint(prefix)
    assert str(prefix) in str(raised.value)


def test_tensors_that_share_bytes_are_one_line(tmp_path):
    prefix = write_by_hand(tmp_path / "x", {"a": proto(ONE), "b": proto(ONE, offset=20)}, [ONE.tobytes() * 2])
    with pytest.raises(UserError, match="tensors 'a' and 'b' overlap"):
        Tf1Checkpoint(prefix)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (BundleHeaderProto(num_shards=0), "has 0 data files"),
        (BundleHeaderProto(num_shards=1 << 30), "has 1073741824 data files"),
        (BundleHeaderProto(num_shards=1, version={"min_consumer": 2}), "reader of version 2; bert_jax has version 1"),
        (b"\x08", "within a number"),
    ],
)
def test_lies_of_the_header_are_one_line(tmp_path, header, said):
    with pytest.raises(UserError, match=said):
        Tf1Checkpoint(write_by_hand(tmp_path / "x", {}, [b""], header))


def test_dtypes_that_are_not_numbers_are_refused_on_reading(tmp_path):
    quantised = proto(ONE, dtype=types_pb2.DT_QINT8)
    with Tf1Checkpoint(write_by_hand(tmp_path / "x", {"a": quantised}, [ONE.tobytes()])) as stored:
        for read in (stored.__getitem__, stored.dtype):
            with pytest.raises(UserError, match="tensor 'a' holds TensorFlow's dtype 11"):
                read("a")


def test_other_files_and_huge_ones_are_refused(tmp_path):
    index = tmp_path / "x.index"
    index.write_bytes(b"IxFl" + bytes(100))
    with pytest.raises(UserError, match=r"x.index: it does not end with a table's magic number"):
        Tf1Checkpoint(tmp_path)
    index.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8474\n")
    with pytest.raises(UserError, match=r"x\.index: a Git LFS pointer, not the file itself; .*git lfs pull"):
        Tf1Checkpoint(tmp_path)
    index.write_bytes(write_table([(b"model", b"1")]))
    with pytest.raises(UserError, match="its first key is not that of a header"):
        Tf1Checkpoint(tmp_path)
    index.write_bytes(write_table([(b"", BundleHeaderProto(num_shards=1).SerializeToString()), (b"\xff", b"")]))
    with pytest.raises(UserError, match="is not UTF-8"):
        Tf1Checkpoint(tmp_path)
    with open(index, "wb") as file:
        file.truncate(MOST_INDEX_BYTES + 1)
    with pytest.raises(UserError, match="has 67108865 bytes; an index may have at most"):
        Tf1Checkpoint(tmp_path)


def test_names_and_dtypes_that_cannot_be_written_are_one_line(tmp_path):
    with pytest.raises(UserError, match="'a' is <U1, which the format cannot store"):
        write_bundle(tmp_path / "x", {"a": np.array("s")})
    with pytest.raises(UserError, match="'' cannot be the name"):
        write_bundle(tmp_path / "x", {"": np.zeros(1)})


def test_what_an_interrupted_write_leaves_is_no_checkpoint(tmp_path):
    write_bundle(tmp_path / "x", {"a": np.zeros(3)})
    assert is_checkpoint(tmp_path)
    with pytest.raises(UserError, match="'b' is <U1"):
        write_bundle(tmp_path / "x", {"a": np.ones(3), "b": np.array("s")})
    assert not is_checkpoint(tmp_path)


@pytest.mark.slow
def test_whatever_the_index_says_one_line_or_the_right_numbers_and_little_memory(tmp_path):
    """Random bytes within headers and entries, under checksums that agree; and random files."""
    generator = random.Random(0)
    tensors = {"bert/a": ONE, "bert/a/adam_m": ONE * 2, "cls/b": np.ones(4, ml_dtypes.bfloat16)}
    write_bundle(tmp_path / "good", tensors)
    shutil.copy(tmp_path / "good.data-00000-of-00001", tmp_path / "x.data-00000-of-00001")
    pairs = list(read_table((tmp_path / "good.index").read_bytes()))
    said = set()
    tracemalloc.start()
    for _ in range(300):
        damaged = [(key, bytearray(value)) for key, value in pairs]
        for _ in range(generator.randint(1, 3)):
            _, value = generator.choice(damaged)
            value[generator.randrange(len(value))] = generator.choice(
                (0, 1, 2, 127, 128, 255, generator.randrange(256))
            )
        data = bytearray(write_table([(key, bytes(value)) for key, value in damaged]))
        if generator.random() < 0.2:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        (tmp_path / "x.index").write_bytes(data)
        try:
            with Tf1Checkpoint(tmp_path / "x") as stored:
                for name in stored:
                    assert stored[name].nbytes <= 1_000
                stored.verify()
        except (UserError, FileNotFoundError) as error:
            said.add(str(error))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
    assert len(said) > 50
    assert "\n" not in "".join(said)
