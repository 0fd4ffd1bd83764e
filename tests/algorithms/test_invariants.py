"""Invariants after every round, for any cohort and any lost uploads, on random problems."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.adaptive import FedAdam, FedYogi
from raylfl.algorithms.aggregation import RULES
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.scaffnew import Scaffnew
from raylfl.algorithms.scaffold import Scaffold
from raylfl.core.algorithm import Algorithm, ServerState, State
from raylfl.core.population import Round
from raylfl.testing import recorded_round, simulate
from tests.algorithms.worlds import D, RunContext, world
from tests.shares import also

worlds = st.integers(0, 10**6).map(lambda seed: world(seed, count=10))
after_every_round = settings(max_examples=15, deadline=None)


def played(algorithm: Algorithm, here: RunContext) -> Iterator[tuple[Round, ServerState, State]]:
    """(round, server, the states of all N clients as rows) after every round."""
    x0, everyone = torch.linspace(-1, 2, D, dtype=torch.float64), range(here.population.count)
    fresh = algorithm.init_clients(x0, 1)
    history = simulate(algorithm, here.gradient, here.rounds, x0, here.population)
    for r, (server, clients) in zip(here.rounds, history, strict=True):
        states = [clients.get(i, fresh) for i in everyone]
        yield r, server, {name: torch.cat([state[name] for state in states]) for name in fresh}


def equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@after_every_round
@given(st.integers(0, 10**6), st.sampled_from(["zero", "model"]))
def test_divided_by_the_received_scaffold_s_variate_weighs_the_first_ones(seed: int, variates: str):
    """c = (N/|R|) mean_i c_i - (N/|R| - 1) c_0 if every round receives |R| clients."""
    here = world(seed, size=2, lossless=True, clients=6)
    c0 = torch.linspace(-1, 2, D, dtype=torch.float64) * (variates == "model")
    for _, server, own in played(Scaffold(variates=variates, variate_divisor="received"), here):
        equal(server["c"], 3 * own["variate"].mean(0) - 2 * c0)


@pytest.mark.parametrize(("variates", "exact"), [also("zero", True), ("model", False)])
def test_divided_by_the_received_scaffold_converges_to_a_point_that_depends_on_the_first_variates(variates, exact):
    """grad F = (1 - |R|/N) c_0 there; c_0 = 0, or the initial model."""
    first, rng = world(3, clients=6, noise=0.0, uniform=True), np.random.default_rng(0)
    cohorts = [rng.permutation(6)[:2] for _ in range(160)]
    rounds = [recorded_round(r, cohort, first.population, steps=3, lr=0.1) for r, cohort in enumerate(cohorts)]
    here = replace(first, rounds=rounds)
    x0 = torch.linspace(-1, 2, D, dtype=torch.float64)
    x = here.models(Scaffold(variates=variates, variate_divisor="received"))[-1]
    gradient = torch.stack([here.gradient(i, x, 0, -1) for i in range(6)]).mean(0)
    torch.testing.assert_close(gradient, (0 if exact else 2 / 3) * x0, rtol=1e-8, atol=1e-8)


@after_every_round
@given(worlds)
def test_second_moments_stay_positive(here: RunContext):
    """Yogi subtracts at most a share of v."""
    for algorithm in (FedAdam(b2=0.0), FedYogi(b2=0.0), FedYogi()):
        assert all((server["v"] > 0).all() for _, server, _ in played(algorithm, here))


@after_every_round
@given(worlds)
def test_fedaware_steps_to_the_point_of_its_hull_nearest_to_zero(here: RunContext):
    """s is that point if and only if it is in the hull and <m_i, s> >= |s|^2 for every momentum."""
    before = torch.linspace(-1, 2, D, dtype=torch.float64)
    for r, server, _ in played(FedAWARE(), here):
        if len(r.received_view.cohort):
            momenta, s = server["momenta"].matrix, before - server["x"]
            assert (momenta @ s >= s @ s - 1e-9 * momenta.square().sum(1).max()).all()
            rows = torch.cat([momenta, torch.full((len(momenta), 1), 1e3)], dim=1)  # enforces sum lambda = 1
            target = torch.cat([s, s.new_full((1,), 1e3)])
            assert nnls(rows.T.numpy(), target.numpy())[1] < 1e-6
        before = server["x"]


@after_every_round
@given(worlds)
def test_shares_of_the_received_are_on_the_simplex(here: RunContext):
    """mean and weighted are normalised over the received clients; the sums of the others are at most 1."""
    for r in here.rounds:
        if len(r.received_view.cohort):
            c = {rule: RULES[rule].coefficients(r.received_view) for rule in RULES}
            assert all((shares >= 0).all() for shares in c.values())
            np.testing.assert_allclose([c["mean"].sum(), c["weighted"].sum()], 1.0, rtol=1e-14)
            assert c["anonymous"].sum() <= 1 + 1e-14
            assert c["full"].sum() <= 1 + 1e-14


STARS = [e.name for e in ALGORITHMS if not e.cls.pattern.sequential and e.name != "splitfed"]


@pytest.mark.parametrize("name", STARS)
def test_the_order_of_the_cohort_does_not_matter(name: str):
    """Results differ by rounding only, except in a ring."""
    here = world(7, draws=False)
    turned = RunContext(here.population, [reversed_round(r) for r in here.rounds], here.noise, here.seed)
    algorithm = ALGORITHMS.get(name).cls()
    torch.testing.assert_close(here.models(algorithm), turned.models(algorithm), rtol=1e-9, atol=1e-9)


def reversed_round(r: Round) -> Round:
    """The same clients in the opposite order."""
    rows = ("cohort", "draws", "received", "steps", "batch_sizes", "a_norm", "failure", "inclusion")
    return replace(r, **{name: getattr(r, name)[::-1].copy() for name in rows})


def test_the_coin_s_rounds_are_geometric():
    """P(K = k) = p (1-p)^(k-1): the share of heads at once and the mean 1/p, to four standard deviations."""
    p, count = 0.3, 4000
    algorithm = Scaffnew(p=p)
    drawn = np.array([algorithm.draw_local_steps(np.random.default_rng(seed)) for seed in range(count)])
    assert abs((drawn == 1).mean() - p) < 4 * np.sqrt(p * (1 - p) / count)
    assert abs(drawn.mean() - 1 / p) < 4 * np.sqrt((1 - p) / p**2 / count)
    assert Scaffnew().draw_local_steps(np.random.default_rng(0)) is None
