"""Start-up and memory of `raylfl run`: seconds to the first finished round, peak memory of the process tree."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.workloads import WORKLOADS


def start_up_and_memory(workers: int, rounds: int = 60) -> dict[str, Any]:
    """Seconds to the first finished round and peak memory of `raylfl run` of W1 on Ray.

    The ratios compare them with a bare Ray program (`bare.py`), run before and after it.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "w1.yaml"
        config.write_text(yaml.safe_dump(WORKLOADS["W1"].config(rounds, workers=workers)))
        run = ["raylfl", "run", str(config), f"logging.dir={folder}/runs"]
        bare = [watched(["benchmarks.bare", f"{folder}/before", str(rounds)], folder, "before")]
        ours = watched(run, folder, "runs/*/*/metrics.jsonl")
        bare.append(watched(["benchmarks.bare", f"{folder}/after", str(rounds)], folder, "after"))
    seconds, peak = (sum(column) / len(bare) for column in zip(*bare, strict=True))
    return {
        "workers": workers,
        "first_round_seconds": ours[0],
        "bare_seconds": seconds,
        "ratio": ours[0] / seconds,
        "peak_gb": ours[1],
        "bare_gb": peak,
        "memory_ratio": ours[1] / peak,
    }


def watched(module: list[str], folder: str, rows: str) -> tuple[float, float]:
    """(seconds until a file of this pattern has a line, peak PSS in GB) of `python -m module`.

    PSS counts shared pages once. It is read only after that line, because each reading delays the processes by more
    than a tenth of a second.
    """
    started = time.perf_counter()
    run = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, peak = float("nan"), 0.0
    while run.poll() is None:
        if first == first:
            peak = max(peak, tree_bytes(run.pid))
        elif any(path.stat().st_size for path in Path(folder).glob(rows)):
            first = time.perf_counter() - started
        time.sleep(0.05)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, module)
    return first, peak / 1e9


def tree_bytes(pid: int) -> float:
    """The PSS of a process and its descendants, in bytes."""
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
