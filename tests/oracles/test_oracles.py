"""The oracles against closed forms, against each other where two must coincide, and against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.oracles import (
    ALGORITHMS,
    Array,
    History,
    Local,
    Problem,
    Round,
    a_norms,
    a_vector,
    biased_fixed_point,
    box_min_norm,
    calibrated_lr,
    chi2,
    distances,
    expected_fixed_point,
    fedacs_probabilities,
    fedavg_matrix,
    full_rounds,
    gradient_diversity,
    local_model,
    min_norm_point,
    min_norm_weights,
    optimal_probabilities,
    push_pull,
    random_logistic,
    random_quadratics,
    random_rounds,
    simulate,
    surrogate_weights,
)

N, D = 5, 7
REQUIRED: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.3},
    "fedavgm": {"beta": 0.8},
    "feddyn": {"alpha": 0.4},
}
COUNTS_SENT = {"fedacs", "cafedavg", "optimal_sampling"}  # 1/M: a lost upload is missed


def start(seed: int, dim: int = D) -> Array:
    return np.random.default_rng(1000 + seed).standard_normal(dim)


def close(ours: History, theirs: History, *, tol: float = 1e-12) -> None:
    """The keys that both know agree after every round."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        shared = a.keys() & b.keys()
        assert "x" in shared
        for key in shared:
            np.testing.assert_allclose(a[key], b[key], rtol=tol, atol=tol, err_msg=key)


# --- the local solver ----------------------------------------------------------------


def test_a_vector_has_the_closed_forms_of_the_table():
    steps, rho, prox = 6, 0.7, 0.2
    t = np.arange(steps)
    np.testing.assert_allclose(a_vector(steps), np.ones(steps))
    np.testing.assert_allclose(a_vector(steps, momentum=rho), (1 - rho ** (steps - t)) / (1 - rho), rtol=1e-14)
    np.testing.assert_allclose(a_vector(steps, prox=prox), (1 - prox) ** (steps - 1 - t), rtol=1e-14)
    np.testing.assert_allclose(a_vector(steps, step_schedule=lambda s: 0.9**s), 0.9**t, rtol=1e-14)


@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.5), (0.6, 0.5)])
def test_an_update_is_eta_times_its_gradients_weighed_by_a(rho: float, mu: float):
    """U = eta G a, the definition of a, with the gradients met on the way."""
    problem, x = random_quadratics(0, N, D), start(0)
    (r,) = full_rounds(1, N, steps=6, lr=0.1)
    local, met = Local(momentum=rho, schedule=lambda t: 0.9**t), []

    def record(g: Array, z: Array) -> Array:
        met.append(g)
        return g + mu * (z - x)

    update = x - local_model(problem, 2, x, r, local, record)
    weights = a_vector(6, rho, r.lr * mu, local.schedule)
    np.testing.assert_allclose(update, r.lr * weights @ np.array(met), rtol=1e-13)


def test_clipping_comes_before_weight_decay():
    problem, x = random_quadratics(1, N, D), start(1)
    (r,) = full_rounds(1, N, lr=0.1)
    g = problem.full_gradient(3, x)
    expected = x - 0.1 * (g * 0.5 / (np.linalg.norm(g) + 1e-6) + 0.3 * x)
    assert np.linalg.norm(g) > 0.5
    ours = local_model(problem, 3, x, r, Local(clip_norm=0.5, weight_decay=0.3))
    np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_the_momentum_buffer_starts_at_zero_every_round():
    """Heavy ball over K = 2 steps, twice, is the two-step closed form applied twice."""
    problem, x = random_quadratics(2, 1, D), start(2, D)
    h, b, eta, rho = problem.hessians[0], problem.linear[0], 0.1, 0.5
    z = x
    for _ in range(2):
        g0 = h @ z - b
        g1 = h @ (z - eta * g0) - b
        z = z - eta * g0 - eta * (rho * g0 + g1)
    run = simulate("fedavg", problem, full_rounds(2, 1, steps=2, lr=eta), x, Local(momentum=rho))
    np.testing.assert_allclose(run[-1]["x"], z, rtol=1e-13)


@pytest.mark.parametrize("problem", [random_quadratics(0, N, D), random_logistic(0, N, l2=0.1)])
def test_gradients_are_the_slopes_of_the_losses(problem: Problem):
    x, step = start(0, problem.dim), 1e-6
    ways = step * np.eye(problem.dim)
    slopes = [(problem.loss(1, x + e) - problem.loss(1, x - e)) / (2 * step) for e in ways]
    np.testing.assert_allclose(problem.full_gradient(1, x), slopes, atol=1e-8)
    slopes = [(problem.global_loss(x + e) - problem.global_loss(x - e)) / (2 * step) for e in ways]
    np.testing.assert_allclose(problem.global_gradient(x), slopes, atol=1e-8)
    assert problem.weights.sum() == pytest.approx(1)


