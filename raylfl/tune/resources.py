"""Resources of a trial or run: bundles for the processes of its seeds, or for its workers.

Ray Tune would wait for ever, with a warning, for resources that the cluster does not have; a sweep raises an error.
"""

import math
from collections.abc import Sequence

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.runtime.ray.resources import EPSILON, Resources, bundle_of, capacity, count_workers


def share_gpus(runtime: RuntimeConfig, nodes: Sequence[Resources]) -> RuntimeConfig:
    """The settings with a number in place of `gpus_per_worker: auto`, for many trials at once on these nodes.

    As many workers share each GPU as fill the CPUs: small runs leave most of a GPU idle. 0 without GPUs.
    """
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    slots = sum(node.get("CPU", 0.0) for node in nodes) / runtime.cpus_per_worker
    return runtime.sharing(0.0 if gpus < 1 else 1.0 / max(1, math.ceil(slots / gpus - EPSILON)))


def bundles(runtime: RuntimeConfig, processes: int = 1) -> list[Resources]:
    """The resource bundles of a trial or run: one for each process, or for its server and each of its workers.

    The server's bundle has no CPU, because a server works while its workers wait.
    """
    each = bundle_of(runtime)
    if runtime.backend == "local":
        return [dict(each) for _ in range(processes)]
    return [{"CPU": 0.0}, *(dict(each) for _ in range(runtime.workers or 1))]


def choose_bundles(
    runtime: RuntimeConfig, seeds: int, settings: int, concurrent: int | None, nodes: Sequence[Resources]
) -> list[Resources]:
    """The bundles of a trial with this number of seeds; without workers, one for each process.

    The seeds are divided among the largest number of processes with which all trials that can run at once
    (`settings`, or `concurrent` if it is smaller) still fit; one if there is none. Raises BadConfig, with the needed
    and the available resources, if not even one trial fits.
    """
    runtime, at_once = share_gpus(runtime, nodes), min(settings, concurrent or settings)
    count_workers(runtime, 1, nodes)
    counts = range(seeds, 1, -1) if runtime.backend == "local" else ()
    fitting = (n for n in counts if capacity(bundles(runtime, n), nodes, at_once) >= at_once)
    return bundles(runtime, next(fitting, 1))
