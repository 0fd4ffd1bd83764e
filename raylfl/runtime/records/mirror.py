"""A mirror: a copy of a local run directory at a URL, updated after each commit (new rows or a new checkpoint).

A run with `logging.dir=s3://bucket/runs` works in a local folder with all its locks and checksums. After each commit,
`push` copies the files that have changed: records before checkpoints, older checkpoints before newer ones, each
manifest after its files, and summary.json last. Then `push` deletes files at the URL that no longer exist in the folder
(only summary.json is deleted before the copies). A run can therefore be resumed from the URL at any moment.

The file .owner.json at the URL has a token of the local folder that owns the URL. The process that carries out the run
renews the file every BEAT_SECONDS, and each push checks it first. Another machine can take over the run once the owner
has released it, or has not renewed the file for WATCH_SECONDS. The file .mirror.json in the local folder has the URL,
the token, and a list of the copied files.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from raylfl.config.urls import is_url, join, staging
from raylfl.errors import BadConfig, Say
from raylfl.runtime.records.files import atomic_write, discard
from raylfl.runtime.records.record_file import Displaced
from raylfl.runtime.records.storage import Storage, StorageError, fetch

OWNER, STATE = ".owner.json", ".mirror.json"
BEAT_SECONDS = 15.0  # time between two renewals of .owner.json
WATCH_SECONDS = 50.0  # time without a renewal after which an owner counts as lost
SETTLE_SECONDS = 1.0  # wait after a take-over, until a simultaneous one by another machine is visible
ROW_SECONDS = 30.0  # time between copies of rows without a checkpoint
MARK = "summary.json"  # marks a finished run
Copied = dict[str, list[int] | None]  # size, time and inode of each file copied; None: unknown


@dataclass
class Owner:
    """The content of .owner.json: the local folder that owns the files at a URL, and the process that wrote the file.

    token: identifies the folder. held: whether a process carries out the run; False after it has released the run.
    host, process, command: of this process. beat: the time when the file was renewed last, in seconds since 1970.
    """

    token: str
    held: bool = True
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)
    command: str = ""
    beat: float = field(default_factory=time.time)

    def encoded(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()

    @staticmethod
    def of(storage: Storage) -> Owner | None:
        """The owner of the files in this storage; None if there is no owner. Raises BadConfig for a damaged file."""
        content = storage.read(OWNER)
        if content is None:
            return None
        try:
            return Owner(**json.loads(content))
        except (ValueError, TypeError):
            raise BadConfig(f"{storage.url}/{OWNER} is damaged: delete it if no machine carries out this run") from None


class Mirror:
    """Copies a local folder that has a .mirror.json to its URL.

    token: identifies this folder as the owner of the files at the URL; after: the token of the previous owner, or None.
    """

    def __init__(self, folder: Path):
        content = json.loads((folder / STATE).read_text())
        self.folder, self.storage = folder, Storage(content["url"])
        self.token, self.after = str(content["token"]), content["after"]
        self.copied: Copied = content["copied"]
        self.fault: StorageError | None = None  # the failure of the newest copy
        self._newest = 0.0  # time of the newest commit
        self._over = threading.Event()  # ends `_pulse`
        self._pulse: threading.Thread | None = None  # renews the ownership

    def __reduce__(self) -> tuple[type[Mirror], tuple[Path]]:
        return Mirror, (self.folder,)  # without its thread: Ray Tune saves its callbacks, which refer to the sweep

    @property
    def url(self) -> str:
        return self.storage.url

    # -- ownership -------------------------------------------------------------------------------------------

    def hold(self, command: str) -> None:
        """Makes this folder the owner of the URL, and renews the ownership in a thread until `release`.

        command: the command of the run, stored for messages. Raises Displaced if another folder is the owner.
        """
        owner, mine = Owner.of(self.storage), Owner(self.token, command=command)
        if owner is None:
            if not self.storage.create(OWNER, mine.encoded()):
                raise self._elsewhere(Owner.of(self.storage))
        elif owner.token not in (self.token, self.after):
            raise self._elsewhere(owner)
        else:
            self.storage.write(OWNER, mine.encoded())
            if owner.token != self.token:
                time.sleep(SETTLE_SECONDS)
        self._check_owner()
        left = Storage(join(self.url, "checkpoints")).names()  # an interrupted copy's files are not in `copied`
        self.copied = {**dict.fromkeys(f"checkpoints/{name}" for name in left), **self.copied}
        self._over.clear()
        self._pulse = threading.Thread(target=self._beat, args=(mine,), daemon=True, name="raylfl mirror")
        self._pulse.start()

    def release(self) -> None:
        """Releases the ownership, so that another machine can resume the run at once."""
        if self._pulse is None:
            return
        self._over.set()
        self._pulse.join()
        self._pulse = None
        with suppress(StorageError, BadConfig):
            owner = Owner.of(self.storage)
            if owner is not None and owner.token == self.token:
                self.storage.write(OWNER, Owner(self.token, held=False, command=owner.command).encoded())

    def delete(self) -> None:
        """Releases the ownership; deletes the files at the URL if this folder is the owner and the storage answers."""
        self.release()
        with suppress(StorageError, BadConfig, Displaced):
            self._check_owner()
            clear(self.url)

    def _beat(self, mine: Owner) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with suppress(StorageError, BadConfig):  # a push says what is wrong
                owner = Owner.of(self.storage)
                if owner is None or owner.token != self.token:
                    return
                mine.beat = time.time()
                self.storage.write(OWNER, mine.encoded())

    def _check_owner(self) -> None:
        """Checks that this folder is still the owner; raises Displaced if the run was taken over or deleted."""
        owner = Owner.of(self.storage)
        if owner is None or owner.token != self.token:
            raise self._elsewhere(owner)

    def _elsewhere(self, owner: Owner | None) -> Displaced:
        if owner is None:
            return Displaced(f"{self.url} was deleted; what was computed is in {self.folder}")
        return Displaced(
            f"{self.url} was taken over by {owner.host} ({owner.command}); {self.folder} has what was computed here"
        )

    # -- copying ---------------------------------------------------------------------------------------------

    def commit(self, say: Say, seldom: bool = False) -> None:
        """Copies the files that have changed to the URL; a failure of the storage is reported, and raises nothing.

        After a failure, the error is stored in `fault`, and the next commit copies the files again. say: called with a
        line for the user. seldom: whether to copy only if the last copy is at least ROW_SECONDS old. Raises Displaced
        if another machine has taken over the run.
        """
        now = time.monotonic()
        if seldom and now - self._newest < ROW_SECONDS:
            return
        self._newest = now
        before, self.fault = self.fault, None
        try:
            self.push()
        except StorageError as error:
            self.fault = error
            if before is None:
                say(f"warning: {error}. Nothing is lost: all files are in {self.folder}; the next commit copies them")
        else:
            if before is not None:
                say(f"the copy at {self.url} is complete again")

    def push(self) -> None:
        """Copies the files that have changed to the URL, and deletes files there that no longer exist in the folder.

        Raises StorageError, or Displaced if the run was taken over.
        """
        self._check_owner()
        here = {name: _stamp(path) for name, path in _files(self.folder)}
        changed = sorted((name for name in here if self.copied.get(name) != here[name]), key=_turn)
        gone = [name for name in self.copied if name not in here]
        try:
            if MARK in gone:
                self._remove([MARK])
            for name in changed:
                self.storage.put(self.folder / name, name)
                self.copied[name] = here[name]
            self._remove(sorted(gone, key=_turn, reverse=True))
        finally:
            if changed or gone:
                with suppress(OSError):  # a full disk, or a folder that was moved: files are copied twice
                    _mark(self.folder, self.url, self.token, self.after, self.copied)

    def _remove(self, names: list[str]) -> None:
        self.storage.remove(names)
        for name in names:
            self.copied.pop(name, None)


def _files(top: Path) -> list[tuple[str, Path]]:
    """(relative name, path) of the files below a folder, except hidden files and the folders of a sweep's trials."""
    found = []
    for folder, names, files in os.walk(top):
        here = Path(folder)
        names[:] = [name for name in names if not (name.startswith(".") or _is_trial(here / name))]
        found += [here / file for file in files if not file.startswith(".")]
    return [(path.relative_to(top).as_posix(), path) for path in found]