def test_logistic_batches_average_to_the_full_gradient():
    problem = random_logistic(1, 3)
    x, rows = start(1, problem.dim), range(int(problem.sizes[2]))
    mean = np.mean([problem.row_gradient(2, x, [row]) for row in rows], axis=0)
    np.testing.assert_allclose(mean, problem.full_gradient(2, x), atol=1e-14)
    picked = replace(problem, batches=lambda i, r, t: [i + r, t])
    np.testing.assert_allclose(picked.gradient(2, x, 1, 4), problem.row_gradient(2, x, [3, 4]))


# --- FOCUS ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("gamma", [None, 0.02])
def test_the_focus_loop_is_the_push_pull_matrices(seed: int, gamma: float | None):
    problem = random_quadratics(seed, N, D, noise=0.1 * (seed % 2))
    rounds = random_rounds(seed, 12, N, lr=0.03)
    close(
        simulate("focus", problem, rounds, start(seed), gamma=gamma),
        push_pull(problem, rounds, start(seed), gamma),
    )


@pytest.mark.parametrize("seed", range(5))
def test_fedavg_is_its_own_matrices(seed: int):
    problem, rounds = random_quadratics(seed, N, D), random_rounds(seed, 12, N)
    close(simulate("fedavg", problem, rounds, start(seed)), fedavg_matrix(problem, rounds, start(seed)))


def test_focus_tracks_the_stored_gradients():
    problem, rounds = random_quadratics(3, N, D, noise=0.3), random_rounds(3, 12, N)
    for state in simulate("focus", problem, rounds, start(3)):
        np.testing.assert_allclose(state["y"], state["g_prev_i"].sum(axis=0), atol=1e-12)


def test_focus_with_one_step_and_everyone_is_gradient_descent_with_step_n_gamma():
    problem, rounds = random_quadratics(4, N, D), full_rounds(10, N, lr=0.05)
    x = start(4)
    for state in simulate("focus", problem, rounds, x, gamma=0.03):
        x = x - N * 0.03 * problem.global_gradient(x)
        np.testing.assert_allclose(state["x"], x, rtol=1e-12)


def test_focus_is_exact_under_partial_participation_and_fedavg_is_not():
    problem = random_quadratics(5, N, D)
    rounds = random_rounds(5, 1500, N, lr=0.02, lr_decay=1.0, include_empty=False)
    ends = {name: simulate(name, problem, rounds, start(5))[-1]["x"] for name in ("focus", "fedavg")}
    assert np.linalg.norm(ends["focus"] - problem.optimum()) < 1e-9
    assert np.linalg.norm(ends["fedavg"] - problem.optimum()) > 1e-3


# --- twins ---------------------------------------------------------------------------

RANDOM = random_rounds(11, 12, N)
REPEATED = random_rounds(12, 12, N, with_replacement=True)
EQUAL = random_rounds(13, 12, N, unequal_steps=False, max_steps=3)
LOSSLESS = random_rounds(14, 12, N, lossy=False, include_empty=False, with_replacement=True)
FULL = full_rounds(12, N, steps=4)
SINGLE = random_rounds(15, 12, N, size=1)
ONE_STEP = random_rounds(16, 12, N, max_steps=1)

