"""Hashes of short runs of every algorithm and shipped model, to check that a change of the code keeps their bits.

    python -m benchmarks.golden write FILE    before the change
    python -m benchmarks.golden check FILE    after it; names each run whose bits changed, with exit code 1

Hashes depend on the machine (its BLAS kernels), so they are kept outside the repository.
"""

import hashlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: sums do not depend on the machine's load

LATER = ("cost/busiest", "algo/components", "algo/chi2")  # metrics that are newer than the reference hashes

DIGITS: dict[str, Any] = {
    "base": ["data/digits", "model/mlp"],
    "rounds": 4,
    "num_clients": 12,
    "partition": {"name": "dirichlet", "alpha": 0.3, "min_size": 2},
    "participation": {"name": "bernoulli", "p": 0.6},
    "link": {"name": "bernoulli", "q": 0.2},
    "local": {"steps": {"uniform": [1, 5]}, "batch_size": 16, "lr": 0.05, "dynamic": True},
    "eval": {"every": 2, "global": True},
}
PROBLEM: dict[str, Any] = {
    "base": ["data/quadratics", "model/quadratic", "preset/fedacs_fig4_right"],
    "rounds": 4,
    "dtype": "float64",
    "partition": {"name": "natural"},
    "local": {"batch_size": "full"},
    "eval": {"every": 0, "inconsistency": True},
}
IMAGES: dict[str, Any] = {
    "base": ["data/synthetic_images"],
    "data": {"init_args": {"shape": [3, 32, 32], "num_train": 64, "num_test": 32}},
    "rounds": 2,
    "num_clients": 4,
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "local": {"steps": 2, "batch_size": 8, "lr": 0.05},
    "eval": {"every": 1},
}
SAMPLERS = {"fedacs", "optimal_sampling", "cafedavg"}


def configs() -> dict[str, dict[str, Any]]:
    """The runs by name: every algorithm on digits and quadratics, every image model, options of local work."""
    from raylfl.algorithms import ALGORITHMS
    from raylfl.models import MODELS

    runs: dict[str, dict[str, Any]] = {}
    sampled = {"name": "uniform", "size": 5, "availability": {"name": "bernoulli", "p": 0.8}}
    for name in ALGORITHMS.names():
        algorithm: dict[str, Any] = {"name": name}
        if name in ("ssl", "splitfed"):
            algorithm["cut"] = "layers.relu1"
        participation = {"participation": sampled} if name in SAMPLERS else {}
        runs[f"digits/{name}"] = {**DIGITS, "algorithm": algorithm, **participation}
        if name not in ("ssl", "splitfed", "centralized"):  # the first two need layers to cut, the last has one client
            runs[f"quadratics/{name}"] = {**PROBLEM, "algorithm": algorithm}
    for name in MODELS.names():
        if name not in ("quadratic", "dense_quadratic", "ridge", "vgg9", "text_lm"):
            runs[f"model/{name}"] = {**IMAGES, "model": {"name": name}, "algorithm": {"name": "scaffold"}}
    local = DIGITS["local"]
    for label, change in {
        "momentum": {"momentum": 0.9, "weight_decay": 1e-3, "clip_norm": 1.0},
        "replacement": {"sampling": "with_replacement"},
        "schedule": {"lr_schedule": {"name": "sqrt", "period": 10}},
        "epochs": {"steps": None, "epochs": 2, "dynamic": False},
    }.items():
        runs[f"local/{label}"] = {**DIGITS, "algorithm": {"name": "fedavg"}, "local": {**local, **change}}
    runs["vectorised/off"] = {**DIGITS, "algorithm": {"name": "focus"}, "runtime": {"vectorize": "never"}}
    return runs


def digest(config: dict[str, Any], folder: Path) -> str:
    """sha256 of a run's parameters, metrics (without times and `LATER`) and participation."""
    import raylfl

    runtime = {"backend": "local", **config.get("runtime", {})}
    full = {**config, "runtime": runtime, "logging": {"dir": str(folder)}, "checkpoint": {"every": 0}}
    result = raylfl.run(full)
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("time/round", "traffic/", *LATER))} for row in result.metrics
    ]
    content = hashlib.sha256(result.params.numpy().tobytes())
    content.update(json.dumps(rows, sort_keys=True).encode())
    content.update((result.run_dir / "participation.jsonl").read_bytes())
    return content.hexdigest()[:16]


def measured() -> dict[str, str]:
    """The hash of each run, or the error that ended it."""
    out = {}
    for name, config in configs().items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                out[name] = digest(config, Path(folder))
            except Exception as error:
                out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return out


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        print(__doc__)
        return 2
    path, now = Path(sys.argv[2]), measured()
    if sys.argv[1] == "write":
        path.write_text(json.dumps(now, indent=1))
        print(f"{len(now)} runs written to {path}")
        return 0
    before = json.loads(path.read_text())
    moved = [name for name in before if before[name] != now.get(name)]
    for name in moved:
        print(f"moved: {name}: {before[name]} -> {now.get(name)}")
    print(f"{len(before) - len(moved)} of {len(before)} runs have the same bits")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
