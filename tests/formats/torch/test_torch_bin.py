"""pytorch_model.bin: both forms are read, views are right, and no file runs code, hangs or takes memory."""

import builtins
import os
import pickle
import random
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.formats.torch.bin import TorchBin
from tests.formats.torch import torch_files as make

ARRAYS = {
    "embeddings.weight": np.arange(12, dtype=np.float32).reshape(4, 3) / 8,
    "pooler.bias": np.array([1.5, -3.0], np.float16),
    "half": np.array([[1.0, -2.5]], ml_dtypes.bfloat16),
    "position_ids": np.arange(5, dtype=np.int64)[None],
    "scale": np.float32(7).reshape(()),
    "nothing": np.zeros((0, 3), np.float32),
}
STORED = make.storage("0", 6)
SIX = np.arange(6, dtype=np.float32)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "pytorch_model.bin"


def one(path: Path, value: bytes, octets: bytes = SIX.tobytes()) -> Path:
    """A zip with one storage "0" of six float32 and whatever pickle."""
    return make.zip_file(path, make.pickle(value), {"0": octets})


def refusal(path: Path) -> str:
    """The one-line error for a bad file, without its path, which has the words of the test's name."""
    with pytest.raises(UserError) as caught:
        TorchBin(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line
    assert len(line) < len(str(path)) + 400
    return line.replace(str(path), "")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_both_forms_give_names_shapes_dtypes_and_elements(path, legacy):
    with TorchBin(make.save(path, ARRAYS, legacy)) as tensors:
        assert list(tensors) == list(ARRAYS)
        assert "absent" not in tensors
        for key, array in ARRAYS.items():
            assert tensors.shape(key) == array.shape
            assert tensors.dtype(key) == tensors[key].dtype.name == array.dtype.name
            assert tensors[key].shape == array.shape
            assert tensors[key].tolist() == array.tolist()


VIEWS = {  # shape, stride, offset into six elements
    "transposed": ((3, 2), (1, 3), 0),
    "columns": ((2, 2), (3, 1), 1),
    "steps": ((3,), (2,), 0),
    "expanded": ((4, 2), (0, 1), 2),
    "scalar": ((), (), 5),
    "strides of axes of one": ((1, 2, 1), (9, 3, 7), 0),
}


@pytest.mark.parametrize(("shape", "stride", "offset"), VIEWS.values(), ids=VIEWS)
def test_views_of_a_storage_come_out_as_they_were(path, shape, stride, offset):
    base = np.arange(6, dtype=np.float32)
    view = np.lib.stride_tricks.as_strided(base[offset:], shape, [4 * step for step in stride])
    one(path, make.dictionary({"t": make.tensor(STORED, shape, stride, offset), "whole": make.tensor(STORED, (6,))}))
    with TorchBin(path) as tensors:
        assert tensors["t"].tolist() == view.tolist()
        assert tensors["t"].flags.c_contiguous
        assert tensors["t"].shape == shape
        assert tensors["whole"].tolist() == base.tolist()


def test_a_part_of_a_storage_in_the_old_form_begins_where_it_says(path):
    part = make.storage("0", 6, rest=make.text("1").join([b"(", b""]) + make.integer(2) + make.integer(3) + b"t")
    make.legacy_file(path, make.dictionary({"t": make.tensor(part, (2,), (1,), 1)}), {"0": (6, SIX.tobytes())})
    with TorchBin(path) as tensors:
        assert tensors["t"].tolist() == [3.0, 4.0]


def test_a_parameter_and_the_newer_way_to_say_a_dtype(path):
    parameter = make.call("torch._utils._rebuild_parameter", make.tensor(STORED, (6,)), b"\x88", b"N")
    untyped = make.storage("0", 24, "torch.storage.UntypedStorage")
    newer = make.call(
        "torch._utils._rebuild_tensor_v3", untyped, make.integer(2), make.integers([3]), make.integers([2]),
        b"\x89", b"N", make.name("torch.uint16"),
    )  # fmt: skip
    with TorchBin(one(path, make.dictionary({"p": parameter}))) as tensors:
        assert tensors["p"].tolist() == SIX.tolist()
    with TorchBin(one(path, make.dictionary({"n": newer}))) as tensors:
        assert tensors["n"].tolist() == SIX.view(np.uint16)[2:7:2].tolist()


def test_big_endian_elements_are_turned_round(path):
    halves = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    value = {"f": make.tensor(STORED, (6,)), "b": make.tensor(make.storage("1", 2, "torch.BFloat16Storage"))}
    storages = {"0": SIX.astype(">f4").tobytes(), "1": halves.view(np.uint16).byteswap().tobytes()}
    make.zip_file(path, make.pickle(make.dictionary(value)), storages, more={"byteorder": b"big"})
    with TorchBin(path) as tensors:
        assert tensors["f"].tolist() == SIX.tolist()
        assert tensors["b"].tolist() == halves.tolist()


def test_booleans_of_any_byte_are_true_or_false(path):
    value = make.dictionary({"t": make.tensor(make.storage("0", 3, "torch.BoolStorage"), (3,))})
    with TorchBin(one(path, value, b"\x00\x01\x80")) as tensors:
        assert tensors["t"].view(np.uint8).tolist() == [0, 1, 1]


def test_what_stands_beside_the_tensors_is_passed_over_where_it_is_harmless(path):
    metadata = make.dictionary({"": make.dictionary({"version": make.integer(1)})})
    value = make.dictionary({
        "t": make.tensor(STORED, (6,)), "epoch": make.integer(3), "loss": b"G" + struct.pack(">d", 0.5), "note": make.text("hi"),
        "none": b"N", "empty": b"}", "_metadata": metadata,
    })  # fmt: skip
    with TorchBin(one(path, value + make.dictionary({"_metadata": metadata}) + b"b")) as tensors:
        assert list(tensors) == ["t"]


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "module"])
def test_a_state_dict_inside_a_training_checkpoint_is_found(path, key):
    inner = make.dictionary({f"module.{name}": make.tensor(STORED, (6,)) for name in ("a", "b")})
    optimizer = make.dictionary({"state": b"}" + make.integer(0) + make.tensor(STORED) + b"s"})
    value = make.dictionary({"epoch": make.integer(1), "rng": make.tensor(STORED), key: inner, "optimizer": optimizer})
    with TorchBin(one(path, value)) as tensors:
        assert list(tensors) == ["a", "b"]


