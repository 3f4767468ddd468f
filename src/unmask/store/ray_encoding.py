"""Encodes and writes shards on the machines of a Ray cluster, which share a folder with this one.

This process reads, cleans and cuts the text, as it does without a cluster, so the bytes are the same. A shard's text
goes to a machine as Ray objects that this process owns, and the machine writes the shard in its place. If a machine is
lost, Ray runs its unfinished shards again elsewhere; the two attempts never write to the same file.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from unmask.errors import OutputError, SettingsError, UserError
from unmask.io.writing import UNFINISHED
from unmask.store.encoding import Chunk, Encoder, EncodingSettings, digested
from unmask.store.job import Job, finished_shard
from unmask.store.shard_writer import ShardWriter, move_shard

_MOST_RETRIES = 5
"""How often a shard is restarted after its machine was lost."""
_POLL_S = 0.5
_CONNECT_TIMEOUT_S = 10
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
        OutputError: a machine cannot write to the shared folder, or was lost too often.
    """
    try:
        import ray
    except ImportError:
        raise SettingsError("--ray needs the library Ray: pip install 'unmask[ray]'") from None
    try:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"--ray {address}: no Ray cluster answers there ({error}): start one, or fix the address"
        ) from error
    write_shard = ray.remote(max_retries=_MOST_RETRIES)(_write_shard)
    most = max(2, int(ray.cluster_resources().get("CPU", 1)) + 1)  # type: ignore[no-untyped-call]
    waiting: deque[Any] = deque()

    def finished(future: Any) -> dict[str, Any]:
        while isinstance(future, ray.ObjectRef):
            advance(0)
            ready, _ = ray.wait([future], timeout=_POLL_S)
            if ready:
                future = ray.get(future)
                advance(future["tokens"])
        return future  # type: ignore[no-any-return]

    encoder = replace(job.encoder, tokenizer=job.encoder.tokenizer.resolve())  # workers have folders of their own
    try:
        for shard, of_shard in groupby(chunks, lambda chunk: chunk.shard):
            digest = hashlib.sha256()
            record = finished_shard(job, shard, of_shard, digest)
            if record is not None:
                waiting.append(record)
            else:
                text = [ray.put(chunk) for chunk in digested(of_shard, digest)]
                waiting.append(
                    write_shard.remote(encoder, job.out.resolve(), shard, job.dtype.str, job.made_from(digest), text)
                )
                del text
            if len(waiting) >= most:
                yield finished(waiting.popleft())
        while waiting:
            yield finished(waiting.popleft())
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (
        *(ray.exceptions.RaySystemError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError),
        *(ray.exceptions.OutOfMemoryError, ray.exceptions.ObjectLostError),
    ) as error:
        raise OutputError(f"the machines that encode were lost {_MOST_RETRIES + 1} times ({error})") from error
    finally:
        ray.shutdown()  # what still runs is killed soon after; ray.cancel may end this process too (docs/notebook.md)
        for folder in job.out.glob(f"{_ATTEMPT}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _check_reachable(address: str) -> None:
    """Raises OSError at once if nothing listens, where Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


_encoders: dict[EncodingSettings, Encoder] = {}
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
        _encoders[settings] = Encoder.load(settings)
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
