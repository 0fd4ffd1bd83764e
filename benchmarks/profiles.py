"""`python -m benchmarks.profiles [-o FOLDER]`: profiles of a worker and of the server, as text files.

worker-W1.txt, ...: the kernels of a round in process, by torch's profiler. server-W1.txt, ...: the functions of the
round loop on Ray with one worker, by cProfile in the process that acts as the server.
"""

import argparse
import cProfile
import io
import pstats
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.tables import table_of
from benchmarks.workloads import WORKLOADS, Workload
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment
from raylfl.runtime.profile import Candidate, kernels
from raylfl.runtime.ray.cluster import cluster_for
from raylfl.runtime.round.loop import Federation
from raylfl.startup import malloc

WARM_UP = 5
ROUNDS = 30
FUNCTIONS = 25  # number of functions shown


def worker_profile(workload: Workload) -> str:
    candidate = Candidate(experiment_of(workload, backend="local"), "auto", "auto")
    for _ in range(WARM_UP):
        candidate.round(counts=False)
    rows = kernels(candidate)
    candidate.backend.close()
    out = io.StringIO()
    title = f"{workload.name}: kernels of one round in process (runtime.layout={candidate.form[1]})"
    Console(file=out, width=110).print(table_of(rows, title))
    return out.getvalue()


def server_profile(workload: Workload) -> str:
    from raylfl.runtime.ray.actors import start_workers
    from raylfl.runtime.ray.backend import RayBackend
    from raylfl.runtime.ray.stored import StoredExperiment

    experiment = experiment_of(workload, workers=1)
    with cluster_for(experiment.config.runtime) as cluster:
        cluster.ready()
        actors = start_workers(experiment.config.runtime, [None])
        backend = RayBackend(experiment, StoredExperiment.put(experiment, 1), actors, print)
        rounds = Federation.of(experiment, backend).rounds(sys.maxsize)
        for _ in range(WARM_UP):
            next(rounds)
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(ROUNDS):
            next(rounds)
        profiler.disable()
        backend.close()
    out = io.StringIO()
    out.write(f"{workload.name}: the server's functions in {ROUNDS} rounds on Ray, one worker\n")
    pstats.Stats(profiler, stream=out).strip_dirs().sort_stats("tottime").print_stats(FUNCTIONS)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def experiment_of(workload: Workload, **runtime: Any) -> Experiment:
    return assemble(load_config(workload.config(1000, **runtime)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/profiles"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    malloc.keep()  # as server and workers do
    for workload in WORKLOADS.values():
        for role, profile in (("worker", worker_profile), ("server", server_profile)):
            path = folder / f"{role}-{workload.name}.txt"
            path.write_text(profile(workload))
            print(f"written  {path}")


if __name__ == "__main__":
    main()
