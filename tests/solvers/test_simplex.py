"""Min-norm points against scipy, closed forms and optimality certificates."""

from itertools import product

import numpy as np
import pytest
import scipy.optimize
import torch

from raylfl.errors import NonFinite
from raylfl.solvers import simplex
from raylfl.solvers.simplex import min_norm_point


@pytest.fixture(params=["exchanges", "moves"], autouse=True)
def way(request, monkeypatch):
    """Both methods for the minimum; pivoting comes first."""
    if request.param == "moves":
        monkeypatch.setattr(simplex, "EXCHANGES", 0)
    return request.param


def solve(vectors: np.ndarray, **options):
    return min_norm_point(torch.from_numpy(vectors @ vectors.T), **options)


def shortest(vectors: np.ndarray) -> float:
    """min |sum lambda_i v_i|^2 over the simplex by non-negative least squares (Lawson & Hanson, ch. 23).

    mu = argmin_{mu >= 0} |V^T mu|^2 + (1^T mu - 1)^2 is proportional to lambda: t lambda costs
    t^2 f(lambda) + (t - 1)^2, least for the least f at any t.
    """
    scale = np.abs(vectors).max()
    stacked = np.vstack([vectors.T / scale, np.ones(len(vectors))])
    mu = scipy.optimize.nnls(stacked, np.append(np.zeros(vectors.shape[1]), 1.0))[0]
    return float(np.sum((mu / mu.sum() @ vectors) ** 2))


