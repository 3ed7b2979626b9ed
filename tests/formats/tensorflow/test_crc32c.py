"""The masked CRC-32C of TensorFlow's files: published values, somebody else's implementation, arrays as their bytes."""

import numpy as np
import pytest

from bert_jax.formats.tensorflow.table import mask, masked_crc32c
from tests.formats.tensorflow.tensorboard import part

tensorboard = part("record_writer")

# RFC 3720, B.4, and the check value of the CRC catalogues.
VECTORS = [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_check_values_and_their_mask(data, crc):
    # leveldb's util/crc32c.h: "rotate right by 15 bits and add a constant"
    assert masked_crc32c(data) == mask(crc) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_equals_tensorboards():
    data = np.random.default_rng(0).integers(0, 256, 70_001, dtype=np.uint8).tobytes()
    for size in [*range(20), 1_000, 4_097, 70_001]:
        assert masked_crc32c(data[:size]) == tensorboard.masked_crc32c(data[:size]), size


def test_an_array_has_the_sum_of_its_bytes():
    array = np.arange(1_000, dtype=np.float64).reshape(10, 100)
    assert masked_crc32c(array) == masked_crc32c(array.tobytes())
    assert masked_crc32c(np.empty((0, 3), np.float32)) == mask(0)
