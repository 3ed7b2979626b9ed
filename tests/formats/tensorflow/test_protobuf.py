"""The wire format of Protocol Buffers, against Google's own implementation."""

import random

import pytest

from bert_jax.formats.tensorflow.entries import (
    BYTES,
    FIXED32,
    VARINT,
    fixed32_field,
    integer_field,
    message_field,
    read_message,
    read_varint,
    varint,
)
from tests.formats.tensorflow.tensorboard import part

TensorShapeProto = part("proto.tensor_shape_pb2").TensorShapeProto
VersionDef = part("proto.versions_pb2").VersionDef


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31 - 1, 2**63 - 1, -1, -(2**63)])
def test_integers_are_those_of_protobuf(value):
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=value)]).SerializeToString()
    assert message_field(2, integer_field(1, value)) == shape
    (dim,) = read_message(shape, {2: BYTES}).blobs[2]
    assert read_message(dim, {1: VARINT}).signed(1) == value


def test_fields_that_are_not_wanted_are_passed_over_and_the_last_of_one_counts():
    message = VersionDef(producer=7, bad_consumers=[1, 2, 3]).SerializeToString()
    read = read_message(message + message_field(15, b"other") + fixed32_field(9, 5) + integer_field(1, 8), {1: VARINT})
    assert (read.integer(1), read.integer(2, default=-1), read.blobs) == (8, -1, {})


def test_fixed_numbers_and_joined_messages():
    read = read_message(
        fixed32_field(6, 0xA1B2C3D4) + message_field(3, b"ab") + message_field(3, b"c"), {6: FIXED32, 3: BYTES}
    )
    assert (read.integer(6), read.blob(3), read.blob(8)) == (0xA1B2C3D4, b"abc", b"")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x08", "within a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than 64 bits"),
        (b"\x12\x05abc", "field 2 has 5 bytes from byte 2 of a message of 5 bytes"),
        (b"\x0b\x00", "wire type 3, which is not supported"),
        (b"\x0a\x00", "field 1 has wire type 2, expected 0"),
        (b"\x02\x00", "field 0"),
    ],
)
def test_damage_is_one_line(data, said):
    with pytest.raises(ValueError, match=said):
        read_message(data, {1: VARINT})


def test_a_number_of_32_bits_has_32():
    assert read_varint(varint(2**32 - 1), 0, bits=32) == (2**32 - 1, 5)
    with pytest.raises(ValueError, match="more than 32 bits"):
        read_varint(varint(2**32), 0, bits=32)


def test_random_bytes_give_a_message_or_a_valueerror():
    generator = random.Random(0)
    said = set()
    for _ in range(5_000):
        try:
            read_message(generator.randbytes(generator.randint(0, 30)), dict.fromkeys(range(1, 8), VARINT))
        except ValueError as error:
            said.add(str(error))
    assert said
    assert "\n" not in "".join(said)
