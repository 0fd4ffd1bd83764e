"""The expected coefficients of a run against the mean coefficients of the rounds that it draws."""

from __future__ import annotations

import numpy as np
import pytest

from raylfl.config.load import load_config
from raylfl.python.api import checked
from raylfl.runtime.round.plan import Planner
from tests.shares import also

N, ROUNDS = 4, 4000
LOSSY = "link={name: bernoulli, q: [0.0, 0.5, 0.2, 0.7]}"
REPLACED = "participation={name: weighted, weights: [4, 3, 2, 1], size: 4, replace: true}"
RARE = "participation={name: bernoulli, p: [0.1, 0.2, 0.3, 0.6], on_empty: resample}"
CHAINS = "participation={name: markov, p_on: [0.1, 0.2, 0.3, 0.9], p_off: 0.5}"


def experiment(rule, *overrides):
    data = f"data.init_args={{num_clients: {N}, rows_per_client: 7, dim: 4, lam: 0.3}}"
    options = [f"num_clients={N}", data, f"rounds={ROUNDS}", "runtime.backend=local", f"algorithm.aggregate={rule}"]
    return checked(load_config("ridge", ["algorithm.name=fedavg", *options, *overrides]))


@pytest.mark.parametrize(
    ("rule", "overrides"),
    [
        ("mean", [REPLACED]),
        also("anonymous", [REPLACED, LOSSY]),
        ("anonymous_uniform", [REPLACED, LOSSY]),
        ("full", [REPLACED, LOSSY]),
        also("mean", [RARE, LOSSY]),
        ("anonymous", [RARE, LOSSY]),
        ("mean", [CHAINS]),
        also("anonymous", [CHAINS, LOSSY]),
    ],
)
def test_mean_coefficients_of_many_rounds_are_the_expected_ones(rule, overrides):
    """Shares of all clients; five standard errors of the mean, from 20 batches of consecutive rounds."""
    e = experiment(rule, *overrides)
    planner, rows = Planner(e), np.zeros((ROUNDS, N))
    for r in range(ROUNDS):
        received = planner.plan(r, {}).received_view
        if len(received.cohort):
            rows[r, received.cohort] = e.algorithm.rule.coefficients(received)
    expected = planner.expected_coefficients(planner.system(0), {})
    batches = rows.reshape(20, -1, N).mean(axis=1)
    batches /= batches.sum(axis=1).mean()
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    assert (abs(batches.mean(axis=0) - expected / expected.sum()) <= 5 * error).all()


@pytest.mark.parametrize("rule", ["mean", "anonymous_uniform"])
def test_redraws_of_empty_rounds_do_not_change_the_shares_of_clients(rule):
    """A redraw scales the probability of each non-empty cohort by the same factor."""
    shares = []
    for on_empty in ("skip", "resample"):
        law = f"participation={{name: bernoulli, p: [0.1, 0.2, 0.3, 0.6], on_empty: {on_empty}}}"
        planner = Planner(experiment(rule, law))
        expected = planner.expected_coefficients(planner.system(0), {})
        shares.append(expected / expected.sum())
    np.testing.assert_allclose(shares[0], shares[1], rtol=1e-12)
