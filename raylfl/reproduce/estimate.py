"""`raylfl reproduce --estimate`: the expected duration of the runs, from short runs of each kind."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

from raylfl import api
from raylfl.report.labels import canonical
from raylfl.report.runs import load_run
from raylfl.runtime.records.summary import cpu_model

LONG = 24.0  # hours above which a line says that this machine is too slow


def estimate(configs: Sequence[dict[str, Any]], processes: int) -> list[str]:
    """One line for each kind of run (data, model, method, clients), and one for all runs.

    Of each kind the run with the fewest local steps is made until its first evaluation. The durations of the others are
    scaled by their local steps, which is slightly too long, because the time of an evaluation does not grow with them.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        kinds.setdefault(canonical(_kind(config)), []).append(config)
    lines, total = [], 0.0
    for own in kinds.values():
        least = min(own, key=_work)
        hours = sum(_per_round(least) * config["rounds"] * _work(config) / _work(least) for config in own) / 3600
        total += hours
        lines.append(f"{hours:8.2f} h  {len(own)} runs: {_words(least)}")
    together = total / processes
    lines.append(f"{together:8.2f} h  in all, {processes} at a time on {cpu_model()}")
    if together > LONG:
        lines.append("this machine is too slow for all of it: --only chooses cells, a GPU helps (runtime.backend=ray)")
    return lines


def _kind(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("data", "model", "algorithm", "num_clients", "participation", "runtime")}


def _work(config: dict[str, Any]) -> float:
    return float(config["local"]["steps"] or config["local"]["epochs"] or 1)


def _per_round(config: dict[str, Any]) -> float:
    """Seconds per round, evaluation included, of a short run in a temporary folder."""
    short = copy.deepcopy(config)
    rounds = max(2, min(int(config["eval"]["every"]), 25))
    short["rounds"], short["checkpoint"]["every"] = rounds, 0
    with tempfile.TemporaryDirectory() as folder:
        short["logging"] |= {"dir": folder, "id": "short"}
        path = api.run(short).run_dir
        return float(load_run(path).summary["wall_seconds"]) / rounds


def _words(config: dict[str, Any]) -> str:
    parts = [config[place].get("name") or config[place]["class_path"] for place in ("data", "model", "algorithm")]
    return ", ".join(parts)
