"""Reading TensorFlow's checkpoints (tensor bundles, "V2") without TensorFlow.

A checkpoint `NAME` is `NAME.index`, a table from the names of variables to where their bytes lie, and one or more
shards `NAME.data-00000-of-00001` that hold the bytes. The entries are protocol buffers (`tensor_bundle.proto`). Shards
are memory-mapped: what is not asked for is not read.

Checksums cover the whole index and the bytes of every tensor that is read. Bytes of a shard between tensors and after
the last one are neither covered nor read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.models.google.crc32c import masked_crc32c
from unmask.models.google.leveldb_table import Damaged, read_table, read_varint

HEADER_KEY = b""
SLICE_MARK = b"\0"
"""Keys with this prefix are of slices of a partitioned variable; the variable has an entry of its own, too."""

FORMAT_VERSION = 1
LITTLE_ENDIAN = 0

DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
"""TensorFlow's numbers (`types.proto`) of what may be read."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies.

    Attributes:
        dtype: TensorFlow's number.
        shape: of the whole tensor.
        shard: the number of its file.
        offset: of its first byte in that file.
        size: in bytes.
        checksum: masked CRC-32C of its bytes.
        is_partitioned: True where it is kept in slices under other keys, and has no bytes of its own.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_partitioned: bool


@dataclass(frozen=True)
class TensorBundle:
    """An open checkpoint.

    Attributes:
        index: its `.index` file.
        entries: by name, in alphabetical order.
        shards: the bytes of each data file, mapped.
    """

    index: Path
    entries: Mapping[str, Entry]
    shards: tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], ...]

    def read(self, name: str) -> Tensor:
        """A tensor, over the mapped file: valid as long as the file is left alone. Writing to it changes no file.

        Args:
            name: a key of `entries`.

        Raises:
            ModelError: its checksum does not match, or it is of a kind that is not read: partitioned, or of a dtype
                that is not in `DTYPES`.
        """
        entry = self.entries[name]
        dtype = DTYPES.get(entry.dtype)
        if entry.is_partitioned:
            raise ModelError(
                f"{self.index}: {name} is partitioned, kept in slices, which is not read here: save the checkpoint "
                "again from variables without a partitioner"
            )
        if dtype is None:
            raise ModelError(
                f"{self.index}: {name} is of TensorFlow's dtype number {entry.dtype}; expected "
                f"{', '.join(str(known).removeprefix('torch.') for known in DTYPES.values())}"
            )
        if math.prod(entry.shape) * dtype.itemsize != entry.size:
            raise _damaged(self.index, f"{name} has the shape {entry.shape} and {entry.size} bytes")
        data = self.shards[entry.shard][entry.offset : entry.offset + entry.size]
        if masked_crc32c(data) != entry.checksum:
            shard = _shard_path(self.index, entry.shard, len(self.shards))
            raise _damaged(
                shard, f"the bytes of {name}, {entry.size:,} from {entry.offset:,}, do not match their checksum"
            )
        if not entry.size:
            return torch.empty(entry.shape, dtype=dtype)
        flat = torch.from_numpy(data)
        if entry.offset % dtype.itemsize:
            flat = flat.clone()  # TensorFlow does not align what it writes
        return flat.view(dtype).reshape(entry.shape)


def open_bundle(index: Path) -> TensorBundle:
    """Opens a checkpoint: reads and verifies its index, and maps its shards.

    Args:
        index: `NAME.index`.

    Raises:
        ModelError: the index is missing or damaged, of a later format or a big-endian machine, or a shard is missing or
            cut short.
    """
    try:
        file = index.read_bytes()
    except OSError as error:
        raise ModelError(f"{index}: cannot be read ({error.strerror}): expected the index of a checkpoint") from error
    try:
        table = read_table(file)
        if HEADER_KEY not in table:
            raise Damaged("it has no header: it is not the index of a checkpoint")
        num_shards = _read_header(index, table[HEADER_KEY])
        entries = {
            key.decode("utf-8"): _read_entry(value)
            for key, value in table.items()
            if key != HEADER_KEY and not key.startswith(SLICE_MARK)
        }
    except (Damaged, UnicodeDecodeError) as error:
        raise _damaged(index, str(error)) from error
    for name, entry in entries.items():
        if entry.shard >= num_shards:
            raise _damaged(index, f"{name} lies in shard {entry.shard}, and there are {num_shards}")
    shards = tuple(_map_shard(_shard_path(index, number, num_shards)) for number in range(num_shards))
    for name, entry in entries.items():
        if not entry.is_partitioned and entry.offset + entry.size > len(shards[entry.shard]):
            raise _damaged(
                _shard_path(index, entry.shard, num_shards),
                f"it has {len(shards[entry.shard]):,} bytes, and {name} ends at byte {entry.offset + entry.size:,}",
            )
    return TensorBundle(index, entries, shards)


def _shard_path(index: Path, number: int, num_shards: int) -> Path:
    return index.with_name(f"{index.name.removesuffix('.index')}.data-{number:05d}-of-{num_shards:05d}")


def _map_shard(path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
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


def _read_header(index: Path, message: bytes) -> int:
    """The number of shards, from a BundleHeaderProto."""
    header = _read_message(message)
    if _number(header, 2) != LITTLE_ENDIAN:
        raise ModelError(f"{index}: written on a big-endian machine, which is not read here: save it again on another")
    oldest_reader = _number(_read_message(_message(header, 3)), 2)
    if oldest_reader > FORMAT_VERSION:
        raise ModelError(
            f"{index}: for readers of version {oldest_reader} or later of the format; expected {FORMAT_VERSION}: save "
            "the checkpoint again with an earlier TensorFlow"
        )
    num_shards = _number(header, 1)
    if not 0 < num_shards < 100_000:
        raise Damaged(f"it tells of {num_shards} shards")
    return num_shards


def _read_entry(message: bytes) -> Entry:
    """A BundleEntryProto."""
    fields = _read_message(message)
    dimensions = _read_message(_message(fields, 2)).get(2, [])
    return Entry(
        dtype=_number(fields, 1),
        shape=tuple(_number(_read_message(_as_bytes(dimension)), 1) for dimension in dimensions),
        shard=_number(fields, 3),
        offset=_number(fields, 4),
        size=_number(fields, 5),
        checksum=_number(fields, 6),
        is_partitioned=7 in fields,
    )


Fields = dict[int, list[int | bytes]]
"""The values of a protocol buffer by the numbers of their fields."""


def _read_message(message: bytes) -> Fields:
    fields: Fields = {}
    for number, value in _read_fields(message):
        fields.setdefault(number, []).append(value)
    return fields


def _read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(message):
        key, position = read_varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = read_varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = read_varint(message, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise Damaged(f"an entry has a field of the unknown kind {wire_type}")
        data = message[position : position + size]
        position += size
        if len(data) < size:
            raise Damaged("an entry is cut short")
        yield number, data if wire_type == 2 else int.from_bytes(data, "little")


def _number(fields: Fields, number: int) -> int:
    """A field's value; 0 where it is left out, as the format has it."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise Damaged(f"field {number} of an entry is not a number")
    return value


def _message(fields: Fields, number: int) -> bytes:
    return _as_bytes(fields.get(number, [b""])[-1])


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Damaged("an entry has a number where a message should be")
    return value
