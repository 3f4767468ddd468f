"""The directory of a store in the making: an old store is only replaced by a complete one, and a failure leaves
finished shards or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unmask.errors import AnotherProcess, InputError, Interrupted, OutputError
from unmask.io.paths import MANIFEST
from unmask.io.writing import REPLACED, alone_in, as_output_error, remove_replaced
from unmask.store.shard_writer import remove_records, remove_unfinished


@contextmanager
def moved_aside(out: Path) -> Iterator[None]:
    """Moves what is at `out` out of the way, and back unless a complete store takes its place.

    If an earlier attempt was killed before it could move its store back, that store is the one that is set aside.

    Raises:
        AnotherProcess: a store is being made there.
    """
    aside = _aside(out)
    with alone_in(out):
        pass
    with as_output_error(out):
        if _is_complete(out) or not _is_complete(aside):
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(out, aside)
        else:
            shutil.rmtree(out)
    try:
        yield
    finally:
        if not _is_complete(out):
            shutil.rmtree(out, ignore_errors=True)  # in case a second Ctrl-C interrupted the clean-up
            os.replace(aside, out)


def tidy_complete(out: Path) -> None:
    """Removes what a process left that was killed once its store was complete, unless another one works there."""
    with suppress(AnotherProcess, OSError), alone_in(out):
        remove_records(out)
        remove_replaced(out)


def _aside(out: Path) -> Path:
    return out.with_name(f"{REPLACED}{out.name}")


def _is_complete(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


@contextmanager
def unfinished_store(out: Path, keeps_shards: bool) -> Iterator[None]:
    """Makes the directory; if anything goes wrong, leaves only finished shards, and says so.

    Args:
        out: the store's directory, which holds no complete store.
        keeps_shards: False leaves nothing, since the store that was to be replaced is moved back.
    """
    existed = out.is_dir()
    with as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        with alone_in(out):
            with as_output_error(out):
                remove_unfinished(out)  # of an attempt that was killed
            yield
        remove_replaced(out)  # perhaps of that attempt
    except AnotherProcess:
        raise
    except BaseException as error:
        if _is_complete(out):  # it was complete before something went wrong
            raise
        if not keeps_shards:
            shutil.rmtree(out)
            if isinstance(error, Interrupted):
                raise Interrupted(f"{error}; the store there is as it was", error.signal_number) from error
            raise
        num_kept = remove_unfinished(out)
        if not num_kept and not existed:
            out.rmdir()
        kept = f"{num_kept} finished shard(s) are kept: the same command with --resume continues"
        if isinstance(error, Interrupted):
            message = f"{error}; {kept if num_kept else 'no shard was finished, so nothing is kept'}"
            raise Interrupted(message, error.signal_number) from error
        if num_kept and isinstance(error, InputError | OutputError):
            raise type(error)(f"{error}\n{kept}") from error
        raise
