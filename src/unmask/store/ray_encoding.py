"""Encodes and writes shards on the machines of a Ray cluster, which share a folder with this one.

This process reads, cleans and cuts the text, as it does without a cluster, so the bytes are the same. A shard's text
goes to a machine as Ray objects that this process owns, and the machine writes the shard in its place. If a machine is
lost, Ray runs its unfinished shards again elsewhere; the two attempts never write to the same file.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from unmask.errors import OutputError, UserError
from unmask.io.ray_process import RayProcess
from unmask.io.writing import UNFINISHED
from unmask.store.encoding import Chunk, ChunkEncoder, EncodingSettings, digested
from unmask.store.job import Job, finished_shard
from unmask.store.shard_writer import ShardWriter, move_shard

_MOST_RETRIES = 5
"""How often a shard is restarted after its machine was lost."""
_POLL_S = 0.5
_NEED = {"CPU": 1}
"""What a shard takes of a machine."""
_ATTEMPT = f"{UNFINISHED}attempt-"
"""The prefix of the folders in which shards are written; a lost machine leaves its folder behind."""


def write_shards_on_ray(
    address: str, job: Job, chunks: Iterator[Chunk], advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """Writes all shards of a store, several at a time.

    Args:
        address: as for `ray.init`: `auto`, or `HOST:PORT`.
        job: its `out` and tokenizer must be in the shared folder.
        advance: called often, with the number of tokens written since the last call; may raise to stop.

    Yields:
        The record of each shard, in order.

    Raises:
        SettingsError: Ray is not installed, or no cluster answers.
        OutputError: a machine cannot write to the shared folder, or was lost too often; no machine is left for a
            minute; or Ray has ended on this machine.
    """
    encoding = replace(job.encoding, tokenizer=job.encoding.tokenizer.resolve())  # workers have folders of their own
    waiting: deque[int | dict[str, Any]] = deque()

    def finished(shard: int | dict[str, Any]) -> dict[str, Any]:
        while not isinstance(shard, dict):
            advance(0)
            cluster.capacity(_NEED)
            record = cluster.call(_wait, shard)
            if record is not None:
                advance(record["tokens"])
                return record
        return shard

    try:
        with RayProcess(address, "--ray ") as cluster:
            most = max(2, cluster.capacity(_NEED) + 1)
            for shard, of_shard in groupby(chunks, lambda chunk: chunk.shard):
                digest = hashlib.sha256()
                record = finished_shard(job, shard, of_shard, digest)
                if record is not None:
                    waiting.append(record)
                else:
                    for chunk in digested(of_shard, digest):
                        cluster.call(_put, chunk)
                    made_from = job.made_from(digest)
                    cluster.call(_begin, encoding, job.out.resolve(), shard, job.dtype.str, made_from)
                    waiting.append(shard)
                if len(waiting) >= most:
                    yield finished(waiting.popleft())
            while waiting:
                yield finished(waiting.popleft())
    finally:
        for folder in job.out.glob(f"{_ATTEMPT}*"):
            shutil.rmtree(folder, ignore_errors=True)


# In the process that is connected to the cluster

_text: list[Any] = []
"""Ray's references to the chunks of the next shard."""
_under_way: dict[int, Any] = {}
"""Ray's references to the records of the shards that are being written."""


def _put(chunk: Chunk) -> None:
    import ray

    _text.append(ray.put(chunk))


def _begin(encoding: EncodingSettings, out: Path, shard: int, dtype: str, made_from: dict[str, Any]) -> None:
    import ray

    write_shard = ray.remote(max_retries=_MOST_RETRIES)(_write_shard)
    _under_way[shard] = write_shard.remote(encoding, out, shard, dtype, made_from, _text[:])
    _text.clear()


def _wait(shard: int) -> dict[str, Any] | None:
    """The record of a shard; None if it is not finished soon."""
    import ray

    ready, _ = ray.wait([_under_way[shard]], timeout=_POLL_S)
    if not ready:
        return None
    try:
        return ray.get(_under_way.pop(shard))  # type: ignore[no-any-return]
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (
        *(ray.exceptions.RaySystemError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError),
        *(ray.exceptions.OutOfMemoryError, ray.exceptions.ObjectLostError),
    ) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OutputError(f"the machines that encode were lost {_MOST_RETRIES + 1} times ({reason})") from None


# On a machine of the cluster

_encoders: dict[EncodingSettings, ChunkEncoder] = {}
"""Encoders loaded by this process, kept since Ray gives it one shard after another."""


def _write_shard(
    settings: EncodingSettings, out: Path, shard: int, dtype: str, made_from: dict[str, Any], text: list[Any]
) -> dict[str, Any]:
    """Runs on a machine of the cluster: encodes a shard beside the store, then moves it in.

    Args:
        out: the store's directory, as every machine sees it.
        text: Ray's references to the chunks.
    """
    import numpy as np
    import ray

    if settings not in _encoders:
        _encoders.clear()
        _encoders[settings] = ChunkEncoder.load(settings)
    attempt = out / f"{_ATTEMPT}{shard:05d}-{uuid.uuid4().hex}"
    if not out.is_dir():
        raise OutputError(f"{out}: a machine of the cluster does not see this folder: name one that all of them share")
    attempt.mkdir()
    with ShardWriter(attempt, shard, np.dtype(dtype)) as writer:
        for reference in text:
            writer.add(_encoders[settings].encode(ray.get(reference)))
        record = writer.finish(made_from)
    move_shard(attempt, out, shard)
    return record
