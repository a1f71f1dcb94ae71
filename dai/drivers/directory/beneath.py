"""Files beneath one directory, by relative names that cannot leave it.

A name is opened component by component, each relative to the descriptor of the directory before it and none through a
symbolic link, so no change of a component between a check and its use leads elsewhere. Only regular files and
directories are opened. A file is replaced as a whole: who reads sees the old bytes or the new.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dai.errors import ConflictError, DatabaseUnavailableError, DeniedError, LimitError, NotFoundError, ParameterError
from dai.streams.cancellation import Cancellation

BLOCK_BYTES = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PART = re.compile(r"\.[0-9a-f]{16}\.part", re.ASCII)
"""Names of files that are being written, where a file must have a name, or has it for a moment before it replaces
another."""
_UNNAMED = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """``modified``: seconds since 1970."""

    name: str
    is_directory: bool
    bytes: int
    modified: float


class Beneath:
    """Every method raises DeniedError for a name that leads outside or to something else than a file or a directory,
    NotFoundError, ConflictError where something is there already or somebody else changes it, LimitError for a full
    disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self) -> None:
        """Raises DatabaseUnavailableError where the directory is not there."""
        with self._root():
            pass

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A descriptor of a file, and the file stays what it is when its name gets another one."""
        with (
            self._parent(name) as (directory, last),
            _translated(name),
            _closed(_regular(directory, last, name)) as file,
        ):
            yield file

    @contextmanager
    def replacing(self, name: str, *, new: bool = False) -> Iterator[tuple[int | None, Any]]:
        """The descriptor of the file as it is (None: it is not there yet) and a writer of what takes its place at the
        end of the block; nothing changes where the block is left by an exception. ``new``: it may not be there yet."""
        with ExitStack() as stack:
            directory, last = stack.enter_context(self._parent(name))
            stack.enter_context(_translated(name))
            try:
                old: int | None = stack.enter_context(_closed(_regular(directory, last, name)))
            except FileNotFoundError:
                if not new:
                    raise
                old = None
            if old is not None:
                fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _same(old, directory, last):
                    raise BlockingIOError(errno.EAGAIN, "changed")
            mode = stat.S_IMODE(os.fstat(old).st_mode) if old is not None else 0o666
            descriptor, part = _unnamed(directory, mode)
            writer = stack.enter_context(open(descriptor, "wb", BLOCK_BYTES))
            stack.callback(_unlinked, part, directory)
            yield old, writer
            writer.flush()
            os.fsync(descriptor)
            if old is None:
                os.link(f"/proc/self/fd/{descriptor}", last, dst_dir_fd=directory)
            else:
                with suppress(FileExistsError):  # where it has the name from the beginning
                    os.link(f"/proc/self/fd/{descriptor}", part, dst_dir_fd=directory)
                os.replace(part, last, src_dir_fd=directory, dst_dir_fd=directory)

    def copy(self, name: str, target: str, cancellation: Cancellation) -> int:
        """The bytes of the copy; ``target`` must not be there."""
        with self.reading(name) as file, self.replacing(target, new=True) as (old, writer):
            if old is not None:
                raise ConflictError(f"{target!r} already exists.")
            for block in blocks(file):
                cancellation.check()
                writer.write(block)
            return int(writer.tell())

    def move(self, name: str, target: str) -> None:
        """A file or a directory; ``target`` must not be there."""
        with self._parent(name) as (directory, last), self._parent(target) as (other, new), _translated(name):
            if _kind(directory, last, name) == "file":
                with _translated(target):
                    os.link(last, new, src_dir_fd=directory, dst_dir_fd=other, follow_symlinks=False)
                os.unlink(last, dir_fd=directory)
            else:
                with suppress(FileNotFoundError):
                    os.stat(new, dir_fd=other, follow_symlinks=False)
                    raise ConflictError(f"{target!r} already exists.")
                os.rename(last, new, src_dir_fd=directory, dst_dir_fd=other)

    def delete(self, name: str) -> None:
        """A file, or a directory that is empty."""
        with self._parent(name) as (directory, last), _translated(name):
            if _kind(directory, last, name) == "file":
                os.unlink(last, dir_fd=directory)
            else:
                os.rmdir(last, dir_fd=directory)

    def make_directory(self, name: str) -> None:
        with self._parent(name) as (directory, last), _translated(name):
            os.mkdir(last, dir_fd=directory)

    def entries(self, name: str = "") -> Iterator[Entry]:
        """Files and directories in a directory (empty: the topmost), in any order; nothing else is listed."""
        with ExitStack() as stack:
            directory = stack.enter_context(self._root())
            for part in _parts(name) if name.strip("/.") or name.startswith((".", "/")) else ():
                directory = stack.enter_context(_opened(directory, part, name))
            with os.scandir(directory) as scan:
                for each in scan:
                    if _PART.fullmatch(each.name):
                        continue
                    with suppress(FileNotFoundError):
                        known = each.stat(follow_symlinks=False)
                        if stat.S_ISDIR(known.st_mode) or stat.S_ISREG(known.st_mode):
                            yield Entry(each.name, stat.S_ISDIR(known.st_mode), known.st_size, known.st_mtime)

    @contextmanager
    def _root(self) -> Iterator[int]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DatabaseUnavailableError("The directory of this resource cannot be opened.") from error
        with _closed(descriptor):
            yield descriptor

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """The directory that holds ``name``, and the last part of the name."""
        *parts, last = _parts(name)
        with ExitStack() as stack:
            directory = stack.enter_context(self._root())
            for part in parts:
                directory = stack.enter_context(_opened(directory, part, name))
            yield directory, last


def blocks(file: int, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """The bytes of a file from ``start`` on, by blocks."""
    if start > os.fstat(file).st_size:
        return
    end = None if length is None else start + length
    while end is None or start < end:
        data = os.pread(file, BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - start), start)
        if not data:
            return
        yield data
        start += len(data)


def _parts(name: str) -> list[str]:
    if "\0" in name:
        raise ParameterError("The name of a file has a NUL character.")
    if name.startswith("/"):
        raise DeniedError(
            f"{_display(name)} is an absolute path.", hint="Paths are relative to the directory of the resource."
        )
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise DeniedError(f"{_display(name)} leads out of a directory ('..').")
    if not parts:
        raise ParameterError("The name of a file is empty.")
    if any(map(_PART.fullmatch, parts)):
        raise DeniedError(
            f"{_display(name)} is a name that this service uses for files that it is writing.", hint="Use another name."
        )
    return parts


def _display(name: str) -> str:
    return repr(name if len(name) <= 100 else f"{name[:100]}…")


@contextmanager
def _opened(directory: int, part: str, name: str) -> Iterator[int]:
    with _translated(name):
        descriptor = os.open(part, _DIRECTORY, dir_fd=directory)
    with _closed(descriptor):
        yield descriptor


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _kind(directory: int, last: str, name: str) -> str:
    mode = os.stat(last, dir_fd=directory, follow_symlinks=False).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return "file" if stat.S_ISREG(mode) else "directory"
    what = "a symbolic link" if stat.S_ISLNK(mode) else "a special file"
    raise DeniedError(f"{_display(name)} is {what}; only files and directories can be used.")


def _regular(directory: int, last: str, name: str) -> int:
    """A descriptor of a regular file. It is looked at before, because opening a device may do something, and after."""
    if _kind(directory, last, name) == "directory":
        raise DeniedError(f"{_display(name)} is a directory, not a file.")
    descriptor = os.open(last, _READ, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DeniedError(f"{_display(name)} is a special file; only files and directories can be used.")
    return descriptor


def _same(file: int, directory: int, last: str) -> bool:
    have, there = os.fstat(file), os.stat(last, dir_fd=directory, follow_symlinks=False)
    return (have.st_dev, have.st_ino) == (there.st_dev, there.st_ino)


def _unnamed(directory: int, mode: int) -> tuple[int, str]:
    """The descriptor of a new file, which is gone when its process is killed, and the name that it may have. A file
    system that knows no files without names gives it that at once."""
    part = f".{secrets.token_hex(8)}.part"
    try:
        return os.open(".", _UNNAMED, mode, dir_fd=directory), part
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        return os.open(part, _NEW, mode, dir_fd=directory), part


def _unlinked(part: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(part, dir_fd=directory)


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Translates errors of the operating system, without paths of the machine."""
    shown = _display(name)
    try:
        yield
    except (FileNotFoundError, UnicodeEncodeError) as error:
        raise NotFoundError(f"There is no file or directory {shown}.") from error
    except (FileExistsError, IsADirectoryError) as error:
        raise ConflictError(f"{shown} already exists.") from error
    except BlockingIOError as error:
        raise ConflictError(f"{shown} is being changed by another request.", hint="Try again.") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise DeniedError(f"A part of {shown} is not a directory, or a symbolic link.") from error
        if error.errno == errno.ENAMETOOLONG:
            raise ParameterError(f"{shown} is too long for a file name.") from error
        if error.errno == errno.ENOTEMPTY:
            raise ConflictError(f"{shown} is not empty.") from error
        if error.errno in _FULL:
            raise LimitError("The disk of this directory is full.") from error
        raise DeniedError(f"The operating system does not let the service do this with {shown}.") from error
