"""The directory of a run: its files and its locks.

runs/<name>/<id>/ has config.yaml, directions.json, metrics.jsonl, participation.jsonl, partition.json,
partition_counts.json, checkpoints/, final.pt, edges.csv, summary.json and log.txt, and topology.jsonl for algorithms
without a server. An existing id is never overwritten, and symbolic links are never followed.

There are two locks, each released when its process ends. `.lock` belongs to the process that started the run (the
driver) and contains its command; a second process is refused. `.writing` belongs to the process of the round loop. This
may be an actor, which can outlive a killed driver for a moment; a resumed run waits for it.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from raylfl.config.groups.top import folder_name
from raylfl.config.text import FORMAT, KEY, dump
from raylfl.config.urls import join
from raylfl.errors import BadConfig, RaylflError, Say
from raylfl.runtime.records import mirror
from raylfl.runtime.records.files import (
    Displaced,
    Locks,
    RecordFile,
    atomic_write,
    discard,
    is_locked,
    open_plain,
    require_inside,
    separate,
)
from raylfl.runtime.records.lines import jsonable, read_rows
from raylfl.runtime.records.provenance import sign

RECORDS = ("metrics.jsonl", "participation.jsonl", "topology.jsonl")  # the last one without a server only
DIRECTIONS = "directions.json"  # whether the metric objects that the module logs are better high or low
CLIENT_NAMES = "client_names.json"  # the clients' names in order, if the data give them
DIVERGED = "diverged.txt"  # marks the folder of a diverged run, which is not repeated; has the reason
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
WAIT_SECONDS = 60  # longest wait, in seconds, for the round loop of a driver that has ended


class RunDirectory:
    """The directory of one run: its record files, whole files and locks.

    `open` takes the lock on the run, `claim` the lock on writing rounds; `close` releases the two locks. The attribute
    `mirror` copies the directory to a URL; it is None for a run without a URL.
    """

    def __init__(self, path: Path):
        self.path = path
        self._locks = Locks(path)
        self._files: dict[str, RecordFile] = {}
        self.mirror = mirror.mirror_of(path)

    @staticmethod
    def create(base: Path, name: str, run_id: str | None, seed: int, url: str | None = None) -> RunDirectory:
        """Creates the run directory base/name/run_id and takes the run's lock.

        run_id: None: date, time and seed. url: if not None, the run is copied to url/name/run_id. Raises BadConfig if
        the directory cannot be written or the id exists.
        """
        folder_name("name", name)
        if run_id is not None:
            folder_name("logging.id", run_id)
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}-s{seed}"
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            for attempt in range(1000):
                path = base / name / (run_id or (f"{stamp}-{attempt}" if attempt else stamp))
                with suppress(FileExistsError):
                    path.mkdir()
                    if url is None or _begun(path, join(url, name, path.name)):
                        break
                if run_id is not None:
                    if (begun := RunDirectory(path)).in_use:
                        raise begun.refusal
                    raise id_exists(path if url is None or path.exists() else join(url, name, path.name))
            (path / "checkpoints").mkdir()
            (path / "log.txt").touch()
        except OSError as error:
            raise BadConfig(f"logging.dir={base}: cannot make a run directory there ({error.strerror})") from error
        return RunDirectory(path.resolve()).open()

    # -- locks -----------------------------------------------------------------------------------------------

    def open(self) -> RunDirectory:
        """Takes the run's lock, and replaces hard links by copies (`separate`); returns this object.

        Raises BadConfig if another process holds the lock, the directory is read-only, or a symbolic link in it leads
        out of it.
        """
        try:
            free = self._locks.take(".lock")
            if not free:  # `in_use` may hold it for a moment
                time.sleep(0.1)
                free = self._locks.take(".lock")
        except OSError as error:
            raise BadConfig(
                f"{self.path} cannot be written, or locked ({error.strerror}): logging.dir=DIR sets another place"
            ) from error
        if not free:
            raise self.refusal
        with suppress(OSError):  # a full disk
            self._locks.note(".lock", shlex.join(sys.argv))
        try:
            require_inside(self.path)
            separate(self.path)
            if self.mirror is not None:
                self.mirror.hold()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def address(self) -> str:
        """The argument of `raylfl resume` for this run: its URL, or its path."""
        return str(self.path) if self.mirror is None else self.mirror.url

    def request_copy(self, say: Say, seldom: bool = False) -> None:
        """Requests a copy of what has changed to the run's URL, if it has one: see `Mirror.commit`."""
        if self.mirror is not None:
            self.mirror.commit(say, seldom)

    def copy_to_url(self, say: Say) -> None:
        """Copies what has changed to the run's URL, and waits for the end; else as `request_copy`."""
        if self.mirror is not None:
            self.mirror.complete(say)

    @property
    def command(self) -> str:
        """The command that started the run, from its lock file; without one, the command line of this process."""
        lock = self.path / ".lock"
        return lock.read_text(errors="replace") if lock.is_file() else shlex.join(sys.argv)

    @property
    def in_use(self) -> bool:
        """Whether a process holds the run's lock, which means that this process executes the run now."""
        return is_locked(self.path / ".lock")

    @property
    def refusal(self) -> BadConfig:
        """The error for a run whose lock another process holds."""
        return BadConfig(f"{self.path} is in use by another process ({self.command}): wait for it, or stop it first")

    def claim(self) -> None:
        """Takes the lock on writing rounds, and deletes temporary files of killed processes.

        An earlier round loop may still hold the lock; raises RaylflError after WAIT_SECONDS.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        try:
            while not self._locks.take(".writing"):
                if time.monotonic() > deadline:
                    raise RaylflError(f"a process of an earlier run still writes to {self.path} after {WAIT_SECONDS} s")
                time.sleep(0.05)
            for leftover in self.path.glob(".*.tmp"):  # left by a killed process
                discard(leftover)
        except OSError as error:
            raise RaylflError(f"{self.path} cannot be written ({error.strerror})") from error

    def close(self) -> None:
        try:
            if self.mirror is not None:
                self.mirror.release()
        finally:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._locks.close()

    def delete(self) -> None:
        """Deletes the directory, and its copy at the run's URL; `close` must still be called."""
        with suppress(OSError):
            discard(self.path)
        if self.mirror is not None:
            self.mirror.delete()

    def check(self) -> None:
        """Raises Displaced if another process has moved, deleted or changed the directory or an open record file."""
        if self._locks.lost(".writing"):
            raise Displaced(
                f"{self.path} was moved or deleted while the run wrote to it; if moved, `raylfl resume` works in "
                "its new place"
            )
        for file in self._files.values():
            file.check()

    def require_copied(self) -> None:
        """Checks that the last copy to the run's URL succeeded; raises RaylflError otherwise."""
        if self.mirror is not None and self.mirror.fault is not None:
            raise RaylflError(
                f"{self.mirror.fault}. The run is finished and complete in {self.path}: raylfl resume {self.address} "
                "here copies the rest"
            )

    # -- records -------------------------------------------------------------------------------------------------

    def append(self, name: str, line: str) -> None:
        """Appends a line to a record file such as metrics.jsonl, completely or not at all. Raises RaylflError."""
        try:
            self._record(name).append(line.encode())
        except OSError as error:
            self.check()
            raise self.write_error(name, error) from error

    def _record(self, name: str) -> RecordFile:
        if name not in self._files:
            self._files[name] = RecordFile(self.path / name)
        return self._files[name]

    def sync(self) -> dict[str, tuple[int, str]]:
        """Syncs the record files to disk; returns record file -> its size and checksum, for a checkpoint."""
        for file in self._files.values():
            file.sync()
        return {name: (self._record(name).size, self._record(name).sha256) for name in filter(self._holds, RECORDS)}

    def _holds(self, name: str) -> bool:
        return name in self._files or (self.path / name).exists()

    def truncate(self, sizes: Mapping[str, int]) -> None:
        """Cuts the record files to these sizes in bytes; a file without an entry is emptied."""
        for name in filter(self._holds, RECORDS):
            try:
                with os.fdopen(open_plain(self.path / name, os.O_RDWR), "r+b") as file:
                    file.truncate(min(sizes.get(name, 0), os.fstat(file.fileno()).st_size))
            except OSError as error:
                raise self.write_error(name, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "metrics.jsonl").rows

    def log(self, text: str) -> None:
        """Appends a line with the time to log.txt; errors such as a full disk are ignored."""
        with suppress(OSError), os.fdopen(open_plain(self.path / "log.txt", LOG_FLAGS), "a") as file:
            file.write(f"{datetime.now().isoformat(timespec='milliseconds')} {text}\n")

    # -- whole files -----------------------------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes) -> None:
        """Writes the file `name` of the directory, atomically; raises RaylflError if the disk is full."""
        self.check()
        try:
            atomic_write(self.path / name, content)
        except OSError as error:
            raise self.write_error(name, error) from error

    def write_config(self, resolved: dict[str, Any]) -> None:
        self.write("config.yaml", dump({KEY: FORMAT, **resolved}))
        sign(self.path / "config.yaml", resolved)

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.write("summary.json", json.dumps(jsonable({**summary, "command": self.command}), indent=2) + "\n")

    def write_error(self, name: str, error: OSError) -> RaylflError:
        return RaylflError(
            f"{self.path / name} could not be written ({error.strerror}); the checkpoints are intact: "
            f"{remedy(error)}, then resume"
        )


def _begun(path: Path, url: str) -> bool:
    """Makes a new folder the owner of this URL; if that fails, or there is a run at the URL, removes the folder."""
    begun = False
    try:
        begun = mirror.begin(path, url)
    finally:
        if not begun:
            discard(path)
    return begun


def id_exists(address: Path | str) -> BadConfig:
    """The error for a run id that exists already, in this folder or at this URL."""
    id_ = str(address).rpartition("/")[2]
    return BadConfig(
        f"logging.id={id_}: {address} exists and is never overwritten; `raylfl resume {address}` continues it"
    )


def remedy(error: OSError) -> str:
    return "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
