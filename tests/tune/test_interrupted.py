"""A sweep killed by SIGKILL continues and repeats no finished trial."""

import os
import signal
import subprocess
import sys
import time
from glob import glob
from pathlib import Path

import psutil
import pytest
import torch

import raylfl
from raylfl.tune.spec import load_sweep
from tests.tune.sweeps import QUADRATICS, finish, folder_of, tables, write

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("fedavg", "fedavgm")


def start(arguments, log):
    command = [sys.executable, "-m", "raylfl", "sweep", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline, "the sweep did not get there"
        time.sleep(0.1)


def vanish(processes, seconds=120):
    """Waits until all processes have ended; Ray ends processes that have lost their driver."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive, alive


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_killed_sweep_ends_with_the_table_of_an_undisturbed_one(tmp_path):
    """The sweep is killed with one finished trial and one in its third round; no trial is run twice."""
    runs, gate = tmp_path / "runs" / "quadratics", tmp_path / "gate"
    held = {"after": str(runs / "fedavgm-*/checkpoints/round_*"), "gate": str(gate)}
    path = write(
        tmp_path,
        model={"name": None, "class_path": "tests.tune.modules.Held"},
        space={
            "algorithm.name": {"grid": list(METHODS)},
            "model.init_args": {"grid": [held], "when": {"algorithm.name": METHODS[1]}},
        },
        logging={"dir": str(tmp_path / "runs")},
    )
    with open(tmp_path / "log", "w") as log:
        process = start([str(path)], log)
        try:
            wait_for(lambda: glob(held["after"]) and list(runs.glob("fedavg-*/summary.json")), process)
            family = psutil.Process(process.pid).children(recursive=True)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        vanish(family)
        first, second = (folder_of(runs, setting) for setting in range(2))
        assert not (second / "summary.json").exists()
        written = (first / "final.pt").stat().st_mtime_ns

        gate.touch()
        again = start([str(path)], log)
        family = []
        while again.poll() is None:
            family += [p for p in psutil.Process(again.pid).children(recursive=True) if p not in family]
            time.sleep(0.5)
        assert again.returncode == 0, (tmp_path / "log").read_text()
        vanish(family)
    assert (first / "final.pt").stat().st_mtime_ns == written
    assert "resumed at round 2" in (second / "log.txt").read_text()
    assert (runs / "report" / "index.html").exists()
    assert "[2/2] 001-fedavgm  finished" in (tmp_path / "log").read_text()
    finish(load_sweep(path), tmp_path / "undisturbed" / "quadratics")
    assert tables(runs) == tables(tmp_path / "undisturbed" / "quadratics")
    plain = {k: v for k, v in QUADRATICS.items() if k not in ("space", "metric")}
    for folder, method in zip((first, second), METHODS, strict=True):
        params = torch.load(folder / "final.pt", weights_only=True)["params"]
        place = [f"logging.dir={tmp_path}/plain", "logging.report=false"]
        assert torch.equal(params, raylfl.run(plain, [f"algorithm.name={method}", *place]).params)
