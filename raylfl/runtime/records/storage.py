"""Files below a URL, on any storage that fsspec supports, and which process and folder have the run there.

Each failure of a storage is a StorageError that names a remedy.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from raylfl.config.urls import check_url
from raylfl.errors import BadConfig, RaylflError, headline
from raylfl.runtime.records.files import atomic_write, read_plain

SECONDS = 60.0  # longest wait for the storage to answer
BYTES_PER_SECOND = 1e5  # slowest accepted transfer; sets the time limit of large files
WHOLE_OBJECTS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"}  # protocols of atomic writes
READABLE = (".yaml", ".json", ".jsonl", ".txt", ".csv")  # files that reports read
BULKY = {"checkpoints", "report", "wandb"}  # folders that reports do not read
ACCESS = re.compile("credential|auth|forbidden|denied", re.IGNORECASE)  # words of errors for want of access
OWNER, COPY, STATE = ".owner.json", ".copy.json", ".mirror.json"
Copied = dict[str, list[int] | None]  # size, time and inode of each file copied; None: unknown
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
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.url)
        return fs, str(root).rstrip("/")

    def names(self) -> list[str]:
        """The names of the files below the URL; empty if the URL does not exist."""

        def find(fs: Any, root: str) -> list[str]:
            return sorted(str(path).removeprefix(root).lstrip("/") for path in fs.find(root))

        return [name for name in self._call("listed", find) if not leads_outside(name)]

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""

        def content(fs: Any, root: str) -> bytes | None:
            with suppress(FileNotFoundError):
                return bytes(fs.cat_file(f"{root}/{name}"))
            return None

        return self._call("read", content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a new file; returns False if the file exists.

        If several machines create the same file on object storage such as S3, only one of them succeeds.
        """

        def written(fs: Any, root: str) -> bool:
            self._make_folder(fs, f"{root}/{name}")
            with suppress(FileExistsError):
                fs.pipe_file(f"{root}/{name}", content, mode="create")
                return True
            return False

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
            else:
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
        if not _replaces_atomically(fs):  # this could create a mistyped bucket
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _call(self, what: str, work: Callable[[Any, str], T], size: int = 0) -> T:
        """The result of `work(fs, root)`: fs is fsspec's file system, root the path of the URL in it.

        what: the participle in the error message. size: bytes to transfer, which extend the time limit.
        """

        def call() -> T:
            fs, root = self._file_system
            fs.invalidate_cache()
            return work(fs, root)

        try:
            return within(SECONDS + size / BYTES_PER_SECOND, call)
        except Exception as error:
            raise StorageError(f"{self.url} cannot be {what} ({headline(error)}): {remedy(self.url, error)}") from error


def _replaces_atomically(fs: Any) -> bool:
    return not WHOLE_OBJECTS.isdisjoint([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def in_thread(call: Callable[[], T]) -> Future[T]:
    """The future result of `call()` in a new thread, which does not keep the process alive."""
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True, name="raylfl call").start()
    return result


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of `call()`, which runs in a thread. Raises TimeoutError after `seconds` and abandons the thread."""
    result = in_thread(call)
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return result.result()


def remedy(url: str, error: Exception) -> str:
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


def leads_outside(name: str) -> bool:
    """Whether a file's name relative to a folder or URL may lead out of it."""
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def fetch(storage: Storage, target: Path, complete: bool) -> None:
    """Copies files into a folder, except hidden ones and checkpoints whose copy to the URL was interrupted.

    complete: whether to copy all files, or only those that reports read.
    """
    names = list(map(PurePosixPath, storage.names()))
    with_manifest = {path.parent for path in names if path.name == "manifest.json"}
    for path in names:
        cut_off = path.parent.parent.name == "checkpoints" and path.parent not in with_manifest
        hidden = any(part.startswith(".") for part in path.parts)
        read = path.suffix in READABLE and not BULKY & set(path.parts[:-1])  # by reports
        if not cut_off and not hidden and (complete or read):
            storage.get(str(path), target / path)


# -- owners -------------------------------------------------------------------------------------------------------


@dataclass
class Owner:
    """The content of .owner.json: the process that executes a run at a URL, and the token of its local folder."""

    token: str
    command: str = field(default_factory=lambda: shlex.join(sys.argv))
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)

    def claim(self, storage: Storage, remedy: str | None = None) -> None:
        """Writes this owner; raises BadConfig, with the remedy (`in_use`), if another folder owns the storage."""
        content = (json.dumps(asdict(self)) + "\n").encode()
        if not storage.create(OWNER, content):
            owner = Owner.of(storage)
            if owner is not None and owner.token != self.token:
                raise in_use(storage.url, owner, remedy)
            storage.write(OWNER, content)

    @staticmethod
    def of(storage: Storage) -> Owner | None:
        """The owner of the files in this storage; None if there is no owner. Raises BadConfig for a damaged file."""
        content = storage.read(OWNER)
        if content is None:
            return None
        try:
            return Owner(**json.loads(content))
        except (ValueError, TypeError, RecursionError):
            raise BadConfig(f"{storage.url}/{OWNER} is damaged: delete it if no machine executes this run") from None


@dataclass
class MirrorState:
    """The content of .mirror.json in a local folder: the run's URL, the folder's token and the copied files.

    source: the token of the folder whose copy at the URL was fetched into this one; "" for a new run.
    """

    url: str
    token: str
    copied: Copied
    source: str = ""

    def write(self, folder: Path) -> None:
        atomic_write(folder / STATE, json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> MirrorState:
        """Reads a folder's .mirror.json; raises BadConfig if it is damaged, or names files outside the URL."""
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError, BadConfig):
            state = MirrorState(**json.loads(read_plain(folder / STATE)))
            check_url(state.url)  # a path with `..` could name this folder as the staging folder of another URL
            texts = isinstance(state.token, str) and isinstance(state.source, str)
            stamps = all(stamp is None or len(stamp) == 3 for stamp in state.copied.values())
            if texts and stamps and not any(map(leads_outside, state.copied)):
                return state
        raise BadConfig(
            f"{folder / STATE} is damaged: resume the run by its URL, or delete the file to continue without a URL"
        )


def copy_token(storage: Storage) -> str | None:
    """The token of the local folder from which the files in this storage were copied; None if there is none."""
    content = storage.read(COPY)
    try:
        return None if content is None else str(json.loads(content)["token"])
    except (ValueError, TypeError, KeyError):
        return ""


def in_use(url: str, owner: Owner, remedy: str | None = None) -> BadConfig:
    """The error for a run at a URL that another process owns; remedy: what to do if the process has ended."""
    return BadConfig(
        f"{url} is in use by process {owner.process} on {owner.host} ({owner.command}): wait for it, or stop it first; "
        f"if it has ended, {remedy or f'raylfl resume {url} --take-over'}"
    )
