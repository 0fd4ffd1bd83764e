"""The number of workers for which a cluster has the resources, and the errors if it has too few."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.placement import SHARED, Placement
from raylfl.errors import BadConfig
from raylfl.runtime.ray.connection import address_of

if TYPE_CHECKING:
    from raylfl.experiment.parts import WorkerSetup

Resources = dict[str, float]  # of a node or a bundle: CPU, GPU, memory, custom resources


def count_workers(runtime: RuntimeConfig, clients: int, nodes: Sequence[Resources]) -> int:
    """The number of worker actors of a run.

    The number is `runtime.workers`. If this setting is null, it is the number of workers that fit, but at most one per
    client. nodes: the resources of each node. Raises BadConfig if they do not suffice for `runtime.workers` (null: 1).
    """
    runtime = runtime.on(sum(node.get("GPU", 0.0) for node in nodes))
    fit, wanted, share = workers_that_fit(runtime, nodes), runtime.workers or 1, runtime.gpus
    if fit < wanted:
        cpus, gpus = (sum(node.get(key, 0.0) for node in nodes) for key in ("CPU", "GPU"))
        need = f"{wanted} x {runtime.cpus_per_worker:g} CPUs = {wanted * runtime.cpus_per_worker:g}"
        if share:
            need += f" and {wanted} x {share:g} GPUs = {wanted * share:g}"
        have = f"{cpus:g} CPUs and {gpus:g} GPUs" if share else f"{cpus:g} CPUs"
        if len(nodes) > 1:
            have += f" on {len(nodes)} nodes"
        raise BadConfig(
            f"runtime.workers={runtime.workers or 'null'} needs {need}, but the cluster has {have}: at most "
            f"{fit} workers fit (lower runtime.workers, cpus_per_worker or gpus_per_worker)"
        )
    return runtime.workers or min(fit, clients)


def nodes_of_workers(runtime: RuntimeConfig, setup: WorkerSetup, nodes: Sequence[Resources]) -> tuple[str | None, ...]:
    """For each worker, the custom Ray resource that marks the nodes with its clients' samples; None: any node.

    nodes: the resources of each node. Raises BadConfig if no node has one of these custom resources, if the nodes lack
    CPUs or GPUs for the workers, or if there are fewer workers than distinct custom resources.
    """
    names = sorted(set(setup.nodes or ()))
    missing = [name for name in names if not any(name in node for node in nodes)]
    if missing:
        raise BadConfig(
            f"the data of some clients are on nodes {', '.join(missing)}, but the cluster has no node of that name: "
            f"start it with ray start ... --resources='{{\"{missing[0]}\": 1}}'"
        )
    count = count_workers(runtime, setup.population.count, nodes)
    if count < len(names):
        raise BadConfig(
            f"{count} workers, but the data are on {len(names)} kinds of nodes ({', '.join(names)}): set "
            f"runtime.workers to {len(names)} or more"
        )
    return placement_of(setup, count).nodes if names else (None,) * count


def placement_of(setup: WorkerSetup, workers: int) -> Placement:
    """Where the clients of a run with this many workers work."""
    return Placement.pinned(setup.population.sizes, workers, setup.nodes) if setup.assigned else SHARED


def workers_that_fit(runtime: RuntimeConfig, nodes: Sequence[Resources]) -> int:
    """The number of workers that fit on these nodes if nothing else runs there; no worker is divided among nodes."""
    return sum(_workers_on(node, runtime) for node in nodes)


def _workers_on(node: Resources, runtime: RuntimeConfig) -> int:
    gpus, share = node.get("GPU", 0.0), runtime.gpus
    by_cpus = math.floor(node.get("CPU", 0.0) / runtime.cpus_per_worker + 1e-9)
    if share == 0:
        return by_cpus
    if share < 1:  # a share is on one GPU: the remainders of several GPUs do not add up
        return min(by_cpus, math.floor(1 / share + 1e-9) * math.floor(gpus))
    return min(by_cpus, math.floor(gpus / share))


def has_room(runtime: RuntimeConfig, placement: Placement, nodes: Sequence[Resources]) -> bool:
    """Whether the nodes suffice for one worker, and include every named node that has clients' data."""
    names = {name for name in placement.nodes if name}
    return workers_that_fit(runtime, nodes) > 0 and names <= {name for node in nodes for name in node}


def check_resources(runtime: RuntimeConfig, clients: int) -> None:
    """Checks that there are resources for the workers; raises BadConfig if not.

    If the caller has connected to Ray, checks the caller's cluster, otherwise this machine. A cluster at a given
    address is not checked.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        count_workers(runtime, clients, resources_here())
    elif address_of(runtime) is None:
        import torch

        here = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
        count_workers(runtime, clients, [here])


def count_nodes(runtime: RuntimeConfig) -> int:
    """The number of cluster nodes on which workers can be; in a placement group, of the nodes of its bundles."""
    import ray

    group = ray.util.get_current_placement_group()
    if group is None:
        return sum(_workers_on(node, runtime) > 0 for node in nodes_of_cluster())
    return len(set(ray.util.placement_group_table(group)["bundles_to_node_id"].values()))


def resources_here() -> list[Resources]:
    """The resources that each node of the cluster has for workers.

    In a placement group: the resources of each of its bundles, less what this process has reserved in the first one.
    """
    import ray

    group = ray.util.get_current_placement_group()
    if group is None:
        return nodes_of_cluster()
    bundles = [{key: float(value) for key, value in bundle.items()} for bundle in group.bundle_specs]
    for key, value in ray.get_runtime_context().get_assigned_resources().items():
        if key in bundles[0]:
            bundles[0][key] -= float(value)
    return bundles


def node_text(node: Mapping[str, Any]) -> str:
    """A node, given as an entry of `ray.nodes()`, for messages: `node gpu3 (10.0.0.3)`."""
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def nodes_of_cluster() -> list[Resources]:
    """The resources (CPU, GPU, memory, ...) of each living node of the Ray cluster."""
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
