"""Sums at the workers: the server's memory and time in a round of 64 clients with vectors as large as ResNet-18.

The network is a stand-in whose gradient costs one pass over the parameters, so that uploads dominate a round. The
measuring process is the server.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from benchmarks.pages import table
from raylfl.config.load import load_config
from raylfl.core.threads import limit_threads
from raylfl.experiment.assemble import assemble
from raylfl.runtime.ray.actors import start_workers
from raylfl.runtime.ray.backend import RayBackend
from raylfl.runtime.ray.connection import OWN_CLUSTER, QUIET
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.session import fingerprint
from raylfl.startup import process

WIDTH = 11_173_962  # parameters of ResNet-18 for ten classes
CLIENTS, WORKERS, ROUNDS = 64, 4, 4
WATCHED = 1  # last round of which memory is sampled instead of time
CONFIG: dict[str, Any] = {
    "name": "bench-sums",
    "rounds": ROUNDS,
    "num_clients": CLIENTS,
    "model": {"class_path": "benchmarks.sums.Vector"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [1, 2, 2], "num_train": 640, "num_test": 10}},
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "local": {"steps": 1, "batch_size": 10, "lr": 0.01},
    "eval": {"every": 0, "inconsistency": False},
    "checkpoint": {"every": 0},
    "runtime": {"workers": WORKERS, "cpus_per_worker": 0.5, "vectorize": "never"},
}


class Vector(LightningModule):
    """A parameter vector with the gradient of |w|^2 / 2, scaled by the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.w[0]

    def training_step(self, batch: Any, index: int) -> Tensor:
        return (self.w @ self.w) * (0.5 * batch[0].mean())


def of_server(algorithm: str, placement: str, rows: bool) -> dict[str, Any]:
    """The growth of the server's memory in a run, in vectors, and its processor time per round.

    own: private memory; mapped: pages of the object store that it wrote or read; file: pages of files. rows: every
    upload goes to the server. The processor time includes Ray's threads in the server's process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=process.set_up) as own:
        return own.submit(_measured, algorithm, placement, rows).result()


def _measured(algorithm: str, placement: str, rows: bool) -> dict[str, Any]:
    """Measures `of_server` in this process, the server: memory in the first rounds, time in the later ones."""
    import ray

    experiment = assemble(load_config(CONFIG, [f"algorithm.name={algorithm}", f"runtime.placement={placement}"]))
    limit_threads(1)  # as in the server actor
    for name, value in OWN_CLUSTER.items():
        os.environ.setdefault(name, value)
    ray.init("local", num_cpus=2, object_store_memory=((1 + rows) * CLIENTS + 16) * 4 * WIDTH, **QUIET)
    workers = start_workers(experiment.config.runtime, (None,) * WORKERS)
    memory, vectors, seconds, received = Memory(), [0.0] * 3, list[float](), 0.0
    backend = RayBackend(experiment, StoredExperiment.put(experiment, WORKERS), workers, print)
    federation = Federation.of(experiment, backend)
    federation.dispatch.rows = "compared with sums" if rows else None
    before = time.process_time()
    for metrics, *_ in federation.rounds(ROUNDS):
        if metrics["round"] == WATCHED:
            vectors = memory.peak()
        seconds.append(time.process_time() - before)
        before = time.process_time()
        received = metrics["traffic/received_bytes"] / 4 / WIDTH
    params = federation.state.server["x"]
    ray.shutdown()
    return {
        "algorithm": algorithm,
        "placement": placement,
        "uploads": "rows" if rows else "sums",
        "received": received,
        "own": vectors[0],
        "mapped": vectors[1],
        "file": vectors[2],
        "cpu_ms": 1e3 * median(seconds[WATCHED + 1 :]),
        "bits": fingerprint(params)[:8],
    }


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `sums` of docs/measurements.md."""
    assert len({row["bits"] for row in rows}) == 1, "the parameters must have the same bits in all cases"
    names = {"rows": "rows (`eval.drift`, FedAWARE, ...)", "sums": "sums"}
    return (
        "\n"
        + table(
            [
                {
                    "uploads": names[row["uploads"]] + ", pinned clients" * (row["placement"] == "pinned"),
                    "vectors received": f"{row['received']:.0f}",
                    "own memory": f"{row['own']:.2g}",
                    "pages of the object store touched so far, freed ones too": f"{row['mapped']:.2g}",
                    "processor time per round": f"{row['cpu_ms'] / 1e3:.2g} s",
                }
                for row in rows
            ]
        )
        + "\n"
    )


def page_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `rows` of docs/measurements.md."""
    lines = [
        {
            "method": f"`{row['algorithm']}`",
            "vectors received": f"{row['received']:.0f}",
            "own memory": f"{row['own']:.2g}",
            "pages of the object store": f"{row['mapped']:.2g}",
            "pages of files": f"{row['file']:.2g}",
            "processor time per round": f"{row['cpu_ms'] / 1e3:.2g} s",
        }
        for row in rows
    ]
    return f"\n{table(lines)}\n"


class Memory:
    """The largest memory of this process since the object was made, sampled every 5 ms."""

    def __init__(self) -> None:
        self._before, self._most, self._ended = _resident(), [0, 0, 0], threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            grown = (now - then for now, then in zip(_resident(), self._before, strict=True))
            self._most = [*map(max, self._most, grown)]

    def peak(self) -> list[float]:
        """[own, mapped, file] in vectors."""
        self._ended.set()
        self._thread.join()
        return [most / 4 / WIDTH for most in self._most]


def _resident() -> list[int]:
    """[private, shared, file] bytes of resident memory."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile")]