TWINS = [
    ("fedprox", {"mu": 0.0}, "fedavg", {}, RANDOM),
    ("fedavgm", {"beta": 0.0}, "fedavg", {}, RANDOM),
    ("fednova", {}, "fedavg", {"aggregate": "weighted"}, EQUAL),
    ("fedacs", {}, "fedavg", {"aggregate": "anonymous"}, REPEATED),
    ("cafedavg", {}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("fedavg", {"aggregate": "mean"}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("sfl", {}, "fedavg", {}, SINGLE),
    ("sfl", {"gamma": 0.4}, "fedavg", {"gamma": 0.4}, SINGLE),
    ("ssl", {}, "sfl", {}, RANDOM),
    ("splitfed", {}, "fedavg", {}, RANDOM),
    ("fedsgd", {"aggregate": "weighted"}, "fedavg", {"aggregate": "weighted"}, ONE_STEP),
    ("mifa", {}, "fedavg", {}, FULL),
    ("fedvarp", {}, "fedavg", {}, FULL),
    ("fedvarp", {"lost": "reuse"}, "fedavg", {"aggregate": "anonymous"}, LOSSLESS),
    ("fedau", {}, "fedavg", {}, FULL),
    ("fedau", {"normalize": True}, "fedavg", {}, FULL),
    ("fedawe", {}, "fedavg", {}, FULL),
    ("fedavg", {"aggregate": "weighted"}, "fedavg", {"aggregate": "full"}, FULL),
    ("fedavg", {"aggregate": "anonymous_uniform"}, "fedavg", {"aggregate": "full"}, FULL),
    ("fedaware", {"warmup": "all"}, "fedaware", {"warmup": "active"}, RANDOM),
    ("fedaware", {"warmup": "fedavg"}, "fedaware", {"warmup": "active"}, FULL),
]


@pytest.mark.parametrize(("one", "ours", "other", "theirs", "rounds"), TWINS)
def test_twins_coincide(one: str, ours: dict, other: str, theirs: dict, rounds: list[Round]):
    problem, x = random_quadratics(7, N, D), start(7)
    close(simulate(one, problem, rounds, x, **ours), simulate(other, problem, rounds, x, **theirs))


def test_fedavg_with_one_step_and_everyone_is_gradient_descent():
    problem, x = random_quadratics(8, N, D), start(8)
    for state in simulate("fedavg", problem, full_rounds(5, N, lr=0.1), x, aggregate="full", gamma=0.7):
        x = x - 0.07 * problem.global_gradient(x)
        np.testing.assert_allclose(state["x"], x, rtol=1e-13)


def test_anonymous_importance_with_p_equal_to_w_is_anonymous():
    problem, x = random_quadratics(9, N, D), start(9)
    rounds = [replace(r, p=problem.weights.tolist()) for r in REPEATED]
    close(
        simulate("fedavg", problem, rounds, x, aggregate="anonymous_importance"),
        simulate("fedavg", problem, rounds, x, aggregate="anonymous"),
    )
    uniform = simulate("fedavg", problem, RANDOM, x, aggregate="anonymous_uniform")
    close(uniform, simulate("fedavg", problem, RANDOM, x, aggregate="anonymous_importance"))


def test_fednova_sent_with_equal_work_and_links_is_anonymous():
    problem, x = random_quadratics(10, N, D), start(10)
    close(
        simulate("fednova", problem, EQUAL, x, normalise="sent"),
        simulate("fedavg", problem, EQUAL, x, aggregate="anonymous"),
    )


@pytest.mark.parametrize("name", ["scaffold", "scaffnew"])
def test_zero_variates_make_the_first_round_fedavg(name: str):
    problem, x = random_quadratics(11, N, D), start(11)
    rounds = RANDOM[:1]
    close(simulate(name, problem, rounds, x), simulate("fedavg", problem, rounds, x))


# --- the rules for lost uploads and empty rounds -------------------------------------


def all_runs(rounds: list[Round], local: Local) -> dict[str, History]:
    problem, x = random_quadratics(12, N, D), start(12)
    names = sorted(ALGORITHMS)
    return {name: simulate(name, problem, rounds, x, local, **REQUIRED.get(name, {})) for name in names}


def test_a_lost_client_might_as_well_not_have_been_asked():
    def forget(r: Round) -> Round:
        keep = [k for k, here in enumerate(r.received) if here]
        cohort, draws, steps = ([rows[k] for k in keep] for rows in (r.cohort, r.draws, r.steps))
        return replace(r, cohort=cohort, draws=draws, steps=steps, received=[True] * len(keep))

    rounds = random_rounds(21, 12, N, unequal_steps=False)
    local = Local(momentum=0.5, weight_decay=0.01, clip_norm=2.0)
    asked, unasked = all_runs(rounds, local), all_runs([forget(r) for r in rounds], local)
    assert any(r.lost and r.arrived for r in rounds)
    for name in sorted(ALGORITHMS.keys() - COUNTS_SENT):
        close(asked[name], unasked[name])
    assert not np.allclose(asked["fedacs"][-1]["x"], unasked["fedacs"][-1]["x"])


def test_an_empty_round_moves_only_the_clocks():
    rounds = random_rounds(22, 9, N)
    empty = next(r.index for r in rounds if not r.arrived)
    clocks = {"S_i", "W_i", "intervals_i", "p", "lambda_i"}
    assert empty > 0
    for name, run in all_runs(rounds, Local()).items():
        for key in run[empty].keys() - clocks:
            np.testing.assert_array_equal(run[empty][key], run[empty - 1][key], err_msg=f"{name} {key}")
    fedau = all_runs(rounds, Local())["fedau"]
    np.testing.assert_array_equal(fedau[empty]["S_i"], fedau[empty - 1]["S_i"] + 1)


def test_nothing_moves_the_start_or_a_state_handed_out_earlier():
    x, rounds = start(12), random_rounds(23, 8, N)
    problem = random_quadratics(12, N, D)
    for name in ALGORITHMS:
        options = REQUIRED.get(name, {})
        short, long = (simulate(name, problem, rounds[:k], x, **options) for k in (4, 8))
        close(short, long[:4], tol=0)
        np.testing.assert_array_equal(x, start(12))


# --- one algorithm each --------------------------------------------------------------


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_keeps_c_the_mean_of_the_variates(option: int):
    problem = random_quadratics(13, N, D)
    for state in simulate("scaffold", problem, RANDOM, start(13), option=option):
        np.testing.assert_allclose(state["c"], state["c_i"].mean(axis=0), atol=1e-12)


def test_scaffold_option_two_stores_the_mean_of_the_gradients_it_met():
    """c_i+ = c_i - c + U_i/(K eta) is the plain average of the local gradients, whatever the correction."""
    problem, rounds = random_quadratics(14, 1, D), full_rounds(3, 1, steps=3, lr=0.1)
    x = start(14)
    for state in simulate("scaffold", problem, rounds, x):
        z, met = x, []
        for _ in range(3):
            met.append(problem.full_gradient(0, z))
            z = z - 0.1 * met[-1]  # one client: the correction c - c_i is 0
        np.testing.assert_allclose(state["c_i"][0], np.mean(met, axis=0), atol=1e-12)
        x = z


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {}),
        ("scaffold", {"option": 1}),
        ("scaffnew", {}),
        ("feddyn", {"alpha": 1.0}),
        ("focus", {}),
    ],
)
def test_drift_correction_is_exact_under_full_participation(name: str, options: dict):
    problem = random_quadratics(15, N, D, weights="uniform")
    end = simulate(name, problem, full_rounds(800, N, steps=4, lr=0.05), start(15), **options)[-1]
    np.testing.assert_allclose(end["x"], problem.optimum(), atol=1e-9)
    if name in ("feddyn", "scaffnew", "scaffold"):
        variates = end["c_i"] if name == "scaffold" else end["h_i"]
        gradients = [problem.full_gradient(i, end["x"]) for i in range(N)]
        np.testing.assert_allclose(variates, gradients, atol=1e-8)


