"""Writing without ever leaving anything half-written: files and directories appear complete or not at all.

A writer works on a neighbour whose name begins with `.unfinished-`, which is renamed when it is complete and flushed
to the disk, and removed when anything goes wrong. It holds that neighbour meanwhile (`alone_in`): another process that
is to write at the same place is refused, and what a killed one has left there is removed. Where the file system has no
locks, the other one takes the place, and the first is refused at its end. Temporary directories are held too; they go
when their process ends, and those of a killed process when the next one starts.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from unmask.errors import AnotherProcess, OutputError, UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished-"
REPLACED = f"{UNFINISHED}.replaced-"
"""Before the name of a directory while another one takes its place."""
_REMOVED = f"{UNFINISHED}.removed-"
"""Before its name once the other one is there."""

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.EBUSY, errno.EFBIG, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE),
)


def own_place(path: Path) -> Path:
    """The place where a neighbour can be put beside a file or a directory: where a link leads, and what `.` is."""
    return path.resolve() if os.path.islink(path) or not path.name else path  # `is_symlink` refuses a long name


@contextmanager
def writing(path: Path, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Opens a neighbour of `path` for binary writing, which replaces `path` when the block ends without error.

    Args:
        path: the file to make.
        overwrite: False keeps what has appeared at `path` in the meantime, and the new file under another name.

    Raises:
        AnotherProcess: another process writes there.
        OutputError: the disk is full, the place cannot be written, or a device or the like is there; or `overwrite` is
            False and something has appeared there.
    """
    path = own_place(path)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    with as_output_error(path):
        refuse_special(path)
        refuse_existing(path, overwrite)
        _remove_left(unfinished)
        with open(unfinished, "xb") as file, _becoming(path, unfinished, overwrite):  # a link could lead anywhere
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()  # Windows gives no new name to an open file


