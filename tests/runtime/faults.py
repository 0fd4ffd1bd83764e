"""The fault kit: runs that die at a chosen phase of a chosen round, and what must be equal afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.api import checked
from raylfl.config.load import load_config
from raylfl.parts import Experiment
from raylfl.runtime import inprocess
from raylfl.runtime.faults import Fault
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.session import write_records

PHASES = ("draw", "train", "collect", "aggregate", "commit", "log", "checkpoint")
MACHINE = ("time/round", "traffic/")  # metrics of where a run is carried out: the only ones that differ between two


def options_of(algorithm: str) -> dict[str, Any]:
    """The algorithm with what it cannot do without: split learning wants to know where to cut the tiny model."""
    cut = any(field.name == "cut" for field in fields(ALGORITHMS.get(algorithm).cls))
    return {"name": algorithm, **({"cut": "body.1"} if cut else {})}


class Killed(BaseException):
    """Stands in for SIGKILL within a process: nothing but `finally` sees it."""


def strike(phase: str, r: int, with_: BaseException | None = None) -> Fault:
    """Raises `Killed` (or `with_`) as round r reaches that phase."""

    def fault(at: str, now: int) -> None:
        if (at, now) == (phase, r):
            raise with_ or Killed(f"{phase} of round {r}")

    return fault


Rows = Callable[[Experiment, RunDirectory, bool, Fault | None], Generator[Any, None, None]]


def carry_out(
    config: dict[str, Any],
    folder: Path,
    overrides: list[str] | None = None,
    resume: bool = False,
    fault: Fault | None = None,
    rows: Rows = inprocess.rows,
) -> None:
    """A run of `config` in `folder` on the local backend, as `raylfl run` and `resume` do it, with a fault."""
    experiment = checked(load_config(config, overrides or []))
    folder.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
    run_dir = RunDirectory(folder).open()
    try:
        if not resume:
            write_records(experiment, run_dir)
        with closing(rows(experiment, run_dir, resume, fault)) as stream:
            for _ in stream:
                pass
    finally:
        run_dir.close()


def killed(call: Callable[[], object]) -> None:
    """The call, which must end in `Killed`."""
    try:
        call()
    except Killed:
        return
    raise AssertionError("the kill point was never reached")


def outcome(folder: Path) -> dict[str, Any]:
    """Everything of a finished run that must be equal bit for bit: records as text, parameters as bytes."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    final = torch.load(folder / "final.pt", weights_only=True)
    return {
        "metrics": [{k: v for k, v in row.items() if not k.startswith(MACHINE)} for row in metrics],
        "participation": (folder / "participation.jsonl").read_text(),
        "params": final["params"].numpy().tobytes(),
        "state_dict": {k: v.numpy().tobytes() for k, v in final["state_dict"].items()},
    }


def checkpoints(folder: Path) -> list[str]:
    """Their names, oldest first."""
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


# -- through the command line, in a process of its own -----------------------------------------------------------


def start(*args: str) -> subprocess.Popen[str]:
    """`raylfl ARGS` in a process group of its own; tests take the fixture `command`, which ends it in any case."""
    return subprocess.Popen(
        [sys.executable, "-m", "raylfl", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )


def wait_until(there: Callable[[], object], what: str, seconds: float = 240) -> None:
    """Polls a condition for some seconds of its own time, which a pause of the whole machine does not use up."""
    for _ in range(round(seconds / 0.05)):
        if there():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {seconds} s")


def finished(process: subprocess.Popen[str], seconds: float = 280) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that must end by itself."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The process and everything it started, while it lives."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def actors(name: str, below: int | None = None) -> list[psutil.Process]:
    """The processes that run such actors below this process, or another; no other process of this machine."""
    found = []
    for process in psutil.Process(below).children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            found += [process] * (f"ray::{name}" in " ".join(process.cmdline()))
    return found


def alive(processes: list[psutil.Process], seconds: float = 15) -> list[psutil.Process]:
    """The processes that still run after so long; zombies do not count."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
