"""No run on random quadratics is worse than its theorem guarantees."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.diagnostics.surrogate import chi2
from raylfl.solvers.simplex import min_norm_point
from raylfl.theory import fedacs, fedaware, focus, sfl
from tests.oracles.focus_moments import focus_moments, stationary
from tests.theory.problems import PROBLEMS, SCALES, SHARES, fedavg_run, focus_run, noisy, random_problem, sfl_run

STEPS = st.integers(1, 5)
SEEDS = st.integers(0, 10**6)


def mean_gap(problem, setting, rounds, sigma, seed, mu, start):
    """E[F(xbar) - F*] and E[min_r |grad F|^2], over repetitions that average out the draws."""
    gaps, squares = [], []
    exact = sigma == 0 and setting.S == setting.M and not setting.sequential
    for k in range(1 if exact else 12):
        draw = np.random.default_rng((seed, k))
        run = sfl_run if setting.sequential else fedavg_run
        gradient = noisy(problem, sigma, draw)
        path = np.array(run(gradient, start, setting.M, setting.S, setting.K, setting.eta, rounds, draw))
        mean = sfl.average_weights(setting, rounds, mu) @ path
        gaps.append(problem.value(mean) - problem.value(problem.optimum))
        squares.append([np.square(problem.weights @ problem.gradients(x)).sum() for x in path])
    return np.mean(gaps), np.mean(squares, axis=0).min()


@given(PROBLEMS, STEPS, SHARES, SEEDS, st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_sfl_and_pfl_stay_below_theorems_1_and_2(problem, steps, share, seed, sequential, partial, noise):
    size = max(1, problem.count // 2) if partial else problem.count
    L, mu = problem.smoothness.max(), problem.convexity.min()
    setting, sigma = sfl.Setting(sequential, problem.count, size, steps, eta=1.0), noise * L
    setting = sfl.Setting(sequential, problem.count, size, steps, share * sfl.convex_step(setting, L).largest)
    rounds = int(np.ceil(1 / (mu * setting.effective))) + 2  # the theorem needs 1/(mu R) <= effective step size
    rounds = min(rounds, 4000 // (size * steps))
    start = np.random.default_rng(seed).standard_normal(problem.dim) * 3
    constants = {"L": L, "D": np.linalg.norm(start - problem.optimum), "sigma": sigma, "zeta_star": problem.zeta_star}
    slack = 1 + 1e-9
    if 1 / (mu * rounds) <= setting.effective:
        gap, _ = mean_gap(problem, setting, rounds, sigma, seed, mu, start)
        assert gap <= sfl.strongly_convex_bound(setting, rounds, mu=mu, **constants).total * slack
    gap, square = mean_gap(problem, setting, 20, sigma, seed, 0.0, start)
    assert gap <= sfl.convex_bound(setting, 20, **constants).total * slack
    beta, zeta = problem.dissimilarity()
    if setting.eta <= sfl.nonconvex_step(setting, L, beta).largest:
        a = problem.value(start) - problem.value(problem.optimum)
        assert square <= sfl.nonconvex_bound(setting, 20, L=L, A=a, sigma=sigma, zeta=zeta).total * slack


@given(st.integers(2, 64), st.integers(1, 64), STEPS, SCALES, SHARES, SEEDS, st.booleans(), st.sampled_from([0.0, 1.0]))
def test_stationary_rounds_of_sfl_and_pfl_stay_below_theorems_1_and_2_without_convexity(
    clients, size, steps, scale, share, seed, sequential, noise
):
    """f_m = scale (x - c_m)^2/2: E|grad F|^2 as R -> inf in closed form, for S of M clients.

    A client's K steps are x <- (1-k) x + k c_m + noise. For PFL x - mean(c) is an autoregression with the variance of a
    mean of S of M values; SFL is a walk over the cohort, whose law is that of S draws from M.
    """
    size, draw = min(size, clients), np.random.default_rng(seed)
    setting = sfl.Setting(sequential, clients, size, steps, 1.0)
    eta = share * sfl.nonconvex_step(setting, scale, 0.0).largest
    setting = sfl.Setting(sequential, clients, size, steps, eta)
    c, sigma = draw.standard_normal(clients), noise * scale
    shrink = (1 - eta * scale) ** steps
    spread, local = c.var(), eta**2 * sigma**2 * sum((1 - eta * scale) ** (2 * t) for t in range(steps))
    if sequential:  # weights g_j = (1-k) k^(S-j) of the cohort's c in order; covariance of two draws: -spread/(M-1)
        weights = (1 - shrink) * shrink ** np.arange(size)
        pairs = (weights.sum() ** 2 - (weights**2).sum()) * spread / (clients - 1)
        moved = (weights**2).sum() * spread - pairs + local * sum(shrink ** (2 * j) for j in range(size))
        variance = moved / (1 - shrink ** (2 * size))
    else:
        moved = (1 - shrink) ** 2 * spread * (clients - size) / (size * (clients - 1)) + local / size
        variance = moved / (1 - shrink**2)
    bound = sfl.nonconvex_bound(setting, 10**15, L=scale, A=0.0, sigma=sigma, zeta=scale * np.sqrt(spread)).total
    assert scale**2 * variance <= bound * (1 + 1e-9) + 1e-12 * scale**2 * spread


def rounds_of_focus(clients, condition, steps, scale, seed, q, noise):
    """A random problem of focus_moments: (a, b, p, steps, sigma, x0) and (L, mu, PL constant, x*, g0)."""
    draw = np.random.default_rng(seed)
    a = scale * condition ** -draw.random(clients)
    b = scale * draw.standard_normal(clients) * 10 ** draw.uniform(-1, 2)
    p = q + (1 - q) * draw.random(clients) * draw.integers(0, 2)
    optimum = b.sum() / a.sum()
    x0 = optimum + draw.choice([0.0, 1.0, 30.0])
    g0 = np.sqrt(np.square(a * x0 - b).mean())
    return (a, b, p, steps, noise * scale, x0), (a.max(), a.min(), a.mean(), optimum, g0)


CHANCES, NOISE = st.sampled_from([0.02, 0.1, 0.5, 1.0]), st.sampled_from([0.0, 1.0, 30.0])
FOCUS = (st.integers(1, 64), st.floats(1, 30), STEPS, SCALES, SEEDS, CHANCES, NOISE)


@given(*FOCUS, SHARES)
def test_focus_converges_at_least_as_theorems_1_and_4_to_6_say(clients, condition, steps, scale, seed, q, noise, share):
    """From the first round on, with stored gradients of 0 at first: exact moments of 300 rounds, without a draw."""
    (a, b, p, steps, sigma, x0), (L, mu, beta, optimum, g0) = rounds_of_focus(
        clients, condition, steps, scale, seed, q, noise
    )
    rounds, r = 300, np.arange(300)
    gap, rounding = beta / 2 * (x0 - optimum) ** 2, 1e-20 * (1 + optimum**2)

    def squares(eta):
        moments = np.array(list(islice(focus_moments(a, b, p, steps, eta, sigma, x0), rounds)))
        return moments[:, 1] - 2 * moments[:, 0] * optimum + optimum**2  # E|x_r - x*|^2

    eta = share * focus.strongly_convex_step(L, mu, clients, steps, q).largest
    first = (x0 - optimum) ** 2 + focus.start_distance(eta, mu, clients, steps, q, g0)
    bound = focus.contraction(eta, mu, clients) ** r * first + focus.noise_floor(eta, mu, clients, steps, q, sigma)
    assert (squares(eta) <= bound * (1 + 1e-9) + rounding).all()

    eta = share * focus.smooth_step(L, clients, steps, q, "PL").largest
    found, first = squares(eta), gap + focus.start_gap(eta, L, clients, steps, q, g0)
    floor = focus.pl_noise_floor(eta, L, beta, clients, steps, q, sigma)
    bound = focus.pl_contraction(eta, beta, clients) ** r * first + floor
    assert (beta / 2 * found <= bound * (1 + 1e-9) + beta * rounding).all()
    mean = np.cumsum(beta**2 * found) / (r + 1)
    bound = np.array([focus.nonconvex_bound(eta, clients, k, first) for k in r + 1])
    bound += focus.nonconvex_noise_floor(eta, L, clients, steps, q, sigma)
    assert (mean <= bound * (1 + 1e-9) + beta**2 * rounding).all()


@given(st.integers(1, 4), *FOCUS[1:], SHARES)
def test_the_noise_of_stationary_rounds_of_sg_focus_stays_below_its_floors(
    clients, condition, steps, scale, seed, q, noise, share
):
    """The map of second moments is linear: its powers 2^k by squaring, until the moments no longer change."""
    (a, b, p, steps, sigma, _), (L, mu, beta, optimum, _) = rounds_of_focus(
        clients, condition, steps, scale, seed, q, max(noise, 1.0)
    )
    for case, eta in (
        ("strongly convex", share * focus.strongly_convex_step(L, mu, clients, steps, q).largest),
        ("PL", share * focus.smooth_step(L, clients, steps, q, "PL").largest),
    ):
        second = stationary(a, b - a * optimum, p, steps, eta, sigma)  # of x - x*
        if case == "PL":
            assert beta / 2 * second <= focus.pl_noise_floor(eta, L, beta, clients, steps, q, sigma)
            assert beta**2 * second <= focus.nonconvex_noise_floor(eta, L, clients, steps, q, sigma)
        else:
            assert second <= focus.noise_floor(eta, mu, clients, steps, q, sigma)


def test_printed_bounds_of_sg_focus_are_exceeded():
    """Eq. 27 with one client that is rarely there, and eq. 28 at small steps: exact stationary moments."""
    L, q, one, zero = 100.0, 0.1, np.ones(1), np.zeros(1)
    eta = q**1.5 / (4 * L * np.sqrt(6))  # the smallest of the printed limits but for q/(16 L^2), which has no unit
    printed = (L / 2 + 8 / q) * eta / L
    assert L / 2 * stationary(L * one, zero, q * one, 1, eta, 1.0) > 2 * printed
    L, q, n = 0.25, 0.5, 4
    eta = 1e-3 / n
    printed = (2 * L * n + 8 * n**2 / ((n - 8 * L**2) * q)) * eta**2
    assert L**2 * stationary(np.full(n, L), np.zeros(n), np.full(n, q), 1, eta, 1.0) > 2 * printed


def test_printed_bounds_of_focus_are_exceeded_from_the_minimiser_on():
    """Eqs. 23 to 25 are 0 if a run starts at x*, but stored gradients of 0 lead it away."""
    a, b, p = np.ones(2), np.array([1.0, -1.0]), np.array([0.5, 0.5])
    moments = list(islice(focus_moments(a, b, p, 1, 0.01, 0.0, 0.0), 3))
    assert moments[0][1] == 0 < moments[1][1]


@given(PROBLEMS, STEPS, SHARES, SEEDS)
def test_fedavg_ends_within_theorem_3(problem, steps, share, seed):
    """Full participation, so that the limit is a point; one client with a larger weight makes the bias.

    delta_q and sigma_G are those of the ball that no model leaves (`reach`), as in `raylfl theory`.
    """
    L, mu = problem.smoothness.max(), problem.convexity.min()
    eta = share * focus.fedavg_step(L, steps).largest
    draw = np.random.default_rng(seed)
    shares = draw.dirichlet(np.ones(problem.count))
    end = fedacs.limit(problem, shares, np.full(problem.count, steps), eta)
    radius = problem.reach(problem.optimum)
    assert np.linalg.norm(end - problem.optimum) <= radius * (1 + 1e-9)
    bound = focus.fedavg_limit(
        eta, L, mu, steps, problem.deviation(radius).max(), problem.sampling_bias(shares, radius)
    )
    assert np.square(end - problem.optimum).sum() <= bound.total * (1 + 1e-9) + 1e-18


@given(st.integers(2, 64), STEPS, SCALES, SHARES, SEEDS, st.floats(0.02, 1.0))
def test_fedavg_with_cohorts_of_one_ends_within_theorem_3(clients, steps, scale, share, seed, q):
    """f_i = scale (x - c_i)^2/2 and one client per round, drawn with probabilities p_i: E|x - x*|^2 in closed form."""
    draw = np.random.default_rng(seed)
    c, p = draw.standard_normal(clients) * 10 ** draw.uniform(-2, 2), draw.dirichlet(np.full(clients, q))
    eta = share * focus.fedavg_step(scale, steps).largest
    shrink = (1 - eta * scale) ** steps
    mean = p @ c
    variance = (1 - shrink) ** 2 / (1 - shrink**2) * (p @ np.square(c - mean))
    spread = scale * abs(c - c.mean()).max()
    bound = focus.fedavg_limit(eta, scale, scale, steps, spread, scale * abs(mean - c.mean()))
    assert variance + (mean - c.mean()) ** 2 <= bound.total * (1 + 1e-9)


@given(PROBLEMS, SHARES, SEEDS)
def test_no_model_of_fedavg_leaves_the_reach(problem, share, seed):
    draw = np.random.default_rng(seed)
    x0 = problem.optimum + draw.standard_normal(problem.dim) * 10 ** draw.uniform(-3, 2)
    eta, x, radius = share / problem.smoothness.max(), x0, problem.reach(x0)
    for _ in range(20):
        for i in draw.integers(problem.count, size=10):
            x = x - eta * (problem.hessians[i] @ x - problem.linear[i])
            assert np.linalg.norm(x - problem.optimum) <= radius * (1 + 1e-9)


@given(PROBLEMS, STEPS, SHARES, SEEDS, st.booleans(), st.sampled_from([0.0, 0.5]))
def test_client_drift_stays_below_lemmas_6_and_12_and_10_and_14(problem, steps, share, seed, sequential, noise):
    size, L = max(1, problem.count - 1), problem.smoothness.max()
    largest = sfl.convex_step(sfl.Setting(sequential, problem.count, size, steps, 1.0), L).largest
    setting, sigma = sfl.Setting(sequential, problem.count, size, steps, share * largest), noise * L
    draw = np.random.default_rng(seed)
    start = problem.optimum + draw.standard_normal(problem.dim)
    drifts = []
    for _ in range(30 if sigma or size < problem.count or sequential else 1):
        gradient, x, drift = noisy(problem, sigma, draw), start, 0.0
        for i in draw.permutation(problem.count)[:size]:
            y = x if sequential else start
            for _ in range(steps):
                drift += np.square(y - start).sum()
                y = y - setting.eta * gradient(i, y)
            x = y
        drifts.append(drift / (1 if sequential else size))
    gap = problem.value(start) - problem.value(problem.optimum)
    bound = sfl.drift_bound(setting, L=L, sigma=sigma, zeta_star=problem.zeta_star, gap=gap)
    assert np.mean(drifts) <= bound * (1 + 1e-9)
    beta, zeta = problem.dissimilarity()
    norm = np.linalg.norm(problem.weights @ problem.gradients(start))
    bound = sfl.nonconvex_drift_bound(setting, sigma=sigma, beta=beta, zeta=zeta, gradient=norm)
    assert np.mean(drifts) <= bound * (1 + 1e-9)


@given(PROBLEMS, STEPS, SHARES, SEEDS)
def test_consensus_of_fedavg_stays_below_lemma_2(problem, steps, share, seed):
    L, draw = problem.smoothness.max(), np.random.default_rng(seed)
    eta, q = share * focus.fedavg_step(L, steps).largest, draw.dirichlet(np.ones(problem.count))
    x0 = problem.optimum + draw.standard_normal(problem.dim)
    models, errors, reached = np.tile(x0, (problem.count, 1)), [], 0.0
    for _ in range(steps + 1):
        errors.append(q @ np.square(models - q @ models).sum(axis=1))
        reached = max(reached, np.linalg.norm(models - problem.optimum, axis=1).max())
        models = models - eta * np.array([h @ x for h, x in zip(problem.hessians, models, strict=True)])
        models = models + eta * problem.linear
    before, after = focus.consensus_bound(
        eta, steps, problem.deviation(reached).max(), problem.sampling_bias(q, reached)
    )
    assert max(errors[:-1]) <= before * (1 + 1e-9) + 1e-18
    assert errors[-1] <= after * (1 + 1e-9) + 1e-18


@given(PROBLEMS, STEPS, SHARES, SEEDS, st.floats(0.3, 1.0))
def test_consensus_of_focus_falls_as_lemma_4_says(problem, steps, share, seed, q):
    L, n = problem.smoothness.max(), problem.count
    eta = share * focus.smooth_step(L, n, steps, q, "non-convex").largest
    draw = np.random.default_rng(seed)
    start, rounds = problem.optimum + draw.standard_normal(problem.dim), 12
    errors, gradients = [], []
    for _ in range(20):
        part = np.vstack([np.ones(n, dtype=bool), draw.random((rounds, n)) < q])
        path, models = focus_run(problem, start, part, steps, eta)
        errors.append([np.square(x - m).sum() for x, m in zip(path[1:], models[1:], strict=True)])
        gradients.append([np.square(problem.weights @ problem.gradients(x)).sum() for x in path[1:]])
    error, gradient = np.mean(errors, axis=0), np.sqrt(np.mean(gradients, axis=0))
    bounds = [focus.focus_consensus_bound(error[r - 1], gradient[r], eta, n, q) for r in range(1, rounds + 1)]
    assert error[1:].sum() <= sum(bounds) * 1.1 + 1e-18  # means of 20 runs


@given(PROBLEMS, SEEDS, SHARES)
def test_the_limit_at_finite_steps_is_where_fedavg_ends(problem, seed, share):
    """Unequal local steps and losses, in expectation: the recursion of the mean, iterated."""
    draw = np.random.default_rng(seed)
    steps, q = draw.integers(1, 6, problem.count), draw.random(problem.count) * 0.9
    eta, shares = share / problem.smoothness.max(), problem.weights * (1 - q)
    x, rounds = np.zeros(problem.dim), 400
    for _ in range(rounds):
        models = np.tile(x, (problem.count, 1))
        for t in range(steps.max()):
            gradients = np.einsum("ijk,ik->ij", problem.hessians, models) - problem.linear
            models = models - eta * (t < steps)[:, None] * gradients
        x = x + shares @ (models - x)
    limit = fedacs.limit(problem, shares, steps, eta)
    rho = np.abs(np.linalg.eigvals(np.eye(problem.dim) - fedacs.mean_step(problem, shares, steps, eta)[0])).max()
    assert np.linalg.norm(x - limit) <= 10 * rho**rounds * np.linalg.norm(limit) * problem.dim + 1e-9 * (
        1 + np.linalg.norm(limit)
    )


@given(PROBLEMS, SEEDS)
def test_objective_inconsistency_is_bounded_by_chi2_and_kappa(problem, seed):
    draw = np.random.default_rng(seed)
    omega, x = draw.dirichlet(np.ones(problem.count)) * 0.98 + 0.02 / problem.count, draw.standard_normal(problem.dim)
    surrogate = problem.weighted(omega)
    beta, kappa = surrogate.dissimilarity()
    distance = chi2(problem.weights, omega)
    true, seen = (np.linalg.norm(w @ problem.gradients(x)) for w in (problem.weights, omega))
    assert true <= fedacs.true_gradient_bound(seen, distance, np.sqrt(beta**2 + 1), kappa) * (1 + 1e-9)
    end = surrogate.optimum
    gradient = np.linalg.norm(problem.weights @ problem.gradients(end))
    rounding = 1e-18 * problem.smoothness.max() ** 2
    assert gradient**2 <= fedacs.gradient_bound(distance, kappa) * (1 + 1e-9) + rounding
    least = fedacs.distance_bound(gradient, problem.smoothness.max())
    assert np.linalg.norm(end - problem.optimum) >= least * (1 - 1e-9)


@given(PROBLEMS, SEEDS)
def test_dissimilarity_bounds_every_point_and_is_met_at_one(problem, seed):
    beta, zeta = problem.dissimilarity()
    draw = np.random.default_rng(seed)
    for x in problem.optimum + draw.standard_normal((30, problem.dim)) * 10 ** draw.uniform(-2, 2, (30, 1)):
        gradients = problem.gradients(x)
        mean = problem.weights @ gradients
        spread = problem.weights @ np.square(gradients - mean).sum(axis=1)
        assert spread <= beta**2 * (mean @ mean) + zeta**2 + 1e-9 * (spread + problem.smoothness.max() ** 2)


def test_least_zeta_is_reached():
    """The maximiser z = P^-1 h of the quadratic form attains zeta^2."""
    problem = random_problem(3, clients=4, dim=3, condition=5, spread=2, alike=False)
    beta, zeta = problem.dissimilarity()
    best = 0.0
    draw = np.random.default_rng(0)
    x = problem.optimum
    for step in np.geomspace(3, 1e-7, 6000):
        y = x + step * draw.standard_normal(3)
        gradients = problem.gradients(y)
        mean = problem.weights @ gradients
        value = problem.weights @ np.square(gradients - mean).sum(axis=1) - beta**2 * (mean @ mean)
        if value > best:
            best, x = value, y
    assert best == pytest.approx(zeta**2, rel=1e-6)


@given(PROBLEMS, SEEDS)
def test_gradient_diversity_obeys_its_corollaries(problem, seed):
    draw = np.random.default_rng(seed)
    w, tilde = (draw.dirichlet(np.ones(problem.count)) * 0.9 + 0.1 / problem.count for _ in range(2))
    gradients = problem.gradients(draw.standard_normal(problem.dim))
    norm = np.linalg.norm(w @ gradients)
    sigma = np.sqrt(fedaware.global_variance(gradients, w))
    diversity = fedaware.diversity(gradients, w)
    assert diversity >= 1 - 1e-12
    assert diversity == pytest.approx(fedaware.diversity_bound(sigma, norm), rel=1e-9)  # Corollary 3.1 at its own x
    surrogate = np.linalg.norm(tilde @ gradients)
    assert surrogate**2 <= fedaware.surrogate_gradient_bound(norm, sigma, tilde, w) * (1 + 1e-9)


@given(PROBLEMS, STEPS, SEEDS, SHARES)
def test_local_drift_stays_below_lemma_3_2_and_corollary_3_2(problem, steps, seed, share):
    """Under Reddi's condition eta <= 1/(8 L K), which the lemma as printed leaves out."""
    draw = np.random.default_rng(seed)
    x, work = draw.standard_normal(problem.dim), draw.integers(1, steps + 1, problem.count)
    eta = share / (8 * problem.smoothness.max() * steps)
    gradients, drifts = problem.gradients(x), np.zeros(2)
    for i in range(problem.count):
        y = x
        for k in range(1, steps + 1):
            y = y - eta * (problem.hessians[i] @ y - problem.linear[i])
            drifts += problem.weights[i] * np.square(y - x).sum() * np.array([k == steps, k == work[i]])
    sigma_g = np.sqrt(fedaware.global_variance(gradients, problem.weights))
    norm, squares = np.linalg.norm(problem.weights @ gradients), np.square(gradients).sum(axis=1)
    assert drifts[0] <= fedaware.drift_bound(eta, steps, 0.0, sigma_g, norm) * (1 + 1e-9)
    assert drifts[1] <= fedaware.unbalanced_drift_bound(eta, work, problem.weights, 0.0, squares) * (1 + 1e-9)


def test_minimum_norm_weights_have_the_largest_surrogate_diversity():
    problem = random_problem(5, clients=6, dim=4, condition=10, spread=2, alike=False)
    gradients = problem.gradients(np.ones(4))
    best = min_norm_point(torch.from_numpy(gradients @ gradients.T)).weights
    for seed in range(200):
        other = np.random.default_rng(seed).dirichlet(np.ones(6))
        assert fedaware.diversity(gradients, problem.weights, other) <= fedaware.diversity(
            gradients, problem.weights, best
        ) * (1 + 1e-9)
