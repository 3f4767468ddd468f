"""CRC-32C against the standard's vectors and a loop over bits."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.models.google.crc32c import POLYNOMIAL, ROW_WORDS, crc32c, masked_crc32c

ROW_BYTES = 4 * ROW_WORDS


def by_bits(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (POLYNOMIAL if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_the_vectors_of_rfc_3720(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


@given(st.binary(max_size=100))
def test_equals_a_loop_over_bits(data: bytes) -> None:
    assert crc32c(data) == by_bits(data)


@pytest.mark.parametrize("size", [ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 2 * ROW_BYTES, 2 * ROW_BYTES + 77])
def test_equals_a_loop_over_bits_around_whole_rows(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == by_bits(data)


def test_arrays_are_read_where_they_lie_aligned_or_not() -> None:
    array = np.frombuffer(random.Random(0).randbytes(3 * ROW_BYTES + 5), np.uint8)
    for start in range(4):
        assert crc32c(array[start:]) == crc32c(array[start:].tobytes())


def test_masked_as_leveldb_has_it() -> None:
    checksum = crc32c(b"foo")
    masked = masked_crc32c(b"foo")
    turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert masked != checksum
    assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == checksum
