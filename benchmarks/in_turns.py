"""`python -m benchmarks.in_turns [W1 ...]`: compares our rounds with the floor's, one round of each in turn.

Two processes of one thread each take turns, round by round, and count processor seconds, so that other work on the
machine hardly matters. Only our process uses raylfl's start-up settings (`raylfl.startup.process`).
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.tables import table_of
from benchmarks.workloads import USERS, WORKLOADS, Workload

WARM_UP = 5
ROUNDS = {"W1": 24, "W2": 6, "W3": 24, "W4": 20, "W5": 12}


def our_rounds(workload: Workload, **runtime: Any) -> Iterator[object]:
    """The rounds of a run in this process."""
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.round.loop import Federation
    from raylfl.runtime.workers.backend import LocalBackend

    experiment = assemble(load_config(workload.config(10**6, backend="local", **runtime)))
    return Federation.of(experiment, LocalBackend(experiment.setup)).rounds(10**6)


def side(pipe: Connection, workload: Workload, runtime: dict[str, Any] | None) -> None:
    """The main function of a process: runs a round per message and answers (processor seconds, minor page faults).

    runtime: keys of `runtime` for our run; None: the floor.
    """
    if runtime is not None:
        from raylfl.startup.process import set_up

        set_up()
    import torch

    from benchmarks.floor import floor_rounds

    torch.set_num_threads(1)
    rounds: Iterator[object] = floor_rounds(workload) if runtime is None else our_rounds(workload, **runtime)
    while pipe.recv():
        faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        next(rounds)
        pipe.send((time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))


def compared(workload: Workload, runtime: dict[str, Any]) -> dict[str, Any]:
    """Compares a workload's rounds with the floor's; returns a row of the table."""
    pipes, taken = [], ([], [])  # type: ignore[var-annotated]
    for setting in (runtime, None):
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        multiprocessing.get_context("spawn").Process(target=side, args=(theirs, workload, setting), daemon=True).start()
        pipes.append(ours)
    for _ in range(WARM_UP + ROUNDS[workload.name]):
        for pipe, found in zip(pipes, taken, strict=True):
            pipe.send(True)
            found.append(pipe.recv())
    for pipe in pipes:
        pipe.send(False)
    (ours, faults), (floor, floor_faults) = (map(median, zip(*found[WARM_UP:], strict=True)) for found in taken)
    return {
        "workload": workload.name,
        "floor_ms": floor * 1e3,
        "round_ms": ours * 1e3,
        "ratio": ours / floor,
        "faults": faults,
        "floor_faults": floor_faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.in_turns", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(ROUNDS))
    parser.add_argument("--shipped", action="store_true", help="the shipped models of W1 to W3")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="entries of `runtime`")
    args = parser.parse_args()
    of = WORKLOADS if args.shipped else USERS
    runtime = dict(pair.split("=") for pair in args.set)
    rows = [compared(of[name], runtime) for name in args.workloads if name in of]
    Console(width=120).print(table_of(rows, "shipped models" if args.shipped else "modules of a user"))


if __name__ == "__main__":
    main()
