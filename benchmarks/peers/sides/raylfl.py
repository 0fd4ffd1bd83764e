"""raylfl: a user's module in a file (`benchmarks/networks.py`) and a config; two workers are Ray actors."""

import tempfile
from typing import Any

import raylfl
from benchmarks.peers.data import choose
from benchmarks.peers.job import Job, job


def train(run: Job, **objects: Any) -> raylfl.Result:
    """FedAvg by `raylfl.run`; objects: parts that replace those of the config."""
    _, data = choose(run.workload)

    def watch(progress: raylfl.Progress) -> None:
        run.report(progress.round + 1, progress.metrics.get("test/accuracy"))

    with tempfile.TemporaryDirectory() as folder:
        config = run.workload.run_config(data, run.rounds, run.workers)
        return raylfl.run(config, [f"logging.dir={folder}"], watch=watch, **objects)


if __name__ == "__main__":
    train(job())
