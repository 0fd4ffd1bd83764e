"""The fault kit: runs that die at a chosen phase of a chosen round, and what must be equal afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import torch

from raylfl.api import checked
from raylfl.config.load import load_config
from raylfl.runtime.inprocess import rows
from raylfl.runtime.run_dir import RunDirectory
from raylfl.runtime.session import write_records
from raylfl.runtime.task import Fault

PHASES = ("draw", "train", "aggregate", "commit", "log", "checkpoint")
REAL_TIME = ("time/round",)  # the only metrics that differ between two runs of one config


class Killed(BaseException):
    """Stands in for SIGKILL within a process: nothing but `finally` sees it."""


def strike(phase: str, r: int, with_: BaseException | None = None) -> Fault:
    """Raises `Killed` (or `with_`) as round r reaches that phase."""

    def fault(at: str, now: int) -> None:
        if (at, now) == (phase, r):
            raise with_ or Killed(f"{phase} of round {r}")

    return fault


def carry_out(
    config: dict[str, Any],
    folder: Path,
    overrides: list[str] | None = None,
    resume: bool = False,
    fault: Fault | None = None,
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
        "metrics": [{k: v for k, v in row.items() if k not in REAL_TIME} for row in metrics],
        "participation": (folder / "participation.jsonl").read_text(),
        "params": final["params"].numpy().tobytes(),
        "state_dict": {k: v.numpy().tobytes() for k, v in final["state_dict"].items()},
    }


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


# -- through the command line, in a process of its own -----------------------------------------------------------


def command(*args: str, fault: Path | None = None) -> subprocess.Popen[str]:
    """`raylfl ARGS` in a process group of its own; fault: the file of a kill point."""
    environment = os.environ | ({"RAYLFL_FAULT": str(fault)} if fault else {})
    return subprocess.Popen(
        [sys.executable, "-m", "raylfl", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
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


def alive(processes: list[psutil.Process], seconds: float = 15) -> list[psutil.Process]:
    """Those that still run after so long; zombies that nobody collects do not count."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
