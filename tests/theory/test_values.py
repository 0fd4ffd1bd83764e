"""Values of the theorems' formulas worked out by hand, and identities between them."""

import math

import numpy as np
import pytest

from raylfl.theory import fedacs, fedaware, focus, sfl
from raylfl.theory.quadratic import QuadraticProblem
from tests.theory.problems import random_problem


@pytest.mark.parametrize(
    ("bound", "largest"),
    [
        # every limit of a minimum is the smallest once
        (focus.strongly_convex_step(L=2, mu=1, N=4, tau=1, q_min=0.5), 0.5 / (16 * 4 * 4)),
        (focus.strongly_convex_step(L=1, mu=1, N=1, tau=101, q_min=0.5), 0.5 / 800),
        (focus.smooth_step(L=2, N=4, tau=1, q_min=0.5, case="PL"), 0.5 / 96),
        (focus.smooth_step(L=2, N=1, tau=11, q_min=0.5, case="non-convex"), 0.5 / 160),
        (focus.fedavg_step(L=2, tau=1), 1 / 6),
        (focus.fedavg_step(L=2, tau=11), 1 / 80),
        (sfl.convex_step(sfl.Setting(True, 10, 5, 4, 1.0), L=2), 1 / 240),
        (sfl.convex_step(sfl.Setting(False, 10, 5, 4, 1.0), L=2), 1 / 48),
        (sfl.nonconvex_step(sfl.Setting(True, 10, 5, 4, 1.0), L=2, beta=1), 1 / 480),
        (sfl.nonconvex_step(sfl.Setting(True, 10, 10, 4, 1.0), L=2, beta=9), 1 / 4800),
        (sfl.nonconvex_step(sfl.Setting(False, 10, 5, 4, 1.0), L=2, beta=9), 1 / (18 * 2 * 81 / 9 * 4)),
    ],
)
def test_largest_step_sizes(bound, largest):
    assert bound.largest == pytest.approx(largest, rel=1e-12)
    assert bound.admits(largest * 0.999)
    assert not bound.admits(largest * 1.001)


def test_focus_rates_and_floors():
    assert focus.contraction(0.01, 2.0, 4) == pytest.approx(0.96)
    assert focus.pl_contraction(0.01, 2.0, 4) == pytest.approx(0.98)
    assert focus.nonconvex_bound(0.01, 4, 100, gap=3.0) == pytest.approx(6.0)
    assert focus.start_distance(0.01, 2.0, 4, 3, 0.5, 3.0) == pytest.approx(9 * (12 * 0.04 / 2 + 13 * 4e-4))
    assert focus.start_gap(0.01, 2.0, 4, 3, 0.5, 3.0) == pytest.approx(9 * (3 * 0.04 + 14 * 4e-4))
    assert focus.noise_floor(0.01, 2.0, 4, 3, 0.5, 3.0) == pytest.approx(2 * 0.01 * 9 / 8 * (8 * 16 + 96 + 92))
    nonconvex = 8 * 2 * 0.01 * 9 / 4 * (4 * 16 + 48 + 48)
    assert focus.nonconvex_noise_floor(0.01, 2.0, 4, 3, 0.5, 3.0) == pytest.approx(nonconvex)
    assert focus.pl_noise_floor(0.01, 2.0, 5.0, 4, 3, 0.5, 3.0) == pytest.approx(nonconvex / 10)
    assert focus.focus_consensus_bound(2.0, 3.0, 0.01, 4, 0.5) == pytest.approx(5 / 3 + 5 * 1e-4 * 64 / 0.5 * 9)


def test_fedavg_limit_and_its_corollaries():
    limit = focus.fedavg_limit(0.1, 2.0, 0.5, 3, sigma_g=1.0, delta_q=2.0)
    terms = [80 * 0.01 * 16 * 4 * 5, 10 * 4 / 0.25, 16 * 0.1 * 9 / 0.5 * 5]
    assert limit == pytest.approx(dict(zip(("client drift", "biased sampling", "heterogeneity"), terms, strict=True)))
    assert limit.total == pytest.approx(sum(terms))
    assert focus.fedavg_limit(0.1, 2.0, 0.5, 3, 1.0, 0.0)["biased sampling"] == 0  # Corollary 1
    assert focus.fedavg_limit(0.1, 2.0, 0.5, 1, 1.0, 0.0)["client drift"] == 0  # Corollary 2