def _is_trial(folder: Path) -> bool:
    """Whether this is the folder of a trial in a sweep's folder; such a folder has its own mirror."""
    return (folder.parent / "sweep.yaml").is_file() and folder.name != "report"


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _turn(name: str) -> tuple[int, int, str, bool, str]:
    """The sort key of a file's name for the order of copies.

    Files outside checkpoints come first, then checkpoints from old to new, then summary.json. In a folder,
    manifest.json comes last.
    """
    folder, _, last = name.rpartition("/")
    stage = 2 if name == MARK else 1 if name.startswith("checkpoints/") else 0
    return stage, len(folder), folder, last == "manifest.json", last


# -- starting a run, and resuming it on another machine ----------------------------------------------------------


def begin(folder: Path, url: str, command: str) -> bool:
    """Makes a local folder the owner of a new run at this URL; returns False if there is a run at the URL.

    It also returns False if another process becomes the owner at the same moment. command: the command of the run.
    Raises BadConfig if the process that owns the URL is alive, but has not copied a run there yet.
    """
    storage, token = Storage(url), secrets.token_hex(8)
    if exists(url):
        return False
    owner = Owner.of(storage)
    if owner is not None:  # its process may have ended before the first copy
        _refuse_alive(storage, owner)
    elif not storage.create(OWNER, Owner(token, command=command).encoded()):
        return False
    _mark(folder, url, token, None if owner is None else owner.token, {})
    return True


