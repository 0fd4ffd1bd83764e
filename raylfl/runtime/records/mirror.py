"""A mirror: a copy of a local run directory at a URL, updated behind the round after each commit.

A run with `logging.dir=s3://bucket/runs` works in a local folder with all its locks and checksums. A thread copies the
files that have changed: records before checkpoints, older checkpoints before newer ones, each manifest after its
files, and summary.json last. Then it deletes files at the URL that no longer exist in the folder (only summary.json is
deleted before the copies). A run can therefore be resumed from the URL at any moment.

.owner.json at the URL is a lock: the process that executes the run creates it, and deletes it once all files are
copied. After a killed process it remains, and another machine continues the run only with `--take-over`. The lock is
read before each change at the URL: a process that was suspended while another machine took over its run overwrites at
most the file that it was copying. .copy.json has the token of the local folder from which the files were copied.
.mirror.json in this folder has the URL, the token and a list of the copied files.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from raylfl.config.urls import is_url, join, staging
from raylfl.errors import BadConfig, Say
from raylfl.runtime.records.files import Displaced, discard
from raylfl.runtime.records.storage import (
    COPY,
    OWNER,
    STATE,
    Copied,
    MirrorState,
    Owner,
    Storage,
    StorageError,
    copy_token,
    fetch,
    in_thread,
    in_use,
)

ROW_SECONDS = 30.0  # time between copies of rows without a checkpoint
MARK = "summary.json"  # marks a finished run
_views: dict[Path, str] = {}  # folder of a temporary copy -> its URL


class Mirror:
    """Copies a local folder that has a .mirror.json to its URL. Raises BadConfig if the file is damaged."""

    def __init__(self, folder: Path):
        self.folder, self.state = folder, MirrorState.read(folder)
        self.url, self.token = self.state.url, self.state.token
        self.storage = Storage(self.url)
        self.fault: StorageError | None = None  # the failure of the newest copy
        self._copied: Copied | None = None  # None before the first copy
        self._held = False  # whether this object has created .owner.json
        self._newest = -ROW_SECONDS  # time of the newest commit
        self._turn = threading.Lock()  # held during a copy
        self._due = False  # whether a copy waits for the end of another one
        self._copies: list[Future[None]] = []  # whose ends are not yet reported

    def __reduce__(self) -> tuple[type[Mirror], tuple[Path]]:
        return Mirror, (self.folder,)  # without its thread: Ray Tune saves its callbacks, which refer to the sweep

    # -- ownership -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Makes this folder the owner of the run at the URL until `release`.

        Raises BadConfig if another process owns the place, or if this folder is not the one that is copied to the URL;
        Displaced if the run was continued elsewhere.
        """
        if self.folder.resolve() != staging(self.url).resolve():
            raise BadConfig(
                f"{self.folder / STATE} says that this folder is copied to {self.url}, but only "
                f"{staging(self.url)} is: raylfl resume {self.url}, or delete the file to continue without a URL"
            )
        if copy_token(self.storage) not in (None, self.token, self.state.source):
            raise Displaced(f"{self.url} was continued on another machine: raylfl resume {self.url}")
        Owner(self.token).claim(self.storage)
        self._held = True

    def release(self) -> None:
        """Copies what is left and gives the run back, so that another machine can resume it.

        If files cannot be copied, this folder stays the owner, because it has more than the URL.
        """
        wait(self._copies)
        held, self._held = self._held, False
        if held:
            with suppress(StorageError, BadConfig, Displaced):
                self.push()
                self.storage.remove([OWNER])

    def delete(self) -> None:
        """Deletes the files at the URL if this folder is the owner and the storage answers."""
        wait(self._copies)
        self._held = False
        with suppress(StorageError, BadConfig, Displaced):
            self._check_owner()
            clear(self.url)

    def _check_owner(self) -> None:
        """Checks that this folder is still the owner; raises Displaced if the run was taken over or deleted."""
        owner = Owner.of(self.storage)
        if owner is None or owner.token != self.token:
            by = "deleted, or continued elsewhere" if owner is None else f"taken over by {owner.host} ({owner.command})"
            raise Displaced(f"{self.url} was {by}; {self.folder} has what was computed here")

    # -- copying ---------------------------------------------------------------------------------------------

    def commit(self, say: Say, seldom: bool = False) -> None:
        """Requests a copy of the files that have changed, and returns at once; reports the ends of earlier copies.

        A copy under way is followed by at most one more, of the newest state. say: called if the storage has failed or
        works again. seldom: whether to copy only if the last copy is at least ROW_SECONDS old. Raises Displaced if
        another machine has taken over the run.
        """
        self._report(say)
        now = time.monotonic()
        if seldom and now - self._newest < ROW_SECONDS:
            return
        self._newest = now
        if not self._due:
            self._due = True
            self._copies.append(in_thread(self._copy))

    def complete(self, say: Say) -> None:
        """Copies the files that have changed, waits for the end and reports it, as `commit` does."""
        self.commit(say)
        wait(self._copies)
        self._report(say)

    def _copy(self) -> None:
        with self._turn:
            self._due = False
            self.push()

    def _report(self, say: Say) -> None:
        while self._copies and self._copies[0].done():
            end, earlier = self._copies.pop(0).exception(), self.fault
            if end is not None and not isinstance(end, StorageError):
                raise end
            self.fault = end
            if end is not None and earlier is None:
                say(f"warning: {end}. Nothing is lost: all files are in {self.folder}; the next commit copies them")
            elif end is None and earlier is not None:
                say(f"the copy at {self.url} is complete again")

    def push(self) -> None:
        """Copies the files that have changed, and deletes files at the URL that no longer exist in the folder.

        No effect if the folder was deleted or moved. Raises StorageError, or Displaced if the run was taken over.
        """
        self._check_owner()
        if self._copied is None:  # files of another machine, and of an interrupted copy, are not in the list
            left = (name for name in self.storage.names() if name.startswith("checkpoints/") or name == MARK)
            self._copied = {**dict.fromkeys(left), **MirrorState.read(self.folder).copied}
            self.storage.write(COPY, json.dumps({"token": self.token}).encode())
        while os.path.lexists(self.folder / STATE):
            with suppress(FileNotFoundError):  # a checkpoint was deleted meanwhile: the files are listed again
                self._push_files(self._copied)
                break

    def _push_files(self, copied: Copied) -> None:
        """Copies and deletes files once; `copied` is updated. Raises FileNotFoundError if a local file disappears."""
        status = ((name, path.stat()) for name, path in _files(self.folder))
        stamps = {name: [s.st_size, s.st_mtime_ns, s.st_ino] for name, s in status}
        changed = sorted((name for name in stamps if copied.get(name) != stamps[name]), key=_turn)
        gone = sorted((name for name in copied if name not in stamps), key=_turn, reverse=True)
        try:
            if MARK in gone:
                self._remove([MARK], copied)
            for name in changed:
                self._check_owner()
                self.storage.put(self.folder / name, name)
                copied[name] = stamps[name]
            self._remove(gone, copied)
        finally:
            if changed or gone:
                with suppress(OSError):  # a full disk, or a folder that was moved: files are copied twice
                    MirrorState(self.url, self.token, copied, self.state.source).write(self.folder)

    def _remove(self, names: list[str], copied: Copied) -> None:
        if names:
            self._check_owner()
            self.storage.remove(names)
        for name in names:
            copied.pop(name, None)


