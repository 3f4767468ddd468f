"""Reading TensorFlow's checkpoints (tensor bundles, "V2") without TensorFlow.

A checkpoint `NAME` is `NAME.index`, which says where the bytes of each variable lie, and one or more shards
`NAME.data-00000-of-00001` that hold them. The index is a table in LevelDB's format (its `doc/table_format.md`),
uncompressed; its values are protocol buffers (`tensor_bundle.proto`). Shards are memory-mapped: only what is needed
is read.

Every block of the index that is used, and every tensor that is read, must match its checksum (CRC-32C).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import ModelError

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
"""The end of every table."""
FOOTER_BYTES = 48
TRAILER_BYTES = 5
"""After each block: one byte of compression, four of checksum."""

HEADER_KEY = b""
SLICE_MARK = b"\0"
"""Keys with this prefix are of slices of a partitioned variable; the variable has an entry of its own, too."""

DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
"""TensorFlow's numbers (`types.proto`) of what may be read."""

Fields = dict[int, list[int | bytes]]
"""The values of a protocol buffer by the numbers of their fields."""


@dataclass(frozen=True)
class TensorBundle:
    """An open checkpoint.

    Attributes:
        entries: the BundleEntryProto of each variable, in alphabetical order.
        shards: the bytes of each data file, mapped.
    """

    index: Path
    entries: Mapping[str, Fields]
    shards: tuple[NDArray[np.uint8], ...]

    def read(self, name: str) -> Tensor:
        """A tensor, over the mapped file: valid as long as the file is left alone. Writing to it changes no file.
        Raises ModelError if its bytes are missing or do not match their checksum, or it is of a kind that is not read:
        partitioned, or of a dtype that is not in `DTYPES`."""
        fields = self.entries[name]
        number, shard, offset, size, checksum = (_number(fields, key) for key in (1, 3, 4, 5, 6))
        if 7 in fields:
            raise ModelError(
                f"{self.index}: {name} is partitioned, kept in slices, which is not read here: save the checkpoint "
                "again from variables without a partitioner"
            )
        if number not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
            raise ModelError(f"{self.index}: {name} is of TensorFlow's dtype number {number}; expected {known}")
        dtype = DTYPES[number]
        message = fields.get(2, [b""])[-1]
        sizes = _fields(message).get(2, []) if isinstance(message, bytes) else []
        shape = tuple(_number(_fields(each), 1) for each in sizes if isinstance(each, bytes))
        if shard >= len(self.shards) or math.prod(shape) * dtype.itemsize != size:
            raise _damaged(self.index, f"{name} has the shape {shape} and {size} bytes in shard {shard}")
        data, path = self.shards[shard][offset : offset + size], _shard_path(self.index, shard, len(self.shards))
        if len(data) < size:
            raise _damaged(path, f"it has {len(self.shards[shard]):,} bytes, and {name} ends at {offset + size:,}")
        if masked_crc32c(data.tobytes()) != checksum:
            raise _damaged(path, f"the bytes of {name}, {size:,} from {offset:,}, do not match their checksum")
        if not size:
            return torch.empty(shape, dtype=dtype)
        flat = torch.from_numpy(data)
        if offset % dtype.itemsize:
            flat = flat.clone()  # TensorFlow does not align what it writes
        return flat.view(dtype).reshape(shape)


def open_bundle(index: Path) -> TensorBundle:
    """Opens a checkpoint: reads and verifies its index, and maps its shards. Raises ModelError if the index or a shard
    is missing, the index is damaged or was written on a big-endian machine, or google-crc32c is not installed."""
    try:
        table = dict(_read_table(index.read_bytes()))
        if HEADER_KEY not in table:
            raise ValueError("it has no header: it is not the index of a checkpoint")
        header = _fields(table[HEADER_KEY])
        entries = {
            key.decode(): _fields(value)
            for key, value in table.items()
            if key != HEADER_KEY and not key.startswith(SLICE_MARK)
        }
        num_shards, is_big_endian = _number(header, 1), _number(header, 2)
    except OSError as error:
        raise ModelError(f"{index}: cannot be read ({error.strerror}): expected the index of a checkpoint") from error
    except (ValueError, KeyError, IndexError) as error:
        raise _damaged(index, str(error)) from error
    if is_big_endian:
        raise ModelError(f"{index}: written on a big-endian machine, which is not read here: save it again on another")
    shards = tuple(_map_shard(_shard_path(index, number, num_shards)) for number in range(num_shards))
    return TensorBundle(index, entries, shards)


def masked_crc32c(data: bytes) -> int:
    """The checksum as LevelDB and TensorFlow store it among its data: rotated by 15 bits, plus a constant. Raises
    ModelError if google-crc32c is not installed."""
    try:
        import google_crc32c
    except ImportError as error:
        raise ModelError(
            "reading a TensorFlow checkpoint needs google-crc32c: pip install 'unmask[tensorflow]'"
        ) from error
    checksum = int(google_crc32c.value(data))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _shard_path(index: Path, number: int, num_shards: int) -> Path:
    return index.with_name(f"{index.name.removesuffix('.index')}.data-{number:05d}-of-{num_shards:05d}")


def _map_shard(path: Path) -> NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:  # nothing that could be mapped
            return np.empty(0, np.uint8)
        return np.memmap(path, np.uint8, mode="c")
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}): the index beside it needs this file: get the "
            "checkpoint again, with all its files"
        ) from error


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is cut short or damaged ({what}): get it again from where it came")


def _read_table(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table of LevelDB. Its footer says where the index block is, which lists the others."""
    if len(file) < FOOTER_BYTES or not file.endswith(MAGIC):
        raise ValueError("its end is not that of an index")
    _, position = _read_handle(file, len(file) - FOOTER_BYTES)  # of a block that is not needed
    index, _ = _read_handle(file, position)
    for _, handle in _read_entries(_read_block(file, *index)):
        yield from _read_entries(_read_block(file, *_read_handle(handle, 0)[0]))


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and the position after them."""
    offset, position = _read_varint(data, position)
    size, position = _read_varint(data, position)
    return (offset, size), position


def _read_block(file: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if masked_crc32c(file[offset : end + 1]) != int.from_bytes(file[end + 1 : end + TRAILER_BYTES], "little"):
        raise ValueError(f"the block at byte {offset} does not match its checksum")
    if file[end]:
        raise ValueError("its blocks are compressed, as TensorFlow 1.1 wrote them, which is not read here")
    return file[offset:end]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block. A key is written without what it shares with the key before it; the block ends with
    the places of whole keys and their number (4 bytes each)."""
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    position, key = 0, b""
    while position < end:
        shared, position = _read_varint(block, position)
        key_bytes, position = _read_varint(block, position)
        value_bytes, position = _read_varint(block, position)
        value_at = position + key_bytes
        key = key[:shared] + block[position:value_at]
        position = value_at + value_bytes
        yield key, block[value_at:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of 7 bits a byte, the lowest first, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _fields(message: bytes) -> Fields:
    """The fields of a protocol buffer."""
    fields: Fields = {}
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == 0:
            value, position = _read_varint(message, position)
        else:
            size, position = _read_varint(message, position) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], position)
            value = message[position : position + size]
            value = value if wire_type == 2 else int.from_bytes(value, "little")
            position += size
        fields.setdefault(number, []).append(value)
    return fields


def _number(fields: Fields, number: int) -> int:
    """A field's value; 0 where it is left out, as the format has it."""
    value = fields.get(number, [0])[-1]
    return value if isinstance(value, int) else 0
