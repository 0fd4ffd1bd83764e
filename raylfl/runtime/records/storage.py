"""Files below a URL, on any storage that fsspec supports; each failure is a StorageError that names a remedy."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from raylfl.errors import RaylflError, headline

SECONDS = 60.0  # longest wait for the storage to answer
BYTES_PER_SECOND = 1e5  # slowest accepted transfer; sets the time limit of large files
WHOLE_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}  # protocols of atomic writes
READABLE = (".yaml", ".json", ".jsonl", ".txt", ".csv")  # files that reports read
BULKY = {"checkpoints", "report", "wandb"}  # folders that reports do not read
ACCESS = re.compile("credential|auth|forbidden|denied", re.IGNORECASE)  # words of errors for want of access
T = TypeVar("T")


class StorageError(RaylflError):
    """Raised if an operation on a storage fails; the message names the URL, the reason and a remedy."""


class Storage:
    """Access to the files below a URL. The name of a file is its path relative to the URL, with slashes.

    Each method raises StorageError if the storage fails or takes too long.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    @cached_property
    def _file_system(self) -> tuple[Any, str]:
        """fsspec's file system, and the path of the URL in it."""
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.url)
        return fs, str(root).rstrip("/")

    def names(self) -> list[str]:
        """The names of the files below the URL; empty if the URL does not exist."""

        def find(fs: Any, root: str) -> list[str]:
            fs.invalidate_cache()
            return sorted(str(path).removeprefix(root).lstrip("/") for path in fs.find(root))

        return [name for name in self._call("listed", find) if not leads_outside(name)]

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""

        def content(fs: Any, root: str) -> bytes | None:
            fs.invalidate_cache()
            try:
                return bytes(fs.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

        return self._call("read", content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a new file; returns False if the file exists.

        If several machines create the same file on object storage such as S3, only one of them succeeds.
        """

        def written(fs: Any, root: str) -> bool:
            fs.invalidate_cache()
            self._make_folder(fs, f"{root}/{name}")
            try:
                fs.pipe_file(f"{root}/{name}", content, mode="create")
            except FileExistsError:
                return False
            return True

        return self._call("written", written)

    def write(self, name: str, content: bytes) -> None:
        """Writes a file; an existing file is replaced atomically."""
        self._replace(name, lambda fs, path: fs.pipe_file(path, content), len(content))

    def put(self, source: Path, name: str) -> None:
        """Copies a local file to the storage; an existing file is replaced atomically."""
        self._replace(name, lambda fs, path: fs.put_file(str(source), path), source.stat().st_size)

    def _replace(self, name: str, write: Callable[[Any, str], Any], size: int) -> None:
        def replace(fs: Any, root: str) -> None:
            path = f"{root}/{name}"
            if _replaces_atomically(fs):
                write(fs, path)
                return
            self._make_folder(fs, path)
            folder, _, last = path.rpartition("/")
            write(fs, aside := f"{folder}/.{last}.tmp")
            fs.mv(aside, path)

        self._call("written", replace, size)

    def get(self, name: str, target: Path) -> None:
        """Copies a file from the storage to a local path; deletes the local file if the file does not exist."""

        def copy(fs: Any, root: str) -> None:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                fs.get_file(f"{root}/{name}", str(target))
            except FileNotFoundError:
                target.unlink(missing_ok=True)

        self._call("read", copy, 1 << 30)

    def remove(self, names: Iterable[str]) -> None:
        """Deletes files, in this order; missing files are no error."""

        def remove(fs: Any, root: str) -> None:
            for name in names:
                with suppress(FileNotFoundError):
                    fs.rm_file(f"{root}/{name}")

        self._call("written", remove)

    def _make_folder(self, fs: Any, path: str) -> None:
        """Creates a file's folder, except on object storage, where this could create a mistyped bucket."""
        if not _replaces_atomically(fs):
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _call(self, what: str, work: Callable[[Any, str], T], size: int = 0) -> T:
        """The result of `work(fs, root)`: fs is fsspec's file system, root the path of the URL in it.

        Raises StorageError if `work` fails or takes too long. what: the participle in the error message, such as
        "read". size: bytes to transfer, which extend the time limit.
        """
        try:
            return within(SECONDS + size / BYTES_PER_SECOND, lambda: work(*self._file_system))
        except Exception as error:
            reason = headline(error)
            raise StorageError(f"{self.url} cannot be {what} ({reason}): {remedy(self.url, error)}") from error


def _replaces_atomically(fs: Any) -> bool:
    """Whether this file system of fsspec is an object storage, in which a file is replaced atomically."""
    return not WHOLE_OBJECTS.isdisjoint([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of `call()`, which runs in a thread. Raises TimeoutError after `seconds` and abandons the thread."""
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True, name="raylfl storage").start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return result.result()


def remedy(url: str, error: Exception) -> str:
    """The remedy, in words, for an error of the storage at this URL."""
    if isinstance(error, ImportError):
        return f"pip install {package_of(url)}"
    kinds = [kind.__name__ for kind in type(error).__mro__]  # NoCredentialsError, ClientAuthenticationError, ...
    if isinstance(error, PermissionError) or ACCESS.search(" ".join([*kinds, str(error)])):
        return "set credentials that may read, write and delete there (docs/running.md)"
    if isinstance(error, FileNotFoundError):
        return "make the bucket first, or correct the URL"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space"
    return "check the connection and the URL, then try again"


def package_of(url: str) -> str:
    """The package to install for the protocol of this URL, such as s3fs for s3://."""
    from fsspec.registry import known_implementations

    entry = known_implementations.get(url.partition("://")[0].rpartition("::")[2], {})
    module = str(entry.get("class", "")).partition(".")[0]
    return module if module and module != "fsspec" else f"what this message names ({entry.get('err', 'see fsspec')})"


def readable(name: PurePosixPath) -> bool:
    """Whether reports read a file of this name."""
    return name.suffix in READABLE and not BULKY & set(name.parts[:-1])


def leads_outside(name: str) -> bool:
    """Whether a file's name relative to a folder or URL may lead out of it."""
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def fetch(storage: Storage, target: Path, complete: bool) -> None:
    """Copies files from a storage into a folder, except hidden files.

    Checkpoints without a manifest are not copied: their copy to the URL was interrupted. complete: whether to copy all
    files, or only those that reports read.
    """
    names = list(map(PurePosixPath, storage.names()))
    with_manifest = {path.parent for path in names if path.name == "manifest.json"}
    for path in names:
        cut_off = path.parent.parent.name == "checkpoints" and path.parent not in with_manifest
        hidden = any(part.startswith(".") for part in path.parts)
        if not cut_off and not hidden and (complete or readable(path)):
            storage.get(str(path), target / path)