def test_module_stays_where_not_all_names_have_it(path):
    with TorchBin(one(path, make.dictionary({"module.a": make.tensor(STORED), "b": make.tensor(STORED)}))) as tensors:
        assert list(tensors) == ["module.a", "b"]


OTHER_CONTENTS = {
    "a list": (b"](" + make.tensor(STORED) + b"e", "expected a dict from names to tensors, found a list"),
    "one tensor": (make.tensor(STORED), "expected a dict from names to tensors, found a Tensor"),
    "nothing": (b"}", "its dict holds no tensors"),
    "numbers": (make.dictionary({"epoch": make.integer(1)}), r"its dict holds no tensors; its keys are \['epoch'\]"),
    "two models": (make.dictionary({k: make.dictionary({"w": make.tensor(STORED)}) for k in ("model", "module")}), "several models, under model, module"),
    "a dict beside": (make.dictionary({"w": make.tensor(STORED), "more": make.dictionary({"v": make.tensor(STORED)})}), "'more' is a dict"),
    "a storage": (make.dictionary({"w": make.tensor(STORED), "raw": STORED}), "'raw' is a Storage"),
    "a number as name": (b"}" + make.integer(5) + make.tensor(STORED) + b"s", "5 is a Tensor; expected a tensor, named by a text"),
    "a name without end": (make.dictionary({"w" * 5000: make.tensor(STORED)}), r"'ww+\.\.\.w+' is a Tensor"),
    "a name twice": (b"}(" + 2 * (make.text("w") + make.tensor(STORED)) + b"u", "the key 'w' twice"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "found"), OTHER_CONTENTS.values(), ids=OTHER_CONTENTS)
def test_other_contents_are_one_clear_line(path, value, found):
    one(path, value)
    with pytest.raises(UserError, match=found):
        TorchBin(path)
    refusal(path)


class Evil:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_code_in_a_pickle_does_not_run(tmp_path, path, protocol, legacy):
    proof = tmp_path / "ran"
    calls = [Evil(os.system, f"touch {proof}"), Evil(builtins.eval, f"open({str(proof)!r}, 'w')")]
    calls += [Evil(getattr, Evil(os.system, f"touch {proof}"), "x"), Evil(__import__, "antigravity")]
    for evil in calls:
        data = pickle.dumps({"w": evil}, protocol)
        value = data[:-1].removeprefix(bytes([0x80, protocol]))
        if legacy:
            make.legacy_file(path, value, {})
        else:
            make.zip_file(path, data, {})
        assert "reads only tensors from a pickle" in refusal(path)
    assert not proof.exists()


