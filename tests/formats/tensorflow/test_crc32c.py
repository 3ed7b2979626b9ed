"""CRC-32C: the published check values, the definition bit by bit, and somebody else's implementation."""

import numpy as np
import pytest

from bert_jax.formats.tensorflow.crc32c import crc32c, mask, unmask
from tests.formats.tensorflow.tensorboard import part

tensorboard_crc32c = part("crc32c")._crc32c


def bit_by_bit(data: bytes) -> int:
    """The definition: division by the reflected polynomial 0x1EDC6F41, register preset to and result inverted by ones."""
    register = 0xFFFFFFFF
    for octet in data:
        register ^= octet
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


# RFC 3720, B.4, and the check value of the CRC catalogues.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_check_values(data, expected):
    assert crc32c(data) == bit_by_bit(data) == expected


def test_equals_the_definition_and_tensorboards_at_every_length():
    data = np.random.default_rng(0).integers(0, 256, 70_001, dtype=np.uint8).tobytes()
    for size in [*range(200), 1_000, 4_095, 4_096, 4_097, 16_383]:
        assert crc32c(data[:size]) == bit_by_bit(data[:size]), size
    for size in (65_536, 65_540, 70_001):
        assert crc32c(data[:size]) == tensorboard_crc32c(data[:size]), size


def test_goes_on_from_what_came_before():
    data = np.random.default_rng(1).integers(0, 256, 300_007, dtype=np.uint8)
    whole = crc32c(data)
    for cut in (0, 1, 4, 77, 65_536, 299_999, 300_007):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole, cut


def test_every_bit_counts():
    data = np.random.default_rng(2).integers(0, 256, 200_000, dtype=np.uint8)
    whole = crc32c(data)
    for position in (0, 1, 65_535, 65_536, 131_071, 199_999):
        data[position] ^= 1 << position % 8
        assert crc32c(data) != whole, position
        data[position] ^= 1 << position % 8


def test_reads_arrays_of_any_dtype_as_their_bytes():
    array = np.arange(1_000, dtype=np.float64).reshape(10, 100)
    assert crc32c(array) == crc32c(array.tobytes()) == crc32c(memoryview(array.tobytes()))


def test_mask_and_back():
    # leveldb's util/crc32c_test.cc: a masked sum is another one, and masking twice is not the identity.
    crc = crc32c(b"foo")
    assert len({crc, mask(crc), mask(mask(crc))}) == 3
    assert unmask(unmask(mask(mask(crc)))) == crc
    assert mask(0) == 0xA282EAD8
