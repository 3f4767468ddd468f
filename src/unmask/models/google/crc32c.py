"""CRC-32C (Castagnoli), with which TensorFlow guards its checkpoints, in numpy: 1 GB/s, where a loop makes 5 MB/s.

A CRC is linear over GF(2): the register after a message is the exclusive or of what each of its words leaves there,
advanced by as many zero bytes as follow the word. So the words are laid out in rows, all columns are advanced at a
time, and the last row is folded in halves. Polynomial and test vectors: RFC 3720, section 12.1 and appendix B.4.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78
"""Reflected: the lowest bit is the highest power."""

MASK_DELTA = 0xA282EAD8

ROW_WORDS = 4096
"""Words that are advanced at a time: a row and its tables stay in the processor's cache. A power of two."""

_16_BITS = np.uint32(16)
_LOWER_BITS = np.uint32(0xFFFF)


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """The checksum of some bytes; an array is one-dimensional, and is read in place."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    first_bytes = len(array) % (4 * ROW_WORDS)
    first = np.zeros(4 * ROW_WORDS, np.uint8)  # zeros before a message change nothing
    first[4 * ROW_WORDS - first_bytes :] = array[:first_bytes]
    register = first.view("<u4").astype(np.uint32)
    low, high = _row_tables()
    for row in array[first_bytes:].view("<u4").reshape(-1, ROW_WORDS):
        register = low[register & _LOWER_BITS] ^ high[register >> _16_BITS] ^ row
    while len(register) > 1:
        earlier, later = np.split(register, 2)
        register = later ^ _apply(_zero_bytes(4 * len(later)), earlier) if earlier.any() else later
    start = np.array([0xFFFFFFFF], np.uint32)  # the standard begins with all bits set, and inverts the result
    checksum = _apply(_zero_bytes(4), register) ^ _apply(_zero_bytes(len(array)), start) ^ start
    return int(checksum[0])


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """The checksum as LevelDB and TensorFlow store it among its data: rotated by 15 bits, plus a constant."""
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + MASK_DELTA) & 0xFFFFFFFF


def _apply(operator: Words, registers: Words) -> Words:
    """Applies a linear map, given by what it makes of each single bit, to many registers."""
    result = np.zeros_like(registers)
    for bit in range(32):
        result ^= operator[bit] * (registers >> np.uint32(bit) & np.uint32(1))
    return result


@cache
def _zero_bytes(count: int) -> Words:
    """What `count` zero bytes make of each bit of a register: the map of one byte, by repeated squaring."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if count == 0:
        return bits
    if count % 2 == 0:
        half = _zero_bytes(count // 2)
        return _apply(half, half)
    one = bits
    for _ in range(8):
        one = one >> np.uint32(1) ^ (one & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return _apply(one, _zero_bytes(count - 1))


@cache
def _row_tables() -> tuple[Words, Words]:
    """What a row of zero bytes makes of a register's lower and of its upper 16 bits, in a table each."""
    operator = _zero_bytes(4 * ROW_WORDS)
    halves = np.arange(2**16, dtype=np.uint32)
    return _apply(operator, halves), _apply(operator, halves << _16_BITS)