REDUCED = make.call("collections.OrderedDict")


NO_TENSORS = {
    "a class": (make.name("builtins.eval"), "the name 'builtins.eval'"),
    "a torch function": (make.name("torch.load"), "the name 'torch.load'"),
    "a storage of another module": (make.name("os.FloatStorage"), "the name 'os.FloatStorage'"),
    "complex numbers": (make.storage("0", 3, "torch.ComplexFloatStorage"), "ComplexFloatStorage"),
    "quantised numbers": (make.storage("0", 3, "torch.QInt8Storage"), "QInt8Storage"),
    "a dtype called": (make.call("torch.float32"), "a call of a PickledName"),
    "a dict called": (b"}" + b")R", "a call of a dict"),
    "a call of a call": (make.call("collections.OrderedDict", REDUCED), "an OrderedDict with arguments"),
    "a name from objects": (make.text("os") + REDUCED + b"\x93", "a name that is not text"),
    "state for a tensor": (make.tensor(STORED) + b"}b", "adds to a dict, but finds a Tensor"),
    "state for a list": (b"]}b", "adds to a dict, but finds a list"),
    "state that is an object": (REDUCED + b"Nb", "attributes that are not a dict"),
    "NEWOBJ": (make.name("collections.OrderedDict") + b")\x81", "opcode 0x81"),
    "INST": (b"(ios\nsystem\n", "opcode 0x69"),
    "an extension": (b"\x82\x01", "opcode 0x82"),
    "a buffer": (b"\x97", "opcode 0x97"),
    "a persistent id of a module": (b"(" + make.text("module") + b"NNNNtQ", "a reference to something that is not a storage"),
    "a storage of no size": (b"(" + make.text("storage") + make.name("torch.FloatStorage") + make.text("0") + b"NNtQ", "a storage without"),
    "a storage with two sizes": (b"(" + STORED + make.storage("0", 5) + b"t", "two types or sizes"),
    "a long integer": (b"\x8a\xff" + b"\x7f" * 255, "an integer of 255 bytes"),
    "a long string": (b"X\xff\xff\xff\xff", "no end"),
    "text that is none": (b"X\x01\0\0\0\xff", "not UTF-8"),
    "a name without end": (b"cos" + b"x" * 5000, "a name without an end"),
    "nothing to pop": (b"(R", "the stack is empty"),
    "nothing above the mark": (b"K\x01(0", "opcode 0x30"),
    "a mark between": (b"K\x01(\x85", "the stack is empty"),
    "no mark": (b"t", "needs a mark when there is none"),
    "an unknown memo": (b"h\x07", "object 7, which it has not made"),
    "a key without value": (b"}(K\x01u", "a key without a value"),
    "a tuple as key": (b"}" + b")" + b"Ns", "a tuple as a key"),
    "an integer as key": (b"}" + make.integer(2**61) + b"Ns", "a int as a key"),
    "an addition to a number": (b"K\x01K\x02a", "adds to a list, but finds a int"),
    "no tensor": (make.call("torch._utils._rebuild_parameter", b"N", b"N", b"N"), "a parameter that is not a tensor"),
    "few arguments": (make.call("torch._utils._rebuild_tensor_v2", STORED), "a tensor of 1 arguments"),
    "a negated tensor": (make.call("torch._utils._rebuild_tensor_v2", STORED, make.integer(0), make.integers([1]), make.integers([1]), b"N", b"N", make.dictionary({"neg": b"\x88"})), "negated"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "found"), NO_TENSORS.values(), ids=NO_TENSORS)
def test_anything_but_a_tensor_is_refused(path, value, found):
    one(path, make.dictionary({"w": make.tensor(STORED), "x": value}))
    assert found in refusal(path)


