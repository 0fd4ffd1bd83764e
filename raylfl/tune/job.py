"""The data that all trials of a sweep share, and the run directories of their runs on this node."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raylfl.config.urls import join, staging
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime.records.mirror import begin, exists, mirror_of, take
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.records.views import local_view

LOCK_SECONDS = 300  # longest wait, in seconds, for the previous owner of a run directory or process
T = TypeVar("T")


@dataclass(frozen=True)
class SweepJob:
    """The data shared by all trials of a stage of a sweep.

    content: the content of sweep.yaml. folder: the sweep's folder. workers: the number of workers per run. processes:
    the number of processes of a trial, among which its seeds are divided. command: the command line of the sweep; None:
    that of this process. url: the sweep's URL, to which each run copies its directory, so that nodes need no shared
    folder; None: no URL. cwd: the working directory of the sweep; "": that of Ray's process. gpus: the share of a GPU
    of each process or worker.
    """

    content: dict[str, Any]
    folder: str
    workers: int
    processes: int = 1
    command: str | None = None
    url: str | None = None
    cwd: str = ""
    gpus: float = 0.0

    def run_folder(self, run_id: str) -> Path:
        """The directory of a run on this node, fetched from its URL if the sweep has one.

        It is taken from the node of an earlier attempt, which Ray Tune has ended. Raises RaylflError if this node
        cannot read the sweep's folder.
        """
        if self.url is None:
            if not (Path(self.folder) / "sweep.yaml").is_file():
                raise RaylflError(
                    f"node {platform.node()} cannot read {self.folder}: RAYLFL_RUNS must be a folder that all nodes "
                    "share, or a URL"
                )
            return Path(self.folder) / run_id
        url = join(self.url, run_id)
        return take(url, take_over=True) if exists(url) else staging(url)

    def read_folder(self, run_id: str) -> Path:
        """The directory of another run, for reading; fetched with all files if the sweep has a URL."""
        return Path(self.folder) / run_id if self.url is None else local_view(join(self.url, run_id), complete=True)

    def begin(self, folder: Path) -> None:
        """Makes `folder`, the directory of a new run, the owner of the run's URL, if the sweep has a URL.

        Raises RaylflError if another process claims it at the same time.
        """
        if self.url is None or mirror_of(folder) is not None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not begin(folder, url := join(self.url, folder.name), self.command or "", take_over=True):
            raise RaylflError(f"{url} was begun by another process at the same time")


def retry_while_locked(call: Callable[[], T]) -> T:
    """The result of `call`, which is repeated while it raises BadConfig, for LOCK_SECONDS at most."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return call()
        except BadConfig:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def open_run(folder: Path, command: str | None) -> closing[RunDirectory]:
    """Opens the run directory `folder`, created if missing; returns a context manager that closes it at the end.

    Waits until the process of an earlier attempt has ended. command: the command line that the directory records; None:
    that of this process.
    """
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    return closing(retry_while_locked(lambda: RunDirectory(folder).open(command)))
