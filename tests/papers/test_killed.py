"""A reproduction whose process is ended leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.shares import one_in
from tests.startup.forks import LEAN

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
from pathlib import Path
from papers.run_cache import CellConfig, RunCache
if __name__ == "__main__":
    long = CellConfig("long", {"base": ["reproduce/sfl_fig1"], "rounds": 10**6})
    RunCache(Path(sys.argv[1]), jobs=2).groups([long], [0, 1])
"""

IDLE = """
import sys, time
from pathlib import Path
from papers.run_cache import CellConfig, RunCache
from raylfl.execution.processes import in_processes
short = CellConfig("short", {"base": ["reproduce/sfl_fig1"], "rounds": 2})
cache = RunCache(Path(sys.argv[1]))
runs = [cache.plan(short, seed) for seed in (0, 1)]
for number, run in enumerate(in_processes(runs, [{}, {}])):
    (Path(sys.argv[1]).parent / f"ready-{number}").touch()
    if number == 1:  # both have ended
        time.sleep(10**6)
"""


@pytest.mark.parametrize(
    ("number", "idle"),
    one_in(
        4,
        [(signal.SIGKILL, True), (signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGTERM, True)],
        ids=lambda case: f"{case[0].name}, {'waiting for work' if case[1] else 'at work'}",
    ),
)
def test_the_processes_of_a_killed_reproduction_end_within_seconds(tmp_path, number, idle):
    """Only the parent is struck, not its process group."""
    script = tmp_path / "reproduce.py"
    script.write_text(LEAN + (IDLE if idle else CODE))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    children = []
    try:
        deadline = time.monotonic() + 120
        ready = tmp_path / "out" / "runs"
        while len(list(ready.glob("*/metrics.jsonl")) if not idle else list(tmp_path.glob("ready-*"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        process.wait(30)
        _, left = psutil.wait_procs(children, timeout=15)
        assert left == []
    finally:
        for child in (process, *children):
            if child.pid != os.getpid() and psutil.pid_exists(child.pid):
                psutil.Process(child.pid).kill()