def exists(url: str) -> bool:
    """Whether there is a run or a sweep at this URL."""
    return any(Storage(url).read(name) is not None for name in ("config.yaml", "sweep.yaml"))


def at_hand(place: str | os.PathLike[str]) -> Path:
    """The absolute local folder of a run or a sweep.

    place: a path, or a URL, from which `take` fetches the run or sweep.
    """
    return take(str(place).rstrip("/")) if is_url(place) else Path(place).expanduser().resolve()


def take(url: str) -> Path:
    """The local folder with the newest state of the run at this URL, in which the run can be resumed.

    It is the folder on this machine that owns the URL or, if there is none, a new copy. Of a sweep, only the files that
    reports read are copied. Raises BadConfig if there is no run at the URL, or if another machine carries it out.
    """
    folder, storage = staging(url), Storage(url)
    owner = Owner.of(storage)
    if owner is not None and (folder / STATE).is_file() and Mirror(folder).token == owner.token:
        return folder  # it has at least the state of the URL, and more if the last copy failed
    if not exists(url):
        raise BadConfig(f"{url} is not a run directory: it has no config.yaml")
    if owner is not None:
        _refuse_alive(storage, owner)
    with _renewed(folder) as incoming:
        fetch(storage, incoming, whole=storage.read("sweep.yaml") is None)
        copied: Copied = {name: _stamp(path) for name, path in _files(incoming)}
        _mark(incoming, url, secrets.token_hex(8), None if owner is None else owner.token, copied)
    return folder


def _refuse_alive(storage: Storage, owner: Owner) -> None:
    """Raises BadConfig if the owner's process still renews .owner.json, or if another owner appears there.

    Otherwise returns once the owner has released the run, or after WATCH_SECONDS.
    """
    deadline = time.monotonic() + WATCH_SECONDS
    while owner.held and time.monotonic() < deadline:
        time.sleep(min(1.0, WATCH_SECONDS / 10))
        now = Owner.of(storage)
        if now is None or not now.held:
            return
        if (now.token, now.beat) != (owner.token, owner.beat):
            raise BadConfig(
                f"{storage.url} is in use by process {now.process} on {now.host} ({now.command}): wait for it, or stop "
                "it first"
            )


@contextmanager
def _renewed(folder: Path) -> Iterator[Path]:
    """A context with a new empty folder, which replaces `folder` at the end, or is deleted after an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield incoming
        _set_aside(folder)
        os.replace(incoming, folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def _set_aside(folder: Path) -> None:
    """Removes a folder; a folder that has been an owner of a URL is renamed instead.

    Such a folder, which has a .mirror.json, may have rounds that were not copied.
    """
    if not (folder / STATE).is_file():
        discard(folder)
    else:
        target = folder.with_name(f".{folder.name}.old")
        discard(target)
        folder.rename(target)


def _mark(folder: Path, url: str, token: str, after: str | None, copied: Copied) -> None:
    """Writes the .mirror.json of a folder.

    token: identifies the folder as owner of the URL; after: the token of the previous owner, or None.
    """
    atomic_write(folder / STATE, json.dumps({"url": url, "token": token, "after": after, "copied": copied}))


def refresh(folder: Path, url: str) -> None:
    """Replaces a local folder of a run by a copy of the run's URL, which another machine may have continued.

    Only the files that reports read are copied. No effect if the folder is the owner of the URL and therefore at least
    as new, or if no run was begun at the URL.
    """
    storage = Storage(url)
    owner, mirror = Owner.of(storage), mirror_of(folder)
    if owner is None or (mirror is not None and mirror.token == owner.token):
        return
    with _renewed(folder) as incoming:
        fetch(storage, incoming, whole=False)


def mirror_of(folder: Path) -> Mirror | None:
    """The mirror of a folder; None if the folder has no .mirror.json."""
    return Mirror(folder) if (folder / STATE).is_file() else None


def clear(url: str) -> None:
    """Deletes all files below a URL."""
    storage = Storage(url)
    storage.remove(storage.names())


def copy_files(folder: Path, url: str) -> None:
    """Copies the files in a folder to a URL, without the folder's subfolders."""
    for path in folder.iterdir():
        if path.is_file():
            Storage(url).put(path, path.name)


def copy_again(folder: Path) -> str | None:
    """Copies files that were added to a run's folder after its end, such as a report, to the run's URL.

    Returns the URL; None if the folder has no mirror.
    """
    mirror = mirror_of(folder)
    if mirror is None:
        return None
    mirror.push()
    return mirror.url
