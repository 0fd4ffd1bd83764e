"""Functions on whole files and folders: atomic writes, reads of regular files, removal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from raylfl.errors import BadConfig
from raylfl.runtime.records.record_file import open_plain

LOCKS = (".lock", ".writing")
WANDB = "wandb"  # the folder of wandb in a run directory, in which it links to its log in the user's cache


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file by a temporary file, sync and rename; after a crash it has its old or its new content."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(aside, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def require_inside(folder: Path) -> None:
    """Checks that no symbolic link below a folder leads out of it; raises BadConfig otherwise.

    Files that raylfl and the libraries of loggers write into a run directory therefore stay in it, also if another user
    made the directory. Links in WANDB are left to the logger, which removes them before wandb writes.
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
    Checkpoints remain as they are, because their files never change, and so do locks (`Locks`). Raises BadConfig if a
    file cannot be copied.
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


def sync_folder(folder: Path) -> None:
    """Syncs the entries of a folder to disk."""
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


def read_plain(path: Path) -> bytes:
    """The content of a regular file; empty if there is no file. Raises OSError for a link, a pipe or a device."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