def _files(top: Path) -> list[tuple[str, Path]]:
    """(relative name, path) of the files below a folder, except hidden files and the folders of a sweep's trials."""
    paths = []
    for folder, names, files in os.walk(top):
        parent = Path(folder)
        trials = (parent / "sweep.yaml").is_file()  # each has its own mirror
        names[:] = [name for name in names if not (name.startswith(".") or (trials and name != "report"))]
        paths += [parent / file for file in files if not file.startswith(".")]
    return [(path.relative_to(top).as_posix(), path) for path in paths if path.is_file()]


def _turn(name: str) -> tuple[int, int, str, bool, str]:
    """The place of a file in the order of copies: checkpoints from old to new, in each the manifest last; MARK last."""
    folder, _, last = name.rpartition("/")
    stage = 2 if name == MARK else 1 if name.startswith("checkpoints/") else 0
    return stage, len(folder), folder, last == "manifest.json", last


# -- starting a run, and resuming it on another machine ----------------------------------------------------------


def begin(folder: Path, url: str) -> bool:
    """Makes a local folder the owner of a new run at this URL; returns False if there is a run at the URL.

    Raises BadConfig if another process, which has copied nothing yet, owns the URL.
    """
    if exists(url):
        return False
    owner = Owner(secrets.token_hex(8))
    owner.claim(Storage(url), f"delete {url}/{OWNER}")
    MirrorState(url, owner.token, {}).write(folder)
    return True


def exists(url: str) -> bool:
    """Whether there is a run or a sweep at this URL."""
    storage = Storage(url)
    return any(storage.read(name) is not None for name in ("config.yaml", "sweep.yaml"))


