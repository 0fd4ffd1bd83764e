"""`python -m benchmarks.in_turns [W1 ...]`: rounds in turns with the raw loop's, each side on one thread of its own.

Two processes take turns, round by round, and count seconds of the processor: other work on the machine hardly matters.
Ours is set up as raylfl's processes are (`raylfl.startup.process`), the raw loop's is any Python program's.
"""

from __future__ import annotations

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
    from raylfl.experiment import assemble
    from raylfl.runtime.round.loop import Federation
    from raylfl.runtime.workers.backend import LocalBackend

    experiment = assemble(load_config(workload.config(10**6, backend="local", **runtime)))
    return Federation.of(experiment, LocalBackend(experiment.setup)).rounds(10**6)


def side(pipe: Connection, workload: Workload, runtime: dict[str, Any] | None) -> None:
    """A process that takes one round for each message, and answers (seconds of the processor, minor page faults).

    runtime: entries of `runtime` for a run of ours; None: the raw loop.
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
    """One row of the table."""
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
