"""Resources of a trial (bundles for the processes of its seeds or their workers), and the number of trials that fit.

Ray Tune would wait for ever, with a warning, for resources that the cluster does not have; a sweep raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray.resources import bundle_of, shortage

Bundle = dict[str, float]
EPSILON = 1e-9


@dataclass(frozen=True)
class Need:
    """The resources of a trial. processes: among which its seeds are divided. workers: of each process."""

    bundles: list[Bundle]
    workers: int
    processes: int

    @property
    def gpus(self) -> float:
        """The share of a GPU of each process or worker."""
        return self.bundles[-1].get("GPU", 0.0)


def share_gpus(runtime: RuntimeConfig, nodes: Sequence[Bundle]) -> RuntimeConfig:
    """The settings with a number in place of `gpus_per_worker: auto`, for many trials at once on these nodes.

    As many workers share each GPU as fill the CPUs: small runs leave most of a GPU idle. 0 without GPUs.
    """
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    slots = sum(node.get("CPU", 0.0) for node in nodes) / runtime.cpus_per_worker
    return runtime.sharing(0.0 if gpus < 1 else 1.0 / max(1, math.ceil(slots / gpus - EPSILON)))


def bundles(runtime: RuntimeConfig, workers: int, processes: int = 1) -> list[Bundle]:
    """The resource bundles of a trial on Ray: one for its servers, then one for each worker of each process.

    The servers' bundle has no CPU, because a server works while its workers wait. With `runtime.backend=local`, server
    and workers are one process with one bundle.
    """
    each = bundle_of(runtime)
    if runtime.backend == "local":
        return [dict(each) for _ in range(processes)]
    return [{"CPU": 0.0}, *(dict(each) for _ in range(workers * processes))]


def capacity(trial: Sequence[Bundle], nodes: Sequence[Bundle], most: int = 10_000) -> int:
    """The number of trials that fit on these nodes at once, at most `most`.

    trial: the bundles of one trial; each bundle must fit on one node. nodes: the resources of each node. A bundle is
    placed on the first node where it fits; nodes with more CPUs come first.
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


def _whole_shares(node: Bundle, share: float) -> Bundle:
    """The resources of a node without the fraction of each GPU that no worker can use, as a new dict.

    share: the fraction of a GPU that a worker needs; for 0.4, two workers share a GPU, and 0.2 of it cannot be used.
    """
    if not 0 < share < 1:
        return dict(node)
    a_gpu = math.floor(1 / share + EPSILON) * share
    return {**node, "GPU": math.floor(node.get("GPU", 0.0)) * a_gpu}


def choose_need(
    runtime: RuntimeConfig, clients: int, seeds: int, settings: int, concurrent: int | None, nodes: Sequence[Bundle]
) -> Need:
    """The resources of a trial with this number of seeds.

    The seeds are divided among the largest number of processes with which all trials that can run at once
    (`settings`, or `concurrent` if it is smaller) still fit; one if there is none. Raises BadConfig, with the needed
    and the available resources, if not even one trial fits.
    """
    runtime, at_once = share_gpus(runtime, nodes), min(settings, concurrent or settings)
    least = runtime.workers or 1
    fitting = (n for n in range(seeds, 1, -1) if capacity(bundles(runtime, least, n), nodes, at_once) >= at_once)
    processes = next(fitting, 1)
    workers = choose_workers(runtime, clients, concurrent, nodes, processes)
    return Need(bundles(runtime, workers, processes), workers, processes)


def choose_workers(
    runtime: RuntimeConfig, clients: int, concurrent: int | None, nodes: Sequence[Bundle], processes: int = 1
) -> int:
    """The number of workers of a run: `runtime.workers`, or if that is null, a number that depends on `concurrent`.

    concurrent: the number of trials at once; the result is the largest number of workers, at most `clients`, with which
    so many trials of `processes` runs fit, or 1 if there is none. With None the result is 1: as many trials as fit,
    with one worker each, use the machine best. clients: the number of clients. Raises BadConfig, with the needed and
    the available resources, if not even one trial fits.
    """
    workers = runtime.workers or 1
    if runtime.workers is None and concurrent is not None and runtime.backend == "ray":
        counts = range(1, clients + 1)
        fits = [w for w in counts if capacity(bundles(runtime, w, processes), nodes, concurrent) >= concurrent]
        workers = max(fits, default=1)
    if not capacity(bundles(runtime, workers, processes), nodes, 1):
        raise BadConfig(refusal(runtime, workers, nodes))
    return workers


def refusal(runtime: RuntimeConfig, workers: int, nodes: Sequence[Bundle]) -> str:
    """The error message for a trial that cannot run on these nodes, with its needs and the nodes' resources."""
    keys = bundle_of(runtime)
    largest = ", ".join(f"{max((node.get(key, 0.0) for node in nodes), default=0.0):g} {key}s" for key in keys)
    return (
        f"one trial needs {shortage(runtime, workers, nodes)}, at most {largest} on one: it would wait for ever "
        "(lower runtime.workers, cpus_per_worker or gpus_per_worker)"
    )
