"""Methods without a server: against dense matrices, their papers' recursions, invariants and twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import graph_rates
from benchmarks.graphs import stationary_mean
from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.dsgd import DSGD
from raylfl.algorithms.dsgdm import DSGDm
from raylfl.algorithms.exact_diffusion import ExactDiffusion
from raylfl.algorithms.extra import Extra
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.gradient_tracking import GradientTracking
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.algorithms.kgt import KGT
from raylfl.algorithms.led import LED
from raylfl.algorithms.nids import NIDS
from raylfl.algorithms.proxskip import ProxSkip
from raylfl.algorithms.push_diging import PushDIGing
from raylfl.algorithms.push_pull import PushPull
from raylfl.algorithms.scaffnew import Scaffnew
from raylfl.algorithms.sgp import SGP
from raylfl.core.algorithm import Algorithm, ServerState
from raylfl.core.mixing import Edges, Mixing
from raylfl.core.population import Ints, Population
from raylfl.testing import recorded_round, simulate
from tests import oracles
from tests.oracles import graphs
from tests.oracles.graphs import GraphRound

N, D, ROUNDS = 7, 4, 12
NAMES = [entry.name for entry in ALGORITHMS if issubclass(entry.cls, GraphAlgorithm)]
EQUAL = ("led", "proxskip")  # the same K everywhere


def random_graph(rng: np.random.Generator, directed: bool, p: float = 0.5) -> set[tuple[int, int]]:
    """The pairs of a random graph with a ring in it; an undirected edge twice."""
    pairs = {(i, (i + 1) % N) for i in range(N)} | {(i, j) for i in range(N) for j in range(N) if rng.random() < p}
    pairs = {(i, j) for i, j in pairs if i != j}
    return pairs if directed else pairs | {(j, i) for i, j in pairs}


def random_rounds(seed: int, directed: bool = False, steps: int = 3, equal: bool = False) -> list[GraphRound]:
    """Rounds with another graph, random nodes, lost messages, and one round in which no node works."""
    rng, out = np.random.default_rng(seed), []
    for r in range(ROUNDS):
        pairs = random_graph(rng, directed)
        nodes = sorted(rng.choice(N, rng.integers(1, N + 1), replace=False).tolist()) if r != ROUNDS // 2 else []
        arrived = {pair for pair in sorted(pairs) if rng.random() > 0.2}
        k = [steps] * N if equal else rng.integers(1, steps + 1, N).tolist()
        out.append(GraphRound(r, nodes, arrived, k, 0.05 * 0.97**r))
    return out


def full_rounds(seed: int, directed: bool, lr: float = 0.05) -> list[GraphRound]:
    """Rounds of a constant graph, in which all nodes work and all messages arrive."""
    pairs = random_graph(np.random.default_rng(seed), directed)
    return [GraphRound(r, list(range(N)), pairs, [1] * N, lr) for r in range(ROUNDS)]


def edges_of(r: GraphRound, weights: Any = "auto") -> Edges:
    pairs = np.array(sorted(r.arrived | {(j, i) for i, j in r.arrived}), dtype=np.int64).reshape(-1, 2)
    return Edges(N, pairs, np.array([tuple(p) in r.arrived for p in pairs.tolist()], dtype=bool), False, weights)


def play(algorithm: Algorithm, problem: Any, rounds: Sequence[GraphRound], x0: np.ndarray) -> list[ServerState]:
    population = Population(problem.sizes, problem.weights)

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        return torch.from_numpy(problem.gradient(i, x.numpy(), r, t))

    played = [recorded_round(r.index, r.nodes, population, steps=r.steps, lr=r.lr, edges=edges_of(r)) for r in rounds]
    return [server for server, _ in simulate(algorithm, gradient, played, torch.from_numpy(x0), population)]


def node(servers: Sequence[ServerState], name: str = "x") -> np.ndarray:
    return np.stack([server[f"node_{name}"].numpy() for server in servers])


def same(ours: np.ndarray, theirs: Any) -> None:
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-10, atol=1e-12)


def case(seed: int, noise: float = 0.1) -> tuple[Any, np.ndarray]:
    return oracles.random_quadratics(seed, N, D, noise=noise), np.random.default_rng(seed).standard_normal(D)


# --- against dense matrices, with random participation, lost messages, unequal K and an empty round ----------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", ["atc", "cta", "dgd"])
def test_dsgd_follows_its_matrices(seed, order):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    same(node(play(DSGD(order=order), problem, rounds, x0)), graphs.dsgd(problem, rounds, x0, order))


@pytest.mark.parametrize("seed", range(4))
def test_dsgd_with_momentum_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours = play(ALGORITHMS.get("dsgdm").cls(beta=0.7), problem, rounds, x0)
    same(node(ours), graphs.dsgdm(problem, rounds, x0, 0.7))


@pytest.mark.parametrize("seed", range(4))
def test_sgp_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, directed=True)
    ours, theirs = play(SGP(), problem, rounds, x0), graphs.sgp(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "w")[..., 0], [w for _, w in theirs])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("algorithm", "form", "steps"),
    [
        (GradientTracking(), "diging", 1),
        (GradientTracking(order="atc"), "atc", 1),
        (PushPull(), "push_pull", 3),
        (PushDIGing(), "push_diging", 1),
    ],
    ids=["diging", "atc", "push_pull", "push_diging"],
)
def test_gradient_tracking_follows_its_matrices(seed, algorithm, form, steps):
    problem, x0 = case(seed)
    rounds = random_rounds(seed, directed=form.startswith("push"), steps=steps)
    ours, theirs = play(algorithm, problem, rounds, x0), graphs.tracking(problem, rounds, x0, form)
    for name, column in (("x", 0), ("y", 1), ("g_prev", 2)):
        same(node(ours, name), [state[column] for state in theirs])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gamma", [1.0, 0.6, 3.0])
def test_kgt_follows_its_matrices(seed, gamma):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours, theirs = play(KGT(gamma=gamma), problem, rounds, x0), graphs.kgt(problem, rounds, x0, gamma)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "c"), [c for _, c in theirs])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lazy", [True, False])
def test_led_follows_its_matrices(seed, lazy):
    (problem, x0), rounds = case(seed), random_rounds(seed, equal=True)
    ours, theirs = play(LED(lazy=lazy), problem, rounds, x0), graphs.led(problem, rounds, x0, lazy)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "e"), [e for _, e in theirs])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("algorithm", "share"), [(LED(beta=0.4), 0.4), (ProxSkip(p=0.3), 0.3)], ids=["led", "proxskip"]
)
def test_a_constant_share_of_the_dual_follows_its_matrices(seed, algorithm, share):
    """ProxSkip's K is drawn anew for each round, the same for all nodes."""
    problem, x0 = case(seed)
    drawn = np.random.default_rng(seed).geometric(0.3, ROUNDS).tolist()
    rounds = [replace(r, steps=[k] * N) for r, k in zip(random_rounds(seed), drawn, strict=True)]
    ours, theirs = play(algorithm, problem, rounds, x0), graphs.led(problem, rounds, x0, True, share)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "e"), [e for _, e in theirs])


