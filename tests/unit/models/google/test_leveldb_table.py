"""Tables of LevelDB: what a writer by the format's description makes is read, and nothing that was changed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.models.google.leveldb_table import Damaged, read_table, read_varint

TableWriter = Callable[..., bytes]

ITEMS = {f"layer_{number // 7}/part_{number}".encode(): bytes([number]) * (number % 5) for number in range(60)}


def snappy(block: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, whose Snappy is the reference")
    packed: bytes = pyarrow.compress(block, codec="snappy", asbytes=True)
    return packed


@given(
    st.dictionaries(st.binary(max_size=12), st.binary(max_size=200), max_size=40),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_whatever_is_written_is_read(
    write_table: TableWriter, items: dict[bytes, bytes], entries_per_block: int, restart_every: int
) -> None:
    file = write_table(items, entries_per_block=entries_per_block, restart_every=restart_every)
    assert list(read_table(file).items()) == sorted(items.items())


@pytest.mark.parametrize("entries_per_block", [1, 7, 60, 1000])
def test_compressed_blocks(write_table: TableWriter, entries_per_block: int) -> None:
    assert read_table(write_table(ITEMS, entries_per_block, compression=1, pack=snappy)) == ITEMS


@pytest.mark.parametrize(
    "value",
    [
        b"ab" * 5_000,  # copies that run into what they write
        random.Random(0).randbytes(70_000),  # literals with lengths of two and three bytes
        b"".join(random.Random(1).choice((b"mirba ", b"tolk ", b"sanu ")) for _ in range(20_000)),
        bytes(300_000),
    ],
)
def test_compressed_blocks_of_every_kind(write_table: TableWriter, value: bytes) -> None:
    items = {b"key": value, b"other": value[::-1]}
    assert read_table(write_table(items, compression=1, pack=snappy)) == items


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"\x05\x10abc", "cut short"),  # a literal of 5, and 3 bytes
        (b"\x05\xf0", "cut short"),  # the length of the literal is missing
        (b"\x05\x05\x00", "from before its beginning"),  # a copy with offset 0
        (b"\x06\x04ab\x05\x03", "from before its beginning"),  # a copy from 3 bytes back, after 2
        (b"\x04\x04ab", "has 2 bytes, where it should have 4"),
        (b"\x80", "a number is cut short"),
    ],
)
def test_compressed_blocks_that_are_none(write_table: TableWriter, packed: bytes, message: str) -> None:
    file = write_table({b"a": b"b"}, compression=1, pack=lambda block: packed)
    with pytest.raises(Damaged, match=message):
        read_table(file)


def test_an_unknown_compression_is_refused(write_table: TableWriter) -> None:
    with pytest.raises(Damaged, match=r"compressed in an unknown way \(2\)"):
        read_table(write_table(ITEMS, compression=2))


@pytest.mark.parametrize("compressed", [False, True])
def test_no_byte_can_be_changed(write_table: TableWriter, compressed: bool) -> None:
    """Every bit of every byte, checksums, handles, padding and all."""
    options = {"compression": 1, "pack": snappy} if compressed else {}
    file = write_table({key: ITEMS[key] for key in list(ITEMS)[:6]}, 3, 2, **options)
    for place in range(len(file)):
        for bit in range(8):
            changed = bytearray(file)
            changed[place] ^= 1 << bit
            with pytest.raises(Damaged):
                read_table(bytes(changed))


def test_cut_short_or_grown_anywhere(write_table: TableWriter) -> None:
    file = write_table(ITEMS, 10)
    for size in range(len(file)):
        with pytest.raises(Damaged):
            read_table(file[:size])
    for extra in (b"\0", b"\0" * 48, file):
        with pytest.raises(Damaged):
            read_table(extra + file)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00\x00",
        (2).to_bytes(4, "little"),  # more restarts than bytes
        b"\x00\x05\x00ab" + bytes(4) + (1).to_bytes(4, "little"),  # a key of 5 bytes, and 2
        b"\x01\x01\x00a" + bytes(4) + (1).to_bytes(4, "little"),  # shares a byte with nothing
        b"\x80" + bytes(4) + (1).to_bytes(4, "little"),
    ],
)
def test_blocks_that_are_none_though_the_checksum_fits(write_table: TableWriter, block: bytes) -> None:
    with pytest.raises(Damaged):
        read_table(write_table({b"a": b"b"}, pack=lambda _: block))


def test_numbers() -> None:
    assert read_varint(b"\xac\x02rest", 0) == (300, 2)
    assert read_varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)
    assert read_varint(b"\x00", 0) == (0, 1)
    for data in (b"", b"\x80\x80", b"\x80" * 11, b"\x85\x00"):
        with pytest.raises(Damaged):
            read_varint(data, 0)
