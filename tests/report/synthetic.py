"""Run directories as a run leaves them, with curves from formulas, for tests of the report."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from raylfl.report.runs import Group, group_runs, load_run

CONFIG: dict[str, Any] = {
    "name": "digits",
    "seed": 0,
    "rounds": 20,
    "dtype": "float32",
    "num_clients": 8,
    "weights": "uniform",
    "model": {"class_path": "raylfl.models.LeNet5", "init_args": {"classes": 10}},
    "data": {"class_path": "raylfl.data.Digits", "init_args": {}},
    "partition": {"name": "dirichlet", "alpha": 0.1, "min_size": 10, "balance": "none"},
    "participation": {"name": "uniform", "size": 4, "on_empty": "skip"},
    "link": {"name": "perfect"},
    "local": {"steps": 5, "batch_size": 32, "lr": 0.1, "momentum": 0.0, "clip_norm": None},
    "system": {"seconds_per_step": 0.01, "bandwidth": None},
    "algorithm": {"name": "fedavg", "gamma": 1.0, "rule": "mean"},
    "eval": {"every": 1, "global": False, "clients": False},
    "checkpoint": {"every": 10},
    "runtime": {"backend": "local", "workers": 1},
    "logging": {"loggers": ["csv"]},
}
OPTIONS = {"fedavg": {"gamma": 1.0, "rule": "mean"}, "focus": {"gamma": None}, "sfl": {"gamma": 1.0}}


def config_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """CONFIG with dotted changes; `algorithm.name` brings the options of that algorithm."""
    config = copy.deepcopy(CONFIG)
    name = changes.get("algorithm.name", "fedavg")
    config["algorithm"] = {"name": name} | OPTIONS.get(name, {})
    for key, value in changes.items():
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return config


def rows_of(
    accuracy: Sequence[float] | None = None,
    distance: Sequence[float] | None = None,
    floats: float = 1000.0,
    loss_rate: float = 0.5,
) -> list[dict[str, Any]]:
    """One row a round; every round costs `floats` up and down, 20 local steps, half a virtual second."""
    rows = []
    for r in range(len(accuracy if accuracy is not None else distance or [])):
        row: dict[str, Any] = {
            "round": r,
            "train/loss": 2.3 / (r + 1) ** loss_rate,
            "cohort/sampled": 4,
            "time/round": 0.1,
        }
        if accuracy is not None:
            row |= {"test/accuracy": accuracy[r], "test/loss": 2.4 - 2 * accuracy[r], "update/diversity": 1.5}
        if distance is not None:
            row["global/distance"] = distance[r]
        row |= {"cost/uplink_floats": floats * (r + 1), "cost/downlink_floats": floats * (r + 1)}
        row |= {"cost/peer_floats": 0, "cost/local_steps": 20 * (r + 1), "time/virtual": 0.5 * (r + 1)}
        rows.append(row)
    return rows


def write_run(
    path: Path, rows: Sequence[Mapping[str, Any]], changes: Mapping[str, Any] | None = None, finished: bool = True
) -> Path:
    """A run directory with these metric rows; without a summary where it is not finished."""
    config = config_of(changes or {})
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_clients(path, config, len(rows))
    if finished:
        summary = {
            "final": dict(rows[-1]),
            "best": {"test/accuracy": 0.9},
            "wall_seconds": 12.5,
            "versions": {"raylfl": "0.1.0", "torch": "2.13.0"},
            "git_commit": "abc1234",
            "host": {"cpus": 2, "memory_gib": 7.5},
            "status": "finished",
            "seed": config["seed"],
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def groups_of(folder: Path, *runs: tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]) -> list[Group]:
    """The groups of runs with these metric rows and changes of the config."""
    return group_runs([load_run(write_run(folder / str(k), rows, changes)) for k, (rows, changes) in enumerate(runs)])


def seeds_of(folder: Path, curves: Sequence[Sequence[float]], metric: str = "accuracy") -> Group:
    """One setting with a seed for every curve."""
    (group,) = groups_of(folder, *((rows_of(**{metric: list(c)}), {"seed": seed}) for seed, c in enumerate(curves)))
    return group


def _write_clients(path: Path, config: Mapping[str, Any], rounds: int) -> None:
    rng, clients, classes = np.random.default_rng(config["seed"]), config["num_clients"], 10
    mix = rng.dirichlet(np.full(classes, float(config["partition"].get("alpha", 1.0))), size=clients)
    counts = np.floor(mix * 60).astype(int)
    names = [str(label) for label in range(classes)]
    (path / "partition_counts.json").write_text(json.dumps({"classes": names, "counts": counts.tolist()}))
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    parts = {str(i): list(range(int(starts[i]), int(starts[i + 1]))) for i in range(clients)}
    (path / "partition.json").write_text(json.dumps(parts))
    size = min(4, clients)
    lines = []
    for r in range(rounds):
        cohort = sorted(rng.choice(clients, size=size, replace=False).tolist())
        received = (rng.random(size) > 0.2).tolist()
        row = {"round": r, "cohort": cohort, "draws": [1] * size, "received": received, "steps": [5] * size}
        lines.append(json.dumps(row) + "\n")
    (path / "participation.jsonl").write_text("".join(lines))
