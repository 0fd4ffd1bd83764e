"""Resources of cluster nodes: the number of workers that fit, and the message if they do not suffice."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.placement import SHARED, Placement
from raylfl.errors import BadConfig
from raylfl.runtime.ray.connection import starts_ray

if TYPE_CHECKING:
    from raylfl.experiment.parts import WorkerSetup

Resources = dict[str, float]  # of a node or a bundle: CPU, GPU, memory, custom resources
EPSILON = 1e-9


def count_workers(runtime: RuntimeConfig, clients: int, nodes: Sequence[Resources], where: str = "the cluster") -> int:
    """`runtime.workers`; if this is null, the number of workers that fit on these nodes, at most one per client.

    Raises BadConfig, with the nodes as the text `where`, if they do not suffice for `runtime.workers` (null, and
    without Ray: 1).
    """
    runtime = runtime.on(sum(node.get("GPU", 0.0) for node in nodes))
    fit, wanted = workers_that_fit(runtime, nodes), 1 if runtime.backend == "local" else runtime.workers or 1
    if fit < wanted:
        raise BadConfig(
            f"runtime.workers={runtime.workers or 'null'} needs {shortage(runtime, wanted, nodes, where)}: at most "
            f"{fit} workers fit (lower runtime.workers, cpus_per_worker or gpus_per_worker)"
        )
    return runtime.workers or min(fit, clients)


def bundle_of(runtime: RuntimeConfig) -> Resources:
    """The resources of a worker."""
    return {"CPU": runtime.cpus_per_worker} | ({"GPU": runtime.gpus} if runtime.gpus else {})


def shortage(runtime: RuntimeConfig, workers: int, nodes: Sequence[Resources], where: str = "the cluster") -> str:
    """The needs of this many workers and what the nodes have: `3 x 2 CPUs = 6, but the cluster has 4 CPUs`."""
    needs = bundle_of(runtime)
    need = " and ".join(f"{workers} x {each:g} {key}s = {workers * each:g}" for key, each in needs.items())
    have = " and ".join(f"{sum(node.get(key, 0.0) for node in nodes):g} {key}s" for key in needs)
    on_nodes = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"{need}, but {where} has {have}{on_nodes}"


def names_of_nodes(setup: WorkerSetup, workers: int) -> tuple[str | None, ...]:
    """For each worker, the custom Ray resource that marks the nodes with its clients' samples; empty: any node.

    Raises BadConfig if there are fewer workers than distinct custom resources.
    """
    names = sorted(set(setup.nodes or ()))
    if workers < len(names):
        raise BadConfig(
            f"{workers} workers, but the data are on {len(names)} kinds of nodes ({', '.join(names)}): set "
            f"runtime.workers to {len(names)} or more"
        )
    return placement_of(setup, workers).nodes if names else ()


def placement_of(setup: WorkerSetup, workers: int) -> Placement:
    """Where the clients of a run with this many workers work."""
    return Placement.pinned(setup.population.sizes, workers, setup.nodes) if setup.assigned else SHARED


def workers_that_fit(runtime: RuntimeConfig, nodes: Sequence[Resources]) -> int:
    """The number of workers that fit on these nodes if nothing else runs there; no worker is divided among nodes."""
    return capacity([bundle_of(runtime)], nodes)


def capacity(trial: Sequence[Resources], nodes: Sequence[Resources], most: int = 10_000) -> int:
    """The number of trials, of these bundles each, that fit on these nodes at once, at most `most`.

    A bundle is placed on the first node where it fits; nodes with more CPUs come first.
    """
    share = next((bundle["GPU"] for bundle in trial if "GPU" in bundle), 0.0)
    free = sorted((_whole_shares(node, share) for node in nodes), key=lambda node: -node.get("CPU", 0.0))
    for count in range(most):
        for bundle in trial:
            node = next((n for n in free if all(n.get(k, 0.0) + EPSILON >= v for k, v in bundle.items())), None)
            if node is None:
                return count
            for key, value in bundle.items():
                node[key] = node.get(key, 0.0) - value
    return most


def _whole_shares(node: Resources, share: float) -> Resources:
    """The resources of a node without the fraction of each GPU that no worker can use, 0.2 for a share of 0.4."""
    if not 0 < share < 1:
        return dict(node)
    a_gpu = math.floor(1 / share + EPSILON) * share
    return {**node, "GPU": math.floor(node.get("GPU", 0.0)) * a_gpu}


def check_resources(runtime: RuntimeConfig, clients: int) -> None:
    """Raises BadConfig if the run starts Ray on this machine, which lacks resources for the workers."""
    if starts_ray(runtime):
        import torch

        here = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
        count_workers(runtime, clients, [here], "this machine")


def bundles_here() -> list[Resources] | None:
    """The free resources of each bundle of this process's placement group; None if it is in none."""
    import ray

    if (group := ray.util.get_current_placement_group()) is None:
        return None
    bundles = [{key: float(value) for key, value in bundle.items()} for bundle in group.bundle_specs]
    for key, value in ray.get_runtime_context().get_assigned_resources().items():  # this process is in the first
        if key in bundles[0]:
            bundles[0][key] -= float(value)
    return bundles


def counted(count: int, what: str) -> str:
    """A number with its noun `what`, in the plural unless it is 1: `1 worker`, `2 workers`."""
    return f"{count} {what}{'s' * (count != 1)}"


def node_text(node: Mapping[str, Any]) -> str:
    """A node, given as an entry of `ray.nodes()`, for messages: `node gpu3 (10.0.0.3)`."""
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def nodes_of_cluster() -> list[Resources]:
    """The resources (CPU, GPU, memory, ...) of each living node of the Ray cluster."""
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
