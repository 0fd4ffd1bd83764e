"""The Ray cluster of a run (the caller's, a given one, or one started for the run) and the actors of the run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import psutil

from raylfl.config.schema import RuntimeConfig
from raylfl.errors import RaylflError
from raylfl.runtime.ray.actor_group import ActorGroup
from raylfl.runtime.ray.connection import OWN_CLUSTER, address_of, join, listens, start
from raylfl.runtime.ray.resources import count_workers, resources_here

HEAD = ("gcs_server", "raylet")  # Ray on one machine is lost without these processes
SILENT_SECONDS = 30  # without an answer, after which a given cluster is abandoned; Ray ends this process after 60


class RayLost(RaylflError):
    """A process of the Ray cluster that this run started has ended; no actor can be reached any more."""


class Cluster:
    """Ray and its actors for the runs of a block; they are kept from one run to the next."""

    def __init__(self, runtime: RuntimeConfig):
        self.runtime = runtime
        self.notes: list[str] = []  # lines for the user about how Ray was started
        self._connected = self._ours = False
        self._head: list[psutil.Process] = []
        self._group: ActorGroup | None = None
        self._answered = 0.0

    def ready(self) -> None:
        """Connects to Ray: the session's own connection, a given cluster, or a new Ray on this machine."""
        if self._connected:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        address = address_of(self.runtime)
        if address is None:
            for name, value in OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
        import ray

        self._ours = not ray.is_initialized()  # otherwise the caller ends it
        if self._ours and address:
            join(self.runtime, address)
        elif self._ours:
            others = {child.pid for child in _children(HEAD)}
            self.notes += start(self.runtime)
            self._head = [child for child in _children(HEAD) if child.pid not in others]
        self._connected = True

    def take_actors(self, runtime: RuntimeConfig, clients: int) -> ActorGroup:
        """The actors for a run with `clients` clients; the caller gives them back or dismisses them.

        Raises BadConfig if they do not fit on the cluster.
        """
        self.ready()
        count = count_workers(runtime, clients, resources_here())
        group, self._group = self._group, None
        if group is not None and group.fits(runtime, count):
            return group
        if group is not None:
            group.dismiss()
        return ActorGroup.start(runtime, count)

    def give_back(self, group: ActorGroup) -> None:
        """Keeps the actors, with the modules they have loaded, for the next run of the block."""
        self._group = group

    def lost(self) -> psutil.Process | None:
        """The process of this run's own Ray that has ended; None: all are running."""
        return next((p for p in self._head if not p.is_running() or p.status() == psutil.STATUS_ZOMBIE), None)

    def check(self) -> None:
        """Checks that Ray is alive. Raises RayLost for this run's own Ray, RaylflError for a given cluster.

        Ray itself would end this process without a message on how to continue: some seconds after the end of its
        raylet, and a minute after the end of the head's gcs_server.
        """
        if (process := self.lost()) is not None:
            raise RayLost(f"process {process.pid} of Ray has ended unexpectedly")
        if self._head or not self._ours:
            return
        import ray

        address, now = ray.get_runtime_context().gcs_address, time.monotonic()
        if listens(address, 2.0) or not self._answered:
            self._answered = now
        elif now - self._answered > SILENT_SECONDS:
            raise RaylflError(f"the Ray cluster at {address} has not answered for {SILENT_SECONDS} s")

    def start_again(self) -> None:
        """Starts a new Ray in place of one that was lost, without actors."""
        import ray

        self._group, self._connected, self._head = None, False, []
        ray.shutdown()
        self.ready()

    def end(self) -> None:
        """Ends the actors, and Ray if this object started it."""
        if self._group is not None:
            self._group.dismiss()
        if self._ours:
            import ray

            ray.shutdown()


def _children(names: tuple[str, ...]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() in names]


_enclosing: ContextVar[Cluster | None] = ContextVar("the cluster of the enclosing block", default=None)


@contextmanager
def cluster_for(runtime: RuntimeConfig) -> Iterator[Cluster]:
    """A context with the cluster of the enclosing block, or with a new cluster that ends with this block."""
    enclosing = _enclosing.get()
    if enclosing is not None:
        yield enclosing
        return
    cluster = Cluster(runtime)
    token = _enclosing.set(cluster)
    try:
        yield cluster
    finally:
        _enclosing.reset(token)
        cluster.end()