@pytest.mark.parametrize("seed", range(4))
def test_extra_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours, theirs = play(Extra(), problem, rounds, x0), graphs.extra(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "s"), [s for _, s in theirs])


@pytest.mark.parametrize("seed", range(4))
def test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours = node(play(ExactDiffusion(), problem, rounds, x0))
    same(ours, graphs.exact_diffusion(problem, rounds, x0))
    same(ours, node(play(NIDS(), problem, rounds, x0)))


# --- against the recursions as their papers print them --------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_constant_graph_gives_the_recursions_of_the_papers(seed):
    problem, x0 = case(seed, noise=0.0)
    rounds = full_rounds(seed, directed=False)
    w = graphs.metropolis(rounds[0], N)
    half = (np.eye(N) + w) / 2

    def literal(recursion: Any, matrix: np.ndarray) -> list[np.ndarray]:
        return recursion(problem, matrix, 0.05, ROUNDS, x0)

    same(node(play(Extra(), problem, rounds, x0)), literal(graphs.literal_extra, w))
    same(node(play(NIDS(), problem, rounds, x0)), literal(graphs.literal_nids, half))
    same(node(play(NIDS(lazy=False), problem, rounds, x0)), literal(graphs.literal_nids, w))
    same(node(play(GradientTracking(), problem, rounds, x0)), literal(graphs.literal_diging, w))
    directed = full_rounds(seed, directed=True)
    r, c = graphs.row_stochastic(directed[0], N), graphs.column_stochastic(directed[0], N)
    ours = node(play(PushPull(), problem, directed, x0))
    same(ours, graphs.literal_push_pull(problem, r, c, 0.05, ROUNDS, x0))


# --- twins ------------------------------------------------------------------------------------------------------


class FocusEdges(Edges):
    """The matrices of FOCUS, eqs. (13)-(14): node 0 is the server; R pulls its row, C pushes all of theirs to it."""

    pull: bool

    def row(self, nodes: Ints) -> Mixing:
        return self._star(nodes, own=0.0, to_server=False) if self.pull else self._identity(nodes)

    def column(self, nodes: Ints) -> Mixing:
        return self._identity(nodes) if self.pull else self._star(nodes, own=0.0, to_server=True)

    def _star(self, nodes: Ints, own: float, to_server: bool) -> Mixing:
        clients = np.flatnonzero(nodes > 0)
        server = np.full(len(clients), int(np.flatnonzero(nodes == 0)[0]))
        ends = (clients, server) if to_server else (server, clients)
        return Mixing(np.where(nodes > 0, own, 1.0), *ends, np.ones(len(clients)))

    def _identity(self, nodes: Ints) -> Mixing:
        none = np.zeros(0, dtype=np.int64)
        return Mixing(np.ones(len(nodes)), none, none, np.zeros(0))


