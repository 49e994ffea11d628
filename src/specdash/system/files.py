"""Writing files so that, whenever the power or the process goes, the disk holds the old version or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import pwd
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOCK_TRIES, _LOCK_PAUSE_S = 500, 0.01
_TEMPORARY = ".specdash-new"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BusyError(OSError):
    """Another process has been replacing files in the directory for long."""


def temporary(target: Path, data: bytes, like: Path | None = None, *, durable: bool = True) -> Path:
    """As `create`, beside `target`: the draft of its next version."""
    path = target.with_name(f".{target.name}.{os.getpid()}-{time.monotonic_ns()}{_TEMPORARY}")
    create(path, data, like, durable=durable)
    return path


def replace(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a file, in directories that are made where they are missing: a reader finds the old version or the new one,
    each of them whole, also after a crash where it is `durable`. Raises OSError, and leaves nothing behind, not even
    what an earlier writer left that was killed."""
    make_directories(path.parent)
    sweep(path.parent, path.name)
    draft = temporary(path, data, durable=durable)
    with gone_on_failure(draft):
        if mode != 0o600:
            draft.chmod(mode)
        draft.replace(path)
    if durable:
        sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made with mode 0600 where there is none; on the disk when we return. What a killed
    writer or a full disk left of the line before ends there, and is not part of this one. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        write_all(descriptor, b"\n" * torn + line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: str | None) -> str | None:
    """SHA-256 of a file's bytes in hex, None when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path is not None else None
    except OSError:
        return None


def read_bounded(path: Path, most: int) -> bytes:
    """A file of at most so many bytes. Raises OSError, with EFBIG for one that is larger."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


@contextlib.contextmanager
def gone_on_failure(path: Path) -> Iterator[None]:
    """The file is not left behind if anything is raised inside."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def sweep(directory: Path, name: str | None = None) -> None:
    """Remove new versions that never took their place because their writer was killed: of the file of this name, or of
    all in the directory."""
    from specdash.system.processes import is_alive  # psutil, which most writers never need

    for left in directory.glob(f".{glob.escape(name)}.*{_TEMPORARY}" if name is not None else f".*{_TEMPORARY}"):
        writer = left.name.removesuffix(_TEMPORARY).rpartition(".")[2].partition("-")[0]
        if writer.isdecimal() and not is_alive(int(writer)):
            with contextlib.suppress(OSError):
                left.unlink()


def create(path: Path, data: bytes, like: Path | None = None, *, durable: bool = True) -> None:
    """A file that was not there before, with mode, owner and attributes of the file `like`, else mode 0600; on the disk
    when we return if `durable`. Raises FileExistsError, or another OSError, and leaves nothing behind."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with gone_on_failure(path):
        try:
            write_all(descriptor, data)
            if like is not None:
                old, made = like.stat(), os.fstat(descriptor)
                if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                # Access lists, labels and the like, as far as this user and the file system can.
                with contextlib.suppress(OSError):
                    for name in os.listxattr(like):
                        with contextlib.suppress(OSError):
                            os.setxattr(descriptor, name, os.getxattr(like, name))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make sure that a rename in it is on the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync directories
            raise
    finally:
        os.close(descriptor)


def make_directories(directory: Path) -> None:
    """Make it and its parents where they are missing, mode 0700. Raises OSError."""
    for path in (*reversed(directory.parents), directory):
        if not path.is_dir():
            path.mkdir(0o700, exist_ok=True)


@contextlib.contextmanager
def locked(directory: Path, name: str | None = None) -> Iterator[None]:
    """Keep every other specdash that asks for the lock from replacing files in the directory meanwhile, and sweep up
    what one that was killed left there: of the file of this name alone, where others write there without the lock.
    Raises `BusyError` when the lock cannot be had in five seconds, and OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)
            except OSError:  # a file system that has no locks for directories
                break
        else:
            raise BusyError(f"another process has been writing in {directory} for long; try again")
        sweep(directory, name)
        yield
    finally:
        os.close(descriptor)


def not_written(path: Path, error: OSError) -> str:
    """`error`, which kept `path` from being written, in words: the reason and what to do."""
    return f"{path} was not written, and is as it was: {'; '.join(filter(None, reason(path, error)))}"


@contextlib.contextmanager
def writing(path: Path, failed: Callable[[str], Exception]) -> Iterator[None]:
    """Raise `failed`, with the reason and what to do, for an `OSError` that keeps `path` from being written."""
    try:
        yield
    except OSError as error:
        raise failed(not_written(path, error)) from None


def reason(path: Path, error: OSError) -> tuple[str, str]:
    """Why `path` could not be written, and what to do, "" where nothing is known."""
    directory = path.parent
    nearest = next((place for place in (directory, *directory.parents) if place.is_dir()), directory)
    who, other = user_name(os.geteuid()), "or name another file"
    known = {
        **dict.fromkeys(
            NO_SPACE, (f"no space left on the file system of {directory}", "free some, then run the command again")
        ),
        errno.EROFS: (f"{directory} is on a read-only file system", f"make it writable, {other}"),
        errno.EACCES: (f"user {who} may not write in {nearest}", f"ask its owner, {other}"),
        errno.EPERM: ("the file or its directory is protected (immutable, or in another user's sticky directory)", ""),
        errno.EBUSY: ("the file is a mount point and cannot be replaced", "mount its directory instead"),
    }
    return known.get(error.errno or 0, (error.strerror or str(error), ""))


def user_name(uid: int) -> str:
    """The user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however little the descriptor takes at a time. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path of a Unix socket by its open directory: `sun_path` has room for 107 bytes (unix(7)), homes may have
    more. Raises `OSError` where the directory cannot be opened."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
