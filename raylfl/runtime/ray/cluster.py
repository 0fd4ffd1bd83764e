"""The Ray cluster of a run (the caller's, the one at a given address, or a new one) and the actors of the run."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import RaylflError
from raylfl.experiment.parts import WorkerSetup
from raylfl.runtime.ray.connection import OWN_CLUSTER, address_of, join, listens, start
from raylfl.startup import process

if TYPE_CHECKING:
    from raylfl.runtime.ray.actor_group import ActorGroup

HEAD = ("gcs_server", "raylet")  # processes without which a Ray on one machine is lost
SILENT_SECONDS = 30  # without an answer until a given cluster is abandoned; after 60 s Ray would end this process


class RayLost(RaylflError):
    """Raised if one of the Ray processes that this process started has ended: no actor can be reached any more."""


@dataclass
class Connection:
    """The connection of this process to Ray, shared by all runs of the process, also in other threads.

    ours: whether raylfl, not its caller, connected this process to Ray; raylfl then disconnects after the last use.
    head: the processes of Ray's head (gcs_server, raylet) if this process started the cluster; otherwise empty.
    watcher: ends Ray's agents if this process is killed: by themselves they need a minute, unlike all others.
    """

    ours: bool
    head: list[psutil.Process] = field(default_factory=list)
    watcher: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        """Disconnects from Ray; ends Ray if this process started it."""
        import ray

        ray.shutdown()
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.communicate()


_lock = threading.RLock()  # held while Ray is started or ended
_connection: Connection | None = None
_users = 0  # number of clusters in use


class Cluster:
    """The connection to Ray and the actors for the runs of a `cluster_for` block, kept from one run to the next."""

    def __init__(self, runtime: RuntimeConfig):
        self.runtime = runtime
        self.notes: list[str] = []  # lines for the user about how Ray was started
        self._connection: Connection | None = None
        self._group: ActorGroup | None = None
        self._answered = 0.0  # the time of the newest answer of a given cluster; 0 before the first check
        self.silent = False  # whether a given cluster was abandoned, because its head does not answer

    def ready(self) -> None:
        """Connects to Ray unless connected: to the caller's Ray, a given cluster, or a new Ray on this machine."""
        global _connection, _users
        if self._connection is not None:
            return
        with _lock:
            if _connection is None:
                _connection = self._connect()
            self._connection = _connection
            _users += 1

    def _connect(self) -> Connection:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        address = address_of(self.runtime)
        if address is None:
            for name, value in OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
        import ray

        if ray.is_initialized():  # the caller's session, which only the caller may end
            return Connection(ours=False)
        if address:
            join(self.runtime, address)
            return Connection(ours=True)
        others = {child.pid for child in _head_processes()}
        self.notes += start(self.runtime)
        head = [child for child in _head_processes() if child.pid not in others]
        children = [child for raylet in head for child in raylet.children()]
        agents = [child.pid for child in children if "agent" in " ".join(child.cmdline()).lower()]
        return Connection(ours=True, head=head, watcher=process.kill_after_me(agents, "ray"))

    def take_actors(self, runtime: RuntimeConfig, setup: WorkerSetup, notify: Callable[[str], None]) -> ActorGroup:
        """The actors for a run: kept ones if they fit its settings, otherwise new ones, as `ActorGroup.start`.

        The caller passes them to `give_back` or dismisses them.
        """
        from raylfl.runtime.ray.actor_group import ActorGroup

        self.ready()
        group, self._group = self._group, None
        if group is not None and group.suit(runtime, setup):
            return group
        if group is not None:
            group.dismiss()
        return ActorGroup.start(runtime, setup, notify)

    def give_back(self, group: ActorGroup) -> None:
        """Keeps the actors, with the modules they have loaded, for the next run of the block."""
        self._group = group

    def lost(self) -> psutil.Process | None:
        """A process of Ray's head that has ended; None if there is none, or if this process did not start Ray."""
        head = [] if self._connection is None else self._connection.head
        return next((p for p in head if not p.is_running() or p.status() == psutil.STATUS_ZOMBIE), None)

    def check(self) -> bool:
        """Checks that Ray is alive, unless the caller started Ray; returns False if a given cluster does not answer.

        Raises RayLost if this process started Ray and a process of Ray has ended. Raises RaylflError if a cluster at a
        given address has not answered for SILENT_SECONDS. Without this check, Ray would end this process later, with no
        message on how to continue.
        """
        if (ended := self.lost()) is not None:
            raise RayLost(f"process {ended.pid} of Ray has ended unexpectedly")
        if self._connection is None or self._connection.head or not self._connection.ours:
            return True
        import ray

        address, now = ray.get_runtime_context().gcs_address, time.monotonic()
        if listens(address, 2.0) or not self._answered:
            self._answered = now
            return True
        if now - self._answered > SILENT_SECONDS:
            self.silent = True
            raise RaylflError(f"the Ray cluster at {address} has not answered for {SILENT_SECONDS} s")
        return False

    def await_answer(self) -> None:
        """Waits until the head of a given cluster answers, because Ray's own calls have no time limit.

        Raises the errors of `check`.
        """
        while not self.check():
            time.sleep(1.0)

    def start_again(self) -> None:
        """Connects to a new Ray after the loss of the old one; the run then has no actors yet.

        The new Ray may be one that another run of this process has started since the loss.
        """
        global _connection
        self._group = None
        with _lock:
            if _connection is not None and self._connection is _connection:
                _connection.end()
                _connection = self._connect()
            self._connection = _connection

    def end(self) -> None:
        """Ends the actors; the last `Cluster` in use also ends what raylfl itself began: the connection, and Ray."""
        global _connection, _users
        if self._group is not None:
            self._group.dismiss()
            self._group = None
        if self._connection is None:
            return
        with _lock:
            self._connection, _users = None, _users - 1
            if _users == 0:
                ended, _connection = _connection, None
                if ended is not None and ended.ours:
                    ended.end()


def _head_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() in HEAD]


_enclosing: ContextVar[Cluster | None] = ContextVar("the cluster of the enclosing block", default=None)


@contextmanager
def cluster_for(runtime: RuntimeConfig) -> Iterator[Cluster]:
    """A context with the `Cluster` of the enclosing `cluster_for` block or, if there is none, with a new `Cluster`.

    A new one ends with this block.
    """
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
