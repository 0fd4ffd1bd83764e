"""A thread that ends a sweep if Ray is lost, with the command that resumes the sweep.

Ray Tune's calls have no time limit. A minute after the loss of its head, Ray ends the process with its own message,
which lacks this command.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from raylfl.errors import RaylflError
from raylfl.runtime.ray.cluster import Cluster

SECONDS = 1.0  # time between two checks


@contextmanager
def watched(cluster: Cluster, resume: str, record: Callable[[], object]) -> Iterator[None]:
    """A context manager that ends this process with exit code 1 if Ray is lost.

    If the caller had started Ray before the sweep, nothing is watched.

    resume: the command that continues the sweep. record: called before the end, to write the sweep's tables.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(SECONDS):
            try:
                cluster.check()
            except RaylflError as error:
                if over.is_set():  # the sweep has ended meanwhile
                    return
                print(f"raylfl: {error}: {resume} continues the open trials", file=sys.stderr, flush=True)
                _end(cluster, record)
                return

    thread = threading.Thread(target=watch, daemon=True, name="raylfl sweep")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _end(cluster: Cluster, record: Callable[[], object]) -> None:
    """Calls `record`, and ends this process.

    If this process has started Ray, Ray's processes are ended first; their trials would otherwise continue for a while.
    """
    with suppress(Exception):
        record()
    if cluster.lost() is not None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    os._exit(1)
