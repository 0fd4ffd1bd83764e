"""Methods without a server: what their rounds keep, where they converge, and how fast."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import graph_rates
from benchmarks.graphs import stationary_mean
from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.dsgd import DSGD, DSGDm
from raylfl.core.arrays import Ints
from raylfl.core.mixing import Edges
from raylfl.core.population import Population
from raylfl.testing import recorded_round, simulate
from tests.algorithms.graph_rounds import NAMES, N, case, play, random_graph
from tests.oracles.graphs import GraphRound

EQUAL = ("led", "proxskip")  # the same K everywhere


EXACT = [n for n in NAMES if n not in ("dsgd", "dsgdm", "sgp")]


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_methods_reach_the_optimum_when_nodes_come_and_go_and_the_others_do_not(name):
    problem, x0 = case(13, noise=0.0)
    rng, lr = np.random.default_rng(13), 0.1 if name in ("kgt", *EQUAL) else 0.2
    rounds = []
    for r in range(150 if name == "kgt" else 90):  # kgt needs 126, the others at most 80
        nodes = sorted(rng.choice(N, 5, replace=False).tolist())
        pairs = {pair for pair in random_graph(rng, directed=name.startswith("push")) if rng.random() > 0.2}
        rounds.append(GraphRound(r, nodes, pairs, [2 if name in EQUAL else 1] * N, lr))
    algorithm = ALGORITHMS.get(name).cls()
    last = play(algorithm, problem, rounds, x0)[-1]
    error = np.abs(algorithm.node_parameters(last).numpy() - problem.optimum()).max()
    assert error < 1e-5 if name in EXACT else error > 1e-2, error


@pytest.mark.parametrize("beta", [0.0, 0.6])
@pytest.mark.parametrize("p", [1.0, 0.7])
def test_the_bias_of_dsgd_is_its_closed_form(beta, p):
    """The limit is compared if all nodes work; otherwise the mean over 8,000 rounds, up to its noise."""
    rng, pairs = np.random.default_rng(0), np.array([[0, 1], [1, 0], [1, 2], [2, 1]])
    h, b = np.stack([np.diag(rng.uniform(0.5, 1.0, 2)) for _ in range(3)]), rng.standard_normal((3, 2))
    edges = Edges(3, pairs, np.ones(4, dtype=bool))

    @cache
    def matrix(nodes: tuple[int, ...]) -> np.ndarray:
        w = np.eye(3)
        w[np.ix_(nodes, nodes)] = edges.doubly(np.array(nodes, dtype=np.int64)).matrix
        return w

    def mixing(nodes: Ints) -> np.ndarray:
        return matrix(tuple(nodes.tolist()))

    found = stationary_mean(h, b, mixing, np.full(3, p), 0.1, 2, beta)
    x, m, total, rounds = np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)), 400 if p == 1 else 8_000
    for _ in range(rounds):
        works = rng.random(3) < p
        for _ in range(2):
            m = np.where(works[:, None], beta * m + np.einsum("ijk,ik->ij", h, x) - b, m)
            x = np.where(works[:, None], x - 0.1 * m, x)
        x = mixing(np.flatnonzero(works)) @ x
        total += x
    np.testing.assert_allclose(x if p == 1 else total / rounds, found, atol=1e-10 if p == 1 else 0.03)
    if p == 1:
        population = Population.of(np.ones(3))
        algorithm = DSGDm(beta=beta) if beta else DSGD()
        played = [recorded_round(r, [0, 1, 2], population, steps=2, lr=0.1, edges=edges) for r in range(150)]

        def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
            return torch.from_numpy(h[i] @ x.numpy() - b[i])

        *_, (server, _) = simulate(algorithm, gradient, played, torch.zeros(2, dtype=torch.float64), population)
        np.testing.assert_allclose(server["node_x"].numpy(), found, atol=1e-8)


def test_rates_under_participation_follow_from_the_maps_of_rounds():
    """DIGing's matrix is computed by hand; chains without memory are independent draws; DSGD's limit moves."""
    path, h, b = np.array([[0, 1], [1, 0], [1, 2], [2, 1]]), np.array([1.0, 1.5, 2.0]), np.array([1.0, -2.0, 0.5])
    maps = graph_rates.maps_of("gradient_tracking", h, b, path, False)
    rest = maps.rest()
    np.testing.assert_allclose(rest[:3], b.sum() / h.sum(), atol=1e-10)
    assert maps.moves(rest) < 1e-12
    w, i, o = Edges(3, path, np.ones(4, dtype=bool)).doubly(np.arange(3)).matrix, np.eye(3), np.zeros((3, 3))
    lr, g = graph_rates.LR, np.diag(h)
    whole = np.block([[w - lr * g, -lr * i, lr * i], [w @ g, w, -w], [g, o, o]])  # of (x, y, g_prev)
    moduli = np.abs(np.linalg.eigvals(whole))
    matrices = maps.reachable(maps.z0 - rest)
    found = graph_rates.independent(maps, matrices, np.ones(3))
    assert np.sqrt(found) == pytest.approx(moduli[moduli < 1 - 1e-9].max(), rel=1e-9)
    half = graph_rates.independent(maps, matrices, np.full(3, 0.5))
    assert graph_rates.markov(maps, matrices, 0.5) == pytest.approx(half, rel=1e-6)
    losing = graph_rates.maps_of("gradient_tracking", h, b, path, False, lost=0.3)
    assert len(losing.m) == 8 + 1 + 1 + 3  # one edge within two sets, two edges within one
    np.testing.assert_allclose(np.bincount(losing.at, losing.share), 1)
    np.testing.assert_array_equal(losing.m[-1], maps.m[-1])
    assert losing.moves(rest) < 1e-12
    dsgd = graph_rates.maps_of("dsgd", h, b, path, False)
    assert dsgd.moves(dsgd.rest()) > 1e-2
