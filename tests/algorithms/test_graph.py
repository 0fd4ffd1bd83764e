"""Methods without a server: against dense matrices, their papers' recursions, and twins."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.dsgd import DSGD
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.gradient_tracking import GradientTracking, PushPull
from raylfl.algorithms.kgt import KGT
from raylfl.algorithms.led import LED, ProxSkip
from raylfl.algorithms.nids import NIDS, ExactDiffusion, Extra
from raylfl.algorithms.scaffnew import Scaffnew
from raylfl.algorithms.sgp import SGP, PushDIGing
from raylfl.core.arrays import Ints
from raylfl.core.mixing import Edges, Mixing
from raylfl.core.population import Population
from raylfl.testing import recorded_round, simulate
from tests import oracles
from tests.algorithms.graph_rounds import NAMES, ROUNDS, D, N, case, full_rounds, node, play, random_rounds, same
from tests.oracles import graphs
from tests.oracles.graphs import GraphRound
from tests.shares import one_in

# --- against dense matrices, with random participation, lost messages, unequal K and an empty round ----------


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("order", ["atc", "cta", "dgd"])
def test_dsgd_follows_its_matrices(seed, order):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    same(node(play(DSGD(order=order), problem, rounds, x0)), graphs.dsgd(problem, rounds, x0, order))


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_dsgd_with_momentum_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours = play(ALGORITHMS.get("dsgdm").cls(beta=0.7), problem, rounds, x0)
    same(node(ours), graphs.dsgdm(problem, rounds, x0, 0.7))


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_sgp_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, directed=True)
    ours, theirs = play(SGP(), problem, rounds, x0), graphs.sgp(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "w")[..., 0], [w for _, w in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
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


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("gamma", [1.0, 0.6, 3.0])
def test_kgt_follows_its_matrices(seed, gamma):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours, theirs = play(KGT(gamma=gamma), problem, rounds, x0), graphs.kgt(problem, rounds, x0, gamma)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "c"), [c for _, c in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("lazy", [True, False])
def test_led_follows_its_matrices(seed, lazy):
    (problem, x0), rounds = case(seed), random_rounds(seed, equal=True)
    ours, theirs = play(LED(lazy=lazy), problem, rounds, x0), graphs.led(problem, rounds, x0, lazy)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "e"), [e for _, e in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
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


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_extra_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours, theirs = play(Extra(), problem, rounds, x0), graphs.extra(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "s"), [s for _, s in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours = node(play(ExactDiffusion(), problem, rounds, x0))
    same(ours, graphs.exact_diffusion(problem, rounds, x0))
    same(ours, node(play(NIDS(), problem, rounds, x0)))


# --- against the recursions as their papers print them --------------------------------------------------------


@pytest.mark.parametrize("seed", one_in(2, range(4)))
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
@pytest.mark.parametrize("lr", [0.03125, 0.05])  # a power of two: no rounding in lr * y, however it is computed
@pytest.mark.parametrize("seed", one_in(3, range(5)))
def test_push_pull_with_the_matrices_of_focus_is_focus_to_the_last_bit_if_the_step_is_a_power_of_two(seed, lr, dtype):
    """A round of FOCUS is two of push-pull: the server steps and is pulled from; the clients work and push."""
    problem, x0 = (
        oracles.random_quadratics(seed, N, D, weights="uniform"),
        np.random.default_rng(seed).standard_normal(D),
    )
    rng, exact = np.random.default_rng(seed), lr == 0.03125
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
    same = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-5}
    for r in range(ROUNDS):
        torch.testing.assert_close(focus[r]["y"], graph[2 * r + 1]["node_y"][0], **same)
        torch.testing.assert_close(focus[r]["x"], graph[2 * r + 2]["node_x"][0], **same)


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


HOLDS = {  # against dense matrices, under random participation; test_graph_invariants.py is about all methods
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