def test_scaffnew_variates_sum_to_zero_under_full_participation():
    problem = random_quadratics(16, N, D)
    for state in simulate("scaffnew", problem, FULL, start(16)):
        np.testing.assert_allclose(state["h_i"].sum(axis=0), 0, atol=1e-12)


def test_feddyn_keeps_h_the_mean_of_the_client_terms():
    problem = random_quadratics(17, N, D)
    for state in simulate("feddyn", problem, RANDOM, start(17), alpha=0.4):
        np.testing.assert_allclose(state["h"], state["h_i"].mean(axis=0), atol=1e-12)


def test_sfl_runs_the_clients_one_after_the_other():
    """On |x - E_i|^2/2 a client's K steps are x <- E_i + (1-eta)^K (x - E_i)."""
    problem, x = distances(np.random.default_rng(0).standard_normal((3, 2))), start(18, 2)
    r = Round(0, [2, 0, 1], [1, 1, 1], [True, False, True], [2, 5, 3], 0.1)
    after = problem.linear[2] + 0.9**2 * (x - problem.linear[2])
    after = problem.linear[1] + 0.9**3 * (after - problem.linear[1])
    np.testing.assert_allclose(simulate("sfl", problem, [r], x)[0]["x"], after, rtol=1e-14)


def one_dimensional(taking_part: list[list[int]], clients: int) -> tuple[History, History]:
    """fedau and fedawe on f_i = (x - 1)^2/2, K = 1, from 0."""
    problem = distances(np.ones((clients, 1)))
    rounds = [
        Round(r, cohort, [1] * len(cohort), [True] * len(cohort), [1] * len(cohort), 0.1)
        for r, cohort in enumerate(taking_part)
    ]
    x = np.zeros(1)
    return simulate("fedau", problem, rounds, x, cutoff=3), simulate("fedawe", problem, rounds, x)


def test_fedau_averages_the_participation_intervals():
    """Client 0 takes part in rounds 0, 2, 3; client 1 never (cutoff 3); round 1 and 4 are empty."""
    run, _ = one_dimensional([[0], [], [0], [0], [], []], 2)
    np.testing.assert_allclose([s["W_i"][0] for s in run], [1, 1, 1.5, 4 / 3, 4 / 3, 4 / 3])
    np.testing.assert_allclose([s["W_i"][1] for s in run], [1, 1, 3, 3, 3, 3])
    np.testing.assert_allclose([s["S_i"][1] for s in run], [1, 2, 0, 1, 2, 0])
    x = 0.1 / 2  # round 0: weight 1, U = 0.1 (x - 1)
    x = x - 0.1 * (x - 1) / 2  # round 2: still 1, the interval 2 counts from the next round on
    x = x - 1.5 * 0.1 * (x - 1) / 2
    np.testing.assert_allclose(run[3]["x"], x, rtol=1e-14)


def test_fedawe_scales_by_the_rounds_missed_and_starts_from_its_own_model():
    """Client 1 first takes part in round 2: r - tau = 3, from x0, though the server has moved."""
    _, run = one_dimensional([[0], [0], [1], [], [0, 1]], 2)
    np.testing.assert_allclose(run[1]["x"], 1 - 0.9**2, rtol=1e-14)
    np.testing.assert_allclose(run[2]["x"], 0.3, rtol=1e-14)
    own_0 = (1 - 0.9**2) + 3 * 0.1 * 0.9**2  # tau_0 = 1
    own_1 = 0.3 + 2 * 0.1 * 0.7  # tau_1 = 2: round 3 was empty, but passed
    np.testing.assert_allclose(run[4]["x"], (own_0 + own_1) / 2, rtol=1e-14)
    np.testing.assert_allclose(run[4]["tau_i"], [4, 4])


