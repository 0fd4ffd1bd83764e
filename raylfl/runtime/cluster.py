"""A run on Ray: a cluster to run on (a given one, or an own one), the server actor, and its watcher."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raylfl.config.schema import RuntimeConfig
from raylfl.errors import BadConfig, RaylflError
from raylfl.experiment import Experiment
from raylfl.runtime.run_dir import RunDirectory
from raylfl.runtime.stopping import stop_on_signals

SHARED_MEMORY = Path("/dev/shm")  # where Ray keeps objects on Linux
SERVER_LIVES = 5  # how often a lost server actor is started again without a finished round in between


@contextmanager
def connected(runtime: RuntimeConfig) -> Iterator[None]:
    """Inside, Ray is there: the session's own connection if there is one, a given cluster, or an own one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():  # the caller's: not ours to end
        yield
        return
    address = runtime.address or os.environ.get("RAY_ADDRESS")
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
    try:
        yield
    finally:
        ray.shutdown()


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


class ServerActor:
    """The round loop with an address; it owns every client's state."""

    def __init__(self, shared: list[Any], workers: list[Any], folder: str):
        import ray
        import torch

        from raylfl.runtime.ray_backend import RayBackend
        from raylfl.runtime.session import Session

        torch.set_num_threads(1)
        experiment: Experiment = ray.get(shared[0])
        self.session: Session | None = None
        self.run_dir = run_dir = RunDirectory(Path(folder))  # the lock stays with the process that started the run
        self.backend = RayBackend(experiment, shared[0], workers, self.say)
        self.session = Session(experiment, self.backend, run_dir)

    def say(self, text: str) -> None:
        """News of the workers; before there is a session, for log.txt alone."""
        if self.session is None:
            self.run_dir.log(text)
        else:
            self.session.say(text)

    def rows(self, resume: bool) -> Iterator[tuple[dict[str, Any], list[str]]]:
        assert self.session is not None
        for metrics in self.session.rows(resume):
            messages, self.session.messages = self.session.messages, []
            yield metrics, messages

    def stop(self) -> None:
        assert self.session is not None
        self.session.stop()


def rows(
    experiment: Experiment, run_dir: RunDirectory, resume: bool
) -> Generator[tuple[dict[str, Any] | None, list[str]], None, None]:
    """(metrics, messages) of each round; a lost server actor is started again from its newest checkpoint."""
    runtime = experiment.config.runtime
    with connected(runtime):
        import ray
        from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

        from raylfl.runtime.actors import start_workers

        count = count_workers(runtime, experiment.world.count, resources_here())
        shared = ray.put(experiment)
        seen, lives = -1, SERVER_LIVES
        unsaid: list[str] = []
        server, asked = None, False

        def ask_to_stop() -> None:
            nonlocal asked
            asked = True
            if server is not None:
                server.stop.remote()

        with stop_on_signals(ask_to_stop):
            while True:
                workers = start_workers(runtime, count)  # they load their modules while the server loads its own
                server = _start_server(shared, workers, run_dir)
                if asked:
                    server.stop.remote()
                try:
                    for reference in server.rows.options(num_returns="streaming").remote(resume):
                        metrics, messages = ray.get(reference)
                        unsaid += messages
                        if metrics["round"] > seen:  # rounds repeated after a restart were seen already
                            seen, lives = metrics["round"], SERVER_LIVES
                            said, unsaid = unsaid, []
                            yield metrics, said
                    return
                except (RayActorError, RayTaskError) as error:
                    cause = _original(error)
                    if not isinstance(cause, (RayActorError, ObjectLostError)):
                        raise cause from None
                    if getattr(cause, "actor_init_failed", False):
                        raise RaylflError(
                            f"the server actor could not start: {str(cause).strip().splitlines()[-1]}"
                        ) from error
                    lives -= 1
                    if lives == 0:
                        raise RaylflError(
                            f"the server actor was lost {SERVER_LIVES} times without finishing a round ({cause})"
                        ) from error
                    run_dir.log(
                        "the server actor, or what it kept, was lost: starting again from the newest checkpoint"
                    )
                    resume = True
                finally:
                    for actor in (server, *workers):
                        ray.kill(actor)


def check_resources(runtime: RuntimeConfig, clients: int) -> None:
    """Raises BadConfig for workers that cannot fit, as far as it can be known before a cluster is started or joined."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        count_workers(runtime, clients, resources_here())
    elif not (runtime.address or os.environ.get("RAY_ADDRESS")):
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


def _start_server(shared: Any, workers: list[Any], run_dir: RunDirectory) -> Any:
    """On this node, where the run directory is; two threads, so that it can be asked to stop while it works."""
    import ray

    remote = ray.remote(ServerActor).options(num_cpus=0, max_concurrency=2, scheduling_strategy=_this_node())
    return remote.remote([shared], workers, str(run_dir.path))


def _this_node() -> Any:
    """This node, within the placement group that this process is in, if any: the workers then are there, too."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    node, group = ray.get_runtime_context().get_node_id(), ray.util.get_current_placement_group()
    if group is None:
        return NodeAffinitySchedulingStrategy(node, soft=False)
    where = ray.util.placement_group_table(group)["bundles_to_node_id"]
    index = next((int(k) for k, holder in where.items() if holder == node), -1)
    return PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=index, placement_group_capture_child_tasks=True
    )


def _original(error: Exception) -> Exception:
    """The exception that was raised inside the actor, or inside one that the actor called."""
    while isinstance(cause := getattr(error, "cause", None), Exception):
        error = cause
    return error
