"""`python -m benchmarks.gpu [-o FILE]`: a table of all measurements that need a GPU, on one GPU within ten minutes.

It compares every algorithm and every kind of local work with the CPU's results and, to the bit, with the reference step
on the GPU, one client at a time without graphs. It halves a cohort that does not fit into memory, runs several workers
on one GPU, and compares rounds of W1 to W3, ResNet-18 and the workloads of other platforms with a plain CUDA loop,
eager and as a graph, an evaluation with a plain captured one, and eight runs at once with one.
All arithmetic is float32 without TF32, in the plain loops as well.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

import raylfl
from benchmarks.cuda_loop import evaluation_seconds, loop_seconds
from benchmarks.golden import DIGITS, IMAGES, configs
from benchmarks.pages import MEASUREMENTS, table, write_part
from benchmarks.peers.definitions import DEFINITIONS
from benchmarks.rounds import run_seconds
from benchmarks.tables import table_of
from benchmarks.workloads import USERS, WORKLOADS, Workload
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.runtime.records.summary import raylfl_commit
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend

LIMIT = 570  # seconds, after which the remaining parts are left out
FAR = 1e-4  # tolerance, relative to the largest parameter: the order of sums differs, and rounds amplify that
REFERENCE = {"vectorize": "never", "step": "autograd", "graphs": "never"}  # one client's local step as PyTorch makes it
RESNET18 = Workload("ResNet-18", "50 clients, 10 a round", "resnet18", (3, 32, 32), 5_000, 50, 10, 5, 20)
SPEED = {**{name: WORKLOADS[name] for name in ("W1", "W2", "W3")}, "ResNet-18": RESNET18, **DEFINITIONS}
ROUNDS = 40
LONG = {"ResNet-18": 8, "blaze": 4, "W2": 12, "pfl": 12}  # fewer rounds
PLAIN = 12  # rounds of the plain loops
TESTED = 10_000  # images of the measured evaluation
TRIALS = 8  # runs at once
KINDS: dict[str, dict[str, Any]] = {  # kinds of local work in addition to the ones in `golden`
    "one by one, autograd": {"runtime": {"vectorize": "never", "step": "autograd"}},
    "one by one": {"runtime": {"vectorize": "never"}},
    "one by one, no graphs": {"runtime": {"vectorize": "never", "graphs": "never"}},
    "vectorised": {"runtime": {"vectorize": "always"}},
    "small calls": {"runtime": {"micro_cohort": 2}},
    "autocast": {"runtime": {"precision": "bf16-mixed"}},
    "full batches": {"local": {**DIGITS["local"], "batch_size": "full"}},
    "the module's optimizer": {"local": {**DIGITS["local"], "optimizer": "module"}},
    "batch normalisation": {"model": {"class_path": "benchmarks.networks.NormedDense"}},
    "batch normalisation, vectorised": {
        "model": {"class_path": "benchmarks.networks.NormedDense"},
        "runtime": {"vectorize": "always"},
    },
}

OTHER_NUMBERS = {  # half precision, and dropout with the GPU's random numbers: checks only that they run
    *("work/autocast", "work/dropout", "model/cnn_fedacs_cinic", "model/cnn_fedacs_mnist", "users/W5"),
}

Row = dict[str, str]


@dataclass(frozen=True)
class Device:
    """The device of the measured runs. runtime: keys that a config needs for it; within: a context for its runs."""

    device: torch.device = field(default_factory=lambda: torch.device("cuda", 0))
    runtime: dict[str, Any] = field(default_factory=lambda: {"gpus_per_worker": 1})
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    def run(self, config: dict[str, Any], here: bool = False, **runtime: Any) -> raylfl.Result:
        """Runs a config in this process on the device, or on the host if `here`."""
        place = {"gpus_per_worker": 0} if here else self.runtime
        full = {"backend": "local", **config.get("runtime", {}), **place, **runtime}
        with tempfile.TemporaryDirectory() as folder, nullcontext() if here else self.within():
            logging = {"dir": folder, "report": False}
            return raylfl.run({**config, "runtime": full, "logging": logging, "checkpoint": {"every": 0}})


def cases() -> dict[str, dict[str, Any]]:
    """The runs to compare, by name: algorithms, then kinds of local work, then models."""
    found = configs()
    kinds = {f"work/{name}": {**DIGITS, "algorithm": {"name": "fedavg"}, **change} for name, change in KINDS.items()}
    dropout = {**IMAGES, "model": {"name": "cnn_fedacs_mnist", "init_args": {"dropout": 0.5}}}
    users = {f"users/{name}": workload.config(3) for name, workload in USERS.items() if name in ("W3", "W5")}
    return {**found, **kinds, **users, "work/dropout": {**dropout, "algorithm": {"name": "fedavg"}}}


def compared(device: Device, name: str, config: dict[str, Any]) -> Row:
    """Compares a run on the device with the same run on the host."""
    if name in OTHER_NUMBERS:
        result = device.run(config)
        return _row("against the host", name, bool(np.isfinite(result.params.numpy()).all()), "finite")
    here, there = device.run(config, here=True).params, device.run(config).params
    far = float((there - here).abs().max() / here.abs().max())
    return _row("against the host", name, far < FAR, f"{far:.1e} of the largest parameter")


def same_bits(device: Device, name: str, config: dict[str, Any]) -> Row:
    """Compares a run on the device, one client at a time, with the reference step on the device."""
    plain, fast = (device.run(config, **kind).params for kind in (REFERENCE, {"vectorize": "never"}))
    return _row("against the reference step", name, torch.equal(plain, fast), "the same bits")


def halving(device: Device) -> Row:
    """Compares a cohort in one call, which does not fit into memory, with the same cohort in small calls."""
    cuda = device.device.type == "cuda"
    sizes = {"clients": 64, "hidden": 4096} if cuda else {"clients": 8, "hidden": 16}
    model = {"name": "mlp", "init_args": {"hidden": [sizes["hidden"]]}}
    config = {**DIGITS, "rounds": 1, "num_clients": sizes["clients"], "model": model, "algorithm": {"name": "fedavg"}}
    config |= {"participation": {"name": "full"}, "partition": {"name": "iid"}, "base": ["data/digits"]}
    (small, _, least), (_, _, full) = (_rounds(device, config, calls) for calls in (4, sizes["clients"]))
    room = (least + full) // 2  # enough for small calls, too little for the whole cohort
    whole, most, _ = _rounds(device, config, sizes["clients"], room)
    far = float((whole - small).abs().max() / small.abs().max())
    good, case = far < FAR and most < sizes["clients"], f"{sizes['clients']} clients in a call"
    return _row("out of memory", case, good, f"{most:.0f} fit")


def _rounds(
    device: Device, config: dict[str, Any], calls: int, room: int | None = None
) -> tuple[torch.Tensor, float, int]:
    """(parameters after the run, largest number of clients in a call that fits, peak of the GPU's memory in bytes).

    calls: the number of clients in a call. room: the bytes of memory that the run may use; None: all.
    """
    cuda = device.device.type == "cuda"
    runtime = {"backend": "local", "vectorize": "always", "micro_cohort": calls, **device.runtime}
    with device.within():
        experiment = assemble(load_config({**config, "runtime": runtime, "eval": {"every": 0}}))
        backend = LocalBackend(experiment.setup)
        if cuda:
            backend.worker.free_memory()  # what an earlier run left would count as used
            torch.cuda.reset_peak_memory_stats()
        with nullcontext() if room is None else _little_memory(device, backend, room):
            federation = Federation.of(experiment, backend)
            for _ in federation.rounds(config["rounds"]):
                pass
        backend.close()
        peak = torch.cuda.max_memory_reserved() if cuda else 0
        return federation.state.server["x"].cpu(), backend.worker.most_clients, peak


class _little_memory:
    """A context in which the GPU has only `room` bytes; without a GPU, calls of more than four clients raise."""

    def __init__(self, device: Device, backend: LocalBackend, room: int):
        self.room, self.cuda, self.oracle = room, device.device.type == "cuda", backend.worker.forms.oracle

    def __enter__(self) -> None:
        if self.cuda:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(self.room / total)
            return
        plain = self.oracle.gradients

        def gradients(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
            if len(x) > 4:
                raise torch.OutOfMemoryError("tried to allocate too much")
            return plain(x, *rest)

        self.oracle.gradients = gradients  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        if self.cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)


def sharing(device: Device) -> Row:
    """Compares the bits of a run with three workers on one GPU and with one worker."""
    config = {**DIGITS, "algorithm": {"name": "scaffold"}}
    one, three = (device.run(config, backend="ray", workers=n, gpus_per_worker=1 / n).params for n in (1, 3))
    return _row("workers on one GPU", "three against one", torch.equal(one, three), "the same bits")


def speed(device: Device, workload: Workload, rounds: int = ROUNDS) -> Iterator[Row]:
    """Compares the time of our round with the plain loop's, eager and as a graph."""
    rounds = LONG.get(workload.name, rounds)
    with device.within():
        ours = median(run_seconds(workload, rounds, {"backend": "local", **device.runtime}))
    for graph in (False, True):
        kind = "graph" if graph else "eager"
        if graph and device.device.type != "cuda":
            yield _row("speed", f"{workload.name}, {kind}", None, "no CUDA graphs here")
            continue
        plain = median(loop_seconds(workload, min(rounds, PLAIN), device.device, graph)[2:])
        detail = f"{ours * 1e3:.1f} ms a round, the plain loop {plain * 1e3:.1f}"
        yield _row("speed", f"{workload.name}, {kind}", ours <= plain, f"{ours / plain:.2f}: {detail}")


def evaluation(device: Device, workload: Workload = RESNET18, size: int = 500) -> Row:
    """Compares an evaluation on 10,000 images with a plain one in batches of `size`, as a graph."""
    few = ["participation.size=1", "local.steps=1", "local.batch_size=1", f"data.init_args.num_test={TESTED}"]
    runtime = {"backend": "local", **device.runtime}
    with device.within():
        without, with_it = (
            median(run_seconds(workload, 6, runtime, f"eval.every={every}", f"eval.batch_size={size}", *few))
            for every in (0, 1)
        )
    plain = evaluation_seconds(workload, TESTED, size, device.device)
    ratio = (with_it - without) / plain
    return _row("evaluation", workload.name, ratio < 1.1, f"{ratio:.2f}: {(with_it - without) * 1e3:.0f} ms")


def trials(device: Device, workload: Workload = WORKLOADS["W1"], rounds: int = 200) -> Row:
    """Compares eight runs at once, in processes of their own on one GPU, with one such process."""
    times = []
    with ProcessPoolExecutor(TRIALS, get_context("spawn")) as pool:
        list(pool.map(_trial, [(workload, 2, device.runtime)] * TRIALS))  # the imports
        for count in (1, TRIALS):
            began = time.perf_counter()
            list(pool.map(_trial, [(workload, rounds, device.runtime)] * count))
            times.append(time.perf_counter() - began)
    one, several = times
    return _row("runs at once", f"{TRIALS} of {workload.name}", several < 2 * one, f"{several / one:.2f} times one")


def _trial(job: tuple[Workload, int, dict[str, Any]]) -> None:
    workload, rounds, runtime = job
    run_seconds(workload, rounds, {"backend": "local", **runtime})


def _alone(part: Callable[..., Row], *arguments: Any) -> list[Row]:
    return [part(*arguments)]


def _row(part: str, case: str, good: bool | None, detail: str) -> Row:
    return {"part": part, "case": case, "result": "-" if good is None else "yes" if good else "NO", "detail": detail}


def rows(device: Device, workloads: dict[str, Workload], named: dict[str, Any], limit: float = LIMIT) -> Iterator[Row]:
    """Rows of all parts, speed first; a failure is a row too, and parts after the time limit are left out."""
    begun = time.perf_counter()
    cuda = device.device.type == "cuda"
    several = [sharing, evaluation, trials] if cuda else []
    comparisons = [compared, same_bits] if cuda else [compared]
    jobs: list[tuple[str, Callable[[], Iterable[Row]]]] = [
        *((f"speed of {name}", partial(speed, device, workload)) for name, workload in workloads.items()),
        *((part.__name__, partial(_alone, part, device)) for part in (halving, *several)),
        *(
            (name, partial(_alone, part, device, name, config))
            for name, config in named.items()
            for part in comparisons
        ),
    ]
    for name, job in jobs:
        if time.perf_counter() - begun > limit:
            yield _row("left out", name, None, f"{limit:.0f} seconds were over")
            continue
        try:
            yield from job()
        except Exception as error:
            yield _row("failed", name, False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def write_page(measured: dict[str, Any]) -> None:
    """Writes the measured rows into docs/measurements.md; comparisons with the CPU as one row."""
    rows = measured["rows"]
    counted = {"against the host": f"within {FAR:g}", "against the reference step": "with the same bits"}
    shown = [row for row in rows if row["part"] not in (*counted, "left out")]
    for part, meaning in counted.items():
        results = [row["result"] == "yes" for row in rows if row["part"] == part]
        if results:
            shown.append(_row(part, f"{len(results)} runs", all(results), f"{sum(results)} {meaning}"))
    about = f"{measured['date']}, commit {measured['commit']}, {measured['gpu']}, torch {measured['torch']}:"
    write_part("gpu", f"\n{about}\n\n{table(shown)}\n", MEASUREMENTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("-o", "--out", default="benchmarks/gpu.json")
    parser.add_argument("--page", action="store_true", help="write the rows of FILE into docs/measurements.md")
    args = parser.parse_args(arguments)
    if args.page:
        write_page(json.loads(Path(args.out).read_text()))
        return 0
    if not torch.cuda.is_available():
        print(
            "there is no GPU here (torch.cuda.is_available() says so); tests/runtime/test_device.py runs it without one"
        )
        return 2
    found = list(rows(Device(), SPEED, cases()))
    Console(width=140).print(table_of(found, torch.cuda.get_device_name(0)))
    about = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": (raylfl_commit() or "unknown")[:8],
    }
    Path(args.out).write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")
    return 1 if any(row["result"] == "NO" and row["part"] != "speed" for row in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
