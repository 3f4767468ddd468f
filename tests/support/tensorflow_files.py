"""TensorFlow's checkpoints, written by the descriptions of their formats: protocol buffers in tables of LevelDB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from unmask.models.google.tensor_bundle import MAGIC, masked_crc32c


def varint(number: int) -> bytes:
    lower, rest = number & 0x7F, number >> 7
    return bytes([lower | 0x80]) + varint(rest) if rest else bytes([lower])


def block_of(items: list[tuple[bytes, bytes]], restart_every: int) -> bytes:
    block, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % restart_every == 0:
            restarts.append(len(block))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return block + b"".join(place.to_bytes(4, "little") for place in [*restarts, len(restarts)])


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def checksum_field(data: bytes) -> bytes:
    """The checksum in the entry of a variable."""
    return bytes([6 << 3 | 5]) + masked_crc32c(data).to_bytes(4, "little")


def table_of(
    items: Mapping[bytes, bytes], entries_per_block: int = 1000, restart_every: int = 16, compression: int = 0
) -> bytes:
    """The bytes of a table."""
    file = b""

    def append(block: bytes) -> bytes:
        nonlocal file
        content = block + bytes([compression])
        handle = varint(len(file)) + varint(len(content) - 1)
        file += content + masked_crc32c(content).to_bytes(4, "little")
        return handle

    ordered = sorted(items.items())
    index = []
    for start in range(0, len(ordered), entries_per_block):
        part = ordered[start : start + entries_per_block]
        index.append((part[-1][0], append(block_of(part, restart_every))))
    handles = append(block_of([], 1)) + append(block_of(index, 1))
    return file + handles.ljust(40, b"\0") + MAGIC


Variables = dict[str, np.ndarray] | Iterable[str]


def write_checkpoint(
    directory: Path, variables: Variables, config: dict[str, object] | None = None, name: str = "m.ckpt"
) -> Path:
    """Writes a checkpoint; variables without an array get one number."""
    arrays = variables if isinstance(variables, dict) else {name: np.zeros(1) for name in variables}
    data = b""
    items = {b"": field(1, 1)}
    for variable, array in arrays.items():
        raw = array.astype("<f4").tobytes()
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        place = field(4, len(data)) + field(5, len(raw))
        items[variable.encode()] = field(1, 1) + field(2, shape) + place + checksum_field(raw)
        data += raw
    (directory / "bert_config.json").write_text(json.dumps(config or {}), "utf-8")
    (directory / f"{name}.index").write_bytes(table_of(items))
    (directory / f"{name}.data-00000-of-00001").write_bytes(data)
    return directory
