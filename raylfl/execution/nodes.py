"""Runs in parallel on the nodes of a Ray cluster, each in a placement group with its workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.execution.planned import PlannedRun
from raylfl.execution.resources import bundles
from raylfl.runtime.ray.failures import loss_behind
from raylfl.runtime.ray.resources import Resources, capacity, count_workers, nodes_of_cluster

RETRIES = 3  # repetitions of a run whose node was lost; it continues from its newest checkpoint


def several_nodes() -> bool:
    """Whether more than one node of the cluster has CPUs for workers."""
    return sum(node.get("CPU", 0.0) > 0 for node in nodes_of_cluster()) > 1


def on_nodes(runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Makes each run on some node of the cluster, as many at once as fit; yields each run when it has ended.

    With `runtime.backend=ray`, a run starts its workers in its placement group. Raises the error of the first run that
    fails, and BadConfig if an ended run is not in its folder on this machine; the other runs are then cancelled.
    """
    import ray
    from ray.util.placement_group import remove_placement_group

    nodes, waiting = nodes_of_cluster(), [(run, run.load().runtime) for run in reversed(runs)]
    most = max(1, min(capacity(needs(runtime, nodes), nodes) for _, runtime in waiting))
    running: dict[Any, tuple[PlannedRun, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                run, runtime = waiting.pop()
                reference, group = _start(run, runtime, needs(runtime, nodes))
                running[reference] = run, group
            (ended,), _ = ray.wait(list(running), num_returns=1)
            run, group = running.pop(ended)
            remove_placement_group(group)
            try:
                ray.get(ended)
            except ray.exceptions.RayError as error:
                raise loss_behind(error) from None
            run.fetch()
            require_here(run)
            yield run
    finally:
        for reference, (_, group) in running.items():
            ray.cancel(reference)
            remove_placement_group(group)


def require_here(run: PlannedRun) -> None:
    """Raises BadConfig if a run that has ended on another node is not complete in its folder on this machine."""
    if not run.complete:
        raise BadConfig(
            f"{run.path} was carried out on another node, and is not here: logging.dir (RAYLFL_RUNS) must be a folder "
            "that all nodes share, or a URL"
        )


def needs(runtime: RuntimeConfig, nodes: Sequence[Resources]) -> list[Resources]:
    """The resource bundles of a run: one per worker, or one if the run has a single process.

    nodes: the resources of each node. Raises BadConfig if the bundles do not fit on them.
    """
    count_workers(runtime, 1, nodes)
    return [bundle for bundle in bundles(runtime) if any(bundle.values())]


def _start(run: PlannedRun, runtime: RuntimeConfig, need: Sequence[Resources]) -> tuple[Any, Any]:
    """Submits a run to Ray; returns (reference to the end of the call, its placement group).

    Ray starts the call once the bundles `need` are free.
    """
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(list(need), strategy="PACK")
    inside = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    gpus = runtime.gpus if runtime.backend == "local" else 0  # otherwise its workers have them
    call: Any = ray.remote(carry_out).options(
        num_cpus=0, num_gpus=gpus, max_retries=RETRIES, scheduling_strategy=inside
    )
    return call.remote(run, os.getcwd()), group


def carry_out(run: PlannedRun, folder: str) -> None:
    """Sets up the process, which Ray has started, and makes the run; folder: the working directory of the caller."""
    from raylfl.startup import process

    process.set_up()
    process.work_in(folder)
    run.make()
