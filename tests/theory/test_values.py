"""Values of the theorems' formulas worked out by hand, and identities between them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raylfl.theory import fedacs, fedaware, focus, sfl
from tests.theory.problems import random_problem


@pytest.mark.parametrize(
    ("bound", "largest"),
    [
        # every limit of a minimum is the smallest once
        (focus.strongly_convex_step(L=1, mu=1, N=1, tau=2, q_min=1), 2 / (3 * 8.5)),
        (focus.strongly_convex_step(L=1, mu=1, N=1, tau=101, q_min=1), 1 / 800),  # Lemma 4
        (focus.strongly_convex_step(L=1, mu=1, N=1, tau=1, q_min=0.01), 0.001 / 8),
        (focus.strongly_convex_step(L=10, mu=1, N=4, tau=1, q_min=0.5), 1 / (12 * 800.5)),  # eq. 110
        (focus.pl_step(L=0.01, beta=0.001, N=100, tau=1, q_min=0.5), 1.5 / 3200),
        (focus.pl_step(L=0.1, beta=100, N=1, tau=1, q_min=1), 1 / 1200),
        (focus.pl_step(L=10, beta=1, N=1, tau=1, q_min=1), 1 / 1600),
        (focus.nonconvex_step(L=1, N=100, tau=1, q_min=1), 1 / 400),
        (focus.nonconvex_step(L=1, N=1, tau=1, q_min=0.5), 0.5 / (16 * math.sqrt(2))),
        (focus.sg_strongly_convex_step(L=1, mu=1, N=1, tau=1, q_min=1), 2 / (3 * 16.5)),
        (focus.sg_strongly_convex_step(L=1, mu=0.1, N=1, tau=11, q_min=1), 0.1 / 12800),
        (focus.sg_pl_step(L=1, beta=1, N=10, tau=1, q_min=1), 1 / 90),
        (focus.sg_pl_step(L=10, beta=1, N=1, tau=1, q_min=1), 1 / 1600),
        (focus.sg_nonconvex_step(L=1, N=1, tau=1, q_min=0.25), 0.125 / (4 * math.sqrt(6))),
        (focus.sg_nonconvex_step(L=1, N=1, tau=51, q_min=1), 1 / (8 * math.sqrt(2) * 50)),
        (focus.sg_nonconvex_step(L=1, N=100, tau=1, q_min=1), 1 / 400),
        (focus.fedavg_step(L=2, tau=1), 1 / 6),
        (focus.fedavg_step(L=2, tau=11), 1 / 80),
        (sfl.convex_step(sfl.Setting(True, 10, 5, 4, 1.0), L=2), 1 / 240),
        (sfl.convex_step(sfl.Setting(False, 10, 5, 4, 1.0), L=2), 1 / 48),
        (sfl.nonconvex_step(sfl.Setting(True, 10, 5, 4, 1.0), L=2, beta=1), 1 / 480),
    ],
)
def test_largest_step_sizes(bound, largest):
    assert bound.largest == pytest.approx(largest, rel=1e-12)
    assert bound.admits(largest * 0.999)
    assert not bound.admits(largest * 1.001)


def test_focus_rates_and_floors():
    assert focus.contraction(0.01, 2.0, 4) == pytest.approx(0.96)
    assert focus.pl_contraction(0.01, 2.0, 4) == pytest.approx(0.92)
    assert focus.nonconvex_bound(0.01, 4, 100, gap=3.0) == pytest.approx(6.0)
    assert focus.noise_floor(0.01, 2.0, 4, 0.5, 3.0) == pytest.approx(4 * 16.5 / 4 * 0.01 * 9)
    assert focus.pl_noise_floor(0.01, 2.0, 4.0, 3, 0.5, 1.0) == pytest.approx((1 + 512 + 16) * 0.0025)
    assert focus.nonconvex_noise_floor(0.01, 1.0, 16, 0.5, 1.0) == pytest.approx((32 + 8 * 256 / 4) * 1e-4)
    assert focus.nonconvex_noise_floor(0.01, 2.0, 16, 0.5, 1.0) == math.inf


def test_fedavg_limit_and_its_corollaries():
    limit = focus.fedavg_limit(0.1, 2.0, 0.5, 3, sigma_g=1.0, delta_q=2.0)
    assert limit.client_drift == pytest.approx(80 * 0.01 * 16 * 4 * 4 * 5)
    assert limit.biased_sampling == pytest.approx(10 * 4 * 4)
    assert limit.heterogeneity == pytest.approx(16 * 0.1 * 9 / 0.5 * 5)
    assert limit.total == pytest.approx(limit.client_drift + limit.biased_sampling + limit.heterogeneity)
    assert focus.fedavg_limit(0.1, 2.0, 0.5, 3, 1.0, 0.0).biased_sampling == 0  # Corollary 1
    assert focus.fedavg_limit(0.1, 2.0, 0.5, 1, 1.0, 0.0).client_drift == 0  # Corollary 2


def test_terms_of_sfl_and_pfl():
    numbers = {"L": 2.0, "D": 3.0, "sigma": 0.5, "zeta_star": 1.5}
    e = 5 * 4 * 0.01
    bound = sfl.strongly_convex_bound(sfl.Setting(True, 10, 5, 4, 0.01), 50, mu=0.1, **numbers)
    expected = [
        4.5 * 0.1 * 9 * math.exp(-0.1 * e * 25),
        12 * e * 0.25 / 20,
        12 * e * 5 / 45 * 2.25,
        18 * 2 * e**2 * 0.25 / 20,
        18 * 2 * e**2 * 2.25 / 5,
    ]
    assert list(vars(bound).values()) == pytest.approx(expected)
    assert bound.total == pytest.approx(sum(expected))
    e = 4 * 0.01
    bound = sfl.convex_bound(sfl.Setting(False, 10, 5, 4, 0.01), 50, **numbers)
    expected = [27 / (e * 50), 12 * e * 0.25 / 20, 12 * e / 9 * 2.25, 36 * e**2 * 0.25 / 4, 24 * e**2 * 2.25]
    assert list(vars(bound).values()) == pytest.approx(expected)
    bound = sfl.nonconvex_bound(sfl.Setting(False, 10, 10, 4, 0.01), 50, L=2.0, A=3.0, sigma=0.5, zeta=1.5)
    expected = [9 / (e * 50), 6 * e * 0.25 / 40, 0, 27 * 4 * e**2 * 0.25 / 32, 9 * e**2 * 2.25]
    assert list(vars(bound).values()) == pytest.approx(expected)


def test_sfl_of_one_client_is_pfl_of_one_client():
    one = [
        sfl.strongly_convex_bound(sfl.Setting(k, 1, 1, 4, 0.01), 50, L=2, mu=0.1, D=3, sigma=1, zeta_star=0)
        for k in (0, 1)
    ]
    assert one[0] == one[1]


def test_table_1_ranks_the_methods():
    """SFL gains the factor 1/M of the drift terms over PFL; both lose to a large mini-batch."""
    numbers = {"M": 10, "S": 10, "K": 5, "L": 1.0, "mu": 0.1, "D": 1.0, "sigma": 1.0, "zeta_star": 1.0}
    sequential, parallel, batch = (sfl.tuned_rate(m, 100, **numbers) for m in ("sfl", "pfl", "minibatch"))
    assert batch < sequential < parallel
    assert parallel - batch == pytest.approx(10 * (sequential - batch))
    assert sfl.random_reshuffling_rate(100, M=10, L=1.0, mu=0.1, D=1.0, zeta_star=1.0) == pytest.approx(
        1 / (1e-3 * 10 * 1e4) + math.exp(-100)
    )


def test_the_rates_from_cyclic_participation_show_no_advantage_of_sfl():
    numbers = {"M": 10, "K": 5, "L": 2.0, "mu": 0.5, "sigma": 3.0, "zeta": 4.0}
    parallel, sequential = (sfl.cyclic_rate(method, 20, **numbers) for method in ("pfl", "sfl"))
    assert parallel == pytest.approx(18 / (0.25 * 1000) + 64 / (0.125 * 100 * 400))
    assert sequential == pytest.approx(18 / (0.25 * 100) + 64 / (0.125 * 400) * (1 + 1 / 100))


def test_weights_of_the_averaged_iterate():
    w = sfl.average_weights(sfl.Setting(True, 2, 2, 5, 0.01), 3, mu=1.0)
    assert w.sum() == pytest.approx(1)
    assert w[1:] / w[:-1] == pytest.approx(np.full(3, 1 / 0.95))
    assert sfl.average_weights(sfl.Setting(True, 2, 2, 5, 0.01), 3, mu=0.0) == pytest.approx(np.full(4, 0.25))


def test_example_2_of_fedacs():
    """f_i = |x - E_i|^2 / 2: eq. 39 in its own form; the condition of Corollary 2.2 makes it unbiased as eta -> 0."""
    problem = random_problem(1, clients=4, dim=2, condition=1, spread=1, alike=True)
    q, steps, eta = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 5, 10, 20]), 0.05
    share = (1 - q) * (1 - (1 - eta) ** steps)
    assert fedacs.limit(problem, 1 - q, steps, eta) == pytest.approx(share @ problem.linear / share.sum())
    q = 1 - 0.5 / steps  # (1 - q_i) T_i = 1/2 for all
    assert fedacs.consistency(q, steps.astype(float)) == pytest.approx(0)
    assert fedacs.limit(problem, 1 - q, steps, 1e-7) == pytest.approx(problem.optimum, rel=1e-5)
    assert fedacs.consistency(np.zeros(2), np.array([1.0, 3.0])) == pytest.approx(0.5)


def test_fedaware_numbers():
    gradients, w = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.5, 0.5])
    assert fedaware.diversity(gradients, w) == pytest.approx(math.sqrt(12.5 / 6.25))
    assert fedaware.diversity(gradients, w, np.array([0.64, 0.36])) == pytest.approx(math.sqrt(12.5) / 2.4)
    assert fedaware.diversity(np.array([[1.0], [-1.0]]), w) == math.inf
    assert fedaware.global_variance(gradients, w) == pytest.approx(6.25)
    assert fedaware.ratio_divergence(np.array([0.75, 0.25]), w) == pytest.approx((2.5, 2.0))
    assert fedaware.surrogate_gradient_bound(2.0, 3.0, np.array([0.75, 0.25]), w) == pytest.approx(2 * 1.5 * 4 + 9)
    steps, zeta = np.array([2.0, 6.0]), np.array([1.0, 3.0])
    value = fedaware.unbalanced_drift_bound(0.01, steps, w, 1.0, 2.0, zeta, 0.5)
    assert value == pytest.approx(0.05 * (1 + 24 * 4 + 24 * 0.25) + 0.3 * 12)
    assert fedaware.drift_bound(0.01, 3, 1.0, 2.0, 0.5) == pytest.approx(0.05 * (1 + 72 + 4.5))


def test_constants_of_a_problem_in_one_dimension():
    """f = x^2/2 - x and f = 3x^2/2 + x: H = 2, x* = 0."""
    from raylfl.theory.quadratic import QuadraticProblem

    problem = QuadraticProblem(np.array([[[1.0]], [[3.0]]]), np.array([[1.0], [-1.0]]), np.zeros(2), np.full(2, 0.5))
    assert problem.optimum == pytest.approx([0.0])
    assert problem.smoothness.tolist() == [1, 3]
    assert problem.convexity.tolist() == [1, 3]
    assert problem.global_convexity == 2
    assert problem.zeta_star == pytest.approx(1.0)
    # spread (x + 1)^2 against (2x)^2: beta^2 = 2 * 1/4, zeta^2 = max (x+1)^2 - 2x^2 = 2
    assert problem.dissimilarity() == pytest.approx((math.sqrt(0.5), math.sqrt(2.0)))
    assert problem.deviation(2.0).tolist() == [3, 3]
    assert problem.gradient_bound(2.0) == pytest.approx(7)
    assert problem.sampling_bias(np.array([1.0, 0.0]), 2.0) == pytest.approx(0.5 * 2 * 2 + 1)
