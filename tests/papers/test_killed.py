"""A reproduction whose process is ended leaves no process behind."""

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
SCRIPT = """
import sys, time
from pathlib import Path
from papers.run_cache import CellConfig, RunCache
from raylfl.execution.processes import in_processes
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
setting = CellConfig("x", {"base": ["reproduce/sfl_fig1"], "rounds": rounds})
for number, run in enumerate(in_processes([RunCache(folder).plan(setting, seed) for seed in (0, 1)], [{}, {}])):
    (folder / f"ended-{number}").touch()
    time.sleep(number * 10**6)  # both have ended
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
    script.write_text(LEAN + SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), "2" if idle else "1000000"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    children = []
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("ended-*" if idle else "runs/*/metrics.jsonl"))) < 2:
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