def test_the_printed_theorem_3_is_exceeded():
    """f_i = (m/2)|x - e_i|^2 with m = 0.05 and one client left out: the limit is at the mean of the others' e_i."""
    m, e = 0.05, np.array([1.0, -1.0, 0.0, 0.0])
    shares = np.array([0.4, 0.2, 0.2, 0.2])
    away, bias = shares @ e - e.mean(), m * abs(shares @ e - e.mean())
    eta, spread = 0.01, m * np.abs(e - e.mean()).max()
    printed = 10 * bias**2 + 16 * eta / m * (bias**2 + spread**2)  # kappa = 1, tau = 1
    assert printed < away**2 <= focus.fedavg_limit(eta, m, m, 1, spread, bias).total


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
    assert list(bound.values()) == pytest.approx(expected)
    assert bound.total == pytest.approx(sum(expected))
    e = 4 * 0.01
    bound = sfl.convex_bound(sfl.Setting(False, 10, 5, 4, 0.01), 50, **numbers)
    expected = [27 / (e * 50), 12 * e * 0.25 / 20, 12 * e / 9 * 2.25, 36 * e**2 * 0.25 / 4, 24 * e**2 * 2.25]
    assert list(bound.values()) == pytest.approx(expected)
    bound = sfl.nonconvex_bound(sfl.Setting(False, 10, 10, 4, 0.01), 50, L=2.0, A=3.0, sigma=0.5, zeta=1.5)
    expected = [9 / (e * 50), 6 * e * 0.25 / 40, 0, 27 * 4 * e**2 * 0.25 / 32, 9 * e**2 * 2.25]
    assert list(bound.values()) == pytest.approx(expected)
    bound = sfl.nonconvex_bound(sfl.Setting(False, 10, 5, 4, 0.01), 50, L=2.0, A=3.0, sigma=0.5, zeta=1.5)
    expected = [9 / (e * 50), 6 * e * 0.25 / 20, 12 * e / 9 * 2.25, 45 * e**2 * 0.25 / 8, 15 * e**2 * 2.25]
    assert list(bound.values()) == pytest.approx(expected)


def test_rows_of_table_1():
    numbers = {"M": 10, "S": 10, "K": 5, "L": 2.0, "mu": 0.1, "D": 3.0, "sigma": 0.5, "zeta": 1.5}
    noise, decay = 0.25 / (0.1 * 10 * 5 * 20), 9 * math.exp(-1)
    drift = 2 * 0.25 / (0.01 * 5 * 400) + 2 * 2.25 / (0.01 * 400)
    rows = {
        "minibatch": noise + 2 * decay,
        "karimireddy": noise + drift + 0.1 * decay,
        "koloskova": noise + drift + 2 * 5 * decay,
        "pfl": noise + drift + 0.1 * decay,
        "sfl": noise + drift / 10 + 0.1 * decay,
    }
    assert {name: sfl.tuned_rate(name, 20, **numbers) for name in rows} == pytest.approx(rows)
    partial = sfl.tuned_rate("sfl", 20, **{**numbers, "S": 5})
    expected = 2 * noise + 2.25 / (0.1 * 20) * 5 / (5 * 9) + drift / 5 + 0.1 * decay
    assert partial == pytest.approx(expected)


def test_rates_of_corollaries_1_and_2_without_strong_convexity():
    numbers = {"M": 10, "S": 5, "K": 4, "L": 2.0, "sigma": 0.5}
    first = 0.5 * 3 / math.sqrt(5 * 4 * 20) + math.sqrt(0.5) * 1.5 * 3 / math.sqrt(5 * 20)
    drift = (2 * 0.25 * 81 / 4) ** (1 / 3) / 20 ** (2 / 3) + (2 * 2.25 * 81) ** (1 / 3) / 20 ** (2 / 3)
    found = [sfl.tuned_convex_rate(m, 20, D=3.0, zeta_star=1.5, **numbers) for m in ("pfl", "sfl")]
    assert found == pytest.approx([first + drift + 18 / 20, first + drift / 5 ** (1 / 3) + 18 / 20])
    first = math.sqrt(2 * 0.25 * 3 / (5 * 4 * 20)) + math.sqrt(0.5 * 2 * 2.25 * 3 / (5 * 20))
    drift = (4 * 0.25 * 9 / 4) ** (1 / 3) / 20 ** (2 / 3) + (4 * 2.25 * 9) ** (1 / 3) / 20 ** (2 / 3)
    found = [sfl.tuned_nonconvex_rate(m, 20, A=3.0, zeta=1.5, beta=2.0, **numbers) for m in ("pfl", "sfl")]
    last = 2 * (2 + 1 + 4 * 5 / 45) * 3 / 20  # P = (10-5)/(5*9)
    assert found == pytest.approx([first + drift + last, first + drift / 5 ** (1 / 3) + last])


def test_local_steps_and_cyclic_rates_that_show_no_advantage_of_sfl():
    """At K = sigma^2/zeta*^2 mu/L R the first term of eq. 7 equals the third, which does not depend on K."""
    sigma, zeta, mu, L, M, R = 2.0, 0.5, 0.1, 3.0, 10, 600
    K = sfl.useful_local_steps(R, L=L, mu=mu, sigma=sigma, zeta_star=zeta)
    assert sigma**2 / (mu * M * K * R) == pytest.approx(L * zeta**2 / (mu**2 * M * R**2))
    assert sfl.useful_local_steps(R, L=L, mu=mu, sigma=sigma, zeta_star=0.0) == math.inf
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