@contextmanager
def writing_directory(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a neighbour directory of `path` to fill; it takes the name of `path` when the block ends without error.

    Args:
        path: the directory to make; missing parents are made too.
        overwrite: True replaces an existing directory, once the new one is complete. False keeps what has appeared at
            `path` in the meantime, and the new directory under another name.

    Raises:
        AnotherProcess: another process writes there.
        OutputError: `path` exists and `overwrite` is False, the disk is full, or the place cannot be written.
    """
    path = own_place(path)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    with as_output_error(path):
        refuse_existing(path, overwrite)
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path} is a file, and a directory is to be made: choose another name")
        _remove_left(unfinished)
        unfinished.mkdir(parents=True)
        with _becoming(path, unfinished, overwrite):
            put_back(path)
            refuse_existing(path, overwrite)
            yield unfinished
            _flush(unfinished)
        remove_replaced(path)


@contextmanager
def _becoming(path: Path, unfinished: Path, overwrite: bool) -> Iterator[None]:
    """Holds what has just been made, which takes the name of `path` when the block ends; if anything goes wrong before
    it has another name, it is removed."""
    with alone_in(unfinished):
        made = os.stat(unfinished)
        try:
            yield
            if not os.path.lexists(unfinished):
                raise OutputError(f"{path}: what was being written there has been removed: run the command again")
            if not _is_still(made, unfinished):
                raise _another(path)
            _refuse_appeared(path, unfinished, overwrite)
            if unfinished.is_dir() and path.exists():
                replaced = path.with_name(f"{REPLACED}{path.name}")
                shutil.rmtree(replaced, ignore_errors=True)
                os.replace(path, replaced)
            try:
                os.replace(unfinished, path)
            except BaseException:
                put_back(path)
                raise
        except BaseException:
            if _is_still(made, unfinished):
                with suppress(OSError):
                    remove(unfinished)
            raise
    _flush_entries(path.parent)


def _remove_left(unfinished: Path) -> None:
    """Removes what a killed process has left there, unless another one works there."""
    with ExitStack() as held:
        if unfinished.exists() and not unfinished.is_symlink():
            with suppress(OSError):  # another user's, who may have forbidden to read it
                held.enter_context(alone_in(unfinished))
        remove(unfinished)


def remove(place: Path) -> None:
    """Removes a directory with all in it, or a file or link; there may be none."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _is_still(made: os.stat_result, place: Path) -> bool:
    """Whether a place has what was made there."""
    try:
        return os.path.samestat(made, os.stat(place))
    except OSError:
        return False


def _refuse_appeared(path: Path, unfinished: Path, overwrite: bool) -> None:
    """Raises OutputError if something is at `path` that is not to be overwritten, since the work began; what was made
    is kept beside it."""
    try:
        refuse_existing(path, overwrite)
    except OutputError as error:
        stem, suffix = (path.name, "") if unfinished.is_dir() else (path.stem, path.suffix)
        names = (path.with_name(f"{stem}-{number}{suffix}") for number in count(2))
        beside = next(name for name in names if not os.path.lexists(name))
        os.replace(unfinished, beside)
        raise OutputError(
            f"{path} has appeared while this command was at work, and is left as it is: what was made is {beside}"
        ) from error


def put_back(path: Path) -> None:
    """Restores a directory that was being replaced when the process was killed, if nothing has its name now."""
    path = own_place(path)
    replaced = path.with_name(f"{REPLACED}{path.name}")
    with as_output_error(path):
        if not path.exists() and replaced.is_dir():
            os.replace(replaced, path)


def remove_replaced(path: Path) -> None:
    """Removes the directory that the one at `path` has replaced, and what an earlier process left of such a one.

    It gets a name first that `put_back` ignores: a kill in between must not bring it back.
    """
    replaced, removed = (path.with_name(f"{prefix}{path.name}") for prefix in (REPLACED, _REMOVED))
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(OSError):
        replaced = replaced.rename(removed)
    shutil.rmtree(replaced, ignore_errors=True)  # a network file system keeps what others have open


def _flush(directory: Path) -> None:
    """Brings every file below a directory to the disk, and the names of all of them."""
    for folder, _, names in os.walk(directory):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        _flush_entries(Path(folder))


def _flush_entries(directory: Path) -> None:
    """Brings to the disk which names a directory holds, where the system can do so."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Holds a directory, or a file, for this process. The system lets go of it when the process ends, however that
    happens. Where the file system has no locks, this only sees that it is there.

    Raises:
        AnotherProcess: another process holds it, or another thread of this one; or has just renamed or removed it.
    """
    if fcntl is None:
        yield
        return
    is_writable = place.is_file() and os.access(place, os.W_OK)  # NFS locks no file that is open to be read
    try:
        descriptor = os.open(place, os.O_NONBLOCK | (os.O_RDWR if is_writable else os.O_RDONLY))
    except FileNotFoundError as error:
        raise _another(place) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _another(place) from error
        except OSError:
            pass
        if not _is_still(os.fstat(descriptor), place):
            raise _another(place)
        yield
    finally:
        os.close(descriptor)


def _another(place: Path) -> AnotherProcess:
    place = _as_it_will_be(place)
    return AnotherProcess(f"{place}: another process works there at this moment: let it end, or choose another --out")


@contextmanager
def temporary_directory(kind: str, folder: Path | None = None) -> Iterator[Path]:
    """A new directory, removed again; first removes those of its kind that killed processes of this machine have left.

    Args:
        kind: begins its name; the machine and the process follow.
        folder: where it is made; None takes the system's for temporary files.
    """
    folder = folder or Path(tempfile.gettempdir())
    _remove_abandoned(folder, kind)
    place = Path(tempfile.mkdtemp(prefix=f"{kind}-{platform.node()}-{os.getpid()}-", dir=folder))
    try:
        with alone_in(place):
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(folder: Path, kind: str) -> None:
    if os.name != "posix":  # elsewhere signal 0 would end a process
        return
    for left in folder.glob(f"{kind}-{glob.escape(platform.node())}-*-*"):
        try:
            found = left.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():  # anybody can put anything there
                continue
            os.kill(int(left.name.split("-")[-2]), 0)
        except ProcessLookupError:
            with suppress(OSError, AnotherProcess), alone_in(left):  # one of another container may work there
                shutil.rmtree(left)
        except (ValueError, OverflowError, OSError):
            continue


def is_held(directory: Path) -> bool:
    """Whether another process works in a directory at this moment, as far as the file system knows."""
    try:
        with alone_in(directory):
            return False
    except AnotherProcess:
        return True


def is_litter(name: str) -> bool:
    """Whether a file is one that file managers and network file systems leave in folders: of no use to anybody."""
    return name in (".DS_Store", "Thumbs.db", "desktop.ini") or name.startswith(("._", ".nfs"))


def refuse_existing(path: Path, overwrite: bool, instead: str = "choose another name, or pass --overwrite") -> None:
    """Raises OutputError if `path` holds anything and `overwrite` is False; an empty directory counts as nothing."""
    with as_output_error(path):
        if overwrite or not path.exists():
            return
        if path.is_dir() and all(is_litter(entry.name) for entry in path.iterdir()):
            return
    raise OutputError(f"{path} exists already and would be overwritten: {instead}")


def refuse_inputs_inside(out: Path, inputs: Iterable[Path]) -> None:
    """Raises OutputError if something that is read is what is written, or lies in it, and would be overwritten."""
    for path in inputs:
        if path.exists() and path.resolve().is_relative_to(out.resolve()):
            inside = f"lies in {out}, which " if path.resolve() != out.resolve() else ""
            raise OutputError(f"{path} is needed and {inside}would be overwritten: choose another --out")


def refuse_foreign(path: Path, own: Sequence[str], kind: str, mark: str | None = None) -> None:
    """Raises OutputError if `path` is a file, or a directory that holds anything that we do not make.

    Args:
        own: names and globs of everything that the directory may hold.
        kind: what it should be, for the message: "a token store".
        mark: the name without which it is something else, unless it is empty; None: there is no such name.
    """
    with as_output_error(path):
        if not path.exists():
            return
        entries = sorted(entry for entry in path.iterdir() if not is_litter(entry.name))
    advice = "so nothing in it is touched: choose another name, or move it away"
    foreign = [entry.name for entry in entries if not any(entry.match(pattern) for pattern in own)]
    if foreign:
        raise OutputError(f"{path} holds {foreign[0]}, which is no part of {kind}, {advice}")
    if entries and mark is not None and not (path / mark).is_file():
        raise OutputError(f"{path} is not {kind} ({mark} is missing), {advice}")


def refuse_special(path: Path, error: type[UserError] = OutputError) -> None:
    """Raises `error` for a device, a pipe or a socket: to read or open it may take for ever, and no other file may take
    its place."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise error(f"{path} is a device, a pipe or a socket: expected a file")


@contextmanager
def as_output_error(path: Path) -> Iterator[None]:
    """Turns the system's errors about writing (full disk, no permission, read-only) into one with advice, which names
    what is unfinished by the name that it will have."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EEXIST and os.path.basename(str(error.filename)).startswith(UNFINISHED):
            raise _another(path) from error
        has_folder = path.parent.exists()
        path = _as_it_will_be(path)
        if error.errno in _DISK_IS_FULL:
            raise OutputError(f"the disk is full while writing {path}: free some space, or write elsewhere") from error
        if error.errno == errno.ENOENT and not has_folder:
            raise OutputError(f"cannot write {path}: there is no folder {path.parent}: make it first") from error
        if error.errno in _NOT_WRITABLE or UNFINISHED in str(error.filename):
            raise OutputError(f"cannot write {path}: {error.strerror}; choose a place that can be written") from error
        raise


def _as_it_will_be(path: Path) -> Path:
    """The name that what is unfinished, or set aside, will have."""
    return Path(*(part.removeprefix(REPLACED).removeprefix(UNFINISHED) for part in path.parts))


def write_text(path: Path, text: str, overwrite: bool = True) -> None:
    """Writes UTF-8 text as `writing` does."""
    with writing(path, overwrite) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes indented UTF-8 JSON atomically, keys in the order given.

    File names that are not UTF-8 hold lone surrogates; these become JSON escapes and are read back unchanged.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    with writing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def json_line(value: Any) -> bytes:
    """A value as a line of JSON in UTF-8; lone surrogates as in `write_json`."""
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """A file's size and checksum, in the form of manifests and checkpoints."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
