"""Ray for runs: a cluster to be on (the caller's, a given one, an own one), and the actors that a run needs there."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from raylfl.config.schema import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray.actor_group import ActorGroup

DIRECT = "RAY_max_direct_call_object_size"  # bytes up to which Ray sends values within calls and answers
OWN_CLUSTER = {  # Ray's settings on a cluster that a run starts, where the environment does not say otherwise
    DIRECT: "1000000",  # Ray: 100 KiB; calls are quicker than the object store, and cost the raylet nothing
    "RAY_worker_niceness": "0",  # Ray: 15, at which two busy neighbours leave workers almost no CPU time
    "RAY_worker_register_timeout_seconds": "600",  # Ray: 60; a process that a busy machine starts slowly is not killed
    "RAY_gcs_server_port_wait_time_s": "120",  # Ray: 20; likewise for Ray's own head process
}
SHARED_MEMORY = Path("/dev/shm")  # where Ray keeps objects on Linux


class Cluster:
    """Ray and the actors of the runs of a block, which are kept from one run to the next."""

    def __init__(self, runtime: RuntimeConfig):
        self.runtime = runtime
        self._connected = self._ours = False
        self._crew: ActorGroup | None = None

    def ready(self) -> None:
        """Returns once Ray is there: the session's own connection, a given cluster, or an own one."""
        if self._connected:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if address_of(self.runtime) is None:
            for name, value in OWN_CLUSTER.items():
                os.environ.setdefault(name, value)
        import ray

        self._ours = not ray.is_initialized()  # else it is the caller's, not ours to end
        if self._ours:
            _connect(self.runtime)
        self._connected = True

    def crew(self, runtime: RuntimeConfig, clients: int) -> ActorGroup:
        """The actors for a run of so many clients; whoever takes them gives them back, or dismisses them.

        Raises BadConfig where they do not fit.
        """
        self.ready()
        count = count_workers(runtime, clients, resources_here())
        crew, self._crew = self._crew, None
        if crew is not None and crew.fits(runtime, count):
            return crew
        if crew is not None:
            crew.dismiss()
        return ActorGroup.start(runtime, count)

    def give_back(self, crew: ActorGroup) -> None:
        """Keep them, with all that they have loaded, for the next run of the block."""
        self._crew = crew

    def end(self) -> None:
        """Ends the actors, and Ray where it was not there before."""
        if self._crew is not None:
            self._crew.dismiss()
        if self._ours:
            import ray

            ray.shutdown()


_around: ContextVar[Cluster | None] = ContextVar("the cluster of the block that we are in", default=None)


@contextmanager
def cluster_for(runtime: RuntimeConfig) -> Iterator[Cluster]:
    """The cluster of the block that this one is in; else a new one, which ends with the block."""
    around = _around.get()
    if around is not None:
        yield around
        return
    cluster = Cluster(runtime)
    token = _around.set(cluster)
    try:
        yield cluster
    finally:
        _around.reset(token)
        cluster.end()


def _connect(runtime: RuntimeConfig) -> None:
    """Raises BadConfig where no cluster is at the given address."""
    import ray

    address = address_of(runtime)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_store_bytes(runtime),
                **quiet,
            )
    except ConnectionError as error:
        raise BadConfig(f"runtime.address={address}: no Ray cluster answers there ({error})") from error


def direct_bytes() -> int:
    """Up to which the cluster sends values within calls and answers, as an actor's environment says."""
    return int(os.environ.get(DIRECT, 100 * 2**10))


def address_of(runtime: RuntimeConfig) -> str | None:
    """Of the given cluster; None: an own one."""
    return runtime.address or os.environ.get("RAY_ADDRESS") or None


def _store_bytes(runtime: RuntimeConfig) -> int:
    """Of an own cluster: 0.3 of the memory, as far as shared memory goes. Only what is used is taken; the data, two
    rounds of uploads and the clients' states should fit, as what does not is spilled to disk.
    """
    if runtime.object_store_mb is not None:
        return runtime.object_store_mb * 2**20
    import psutil

    room = psutil.virtual_memory().total * 0.3
    if SHARED_MEMORY.is_dir():
        room = min(room, psutil.disk_usage(str(SHARED_MEMORY)).free * 0.9)
    return max(int(room), 80 * 2**20)


def count_workers(runtime: RuntimeConfig, clients: int, resources: dict[str, float]) -> int:
    """How many worker actors; raises BadConfig with the arithmetic where they cannot fit."""
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    fit_cpus = math.floor(cpus / runtime.cpus_per_worker + 1e-9)
    share = runtime.gpus_per_worker
    if share == 0:
        fit_gpus = fit_cpus
    elif share < 1:
        fit_gpus = math.floor(1 / share + 1e-9) * math.floor(gpus)
    else:
        fit_gpus = math.floor(gpus / share)
    fit = min(fit_cpus, fit_gpus)
    wanted = runtime.workers or 1
    if fit < wanted:
        need = f"{wanted} x {runtime.cpus_per_worker:g} CPUs = {wanted * runtime.cpus_per_worker:g}"
        if share:
            need += f" and {wanted} x {share:g} GPUs = {wanted * share:g}"
        have = f"{cpus:g} CPUs and {gpus:g} GPUs" if share else f"{cpus:g} CPUs"
        raise BadConfig(
            f"runtime.workers={runtime.workers or 'null'} needs {need}, but the cluster has {have}: at most "
            f"{fit} workers fit (lower runtime.workers, cpus_per_worker or gpus_per_worker)"
        )
    return runtime.workers or min(fit, clients)


def check_resources(runtime: RuntimeConfig, clients: int) -> None:
    """Raises BadConfig for workers that cannot fit, as far as it can be known before a cluster is started or joined."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        count_workers(runtime, clients, resources_here())
    elif address_of(runtime) is None:
        import torch

        count_workers(runtime, clients, {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())})


def resources_here() -> dict[str, float]:
    """What workers may take: the cluster; called within a placement group (a Ray Tune trial), what is left of that."""
    import ray

    group = ray.util.get_current_placement_group()
    if group is None:
        return ray.cluster_resources()
    taken = ray.get_runtime_context().get_assigned_resources()
    left = {key: -float(value) for key, value in taken.items()}
    for bundle in group.bundle_specs:
        for key, value in bundle.items():
            left[key] = left.get(key, 0.0) + value
    return left