def local_folder(source: str | os.PathLike[str], take_over: bool = False) -> Path:
    """The absolute folder of a run or sweep, which `take` fetches from a URL; BadConfig for `take_over` of a folder."""
    if is_url(source):
        return take(str(source).rstrip("/"), take_over)
    if take_over:
        raise BadConfig(f"--take-over takes a run at a URL from another machine, but {source} is a folder")
    return Path(source).expanduser().resolve()


def take(url: str, take_over: bool = False) -> Path:
    """The local folder with the newest state of the run at this URL, in which the run can be resumed.

    It is the folder on this machine that owns the URL, or whose state is there, or else a new copy (of a sweep, only of
    files that reports read). take_over: whether the run is taken from the process that owns it. Raises BadConfig.
    """
    folder, storage = staging(url), Storage(url)
    owner = Owner.of(storage)
    with suppress(BadConfig):  # a damaged .mirror.json: the folder is fetched again
        if _is_newest(folder, storage, owner):
            return folder  # it has at least the state of the URL, and more if the last copy failed
    if not exists(url):
        raise BadConfig(f"{url} is not a run directory: it has no config.yaml")
    if owner is not None and not take_over:
        raise in_use(url, owner)
    with _renewed(folder) as incoming:
        source = copy_token(storage) or ""
        fetch(storage, incoming, complete=storage.read("sweep.yaml") is None)
        MirrorState(url, secrets.token_hex(8), {}, source).write(incoming)
    if owner is not None and Owner.of(storage) == owner:
        storage.remove([OWNER])  # of several machines that take the run over, the first to create it again has it
    return folder


@contextmanager
def _renewed(folder: Path) -> Iterator[Path]:
    """A context with a new empty folder, which replaces `folder` at the end; a mirror is kept as .<name>.old."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield incoming
        if os.path.lexists(folder / STATE):
            discard(old := folder.with_name(f".{folder.name}.old"))
            folder.rename(old)
        discard(folder)
        os.replace(incoming, folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def refresh(folder: Path, url: str) -> None:
    """Replaces a local folder of a run by a copy of the run's URL, which another machine may have continued.

    Only the files that reports read are copied. No effect if the folder owns the URL or its state is there, or if no
    run was begun at the URL.
    """
    storage = Storage(url)
    owner = Owner.of(storage)
    begun = owner is not None or copy_token(storage) is not None
    if begun and not _is_newest(folder, storage, owner):
        with _renewed(folder) as incoming:
            fetch(storage, incoming, complete=False)


def _is_newest(folder: Path, storage: Storage, owner: Owner | None) -> bool:
    """Whether a folder has the newest state of a run at a URL: it owns the URL, or else it was copied there."""
    mirror = mirror_of(folder)
    return mirror is not None and mirror.token == (copy_token(storage) if owner is None else owner.token)


def mirror_of(folder: Path) -> Mirror | None:
    """The mirror of a folder; None if the folder has no .mirror.json."""
    return Mirror(folder) if os.path.lexists(folder / STATE) else None


def clear(url: str) -> None:
    storage = Storage(url)
    storage.remove(storage.names())


def copy_again(folder: Path) -> str | None:
    """Copies files that were added to a run's folder, such as a report, to its URL, and returns that; None: none."""
    mirror = mirror_of(folder)
    if mirror is None:
        return None
    mirror.hold()
    try:
        mirror.push()
    finally:
        mirror.release()
    return mirror.url


# -- runs at URLs, read through temporary copies ----------------------------------------------------------------------


def local_view(source: str | os.PathLike[str], complete: bool = False) -> Path:
    """A folder with the files at a path or URL, for reading only: the path, or a copy deleted when the process ends.

    complete: whether to copy checkpoints and parameters, too; otherwise only the files that reports read are copied.
    """
    if not is_url(source):
        return Path(source)
    url = str(source).rstrip("/")
    view = Path(tempfile.mkdtemp(prefix="raylfl-")) / url.rpartition("/")[2]
    atexit.register(shutil.rmtree, view.parent, ignore_errors=True)
    _views[view] = url
    view.mkdir()
    fetch(Storage(url), view, complete)
    return view


def owner_of(path: Path) -> Owner | None:
    """The process that executes the run of which `local_view` made this copy, or was killed there; None if none is."""
    url = address(path)
    return Owner.of(Storage(url)) if is_url(url) else None


def address(path: Path) -> str:
    """The URL from which `local_view` copied this folder; for a folder that is no copy, its path."""
    for view, url in _views.items():
        if path.is_relative_to(view):
            return join(url, *path.relative_to(view).parts)
    return str(path)
