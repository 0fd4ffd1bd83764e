"""`eval.average`: the weighted mean of iterates."""

from __future__ import annotations

import numpy as np
import pytest

import raylfl
from raylfl.config.load import load_config
from raylfl.python.api import checked
from tests.runtime.iterates import Iterates

SMALL = [
    "num_clients=3",
    "data.init_args={num_clients: 3, rows_per_client: 7, dim: 4, lam: 0.3}",
    "participation.size=2",
    "algorithm.name=sfl",
    "local.lr=0.003",
    "rounds=6",
    "eval.every=2",
    "logging.report=false",
]


def value(experiment, x) -> float:
    """F(x) = 1/3 sum_i |A_i x - y_i|^2 + lam |x|^2, from the data."""
    a, y = (array.reshape(3, 7, -1) for array in experiment.setup.train.arrays)
    return np.square(a @ x - y[..., 0]).sum() / 3 + 0.3 * x @ x


@pytest.mark.parametrize("rho", [1.0, 0.7])
def test_average_is_the_weighted_mean_of_all_iterates(tmp_path, rho):
    iterates, overrides = Iterates(), [*SMALL, f"eval.average={rho}", f"logging.dir={tmp_path}"]
    run = raylfl.run("ridge", overrides, callbacks=[iterates])
    e = checked(load_config("ridge", overrides))
    path = np.stack([np.zeros(4), *iterates.seen])
    for r, row in enumerate(run.metrics):
        weights = rho ** -np.arange(1.0, r + 3)  # of x_0, ..., x_{r+1}, as Theorem 1 writes them
        mean = weights @ path[: r + 2] / weights.sum()
        assert row["average/distance_abs"] == pytest.approx(np.linalg.norm(mean - e.optimum.x), rel=1e-12)
        assert ("average/loss" in row) == (r % 2 == 0 or r == 5)
        if "average/loss" in row:
            assert row["average/loss"] == pytest.approx(value(e, mean), rel=1e-12)
            assert row["average/gap"] == pytest.approx(value(e, mean) - value(e, e.optimum.x), rel=1e-9)


def test_a_resumed_run_continues_its_average(tmp_path):
    overrides = [*SMALL, "eval.average=0.7", f"logging.dir={tmp_path}"]
    whole = raylfl.run("ridge", overrides).metrics
    half = raylfl.run("ridge", [*overrides, "rounds=3"])
    again = raylfl.resume(half.run_dir, ["rounds=6"]).metrics
    assert [row["average/distance"] for row in again] == [row["average/distance"] for row in whole]


def test_an_average_without_the_first_iterates_is_not_measured(tmp_path):
    half = raylfl.run("ridge", [*SMALL, f"logging.dir={tmp_path}", "rounds=3"])
    again = raylfl.resume(half.run_dir, ["rounds=6", "eval.average=0.7"])
    assert not any("average/distance" in row for row in again.metrics)
    assert "no average of the iterates before it" in (half.run_dir / "log.txt").read_text()
