"""Runs in parallel on the nodes of a Ray cluster, each in a placement group with its workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.runtime.ray.failures import loss_behind
from raylfl.runtime.ray.resources import nodes_of_cluster
from raylfl.tune.resources import Bundle, bundles, capacity, choose_workers

T = TypeVar("T")
RETRIES = 3  # repetitions of a run whose node was lost; it continues from its newest checkpoint


def several_nodes() -> bool:
    """Whether more than one node of the cluster has CPUs for workers."""
    return sum(node.get("CPU", 0.0) > 0 for node in nodes_of_cluster()) > 1


def spread(work: Callable[[T], None], jobs: Sequence[tuple[T, RuntimeConfig]]) -> Generator[T, None, None]:
    """Calls `work(job)` for each job on some node, as many calls at once as fit; yields the jobs as they end.

    jobs: pairs of a job and its runtime config. With `runtime.backend=ray`, a job starts its workers in the placement
    group of its call. Raises the error of the first call that fails, and cancels the other calls.
    """
    import ray
    from ray.util.placement_group import remove_placement_group

    nodes, waiting = nodes_of_cluster(), list(reversed(jobs))
    most = max(1, min(capacity(needs(runtime, nodes), nodes) for _, runtime in jobs))
    running: dict[Any, tuple[T, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job, runtime = waiting.pop()
                reference, group = _start(work, job, runtime, needs(runtime, nodes))
                running[reference] = job, group
            (ended,), _ = ray.wait(list(running), num_returns=1)
            job, group = running.pop(ended)
            remove_placement_group(group)
            try:
                ray.get(ended)
            except ray.exceptions.RayError as error:
                raise loss_behind(error) from None
            yield job
    finally:
        for reference, (_, group) in running.items():
            ray.cancel(reference)
            remove_placement_group(group)


def needs(runtime: RuntimeConfig, nodes: Sequence[Bundle]) -> list[Bundle]:
    """The resource bundles of a run: one per worker, or one if the run has a single process.

    nodes: the resources of each node. Raises BadConfig if the bundles do not fit on them.
    """
    return [bundle for bundle in bundles(runtime, choose_workers(runtime, 1, None, nodes)) if any(bundle.values())]


def _start(work: Callable[[T], None], job: T, runtime: RuntimeConfig, need: Sequence[Bundle]) -> tuple[Any, Any]:
    """Submits the call `work(job)` to Ray; returns (reference to its result, its placement group).

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
    return call.remote(work, job, os.getcwd()), group


def carry_out(work: Callable[[T], None], job: T, cwd: str) -> None:
    """Sets up the process, which Ray has started, and calls `work(job)`; cwd: the working directory of the caller."""
    from raylfl.startup import process

    process.set_up()
    process.work_in(cwd)
    work(job)