LEAVING = {
    "an offset behind": ((1,), (1,), 6),
    "a negative offset": ((1,), (1,), -1),
    "an end behind": ((4,), (2,), 0),
    "a huge size": ((2**62,), (0,), 0),
    "a size that wraps round": ((2**32, 2**32), (0, 0), 0),
    "a stride that wraps round": ((5,), (2**62,), 0),
    "a negative size": ((-1,), (1,), 0),
    "a negative stride": ((2,), (-1,), 3),
    "more strides": ((2,), (1, 1), 0),
    "many axes": ((1,) * 40, (1,) * 40, 0),
    "empty but huge": ((0, 2**62), (1, 1), 0),
    "expanded beyond the file": ((2**20, 2**20), (0, 0), 0),
}


@pytest.mark.parametrize(("shape", "stride", "offset"), LEAVING.values(), ids=LEAVING)
def test_a_tensor_that_leaves_its_storage_is_refused(path, shape, stride, offset):
    one(path, make.dictionary({"t": make.tensor(STORED, shape, stride, offset)}))
    assert "its pickle holds a tensor " in refusal(path) or "larger than the whole file" in refusal(path)


SHARED = {  # shape, stride into 2^17 elements, half a megabyte
    "copies": ((2**17,), (1,)),
    "other shapes": ((2**7, 2**10), (2**10, 1)),
    "expanded": ((2**7, 2**10), (0, 1)),
    "ends that are far apart": ((2,), (2**17 - 1,)),
}


@pytest.mark.parametrize(("shape", "stride"), SHARED.values(), ids=SHARED)
def test_tensors_that_share_a_storage_take_a_few_times_the_file(path, shape, stride):
    elements = np.arange(2**17, dtype=np.float32)
    stored = make.storage("0", elements.size)

    def shared(count: int) -> Path:
        names = {str(number): make.tensor(stored, shape, stride) for number in range(count)}
        return make.zip_file(path, make.pickle(make.dictionary(names)), {"0": elements.tobytes()})

    with TorchBin(shared(16)) as tensors:
        view = np.lib.stride_tricks.as_strided(elements, shape, [4 * step for step in stride])
        assert np.array_equal(tensors["15"], view)
    assert "its tensors share storages and have 8,912,896 bytes; at most 8 times its " in refusal(shared(17))


def test_storages_must_be_there_in_their_size(path):
    value = make.pickle(make.dictionary({"t": make.tensor(STORED)}))
    assert "expected 24 bytes in its storage data/0, it is not in the file" in refusal(
        make.zip_file(path, value, {"1": SIX.tobytes()})
    )
    assert "expected 24 bytes in its storage data/0, found 20" in refusal(
        make.zip_file(path, value, {"0": SIX.tobytes()[4:]})
    )


BOMBS = {
    "a tuple of itself twice, doubled again and again": b"K\x01" + b"q\x00h\x00\x86" * 100_000,
    "deep lists": b"]" * 100_000 + b"a" * 99_999,
    "many dicts": b"(" + b"}" * 1_000_000 + b"t",
    "wide strings": b"(" + b"\x8c\x05\xf0\x9f\x98\x80a" * 300_000 + b"t",
    "marks without end": b"(" * 1_100_000,
}


@pytest.mark.slow
def test_bombs_end_quickly_in_little_memory(path):
    if not Path("/proc/self/status").exists():
        pytest.skip("the greatest memory of a process is read from /proc")
    code = """if True:
        import re, sys
        from bert_jax.errors import UserError
        from bert_jax.formats.torch.bin import TorchBin
        peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
        before = peak()
        for path in sys.argv[1:]:
            try:
                TorchBin(path)
            except UserError:
                print(peak() - before)
    """
    paths = [path.with_name(f"{index}.bin") for index in range(len(BOMBS))]
    for bomb, place in zip(BOMBS.values(), paths, strict=True):
        one(place, make.dictionary({"t": make.tensor(STORED), "bomb": bomb}))
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=True)
    peaks = [int(line) << 10 for line in done.stdout.split()]
    assert len(peaks) == len(BOMBS)
    assert max(peaks) < 256 << 20


def test_a_pickle_too_long_for_a_state_dict_is_not_read(path):
    assert "more than 1048576 opcodes" in refusal(one(path, b"(" + b"N" * (1 << 20) + b"t"))
    assert "its data.pkl has 17825792 bytes" in refusal(make.zip_file(path, bytes(17 << 20), {}))


def rewritten(path: Path, change) -> Path:
    """The file with its bytes changed by a function of them."""
    content = bytearray(path.read_bytes())
    path.write_bytes(change(content) or content)
    return path


