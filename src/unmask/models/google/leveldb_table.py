"""Reading an immutable table of LevelDB, the form in which TensorFlow keeps the index of a checkpoint.

A table is sorted keys with their values, cut into blocks. Each block has a checksum; within one a key is written
without what it has in common with the key before it. LevelDB's `doc/table_format.md` describes it. Stricter than
LevelDB: blocks must lie one after another from the file's beginning to its end, the footer's padding must be zero, and
numbers must be as short as they can be, so that there is no byte whose change goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator

from unmask.models.google.crc32c import masked_crc32c

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
TRAILER_BYTES = 5
"""After each block: one byte of compression, four of checksum."""

UNCOMPRESSED = 0
SNAPPY = 1


class Damaged(Exception):  # noqa: N818  what is wrong, in the words of the messages
    """Bytes are not what their format says."""


def read_table(file: bytes) -> dict[bytes, bytes]:
    """All keys and values, in the order of the keys.

    Args:
        file: the bytes of a whole table.

    Raises:
        Damaged: they are not a table, or were cut short or changed.
    """
    if len(file) < FOOTER_BYTES or not file.endswith(MAGIC):
        raise Damaged("its end is not that of an index: it is cut short, or another kind of file")
    footer = file[-FOOTER_BYTES : -len(MAGIC)]
    metaindex, position = _read_handle(footer, 0)
    index, position = _read_handle(footer, position)
    if any(footer[position:]):
        raise Damaged("the footer is not filled up with zeros")
    end = 0
    items: dict[bytes, bytes] = {}
    for _, value in _read_entries(_read_block(file, *index)):
        handle, position = _read_handle(value, 0)
        end = _next_to(end, *handle)
        items.update(_read_entries(_read_block(file, *handle)))
    _read_block(file, *metaindex)  # not used here, but its checksum is verified
    end = _next_to(_next_to(end, *metaindex), *index)
    if end != len(file) - FOOTER_BYTES:
        raise Damaged("its blocks do not fill it")
    return items


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of 7 bits a byte, the lowest first, and the position after it.

    Raises:
        Damaged: the data end before the number does, it has more than 64 bits, or zeros above its highest bit.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise Damaged("a number is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte == 0 and shift > 0:
            raise Damaged("a number is longer than it need be")
        if byte < 0x80:
            return value & (2**64 - 1), position
    raise Damaged("a number has more than 64 bits")


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and the position after them."""
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _next_to(end: int, offset: int, size: int) -> int:
    """The end of a block that begins where another ended."""
    if offset != end:
        raise Damaged(f"a block begins at byte {offset}, and the one before it ends at byte {end}")
    return offset + size + TRAILER_BYTES


def _read_block(file: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + TRAILER_BYTES > len(file) - FOOTER_BYTES:
        raise Damaged(f"a block at byte {offset} goes beyond its end")
    if masked_crc32c(file[offset : end + 1]) != int.from_bytes(file[end + 1 : end + TRAILER_BYTES], "little"):
        raise Damaged(f"the block at byte {offset} does not match its checksum")
    compression = file[end]
    if compression == UNCOMPRESSED:
        return file[offset:end]
    if compression == SNAPPY:
        return _unpack_snappy(file[offset:end])
    raise Damaged(f"the block at byte {offset} is compressed in an unknown way ({compression})")


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, which ends with the places where whole keys stand and their number (4 bytes each)."""
    num_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise Damaged("a block is shorter than its list of restarts")
    position = 0
    key = b""
    while position < end:
        shared, position = read_varint(block, position)
        key_bytes, position = read_varint(block, position)
        value_bytes, position = read_varint(block, position)
        value_at = position + key_bytes
        if shared > len(key) or value_at + value_bytes > end:
            raise Damaged("an entry goes beyond its block")
        key = key[:shared] + block[position:value_at]
        position = value_at + value_bytes
        yield key, block[value_at:position]


def _unpack_snappy(packed: bytes) -> bytes:
    """Snappy's raw format, by its `format_description.txt`: literals, and copies of what was unpacked before.

    TensorFlow writes its indexes uncompressed; only version 1.1 compressed them. Those are too few and too small to be
    worth a library.
    """
    size, position = read_varint(packed, 0)
    unpacked = bytearray()
    while position < len(packed):
        tag = packed[position]
        position += 1
        kind, upper = tag & 3, tag >> 2
        if kind == 0:
            extra_bytes = max(0, upper - 59)  # 60 to 63: the length stands in the next 1 to 4 bytes
            length = 1 + (_take(packed, position, extra_bytes) if extra_bytes else upper)
            position += extra_bytes
            literal = packed[position : position + length]
            if len(literal) < length:
                raise Damaged("a compressed block is cut short")
            unpacked += literal
            position += length
            continue
        offset_bytes = (1, 2, 4)[kind - 1]
        offset = _take(packed, position, offset_bytes)
        position += offset_bytes
        length = 1 + upper
        if kind == 1:
            offset, length = offset | (upper >> 3) << 8, 4 + (upper & 7)
        if not 0 < offset <= len(unpacked):
            raise Damaged("a compressed block copies from before its beginning")
        pattern = unpacked[-offset:][:length]  # a copy may run into what it writes: then the pattern goes on
        unpacked += (pattern * (length // len(pattern) + 1))[:length]
    if len(unpacked) != size:
        raise Damaged(f"a compressed block has {len(unpacked)} bytes, where it should have {size}")
    return bytes(unpacked)


def _take(data: bytes, position: int, count: int) -> int:
    """An unsigned number of `count` bytes, the lowest first."""
    if position + count > len(data):
        raise Damaged("a compressed block is cut short")
    return int.from_bytes(data[position : position + count], "little")
