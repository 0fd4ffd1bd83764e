"""A killed driver of a run on Ray leaves no process behind; a killed worker is reported by raylfl, not by Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.faults import actors, alive, family, wait_until

ROOT = Path(__file__).parents[2]
CODE = """
import sys, raylfl
if __name__ == "__main__":
    options = ["rounds=100000", "num_clients=4", "runtime.workers=2", "runtime.cpus_per_worker=0.5"]
    options += ["logging.dir=" + sys.argv[1], "logging.report=false"]
    raylfl.run("digits", options, watch=lambda progress: print(progress.round, *progress.messages, flush=True))
"""


@pytest.mark.exhaustive  # of a killed command and a lost worker see test_interrupt.py
def test_all_processes_end_within_seconds_of_the_driver_and_a_lost_worker_is_reported_once(tmp_path):
    """From Python, where no setting of the command line applies; the driver is struck alone, not its group."""
    (tmp_path / "driver.py").write_text(CODE)
    said = tmp_path / "said.txt"
    with said.open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "runs")],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    processes = []
    try:
        wait_until(lambda: "\n5" in said.read_text() or driver.poll() is not None, "round")
        actors("WorkerActor", driver.pid)[0].kill()
        wait_until(lambda: "was lost" in said.read_text(), "line about the worker")
        processes = family(driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait(30)
        assert alive(processes, 20) == []
        assert "A worker died" not in said.read_text()
        assert said.read_text().count("worker 0 was lost") + said.read_text().count("worker 1 was lost") == 1
    finally:
        for process in alive(processes, 0) or [driver]:
            process.kill()
        driver.wait()
