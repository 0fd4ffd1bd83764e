"""Fault injection: runs that die in a chosen phase of a chosen round, and the outcomes that must be equal."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil

from raylfl.algorithms import ALGORITHMS
from raylfl.testing.runs import MACHINE, PHASES, Killed, carry_out, killed, outcome, strike

__all__ = ["MACHINE", "PHASES", "Killed", "carry_out", "killed", "outcome", "strike"]


def options_of(algorithm: str) -> dict[str, Any]:
    """An algorithm with its required options: split learning needs the cut of the tiny model."""
    cut = any(field.name == "cut" for field in fields(ALGORITHMS.get(algorithm).cls))
    return {"name": algorithm, **({"cut": "body.1"} if cut else {})}


def checkpoints(folder: Path) -> list[str]:
    """The names of a run's checkpoints, oldest first."""
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def rounds_of(folder: Path) -> int:
    """The number of recorded rounds."""
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


# -- through the command line, in a separate process --------------------------------------------------------------


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
    """The live processes among a process and its descendants."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def end(processes: list[subprocess.Popen[str]]) -> None:
    """Ends processes, the newest first, and their descendants."""
    children = [child for process in processes if process.poll() is None for child in family(process)[1:]]
    for process in reversed(processes):
        process.terminate()
    for child in psutil.wait_procs(children, timeout=60)[1]:
        child.kill()
    for process in processes:
        process.wait()


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
