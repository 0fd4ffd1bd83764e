"""Scaling: a model of 11 million parameters; a cohort of 1,000 tiny clients."""

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from math import nan
from multiprocessing import get_context
from statistics import median
from typing import Any

import raylfl
from benchmarks.rounds import WARM_UP
from raylfl.config.load import load_config
from raylfl.core.vectorized import VectorizedOracle
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.startup import malloc

RESNET18 = {
    "name": "bench-resnet18",
    "num_clients": 20,
    "model": {"name": "resnet18"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [3, 32, 32], "num_train": 400, "num_test": 10}},
    "participation": {"name": "uniform", "size": 10},
    "local": {"steps": 1, "batch_size": 20, "lr": 0.01},
}
SFL_TABLE_3 = {"local": {"steps": 5, "batch_size": 20, "lr": 0.01, "clip_norm": 10.0, "weight_decay": 1e-4}}
TINY = {
    "name": "bench-tiny",
    "num_clients": 1000,
    "model": {"name": "logistic"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [1, 8, 8], "num_train": 20_000, "num_test": 10}},
    "participation": {"name": "full"},
    "local": {"steps": 5, "batch_size": 5, "lr": 0.05},
}
OFF = {"eval": {"every": 0, "inconsistency": False}, "checkpoint": {"every": 0}, "logging": {"report": False}}


def against_the_oracle(name: str, config: dict[str, Any], workers: int, rounds: int) -> dict[str, Any]:
    """Compares a round on Ray with the time of its gradients alone, measured in a separate process before and after.

    With 0 workers, a round in process is compared with its own gradients. platform_share: share of a round (in process
    or on one worker) that is not gradients; throughput: client-steps per second, relative to gradients alone; vmap_ms,
    against_vmap: the same with torch.func's vmap, if the model has a faster form.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=malloc.keep) as own:
        alone = own.submit(in_process_seconds, config, rounds).result()
        vmapped = own.submit(in_process_seconds, config, rounds, by_hand=False).result()
        ours = [whole for _, whole in alone]
        if workers:
            with tempfile.TemporaryDirectory() as folder:
                run = {**config, **OFF, "rounds": rounds + WARM_UP, "runtime": {"workers": workers}}
                result = raylfl.run(run, [f"logging.dir={folder}"])
            ours = [row["time/round"] for row in result.metrics[WARM_UP:]]
            alone += own.submit(in_process_seconds, config, rounds).result()
    gradients, whole = median(oracle for oracle, _ in alone), median(ours)
    by_vmap = median([oracle for oracle, _ in vmapped] or [nan])
    return {
        "case": name,
        "workers": workers,
        "oracle_ms": 1e3 * gradients,
        "round_ms": 1e3 * whole,
        "platform_share": 1 - gradients / whole if workers < 2 else float("nan"),
        "throughput": gradients / whole,
        "vmap_ms": 1e3 * by_vmap,
        "against_vmap": by_vmap / whole,
    }


def in_process_seconds(config: dict[str, Any], rounds: int, by_hand: bool = True) -> list[tuple[float, float]]:
    """(seconds in `Oracle.gradients`, seconds in total) of each round but the first, in one process with one thread.

    by_hand: False: uses vmap; empty if the model runs one client at a time.
    """
    experiment = assemble(load_config({**config, **OFF, "rounds": rounds + 1, "runtime": {"backend": "local"}}))
    backend = LocalBackend(experiment.setup)
    if not by_hand:
        if backend.one_by_one:
            return []
        backend.worker.forms.oracle = VectorizedOracle(backend.worker.flat, by_hand=False)
    federation, oracle = Federation.of(experiment, backend), backend.worker.forms.oracle
    gradients, spent = oracle.gradients, 0.0

    def timed(*args: Any) -> Any:
        nonlocal spent
        started = time.perf_counter()
        out = gradients(*args)
        spent += time.perf_counter() - started
        return out

    oracle.gradients = timed  # type: ignore[method-assign]
    seconds = []
    for metrics, *_ in federation.rounds(rounds + 1):
        seconds.append((spent, metrics["time/round"]))
        spent = 0.0
    backend.close()
    return seconds[1:]
