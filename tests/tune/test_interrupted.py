"""A sweep killed by SIGKILL continues and repeats no finished trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

import raylfl
from raylfl.errors import RaylflError
from raylfl.tune import watch
from raylfl.tune.journal import ends
from raylfl.tune.spec import load_sweep
from raylfl.tune.watch import watched
from tests.tune.sweeps import QUADRATICS, finish, tables, write

ROOT = Path(__file__).resolve().parents[2]
RATES = (0.1, 0.01)


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


def ended(place):
    """The trials that the journal of the only sweep calls ended."""
    return [trial for folder in place.glob("runs/*") for trial in ends(folder)]


def killed(process):
    """Kills the sweep's process; returns the processes that it had started."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return family


def loses_its_head(process):
    """Kills the head of the sweep's Ray; returns the processes that the sweep had started. The sweep must end itself,
    earlier than Ray would end it.
    """
    family = psutil.Process(process.pid).children(recursive=True)
    next(child for child in family if child.name() == "gcs_server").kill()
    assert process.wait(timeout=50) == 1
    return family


@pytest.mark.timeout(900)
@pytest.mark.exhaustive  # of a damaged journal see test_damaged_sweep.py, of a sweep that is resumed test_sweep.py
@pytest.mark.parametrize("strike", [killed, loses_its_head])
def test_a_killed_sweep_ends_with_the_table_of_an_undisturbed_one(tmp_path, strike):
    """The sweep is struck with one finished trial and one in its third round; no trial is run twice."""
    saved, gate = "runs/*/001-*/checkpoints/round_*", tmp_path / "gate"
    held = {"after": str(tmp_path / saved), "gate": str(gate)}
    path = write(
        tmp_path,
        model={"name": None, "class_path": "tests.tune.modules.Held"},
        concurrent=2,
        space={
            "local.lr": {"grid": list(RATES)},
            "model.init_args": {"grid": [held], "when": {"local.lr": RATES[1]}},
        },
        logging={"dir": str(tmp_path / "runs")},
    )
    with open(tmp_path / "log", "w") as log:
        process = start([str(path)], log)
        try:
            wait_for(lambda: list(tmp_path.glob(saved)) and ended(tmp_path), process)
            vanish(strike(process))
        finally:
            if process.poll() is None:
                killed(process)
        (folder,) = tmp_path.glob("runs/*")
        if strike is loses_its_head:
            said = f"of Ray has ended unexpectedly: raylfl sweep --resume {folder} continues the open trials"
            assert said in (tmp_path / "log").read_text()
        assert ends(folder) == {"000-fedavg-s0": "finished"}
        assert not (folder / "001-fedavg-s0" / "summary.json").exists()
        written = (folder / "000-fedavg-s0" / "final.pt").stat().st_mtime_ns

        gate.touch()
        same = [str(path), "--or-resume"] if strike is killed else ["--resume", str(folder)]
        again = start([*same, "concurrent=2"], log)
        family = []
        while again.poll() is None:
            family += [p for p in psutil.Process(again.pid).children(recursive=True) if p not in family]
            time.sleep(0.5)
        assert again.returncode == 0, (tmp_path / "log").read_text()
        vanish(family)
    assert (folder / "000-fedavg-s0" / "final.pt").stat().st_mtime_ns == written
    assert "resumed at round 2" in (folder / "001-fedavg-s0" / "log.txt").read_text()
    assert (folder / "report" / "index.html").exists()
    said = (tmp_path / "log").read_text()
    assert "[2/2]" in said
    assert said.count("000-fedavg  finished") == 1
    (tmp_path / "undisturbed").mkdir()
    finish(load_sweep(path), tmp_path / "undisturbed")
    assert tables(folder) == tables(tmp_path / "undisturbed")
    plain = {k: v for k, v in QUADRATICS.items() if k not in ("space", "metric")}
    for trial, lr in enumerate(RATES):
        params = torch.load(folder / f"00{trial}-fedavg-s0" / "final.pt", weights_only=True)["params"]
        place = [f"logging.dir={tmp_path}/plain", "logging.report=false"]
        assert torch.equal(params, raylfl.run(plain, [f"local.lr={lr}", *place]).params)


@pytest.mark.parametrize("lost", [False, True])
def test_a_sweep_whose_cluster_does_not_answer_ends_with_the_command_that_continues_it(monkeypatch, capsys, lost):
    ends = threading.Event()

    def check():
        if lost:
            raise RaylflError("the Ray cluster at far:1 has not answered for 30 s")

    monkeypatch.setattr(watch, "SECONDS", 0.01)
    monkeypatch.setattr(watch.os, "_exit", lambda code: ends.set())
    written = []
    with watched(SimpleNamespace(check=check, lost=lambda: None), "raylfl sweep --resume D", lambda: written.append(1)):
        assert ends.wait(60 if lost else 0.1) == lost
    told = (
        "raylfl: the Ray cluster at far:1 has not answered for 30 s: raylfl sweep --resume D continues the open trials"
    )
    assert capsys.readouterr().err == (f"{told}\n" if lost else "")
    assert written == [1] * lost