def test_fedprox_contracts_towards_the_proximal_point():
    """[3] eq. 31: x_K - C = (1 - eta mu - eta)^K (x_r - C), C = (E + mu x_r)/(1 + mu), on |x - E|^2/2."""
    problem, x, mu = distances(start(30, 3)[None]), np.ones(3), 0.7
    centre = (problem.linear[0] + mu * x) / (1 + mu)
    expected = centre + (1 - 0.1 * mu - 0.1) ** 4 * (x - centre)
    state = simulate("fedprox", problem, full_rounds(1, 1, steps=4, lr=0.1), x, mu=mu)[0]
    np.testing.assert_allclose(state["x"], expected, rtol=1e-13)


def test_feddyn_takes_two_rounds_in_closed_form():
    """One of two clients on x^2/2, K = 2: h_i = alpha U_i, h = alpha U_i/2, x = x_K - h/alpha."""
    problem, alpha, eta = distances(np.zeros((2, 1))), 0.4, 0.1
    rounds = [Round(r, [0], [1], [True], [2], eta) for r in range(2)]
    x, h_0, h = 1.0, 0.0, 0.0
    for state in simulate("feddyn", problem, rounds, np.ones(1), alpha=alpha):
        first = x - eta * (x - h_0)
        second = first - eta * (first - h_0 + alpha * (first - x))
        h_0, h = h_0 + alpha * (x - second), h + alpha * (x - second) / 2
        x = second - h / alpha
        np.testing.assert_allclose([state["x"][0], state["h"][0], state["h_i"][0, 0]], [x, h, h_0], rtol=1e-13)


@pytest.mark.parametrize("name", ["cafedavg", "fednova"])
def test_the_expectation_over_the_links_weighs_every_client_as_derived(name: str):
    """All 2^N outcomes of the links: cafedavg sums s_i U_i/M ([3] eq. 113); fednova `sent` moves by
    tau_eff sum_i (1-q_i) s_i U_i/(M K_i), tau_eff from all N (eq. 116).
    """
    problem, x, (_, q, _) = random_quadratics(31, N, D), start(31), system(31)
    steps, draws, w = np.array([3, 1, 4, 2, 5]), [1, 3, 2], problem.weights
    mean = np.zeros(D)
    for links in itertools.product([True, False], repeat=3):
        chance = np.prod([1 - q[i] if here else q[i] for i, here in enumerate(links)])
        some = Round(0, [0, 1, 2], draws, list(links), steps[:3].tolist(), 0.05, q.tolist(), None, steps.tolist())
        options: dict[str, Any] = {"normalise": "sent"} if name == "fednova" else {}
        mean += chance * simulate(name, problem, [some], x, gamma=0.5, **options)[0]["x"]
    factor = np.ones(N)
    if name == "fednova":
        factor = np.sum(w * (1 - q) * steps) / np.sum(w * (1 - q)) * (1 - q) / steps
    moves = [factor[i] * draws[i] / 6 * (x - local_model(problem, i, x, some, Local())) for i in range(3)]
    np.testing.assert_allclose(mean, x - 0.5 * np.sum(moves, axis=0), rtol=1e-12)


def test_mifa_and_fedvarp_use_what_they_remember():
    """Two clients on |x - E_i|^2/2, K = 1: round 0 client 0, round 1 client 1."""
    problem, x = distances(np.array([[1.0], [3.0]])), np.zeros(1)
    rounds = [Round(r, [r], [1], [True], [1], 0.1) for r in range(2)]
    u0 = 0.1 * (0.0 - 1)
    mifa = simulate("mifa", problem, rounds, x)
    np.testing.assert_allclose(mifa[0]["x"], -u0 / 2)
    u1 = 0.1 * (-u0 / 2 - 3)
    np.testing.assert_allclose(mifa[1]["x"], -u0 / 2 - (u0 + u1) / 2, rtol=1e-14)
    fedvarp = simulate("fedvarp", problem, rounds, x)
    np.testing.assert_allclose(fedvarp[0]["x"], -u0)
    u1 = 0.1 * (-u0 - 3)
    np.testing.assert_allclose(fedvarp[1]["x"], -u0 - (u1 + u0 / 2), rtol=1e-14)


def test_fedvarp_reuse_stands_in_for_lost_uploads():
    problem, x = distances(np.array([[1.0], [3.0]])), np.zeros(1)
    whole = Round(0, [0, 1], [2, 1], [True, True], [1, 1], 0.1)
    rounds = [whole, replace(whole, index=1, received=[False, True])]
    u0, u1 = -0.1, -0.3
    run = simulate("fedvarp", problem, rounds, x, lost="reuse")
    x1 = -(2 * u0 + u1) / 3
    np.testing.assert_allclose(run[0]["x"], x1)
    np.testing.assert_allclose(run[1]["x"], x1 - (0.1 * (x1 - 3) + 2 * u0) / 3, rtol=1e-14)
    np.testing.assert_allclose(run[1]["B_i"][0], u0)


