"""`eval.diversity` and `eval.average` against dense gradients and iterates in float64."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import raylfl
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.measure import diversity_metrics
from tests.runtime.measured import walk


def walked(overrides):
    """(the experiment, the rounds of its run as in `walk`) of ridge regression."""
    return assemble(load_config("ridge", overrides)), walk(overrides, "ridge")[1]


SMALL = ["num_clients=3", "data.init_args={num_clients: 3, rows_per_client: 7, dim: 4, lam: 0.3}", "local.lr=0.003"]
DIVERSE = [*SMALL, "participation={name: full}", "local.steps=1", "rounds=3", "eval.every=1", "eval.diversity=true"]


def gradients(experiment, x):
    """2 A_i^T (A_i x - y_i) + 2 lam x of each client, from the data."""
    a, y = (array.reshape(3, 7, -1) for array in experiment.setup.train.arrays)
    return 2 * np.einsum("ijk,ij->ik", a, a @ x - y[..., 0]) + 0.6 * x


def test_diversity_is_that_of_the_dense_gradients():
    e, rounds = walked([*DIVERSE, "algorithm.name=fedavg"])
    for before, row, _, x in rounds:
        g = gradients(e, x)
        root = np.sqrt(np.square(g).sum(axis=1).mean())
        assert row["global/diversity"] == pytest.approx(root / np.linalg.norm(g.mean(axis=0)), rel=1e-9)
        scale = np.square(g).sum()
        best = minimize(
            lambda w, g=g, scale=scale: np.square(w @ g).sum() / scale,
            np.full(3, 1 / 3),
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-15},
        ).x
        assert row["global/surrogate_diversity"] == pytest.approx(root / np.linalg.norm(best @ g), rel=1e-4)
        assert row["global/surrogate_chi2"] == pytest.approx(np.square(3 * best).sum(), rel=1e-3)
        drift = np.square(0.003 * gradients(e, before)).sum(axis=1).mean()  # one step each, from the x before
        assert row["update/drift"] == pytest.approx(drift, rel=1e-9)


def test_a_client_of_weight_0_is_left_out():
    rng = np.random.default_rng(5)
    gradients, w = rng.normal(size=(4, 3)), np.array([0.5, 0.0, 0.3, 0.2])
    rows = [torch.from_numpy(weight * g) for weight, g in zip(w, gradients, strict=True)]
    found, three = diversity_metrics(rows, w), [0, 2, 3]
    assert found == diversity_metrics([rows[i] for i in three], w[three])
    root = np.sqrt(w @ np.square(gradients).sum(axis=1))
    assert found["global/diversity"] == pytest.approx(root / np.linalg.norm(w @ gradients))


def test_drift_and_consensus_are_those_of_the_dense_iterates():
    """Unequal local steps in one cohort; the server's step is FedAvg's mean."""
    overrides = [*DIVERSE, "eval.diversity=false", "eval.drift=true", "local.steps=[1, 4, 2]", "algorithm.name=fedavg"]
    e, rounds = walked(overrides)
    for x, row, _, after in rounds:
        ends, sums = [], []
        for i, steps in enumerate([1, 4, 2]):
            y, total = x, 0.0
            for _ in range(steps):
                total += np.square(y - x).sum()
                y = y - 0.003 * gradients(e, y)[i]
            ends.append(y)
            sums.append(total)
        assert row["train/local_drift"] == pytest.approx(np.mean(sums), rel=1e-9)
        assert row["update/drift"] == pytest.approx(np.square(np.array(ends) - x).sum(axis=1).mean(), rel=1e-9)
        away = np.array(ends) - np.mean(ends, axis=0)
        assert row["update/consensus"] == pytest.approx(np.square(away).sum(axis=1).mean(), rel=1e-9)
        assert row["update/step"] == pytest.approx(np.linalg.norm(after - x), rel=1e-9)


# -- the weighted mean of iterates ------------------------------------------------------------------------------------


AVERAGED = [*SMALL, "participation.size=2", "algorithm.name=sfl", "rounds=6", "eval.every=2"]


def value(experiment, x) -> float:
    """F(x) = 1/3 sum_i |A_i x - y_i|^2 + lam |x|^2, from the data."""
    a, y = (array.reshape(3, 7, -1) for array in experiment.setup.train.arrays)
    return np.square(a @ x - y[..., 0]).sum() / 3 + 0.3 * x @ x


@pytest.mark.parametrize("rho", [1.0, 0.7])
def test_average_is_the_weighted_mean_of_all_iterates(rho):
    e, rounds = walked([*AVERAGED, f"eval.average={rho}"])
    path = np.stack([np.zeros(4), *(x for *_, x in rounds)])
    for r, (_, row, _, _) in enumerate(rounds):
        weights = rho ** -np.arange(1.0, r + 3)  # of x_0, ..., x_{r+1}, as Theorem 1 writes them
        mean = weights @ path[: r + 2] / weights.sum()
        assert row["average/distance_abs"] == pytest.approx(np.linalg.norm(mean - e.optimum.x), rel=1e-12)
        assert ("average/loss" in row) == (r % 2 == 0 or r == 5)
        if "average/loss" in row:
            assert row["average/loss"] == pytest.approx(value(e, mean), rel=1e-12)
            assert row["average/gap"] == pytest.approx(value(e, mean) - value(e, e.optimum.x), rel=1e-9)


def test_a_resumed_run_continues_its_average(runs):
    overrides = [*runs, *AVERAGED, "eval.average=0.7"]
    whole = raylfl.run("ridge", overrides).metrics
    half = raylfl.run("ridge", [*overrides, "rounds=3"])
    again = raylfl.resume(half.run_dir, ["rounds=6"]).metrics
    assert [row["average/distance"] for row in again] == [row["average/distance"] for row in whole]


def test_an_average_without_the_first_iterates_is_not_measured(runs):
    half = raylfl.run("ridge", [*runs, *AVERAGED, "rounds=3"])
    again = raylfl.resume(half.run_dir, ["rounds=6", "eval.average=0.7"])
    assert not any("average/distance" in row for row in again.metrics)
    assert "no average of the iterates before it" in (half.run_dir / "log.txt").read_text()