def focus_edges(pull: bool) -> FocusEdges:
    edges = FocusEdges(N + 1, np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=bool))
    object.__setattr__(edges, "pull", pull)
    return edges


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # sums over edges differ
@pytest.mark.parametrize("seed", range(5))
def test_push_pull_with_the_matrices_of_focus_is_focus_to_the_last_bit(seed, dtype):
    """A round of FOCUS is two of push-pull: the server steps and is pulled from; the clients work and push."""
    problem, x0 = (
        oracles.random_quadratics(seed, N, D, weights="uniform"),
        np.random.default_rng(seed).standard_normal(D),
    )
    rng, lr = np.random.default_rng(seed), 0.03125  # a power of two: no rounding in lr * y, however it is computed
    cohorts = [rng.choice(N, rng.integers(1, N + 1), replace=False) for _ in range(ROUNDS)]
    steps = rng.integers(1, 4, (ROUNDS, N))
    clients, nodes = Population.of(np.ones(N)), Population.of(np.ones(N + 1))

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        return torch.from_numpy(problem.full_gradient(i, x.double().numpy())).to(dtype)

    def of_node(i: int, x: Tensor, r: int, t: int) -> Tensor:
        return torch.zeros_like(x) if i == 0 else gradient(i - 1, x, r, t)

    rounds = [recorded_round(r, cohorts[r], clients, steps=steps[r], lr=lr) for r in range(ROUNDS)]
    halves = []
    for r, cohort in enumerate(cohorts):
        here = np.concatenate([[0], cohort + 1])
        only_server, only_clients = np.eye(N + 1, dtype=np.int64)[0], np.concatenate([[0], steps[r]])
        halves.append(recorded_round(2 * r, here, nodes, steps=only_server, lr=lr, edges=focus_edges(True)))
        halves.append(recorded_round(2 * r + 1, here, nodes, steps=only_clients, lr=lr, edges=focus_edges(False)))
    last = recorded_round(2 * ROUNDS, [0], nodes, lr=lr, edges=focus_edges(True))
    start = torch.from_numpy(x0).to(dtype)
    focus = [server for server, _ in simulate(Focus(), gradient, rounds, start, clients)]
    graph = [server for server, _ in simulate(PushPull(), of_node, [*halves, last], start, nodes)]
    for r in range(ROUNDS):
        assert torch.equal(focus[r]["y"], graph[2 * r + 1]["node_y"][0])
        assert torch.equal(focus[r]["x"], graph[2 * r + 2]["node_x"][0])


def test_dsgd_on_the_complete_graph_is_fedavg():
    """They are equal up to rounding: W = 11^T/N is a product, FedAvg's mean a sum of updates."""
    problem, x0 = oracles.random_quadratics(3, N, D, weights="uniform", noise=0.1), np.ones(D)
    everyone = {(i, j) for i in range(N) for j in range(N) if i != j}
    rounds = [GraphRound(r, list(range(N)), everyone, [3] * N, 0.05) for r in range(ROUNDS)]
    server = np.stack([s["x"].numpy() for s in play(FedAvg(), problem, rounds, x0)])
    same(node(play(DSGD(), problem, rounds, x0)), np.repeat(server[:, None], N, axis=1))


def test_led_on_the_complete_graph_is_scaffnew():
    problem, x0 = oracles.random_quadratics(4, N, D, weights="uniform", noise=0.1), np.ones(D)
    everyone = {(i, j) for i in range(N) for j in range(N) if i != j}
    rounds = [GraphRound(r, list(range(N)), everyone, [3] * N, 0.05) for r in range(ROUNDS)]
    server = np.stack([s["x"].numpy() for s in play(Scaffnew(), problem, rounds, x0)])
    same(node(play(LED(lazy=False), problem, rounds, x0)), np.repeat(server[:, None], N, axis=1))


class TokenEdges(Edges):
    """A mixing in which the first of two working nodes sends its row to the second, which drops its own."""

    def doubly(self, nodes: Ints) -> Mixing:
        hop = np.arange(len(nodes) - 1)  # one, or none
        return Mixing(np.array([1.0, 0.0])[: len(nodes)], hop, hop + 1, np.ones(len(hop)))