def test_the_adaptive_servers_take_their_first_step_in_closed_form():
    problem, x, rounds = random_quadratics(18, N, D), start(18), full_rounds(1, N, steps=2)
    d = x - simulate("fedavg", problem, rounds, x)[0]["x"]
    tau = 1e-2
    v = {"fedadagrad": tau**2 + d**2, "fedadam": 0.99 * tau**2 + 0.01 * d**2}
    v["fedyogi"] = tau**2 + 0.01 * d**2 * np.where(d**2 > tau**2, 1, -1)
    for name, second in v.items():
        m = d if name == "fedadagrad" else 0.1 * d
        state = simulate(name, problem, rounds, x, tau=tau, gamma=0.5)[0]
        np.testing.assert_allclose(state["x"], x - 0.5 * m / (np.sqrt(second) + tau), rtol=1e-12)


def test_centralized_is_gradient_descent_on_f_and_local_only_finds_every_own_optimum():
    problem, x = random_quadratics(19, N, D), start(19)
    z = x
    for _ in range(3):
        z = z - 0.05 * problem.global_gradient(z)
    np.testing.assert_allclose(simulate("centralized", problem, full_rounds(1, N, steps=3), x)[0]["x"], z, rtol=1e-12)
    end = simulate("local_only", problem, full_rounds(400, N, steps=3, lr=0.1), x)[-1]
    own = np.array([np.linalg.solve(h, b) for h, b in zip(problem.hessians, problem.linear, strict=True)])
    np.testing.assert_allclose(end["x_i"], own, atol=1e-10)
    np.testing.assert_allclose(end["x"], problem.weights @ own, atol=1e-10)


def test_optimal_sampling_is_unbiased_over_one_draw():
    """sum_i p_i (w_i/p_i) U_i = sum_i w_i U_i, the drawn client received."""
    problem, x = random_quadratics(20, N, D), start(20)
    steps, p = [1, 2, 3, 4, 5], np.array([0.1, 0.3, 0.2, 0.15, 0.25])
    mean = np.zeros(D)
    for i in range(N):
        r = Round(0, [i], [1], [True], [steps[i]], 0.05, p=p.tolist())
        mean += p[i] * simulate("optimal_sampling", problem, [r], x)[0]["x"]
    everyone = Round(0, list(range(N)), [1] * N, [True] * N, steps, 0.05)
    np.testing.assert_allclose(mean, simulate("fedavg", problem, [everyone], x, aggregate="full")[0]["x"], rtol=1e-12)


def test_optimal_probabilities_count_an_unknown_norm_as_the_mean_of_the_known():
    w = np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose(optimal_probabilities(w, np.full(3, np.nan)), w)
    known = np.array([1.0, 3.0, np.nan])
    np.testing.assert_allclose(optimal_probabilities(w, known), np.array([0.5, 0.75, 0.5]) / 1.75)


def test_optimal_sampling_takes_its_own_probabilities_where_the_round_has_none():
    problem, x = random_quadratics(21, N, D), start(21)
    rounds = [replace(r, p=None) for r in REPEATED]
    stale, fresh = (simulate("optimal_sampling", problem, rounds, x, norms=norms) for norms in ("stale", "fresh"))
    np.testing.assert_allclose(stale[0]["p"], problem.weights)
    np.testing.assert_allclose(stale[3]["p"], optimal_probabilities(problem.weights, stale[2]["norms_i"]))
    lengths = [np.linalg.norm(x - local_model(problem, i, x, rounds[0], Local())) for i in range(N)]
    np.testing.assert_allclose(fresh[0]["p"], problem.weights * lengths / np.sum(problem.weights * lengths))


# --- consistency ([3]) ---------------------------------------------------------------


def system(seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(N)), rng.uniform(0, 0.5, N), rng.integers(1, 40, N).astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_fedacs_makes_the_surrogate_the_objective(seed: int):
    w, q, a = system(seed)
    omega = surrogate_weights(fedacs_probabilities(w, q, a), q, a)
    np.testing.assert_allclose(omega, w, rtol=1e-14)
    assert chi2(w, omega) < 1e-25
    assert chi2(w, surrogate_weights(w, q, a)) > 1e-3
    np.testing.assert_allclose(fedacs_probabilities(w, np.full(N, 0.3), np.full(N, 7.0)), w)


