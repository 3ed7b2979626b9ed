"""CRC-32C (Castagnoli) of arrays and bytes, vectorised: the checksum of TensorFlow's checkpoints and of TFRecord files.

A checksum is a linear map over GF(2): running the register over k zero bytes is a 32x32 bit matrix. So the words of a
block are kept as a row of registers side by side; the whole row moves on by one block with two table look-ups a
word, and in the end the row is folded in halves onto one register (the idea of `crc32_combine` in zlib).
Polynomial, reflection and check value: RFC 3720, B.4 ("123456789" -> 0xE3069283); the mask: leveldb's util/crc32c.h.
"""

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_MASK_DELTA = 0xA282EAD8
_WORD = 4
_LOG2_MOST_LANES = 14  # 64 KiB of registers: they stay in the cache


def crc32c(data: bytes | bytearray | memoryview | np.ndarray, value: int = 0) -> int:
    """CRC-32C of `data`, going on from `value` (the CRC of what came before; 0 at the start).

    Args:
        data: bytes or any C-contiguous array.
        value: of an earlier call, so that `crc32c(b, crc32c(a)) == crc32c(a + b)`.
    """
    octets = np.frombuffer(data, np.uint8)
    register = value ^ 0xFFFFFFFF
    odd = octets.size % _WORD
    for octet in octets[:odd].tolist():
        register = (register >> 8) ^ _BYTE_TABLE_LIST[(register ^ octet) & 0xFF]
    words = octets[odd:].view("<u4") if octets.size >= _WORD else np.empty(0, "<u4")
    if words.size:
        register = _over_words(words, register)
    return register ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    """As a CRC is stored beside data that may itself hold CRCs: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The inverse of `mask`."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _over_words(words: np.ndarray, register: int) -> int:
    log2_lanes = min(_LOG2_MOST_LANES, max(0, words.size.bit_length() - 5))
    count = 1 << log2_lanes
    first = words.size % count or count
    lanes = np.zeros(count, np.uint32)  # zeros before the data leave a register that holds zero as it is
    lanes[count - first :] = words[:first]
    lanes[count - first] ^= np.uint32(register)
    for block in words[first:].reshape(-1, count):
        lanes = _advance(lanes, log2_lanes)
        lanes ^= block
    for log2_half in reversed(range(log2_lanes)):
        half = 1 << log2_half
        lanes = _advance(lanes[:half], log2_half) ^ lanes[half:]
    return int(_advance(lanes, 0)[0])


def _advance(registers: np.ndarray, log2_words: int) -> np.ndarray:
    """Each register after 2**log2_words words of zeros."""
    low, high = _tables(log2_words)
    return low[registers & 0xFFFF] ^ high[registers >> 16]


@cache
def _tables(log2_words: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrix as two tables, for the lower and the upper 16 bits of a register: [65536] uint32 each."""
    columns = _columns(log2_words)
    low, high = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    for bit in range(16):
        low = np.concatenate([low, low ^ columns[bit]])
        high = np.concatenate([high, high ^ columns[16 + bit]])
    return low, high


@cache
def _columns(log2_words: int) -> np.ndarray:
    """The matrix of 2**log2_words words of zeros: what becomes of each of the 32 bits, [32] uint32."""
    if log2_words:
        return _advance(_columns(log2_words - 1), log2_words - 1)
    registers = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(_WORD):
        registers = (registers >> np.uint32(8)) ^ _BYTE_TABLE[registers & 0xFF]
    return registers


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_BYTE_TABLE = _byte_table()
_BYTE_TABLE_LIST: list[int] = _BYTE_TABLE.tolist()