def test_bounds_on_drift_and_consensus():
    """FOCUS's lemma 2, SFL's lemmas 6, 12 and 10, 14, and FedACS's Theorem 2."""
    assert focus.consensus_bound(0.1, 3, sigma_g=2.0, delta_q=1.0) == pytest.approx((8 * 0.05 * 4, 8 * 0.05 * 9))
    chain, star = (sfl.Setting(sequential, 10, 5, 4, 0.01) for sequential in (True, False))
    numbers = {"L": 2.0, "sigma": 0.5, "zeta_star": 1.5, "gap": 3.0}
    assert sfl.drift_bound(chain, **numbers) == pytest.approx(1e-4 * (225 + 8100 + 144_000))
    assert sfl.drift_bound(star, **numbers) == pytest.approx(1e-4 * (9 + 216 + 1152))
    numbers = {"sigma": 0.5, "beta": 2.0, "zeta": 1.5, "gradient": 3.0}  # beta^2 |grad|^2 + zeta^2 = 38.25
    assert sfl.nonconvex_drift_bound(chain, **numbers) == pytest.approx(1e-4 * (225 + 3600 * 38.25 + 108_000))
    assert sfl.nonconvex_drift_bound(star, **numbers) == pytest.approx(1e-4 * (9 + 96 * 38.25 + 864))
    assert fedacs.true_gradient_bound(2.0, 4.0, beta=1.5, kappa=0.7) == pytest.approx(4 * 2 + 1.4)
    assert fedacs.distance_bound(3.0, 2.0) == 1.5


def test_fedaware_numbers():
    gradients, w = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.5, 0.5])
    assert fedaware.diversity(gradients, w) == pytest.approx(math.sqrt(12.5 / 6.25))
    assert fedaware.diversity(gradients, w, np.array([0.64, 0.36])) == pytest.approx(math.sqrt(12.5) / 2.4)
    assert fedaware.diversity(np.array([[1.0], [-1.0]]), w) == math.inf
    assert fedaware.global_variance(gradients, w) == pytest.approx(6.25)
    assert fedaware.ratio_divergence(np.array([0.75, 0.25]), w) == pytest.approx((2.5, 2.0))
    assert fedaware.surrogate_gradient_bound(2.0, 3.0, np.array([0.75, 0.25]), w) == pytest.approx(2 * 1.5 * 4 + 9)
    steps, squares = np.array([2.0, 6.0]), np.array([1.0, 3.0])
    value = fedaware.unbalanced_drift_bound(0.01, steps, w, 1.0, squares)
    assert value == pytest.approx(5e-4 / 2 * (2 * (1 + 12) + 6 * (1 + 108)))
    assert fedaware.drift_bound(0.01, 3, 1.0, 2.0, 0.5) == pytest.approx(15e-4 * (1 + 72 + 4.5))


def test_constants_of_a_problem_in_one_dimension():
    """f = x^2/2 - x and f = 3x^2/2 + x: H = 2, x* = 0. With the losses beta stays, and zeta is a slope."""
    problem = QuadraticProblem(np.array([[[1.0]], [[3.0]]]), np.array([[1.0], [-1.0]]), np.zeros(2), np.full(2, 0.5))
    assert problem.optimum == pytest.approx([0.0])
    assert problem.smoothness.tolist() == [1, 3]
    assert problem.convexity.tolist() == [1, 3]
    assert problem.global_convexity == 2
    assert problem.zeta_star == pytest.approx(1.0)
    for scale in (1e-9, 1e-3, 1.0, 1e6):  # spread (x + 1)^2 against (2x)^2: beta^2 = 2 * 1/4, zeta^2 = 2
        scaled = QuadraticProblem(scale * problem.hessians, scale * problem.linear, np.zeros(2), np.full(2, 0.5))
        assert scaled.dissimilarity() == pytest.approx((math.sqrt(0.5), scale * math.sqrt(2.0)))
    assert problem.deviation(2.0).tolist() == [3, 3]
    assert problem.gradient_bound(2.0) == pytest.approx(7)
    assert problem.sampling_bias(np.array([1.0, 0.0]), 2.0) == pytest.approx(0.5 * 2 * 2 + 1)
    assert problem.hessian_deviation == pytest.approx(1)
    assert [problem.reach(np.array([x])) for x in (0.5, -4.0)] == pytest.approx([1, 4])  # client 1's minimiser is 1


@pytest.mark.parametrize("seed", range(5))
def test_least_squares_with_fewer_rows_than_parameters_are_convex(seed):
    """A^T A with 4 rows and 6 columns has two eigenvalues 0, which rounding makes positive or negative."""
    a = np.random.default_rng(seed).standard_normal((3, 4, 6))
    hessians = a.transpose(0, 2, 1) @ a
    problem = QuadraticProblem(hessians, np.ones((3, 6)), np.zeros(3), np.full(3, 1 / 3))
    assert problem.convexity.tolist() == [0, 0, 0]
    assert problem.global_convexity == pytest.approx(np.linalg.eigvalsh(hessians.mean(axis=0))[0])
    assert problem.weighted(np.array([1.0, 0.0, 0.0])).global_convexity == 0