def test_chi2_of_two_clients_is_the_form_of_equation_90():
    s = np.array([0.8 * 3, 0.6 * 10])  # (1-q) T, w = 1/2
    omega = surrogate_weights(np.full(2, 0.5), np.array([0.2, 0.4]), np.array([3.0, 10.0]))
    assert chi2(np.full(2, 0.5), omega) == pytest.approx((s[1] - s[0]) ** 2 / (4 * s[0] * s[1]))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_the_expected_round_of_fedavg_stops_at_the_biased_fixed_point(mu: float):
    """E[x_{r+1}] = x - sum p (1-q) U_i, iterated until it stands; [3] eq. 36."""
    problem, (_, q, _) = random_quadratics(22, N, D), system(22)
    steps = np.array([1, 4, 9, 2, 6])
    r = Round(0, list(range(N)), [1] * N, [True] * N, steps.tolist(), 0.05)
    x = start(22)
    for _ in range(600):

        def proximal(g: Array, z: Array, x: Array = x) -> Array:
            return g + mu * (z - x)

        models = [local_model(problem, i, x, r, Local(), proximal) for i in range(N)]
        x = x - sum(problem.weights[i] * (1 - q[i]) * (x - models[i]) for i in range(N))
    np.testing.assert_allclose(expected_fixed_point(problem, q, steps, 0.05, mu=mu), x, atol=1e-10)


def test_the_fixed_point_on_distances_tends_to_the_omega_average():
    centres, (_, q, _) = np.random.default_rng(1).standard_normal((N, D)), system(23)
    steps = np.array([1, 4, 9, 2, 6])
    limit = biased_fixed_point(centres, q, steps.astype(float))
    finite = expected_fixed_point(distances(centres), q, steps, 1e-6)
    np.testing.assert_allclose(finite, limit, atol=1e-4)
    share = (1 - q) * (1 - 0.9**steps)  # [3] App. C, the last but one equation
    np.testing.assert_allclose(
        expected_fixed_point(distances(centres), q, steps, 0.1), share @ centres / share.sum(), rtol=1e-10
    )


def test_calibration_gives_everyone_the_effective_step_of_fedavg():
    """The expected sum of |c_i| |a_i|_1 eta over the received is eta_eff T_eff ([3] App. I.2)."""
    (w, q, a), eta = system(24), 0.1
    target = np.sum(w * (1 - q) * eta * a)
    p = fedacs_probabilities(w, q, a)
    assert np.sum(p * (1 - q) * calibrated_lr("fedacs", eta, w, q, a) * a) == pytest.approx(target, rel=1e-13)
    for name in ("cafedavg", "fedvarp"):
        assert np.sum(w * calibrated_lr(name, eta, w, q, a) * a) == pytest.approx(target, rel=1e-13)
    assert calibrated_lr("fedavg", eta, w, q, a) == eta
    tau_eff = np.sum(w * (1 - q) * a) / np.sum(w * (1 - q))  # fednova `sent`: c_i = tau_eff s_i/(M |a_i|_1)
    assert np.sum(w * (1 - q) * tau_eff / a * eta * a) == pytest.approx(target, rel=1e-13)


def test_a_norms_follow_the_local_solver():
    (r,) = full_rounds(1, 2, steps=3, lr=0.1)
    np.testing.assert_allclose(a_norms(r, 2, Local(momentum=0.5)), 1 + 1.5 + 1.75)
    np.testing.assert_allclose(a_norms(r, 2, Local(), mu=1.0), 1 + 0.9 + 0.81)


# --- shortest combinations -----------------------------------------------------------


def best_over_supports(vectors: Array) -> Array:
    """The shortest feasible affine minimiser over all supports: the minimum, by exhaustion."""
    best = np.eye(len(vectors))[0]
    for size in range(1, len(vectors) + 1):
        for support in map(list, itertools.combinations(range(len(vectors)), size)):
            v = vectors[support]
            rest = np.linalg.lstsq((v[1:] - v[0]).T, -v[0], rcond=None)[0] if size > 1 else np.zeros(0)
            lam = np.zeros(len(vectors))
            lam[support] = np.concatenate([[1 - rest.sum()], rest])
            if lam.min() >= -1e-12 and np.linalg.norm(lam @ vectors) < np.linalg.norm(best @ vectors):
                best = lam
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_min_norm_point_is_the_best_over_all_supports(seed: int):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 8)), int(rng.integers(1, 10))
    vectors = rng.standard_normal((n, d)) + rng.uniform(0, 2)
    expected = best_over_supports(vectors) @ vectors
    lam = min_norm_weights(vectors)
    assert lam.min() >= 0
    assert lam.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(lam @ vectors, expected, atol=1e-12)
    np.testing.assert_allclose(min_norm_point(vectors @ vectors.T) @ vectors, expected, atol=1e-7)


def test_orthogonal_vectors_weigh_by_their_inverse_squared_lengths():
    lengths = np.array([1.0, 2.0, 0.5, 4.0])
    expected = lengths**-2 / np.sum(lengths**-2)
    np.testing.assert_allclose(min_norm_point(np.diag(lengths**2)), expected, rtol=1e-13)


@pytest.mark.parametrize("seed", range(10))
def test_two_vectors_have_the_closed_form(seed: int):
    a, b = np.random.default_rng(seed).standard_normal((2, 3)) + 0.5
    share = np.clip(b @ (b - a) / ((a - b) @ (a - b)), 0, 1)
    gram = np.array([[a @ a, a @ b], [a @ b, b @ b]])
    np.testing.assert_allclose(min_norm_point(gram), [share, 1 - share], atol=1e-12)