def test_zip_files_of_other_kinds_are_refused(path):
    value = make.pickle(make.dictionary({"t": make.tensor(STORED)}))
    storages = {"0": SIX.tobytes()}
    assert "compressed" in refusal(make.zip_file(path, value, storages, zipfile.ZIP_DEFLATED))
    make.zip_file(path, value, {"0": bytes(50 << 20)}, zipfile.ZIP_DEFLATED)
    assert "compressed" in refusal(path)
    make.zip_file(path, value, storages, more={"constants.pkl": b"x"})
    assert "TorchScript" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights.npy", b"x")
    assert "0 data.pkl" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", value)
        file.writestr("b/data.pkl", value)
    assert "2 data.pkl" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("/etc/data.pkl", value)
        file.writestr("/etc/data/0", SIX.tobytes())
    assert "not written by torch.save" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", value)
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("a/data.pkl", value)
    assert "lists 'a/data.pkl' twice" in refusal(path)


def test_a_lying_zip_directory_is_refused(path):
    def file():
        return make.zip_file(path, make.pickle(make.dictionary({"t": make.tensor(STORED)})), {"0": SIX.tobytes()})

    def central(content: bytearray, entry: bytes) -> int:
        return content.rindex(entry) - 46

    def compress(content):
        content[central(content, b"archive/data/0") + 10] = 8

    def encrypt(content):
        content[central(content, b"archive/data/0") + 8] |= 1

    def grow(content):
        at = central(content, b"archive/data/0")
        struct.pack_into("<2I", content, at + 20, 10**6, 10**6)

    def overlap(content):
        at, other = central(content, b"archive/data/0"), central(content, b"archive/version")
        size = content.index(b"PK\1\2") - struct.unpack_from("<I", content, at + 42)[0] - 44
        assert at < other
        struct.pack_into("<2I", content, at + 20, size, size)

    def elsewhere(content):
        struct.pack_into("<I", content, central(content, b"archive/data/0") + 42, 7)

    def beyond(content):
        struct.pack_into("<I", content, central(content, b"archive/data/0") + 42, 2**31)

    def fewer(content):
        content[-12] -= 1

    assert "compressed" in refusal(rewritten(file(), compress))
    assert "encrypted" in refusal(rewritten(file(), encrypt))
    assert "ends behind byte" in refusal(rewritten(file(), grow))
    assert "overlap" in refusal(rewritten(file(), overlap))
    assert "is not at byte 7" in refusal(rewritten(file(), elsewhere))
    assert "is not at byte 2147483648" in refusal(rewritten(file(), beyond))
    assert "lists 4 entries, its end record 3" in refusal(rewritten(file(), fewer))
    assert "directory is damaged" in refusal(rewritten(file(), lambda content: content[:-22] + b"?" + content[-22:]))
    assert "begins at byte 9, not at 0" in refusal(rewritten(file(), lambda content: b"PK\3\4\0\0\0\0\0" + content))
    assert "or has extra bytes" in refusal(rewritten(file(), lambda content: content + b"\0"))
    assert "not written by torch.save" in refusal(rewritten(file(), lambda content: b"#!/bin/sh\n" + content))


def test_a_zip_directory_that_is_too_long_is_not_read(path):
    with zipfile.ZipFile(make.save(path, ARRAYS), "a") as file:
        for number in range(100):
            info = zipfile.ZipInfo(f"archive/data/x{number}")
            info.comment = bytes(60_000)
            file.writestr(info, b"")
    tracemalloc.start()
    assert "too long (a read of 60" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_zip64_records_are_understood(path):
    octets = SIX.tobytes()
    value = make.pickle(make.dictionary({"t": make.tensor(STORED, (6,))}))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", value)
        with file.open("archive/data/0", "w", force_zip64=True) as entry:
            entry.write(octets)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"archive/data/0") - 46
    end = content.rindex(b"PK\5\6")
    count, size, start = struct.unpack_from("<H2I", content, end + 10)
    wide = struct.pack("<2H3Q", 1, 24, len(octets), len(octets), struct.unpack_from("<I", content, at + 42)[0])
    struct.pack_into("<2I", content, at + 20, 2**32 - 1, 2**32 - 1)
    struct.pack_into("<I", content, at + 42, 2**32 - 1)
    struct.pack_into("<H", content, at + 30, len(wide))
    content[at + 46 + 14 : at + 46 + 14] = wide
    size += len(wide)
    end += len(wide)
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    last = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0)
    path.write_bytes(content[:end] + record + locator + last)
    assert zipfile.ZipFile(path).read("archive/data/0") == octets
    with TorchBin(path) as tensors:
        assert tensors["t"].tolist() == SIX.tolist()
    assert "zip directory is damaged" in refusal(rewritten(path, lambda content: content.replace(b"PK\6\6", b"PK\6\5")))


