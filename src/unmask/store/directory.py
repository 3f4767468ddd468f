"""The directory of a store in the making: a failure leaves finished shards or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unmask.errors import AnotherProcess, InputError, Interrupted, OutputError
from unmask.io.paths import MANIFEST
from unmask.io.writing import alone_in, as_output_error, remove_replaced
from unmask.store.shard_writer import remove_records, remove_unfinished


def tidy_complete(out: Path) -> None:
    """Removes what a process left that was killed once its store was complete, unless another one works there."""
    with suppress(AnotherProcess, OSError), alone_in(out):
        remove_records(out)
        remove_replaced(out)


def _is_complete(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


@contextmanager
def unfinished_store(out: Path) -> Iterator[Path]:
    """Yields the store's directory, which holds no complete store; if anything goes wrong, leaves only finished shards,
    and says so."""
    existed = out.is_dir()
    with as_output_error(out):
        out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        try:
            with as_output_error(out):
                remove_unfinished(out)  # of an attempt that was killed
            yield out
        except BaseException as error:
            if _is_complete(out):  # it was complete before something went wrong
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
    remove_replaced(out)  # perhaps of that attempt
