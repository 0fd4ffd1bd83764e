"""The executor: makes the missing runs of a list, in turn, in parallel processes, or on the nodes of a cluster."""

import os
import time
from collections import ChainMap
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.threads import cores
from raylfl.errors import BadConfig
from raylfl.execution.planned import PlannedRun
from raylfl.execution.processes import in_processes
from raylfl.python.console import Watcher, say, shown, status_line
from raylfl.python.control import Callback, Progress
from raylfl.runtime.ray.cluster import cluster_for
from raylfl.runtime.ray.connection import address_of, starts_ray
from raylfl.runtime.ray.resources import (
    Resources,
    bundle_of,
    capacity,
    count_workers,
    nodes_of_cluster,
    workers_that_fit,
)
from raylfl.runtime.records.files import read_plain
from raylfl.runtime.records.lines import read_rows
from raylfl.runtime.session import Interrupted
from raylfl.runtime.stopping import sigterm_interrupts

RETRIES = 3  # repetitions of a run whose node was lost; it continues from its newest checkpoint
RUN_BYTES = 2**30  # memory of a run in a process, as a rough estimate


def complete(
    runs: Sequence[PlannedRun],
    jobs: int | None,
    watch: Callable[[Progress], None] | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    show: bool = True,
    seconds: float = 0.0,
    shared: bool = False,
) -> None:
    """Makes or resumes the runs that are not complete; the others cost nothing.

    jobs: the largest number of runs at the same time; None: as many as there is room for (`room`). With `watch`,
    `callbacks` or objects that only this process has, runs are made in turn. show: whether lines and progress are
    printed. seconds: the least time between two lines about ended runs. shared: whether all nodes of a cluster reach
    the folders of the runs. Raises the error of the first run that fails; a diverged run is complete. After an error or
    Ctrl-C the same call resumes the interrupted runs.
    """
    missing = [run for run in runs if not run.complete]
    if show:
        begun = sum(run.begun for run in missing)
        resumed = f" ({begun} resumed)" if begun else ""
        say(f"runs     {len(missing)} to do{resumed}, {len(runs) - len(missing)} found in {shown(runs[0].path.parent)}")

    made_here, warned = list[Path](), set[str]()

    def make(run: PlannedRun) -> None:
        made_here.append(run.path)
        with Watcher() if show and watch is None else nullcontext(watch) as watching:
            run.make(watching, callbacks)

    started, last, observed = time.monotonic(), time.monotonic(), watch is not None or bool(callbacks)
    try:
        with sigterm_interrupts(), closing(_ended(missing, jobs, make, observed, shared)) as ended:
            for count, run in enumerate(ended, 1):
                now = time.monotonic()
                for line in warnings_of(run.path) if show and run.path not in made_here else ():  # not yet printed
                    if line not in warned:
                        warned.add(line)
                        say(f"         {run.label}: {line}")
                if show and (count == len(missing) or now - last >= seconds):
                    last, rows = now, read_rows(run.path / "metrics.jsonl").rows
                    latest = ChainMap(*reversed(rows))  # evaluations are not in every row
                    end = f"{run.label} diverged" if run.diverged else f"{run.label}  {status_line(latest)}"
                    say(f"         {count}/{len(missing)} done after {now - started:.0f} s: {end}")
    except (KeyboardInterrupt, Interrupted) as error:
        error.add_note("the same command continues")
        raise


def warnings_of(folder: Path) -> list[str]:
    """The warnings in the log.txt of a run, without their times."""
    with suppress(OSError):
        lines = read_plain(folder / "log.txt").decode(errors="replace").splitlines()
        return [text for _, _, text in (line.partition(" ") for line in lines) if text.startswith("warning: ")]
    return []


def _ended(
    runs: Sequence[PlannedRun], jobs: int | None, make: Callable[[PlannedRun], None], observed: bool, shared: bool
) -> Generator[PlannedRun, None, None]:
    """Makes the runs, in this process by `make`, as it must if they are observed; yields each when it has ended."""
    if not runs:
        return
    runtime = runs[0].load().runtime
    inside = any(run.objects or str(run.url).startswith("memory://") for run in runs)  # only in this process
    alone = observed or inside or runtime.processes > 1
    if not alone and shared and address_of(runtime) is not None:
        with cluster_for(runtime) as cluster:
            cluster.ready()
            if sum(node.get("CPU", 0.0) > 0 for node in nodes_of_cluster()) > 1:
                yield from on_nodes(runs)
                return
    # in one process each: nothing in the config requires Ray
    free = runtime.workers is None and runtime.placement != "pinned" and starts_ray(runtime)
    separate = not alone and (runtime.backend == "local" or free)
    share, environments = room(runtime, len(runs), jobs) if separate else (1.0, [])
    if len(environments) > 1:
        yield from in_processes([in_one_process(run, share) for run in runs], environments)
        return
    with cluster_for(runtime):
        for run in runs:
            make(run)
            yield run


def in_one_process(run: PlannedRun, share: float) -> PlannedRun:
    """The run with `runtime.backend=local`, which has the same bits; share: of a GPU, if several runs share each."""
    runtime = {**run.config["runtime"], "backend": "local"}
    if 0 < share < 1:
        runtime["gpus_per_worker"] = share
    return replace(run, config={**run.config, "runtime": runtime})


def room(runtime: RuntimeConfig, count: int, jobs: int | None) -> tuple[float, list[dict[str, str]]]:
    """The GPUs of each process, and the environment variables of each, for `count` runs in at most `jobs` processes.

    With jobs=None, a process has the CPUs and GPUs of one worker (`runtime.cpus_per_worker`, `threads` if that is more,
    `gpus_per_worker`) and 1 GiB of the free memory. Runs that Ray would give several workers are made in parallel if
    they fill half of the machine; otherwise the result is a single process.
    """
    import torch

    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = torch.cuda.device_count()
    names = devices if len(devices) == gpus and all(devices) else [str(k) for k in range(gpus)]
    if jobs is None:
        one = replace(runtime, backend="local", cpus_per_worker=max(runtime.cpus_per_worker, float(runtime.threads)))
        jobs = workers_that_fit(one.on(gpus), [{"CPU": float(cores()), "GPU": float(gpus)}])
        jobs = min(jobs, int(psutil.virtual_memory().available // RUN_BYTES))
        if runtime.backend == "ray" and 2 * count < jobs:
            jobs = 1
    jobs = max(1, min(jobs, count))
    share = replace(runtime, backend="ray", workers=jobs).on(gpus).gpus
    if not share or not names:
        return share, [{} for _ in range(jobs)]
    each = int(1 / share + 1e-9)  # processes per GPU
    return share, [{"CUDA_VISIBLE_DEVICES": names[k // each % len(names)]} for k in range(jobs)]


# -- on the nodes of a cluster, each run in a placement group with its workers ---------------------------------------


def on_nodes(runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Makes each run on some node of the cluster, as many at once as fit; yields each run when it has ended.

    Raises the error of the first run that fails, and BadConfig if an ended run is not in its folder on this machine;
    the other runs are then cancelled.
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
                from raylfl.runtime.ray.failures import loss_behind

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
    """The bundles of a run's workers or its single process; raises BadConfig if they do not fit on these nodes."""
    count_workers(runtime, 1, nodes)
    return [bundle_of(runtime) for _ in range(1 if runtime.backend == "local" else runtime.workers or 1)]


def _start(run: PlannedRun, runtime: RuntimeConfig, need: Sequence[Resources]) -> tuple[Any, Any]:
    """Submits a run to Ray; returns (reference to the end of the call, its placement group)."""
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