def test_legacy_files_that_lie_are_refused(path):
    value = make.dictionary({"t": make.tensor(make.storage("0", 6, rest=b"N"))})
    octets = SIX.tobytes()
    part = make.storage("0", 6, rest=b"(" + make.text("1") + make.integer(4) + make.integer(3) + b"t")
    lies = {
        "not the magic number": make.legacy_file(path, value, {"0": (6, octets)}, magic=5).read_bytes(),
        "has 7 elements, its tensors need 6": make.legacy_file(path, value, {"0": (7, octets)}).read_bytes(),
        "has -1 elements, its tensors need 6": make.legacy_file(path, value, {"0": (-1, octets)}).read_bytes(),
        "lists 0 storages": make.legacy_file(path, value, {}).read_bytes(),
        "lists 2 storages": make.legacy_file(path, value, {"0": (6, octets), "1": (0, b"")}).read_bytes(),
        "for its tensors: truncated": make.legacy_file(path, value, {"0": (6, octets + b"x")}).read_bytes(),
        "exceeds it": make.legacy_file(
            path, make.dictionary({"t": make.tensor(part)}), {"0": (6, octets)}
        ).read_bytes(),
    }
    twice = make.legacy_file(path, value, {"0": (6, octets), "1": (6, octets)}).read_bytes()
    lies["lists 2 storages, which"] = twice.replace(make.text("1"), make.text("0"))
    for found, content in lies.items():
        path.write_bytes(content)
        assert found in refusal(path)


def test_files_of_other_kinds_are_named(path):
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 440473133\n")
    assert "git lfs pull" in refusal(path)
    path.write_bytes(bytes(257) + b"ustar" + bytes(300))
    assert "a tar file" in refusal(path)
    for content in (b"", b"PK", b"<!doctype html>", b"\x80\x02.", b"\x80"):
        path.write_bytes(content)
        refusal(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin: no such file"):
        TorchBin(path)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_file_cut_anywhere_is_refused(path, legacy):
    content = make.save(path, {key: ARRAYS[key] for key in ("pooler.bias", "half")}, legacy).read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            TorchBin(path)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_damage_anywhere_is_refused_or_seen_or_without_effect(path, legacy):
    """In a zip the sums tell damaged tensors; the old form has none, and a changed element is an element."""
    content = make.save(path, ARRAYS, legacy).read_bytes()
    rng = random.Random(5)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice([0, 1, 1, 1, 4])] = rng.randbytes(rng.choice([0, 1, 1, 1, 4]))
        path.write_bytes(damaged)
        try:
            with TorchBin(path) as tensors:
                arrays = dict(tensors)
                sound = tensors.verify()
        except UserError:
            continue
        assert sum(array.nbytes for array in arrays.values()) <= len(arrays) << 20
        if sound:
            assert {key: array.tolist() for key, array in arrays.items()} == {k: a.tolist() for k, a in ARRAYS.items()}


def test_the_sums_in_a_zip_tell_a_flipped_bit(path):
    with TorchBin(make.save(path, ARRAYS)) as tensors:
        assert tensors.verify() is True
    rewritten(path, lambda content: content.replace(ARRAYS["half"].tobytes(), b"\x80\x3f\x20\xc1"))
    with TorchBin(path) as tensors:
        assert tensors.verify() is False
    with TorchBin(make.save(path, ARRAYS, legacy=True)) as tensors:
        assert tensors.verify() is None


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_memory_is_one_tensor_and_no_more(path, legacy):
    size = 1 << 21
    make.save(path, {name: np.full(size, float(index), np.float32) for index, name in enumerate("abcd")}, legacy)
    tracemalloc.start()
    with TorchBin(path) as tensors:
        for index, name in enumerate("abcd"):
            assert tensors[name][-1] == index
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ahead = 32 << 20 if legacy else 0  # where the pickles end is not known before they are read
    assert 4 * size <= peak < max(4 * size, ahead) + (1 << 20)
