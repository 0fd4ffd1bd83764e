"""Start-up and memory of a real command: seconds to the first finished round, peak memory of the process tree."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from benchmarks.workloads import WORKLOADS


def start_up_and_memory(workers: int, rounds: int = 60) -> dict[str, float]:
    """`raylfl run` of W1 on Ray, watched from outside: seconds to its first row, peak PSS in GB (shared pages once).

    Memory is looked at from the first row on: reading it costs the processes more than a tenth of a second.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "w1.yaml"
        config.write_text(yaml.safe_dump(WORKLOADS["W1"].config(rounds, workers=workers)))
        started = time.perf_counter()
        run = subprocess.Popen(
            [sys.executable, "-m", "raylfl", "run", str(config), f"logging.dir={folder}/runs"],
            stdout=subprocess.DEVNULL,
        )
        first, peak = float("nan"), 0.0
        while run.poll() is None:
            if first == first:
                peak = max(peak, tree_bytes(run.pid))
            else:
                rows = list(Path(folder).glob("runs/*/*/metrics.jsonl"))
                if rows and rows[0].stat().st_size:
                    json.loads(rows[0].read_text().splitlines()[0])
                    first = time.perf_counter() - started
            time.sleep(0.05)
    return {"workers": workers, "first_round_seconds": first, "peak_gb": peak / 1e9}


def tree_bytes(pid: int) -> float:
    """Proportional memory of a process and all below it."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0.0
    return float(total)
