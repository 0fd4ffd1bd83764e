"""A run's directory: who may write there, and what stands in it.

runs/<name>/<id>/ holds config.yaml, metrics.jsonl, participation.jsonl, partition.json, checkpoints/, final.pt,
summary.json and log.txt. An existing id is never overwritten.

Two locks, both gone with the process that holds them. `.lock` belongs to the process that carries out the run, and
says by which command: a second one is refused. `.writing` belongs to the process of the round loop, which may be an
actor and outlive a killed driver by a moment: whoever goes on with the run waits for it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import yaml

from raylfl.errors import BadConfig, RaylflError

PACKAGES = ("raylfl", "ray", "lightning", "torch", "torchvision", "numpy")
RECORDS = ("metrics.jsonl", "participation.jsonl")
WAIT_SECONDS = 60  # for a round loop whose driver is gone to be gone as well


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write aside, sync, rename, sync the folder: the file is the old one or the new one, never half of it."""
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


class RunDirectory:
    """The files of one run. `open` it to carry it out, `claim` it to write rounds; `close` gives both locks back."""

    def __init__(self, path: Path):
        self.path = path
        self._locks: dict[str, IO[bytes]] = {}
        self._files: dict[str, IO[bytes]] = {}

    @staticmethod
    def create(base: Path, name: str, run_id: str | None, seed: int) -> RunDirectory:
        """A new directory; raises BadConfig where it cannot be written or the id exists."""
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}-s{seed}"
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            for attempt in range(1000):
                path = base / name / (run_id or (f"{stamp}-{attempt}" if attempt else stamp))
                with suppress(FileExistsError):
                    path.mkdir()
                    break
                if run_id is not None:
                    raise existing(path)
            (path / "checkpoints").mkdir()
            (path / "log.txt").touch()
        except OSError as error:
            raise BadConfig(f"logging.dir={base}: cannot make a run directory there ({error.strerror})") from error
        return RunDirectory(path.resolve()).open()

    def open(self, command: str | None = None) -> RunDirectory:
        """Take the run's lock; raises BadConfig where another process holds it or the place is read-only.

        command: what was typed to have the run carried out; None: the command line of this process.
        """
        try:
            free = self._lock(".lock")
            if not free:  # `in_use` takes it for a moment
                time.sleep(0.1)
                free = self._lock(".lock")
        except OSError as error:
            raise BadConfig(
                f"{self.path} cannot be written, or locked ({error.strerror}): logging.dir=DIR sets another place"
            ) from error
        if not free:
            raise BadConfig(f"{self.path} is in use by another process ({self.command}): wait for it, or stop it first")
        with suppress(OSError):  # a full disk
            self._locks[".lock"].truncate(0)
            self._locks[".lock"].write((command or shlex.join(sys.argv)).encode())
        return self

    @property
    def command(self) -> str:
        """By which the run is, or was last, carried out; a server actor's own command line is not what was typed."""
        return (self.path / ".lock").read_text() if (self.path / ".lock").exists() else shlex.join(sys.argv)

    @property
    def in_use(self) -> bool:
        """Whether a process carries the run out at this moment."""
        try:
            with open(self.path / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError as error:
            return isinstance(error, BlockingIOError)

    def claim(self) -> None:
        """Take the lock on writing rounds, once a predecessor that was cut off from its driver has ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._lock(".writing"):
            if time.monotonic() > deadline:
                raise RaylflError(f"a process of an earlier run still writes to {self.path} after {WAIT_SECONDS} s")
            time.sleep(0.05)
        for leftover in self.path.glob(".*.tmp"):  # of a process killed while it wrote
            leftover.unlink(missing_ok=True)

    def _lock(self, name: str) -> bool:
        """Whether the lock is now ours; raises OSError on a file system without locks."""
        if name in self._locks:
            return True
        lock = open(self.path / name, "ab", buffering=0)  # noqa: SIM115 - held for the run's life
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._locks[name] = lock
        return True

    def close(self) -> None:
        for held in (self._files, self._locks):
            for file in held.values():
                file.close()
            held.clear()

    # -- records a round -------------------------------------------------------------------------------------

    def append(self, name: str, line: str) -> None:
        """Add a line to metrics.jsonl or participation.jsonl, visible at once to whoever reads along.

        Whole or not at all: raises RaylflError where the disk has no room for it.
        """
        if name not in self._files:
            self._files[name] = open(self.path / name, "ab", buffering=0)  # noqa: SIM115 - for the run's life
        file, rest = self._files[name], line.encode()
        before = self._size(name)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(before)
            raise self.unwritten(name, error) from error

    def sync(self) -> dict[str, int]:
        """Everything appended is on disk; the sizes of the record files, for a checkpoint to remember."""
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: self._size(name) for name in RECORDS}

    def _size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def lacks(self, sizes: dict[str, int]) -> str | None:
        """The name of a record file that is shorter than it once was; None: all are whole."""
        return next((name for name, size in sizes.items() if self._size(name) < size), None)

    def truncate(self, sizes: dict[str, int]) -> None:
        """Forget the records after a checkpoint: those rounds will run, and be written, again."""
        for name, size in sizes.items():
            if self._size(name) > size:
                with open(self.path / name, "r+b") as file:
                    file.truncate(size)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return list(read_rows(path)) if path.exists() else []

    def log(self, text: str) -> None:
        """A line of log.txt, with the time; a disk that has no room for it must not end a run."""
        with suppress(OSError), open(self.path / "log.txt", "a") as file:
            file.write(f"{datetime.now().isoformat(timespec='milliseconds')} {text}\n")

    # -- what stands there once --------------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes) -> None:
        """A whole file, or the one before; raises RaylflError where the disk has no room for it."""
        try:
            atomic_write(self.path / name, content)
        except OSError as error:
            raise self.unwritten(name, error) from error

    def write_config(self, resolved: dict[str, Any]) -> None:
        self.write("config.yaml", yaml.safe_dump(resolved, sort_keys=False))

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.write("summary.json", json.dumps(jsonable({**summary, "command": self.command}), indent=2) + "\n")

    def unfinish(self) -> None:
        """Remove what marks a finished run, because more rounds follow; final.pt stays until there is a newer one."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def unwritten(self, name: str, error: OSError) -> RaylflError:
        """What to raise where a file could not be written."""
        return RaylflError(
            f"{self.path / name} could not be written ({error.strerror}); the checkpoints are intact: "
            "free some space, then resume"
        )


def existing(path: Path) -> BadConfig:
    """What to raise where a run of the wanted id is there already."""
    hint = f"`raylfl resume {path}` goes on with it"
    return BadConfig(f"logging.id={path.name}: {path} exists and is never overwritten; {hint}")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line cut short by a crash is passed over."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def jsonable(value: Any) -> Any:
    """Plain JSON values; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def metrics_line(metrics: dict[str, Any]) -> str:
    """A row of metrics.jsonl; a metric that is not finite is left out, as not measured."""
    plain = {k: jsonable(v) for k, v in metrics.items()}
    return json.dumps({k: v for k, v in plain.items() if v is not None}) + "\n"


@cache
def versions() -> dict[str, str]:
    """Of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def environment() -> dict[str, Any]:
    """Versions, git commit and host resources, for summary.json."""
    import psutil

    memory = psutil.virtual_memory().total / 2**30
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "host": {"platform": platform.platform(), "cpus": os.cpu_count(), "memory_gib": round(memory, 1)},
    }


def git_commit() -> str | None:
    """The commit of the working directory, with `+changes` where files differ from it; None outside git."""
    try:
        run = lambda *args: subprocess.run(["git", *args], capture_output=True, text=True, timeout=5)  # noqa: E731
        head = run("rev-parse", "HEAD")
        if head.returncode:
            return None
        return head.stdout.strip() + ("+changes" if run("status", "--porcelain", "-uno").stdout.strip() else "")
    except (OSError, subprocess.TimeoutExpired):
        return None


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Final and best values of the metrics: the largest accuracy, the smallest of everything else."""
    final: dict[str, Any] = {}
    best: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if name == "round" or not isinstance(value, (int, float)):
                continue
            final[name] = value
            if not name.startswith(("cost/", "time/", "cohort/", "algo/")):
                better = max if name.endswith("accuracy") else min
                best[name] = better(best.get(name, value), value)
    return {"rounds": len(rows), "final": final, "best": best}
