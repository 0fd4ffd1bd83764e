"""Pinned clients: memory and round times of 10^6 clients, of which 1,000 take part in a round."""

import pickle
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

import raylfl
from benchmarks.pages import table
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.runtime.ray.resources import placement_of
from raylfl.runtime.ray.stored import indices_of

MANY: dict[str, Any] = {
    "name": "bench-pinned",
    "num_clients": 1_000_000,
    "model": {"name": "logistic"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [1, 8, 8], "num_train": 1_000_000, "num_test": 10}},
    "partition": {"name": "iid"},
    "participation": {"name": "uniform", "size": 1_000},
    "local": {"steps": 5, "batch_size": 5, "lr": 0.05},
    "eval": {"every": 0, "inconsistency": False},
    "checkpoint": {"every": 0},
    "logging": {"report": False},
    "runtime": {"placement": "pinned"},
}
ROUNDS = 4


def parts(workers: int) -> dict[str, Any]:
    """Seconds to assign the clients, megabytes of the largest worker's samples, and megabytes that workers share."""
    setup = assemble(load_config(MANY)).setup
    started = time.perf_counter()
    placement = placement_of(setup, workers)
    seconds = time.perf_counter() - started
    largest = int(np.bincount(placement.worker, setup.population.sizes).argmax())
    rest = replace(setup, train=setup.train.part(np.empty(0, dtype=np.int64)))
    megabytes = [
        len(pickle.dumps(part)) / 1e6 for part in (setup.train.part(indices_of(setup, placement, largest)), rest)
    ]
    return {"workers": workers, "assigned_s": seconds, "largest_mb": megabytes[0], "shared_mb": megabytes[1]}


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `pinned` of docs/measurements.md."""
    return (
        "\n"
        + table(
            [
                {
                    "workers": row["workers"],
                    "clients are assigned in": f"{row['assigned_s']:.1f} s",
                    "samples of the largest worker": f"{row['largest_mb']:.3g} MB",
                    "shared by the workers of a node": f"{row['shared_mb']:.0f} MB",
                }
                for row in rows
            ]
        )
        + "\n"
    )


def rounds(workers: int) -> dict[str, Any]:
    """Seconds per round of a run on Ray, and the resident memory of its largest worker."""
    resident: list[int] = []

    def watch(progress: Any) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "ray::WorkerActor" in " ".join(process.cmdline()):
                    resident.append(process.memory_info().rss)

    with tempfile.TemporaryDirectory() as folder:
        settings = [f"logging.dir={folder}", f"runtime.workers={workers}", "runtime.cpus_per_worker=0.5"]
        result = raylfl.run({**MANY, "rounds": ROUNDS}, settings, watch)
    seconds = [row["time/round"] for row in result.metrics[1:]]
    return {"workers": workers, "round_s": float(np.median(seconds)), "worker_rss_mb": max(resident) / 1e6}
