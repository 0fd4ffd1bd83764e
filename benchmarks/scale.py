"""Many clients: set-up, round time and memory for N = 1,000 and 100,000 virtual clients, stateless and stateful."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

PROGRAM = """
import json, resource, sys, tempfile, time
started = time.perf_counter()
from raylfl.api import checked
from raylfl.config.load import load_config
from raylfl.runtime.backend import LocalBackend
from raylfl.runtime.loop import Federation
clients, algorithm = int(sys.argv[1]), sys.argv[2]
config = {
    "num_clients": clients, "rounds": 33,
    "model": {"name": "logistic"},
    "data": {"name": "synthetic_images", "init_args": {"shape": [1, 8, 8], "num_train": 1_000_000, "num_test": 10}},
    "participation": {"name": "uniform", "size": 100},
    "local": {"steps": 5, "batch_size": 5, "lr": 0.05},
    "eval": {"every": 0, "inconsistency": False}, "runtime": {"backend": "local"},
    "algorithm": {"name": algorithm},
}
experiment = checked(load_config(config))
federation = Federation(experiment, LocalBackend(experiment.setup))
ready = time.perf_counter() - started
times = [m["time/round"] for m, _ in federation.rounds(33)][3:]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"clients": clients, "algorithm": algorithm, "setup_seconds": ready,
                  "round_ms": sorted(times)[len(times) // 2] * 1e3, "peak_gb": peak}))
"""


def scale(clients: int, algorithm: str) -> dict[str, Any]:
    """In a process of its own, so that peak memory is its own."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(clients), algorithm], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])