def test_the_chain_of_sfl_is_a_token_walk_of_dsgd():
    """The node with the token takes its local steps and sends its row to the next node; the bits are equal."""
    problem, x0 = case(5, noise=0.0)
    rng, population = np.random.default_rng(5), Population.of(np.ones(N))
    cohorts = [rng.permutation(N)[: rng.integers(1, N + 1)].tolist() for _ in range(ROUNDS)]

    def gradient(i: int, x: Tensor, r: int, t: int) -> Tensor:
        return torch.from_numpy(problem.full_gradient(i, x.numpy()))

    token = TokenEdges(N, np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=bool))
    chain = [recorded_round(r, cohort, population, steps=3, lr=0.05) for r, cohort in enumerate(cohorts)]
    walk = [*(i for cohort in cohorts for i in cohort), 0]
    hops = [[i] if i == j else [i, j] for i, j in pairwise(walk)]
    steps = [[3 * (n == hop[0]) for n in range(N)] for hop in hops]
    played = [recorded_round(k, hop, population, steps=steps[k], lr=0.05, edges=token) for k, hop in enumerate(hops)]
    start = torch.from_numpy(x0)
    sfl = [server["x"] for server, _ in simulate(ALGORITHMS.get("sfl").cls(), gradient, chain, start, population)]
    rows = [server["node_x"] for server, _ in simulate(DSGD(), gradient, played, start, population)]
    ends = np.cumsum([len(cohort) for cohort in cohorts])
    for x, end in zip(sfl, ends, strict=True):
        assert torch.equal(x, rows[end - 1][walk[end]])


HOLDS = {  # against dense matrices, under random participation; invariants and resumes below are for all methods
    "dsgd": test_dsgd_follows_its_matrices,
    "dsgdm": test_dsgd_with_momentum_follows_its_matrices,
    "exact_diffusion": test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence,
    "extra": test_extra_follows_its_matrices,
    "gradient_tracking": test_gradient_tracking_follows_its_matrices,
    "kgt": test_kgt_follows_its_matrices,
    "led": test_led_follows_its_matrices,
    "nids": test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence,
    "proxskip": test_a_constant_share_of_the_dual_follows_its_matrices,
    "push_diging": test_gradient_tracking_follows_its_matrices,
    "push_pull": test_gradient_tracking_follows_its_matrices,
    "sgp": test_sgp_follows_its_matrices,
}


def test_no_method_without_a_server_goes_unchecked():
    assert HOLDS.keys() == set(NAMES)


# --- invariants -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_kept_whichever_nodes_work_and_messages_arrive(name):
    """Sums of tracked gradients, masses and duals are kept; the reported x is the mean of the nodes' rows."""
    problem, x0 = case(11)
    rounds = random_rounds(11, directed=True, steps=1 if name not in EQUAL else 3, equal=name in EQUAL)
    for server in play(ALGORITHMS.get(name).cls(), problem, rounds, x0):
        rows = {k.removeprefix("node_"): v.numpy() for k, v in server.items() if k.startswith("node_")}
        np.testing.assert_allclose(server["x"].numpy(), rows["x"].mean(axis=0), atol=1e-12)
        if "y" in rows:
            np.testing.assert_allclose(rows["y"].sum(axis=0), rows["g_prev"].sum(axis=0), atol=1e-12)
        if "w" in rows:
            np.testing.assert_allclose(rows["w"].sum(), N, rtol=1e-13)
        for zero in rows.keys() & {"s", "e", "c"}:
            np.testing.assert_allclose(rows[zero].sum(axis=0), 0, atol=1e-12)
        if "psi" in rows:
            np.testing.assert_allclose((rows["x"] - rows["psi"]).sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_does_not_work_keeps_its_rows(name):
    problem, x0 = case(12)
    rounds = random_rounds(12, steps=1)
    servers = play(ALGORITHMS.get(name).cls(), problem, rounds, x0)
    for before, after, r in zip(servers, servers[1:], rounds[1:], strict=False):
        idle = [i for i in range(N) if i not in r.nodes]
        assert all(torch.equal(before[k][idle], after[k][idle]) for k in before if k.startswith("node_"))


EXACT = [n for n in NAMES if n not in ("dsgd", "dsgdm", "sgp")]


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_methods_reach_the_optimum_when_nodes_come_and_go_and_the_others_do_not(name):
    problem, x0 = case(13, noise=0.0)
    rng, lr = np.random.default_rng(13), 0.1 if name in ("kgt", *EQUAL) else 0.2
    rounds = []
    for r in range(150):  # the slowest, kgt, needs 126
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

    def mixing(nodes: Ints) -> np.ndarray:
        w = np.eye(3)
        w[np.ix_(nodes, nodes)] = edges.doubly(nodes).matrix
        return w

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
        played = [recorded_round(r, [0, 1, 2], population, steps=2, lr=0.1, edges=edges) for r in range(300)]

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
