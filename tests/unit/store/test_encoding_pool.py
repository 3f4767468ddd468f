"""Chunks go to worker processes in turn and come back in order, as soon as they are encoded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from support.trained import trained
from unmask.store import encoding_pool
from unmask.store.encoding import Chunk, ChunkEncoder, EncodingSettings
from unmask.store.encoding_pool import encoder_pool


class _Worker:
    """Gives back a chunk as soon as it is submitted."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, _: object, chunk: Chunk) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(chunk.shard)
        return future

    def close(self) -> None:
        pass


def test_what_is_encoded_is_given_back_before_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_pool, "WorkerProcess", _Worker)
    num_read = 0

    def chunks() -> Iterator[Chunk]:
        nonlocal num_read
        for number in range(5):
            num_read += 1
            yield Chunk(number)

    encoder = ChunkEncoder(trained(["a text"] * 3))
    with encoder_pool(encoder, EncodingSettings(Path("unused")), workers=2) as encode:
        assert [(number, num_read) for number in encode(chunks())] == [(number, number + 1) for number in range(5)]