@pytest.mark.parametrize("n", [3, 12, 30])
@pytest.mark.parametrize("eps", [0.0, 0.02, 0.1, 1.0])
def test_the_box_is_respected_and_nothing_in_it_is_shorter(n: int, eps: float):
    """Against SLSQP, and against the first-order condition g . (mu - lambda) >= 0 over random feasible mu."""
    rng = np.random.default_rng(n)
    vectors, lambda0 = rng.standard_normal((n, 40)) + 0.3, rng.dirichlet(np.ones(n))
    gram = vectors @ vectors.T
    lam = box_min_norm(gram, lambda0, eps)
    assert abs(lam.sum() - 1) < 1e-12
    assert lam.min() >= 0
    assert np.abs(lam - lambda0).max() <= eps + 1e-12
    bounds = [(max(0, v - eps), min(1, v + eps)) for v in lambda0]
    slsqp = minimize(
        lambda z: z @ gram @ z,
        lambda0,
        jac=lambda z: 2 * gram @ z,
        bounds=bounds,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1, "jac": lambda z: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert lam @ gram @ lam <= slsqp.fun * (1 + 1e-10)
    np.testing.assert_allclose(lam, slsqp.x, atol=1e-5)


def test_fedmgda_with_no_room_averages_the_directions():
    problem, x = random_quadratics(25, N, D), start(25)
    r = Round(0, [3, 0, 1], [1, 1, 1], [True, True, False], [2, 2, 2], 0.05)
    units = [u / np.linalg.norm(u) for u in (x - local_model(problem, i, x, r, Local()) for i in (3, 0))]
    share = problem.weights[[3, 0]] / problem.weights[[3, 0]].sum()
    state = simulate("fedmgda", problem, [r], x, eps=0.0, gamma=0.1)[0]
    np.testing.assert_allclose(state["x"], x - 0.1 * share @ np.array(units), rtol=1e-13)


def test_fedaware_moves_along_the_shortest_combination_of_its_momenta():
    """First participation takes U_i, later alpha m + (1 - alpha) U; only clients received so far weigh."""
    problem, x = random_quadratics(26, N, D), start(26)
    run = simulate("fedaware", problem, RANDOM, x, alpha=0.3, gamma=0.8)
    before, momentum, seen = x, np.zeros((N, D)), np.zeros(N, dtype=bool)
    for r, state in zip(RANDOM, run, strict=True):
        for i in r.arrived:
            u = before - local_model(problem, i, before, r, Local())
            momentum[i] = 0.3 * momentum[i] + 0.7 * u if seen[i] else u
            seen[i] = True
        np.testing.assert_allclose(state["m_i"], momentum, atol=1e-13)
        if r.arrived:
            step = best_over_supports(momentum[seen]) @ momentum[seen]
            np.testing.assert_allclose(state["x"], before - 0.8 * step, atol=1e-11)
            assert not state["lambda_i"][~seen].any()
        before = state["x"]


def test_fedaware_warms_up_as_fedavg_until_the_round_that_completes_the_clients():
    problem, x = random_quadratics(27, N, D), start(27)
    rounds = random_rounds(27, 12, N, size=2, include_empty=False, lossy=False)
    run = simulate("fedaware", problem, rounds, x, warmup="fedavg", aggregate="weighted")
    complete = next(k for k, state in enumerate(run) if state["seen_i"].all())
    assert 1 < complete < 11
    close(run[:complete], simulate("fedavg", problem, rounds[:complete], x, aggregate="weighted"))
    assert not any(state["lambda_i"].any() for state in run[:complete])
    assert all(state["lambda_i"].sum() == pytest.approx(1) for state in run[complete:])


def test_fedaware_normalized_weighs_the_new_update_by_alpha_and_sums_unit_vectors():
    problem, x, rounds = random_quadratics(28, N, D), start(28), full_rounds(2, N, steps=2)
    first, second = simulate("fedaware", problem, rounds, x, normalize=True, alpha=0.3)
    units = first["m_i"] / np.linalg.norm(first["m_i"], axis=1, keepdims=True)
    np.testing.assert_allclose(first["x"], x - best_over_supports(units) @ units, atol=1e-12)
    fresh = [first["x"] - local_model(problem, i, first["x"], rounds[1], Local()) for i in range(N)]
    np.testing.assert_allclose(second["m_i"], 0.7 * first["m_i"] + 0.3 * np.array(fresh), atol=1e-13)


def test_gradient_diversity_is_one_for_equal_updates_and_grows_as_they_cancel():
    w = np.array([0.25, 0.25, 0.5])
    assert gradient_diversity(np.tile(start(29), (3, 1)), w) == pytest.approx(1)
    assert gradient_diversity(np.array([[1.0, 0], [0, 1]]), np.array([2.0, 2.0])) == pytest.approx(np.sqrt(2))
