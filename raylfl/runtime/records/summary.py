"""Parts of summary.json: final and best metrics, the forms of local steps, versions, git commit and host."""

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from raylfl.core.oracle import GradientMode
from raylfl.diagnostics.metric_names import Better, direction

PACKAGES = ("raylfl", "ray", "lightning", "torch", "numpy")


def summarise(rows: list[dict[str, Any]], directions: Mapping[str, Better] | None = None) -> dict[str, Any]:
    """The number of rounds, and of each metric the final value and, if its better direction is known, the best one."""
    final: dict[str, Any] = {}
    best: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            if name == "round" or not isinstance(value, (int, float)):
                continue
            final[name] = value
            if (goal := direction(name, directions)) is not None:
                better = max if goal == "max" else min
                best[name] = better(best.get(name, value), value)
    return {"rounds": len(rows), "final": final, "best": best}


def step_summary(ways: Counter[GradientMode]) -> list[dict[str, Any]]:
    """One row per form of the local step and reason for it, most frequent first: {"step", "count", "why"}.

    ways: form and reason -> number of gradients: one per client and local step, and one per full gradient.
    """
    return [{"step": way.name, "count": count, "why": way.why} for way, count in ways.most_common()]


def step_line(rows: list[dict[str, Any]]) -> str:
    """The rows of `step_summary` as text: `recorded 980 of 1,000 (...); autograd 20 of 1,000 (...)`, or `none`."""
    total = sum(row["count"] for row in rows)
    parts = [f"{row['step']} {row['count']:,} of {total:,} ({row['why']})" for row in rows]
    return "; ".join(parts) or "none"


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def environment(own: Iterable[str] = ()) -> dict[str, Any]:
    """Versions, commits and machine; own: the files of the user's code, with "" for code without a file."""
    import psutil

    memory = psutil.virtual_memory().total / 2**30
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "raylfl_commit": raylfl_commit(),
        **({"own_commit": git_commit(Path(files[0]).parent, files)} if (files := sorted(own)) else {}),
        "host": {
            "platform": platform.platform(),
            "cpu": cpu_model(),
            "cpus": os.cpu_count(),
            "memory_gib": round(memory, 1),
        },
    }


@cache
def cpu_model() -> str:
    """The name of the processor, or its architecture if the system does not provide the name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_commit(folder: Path | None = None, files: Sequence[str] = ()) -> str | None:
    """The git commit of a folder, or here, with `+changes` if tracked files differ; None outside a repository.

    files: those that must be tracked; `+changes` if one is not.
    """
    head, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "-uno")
    tracked = not files or _git(folder, "ls-files", "--error-unmatch", "--", *files) is not None
    # `+changes` also if git cannot say whether there are any
    return head if changes == "" and tracked else head and f"{head}+changes"


@cache
def raylfl_commit() -> str | None:
    """The git commit of the checkout from which raylfl was imported; None for an installed package."""
    folder = Path(__file__).parent
    return git_commit(folder) if _git(folder, "ls-files", Path(__file__).name) else None


def _git(folder: Path | None, *arguments: str) -> str | None:
    """The output of a git command in a folder; None if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5)
        return None if done.returncode else done.stdout.strip()
    return None