def problems(n: int, d: int, seed: int) -> dict[str, np.ndarray]:
    """Easy and unpleasant sets of vectors [n, d]."""
    rng = np.random.default_rng([n, d, seed])
    noise, offset = rng.normal(size=(n, d)), rng.normal(size=d)
    doubled = noise + 0.5
    doubled[n // 2 :] = doubled[: n - n // 2]
    return {
        "apart": noise + 0.3,
        "many duplicates": doubled,
        "nearly parallel": offset + 1e-4 * noise,
        "nearly cancelling": np.concatenate([noise[: n // 2] + 1, -noise[: n // 2] - 1 + 1e-3 * offset]),
        "norms over six decades": (noise + 0.3) * 10.0 ** rng.uniform(-3, 3, size=(n, 1)),
        "low rank": rng.normal(size=(n, 2)) @ rng.normal(size=(2, d)) + offset,
    }


@pytest.mark.parametrize("kind", list(problems(2, 2, 0)))
def test_the_value_is_that_of_a_least_squares_solver(kind):
    for (n, d), seed in product([(2, 3), (5, 40), (30, 8), (60, 60)], range(3)):
        vectors = problems(n, d, seed)[kind]
        found, best = solve(vectors), shortest(vectors)
        longest = np.max(np.sum(vectors**2, axis=1))
        value = np.sum((found.weights @ vectors) ** 2)
        assert value <= best * (1 + 1e-8) + 1e-13 * longest  # the second term: the precision of G in float64
        assert found.value == pytest.approx(value, rel=1e-8, abs=1e-13 * longest)


@pytest.mark.parametrize("kind", list(problems(2, 2, 0)))
def test_weights_lie_on_the_simplex_and_the_gap_certifies_them(kind):
    """KKT: m_i . x >= |x|^2 for all i, with equality on the support."""
    vectors = problems(40, 60, 1)[kind]
    found = solve(vectors)
    assert (found.weights >= 0).all()
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert found.support == np.count_nonzero(found.weights)
    x = found.weights @ vectors
    slopes = vectors @ x
    rounding = 1e-13 * np.linalg.norm(vectors, axis=1) * (found.weights @ np.linalg.norm(vectors, axis=1))
    assert (slopes >= x @ x * (1 - 1e-10) - rounding).all()
    assert (np.abs(slopes - x @ x) <= 1e-10 * (x @ x) + rounding)[found.weights > 0].all()
    assert found.gap <= 1e-12 + rounding.max() / (x @ x)


def test_exchanges_alone_solve_a_hull_apart_from_zero(way, monkeypatch):
    moves, pairwise = [], simplex._Problem.pairwise
    monkeypatch.setattr(simplex._Problem, "pairwise", lambda *given: moves.append(1) or pairwise(*given))
    for n, seed in product((5, 40), range(5)):
        solve(problems(n, 60, seed)["apart"])
    assert bool(moves) == (way == "moves")


def test_two_vectors_have_a_closed_form():
    """lambda_1 = clip((b - a) . b / |a - b|^2, 0, 1)."""
    for seed in range(20):
        a, b = np.random.default_rng(seed).normal(size=(2, 3)) + 0.7
        expected = np.clip((b - a) @ b / ((a - b) @ (a - b)), 0, 1)
        np.testing.assert_allclose(solve(np.stack([a, b])).weights, [expected, 1 - expected], atol=1e-12)


def test_a_zero_vector_takes_all_the_weight_and_a_hull_around_zero_gives_zero():
    vectors = np.random.default_rng(0).normal(size=(5, 9)) + 1
    vectors[3] = 0
    np.testing.assert_array_equal(solve(vectors).weights, [0, 0, 0, 1, 0])
    found = solve(np.zeros((3, 4)))
    assert (found.value, found.gap, found.weights.sum()) == (0.0, 0.0, 1.0)
    vectors = np.random.default_rng(3).normal(size=(40, 5))
    found = solve(vectors)
    assert np.linalg.norm(found.weights @ vectors) < 1e-12
    assert (found.weights >= 0).all()


def test_a_thousand_vectors_reach_a_gap_of_1e_minus_12_and_others_a_loose_one():
    vectors = np.random.default_rng(1).normal(size=(1000, 3000)) + 0.02
    found = solve(vectors)
    x = found.weights @ vectors
    assert found.gap <= 1e-12
    assert (vectors @ x).min() >= x @ x * (1 - 1e-9)
    vectors = np.random.default_rng(2).normal(size=(60, 60)) + 0.1
    found = solve(vectors, tol=1e-3)
    assert found.gap <= 1e-3
    assert found.value <= solve(vectors).value * (1 + 2e-3)


@pytest.mark.parametrize("radius", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_box_problem_is_solved_as_by_slsqp(seed, radius):
    rng = np.random.default_rng(seed)
    vectors, centre = rng.normal(size=(7, 12)) + 0.3, rng.dirichlet(np.ones(7))
    found = solve(vectors, centre=centre, radius=radius)
    assert (np.abs(found.weights - centre) <= radius + 1e-15).all()
    assert (found.weights >= 0).all()
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    theirs = scipy.optimize.minimize(
        lambda x: np.sum((x @ vectors) ** 2),
        centre,
        jac=lambda x: 2 * vectors @ (x @ vectors),
        method="SLSQP",
        bounds=[(max(c - radius, 0), min(c + radius, 1)) for c in centre],
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert found.value == pytest.approx(theirs.fun, rel=1e-8)


def test_the_box_gap_is_that_of_a_linear_program():
    """gap = |x|^2 - min_v v . G x over the box, here by scipy, at a point that is not optimal."""
    rng = np.random.default_rng(9)
    vectors, centre = rng.normal(size=(8, 5)) + 1.0, rng.dirichlet(np.ones(8))
    gram = vectors @ vectors.T
    found = min_norm_point(torch.from_numpy(gram), tol=1e9, centre=centre, radius=0.2)  # stops at the centre
    np.testing.assert_array_equal(found.weights, centre)
    bounds = [(max(c - 0.2, 0), min(c + 0.2, 1)) for c in centre]
    program = scipy.optimize.linprog(gram @ centre, A_eq=np.ones((1, 8)), b_eq=[1.0], bounds=bounds)
    value = centre @ gram @ centre
    assert found.gap == pytest.approx((value - program.fun) / value, rel=1e-9)


def test_a_non_finite_gram_matrix_is_refused():
    with pytest.raises(NonFinite, match="non-finite"):
        min_norm_point(torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]))


@pytest.mark.parametrize("seed", range(6))
def test_momenta_of_a_run_near_its_end_are_solved_exactly(seed):
    """Ten vectors in R^4 whose hull just misses or touches 0, where Frank-Wolfe alone zigzags."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(10, 4)) * rng.uniform(0.01, 0.5, size=(10, 1))
    normal = rng.normal(size=4)
    vectors -= normal * np.minimum(vectors @ normal - 1e-4 * (seed - 2), 0)[:, None] / (normal @ normal)
    found, best = solve(vectors), shortest(vectors)
    assert np.sum((found.weights @ vectors) ** 2) <= best * (1 + 1e-8) + 1e-20


@pytest.mark.parametrize("method", ["pairwise", "active_set"])
@pytest.mark.parametrize("kind", ["apart", "norms over six decades"])
@pytest.mark.parametrize("seed", range(3))
def test_each_method_reaches_the_minimum_by_itself(method, kind, seed):
    """Each method is tested alone: in a solution they correct each other, and a fault only costs time."""
    vectors = problems(8, 30, seed)[kind]
    scale = np.max(np.sum(vectors**2, axis=1))
    problem = simplex._Problem(vectors @ vectors.T / scale, 1e-10, None, 1.0)
    longest = np.eye(8)[problem.norms.argmax()]
    found = problem.pairwise(longest, 100_000)[0] if method == "pairwise" else problem.active_set(longest)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found >= 0).all()
    assert np.sum((found @ vectors) ** 2) == pytest.approx(shortest(vectors), rel=1e-7)
