"""Files of a run directory: opened without following links, appended to, written atomically, locked, removed."""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from raylfl.errors import BadConfig, RaylflError

LOCKS = (".lock", ".writing")
WANDB = "wandb"  # the folder of wandb in a run directory, in which it links to its log in the user's cache


def open_plain(path: Path, flags: int) -> int:
    """The file descriptor of a regular file, opened with flags of os.open; OSError for a link, a pipe or a device."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def read_plain(path: Path) -> bytes:
    """The content of a regular file; empty if there is no file. Raises OSError for a link, a pipe or a device."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file by a temporary file, sync and rename; after a crash it has its old or its new content."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(aside, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def discard(path: Path) -> None:
    """Removes a file, a link or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- links -------------------------------------------------------------------------------------------------------


def require_inside(folder: Path) -> None:
    """Raises BadConfig if a symbolic link below a folder leads out of it.

    What raylfl and the libraries of loggers write into a run directory therefore stays in it, also if another user made
    the directory. Links in WANDB are left to the logger, which removes them before wandb writes.
    """
    root = folder.resolve()
    for path in links_out_of(root):
        if WANDB not in path.relative_to(root).parts[:-1]:
            raise BadConfig(
                f"{path} is a symbolic link to {path.resolve()}, outside the directory, and nothing is written "
                "through it: remove the link, or put the files in its place"
            )


def links_out_of(root: Path) -> Iterator[Path]:
    """The symbolic links below a resolved folder that lead out of it."""
    for parent, folders, files in os.walk(root):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                yield path


def separate(folder: Path) -> None:
    """Replaces each file below a folder that has several hard links by a copy of its own.

    What is then written into the folder, a copy by `cp -al`, does not change the folder that it was copied from.
    Checkpoints, whose files never change, remain as they are, and so do locks (`Locks`). Raises BadConfig if a file
    cannot be copied.
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "checkpoints"]
        for path in (Path(parent, name) for name in files if name not in LOCKS):
            try:
                status = path.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                    atomic_write(path, read_plain(path))
            except FileNotFoundError:  # a temporary file of another process
                continue
            except OSError as error:
                raise BadConfig(
                    f"{path} has several hard links and cannot be replaced by a copy ({error.strerror}): free some "
                    "space, or make it writable"
                ) from error


# -- record files ------------------------------------------------------------------------------------------------


class Displaced(RaylflError):
    """Raised if a run directory, or a file in it, was deleted, moved or replaced while a run wrote to it."""


class RecordFile:
    """A record file (metrics.jsonl, ...), open for appending; its change, move or deletion by others is detected."""

    def __init__(self, path: Path):
        self.path = path
        self.file = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", buffering=0)
        content = self.file.read()
        self.size, self._sha256 = len(content), hashlib.sha256(content)

    @property
    def sha256(self) -> str:
        """The sha256 of the content at opening and of all appended bytes."""
        return self._sha256.hexdigest()

    def append(self, data: bytes) -> None:
        """Appends bytes without buffering. Raises OSError on a full disk; the file is then unchanged."""
        rest = data
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self.file.truncate(self.size)
            raise
        self.size += len(data)
        self._sha256.update(data)

    def check(self) -> None:
        """Raises Displaced unless the open file is still at its path and has the known `size`."""
        if not _links(self.file, self.path) or os.fstat(self.file.fileno()).st_size != self.size:
            raise Displaced(
                f"{self.path} was changed while the run wrote to it: raylfl resume {self.path.parent} "
                "computes the affected rounds again"
            )

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


# -- locks -------------------------------------------------------------------------------------------------------


class Locks:
    """The locks that this process holds on files of one folder; the operating system releases them when it ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._held: dict[str, IO[bytes]] = {}

    def take(self, name: str) -> bool:
        """Takes the lock on the file `name`, without waiting; whether this process holds it now. Raises OSError."""
        path = self.folder / name
        while name not in self._held:
            lock = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", buffering=0)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (links := _links(lock, path)) == 1:
                    self._held[name] = lock
                    break
                if links:
                    path.unlink()  # the file of a copy (`cp -al`), too: both would have one lock and one text
            except OSError as error:
                lock.close()
                if isinstance(error, BlockingIOError):
                    return False
                raise
            lock.close()
        return True

    def note(self, name: str, text: str) -> None:
        """Replaces the content of the lock file `name`, whose lock this process holds, by a text."""
        self._held[name].truncate(0)
        self._held[name].write(text.encode())

    def lost(self, name: str) -> bool:
        """Whether the file `name`, whose lock this process holds, is no longer in the folder."""
        return name in self._held and not _links(self._held[name], self.folder / name)

    def close(self) -> None:
        for lock in self._held.values():
            lock.close()
        self._held.clear()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on this file; False if there is no file."""
    try:
        with open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return isinstance(error, BlockingIOError)


def _links(file: IO[bytes], path: Path) -> int:
    """The number of hard links of an open file, at least 1; 0 if it is no longer at this path."""
    opened = os.fstat(file.fileno())
    try:
        return max(1, opened.st_nlink) if os.path.samestat(opened, os.stat(path, follow_symlinks=False)) else 0
    except (FileNotFoundError, NotADirectoryError):
        return 0
